/* digest.h - SHA-256 (FIPS 180-4), by libsodium. The only place in core that uses a library: hashes
 * are what "the same run" means everywhere above. */
#ifndef CORE_DIGEST_H
#define CORE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define ENI_DIGEST_HEX 65 /* 64 hex digits and the terminating 0 */

typedef struct eni_digest eni_digest;

/* A running hash; NULL when out of memory. */
eni_digest *eni_digest_new(void);
void eni_digest_add(eni_digest *digest, const void *data, size_t bytes);

/* Writes the hash in lower-case hex and frees the object. */
void eni_digest_take(eni_digest *digest, char hex_out[ENI_DIGEST_HEX]);

/* Drops it unfinished; NULL is fine. */
void eni_digest_free(eni_digest *digest);

/* The hash of one piece of memory. */
void eni_digest_of(const void *data, size_t bytes, char hex_out[ENI_DIGEST_HEX]);

/* The version of libsodium: "1.0.18". */
const char *eni_digest_library(void);

/* Fills memory with random bytes from the operating system (for tokens and names, never for training). */
void eni_random_bytes(void *memory_out, size_t bytes);

#endif
