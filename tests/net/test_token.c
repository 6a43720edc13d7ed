/* test_token.c - the job token in memory, in a file, over a descriptor; and the files that are refused. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "runtime/net/token.h"

typedef struct place {
    char root[64], directory[96], path[160];
} place;

static int make_place(void **state)
{
    static place p;
    snprintf(p.root, sizeof p.root, "/tmp/entrain-test-XXXXXX");
    if (mkdtemp(p.root) == NULL) return 1;
    snprintf(p.directory, sizeof p.directory, "%s/run", p.root);
    *state = &p;
    return eni_token_path(p.directory, 5555, p.path, sizeof p.path) == EN_OK ? 0 : 1;
}

static int remove_place(void **state)
{
    place *p = *state;
    eni_token_remove(p->path);
    rmdir(p->directory);
    rmdir(p->root);
    return 0;
}

static void tokens_differ_and_survive_hex(void **state)
{
    (void)state;
    eni_token a, b, c;
    char hex[ENI_TOKEN_HEX];
    eni_token_make(&a);
    eni_token_make(&b);
    assert_false(eni_token_equal(&a, &b));
    eni_token_hex(&a, hex);
    assert_int_equal(strlen(hex), 32);
    assert_int_equal(eni_token_parse(hex, &c), EN_OK);
    assert_true(eni_token_equal(&a, &c));
    for (size_t i = 0; i < ENI_TOKEN_BYTES; i++) { /* every byte counts */
        c = a;
        c.bytes[i] ^= 0x80;
        assert_false(eni_token_equal(&a, &c));
    }
    hex[31] = 'g';
    assert_int_equal(eni_token_parse(hex, &c), EN_EFORMAT);
    hex[31] = '\0';
    assert_int_equal(eni_token_parse(hex, &c), EN_EFORMAT);
}

/* Like a leader that is killed right after. */
static en_status write_and_go(const eni_token *token, const char *path)
{
    int lock = -1;
    const en_status st = eni_token_write(token, path, &lock);
    if (lock >= 0) close(lock);
    return st;
}

static void a_file_keeps_it(void **state)
{
    place *p = *state;
    eni_token a, b;
    struct stat about;
    eni_token_make(&a);
    assert_int_equal(write_and_go(&a, p->path), EN_OK);
    assert_int_equal(stat(p->path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(stat(p->directory, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0700);
    assert_int_equal(eni_token_read(p->path, &b), EN_OK);
    assert_true(eni_token_equal(&a, &b));
    eni_token_make(&a); /* a second run takes the place of the first */
    assert_int_equal(write_and_go(&a, p->path), EN_OK);
    assert_int_equal(eni_token_read(p->path, &b), EN_OK);
    assert_true(eni_token_equal(&a, &b));
}

/* A killed leader cannot remove its file, so a reader must recognise it. */
static void a_file_that_nobody_holds_is_stale(void **state)
{
    place *p = *state;
    eni_token a, b;
    int lock = -1, second = -1;
    eni_token_make(&a);
    assert_int_equal(eni_writer_look(p->path), ENI_WRITER_UNKNOWN); /* it does not exist */
    assert_int_equal(eni_token_write(&a, p->path, &lock), EN_OK);
    assert_int_equal(eni_writer_look(p->path), ENI_WRITER_LIVES);
    assert_int_equal(eni_token_read(p->path, &b), EN_OK);
    close(lock); /* as the kernel does for a killed process */
    assert_int_equal(eni_writer_look(p->path), ENI_WRITER_ENDED);
    assert_int_equal(eni_token_write(&b, p->path, &second), EN_OK);
    assert_int_equal(eni_writer_look(p->path), ENI_WRITER_LIVES);
    close(second);
}

static void files_that_others_may_read_are_refused(void **state)
{
    place *p = *state;
    eni_token a, b;
    eni_token_make(&a);
    assert_int_equal(write_and_go(&a, p->path), EN_OK);
    chmod(p->path, 0640);
    assert_int_equal(eni_token_read(p->path, &b), EN_EDENIED);
    chmod(p->path, 0604);
    assert_int_equal(eni_token_read(p->path, &b), EN_EDENIED);
    if (geteuid() == 0) {
        chmod(p->path, 0600);
        assert_int_equal(chown(p->path, 12345, 12345), 0);
        assert_int_equal(eni_token_read(p->path, &b), EN_EDENIED);
    }
}

static void links_and_wrong_contents_are_refused(void **state)
{
    place *p = *state;
    eni_token a, b;
    char other[176];
    eni_token_make(&a);
    assert_int_equal(eni_token_read(p->path, &b), EN_ENOENT);
    assert_int_equal(write_and_go(&a, p->path), EN_OK);
    snprintf(other, sizeof other, "%s.link", p->path);
    assert_int_equal(symlink(p->path, other), 0);
    assert_int_equal(eni_token_read(other, &b), EN_EDENIED);
    unlink(other);
    assert_int_equal(eni_token_read(p->directory, &b), EN_EDENIED);
    int fd = open(p->path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "0", 1), 1);
    close(fd);
    assert_int_equal(eni_token_read(p->path, &b), EN_EFORMAT);
}

static void a_directory_that_others_may_write_is_refused(void **state)
{
    place *p = *state;
    eni_token a;
    eni_token_make(&a);
    assert_int_equal(mkdir(p->directory, 0700), 0);
    chmod(p->directory, 0777);
    assert_int_equal(write_and_go(&a, p->path), EN_EDENIED);
    chmod(p->directory, 0700);
    assert_int_equal(write_and_go(&a, p->path), EN_OK);
}

static void a_pipe_brings_it(void **state)
{
    (void)state;
    int ends[2];
    char hex[ENI_TOKEN_HEX];
    eni_token a, b;
    eni_token_make(&a);
    eni_token_hex(&a, hex);
    for (int newline = 0; newline < 2; newline++) {
        assert_int_equal(pipe(ends), 0);
        hex[32] = newline ? '\n' : '\0';
        assert_int_equal(write(ends[1], hex, (size_t)32 + (size_t)newline), 32 + newline);
        close(ends[1]);
        assert_int_equal(eni_token_read_fd(ends[0], &b), EN_OK);
        assert_true(eni_token_equal(&a, &b));
        assert_int_equal(fcntl(ends[0], F_GETFD), -1); /* closed */
    }
}

static void a_file_is_awaited(void **state)
{
    const place *p = *state;
    eni_token a, b;
    int lock, ends[2];
    eni_token_make(&a);
    assert_int_equal(eni_token_await(p->path, eni_now_ns(), -1, &b), EN_ENOENT);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "", 1), 1);
    assert_int_equal(eni_token_await(p->path, INT64_MAX, ends[0], &b), EN_EINTR);
    assert_int_equal(eni_token_write(&a, p->path, &lock), EN_OK);
    assert_int_equal(eni_token_await(p->path, eni_now_ns(), ends[0], &b), EN_OK);
    assert_true(eni_token_equal(&a, &b));
    close(lock);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_differ_and_survive_hex),
        cmocka_unit_test(a_pipe_brings_it),
        cmocka_unit_test_setup_teardown(a_file_keeps_it, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_file_is_awaited, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_file_that_nobody_holds_is_stale, make_place, remove_place),
        cmocka_unit_test_setup_teardown(files_that_others_may_read_are_refused, make_place, remove_place),
        cmocka_unit_test_setup_teardown(links_and_wrong_contents_are_refused, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_directory_that_others_may_write_is_refused, make_place,
                                        remove_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
