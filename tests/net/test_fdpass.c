/* test_fdpass.c - descriptors over an abstract socket: they arrive, strangers do not, nothing leaks. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/core/clock.h"
#include "runtime/net/fdpass.h"

static int64_t soon(void)
{
    return eni_now_ns() + 10 * ENI_SECOND;
}

static int count_fds(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        n++;
    closedir(folder);
    return n;
}

typedef struct gate {
    int listener, fd;
    eni_token token;
    int64_t deadline_ns;
    en_status status;
} gate;

static void *open_gate(void *argument)
{
    gate *g = argument;
    g->status = eni_fdpass_accept(g->listener, &g->token, g->deadline_ns, -1, &g->fd);
    return NULL;
}

static void connect_pair(int *a, int *b)
{
    char name[ENI_FDPASS_NAME];
    gate g = {.deadline_ns = soon()};
    pthread_t thread;
    eni_token_make(&g.token);
    assert_int_equal(eni_fdpass_listen(name, &g.listener), EN_OK);
    pthread_create(&thread, NULL, open_gate, &g);
    assert_int_equal(eni_fdpass_connect(name, &g.token, soon(), -1, a), EN_OK);
    pthread_join(thread, NULL);
    assert_int_equal(g.status, EN_OK);
    *b = g.fd;
    close(g.listener);
}

static void a_memfd_arrives_with_its_contents(void **state)
{
    (void)state;
    int a, b, fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    char blob[16], text[6] = {0};
    connect_pair(&a, &b);
    int memfd = memfd_create("weights", MFD_CLOEXEC);
    assert_int_equal(write(memfd, "hello", 5), 5);
    int sent[2] = {memfd, memfd};
    assert_int_equal(eni_fdpass_send(a, sent, 2, "blob", 4, soon(), -1), EN_OK);
    assert_int_equal(eni_fdpass_recv(b, fds, &nfds, blob, sizeof blob, &bytes, soon(), -1), EN_OK);
    assert_int_equal(nfds, 2);
    assert_int_equal(bytes, 4);
    assert_memory_equal(blob, "blob", 4);
    assert_int_equal(fds[2], -1);
    assert_int_equal(pread(fds[1], text, 5, 0), 5);
    assert_string_equal(text, "hello");
    assert_true(fcntl(fds[0], F_GETFD) & FD_CLOEXEC);
    close(fds[0]);
    close(fds[1]);
    close(memfd);
    close(a);
    assert_int_equal(eni_fdpass_recv(b, fds, &nfds, blob, sizeof blob, &bytes, soon(), -1), EN_EPEER);
    close(b);
}

static void what_does_not_fit_is_refused_without_a_leak(void **state)
{
    (void)state;
    int a, b, fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    char blob[4];
    connect_pair(&a, &b);
    int sent[1] = {a};
    int before = count_fds();
    assert_int_equal(eni_fdpass_send(a, sent, 1, "too long", 8, soon(), -1), EN_OK);
    assert_int_equal(eni_fdpass_recv(b, fds, &nfds, blob, sizeof blob, &bytes, soon(), -1), EN_EPROTO);
    assert_int_equal(count_fds(), before);
    assert_int_equal(eni_fdpass_send(a, sent, ENI_FDPASS_MAX + 1, "x", 1, soon(), -1), EN_EINVAL);
    assert_int_equal(eni_fdpass_send(a, sent, 1, "", 0, soon(), -1), EN_EINVAL);
    close(a);
    close(b);
}

static void a_wrong_token_is_turned_away_and_the_wait_goes_on(void **state)
{
    (void)state;
    char name[ENI_FDPASS_NAME];
    gate g = {.deadline_ns = soon()};
    eni_token wrong;
    pthread_t thread;
    int fd;
    eni_token_make(&g.token);
    eni_token_make(&wrong);
    assert_int_equal(eni_fdpass_listen(name, &g.listener), EN_OK);
    pthread_create(&thread, NULL, open_gate, &g);
    assert_int_equal(eni_fdpass_connect(name, &wrong, soon(), -1, &fd), EN_EDENIED);
    assert_int_equal(eni_fdpass_connect(name, &g.token, soon(), -1, &fd), EN_OK);
    pthread_join(thread, NULL);
    assert_int_equal(g.status, EN_OK);
    close(fd);
    close(g.fd);
    close(g.listener);
    assert_int_equal(eni_fdpass_connect(name, &g.token, soon(), -1, &fd), EN_ENOENT);
}

static void deadlines_and_aborts_hold(void **state)
{
    (void)state;
    char name[ENI_FDPASS_NAME];
    int listener, fd, abort_fd = eventfd(1, EFD_CLOEXEC);
    eni_token token;
    eni_token_make(&token);
    assert_int_equal(eni_fdpass_listen(name, &listener), EN_OK);
    assert_int_equal(eni_fdpass_accept(listener, &token, eni_now_ns() + ENI_MILLI, -1, &fd), EN_ETIMEOUT);
    assert_int_equal(eni_fdpass_accept(listener, &token, soon(), abort_fd, &fd), EN_EPEER);
    /* Nobody accepts: the token is not answered. */
    assert_int_equal(eni_fdpass_connect(name, &token, eni_now_ns() + ENI_MILLI, -1, &fd), EN_ETIMEOUT);
    close(listener);
    close(abort_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_memfd_arrives_with_its_contents),
                                       cmocka_unit_test(what_does_not_fit_is_refused_without_a_leak),
                                       cmocka_unit_test(a_wrong_token_is_turned_away_and_the_wait_goes_on),
                                       cmocka_unit_test(deadlines_and_aborts_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
