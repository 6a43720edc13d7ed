/* digest.c - SHA-256 by libsodium, piece by piece or at once; random bytes. */
#include "core/digest.h"

#include <sodium.h>

_Static_assert(sizeof(crypto_hash_sha256_state) <= sizeof(eni_digest), "libsodium's state has its place");

static crypto_hash_sha256_state *state_of(eni_digest *digest)
{
    return (void *)digest->state;
}

void eni_digest_begin(eni_digest *digest)
{
    crypto_hash_sha256_init(state_of(digest));
}

void eni_digest_add(eni_digest *digest, const void *data, size_t bytes)
{
    crypto_hash_sha256_update(state_of(digest), data, bytes);
}

void eni_digest_end(eni_digest *digest, char hex_out[ENI_DIGEST_HEX])
{
    unsigned char hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(state_of(digest), hash);
    sodium_bin2hex(hex_out, ENI_DIGEST_HEX, hash, sizeof hash);
}

void eni_digest_of(const void *data, size_t bytes, char hex_out[ENI_DIGEST_HEX])
{
    eni_digest digest;
    eni_digest_begin(&digest);
    eni_digest_add(&digest, data, bytes);
    eni_digest_end(&digest, hex_out);
}

void eni_random_bytes(void *memory_out, size_t bytes)
{
    randombytes_buf(memory_out, bytes);
}

const char *eni_digest_library(void)
{
    return sodium_version_string();
}
