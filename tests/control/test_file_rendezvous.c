/* test_file_rendezvous.c - the file of --rendezvous=file://: its contents, its owner, and the wait for it. */
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
#include "core/log.h"
#include "runtime/control/file_rendezvous.h"
#include "tests/heard.h"

static char folder[64], path[80];

static en_status alive(void *user)
{
    (void)user;
    return EN_OK;
}

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/entrain-meet-XXXXXX");
    eni_log_set_sink(hear, NULL);
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/meet", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails when a temporary file is left */
}

/* A leader that listens on loopback. */
static eni_file_rendezvous listening(int *fd_out)
{
    eni_file_rendezvous m = {.host = "a", .host_id = "here", .pid = 7, .naddresses = 1};
    assert_int_equal(eni_tcp_listen(&(eni_address){"127.0.0.1", 0}, false, fd_out, &m.address[0]), EN_OK);
    eni_token_make(&m.token);
    return m;
}

static void texts(void **state)
{
    char file[64];
    uint16_t port;
    (void)state;
    assert_int_equal(eni_file_rendezvous_parse("file:///a/b", file, sizeof file, &port), EN_OK);
    assert_string_equal(file, "/a/b");
    assert_int_equal(port, 0);
    assert_int_equal(eni_file_rendezvous_parse("file:///a?port=29500", file, sizeof file, &port), EN_OK);
    assert_string_equal(file, "/a");
    assert_int_equal(port, 29500);
    static const char *const wrong[] = {"file://a",         "file:///",          "file:///a/",
                                        "tcp:///a",         "file:///a?port=",   "file:///a?port=70000",
                                        "file:///a?rank=1", "file:///a?port=1x", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(eni_file_rendezvous_parse(wrong[i], file, sizeof file, &port), EN_EINVAL);
    assert_int_equal(eni_file_rendezvous_parse("file:///abcdefgh", file, 9, &port), EN_EINVAL);
}

static void it_reads_back_and_is_held(void **state)
{
    int fd, lock;
    eni_file_rendezvous m = listening(&fd), back;
    struct stat about;
    (void)state;
    snprintf(m.address[1].host, ENI_HOST_MAX, "fe80::1");
    m.naddresses = 2;
    assert_int_equal(eni_file_rendezvous_read(path, &back), EN_ENOENT);
    assert_int_equal(eni_file_rendezvous_check_free(path, "here"), EN_OK);
    assert_int_equal(eni_file_rendezvous_write(&m, path, &lock), EN_OK);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(eni_file_rendezvous_read(path, &back), EN_OK);
    assert_true(eni_token_equal(&m.token, &back.token));
    assert_string_equal(back.host_id, "here");
    assert_int_equal(back.pid, 7);
    assert_int_equal(back.naddresses, 2);
    assert_string_equal(back.address[1].host, "fe80::1");
    assert_int_equal(eni_file_rendezvous_check_free(path, "here"), EN_EINVAL); /* its lock is seen */
    assert_int_equal(eni_file_rendezvous_check_free(path, "there"), EN_OK); /* its loopback is not theirs */
    close(lock);
    assert_int_equal(eni_file_rendezvous_check_free(path, "here"),
                     EN_OK); /* killed: another process answers */
    eni_token_remove(path);
    assert_int_equal(eni_file_rendezvous_read(path, &back), EN_ENOENT);
    close(fd);
}

static void cut_off_anywhere_it_is_refused(void **state)
{
    int fd, lock;
    char text[1024];
    eni_file_rendezvous m = listening(&fd), back;
    (void)state;
    assert_int_equal(eni_file_rendezvous_write(&m, path, &lock), EN_OK);
    FILE *file = fopen(path, "r");
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    for (size_t n = 0; n + 1 < bytes; n++) { /* the last newline is optional */
        assert_int_equal(truncate(path, 0), 0);
        file = fopen(path, "w");
        assert_int_equal(fwrite(text, 1, n, file), n);
        fclose(file);
        assert_int_equal(eni_file_rendezvous_read(path, &back), EN_EFORMAT);
    }
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(eni_file_rendezvous_read(path, &back), EN_EDENIED);
    eni_token_remove(path);
    close(lock);
    close(fd);
}

static void a_dead_leader_is_not_believed(void **state)
{
    int fd, lock;
    eni_file_rendezvous m = listening(&fd);
    eni_token token;
    eni_address leader;
    (void)state;
    assert_int_equal(eni_file_rendezvous_write(&m, path, &lock), EN_OK);
    int64_t soon = eni_now_ns() + 5 * ENI_SECOND;
    assert_int_equal(eni_file_rendezvous_find(path, "here", soon, alive, NULL, &token, &leader), EN_OK);
    assert_int_equal(leader.port, m.address[0].port);
    assert_true(eni_token_equal(&token, &m.token));
    /* From another host a loopback cannot be reached; that will not change. */
    assert_int_equal(eni_file_rendezvous_find(path, "there", soon, alive, NULL, &token, &leader), EN_EINVAL);
    close(lock); /* dead on this host, though another process still answers there */
    soon = eni_now_ns() + 150 * ENI_MILLI;
    assert_int_equal(eni_file_rendezvous_find(path, "here", soon, alive, NULL, &token, &leader), EN_ETIMEOUT);
    close(fd);
    eni_token_remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(it_reads_back_and_is_held),
                                       cmocka_unit_test(cut_off_anywhere_it_is_refused),
                                       cmocka_unit_test(a_dead_leader_is_not_believed)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
