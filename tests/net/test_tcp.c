/* test_tcp.c - addresses, listening, connecting, exact transfers, deadlines and the abort descriptor. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "runtime/net/tcp.h"
#include "tests/port.h"
#include "tests/recv_all.h"

static const eni_address any_port = {"127.0.0.1", 0};

static int64_t soon(void)
{
    return eni_now_ns() + 60 * ENI_SECOND;
}

static void addresses_are_parsed(void **state)
{
    (void)state;
    eni_address a;
    char text[ENI_ADDRESS_TEXT];
    assert_int_equal(eni_address_parse("tcp://127.0.0.1:5555", &a), EN_OK);
    assert_string_equal(a.host, "127.0.0.1");
    assert_int_equal(a.port, 5555);
    assert_int_equal(eni_address_parse("node-7:0", &a), EN_OK);
    assert_string_equal(a.host, "node-7");
    assert_int_equal(eni_address_parse("tcp://[::1]:65535", &a), EN_OK);
    assert_string_equal(a.host, "::1");
    eni_address_format(&a, text);
    assert_string_equal(text, "tcp://[::1]:65535");
    assert_int_equal(eni_address_parse("tcp://*:1", &a), EN_OK);
    assert_string_equal(a.host, "0.0.0.0");
    static const char *const wrong[] = {
        "",        "tcp://",      ":5",    "host",   "host:",       "host:65536",
        "host:-1", "host:1x",     "::1:5", "[::1]",  "[::1]5",      "udp://a:1",
        "a:1:2",   "host:000001", "5:1",   "10.1:1", "0x7f000001:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(eni_address_parse(wrong[i], &a), EN_EINVAL);
    char said[400];
    assert_int_equal(eni_address_parse("fd99::1:29500", &a), EN_EINVAL);
    assert_true(eni_log_last_error(said, sizeof said));
    assert_non_null(strstr(said, "tcp://[fd99::1]:29500"));
}

static void loopback_is_known(void **state)
{
    (void)state;
    assert_true(eni_address_is_loopback(&(eni_address){"127.9.0.1", 0}));
    assert_true(eni_address_is_loopback(&(eni_address){"::1", 0}));
    assert_true(eni_address_is_loopback(&(eni_address){"localhost", 0}));
    assert_true(eni_address_is_loopback(&(eni_address){"::ffff:127.0.0.1", 0})); /* as ZeroMQ writes it */
    assert_false(eni_address_is_loopback(&(eni_address){"::ffff:10.0.0.1", 0}));
    assert_false(eni_address_is_loopback(&(eni_address){"0.0.0.0", 0}));
    assert_false(eni_address_is_loopback(&(eni_address){"10.0.0.1", 0}));
}

static void listening_beyond_loopback_needs_a_word(void **state)
{
    (void)state;
    int fd;
    eni_address everywhere = {"0.0.0.0", 0};
    assert_int_equal(eni_tcp_listen(&everywhere, false, &fd, NULL), EN_EDENIED);
    assert_int_equal(eni_tcp_listen(&everywhere, true, &fd, NULL), EN_OK);
    close(fd);
}

static void a_busy_port_is_an_error(void **state)
{
    (void)state;
    int fd, second;
    eni_address bound;
    assert_int_equal(eni_tcp_listen(&any_port, false, &fd, &bound), EN_OK);
    assert_int_not_equal(bound.port, 0);
    assert_int_equal(eni_tcp_listen(&bound, false, &second, NULL), EN_EIO);
    close(fd);
}

/* Where nobody listens, until somebody of this test does. */
static eni_address nobody(int *hold_out)
{
    const int port = port_take(hold_out);
    assert_true(port > 0);
    return (eni_address){"127.0.0.1", (uint16_t)port};
}

/* Both ends of a connection. */
static void make_pair(int *a, int *b)
{
    int listener;
    eni_address bound;
    assert_int_equal(eni_tcp_listen(&any_port, false, &listener, &bound), EN_OK);
    assert_int_equal(eni_tcp_connect(&bound, soon(), -1, a), EN_OK);
    assert_int_equal(eni_tcp_accept(listener, soon(), -1, b), EN_OK);
    close(listener);
}

static void nobody_there_ends_at_the_deadline(void **state)
{
    (void)state;
    int fd, hold;
    const eni_address to = nobody(&hold);
    int64_t begin = eni_now_ns();
    assert_int_equal(eni_tcp_connect(&to, begin + 120 * ENI_MILLI, -1, &fd), EN_ETIMEOUT);
    assert_in_range(eni_now_ns() - begin, 50 * ENI_MILLI, 5 * ENI_SECOND);
    close(hold);
    eni_address nowhere = {"no-such-host.invalid", 1};
    en_status st = eni_tcp_connect(&nowhere, eni_now_ns() + 100 * ENI_MILLI, -1, &fd);
    assert_true(st == EN_ENOENT || st == EN_ETIMEOUT); /* without a name server it is the latter */
}

static void *listen_late(void *argument)
{
    int fd = -1, *out = argument;
    eni_address address = {"127.0.0.1", (uint16_t)out[0]};
    if (eni_tcp_listen(&address, false, &fd, NULL) == EN_OK) eni_tcp_accept(fd, soon(), -1, &out[1]);
    close(fd);
    return NULL;
}

static void connect_waits_for_a_late_listener(void **state)
{
    (void)state;
    int fd, hold, shared[2] = {0, -1};
    const eni_address to = nobody(&hold);
    pthread_t thread;
    shared[0] = to.port;
    pthread_create(&thread, NULL, listen_late, shared);
    assert_int_equal(eni_tcp_connect(&to, soon(), -1, &fd), EN_OK);
    pthread_join(thread, NULL);
    assert_true(shared[1] >= 0);
    close(hold);
    close(shared[1]);
    close(fd);
}

enum { BIG = 8 << 20 };

static void *send_big(void *argument)
{
    uint8_t *data = eni_alloc(BIG);
    for (int i = 0; i < BIG; i++)
        data[i] = (uint8_t)(i * 7 + i / 256);
    en_status st = eni_tcp_send(*(int *)argument, data, BIG, soon(), -1);
    eni_free(data);
    return st == EN_OK ? argument : NULL;
}

static void exactly_n_bytes_arrive(void **state)
{
    (void)state;
    int a, b;
    void *sent;
    pthread_t thread;
    make_pair(&a, &b);
    uint8_t *data = eni_alloc(BIG);
    pthread_create(&thread, NULL, send_big, &a); /* more than any socket buffer: both sides must wait */
    assert_int_equal(recv_all(b, data, BIG, soon(), -1), EN_OK);
    pthread_join(thread, &sent);
    assert_non_null(sent);
    for (int i = 0; i < BIG; i++)
        assert_int_equal(data[i], (uint8_t)(i * 7 + i / 256));
    size_t done = 99;
    assert_int_equal(eni_tcp_recv_some(b, data, BIG, &done), EN_OK);
    assert_int_equal(done, 0);
    close(a);
    assert_int_equal(eni_tcp_recv_some(b, data, BIG, &done), EN_EPEER);
    close(b);
    eni_free(data);
}

static void deadlines_and_deaths_end_a_wait(void **state)
{
    (void)state;
    int a, b;
    char byte;
    make_pair(&a, &b);
    assert_int_equal(recv_all(b, &byte, 1, eni_now_ns() + ENI_MILLI, -1), EN_ETIMEOUT);
    int abort_fd = eventfd(1, EFD_CLOEXEC);
    assert_int_equal(recv_all(b, &byte, 1, soon(), abort_fd), EN_EPEER);
    assert_int_equal(eni_tcp_accept(abort_fd, soon(), abort_fd, &a), EN_EPEER);
    close(a);
    assert_int_equal(recv_all(b, &byte, 1, soon(), -1), EN_EPEER);
    close(b);
    close(abort_fd);
}

static void the_kernel_counts_the_same_bytes(void **state)
{
    (void)state;
    int a, b;
    static uint8_t data[100000];
    eni_tcp_totals before, after;
    make_pair(&a, &b);
    assert_int_equal(eni_tcp_count(&before), EN_OK);
    assert_int_equal(eni_tcp_send(a, data, sizeof data, soon(), -1), EN_OK);
    assert_int_equal(recv_all(b, data, sizeof data, soon(), -1), EN_OK);
    assert_int_equal(eni_tcp_count(&after), EN_OK);
    assert_int_equal(after.sockets, before.sockets);
    assert_true(after.sockets >= 2);
    assert_int_equal(after.received - before.received, sizeof data);
    assert_true(after.sent - before.sent >= sizeof data); /* retransmissions would count twice */
    close(a);
    close(b);
}

static void an_inherited_listener_is_adopted(void **state)
{
    (void)state;
    int fd, client;
    eni_address bound, adopted;
    assert_int_equal(eni_tcp_listen(&any_port, false, &fd, &bound), EN_OK);
    assert_int_equal(eni_tcp_adopt(fd, &adopted), EN_OK);
    assert_int_equal(adopted.port, bound.port);
    assert_string_equal(adopted.host, "127.0.0.1");
    assert_int_equal(eni_tcp_connect(&adopted, soon(), -1, &client), EN_OK);
    assert_int_equal(eni_tcp_adopt(client, &adopted), EN_EINVAL);
    close(client);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(addresses_are_parsed),
                                       cmocka_unit_test(loopback_is_known),
                                       cmocka_unit_test(listening_beyond_loopback_needs_a_word),
                                       cmocka_unit_test(a_busy_port_is_an_error),
                                       cmocka_unit_test(nobody_there_ends_at_the_deadline),
                                       cmocka_unit_test(connect_waits_for_a_late_listener),
                                       cmocka_unit_test(exactly_n_bytes_arrive),
                                       cmocka_unit_test(deadlines_and_deaths_end_a_wait),
                                       cmocka_unit_test(the_kernel_counts_the_same_bytes),
                                       cmocka_unit_test(an_inherited_listener_is_adopted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
