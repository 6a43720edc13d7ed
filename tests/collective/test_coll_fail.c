/* test_coll_fail.c - a dead rank ends every wait, ranks that disagree are told how, and nobody hangs. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/log.h"
#include "runtime/collective/progress_engine.h"
#include "tests/collective/group_fixture.h"

static void by_every_way(cluster_main main, int n, int killed_rank)
{
    for (int w = 0; w < NWAYS; w++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[w], n), 0);
        cluster_run(&cluster, n, main, &fixture, 60000);
        int as_expected = 1;
        for (int r = 0; r < n; r++)
            as_expected &= cluster.exit_code[r] == (r == killed_rank ? 128 + SIGKILL : 0);
        if (!as_expected) fprintf(stderr, "%s\n", ways[w].name);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_true(as_expected);
    }
}

static eni_coll_op mean_of(uint64_t count, uint32_t bucket)
{
    return (eni_coll_op){
        .op = EN_ALLREDUCE, .what = EN_GRAD, .bucket = bucket, .slot = 1, .count = count, .nsamples = 1};
}

/* The last rank dies after ten all-reduces, the others are in the middle of more. It dies once all are done
 * with the ten: the news of its death ends whatever is under way. */
static int killed(int rank, int n, cluster_board *board, void *user)
{
    eni_coll *coll = fixture_group(user, rank, board, 1);
    CLUSTER_CHECK(coll);
    const eni_coll_op op = mean_of(30000, 0);
    for (int i = 0; i < 10; i++)
        CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    atomic_fetch_add(&board->word[0], 1);
    if (rank == n - 1 && cluster_await(&board->word[0], (uint64_t)n)) raise(SIGKILL);
    uint64_t req[2];
    CLUSTER_CHECK(eni_coll_submit(coll, &op, &req[0]) == EN_OK);
    en_status st = eni_coll_submit(coll, &op, &req[1]);
    CLUSTER_CHECK(st == EN_OK || st == EN_EPEER);
    const int64_t begin_ns = eni_now_ns();
    CLUSTER_CHECK(eni_coll_wait(coll, req[0]) == EN_EPEER);
    CLUSTER_CHECK(eni_now_ns() - begin_ns < 2 * ENI_SECOND);
    CLUSTER_CHECK(eni_coll_submit(coll, &op, &req[0]) == EN_EPEER); /* it stays so */
    CLUSTER_CHECK(eni_coll_test(coll, req[0]) == 1);
    eni_coll_close(coll);
    return 0;
}

static void a_killed_rank_ends_the_wait(void **state)
{
    (void)state;
    by_every_way(killed, 2, 1);
    by_every_way(killed, 4, 3);
}

/* A live rank may take as long as it likes, counted from when the other begins. */
static int slow(int rank, int n, cluster_board *board, void *user)
{
    eni_coll *coll = fixture_group(user, rank, board, 1);
    CLUSTER_CHECK(coll);
    atomic_fetch_add(&board->word[0], 1);
    CLUSTER_CHECK(rank == 0 || cluster_await(&board->word[0], (uint64_t)n));
    if (rank == 1) eni_sleep_until(eni_now_ns() + 300 * ENI_MILLI);
    const eni_coll_op op = mean_of(100, 0);
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
    eni_coll_counters counters;
    eni_coll_count(coll, &counters);
    CLUSTER_CHECK(rank == 1 || counters.wait_ns > 200 * ENI_MILLI);
    eni_coll_close(coll);
    return 0;
}

static void a_slow_rank_is_waited_for(void **state)
{
    (void)state;
    by_every_way(slow, 2, -1);
}

static char last_text[1024];

static void keep_text(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level == ENI_LOG_ERROR) snprintf(last_text, sizeof last_text, "%s", text);
}

/* Rank 1 believes that bucket 2 has 8192 elements. Who hears of it first says it, the others lose a peer. */
static int disagree(int rank, int n, cluster_board *board, void *user)
{
    (void)n;
    eni_log_set_sink(keep_text, NULL);
    eni_coll *coll = fixture_group(user, rank, board, 1);
    CLUSTER_CHECK(coll);
    const eni_coll_op agreed = mean_of(64, 1), op = mean_of(rank == 1 ? 8192 : 4096, 2);
    CLUSTER_CHECK(eni_coll_run(coll, &agreed) == EN_OK);
    float *vector = eni_arena_at(((struct fixture *)user)->arenas[rank], 1, 0);
    for (int i = 0; i < 8192; i++)
        vector[i] = (float)rank;
    const en_status st = eni_coll_run(coll, &op);
    CLUSTER_CHECK(st == EN_EMISMATCH || st == EN_EPEER);
    if (st == EN_EMISMATCH) {
        atomic_fetch_add(&board->word[0], 1);
        CLUSTER_CHECK(strstr(last_text, "#1 all-reduce of bucket 2") && strstr(last_text, "4096 elements") &&
                      strstr(last_text, "8192 elements"));
    }
    eni_coll_close(coll);
    return 0;
}

static void a_mismatch_is_named(void **state)
{
    (void)state;
    for (int w = 0; w < NWAYS; w++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[w], 3), 0);
        const int bad = cluster_run(&cluster, 3, disagree, &fixture, 60000);
        const uint64_t named = atomic_load(&cluster.board->word[0]);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_int_equal(bad, 0);
        assert_true(named >= 1);
    }
}

/* Rank 1 has left the call of step 20 out: what it brings is of step 21, and fits in everything else. */
static int skips(int rank, int n, cluster_board *board, void *user)
{
    (void)n;
    eni_log_set_sink(keep_text, NULL);
    eni_coll *coll = fixture_group(user, rank, board, 1);
    CLUSTER_CHECK(coll);
    eni_coll_op op = mean_of(64, 0);
    op.step = rank == 1 ? 21 : 20;
    const en_status st = eni_coll_run(coll, &op);
    CLUSTER_CHECK(st == EN_EMISMATCH || st == EN_EPEER);
    if (st == EN_EMISMATCH) {
        atomic_fetch_add(&board->word[0], 1);
        CLUSTER_CHECK(strstr(last_text, "in step 20") && strstr(last_text, "in step 21"));
    }
    eni_coll_close(coll);
    return 0;
}

static void another_step_is_named(void **state)
{
    (void)state;
    for (int w = 0; w < NWAYS; w++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[w], 2), 0);
        const int bad = cluster_run(&cluster, 2, skips, &fixture, 60000);
        const uint64_t named = atomic_load(&cluster.board->word[0]);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_int_equal(bad, 0);
        assert_true(named >= 1);
    }
}

/* Another operation at the same place in the order: one rank forgot a call. */
static int forgets(int rank, int n, cluster_board *board, void *user)
{
    (void)n;
    eni_log_set_sink(keep_text, NULL);
    eni_coll *coll = fixture_group(user, rank, board, 1);
    CLUSTER_CHECK(coll);
    eni_coll_op op = mean_of(64, 0);
    if (rank == 1) op.op = EN_BCAST;
    const en_status st = eni_coll_run(coll, &op);
    CLUSTER_CHECK(st == EN_EMISMATCH || st == EN_EPEER);
    if (st == EN_EMISMATCH) {
        atomic_fetch_add(&board->word[0], 1);
        CLUSTER_CHECK(strstr(last_text, "all-reduce") && strstr(last_text, "broadcast"));
    }
    eni_coll_close(coll);
    return 0;
}

static void another_call_is_named(void **state)
{
    (void)state;
    for (int w = 0; w < NWAYS; w++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[w], 2), 0);
        const int bad = cluster_run(&cluster, 2, forgets, &fixture, 60000);
        const uint64_t named = atomic_load(&cluster.board->word[0]);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_int_equal(bad, 0);
        assert_true(named >= 1);
    }
}

/* Two partners disagree: about the bucket, about their place among the collectives, or about what it is. */
static int partners_disagree(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    (void)n;
    const int which = *(int *)fixture->test;
    const eni_coll_op mean = mean_of(64, 0);
    const eni_coll_op sendrecv = {.op = ENI_COLL_SENDRECV,
                                  .what = EN_WEIGHTS,
                                  .bucket = which == 0 ? (uint32_t)rank : 3,
                                  .slot = 1,
                                  .count = 100,
                                  .to = 1 - rank,
                                  .from = 1 - rank,
                                  .slot_in = 2};
    eni_log_set_sink(keep_text, NULL);
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    en_status st = EN_OK;
    for (int i = 0; i < 2 && st == EN_OK; i++) { /* 1: the other order; 2: never the other */
        const bool is_mean = which == 0 ? i == 0 : which == 1 ? (i == 0) == (rank == 0) : rank == 0;
        st = eni_coll_run(coll, is_mean ? &mean : &sendrecv);
    }
    CLUSTER_CHECK(st == EN_EMISMATCH || st == EN_EPEER);
    if (st == EN_EMISMATCH && strstr(last_text, "rank 0") && strstr(last_text, "rank 1"))
        atomic_fetch_add(&board->word[0], strstr(last_text, "sendrecv of bucket") != NULL);
    eni_coll_close(coll);
    return 0;
}

static void partners_that_disagree_are_named(void **state)
{
    (void)state;
    for (int w = 0; w < NWAYS; w++)
        for (int which = 0; which < (w < 2 ? 1 : 3);
             which++) { /* in shared memory the control plane tells the others */
            struct fixture fixture;
            struct cluster cluster;
            assert_int_equal(fixture_open(&fixture, &ways[w], 2), 0);
            fixture.test = &which;
            const int bad = cluster_run(&cluster, 2, partners_disagree, &fixture, 60000);
            const uint64_t named = atomic_load(&cluster.board->word[0]);
            if (bad || named == 0) fprintf(stderr, "%s, case %d\n", ways[w].name, which);
            cluster_close(&cluster);
            fixture_close(&fixture);
            assert_int_equal(bad, 0);
            assert_true(named >= 1);
        }
}

/* Bytes of an unauthenticated peer on a ring's socket are refused, not summed. */
static int garbled(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    (void)n;
    if (rank == 1) {
        char noise[200];
        memset(noise, 0x5a, sizeof noise);
        cluster_keep(2, fixture->pairs, rank);
        CLUSTER_CHECK(write(fixture->pairs[1][0], noise, sizeof noise) == sizeof noise);
        while (read(fixture->pairs[1][0], noise, sizeof noise) > 0) {
        }
        return 0;
    }
    eni_log_set_sink(keep_text, NULL);
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    const eni_coll_op op = mean_of(64, 0);
    CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_EPROTO);
    CLUSTER_CHECK(strstr(last_text, "5a5a5a5a"));
    eni_coll_close(coll);
    return 0;
}

static void an_unauthenticated_peer_is_refused(void **state)
{
    (void)state;
    for (int w = 2; w < NWAYS; w++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[w], 2), 0);
        const int bad = cluster_run(&cluster, 2, garbled, &fixture, 60000);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_int_equal(bad, 0);
    }
}

/* ---- one frame that is not what is due ---- */

/* The first frame of an honest rank 1 of two, in a ring or naive all-reduce of 64 elements. */
static eni_frame honest_frame(int is_naive)
{
    return (eni_frame){.magic = ENI_FRAME_MAGIC,
                       .type = ENI_FRAME_DATA,
                       .dtype = ENI_COLL_F32,
                       .op = EN_ALLREDUCE,
                       .what = EN_GRAD,
                       .epoch = 1,
                       .rank = 1,
                       .count = 64,
                       .lo = is_naive ? 0 : 32,
                       .hi = 64,
                       .nsamples = 1,
                       .n = is_naive ? 64 : 32};
}

/* A field of it that differs, what comes of it, and what the sentence must name. */
static const struct wrong {
    size_t offset, width;
    uint64_t value;
    en_status status;
    const char *ours, *theirs;
} wrongs[] = {
    {offsetof(eni_frame, dtype), 1, 7, EN_EMISMATCH, "64 elements of float32", "64 elements of type 7"},
    {offsetof(eni_frame, epoch), 4, 2, EN_EMISMATCH, "epoch 1", "epoch 2"},
    {offsetof(eni_frame, bucket), 4, 3, EN_EMISMATCH, "of bucket 0", "of bucket 3"},
    {offsetof(eni_frame, training), 2, 7, EN_EMISMATCH, "in step 0", "in step 7"},
    {offsetof(eni_frame, count), 8, 65, EN_EMISMATCH, "64 elements", "65 elements"},
    {offsetof(eni_frame, op), 1, EN_BCAST, EN_EMISMATCH, "#0 all-reduce", "#0 broadcast"},
    {offsetof(eni_frame, what), 1, EN_WEIGHTS, EN_EMISMATCH, "(gradient", "(weights"},
    {offsetof(eni_frame, seq), 8, 1, EN_EMISMATCH, "rank 0 is at #0", "rank 1 at #1"}, /* never waited for */
    {offsetof(eni_frame, seq), 8, UINT64_MAX, EN_EMISMATCH, "#0", "#18446744073709551615"},
    {offsetof(eni_frame, n), 4, 31, EN_EMISMATCH, "#0 all-reduce", "31"},
    {offsetof(eni_frame, n), 4, UINT32_MAX, EN_EMISMATCH, "#0 all-reduce", "4294967295"},
    {offsetof(eni_frame, at), 8, 1, EN_EMISMATCH, "#0 all-reduce", "at 1"},
    {offsetof(eni_frame, hi), 8, UINT64_MAX, EN_EMISMATCH, "#0 all-reduce", "18446744073709551615"},
    {offsetof(eni_frame, deliver_ns), 8, INT64_MAX, EN_EMISMATCH, "rank 1", "--net"},
    {offsetof(eni_frame, rank), 4, 0, EN_EPROTO, "rank 1", "rank 0"},
    {offsetof(eni_frame, type), 1, 9, EN_EPROTO, "rank 1", "type 9"},
    {offsetof(eni_frame, magic), 4, 1, EN_EPROTO, "rank 1", "00000001"},
    {offsetof(eni_frame, crc), 4, 1, EN_EPROTO, "checksum", "00000001"},
    {0, 0, 0, EN_EPEER, "", ""}, /* as it should be: then only its end is wrong */
};
enum { WRONGS = sizeof wrongs / sizeof *wrongs, ANY_REFUSAL = 0 };

static int wrong_frame(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    const struct wrong *wrong = fixture->test;
    (void)n;
    if (rank == 1) {
        struct {
            eni_frame frame;
            float payload[64];
        } said = {.frame = honest_frame(fixture->way->algorithm == ENI_COLL_NAIVE)};
        cluster_keep(2, fixture->pairs, rank);
        for (int i = 0; i < 64; i++)
            said.payload[i] = 1e30f;
        const size_t bytes = sizeof said.frame + eni_frame_payload(&said.frame);
        if (fixture->has_crc) said.frame.crc = eni_crc32c(0, &said, bytes);
        memcpy((char *)&said + wrong->offset, &wrong->value, wrong->width);
        CLUSTER_CHECK(write(fixture->pairs[1][0], &said, bytes) == (ssize_t)bytes);
        shutdown(fixture->pairs[1][0], SHUT_WR);
        char ignored[4096];
        while (read(fixture->pairs[1][0], ignored, sizeof ignored) > 0) {
        }
        return 0;
    }
    last_text[0] = 0;
    eni_log_set_sink(keep_text, NULL);
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    const eni_coll_op op = mean_of(64, 0);
    const en_status st = eni_coll_run(coll, &op);
    /* The honest frame is not refused; naive needs no more than it, and may be done before the end is seen.
     */
    const int is_done = wrong->width == 0 && fixture->way->algorithm == ENI_COLL_NAIVE && st == EN_OK;
    const int is_refused =
        wrong->status == ANY_REFUSAL ? st == EN_EMISMATCH || st == EN_EPROTO : st == wrong->status;
    CLUSTER_CHECK(is_done || is_refused);
    CLUSTER_CHECK(strstr(last_text, wrong->ours) && strstr(last_text, wrong->theirs));
    eni_coll_close(coll);
    return 0;
}

static void one_wrong_field_is_named(void **state)
{
    (void)state;
    for (int w = 2; w < NWAYS; w++)
        for (size_t i = 0; i < WRONGS; i++) {
            struct fixture fixture;
            struct cluster cluster;
            assert_int_equal(fixture_open(&fixture, &ways[w], 2), 0);
            fixture.test = (void *)(uintptr_t)&wrongs[i];
            const int bad = cluster_run(&cluster, 2, wrong_frame, &fixture, 60000);
            if (bad) fprintf(stderr, "%s, wrong frame %zu\n", ways[w].name, i);
            cluster_close(&cluster);
            fixture_close(&fixture);
            assert_int_equal(bad, 0);
        }
}

/* With checksums every bit of a frame counts: in the header, in the payload, in the checksum itself. */
static void one_flipped_bit_is_found(void **state)
{
    (void)state;
    for (size_t at = 0; at < sizeof(eni_frame) + 128; at += 5) {
        struct fixture fixture;
        struct cluster cluster;
        const eni_frame frame = honest_frame(0);
        const float payload = 1e30f;
        uint8_t byte = 0;
        struct wrong flip = {.offset = at, .width = 1, .status = ANY_REFUSAL, .ours = "", .theirs = ""};
        assert_int_equal(fixture_open(&fixture, &ways[2], 2), 0);
        fixture.has_crc = 1;
        if (at < sizeof frame)
            byte = ((const uint8_t *)&frame)[at];
        else
            byte = ((const uint8_t *)&payload)[at % sizeof payload];
        flip.value = byte ^ 0x10u;
        fixture.test = &flip;
        const int bad = cluster_run(&cluster, 2, wrong_frame, &fixture, 60000);
        if (bad) fprintf(stderr, "bit in byte %zu\n", at);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_int_equal(bad, 0);
    }
}

/* A group with checksums gives the same means. */
static int checked(int rank, int n, cluster_board *board, void *user)
{
    struct fixture *fixture = user;
    eni_coll *coll = fixture_group(fixture, rank, board, 1);
    CLUSTER_CHECK(coll);
    float *vector = eni_arena_at(fixture->arenas[rank], 1, 0);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 5000; i++)
            vector[i] = (float)(rank * 4 + i % 7);
        const eni_coll_op op = mean_of(5000, 0);
        CLUSTER_CHECK(eni_coll_run(coll, &op) == EN_OK);
        for (int i = 0; i < 5000; i++)
            CLUSTER_CHECK(vector[i] == (float)(n - 1) * 2 + (float)(i % 7));
    }
    eni_coll_close(coll);
    return 0;
}

static void checksums_change_no_sum(void **state)
{
    (void)state;
    for (int w = 2; w < NWAYS; w++) {
        struct fixture fixture;
        struct cluster cluster;
        assert_int_equal(fixture_open(&fixture, &ways[w], 4), 0);
        fixture.has_crc = 1;
        const int bad = cluster_run(&cluster, 4, checked, &fixture, 60000);
        cluster_close(&cluster);
        fixture_close(&fixture);
        assert_int_equal(bad, 0);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct fixture fixture;
    cluster_board board = {.victim = -1};
    assert_int_equal(fixture_open(&fixture, &ways[0], 1), 0);
    eni_coll *coll = fixture_group(&fixture, 0, &board, 1);
    assert_non_null(coll);
    eni_log_set_level(-1);
    uint64_t req = 99;
    eni_coll_op wrong[] = {mean_of(FIXTURE_COUNT + 1, 0), mean_of(10, 0), mean_of(10, 0), mean_of(10, 0)};
    wrong[1].slot = FIXTURE_NSLOTS;
    wrong[2].offset = UINT64_MAX - 4;
    wrong[3].op = ENI_COLL_SENDRECV;
    wrong[3].to = 1;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(eni_coll_submit(coll, &wrong[i], &req), EN_EINVAL);
    assert_int_equal(req, 99);
    eni_log_set_level(ENI_LOG_INFO);
    eni_coll_close(coll);
    fixture_close(&fixture);
}

static void the_choice_says_why(void **state)
{
    (void)state;
    eni_coll_choice choice;
    eni_coll_facts facts = {.asked = ENI_COLL_AUTO, .nranks = 4, .nhosts = 1};
    assert_int_equal(eni_coll_choose(&facts, &choice), EN_OK);
    assert_int_equal(choice.algorithm, ENI_COLL_DIRECT);
    assert_int_equal(choice.transport, ENI_OVER_SHM);
    assert_string_equal(choice.why, "4 ranks on one host share memory");

    facts.is_shaped = 1;
    assert_int_equal(eni_coll_choose(&facts, &choice), EN_OK);
    assert_int_equal(choice.algorithm, ENI_COLL_RING);
    assert_int_equal(choice.transport, ENI_OVER_TCP);
    assert_non_null(strstr(choice.why, "--net"));

    facts = (eni_coll_facts){.asked = ENI_COLL_AUTO, .nranks = 4, .nhosts = 2};
    assert_int_equal(eni_coll_choose(&facts, &choice), EN_OK);
    assert_int_equal(choice.algorithm, ENI_COLL_RING);
    assert_string_equal(choice.why, "4 ranks on 2 hosts");

    facts.asked = ENI_COLL_DIRECT;
    eni_log_set_level(-1);
    assert_int_equal(eni_coll_choose(&facts, &choice), EN_EINVAL);
    eni_log_set_level(ENI_LOG_INFO);

    facts = (eni_coll_facts){.asked = ENI_COLL_NAIVE, .nranks = 4, .nhosts = 1};
    assert_int_equal(eni_coll_choose(&facts, &choice), EN_OK);
    assert_int_equal(choice.transport, ENI_OVER_TCP);
    facts.naive_in_shm = 1;
    assert_int_equal(eni_coll_choose(&facts, &choice), EN_OK);
    assert_true(choice.algorithm == ENI_COLL_NAIVE && choice.transport == ENI_OVER_SHM);
    facts.is_shaped = 1;
    assert_int_equal(eni_coll_choose(&facts, &choice), EN_OK);
    assert_true(choice.algorithm == ENI_COLL_NAIVE && choice.transport == ENI_OVER_TCP);
    assert_string_equal(eni_coll_algorithm_name(ENI_COLL_NAIVE), "naive");
    assert_string_equal(eni_coll_algorithm_name(ENI_COLL_NAIVE + 1), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_ends_the_wait),
        cmocka_unit_test(a_slow_rank_is_waited_for),
        cmocka_unit_test(a_mismatch_is_named),
        cmocka_unit_test(another_step_is_named),
        cmocka_unit_test(another_call_is_named),
        cmocka_unit_test(an_unauthenticated_peer_is_refused),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(one_wrong_field_is_named),
        cmocka_unit_test(one_flipped_bit_is_found),
        cmocka_unit_test(checksums_change_no_sum),
        cmocka_unit_test(partners_that_disagree_are_named),
        cmocka_unit_test(the_choice_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
