/* test_fdpass.c - descriptors over an abstract socket: they arrive, unauthenticated peers do not, nothing
 * leaks. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "runtime/net/fdpass.h"
#include "runtime/net/tcp.h"

/* Promise: A process of another user cannot hand a data set to the ranks of a host. */

static int64_t soon(void)
{
    return eni_now_ns() + 60 * ENI_SECOND;
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

/* Gives two descriptors to the first peer. */
static void *give_two(void *gate_)
{
    gate *g = gate_;
    int peer = -1;
    const int two[2] = {g->listener, g->listener};
    while (eni_tcp_accept_now(g->listener, &peer) != 0 && eni_now_ns() < g->deadline_ns)
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    g->status = eni_fdpass_send(peer, two, 2, "", 1, g->deadline_ns, -1);
    close(peer);
    return NULL;
}

static void descriptors_that_nobody_wants_do_not_stay(void **state)
{
    (void)state;
    int a, b, got, fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    char name[ENI_FDPASS_NAME], blob[4];
    int64_t pid;
    pthread_t thread;
    gate g = {.deadline_ns = soon()};
    const int before = count_fds();
    snprintf(name, sizeof name, "entrain-two-%d", (int)getpid());
    assert_int_equal(eni_fdpass_claim(name, &g.listener), EN_OK);
    pthread_create(&thread, NULL, give_two, &g);
    assert_int_equal(eni_fdpass_ask(name, soon(), -1, &got, &pid), EN_EPROTO);
    pthread_join(thread, NULL);
    assert_int_equal(g.status, EN_OK);
    close(g.listener);
    assert_int_equal(count_fds(), before);
    connect_pair(&a, &b); /* and those that come with no byte */
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.head), &a, sizeof a);
    const struct msghdr empty = {.msg_control = &control, .msg_controllen = sizeof control};
    assert_int_equal(sendmsg(a, &empty, 0), 0);
    assert_int_equal(eni_fdpass_recv(b, fds, &nfds, blob, sizeof blob, &bytes, soon(), -1), EN_EPEER);
    close(a);
    close(b);
    assert_int_equal(count_fds(), before);
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

typedef struct giver {
    int listener, fd, stop;
} giver;

static void *give(void *argument)
{
    const giver *g = argument;
    eni_fdpass_serve(g->listener, g->fd, g->stop);
    return NULL;
}

static void a_claimed_name_gives_one_descriptor_to_all(void **state)
{
    (void)state;
    char name[ENI_FDPASS_NAME], text[6] = {0};
    giver g = {.fd = memfd_create("shared", MFD_CLOEXEC), .stop = eventfd(0, EFD_CLOEXEC)};
    pthread_t thread;
    int second, got;
    int64_t pid;
    const int before = count_fds();
    snprintf(name, sizeof name, "entrain-test-%d", (int)getpid());
    assert_int_equal(eni_fdpass_ask(name, soon(), -1, &got, &pid), EN_ENOENT);
    assert_int_equal(eni_fdpass_claim(name, &g.listener), EN_OK);
    assert_true(g.listener >= 0);
    assert_int_equal(eni_fdpass_claim(name, &second), EN_OK);
    assert_int_equal(second, -1);
    assert_int_equal(eni_fdpass_ask(name, eni_now_ns() + ENI_MILLI, -1, &got, &pid), EN_ETIMEOUT);
    assert_int_equal(pid, getpid());
    assert_int_equal(write(g.fd, "pixel", 5), 5);
    pthread_create(&thread, NULL, give, &g);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(eni_fdpass_ask(name, soon(), -1, &got, &pid), EN_OK);
        assert_int_equal(pread(got, text, 5, 0), 5);
        assert_string_equal(text, "pixel");
        close(got);
    }
    assert_int_equal(eventfd_write(g.stop, 1), 0);
    pthread_join(thread, NULL);
    close(g.listener);
    assert_int_equal(count_fds(), before);
    close(g.fd);
    close(g.stop);
}

/* A process with the name that ends when `end` does, and never answers. */
static pid_t claim_elsewhere(const char *name, int end, uid_t user)
{
    int ready[2], listener;
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        if (setuid(user) != 0 || eni_fdpass_claim(name, &listener) != EN_OK || listener < 0) _exit(1);
        (void)!write(ready[1], "r", 1);
        _exit(read(end, &byte, 1) < 0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void who_dies_leaves_the_name(void **state)
{
    (void)state;
    char name[ENI_FDPASS_NAME];
    int end[2], got, status;
    int64_t asked;
    snprintf(name, sizeof name, "entrain-dies-%d", (int)getpid());
    assert_int_equal(pipe2(end, O_CLOEXEC), 0);
    const pid_t pid = claim_elsewhere(name, end[0], getuid());
    assert_int_equal(kill(pid, SIGKILL), 0);
    const en_status st =
        eni_fdpass_ask(name, soon(), -1, &got, &asked); /* before or after its end: both report it */
    assert_true(st == EN_EPEER || st == EN_ENOENT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(eni_fdpass_claim(name, &got), EN_OK);
    assert_true(got >= 0);
    close(got);
    close(end[0]);
    close(end[1]);
}

static void another_user_with_the_name_is_not_asked(void **state)
{
    (void)state;
    char name[ENI_FDPASS_NAME];
    int end[2], got, status;
    int64_t asked;
    if (geteuid() != 0) skip(); /* only root can be another user */
    snprintf(name, sizeof name, "entrain-user-%d", (int)getpid());
    assert_int_equal(pipe2(end, O_CLOEXEC), 0);
    const pid_t pid = claim_elsewhere(name, end[0], 65534);
    assert_int_equal(eni_fdpass_ask(name, soon(), -1, &got, &asked), EN_EDENIED);
    close(end[1]);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(end[0]);
}

static _Atomic int said_short;

static void count_short(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    said_short += strstr(text, " 3 ") != NULL && strstr(text, "ulimit -n") != NULL;
}

/* A giver without descriptors does not spin, and continues when there are some. */
static void a_giver_without_descriptors_waits(void **state)
{
    (void)state;
    char name[ENI_FDPASS_NAME];
    giver g = {.fd = memfd_create("shared", MFD_CLOEXEC), .stop = eventfd(0, EFD_CLOEXEC)};
    pthread_t thread;
    clockid_t clock;
    struct timespec used;
    struct rlimit before;
    int got, status;
    int64_t pid;
    snprintf(name, sizeof name, "entrain-full-%d", (int)getpid());
    assert_int_equal(eni_fdpass_claim(name, &g.listener), EN_OK);
    said_short = 0;
    eni_log_set_sink(count_short, NULL);
    const pid_t child = fork();
    if (child == 0) _exit(eni_fdpass_ask(name, soon(), -1, &got, &pid) == EN_OK ? 0 : 1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, before.rlim_max}), 0);
    pthread_create(&thread, NULL, give, &g);
    assert_int_equal(pthread_getcpuclockid(thread, &clock), 0);
    eni_sleep_until(eni_now_ns() + 300 * ENI_MILLI);
    assert_int_equal(clock_gettime(clock, &used), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(eventfd_write(g.stop, 1), 0);
    pthread_join(thread, NULL);
    close(g.listener);
    close(g.fd);
    close(g.stop);
    eni_log_set_sink(NULL, NULL);
    assert_true(used.tv_sec == 0 && used.tv_nsec < 60 * ENI_MILLI);
    assert_int_equal(said_short, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_memfd_arrives_with_its_contents),
                                       cmocka_unit_test(what_does_not_fit_is_refused_without_a_leak),
                                       cmocka_unit_test(descriptors_that_nobody_wants_do_not_stay),
                                       cmocka_unit_test(a_wrong_token_is_turned_away_and_the_wait_goes_on),
                                       cmocka_unit_test(deadlines_and_aborts_hold),
                                       cmocka_unit_test(a_claimed_name_gives_one_descriptor_to_all),
                                       cmocka_unit_test(a_giver_without_descriptors_waits),
                                       cmocka_unit_test(who_dies_leaves_the_name),
                                       cmocka_unit_test(another_user_with_the_name_is_not_asked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
