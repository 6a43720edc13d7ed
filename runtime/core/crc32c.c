/* crc32c.c - see crc32c.h. */
#include "runtime/core/crc32c.h"

#include <string.h>

/* Remainders of four bits by the reflected polynomial 0x82f63b78. */
static const uint32_t nibble[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

uint32_t eni_crc32c_by_table(uint32_t crc, const void *bytes, size_t length)
{
    const uint8_t *at = bytes;
    crc = ~crc;
    for (size_t i = 0; i < length; i++) {
        crc ^= at[i];
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
/* Eight bytes in three cycles: about as fast as one core copies memory. */
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const void *bytes,
                                                                 size_t length)
{
    const uint8_t *at = bytes;
    uint64_t word, wide = ~crc;
    for (; length >= sizeof word; at += sizeof word, length -= sizeof word) {
        memcpy(&word, at, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    for (; length > 0; at++, length--)
        wide = __builtin_ia32_crc32qi((uint32_t)wide, *at);
    return ~(uint32_t)wide;
}

uint32_t eni_crc32c(uint32_t crc, const void *bytes, size_t length)
{
    return __builtin_cpu_supports("sse4.2") ? by_instruction(crc, bytes, length)
                                            : eni_crc32c_by_table(crc, bytes, length);
}
#else
uint32_t eni_crc32c(uint32_t crc, const void *bytes, size_t length)
{
    return eni_crc32c_by_table(crc, bytes, length);
}
#endif
