/* crc32c.h - CRC-32C (Castagnoli; RFC 3720, section 12.1): payloads between hosts, event files. */
#ifndef CORE_CRC32C_H
#define CORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of what `crc` is the checksum of, followed by `bytes`; begin with 0. With the processor's own
 * instruction where it has one (SSE 4.2), else by a table: the same result. Any thread. */
uint32_t eni_crc32c(uint32_t crc, const void *bytes, size_t length);

/* The table's way, for its test. */
uint32_t eni_crc32c_by_table(uint32_t crc, const void *bytes, size_t length);

#endif
