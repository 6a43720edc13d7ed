/* digest.h - SHA-256 (FIPS 180-4), by libsodium: hashes are what "the same run" means everywhere above. */
#ifndef CORE_DIGEST_H
#define CORE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define ENI_DIGEST_HEX 65 /* 64 hex digits and the terminating 0 */

/* A running hash. */
typedef struct eni_digest {
    _Alignas(16) unsigned char state[128]; /* libsodium's */
} eni_digest;

void eni_digest_begin(eni_digest *digest);
void eni_digest_add(eni_digest *digest, const void *data, size_t bytes);

/* Writes the hash in lower-case hex. */
void eni_digest_end(eni_digest *digest, char hex_out[ENI_DIGEST_HEX]);

/* The hash of one piece of memory. */
void eni_digest_of(const void *data, size_t bytes, char hex_out[ENI_DIGEST_HEX]);

/* The version of libsodium: "1.0.18". */
const char *eni_digest_library(void);

/* Fills memory with random bytes from the operating system (for tokens and names, never for training). */
void eni_random_bytes(void *memory_out, size_t bytes);

#endif
