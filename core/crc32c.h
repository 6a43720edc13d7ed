/* crc32c.h - CRC-32C (Castagnoli; RFC 3720, section 12.1): payloads between hosts, event files. */
#ifndef CORE_CRC32C_H
#define CORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of the data that `crc` covers, followed by `bytes`; start with 0. The same result on every
 * processor. Any thread. */
uint32_t eni_crc32c(uint32_t crc, const void *bytes, size_t length);

#endif
