/* test_digest.c - SHA-256 against the vectors of FIPS 180-4 and NIST's examples. */
#include "core/digest.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct vector {
    const char *text, *hex;
} vectors[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
     "mnopqrstnopqrstu",
     "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
};

static void test_vectors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        char hex[ENI_DIGEST_HEX];
        memset(hex, 'x', sizeof hex);
        eni_digest_of(vectors[i].text, strlen(vectors[i].text), hex);
        assert_string_equal(hex, vectors[i].hex);
    }
}

/* A million times 'a', in pieces whose length is no divisor of a block. */
static void test_a_million_in_pieces(void **state)
{
    (void)state;
    char piece[997], hex[ENI_DIGEST_HEX];
    memset(piece, 'a', sizeof piece);
    eni_digest digest;
    eni_digest_begin(&digest);
    for (size_t left = 1000000; left > 0;) {
        size_t n = left < sizeof piece ? left : sizeof piece;
        eni_digest_add(&digest, piece, n);
        left -= n;
    }
    eni_digest_end(&digest, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* What is hashed does not depend on how it is cut, nor on an empty piece between. */
static void test_cuts_do_not_matter(void **state)
{
    (void)state;
    const char *text = vectors[3].text;
    size_t bytes = strlen(text);
    for (size_t cut = 0; cut <= bytes; cut++) {
        char hex[ENI_DIGEST_HEX];
        eni_digest digest;
        eni_digest_begin(&digest);
        eni_digest_add(&digest, text, cut);
        eni_digest_add(&digest, NULL, 0);
        eni_digest_add(&digest, text + cut, bytes - cut);
        eni_digest_end(&digest, hex);
        assert_string_equal(hex, vectors[3].hex);
    }
}

static void test_dropped_unfinished(void **state)
{
    (void)state;
    eni_digest digest;
    eni_digest_begin(&digest);
    eni_digest_add(&digest, "abc", 3); /* LeakSanitizer has the last word */
}

static void test_pieces_of_a_file(void **state)
{
    (void)state;
    char expected[ENI_DIGEST_HEX], hex[ENI_DIGEST_HEX];
    const size_t bytes = (1 << 20) + 100; /* more than is read at once */
    uint8_t *data = malloc(bytes);
    FILE *file = tmpfile();
    eni_digest digest;
    assert_non_null(data);
    assert_non_null(file);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 >> 3);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fflush(file), 0);
    eni_digest_of(data, bytes, expected);
    eni_digest_begin(&digest);
    assert_int_equal(eni_digest_add_file(&digest, fileno(file), 0, 11), 0);
    assert_int_equal(eni_digest_add_file(&digest, fileno(file), 11, bytes), 0);
    assert_int_equal(eni_digest_add_file(&digest, fileno(file), bytes, bytes), 0);
    eni_digest_end(&digest, hex);
    assert_string_equal(hex, expected);
    assert_int_equal(eni_digest_add_file(&digest, fileno(file), 0, bytes + 1), EIO);
    assert_int_equal(eni_digest_add_file(&digest, -1, 0, 1), EBADF);
    fclose(file);
    free(data);
}

/* Two draws of 32 bytes are equal once in 2^256. */
static void test_random_bytes_fill_all(void **state)
{
    (void)state;
    uint8_t a[34], b[34];
    memset(a, 0xa5, sizeof a);
    memset(b, 0xa5, sizeof b);
    eni_random_bytes(a + 1, 32);
    eni_random_bytes(b + 1, 32);
    assert_memory_not_equal(a + 1, b + 1, 32);
    assert_int_equal(a[0], 0xa5);
    assert_int_equal(a[33], 0xa5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_a_million_in_pieces),
        cmocka_unit_test(test_cuts_do_not_matter),
        cmocka_unit_test(test_dropped_unfinished),
        cmocka_unit_test(test_pieces_of_a_file),
        cmocka_unit_test(test_random_bytes_fill_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
