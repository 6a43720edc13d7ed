/* CRC-32C against the vectors of RFC 3720, appendix B.4, and bit by bit at every length and offset. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka needs the four above */
#include <cmocka.h>

#include "core/crc32c.h"

/* The definition: one bit after the other, by the reflected polynomial. */
static uint32_t bit_by_bit(uint32_t crc, const void *bytes, size_t length)
{
    crc = ~crc;
    for (const uint8_t *at = bytes, *end = at + length; at < end; at++) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

static void published_vectors(void **state)
{
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    (void)state;
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) {
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    const struct {
        const void *bytes;
        size_t length;
        uint32_t crc;
    } vector[] = {{zeros, 32, 0x8a9136aa}, {ones, 32, 0x62a8ab43},       {up, 32, 0x46dd794e},
                  {down, 32, 0x113fdb5c},  {"123456789", 9, 0xe3069283}, {"", 0, 0}};
    for (size_t i = 0; i < sizeof vector / sizeof *vector; i++) {
        assert_int_equal(eni_crc32c(0, vector[i].bytes, vector[i].length), vector[i].crc);
        assert_int_equal(bit_by_bit(0, vector[i].bytes, vector[i].length), vector[i].crc);
    }
}

static void both_ways_and_all_cuts_agree(void **state)
{
    uint8_t bytes[97];
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 151 + 7);
    for (size_t from = 0; from < 9; from++)
        for (size_t to = from; to <= sizeof bytes; to++) {
            uint32_t whole = bit_by_bit(0, bytes + from, to - from);
            size_t cut = from + (to - from) / 3;
            assert_int_equal(eni_crc32c(0, bytes + from, to - from), whole);
            assert_int_equal(eni_crc32c(eni_crc32c(0, bytes + from, cut - from), bytes + cut, to - cut),
                             whole);
        }
}

/* Lengths where long messages are folded, and their rests. */
static void long_messages_agree(void **state)
{
    static uint8_t bytes[5000];
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * i * 31 + i * 151 + 7);
    for (size_t length = 900; length <= sizeof bytes - 9; length += length < 1600 ? 1 : 97) {
        const size_t from = length % 9;
        const uint32_t begin = (uint32_t)length * 2654435761u;
        assert_int_equal(eni_crc32c(begin, bytes + from, length), bit_by_bit(begin, bytes + from, length));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(both_ways_and_all_cuts_agree),
        cmocka_unit_test(long_messages_agree),
    };
    return cmocka_run_group_tests_name("core/crc32c", tests, NULL, NULL);
}
