/* test_socket.c - routers and dealers: messages, zero copy, refusals, and bytes against the kernel's count.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/memory.h"
#include "runtime/net/socket.h"
#include "tests/port.h"

typedef struct bench {
    eni_net *net;
    eni_router *router;
    eni_dealer *dealer;
    eni_address address;
} bench;

static const eni_address any_port = {"127.0.0.1", 0};

static int64_t soon(void)
{
    return eni_now_ns() + 60 * ENI_SECOND;
}

static int set_up(void **state)
{
    static bench b;
    b = (bench){0};
    *state = &b;
    if (eni_net_open(2, &b.net) != EN_OK) return 1;
    if (eni_router_open(b.net, &any_port, false, 1 << 20, &b.router, &b.address) != EN_OK) return 1;
    return eni_dealer_open(b.net, &b.address, &b.dealer) == EN_OK ? 0 : 1;
}

static int tear_down(void **state)
{
    bench *b = *state;
    eni_dealer_close(b->dealer);
    eni_router_close(b->router);
    eni_net_close(b->net);
    return 0;
}

static eni_header header_of(uint32_t type, uint64_t count)
{
    return (eni_header){
        .type = type, .dtype = ENI_DTYPE_F32, .what = 1, .count = count, .bytes = 4 * count, .seq = 9};
}

static void count_release(void *memory, void *hint)
{
    (void)memory;
    atomic_fetch_add((atomic_int *)hint, 1);
}

/* One message each way with `count` floats, checked. */
static void round_trip(bench *b, uint64_t count, bool with_release)
{
    atomic_int released = 0;
    eni_packet in = {0}, back = {0};
    bool ready = false;
    float *values = eni_alloc_array(count, sizeof *values);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)i;
    eni_header h = header_of(ENI_MSG_CALL, count);
    eni_release release = with_release ? count_release : NULL;
    assert_int_equal(eni_dealer_send(b->dealer, &h, values, release, &released, soon(), -1), EN_OK);
    assert_int_equal(eni_router_recv(b->router, 60000, -1, &in), EN_OK);
    assert_int_equal(in.header.type, ENI_MSG_CALL);
    assert_int_equal(in.header.seq, 9);
    assert_int_equal(in.bytes, 4 * count);
    assert_int_equal((uintptr_t)in.payload % sizeof(float), 0);
    if (count > 0) assert_memory_equal(in.payload, values, 4 * count);
    eni_header reply = header_of(ENI_MSG_REPLY, count);
    assert_int_equal(eni_router_send(b->router, &in, &reply, values, release, &released), EN_OK);
    assert_int_equal(eni_dealer_poll(&b->dealer, 1, soon(), -1, -1, &ready), EN_OK);
    assert_true(ready);
    assert_int_equal(eni_dealer_recv(b->dealer, &back), EN_OK);
    assert_int_equal(back.header.type, ENI_MSG_REPLY);
    if (count > 0) assert_memory_equal(back.payload, values, 4 * count);
    assert_int_equal(eni_dealer_recv(b->dealer, &in), EN_ETIMEOUT);
    eni_packet_release(&in);
    eni_packet_release(&in);
    eni_packet_release(&back);
    int64_t deadline = soon();
    while (with_release && atomic_load(&released) < 2 && eni_now_ns() < deadline)
        usleep(100);
    assert_int_equal(atomic_load(&released), with_release ? 2 : 0);
    eni_free(values);
}

static void messages_of_every_size_come_and_go(void **state)
{
    static const uint64_t counts[] = {0, 1, 7, 63, 64, 65, 500, 2047, 2048, 16383, 16384, 16385, 200000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        round_trip(*state, counts[i], false);
        round_trip(*state, counts[i], true);
    }
}

static void many_small_messages_are_aligned(void **state)
{
    bench *b = *state;
    float values[5] = {1, 2, 3, 4, 5};
    for (int burst = 0; burst < 5; burst++) { /* several in one of ZeroMQ's reads: frames on any byte */
        eni_header h = header_of(ENI_MSG_CALL, 5);
        for (int i = 0; i < 20; i++)
            assert_int_equal(eni_dealer_send(b->dealer, &h, values, NULL, NULL, soon(), -1), EN_OK);
        for (int i = 0; i < 20; i++) {
            eni_packet in = {0};
            assert_int_equal(eni_router_recv(b->router, 60000, -1, &in), EN_OK);
            assert_int_equal((uintptr_t)in.payload % sizeof(float), 0);
            assert_memory_equal(in.payload, values, sizeof values);
            eni_packet_release(&in);
        }
    }
}

/* With checksums both ways, good payloads arrive unchanged, and one wrong bit is reported; on loopback there
 * are none unless requested. */
static void checksums_are_checked(void **state)
{
    bench *b = *state;
    float values[3000] = {1, 2, 3};
    eni_header h = header_of(ENI_MSG_CALL, 3000);
    for (int round = 0; round < 4;
         round++) { /* none asked for, as announced, payload changed, checksum changed */
        eni_packet in = {0};
        h.flags = round == 0 ? 0 : ENI_FLAG_CRC;
        h.crc = eni_crc32c(0, values, sizeof values) ^ (round == 3);
        if (round == 2) ((uint8_t *)values)[7777] ^= 0x20;
        assert_int_equal(eni_dealer_send(b->dealer, &h, values, NULL, NULL, soon(), -1), EN_OK);
        assert_int_equal(eni_router_recv(b->router, 60000, -1, &in), EN_OK);
        assert_int_equal(in.header.flags, h.flags);
        assert_int_equal(in.is_damaged, round >= 2);
        if (round == 2) ((uint8_t *)values)[7777] ^= 0x20;
        eni_packet_release(&in);
    }
    eni_socket_count count;
    eni_router_count(b->router, &count);
    assert_int_equal(count.damaged, 2);
}

static int set_up_with_crc(void **state)
{
    static bench b;
    b = (bench){0};
    *state = &b;
    if (eni_net_open(1, &b.net) != EN_OK) return 1;
    static const eni_address anywhere = {"0.0.0.0", 0}; /* beyond loopback by address, though not by route */
    if (eni_router_open(b.net, &anywhere, true, 1 << 20, &b.router, &b.address) != EN_OK) return 1;
    return eni_dealer_open(b.net, &b.address, &b.dealer) == EN_OK ? 0 : 1;
}

/* RFC 3720, B.4: 32 bytes of zeros. */
static void sockets_that_check_fill_in_the_checksum(void **state)
{
    bench *b = *state;
    float zeros[8] = {0};
    eni_header h = header_of(ENI_MSG_CALL, 8);
    eni_packet in = {0}, back = {0};
    bool ready;
    assert_int_equal(eni_dealer_send(b->dealer, &h, zeros, NULL, NULL, soon(), -1), EN_OK);
    assert_int_equal(eni_router_recv(b->router, 60000, -1, &in), EN_OK);
    assert_int_equal(in.header.flags, ENI_FLAG_CRC);
    assert_true(in.header.crc == 0x8a9136aau);
    assert_false(in.is_damaged);
    assert_int_equal(eni_router_send(b->router, &in, &h, zeros, NULL, NULL), EN_OK);
    assert_int_equal(eni_dealer_poll(&b->dealer, 1, soon(), -1, -1, &ready), EN_OK);
    assert_int_equal(eni_dealer_recv(b->dealer, &back), EN_OK);
    assert_true(back.header.flags == ENI_FLAG_CRC && back.header.crc == 0x8a9136aau && !back.is_damaged);
    eni_packet_release(&in);
    eni_packet_release(&back);
    round_trip(b, 5000, true);
}

static void waits_end_for_the_right_reason(void **state)
{
    bench *b = *state;
    eni_packet in = {0};
    bool ready;
    int wake = eventfd(1, EFD_CLOEXEC);
    assert_int_equal(eni_router_recv(b->router, 0, -1, &in), EN_ETIMEOUT);
    assert_int_equal(eni_router_recv(b->router, 5, -1, &in), EN_ETIMEOUT);
    assert_int_equal(eni_router_recv(b->router, 60000, wake, &in), EN_EINTR);
    assert_int_equal(eni_dealer_poll(&b->dealer, 1, eni_now_ns() + ENI_MILLI, -1, -1, &ready), EN_ETIMEOUT);
    assert_int_equal(eni_dealer_poll(&b->dealer, 1, soon(), wake, -1, &ready), EN_EPEER);
    assert_int_equal(eni_dealer_poll(&b->dealer, 1, soon(), -1, wake, &ready), EN_EINTR);
    /* A message comes before the descriptor. */
    eni_header h = header_of(ENI_MSG_CALL, 0);
    assert_int_equal(eni_dealer_send(b->dealer, &h, NULL, NULL, NULL, soon(), -1), EN_OK);
    assert_int_equal(eni_router_recv(b->router, 60000, -1, &in), EN_OK);
    assert_int_equal(eni_dealer_send(b->dealer, &h, NULL, NULL, NULL, soon(), -1), EN_OK);
    en_status st;
    do
        st = eni_router_recv(b->router, 100, wake, &in);
    while (st == EN_EINTR);
    assert_int_equal(st, EN_OK);
    close(wake);
}

static void a_shard_that_is_not_there_is_a_deadline_or_an_abort(void **state)
{
    bench *b = *state;
    eni_dealer *lost;
    atomic_int released = 0;
    float value = 1;
    int wake = eventfd(1, EFD_CLOEXEC);
    int hold;
    const eni_address nobody = {"127.0.0.1", (uint16_t)port_take(&hold)};
    assert_int_equal(eni_dealer_open(b->net, &nobody, &lost), EN_OK);
    eni_header h = header_of(ENI_MSG_CALL, 1);
    assert_int_equal(
        eni_dealer_send(lost, &h, &value, count_release, &released, eni_now_ns() + ENI_MILLI, -1),
        EN_ETIMEOUT);
    assert_int_equal(eni_dealer_send(lost, &h, &value, count_release, &released, soon(), wake), EN_EPEER);
    assert_int_equal(atomic_load(&released), 2); /* once for each send, also when it failed */
    eni_dealer_close(lost);
    close(hold);
    close(wake);
}

static void a_reply_to_nobody_is_counted(void **state)
{
    bench *b = *state;
    eni_packet to = {.route = {0, 1, 2, 3, 4}, .route_bytes = 5};
    eni_socket_count count;
    atomic_int released = 0;
    static float big[65536];
    eni_header h = header_of(ENI_MSG_REPLY, 65536);
    assert_int_equal(eni_router_send(b->router, &to, &h, big, count_release, &released), EN_EPEER);
    assert_int_equal(atomic_load(&released), 1);
    eni_router_count(b->router, &count);
    assert_int_equal(count.dropped, 1);
    assert_int_equal(count.messages_out, 0);
}

/* A client that is not ours, straight on ZeroMQ. */
static void send_frames(void *socket, int n, const void *const *frames, const size_t *bytes)
{
    for (int i = 0; i < n; i++)
        assert_true(zmq_send(socket, frames[i], bytes[i], i + 1 < n ? ZMQ_SNDMORE : 0) >= 0);
}

static void wrong_messages_are_dropped_and_counted(void **state)
{
    bench *b = *state;
    void *context = zmq_ctx_new(), *raw = zmq_socket(context, ZMQ_DEALER);
    char text[ENI_ADDRESS_TEXT];
    int linger = 0;
    uint8_t with[ENI_HEADER_MAX], without[ENI_HEADER_MAX];
    static uint8_t data[8192];
    eni_header h = header_of(ENI_MSG_CALL, 2), plain = header_of(ENI_MSG_CALL, 0);
    size_t with_bytes = eni_header_encode(&h, with), without_bytes = eni_header_encode(&plain, without);
    zmq_setsockopt(raw, ZMQ_LINGER, &linger, sizeof linger);
    eni_address_format(&b->address, text);
    assert_int_equal(zmq_connect(raw, text), 0);
    send_frames(raw, 1, (const void *[]){"garbage"}, (size_t[]){7});
    send_frames(raw, 1, (const void *[]){""}, (size_t[]){0});
    send_frames(raw, 1, (const void *[]){data}, (size_t[]){5000});
    send_frames(raw, 1, (const void *[]){with}, (size_t[]){with_bytes});                /* half */
    send_frames(raw, 2, (const void *[]){without, data}, (size_t[]){without_bytes, 8}); /* one too many */
    send_frames(raw, 2, (const void *[]){with, data}, (size_t[]){with_bytes, 7});       /* too short */
    send_frames(raw, 2, (const void *[]){with, data}, (size_t[]){with_bytes, 12});      /* too long */
    send_frames(raw, 4, (const void *[]){with, data, data, data},
                (size_t[]){with_bytes, 8, 8, 8});                                 /* too many */
    send_frames(raw, 2, (const void *[]){with, data}, (size_t[]){with_bytes, 8}); /* right */
    eni_packet in = {0};
    eni_socket_count count;
    assert_int_equal(eni_router_recv(b->router, 60000, -1, &in), EN_OK);
    assert_int_equal(in.bytes, 8);
    eni_packet_release(&in);
    assert_int_equal(eni_router_recv(b->router, 0, -1, &in), EN_ETIMEOUT);
    eni_router_count(b->router, &count);
    assert_int_equal(count.dropped, 8);
    assert_int_equal(count.messages_in, 1);
    zmq_close(raw);
    zmq_ctx_term(context);
}

static void a_frame_over_the_limit_never_arrives(void **state)
{
    bench *b = *state;
    eni_packet in = {0};
    eni_header h = header_of(ENI_MSG_CALL, 1 << 19);
    float *values = eni_alloc_array(h.count, sizeof *values);
    eni_header small = header_of(ENI_MSG_CALL, 0);
    assert_int_equal(eni_dealer_send(b->dealer, &small, NULL, NULL, NULL, soon(), -1), EN_OK);
    assert_int_equal(eni_router_recv(b->router, 60000, -1, &in), EN_OK);
    assert_int_equal(eni_dealer_send(b->dealer, &h, values, NULL, NULL, soon(), -1),
                     EN_OK); /* 2 MiB into 1 MiB */
    assert_int_equal(eni_router_recv(b->router, 300, -1, &in), EN_ETIMEOUT);
    /* The shard goes on for others. */
    eni_dealer *other;
    assert_int_equal(eni_dealer_open(b->net, &b->address, &other), EN_OK);
    assert_int_equal(eni_dealer_send(other, &small, NULL, NULL, NULL, soon(), -1), EN_OK);
    assert_int_equal(eni_router_recv(b->router, 60000, -1, &in), EN_OK);
    eni_dealer_close(other);
    eni_net_abort(b->net);
    eni_free(values);
}

static void beyond_loopback_needs_a_word(void **state)
{
    bench *b = *state;
    eni_router *router;
    assert_int_equal(eni_router_open(b->net, &(eni_address){"0.0.0.0", 0}, false, 0, &router, NULL),
                     EN_EDENIED);
    assert_int_equal(eni_router_open(b->net, &(eni_address){"0.0.0.0", 0}, true, 0, &router, NULL), EN_OK);
    eni_router_close(router);
}

static uint64_t apart(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* Both ends live in this process, so the kernel counts every byte once as sent and once as received. */
static void wire_bytes_agree_with_the_kernel(void **state)
{
    bench *b = *state;
    eni_socket_count in, out;
    eni_tcp_totals kernel;
    eni_packet packet = {0};
    eni_header hello = header_of(ENI_MSG_HELLO, 0);
    assert_int_equal(eni_dealer_send(b->dealer, &hello, NULL, NULL, NULL, soon(), -1), EN_OK);
    assert_int_equal(eni_router_recv(b->router, 60000, -1, &packet), EN_OK);
    static const uint64_t counts[] = {0, 1, 60, 64, 100, 5000, 100000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        round_trip(b, counts[i], true);
    eni_router_count(b->router, &in);
    eni_dealer_count(b->dealer, &out);
    assert_int_equal(in.wire_in, out.wire_out);
    assert_int_equal(in.wire_out, out.wire_in);
    assert_int_equal(in.payload_in, out.payload_out);
    assert_int_equal(in.messages_in, sizeof counts / sizeof *counts + 1);
    assert_int_equal(eni_tcp_count(&kernel), EN_OK);
    uint64_t wire = in.wire_in + out.wire_in;
    print_message("wire bytes counted %llu, TCP_INFO received %llu\n", (unsigned long long)wire,
                  (unsigned long long)kernel.received);
    assert_int_equal(wire, kernel.received); /* exact */
    assert_true(apart(in.wire_out + out.wire_out, kernel.sent) * 50 <=
                kernel.sent); /* 2 %: may have repeated */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(messages_of_every_size_come_and_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(checksums_are_checked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sockets_that_check_fill_in_the_checksum, set_up_with_crc, tear_down),
        cmocka_unit_test_setup_teardown(many_small_messages_are_aligned, set_up, tear_down),
        cmocka_unit_test_setup_teardown(waits_end_for_the_right_reason, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_shard_that_is_not_there_is_a_deadline_or_an_abort, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_reply_to_nobody_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_messages_are_dropped_and_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_frame_over_the_limit_never_arrives, set_up, tear_down),
        cmocka_unit_test_setup_teardown(beyond_loopback_needs_a_word, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wire_bytes_agree_with_the_kernel, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
