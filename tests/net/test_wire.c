/* test_wire.c - the message header: what goes in comes out, and every class of wrong bytes is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <msgpack.h>

#include "runtime/net/pack.h"
#include "runtime/net/wire.h"

static eni_header example(void)
{
    eni_header h;
    memset(&h, 0, sizeof h); /* padding too: headers are compared with memcmp */
    h.type = ENI_MSG_CALL;
    h.flags = ENI_FLAG_CRC;
    h.epoch = 3;
    h.rank = 2;
    h.bucket = 5;
    h.shard = 1;
    h.kind = 255;
    h.what = 1;
    h.dtype = ENI_DTYPE_F32;
    h.incarnation = 7;
    h.seq = UINT64_MAX;
    h.base_version = 1u << 20;
    h.version = 99;
    h.stable = UINT64_MAX - 1;
    h.nsamples = 64;
    h.covered = 256;
    h.count = 1000;
    h.bytes = 4000;
    h.step = 123456789;
    h.deliver_ns = INT64_MAX;
    h.crc = 0xdeadbeef;
    h.slot = 4;
    h.into = ENI_INTO_NOTHING;
    h.status = 9;
    return h;
}

static en_status decode(const uint8_t *bytes, size_t length, const char **why)
{
    eni_header h;
    *why = NULL;
    return eni_header_decode(bytes, length, &h, why);
}

static void a_header_comes_back(void **state)
{
    (void)state;
    uint8_t bytes[ENI_HEADER_MAX];
    eni_header in = example(), out;
    for (int round = 0; round < 2; round++) {
        memset(&out, 0, sizeof out);
        size_t length = eni_header_encode(&in, bytes);
        assert_int_equal(eni_header_decode(bytes, length, &out, NULL), EN_OK);
        assert_memory_equal(&in, &out, offsetof(eni_header, text));
        assert_string_equal(in.text, out.text);
        in.rank = -1;
        memset(in.text, 'x', sizeof in.text - 1);
    }
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[ENI_HEADER_MAX];
    const char *why;
    eni_header in = example();
    size_t length = eni_header_encode(&in, bytes);
    for (size_t n = 0; n < length; n++) {
        assert_int_equal(decode(bytes, n, &why), EN_EPROTO);
        assert_non_null(why);
    }
    bytes[length] = 0xc0;
    assert_int_equal(decode(bytes, length + 1, &why), EN_EPROTO);
    assert_non_null(strstr(why, "bytes are left"));
}

/* Version 1 had 25 elements: the version is named before their number is looked at. */
static void another_version_is_told_as_such(void **state)
{
    (void)state;
    uint8_t bytes[ENI_HEADER_MAX];
    const char *why;
    eni_header in = example();
    size_t length = eni_header_encode(&in, bytes);
    assert_int_equal(bytes[8], ENI_WIRE_VERSION); /* after dc 00 1c, ce and the magic */
    bytes[2]--;
    assert_int_equal(decode(bytes, length, &why), EN_EPROTO);
    assert_non_null(strstr(why, "fields"));
    bytes[8]--;
    assert_int_equal(decode(bytes, length, &why), EN_EPROTO);
    assert_non_null(strstr(why, "another version"));
}

/* Each field is named when it is out of range. */
static void every_field_has_its_range(void **state)
{
    (void)state;
    struct {
        size_t offset, width;
        uint64_t value;
    } wrong[] = {
        {offsetof(eni_header, type), 4, 0},
        {offsetof(eni_header, type), 4, ENI_MSG_TYPES},
        {offsetof(eni_header, flags), 4, 64},
        {offsetof(eni_header, rank), 4, (uint32_t)-2},
        {offsetof(eni_header, rank), 4, 65536},
        {offsetof(eni_header, kind), 4, 256},
        {offsetof(eni_header, what), 4, 4},
        {offsetof(eni_header, dtype), 4, 2},
        {offsetof(eni_header, dtype), 4, 0}, /* with a payload */
        {offsetof(eni_header, codec), 4, 1},
        {offsetof(eni_header, count), 8, ENI_BUCKET_MAX / 4 + 1},
        {offsetof(eni_header, count), 8, 999}, /* not the payload's */
        {offsetof(eni_header, bytes), 8, ENI_BUCKET_MAX + 1},
        {offsetof(eni_header, deliver_ns), 8, UINT64_MAX},
        {offsetof(eni_header, status), 4, 256},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint8_t bytes[ENI_HEADER_MAX];
        const char *why;
        eni_header in = example();
        memcpy((char *)&in + wrong[i].offset, &wrong[i].value, wrong[i].width); /* little endian */
        size_t length = eni_header_encode(&in, bytes);
        assert_int_equal(decode(bytes, length, &why), EN_EPROTO);
        assert_non_null(why);
    }
    uint8_t bytes[ENI_HEADER_MAX];
    const char *why;
    eni_header in = example();
    memcpy(in.text, "two\nlines", sizeof "two\nlines"); /* our own control characters are replaced */
    size_t length = eni_header_encode(&in, bytes);
    assert_int_equal(decode(bytes, length, &why), EN_OK);
    bytes[length - 1] = '\n'; /* others' are refused: the text is the last field */
    assert_int_equal(decode(bytes, length, &why), EN_EPROTO);
    assert_non_null(why);
}

static void bombs_cost_nothing(void **state)
{
    (void)state;
    static const uint8_t array32[] = {0xdd, 4, 0, 0, 0}, map32[] = {0xdf, 4, 0, 0, 0},
                         bin32[] = {0xc6, 255, 255, 255, 255};
    uint8_t nested[150];
    const char *why;
    assert_int_equal(decode(NULL, 0, &why), EN_EPROTO);
    memset(nested, 0xdd, sizeof nested);
    assert_int_equal(decode(array32, sizeof array32, &why), EN_EPROTO);
    assert_int_equal(decode(map32, sizeof map32, &why), EN_EPROTO);
    assert_int_equal(decode(bin32, sizeof bin32, &why), EN_EPROTO);
    assert_int_equal(decode(nested, sizeof nested, &why), EN_EPROTO);
}

/* Flip every bit and put every byte everywhere: no crash, and what is accepted encodes again to the same
 * fields. */
static void damaged_headers_are_refused_or_whole(void **state)
{
    (void)state;
    uint8_t bytes[ENI_HEADER_MAX];
    eni_header in = example();
    size_t length = eni_header_encode(&in, bytes), accepted = 0;
    for (size_t at = 0; at < length; at++)
        for (int value = 0; value < 256; value++) {
            uint8_t damaged[ENI_HEADER_MAX], again[ENI_HEADER_MAX];
            eni_header out, twice;
            memcpy(damaged, bytes, length);
            damaged[at] = (uint8_t)value;
            if (eni_header_decode(damaged, length, &out, NULL) != EN_OK) continue;
            accepted++;
            size_t n = eni_header_encode(&out, again);
            assert_int_equal(eni_header_decode(again, n, &twice, NULL), EN_OK);
            assert_int_equal(out.seq, twice.seq);
            assert_int_equal(out.type, twice.type);
        }
    assert_true(accepted > length); /* changes of plain numbers are valid headers */
}

/* msgpack-c reads our bytes: 28 elements with our values. */
static void msgpack_c_reads_the_same(void **state)
{
    (void)state;
    uint8_t bytes[ENI_HEADER_MAX];
    eni_header in = example();
    size_t length = eni_header_encode(&in, bytes), at = 0;
    msgpack_unpacked result;
    msgpack_unpacked_init(&result);
    assert_int_equal(msgpack_unpack_next(&result, (const char *)bytes, length, &at), MSGPACK_UNPACK_SUCCESS);
    assert_int_equal(at, length);
    assert_int_equal(result.data.type, MSGPACK_OBJECT_ARRAY);
    assert_int_equal(result.data.via.array.size, 28);
    const msgpack_object *field = result.data.via.array.ptr;
    assert_int_equal(field[0].via.u64, ENI_WIRE_MAGIC);
    assert_int_equal(field[2].via.u64, in.type);
    assert_true(field[13].via.u64 == in.seq);
    assert_int_equal(field[18].via.u64, in.covered);
    assert_true(field[16].via.u64 == in.stable);
    assert_int_equal(field[23].via.u64, in.crc);
    assert_int_equal(field[25].via.u64, in.into);
    assert_int_equal(field[27].type, MSGPACK_OBJECT_STR);
    msgpack_unpacked_destroy(&result);
}

static void assert_bytes(const uint8_t *bytes, size_t n, const char *hex)
{
    char text[2 * ENI_HEADER_MAX + 1] = "";
    for (size_t i = 0; i < n; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    assert_string_equal(text, hex);
}

/* The bytes of a value at both sides of each change of format; for a text and binary those before the
 * first. */
static const struct {
    enum { UINT, INT, ARRAY, STR, BIN } type;
    uint64_t value;
    const char *hex;
} golden[] = {
    {UINT, 0, "00"},
    {UINT, 127, "7f"},
    {UINT, 128, "cc80"},
    {UINT, UINT8_MAX, "ccff"},
    {UINT, UINT8_MAX + 1, "cd0100"},
    {UINT, UINT16_MAX, "cdffff"},
    {UINT, UINT16_MAX + 1, "ce00010000"},
    {UINT, UINT32_MAX, "ceffffffff"},
    {UINT, UINT32_MAX + UINT64_C(1), "cf0000000100000000"},
    {UINT, UINT64_MAX, "cfffffffffffffffff"},
    {INT, 0, "00"},
    {INT, 127, "7f"},
    {INT, 128, "cc80"},
    {INT, UINT8_MAX + 1, "cd0100"},
    {INT, UINT16_MAX + 1, "ce00010000"},
    {INT, UINT32_MAX + UINT64_C(1), "cf0000000100000000"},
    {INT, INT64_MAX, "cf7fffffffffffffff"},
    {INT, (uint64_t)-1, "ff"},
    {INT, (uint64_t)-32, "e0"},
    {INT, (uint64_t)-33, "d0df"},
    {INT, (uint64_t)INT8_MIN, "d080"},
    {INT, (uint64_t)INT8_MIN - 1, "d1ff7f"},
    {INT, (uint64_t)INT16_MIN, "d18000"},
    {INT, (uint64_t)INT16_MIN - 1, "d2ffff7fff"},
    {INT, (uint64_t)INT32_MIN, "d280000000"},
    {INT, (uint64_t)INT32_MIN - 1, "d3ffffffff7fffffff"},
    {INT, (uint64_t)INT64_MIN, "d38000000000000000"},
    {ARRAY, 0, "90"},
    {ARRAY, 15, "9f"},
    {ARRAY, 16, "dc0010"},
    {ARRAY, UINT16_MAX, "dcffff"},
    {ARRAY, UINT16_MAX + 1, "dd00010000"},
    {STR, 0, "a0"},
    {STR, 31, "bf"},
    {STR, 32, "d920"},
    {STR, UINT8_MAX, "d9ff"},
    {STR, UINT8_MAX + 1, "da0100"},
    {STR, UINT16_MAX, "daffff"},
    {STR, UINT16_MAX + 1, "db00010000"},
    {BIN, 0, "c400"},
    {BIN, UINT8_MAX, "c4ff"},
    {BIN, UINT8_MAX + 1, "c50100"},
    {BIN, UINT16_MAX, "c5ffff"},
    {BIN, UINT16_MAX + 1, "c600010000"},
};

static void every_value_has_these_bytes(void **state)
{
    (void)state;
    static char text[UINT16_MAX + 2];
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        const uint64_t value = golden[i].value;
        size_t body = 0;
        eni_pack pack = {0};
        switch (golden[i].type) {
        case UINT: eni_pack_uint(&pack, value); break;
        case INT: eni_pack_int(&pack, (int64_t)value); break;
        case ARRAY: eni_pack_array(&pack, (uint32_t)value); break;
        case STR:
        case BIN:
            body = value;
            memset(text, 'x', body);
            text[body] = '\0';
            if (golden[i].type == STR)
                eni_pack_str(&pack, text);
            else
                eni_pack_bin(&pack, text, body);
        }
        assert_false(pack.is_failed);
        assert_true(pack.bytes > body);
        assert_bytes(pack.data, pack.bytes - body, golden[i].hex);
        assert_memory_equal(pack.data + pack.bytes - body, text, body);
        eni_pack_fini(&pack);
    }
}

/* A change of these bytes is another version of the protocol. */
static void a_header_has_these_bytes(void **state)
{
    (void)state;
    uint8_t bytes[ENI_HEADER_MAX];
    eni_header h = example();
    memcpy(h.text, "two\nlines\x7f", sizeof "two\nlines\x7f");
    assert_bytes(
        bytes, eni_header_encode(&h, bytes),
        "dc001cce454e543104040203020501ccff01010007cfffffffffffffffffce0010000063cfffffffffffff"
        "fffe40cd0100cd03e8cd0fa0ce075bcd15cf7fffffffffffffffcedeadbeef04ceffffffff09aa74776f3f6c696e65733f");
}

/* A full buffer takes nothing more, not even what would fit. */
static void a_full_buffer_says_so(void **state)
{
    (void)state;
    uint8_t memory[4];
    eni_pack pack = eni_pack_over(memory, sizeof memory);
    eni_pack_str(&pack, "ab");
    assert_false(pack.is_failed);
    eni_pack_uint(&pack, 300);
    assert_true(pack.is_failed);
    eni_pack_uint(&pack, 1);
    assert_true(pack.is_failed);
    assert_bytes(memory, pack.bytes, "a26162");
    eni_pack_fini(&pack);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_header_comes_back),
                                       cmocka_unit_test(every_truncation_is_refused),
                                       cmocka_unit_test(every_field_has_its_range),
                                       cmocka_unit_test(another_version_is_told_as_such),
                                       cmocka_unit_test(bombs_cost_nothing),
                                       cmocka_unit_test(msgpack_c_reads_the_same),
                                       cmocka_unit_test(every_value_has_these_bytes),
                                       cmocka_unit_test(a_header_has_these_bytes),
                                       cmocka_unit_test(a_full_buffer_says_so),
                                       cmocka_unit_test(damaged_headers_are_refused_or_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
