/* test_shard_ring.c - a client that asks a shard by ring: it gets the same answers as by socket, in the same
 * order, and is trusted no more. */
#include "runtime/client/shm_ring.h"
#include "tests/server/shard_rig.h"

#include <sys/mman.h>

/* A client on psd's host has these besides its dealer. */
typedef struct guest {
    eni_arena *arena;
    eni_shm_ring *ring;
    int rank;
} guest;

static guest *let_in(rig *r, int rank)
{
    guest *g = calloc(1, sizeof *g);
    const int64_t until = eni_now_ns() + 5 * ENI_SECOND;
    int fd, gifts[ENI_FDPASS_MAX];
    size_t ngifts, bytes;
    eni_arena_answer answer;
    g->rank = rank;
    assert_int_equal(eni_arena_open(ELEMENTS, 6, 1, &g->arena), EN_OK);
    assert_int_equal(eni_shm_ring_open(1, BUCKETS, &g->ring), EN_OK);
    const eni_arena_hello hello = {.rank = rank,
                                   .epoch = 1,
                                   .incarnation = 1,
                                   .count = ELEMENTS,
                                   .shards = 1,
                                   .slots = eni_shm_ring_slots(g->ring)};
    const int fds[] = {eni_arena_fd(g->arena), eni_shm_ring_fd(g->ring)};
    assert_int_equal(eni_fdpass_connect(eni_arenas_name(r->arenas), &r->token, until, -1, &fd), EN_OK);
    assert_int_equal(eni_fdpass_send(fd, fds, 2, &hello, sizeof hello, until, -1), EN_OK);
    assert_int_equal(eni_fdpass_recv(fd, gifts, &ngifts, &answer, sizeof answer, &bytes, until, -1), EN_OK);
    close(fd);
    assert_int_equal(answer.status, EN_OK);
    assert_int_equal(answer.ndoorbells, 1);
    assert_int_equal(ngifts, 1);
    eni_shm_ring_set_doorbell(g->ring, 0, gifts[0]);
    return g;
}

static void let_out(guest *g)
{
    eni_shm_ring_close(g->ring);
    eni_arena_close(g->arena);
    free(g);
}

static const eni_header *poll_ring(rig *r, guest *g)
{
    static const eni_alive all_live;
    const int64_t until = eni_now_ns() + 10 * ENI_SECOND;
    en_status st;
    while ((st = eni_shm_ring_poll(g->ring, 0, &r->heard)) == EN_ETIMEOUT)
        assert_int_equal(eni_shm_ring_await(g->ring, until, &all_live), EN_OK);
    assert_int_equal(st, EN_OK);
    return &r->heard;
}

static void expect_refused_by_ring(rig *r, guest *g, en_status status, const char *part)
{
    assert_int_equal(poll_ring(r, g)->type, ENI_MSG_REFUSED);
    assert_int_equal(r->heard.status, status);
    if (!strstr(r->heard.text, part)) fail_msg("'%s' not in '%s'", part, r->heard.text);
}

/* A push of step `t`, out of the gradient's slot, answered into the weights'. */
static void ring_push(guest *g, uint32_t bucket, uint64_t t)
{
    eni_header header = call_of(g->rank, bucket, t);
    header.flags = ENI_FLAG_SHM;
    header.slot = ENI_SLOT_GRAD;
    header.into = ENI_SLOT_PARAM;
    for (uint64_t i = 0; i < counts[bucket]; i++)
        *eni_arena_at(g->arena, ENI_SLOT_GRAD, offsets[bucket] + i) =
            gradient_at(g->rank, t, offsets[bucket] + i);
    eni_shm_ring_post(g->ring, 0, &header);
}

/* ---- tests --------------------------------------------------------------------------------------------- */

/* One by ring, one by socket: the weights are the same. */
static void a_ring_gives_the_bytes_of_a_socket(void **state)
{
    (void)state;
    enum { STEPS = 5 };
    rig *r = open_rig(NULL);
    float want[ELEMENTS];
    train_alone(WORLD, STEPS, want);
    guest *g = let_in(r, 0);
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    for (uint64_t t = 0; t < STEPS; t++)
        for (uint32_t b = 0; b < BUCKETS; b++) {
            if (t % 2) say_push(r, 1, b, t);
            ring_push(g, b, t);
            if (t % 2 == 0) say_push(r, 1, b, t);
            assert_int_equal(poll_ring(r, g)->type, ENI_MSG_REPLY);
            assert_int_equal(r->heard.version, t + 1);
            assert_int_equal(r->heard.slot, ENI_SLOT_PARAM);
            assert_int_equal(r->heard.bytes, counts[b] * sizeof(float));
            assert_int_equal(hear(r, 1)->version, t + 1);
        }
    for (uint32_t b = 0; b < BUCKETS; b++)
        assert_memory_equal(eni_arena_at(g->arena, ENI_SLOT_PARAM, offsets[b]), want + offsets[b],
                            counts[b] * sizeof(float));
    close_rig(r);
    let_out(g);
}

/* A message posted before FINISHED was sent by socket is handled before it. */
static void a_posted_message_comes_before_a_later_one(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    guest *g = let_in(r, 1);
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    say_push(r, 0, 0, 0);
    ring_push(g, 0, 0);
    const eni_header bye = header_of(1, ENI_MSG_FINISHED);
    say(r, 1, &bye, NULL);
    assert_int_equal(hear(r, 1)->type, ENI_MSG_GOODBYE);
    assert_int_equal(poll_ring(r, g)->type, ENI_MSG_REPLY);
    assert_int_equal(hear(r, 0)->type, ENI_MSG_REPLY);
    close_rig(r);
    let_out(g);
}

static void nonsense_by_ring_is_refused_and_counted(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    guest *g = let_in(r, 0);
    ring_push(g, 0, 0);
    expect_refused_by_ring(r, g, EN_EPROTO, "may not send"); /* before HELLO */
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    eni_header header = call_of(1, 0, 0);
    header.flags = ENI_FLAG_SHM;
    eni_shm_ring_post(g->ring, 0, &header); /* in another rank's name */
    expect_refused_by_ring(r, g, EN_EPROTO, "may not send");
    header = header_of(0, ENI_MSG_HELLO);
    eni_token_hex(&r->token, header.text);
    eni_shm_ring_post(g->ring, 0, &header);
    expect_refused_by_ring(r, g, EN_EPROTO, "may not send");
    header = call_of(0, 0, 0);
    eni_shm_ring_post(g->ring, 0, &header); /* a payload outside any slot */
    expect_refused_by_ring(r, g, EN_EPROTO, "may not send");
    header.flags = ENI_FLAG_SHM;
    header.slot = 6;
    eni_shm_ring_post(g->ring, 0, &header);
    expect_refused_by_ring(r, g, EN_EPROTO, "slot 6");
    eni_shard_figures figures = {0};
    assert_int_equal(eni_shard_look(r->shard, copy_figures, &figures), EN_OK);
    assert_int_equal(figures.refused, 5);
    assert_int_equal(figures.refusals.unknown, 4);
    assert_int_equal(figures.refusals.payload, 1);
    ring_push(g, 0, 0); /* and the shard goes on */
    say_push(r, 1, 0, 0);
    assert_int_equal(poll_ring(r, g)->type, ENI_MSG_REPLY);
    close_rig(r);
    let_out(g);
}

/* A shard is not kept busy by a counter that lies, and the others are served. */
static void a_ring_that_lies_is_not_polled_again(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    guest *liar = let_in(r, 0), *other = let_in(r, 1);
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    uint8_t *memory =
        mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, eni_shm_ring_fd(liar->ring), 0);
    assert_true(memory != MAP_FAILED);
    ring_push(liar, 0, 0);
    ring_push(other, 0, 0);
    assert_int_equal(poll_ring(r, liar)->type, ENI_MSG_REPLY);
    assert_int_equal(poll_ring(r, other)->type, ENI_MSG_REPLY);
    *(volatile uint64_t *)(void *)(memory + 4096) = UINT64_MAX / 2; /* its answers */
    ring_push(other, 0, 1);                                         /* wakes the shard */
    say_push(r, 0, 0, 1);                                           /* by socket it can still speak */
    assert_int_equal(poll_ring(r, other)->version, 2);
    assert_int_equal(hear(r, 0)->version, 2);
    eni_shard_figures figures = {0};
    assert_int_equal(eni_shard_look(r->shard, copy_figures, &figures), EN_OK);
    assert_int_equal(figures.refusals.unknown, 1);
    munmap(memory, 2 * 4096);
    close_rig(r);
    let_out(liar);
    let_out(other);
}

/* With a ring, too; and the first message by ring after that is handled. */
static void an_idle_shard_sleeps_and_wakes(void **state)
{
    (void)state;
    rig *r = open_rig(NULL);
    guest *g = let_in(r, 0);
    hello(r, 0);
    hello(r, 1);
    say_init(r, 0);
    for (uint64_t t = 0; t < 3; t++) {
        struct timespec begin, end;
        ring_push(g, 0, t);
        say_push(r, 1, 0, t);
        assert_int_equal(poll_ring(r, g)->version, t + 1);
        assert_int_equal(hear(r, 1)->version, t + 1);
        eni_sleep_until(eni_now_ns() + 50 * ENI_MILLI); /* it polls for a moment */
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
        eni_sleep_until(eni_now_ns() + 200 * ENI_MILLI);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
        const int64_t used = (end.tv_sec - begin.tv_sec) * ENI_SECOND + (end.tv_nsec - begin.tv_nsec);
        assert_true(used < 20 * ENI_MILLI);
    }
    close_rig(r);
    let_out(g);
}

int main(void)
{
    eni_log_set_level(-1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_gives_the_bytes_of_a_socket),
        cmocka_unit_test(a_posted_message_comes_before_a_later_one),
        cmocka_unit_test(nonsense_by_ring_is_refused_and_counted),
        cmocka_unit_test(a_ring_that_lies_is_not_polled_again),
        cmocka_unit_test(an_idle_shard_sleeps_and_wakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
