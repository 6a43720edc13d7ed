/* digest.c - SHA-256 by libcrypto, incremental or in one call; HMAC; base64; random bytes.
 *
 * Uses the calls of OpenSSL 1 on purpose: their replacements allocate for every hash and may fail, and both run the
 * same code. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "core/digest.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"

_Static_assert(sizeof(SHA256_CTX) <= sizeof(eni_digest), "libcrypto's state fits");

static SHA256_CTX *state_of(eni_digest *digest)
{
    return (void *)digest->state;
}

void eni_digest_begin(eni_digest *digest)
{
    SHA256_Init(state_of(digest));
}

void eni_digest_add(eni_digest *digest, const void *data, size_t bytes)
{
    SHA256_Update(state_of(digest), data, bytes);
}

int eni_digest_add_file(eni_digest *digest, int fd, uint64_t begin, uint64_t end)
{
    static const size_t most = 1 << 20;
    void *chunk = eni_alloc(most);
    int error = chunk == NULL ? ENOMEM : 0;
    while (error == 0 && begin < end) {
        const ssize_t n = pread(fd, chunk, end - begin < most ? (size_t)(end - begin) : most, (off_t)begin);
        if (n > 0) {
            eni_digest_add(digest, chunk, (size_t)n);
            begin += (uint64_t)n;
        } else if (n == 0 || errno != EINTR) {
            error = n == 0 ? EIO : errno;
        }
    }
    eni_free(chunk);
    return error;
}

void eni_digest_hex(const unsigned char hash[ENI_DIGEST_BYTES], char hex_out[ENI_DIGEST_HEX])
{
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < ENI_DIGEST_BYTES; i++) {
        hex_out[2 * i] = digit[hash[i] >> 4];
        hex_out[2 * i + 1] = digit[hash[i] & 15];
    }
    hex_out[ENI_DIGEST_HEX - 1] = '\0';
}

void eni_digest_end(eni_digest *digest, char hex_out[ENI_DIGEST_HEX])
{
    unsigned char hash[ENI_DIGEST_BYTES];
    SHA256_Final(hash, state_of(digest));
    eni_digest_hex(hash, hex_out);
}

void eni_digest_of(const void *data, size_t bytes, char hex_out[ENI_DIGEST_HEX])
{
    eni_digest digest;
    eni_digest_begin(&digest);
    eni_digest_add(&digest, data, bytes);
    eni_digest_end(&digest, hex_out);
}

void eni_digest_hmac(const void *key, size_t key_bytes, const char *text,
                     unsigned char hash_out[ENI_DIGEST_BYTES])
{
    HMAC(EVP_sha256(), key, (int)key_bytes, (const unsigned char *)text, strlen(text), hash_out, NULL);
}

void eni_base64_write(FILE *file, const void *data, size_t bytes)
{
    unsigned char text[4 * 256 + 1];
    for (size_t at = 0; at < bytes; at += 3 * 256) {
        const size_t left = bytes - at;
        EVP_EncodeBlock(text, (const unsigned char *)data + at, left < 3 * 256 ? (int)left : 3 * 256);
        fputs((char *)text, file);
    }
}

void eni_wipe(void *memory, size_t bytes)
{
    OPENSSL_cleanse(memory, bytes);
}

/* getrandom(2) returns up to 256 bytes at once, and blocks only early in boot. */
void eni_random_bytes(void *memory_out, size_t bytes)
{
    for (unsigned char *at = memory_out; bytes > 0;) {
        const ssize_t n = getrandom(at, bytes < 256 ? bytes : 256, 0);
        if (n < 0 && errno != EINTR) {
            eni_error("digest", "cannot get random bytes from the kernel: %s", strerror(errno));
            _exit(1); /* a guessable token would be worse */
        }
        if (n <= 0) continue;
        at += n;
        bytes -= (size_t)n;
    }
}

const char *eni_digest_library(void)
{
#ifdef OPENSSL_VERSION_STRING
    return OpenSSL_version(OPENSSL_VERSION_STRING);
#else /* OpenSSL 1.1 */
    return OpenSSL_version(OPENSSL_VERSION);
#endif
}
