/* digest.c - SHA-256 by libsodium, piece by piece or at once; random bytes. */
#include "core/digest.h"

#include <sodium.h>

#include "core/memory.h"

struct eni_digest {
    crypto_hash_sha256_state state;
};

eni_digest *eni_digest_new(void)
{
    eni_digest *digest = eni_alloc(sizeof *digest);
    if (digest != NULL) crypto_hash_sha256_init(&digest->state);
    return digest;
}

void eni_digest_add(eni_digest *digest, const void *data, size_t bytes)
{
    crypto_hash_sha256_update(&digest->state, data, bytes);
}

void eni_digest_take(eni_digest *digest, char hex_out[ENI_DIGEST_HEX])
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(&digest->state, hash);
    sodium_bin2hex(hex_out, ENI_DIGEST_HEX, hash, sizeof hash);
    eni_free(digest);
}

void eni_digest_free(eni_digest *digest)
{
    eni_free(digest);
}

void eni_digest_of(const void *data, size_t bytes, char hex_out[ENI_DIGEST_HEX])
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256(hash, data, bytes);
    sodium_bin2hex(hex_out, ENI_DIGEST_HEX, hash, sizeof hash);
}

void eni_random_bytes(void *memory_out, size_t bytes)
{
    randombytes_buf(memory_out, bytes);
}

const char *eni_digest_library(void)
{
    return sodium_version_string();
}
