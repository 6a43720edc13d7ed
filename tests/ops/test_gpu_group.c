/* test_gpu_group.c - collectives: the sum on all ranks, in graphs too; ranks that share a GPU are refused;
 * and a rank that dies ends the others in time. One process a rank, one GPU a rank: with one GPU what takes
 * two is skipped. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/ops/gpu_rig.h"

enum { COUNT = 40003, RANKS_MAX = 4, SECONDS = 60 };

static gpu_rig rig;
static int gpus;

typedef struct board {
    uint8_t id[EN_GPU_GROUP_ID];
    _Atomic int has_id, is_ready, over;
} board;

static board *shared;

/* The `alive` of a group. */
static en_status alive(void *user)
{
    const int64_t *deadline = user;
    if (shared->over) return EN_EPEER;
    return eni_now_ns() < *deadline ? EN_OK : EN_ETIMEOUT;
}

static int64_t deadline;

static en_status open_group(int rank, int nranks, en_group **group_out)
{
    deadline = eni_now_ns() + SECONDS * ENI_SECOND;
    if (rank == 0) {
        GPU_OK(rig.gpu->group_id(eni_device_host(), shared->id));
        shared->has_id = 1;
    }
    while (!shared->has_id && eni_now_ns() < deadline)
        eni_sleep_until(eni_now_ns() + ENI_MILLI / 10);
    return rig.gpu->group_open(rig.ctx, shared->id, rank, nranks, alive, &deadline, group_out);
}

/* Small whole numbers, of which every sum is exact in any order. */
static float value(int rank, uint64_t i)
{
    return (float)((int)(i % 97) - 48 + rank * 3);
}

static void put_values(float *memory, int rank)
{
    float values[COUNT];
    for (uint64_t i = 0; i < COUNT; i++)
        values[i] = value(rank, i);
    GPU_OK(rig.ops->copy(rig.ctx, memory, values, sizeof values, EN_COPY_IN));
    GPU_OK(rig.ops->sync(rig.ctx));
}

static void expect_sum(const float *memory, int nranks, const float *scale)
{
    float got[COUNT];
    gpu_get(&rig, got, memory, COUNT);
    for (uint64_t i = 0; i < COUNT; i++) {
        float want = 0;
        for (int r = 0; r < nranks; r++)
            want += value(r, i) * scale[r];
        if (got[i] != want) fprintf(stderr, "element %d: %g for %g\n", (int)i, (double)got[i], (double)want);
        GPU_REQUIRE(got[i] == want);
    }
}

static const float ones[RANKS_MAX] = {1, 1, 1, 1}, scales[RANKS_MAX] = {64, 32, 0, 5},
                   others[RANKS_MAX] = {2, 4, 8, 16};

static void send_scale(float *memory, const float *scale)
{
    GPU_OK(rig.ops->copy(rig.ctx, memory, scale, sizeof *scale, EN_COPY_IN));
    GPU_OK(rig.ops->sync(rig.ctx));
}

static int add_up(void *user, int rank)
{
    const int nranks = *(const int *)user;
    const float zero = 0;
    float all[COUNT] = {0};
    en_group *group = NULL;
    gpu_rig_open(&rig, rank, 0);
    GPU_OK(open_group(rank, nranks, &group));
    float *data = gpu_put(&rig, all, COUNT), *scale = gpu_put(&rig, &zero, 1);
    for (int round = 0; round < 3; round++) {
        put_values(data, rank);
        GPU_OK(rig.gpu->group_sum(group, data, COUNT, NULL));
        expect_sum(data, nranks, ones);
    }
    send_scale(scale, &scales[rank]);
    put_values(data, rank);
    GPU_OK(rig.gpu->group_sum(group, data, COUNT, scale));
    expect_sum(data, nranks, scales);

    put_values(data, rank);
    GPU_OK(rig.gpu->group_broadcast(group, data, COUNT));
    expect_sum(data, 1, ones); /* rank 0's on all ranks */
    GPU_OK(rig.gpu->group_sum(group, data, 0, NULL));
    GPU_OK(rig.gpu->group_poll(group));
    rig.gpu->group_close(group);
    gpu_rig_close(&rig);
    return 0;
}

typedef struct captured {
    en_group *group;
    en_capture *graph;
    en_event *ready, *done;
    float *data, *scale; /* (COUNT), (1): on the GPU */
} captured;

/* A sum in EXCHANGE, between two events. */
static void record_sum(captured *r)
{
    GPU_OK(rig.gpu->capture_begin(rig.ctx));
    GPU_OK(rig.gpu->event_record(r->ready, EN_STREAM_COMPUTE));
    GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_EXCHANGE, r->ready));
    GPU_OK(rig.gpu->group_sum(r->group, r->data, COUNT, r->scale));
    GPU_OK(rig.gpu->event_record(r->done, EN_STREAM_EXCHANGE));
    GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_COMPUTE, r->done));
    GPU_OK(rig.gpu->capture_end(rig.ctx, &r->graph));
}

static void captured_open(captured *r, int rank, int nranks)
{
    const float zero = 0;
    float all[COUNT] = {0};
    *r = (captured){0};
    gpu_rig_open(&rig, rank, 0);
    GPU_OK(open_group(rank, nranks, &r->group));
    GPU_OK(rig.gpu->event_new(rig.ctx, &r->ready));
    GPU_OK(rig.gpu->event_new(rig.ctx, &r->done));
    r->data = gpu_put(&rig, all, COUNT);
    r->scale = gpu_put(&rig, &zero, 1);
    GPU_OK(rig.gpu->group_sum(r->group, r->data, COUNT, r->scale)); /* connected before it is captured */
    GPU_OK(rig.ops->sync(rig.ctx));
    record_sum(r);
}

/* The graph first: it holds the group's communicator. */
static void captured_close(captured *r)
{
    rig.gpu->graph_free(r->graph);
    rig.gpu->group_close(r->group);
    rig.gpu->event_free(r->ready);
    rig.gpu->event_free(r->done);
    gpu_rig_close(&rig);
}

/* In a graph, with the factor of the day. */
static int replay(void *user, int rank)
{
    const int nranks = *(const int *)user;
    captured r;
    captured_open(&r, rank, nranks);
    for (int round = 0; round < 4; round++) {
        const float *with = round % 2 ? scales : others;
        send_scale(r.scale, &with[rank]);
        put_values(r.data, rank);
        GPU_OK(rig.gpu->launch(r.graph));
        gpu_await(&rig, r.done);
        expect_sum(r.data, nranks, with);
    }
    captured_close(&r);
    return 0;
}

static void run(int nranks, int (*body)(void *, int))
{
    memset(shared, 0, sizeof *shared);
    if (!gpu_processes(nranks, SECONDS, body, &nranks)) fail_msg("%d ranks", nranks);
}

static void every_rank_has_the_sum(void **state)
{
    (void)state;
    for (int nranks = 1; nranks <= RANKS_MAX && nranks <= gpus; nranks++)
        run(nranks, add_up);
}

static void a_sum_in_a_graph_reads_the_factor_of_the_day(void **state)
{
    (void)state;
    for (int nranks = 1; nranks <= RANKS_MAX && nranks <= gpus; nranks++)
        run(nranks, replay);
}

static int share_one(void *user, int rank)
{
    (void)user;
    en_group *group = NULL;
    gpu_rig_open(&rig, 0, 0);
    const int64_t begin = eni_now_ns();
    const en_status st = open_group(rank, 2, &group);
    if (st != EN_EUNSUPPORTED) fprintf(stderr, "status %d, %s\n", st, gpu_last_error());
    GPU_REQUIRE(st == EN_EUNSUPPORTED && group == NULL);
    GPU_REQUIRE(strstr(gpu_last_error(), "NCCL") != NULL);
    GPU_REQUIRE(eni_now_ns() - begin < 30 * ENI_SECOND);
    gpu_rig_close(&rig);
    return 0;
}

static void two_ranks_on_one_gpu_are_refused(void **state)
{
    (void)state;
    run(2, share_one);
}

/* ---- a rank that dies ---------------------------------------------------------------------------------- */

static void *abort_it(void *user)
{
    rig.gpu->group_abort(user);
    return NULL;
}

/* Not while the other is inside a call, which may then say that it heard. */
static void lose_rank_1(int rank)
{
    if (rank == 1) {
        while (!shared->is_ready) {
        }
        shared->over = 1;
        _exit(0);
    }
    shared->is_ready = 1;
    while (!shared->over) {
    }
}

/* Rank 1 dies instead of adding up. Rank 0 hears of it (as the worker does, from its launcher), and another
 * thread aborts: the stream goes on and everything closes. */
static int lose_a_peer(void *user, int rank)
{
    const int nranks = *(const int *)user;
    float values[COUNT] = {0};
    en_group *group = NULL;
    en_event *done;
    pthread_t thread;
    gpu_rig_open(&rig, rank, 0);
    GPU_OK(open_group(rank, nranks, &group));
    float *data = gpu_put(&rig, values, COUNT);
    GPU_OK(rig.gpu->event_new(rig.ctx, &done));
    put_values(data, rank);
    GPU_OK(rig.gpu->group_sum(group, data, COUNT, NULL));
    expect_sum(data, nranks, ones);
    lose_rank_1(rank);
    const en_status st = rig.gpu->group_sum(group, data, COUNT, NULL); /* may hear of it already */
    GPU_REQUIRE(st == EN_OK || st == EN_EPEER);
    GPU_OK(rig.gpu->event_record(done, EN_STREAM_EXCHANGE));
    const int64_t begin = eni_now_ns();
    pthread_create(&thread, NULL, abort_it, group);
    pthread_join(thread, NULL);
    gpu_await(&rig, done);
    GPU_REQUIRE(eni_now_ns() - begin < 10 * ENI_SECOND);
    GPU_REQUIRE(rig.gpu->group_poll(group) == EN_EPEER);
    GPU_REQUIRE(rig.gpu->group_sum(group, data, COUNT, NULL) == EN_EPEER);
    rig.gpu->group_abort(group); /* twice is fine */
    rig.gpu->group_close(group);
    put_values(data, 0); /* the GPU is well */
    rig.gpu->event_free(done);
    gpu_rig_close(&rig);
    return 0;
}

/* The same with the sum in a graph, which is still there when the group is aborted: NCCL lets go of nothing
 * that a graph could use, but that must not hold up who aborts. */
static int lose_a_peer_in_a_graph(void *user, int rank)
{
    captured r;
    captured_open(&r, rank, *(const int *)user);
    lose_rank_1(rank); /* capture is such a call, too */
    const int64_t begin = eni_now_ns();
    GPU_OK(rig.gpu->launch(r.graph));
    rig.gpu->group_abort(r.group);
    gpu_await(&rig, r.done); /* the stream goes on */
    captured_close(&r);
    GPU_REQUIRE(eni_now_ns() - begin < 10 * ENI_SECOND);
    return 0;
}

static void a_rank_that_dies_ends_the_others_in_time(void **state)
{
    (void)state;
    if (gpus < 2) {
        print_message("this takes two GPUs\n");
        skip();
    }
    run(2, lose_a_peer);
    run(2, lose_a_peer_in_a_graph);
}

/* Nobody else comes: the caller's `alive` ends the wait. */
static int wait_in_vain(void *user, int rank)
{
    (void)user, (void)rank;
    en_group *group = NULL;
    int64_t soon = eni_now_ns() + ENI_SECOND / 2;
    gpu_rig_open(&rig, 0, 0);
    GPU_OK(rig.gpu->group_id(eni_device_host(), shared->id));
    GPU_REQUIRE(rig.gpu->group_open(rig.ctx, shared->id, 0, 2, alive, &soon, &group) == EN_ETIMEOUT);
    GPU_REQUIRE(group == NULL);
    GPU_REQUIRE(eni_now_ns() < soon + 10 * ENI_SECOND);
    gpu_rig_close(&rig);
    return 0;
}

static void opening_ends_when_the_caller_says_so(void **state)
{
    (void)state;
    run(1, wait_in_vain);
}

static int have_no_nccl(void *user, int rank)
{
    (void)user, (void)rank;
    uint8_t id[EN_GPU_GROUP_ID];
    setenv("FAKE_NCCL", "none", 1);
    gpu_rig_open(&rig, 0, 0);
    GPU_REQUIRE(rig.gpu->group_id(eni_device_host(), id) == EN_EUNSUPPORTED);
    GPU_REQUIRE(strstr(gpu_last_error(), "NCCL") && strstr(gpu_last_error(), "--backend=host"));
    GPU_REQUIRE(rig.gpu->group_version()[0] == '\0');
    gpu_rig_close(&rig);
    return 0;
}

static void where_there_is_no_nccl_it_is_told(void **state)
{
    (void)state;
    if (!gpu_is_simulated(&rig)) skip();
    run(1, have_no_nccl);
}

static int tell_version(void *user, int rank)
{
    (void)user, (void)rank;
    int part[3];
    gpu_rig_open(&rig, 0, 0);
    GPU_REQUIRE(sscanf(rig.gpu->group_version(), "NCCL %d.%d.%d", &part[0], &part[1], &part[2]) == 3);
    gpu_rig_close(&rig);
    return 0;
}

static void the_version_is_told(void **state)
{
    (void)state;
    run(1, tell_version);
}

int main(int argc, char **argv)
{
    setenv("FAKE_GPUS", "4", 0); /* of simulated ones there may be as many as it takes */
    const int code = gpu_rig_find(&rig, argc, argv, &gpus);
    if (code != 0) return code;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_has_the_sum),
        cmocka_unit_test(a_sum_in_a_graph_reads_the_factor_of_the_day),
        cmocka_unit_test(two_ranks_on_one_gpu_are_refused),
        cmocka_unit_test(a_rank_that_dies_ends_the_others_in_time),
        cmocka_unit_test(opening_ends_when_the_caller_says_so),
        cmocka_unit_test(where_there_is_no_nccl_it_is_told),
        cmocka_unit_test(the_version_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
