/* digest.h - SHA-256 (FIPS 180-4), HMAC and base64, from OpenSSL's libcrypto, which uses the CPU's SHA instructions.
 * Hashes define "the same run" in all layers above. Any thread. */
#ifndef CORE_DIGEST_H
#define CORE_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define ENI_DIGEST_HEX 65 /* 64 hex digits and the terminating 0 */
enum { ENI_DIGEST_BYTES = 32 };

/* A running hash. */
typedef struct eni_digest {
    _Alignas(16) unsigned char state[128]; /* libcrypto's */
} eni_digest;

void eni_digest_begin(eni_digest *digest);
void eni_digest_add(eni_digest *digest, const void *data, size_t bytes);

/* Adds bytes [begin, end) of a file. 0, or errno; EIO if the file is shorter. */
int eni_digest_add_file(eni_digest *digest, int fd, uint64_t begin, uint64_t end);

/* Writes the hash in lower-case hex. */
void eni_digest_end(eni_digest *digest, char hex_out[ENI_DIGEST_HEX]);
void eni_digest_hex(const unsigned char hash[ENI_DIGEST_BYTES], char hex_out[ENI_DIGEST_HEX]);

/* The hash of one piece of memory. */
void eni_digest_of(const void *data, size_t bytes, char hex_out[ENI_DIGEST_HEX]);

/* HMAC-SHA256 (RFC 2104) of a text; the key may be the result of an earlier call. */
void eni_digest_hmac(const void *key, size_t key_bytes, const char *text,
                     unsigned char hash_out[ENI_DIGEST_BYTES]);

/* Writes base64 (RFC 4648) of the bytes to the end of `file`. */
void eni_base64_write(FILE *file, const void *data, size_t bytes);

/* Overwrites secrets in memory; the compiler cannot optimize it away. */
void eni_wipe(void *memory, size_t bytes);

/* The version of the library: "3.0.19". */
const char *eni_digest_library(void);

/* Random bytes from the operating system (for tokens and names, never for training). */
void eni_random_bytes(void *memory_out, size_t bytes);

#endif
