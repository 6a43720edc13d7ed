/* test_pending.c - our own peers are accepted, whatever others connect. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "runtime/net/fdpass.h"
#include "runtime/net/pending.h"
#include "runtime/net/tcp.h"

enum { CROWD = 300, HELLO = 8 };
static const eni_address any_port = {"127.0.0.1", 0};

static int64_t soon(void)
{
    return eni_now_ns() + 60 * ENI_SECOND;
}

static int dial(const eni_address *to)
{
    int fd;
    assert_int_equal(eni_tcp_connect(to, soon(), -1, &fd), EN_OK);
    return fd;
}

static eni_pending open_pending(eni_address *bound, int64_t timeout_ns)
{
    eni_pending pending = {.hello = HELLO, .timeout_ns = timeout_ns};
    assert_int_equal(eni_tcp_listen(&any_port, false, &pending.listen_fd, bound), EN_OK);
    return pending;
}

static void next_is(eni_pending *pending, const char *hello)
{
    char said[HELLO];
    int fd;
    assert_int_equal(eni_pending_next(pending, soon(), -1, &fd, said), EN_OK);
    assert_memory_equal(said, hello, HELLO);
    close(fd);
}

static void a_silent_crowd_keeps_nobody_out(void **state)
{
    (void)state;
    eni_address bound;
    eni_pending pending = open_pending(&bound, 60 * ENI_SECOND);
    int newcomer[CROWD];
    for (int i = 0; i < CROWD; i++)
        newcomer[i] = dial(&bound);
    const int fd = dial(&bound);
    assert_int_equal(send(fd, "it is me", HELLO, 0), HELLO);
    const int64_t begin = eni_now_ns();
    next_is(&pending, "it is me");
    assert_true(eni_now_ns() - begin < 5 * ENI_SECOND);
    assert_true(pending.dropped >= CROWD - ENI_PENDING_MAX);
    eni_pending_close(&pending);
    for (int i = 0; i < CROWD; i++)
        close(newcomer[i]);
    close(fd);
    close(pending.listen_fd);
}

/* A peer may take its time, in any crowd, and send its hello in pieces; a hello that has arrived is read
 * before the peer is dropped, however late. */
static void a_slow_one_has_his_turn(void **state)
{
    (void)state;
    eni_address bound;
    eni_pending pending = open_pending(&bound, 60 * ENI_SECOND);
    char said[HELLO];
    int fd, newcomer[CROWD];
    const int slow = dial(&bound);
    for (int i = 0; i < CROWD; i++)
        newcomer[i] = dial(&bound);
    assert_int_equal(send(slow, "at ", 3, 0), 3);
    assert_int_equal(eni_pending_next(&pending, eni_now_ns(), -1, &fd, said),
                     EN_ETIMEOUT); /* its time begins */
    assert_int_equal(pending.n, ENI_PENDING_MAX);
    assert_int_equal(send(slow, "last!", 5, 0), 5);
    eni_sleep_until(eni_now_ns() + 150 * ENI_MILLI); /* its time is over */
    next_is(&pending, "at last!");
    eni_pending_close(&pending);
    for (int i = 0; i < CROWD; i++)
        close(newcomer[i]);
    close(slow);
    close(pending.listen_fd);
}

static void timeout_ends_and_so_does_the_wait(void **state)
{
    (void)state;
    eni_address bound;
    eni_pending pending = open_pending(&bound, 30 * ENI_MILLI);
    char said[HELLO];
    int fd;
    const int silent = dial(&bound), half = dial(&bound);
    assert_int_equal(send(half, "half", 4, 0), 4);
    for (const int64_t until = soon(); pending.dropped < 2 && eni_now_ns() < until;)
        assert_int_equal(eni_pending_next(&pending, eni_now_ns() + 10 * ENI_MILLI, -1, &fd, said),
                         EN_ETIMEOUT);
    assert_int_equal(pending.dropped, 2);
    assert_int_equal(pending.n, 0);
    assert_int_equal(recv(silent, said, 1, 0), 0); /* closed, not merely forgotten */
    close(silent);
    close(half);
    close(pending.listen_fd);
}

/* A message of another length is not a hello, and its head is not taken for one. */
static void packets_are_whole(void **state)
{
    (void)state;
    char name[ENI_FDPASS_NAME], said[HELLO];
    eni_pending pending = {.hello = HELLO, .is_packet = true, .timeout_ns = ENI_SECOND};
    eni_token token = {{0}};
    int fd;
    assert_int_equal(eni_fdpass_listen(name, &pending.listen_fd), EN_OK);
    /* The 16 bytes of a token, where 8 are expected: closed without an answer, tried again until the
     * deadline. */
    assert_int_equal(eni_pending_next(&pending, eni_now_ns(), -1, &fd, said), EN_ETIMEOUT);
    for (const int64_t until = soon(); pending.dropped < 1 && eni_now_ns() < until;) {
        const int64_t moment = eni_now_ns() + 20 * ENI_MILLI;
        assert_int_equal(eni_fdpass_connect(name, &token, moment, -1, &fd), EN_ETIMEOUT);
        assert_int_equal(eni_pending_next(&pending, eni_now_ns() + 20 * ENI_MILLI, -1, &fd, said),
                         EN_ETIMEOUT);
    }
    assert_true(pending.dropped >= 1);
    eni_pending_close(&pending);
    close(pending.listen_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_crowd_keeps_nobody_out), cmocka_unit_test(a_slow_one_has_his_turn),
        cmocka_unit_test(timeout_ends_and_so_does_the_wait), cmocka_unit_test(packets_are_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
