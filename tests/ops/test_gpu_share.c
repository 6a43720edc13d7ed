/* test_gpu_share.c - memory of another process on the same GPU: both see what the other writes, and where the
 * system refuses it, that is told without noise. */
#include <setjmp.h>
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
#include "ops/mean.h"
#include "tests/ops/gpu_rig.h"

enum { COUNT = 10007, RANKS = 3, SECONDS = 30 };

static gpu_rig rig;

/* The messages between the processes. */
typedef struct board {
    uint8_t handle[RANKS][EN_GPU_HANDLE];
    _Atomic int is_refused;
    _Atomic int arrived[4]; /* how many have come to each point */
} board;

static board *shared;

static void meet(int point)
{
    const int64_t deadline = eni_now_ns() + SECONDS * ENI_SECOND;
    shared->arrived[point]++;
    while (shared->arrived[point] < RANKS && eni_now_ns() < deadline)
        eni_sleep_until(eni_now_ns() + ENI_MILLI / 10);
    GPU_REQUIRE(shared->arrived[point] >= RANKS);
}

static void fill_of(float *values, int rank)
{
    gpu_fill(values, COUNT, (uint64_t)rank + 1);
}

/* Every rank exports its vector, imports the others', and adds all of them up in rank order into its slice of
 * rank 0's: the exchange of ranks that share a GPU. */
static int exchange(void *user, int rank)
{
    (void)user;
    float own[COUNT], all[RANKS][COUNT], mean[COUNT];
    void *vector[RANKS];
    gpu_rig_open(&rig, 0, 0);
    fill_of(own, rank);
    vector[rank] = gpu_put(&rig, own, COUNT);
    const en_status st = rig.gpu->export_memory(rig.ctx, vector[rank], shared->handle[rank]);
    if (st == EN_EUNSUPPORTED) shared->is_refused = 1;
    GPU_REQUIRE(st == EN_OK || st == EN_EUNSUPPORTED);
    meet(0);
    if (shared->is_refused) return 0;
    for (int r = 0; r < RANKS; r++)
        if (r != rank && rig.gpu->import_memory(rig.ctx, shared->handle[r], &vector[r]) != EN_OK) {
            shared->is_refused = 1;
            vector[r] = NULL;
        }
    meet(1);
    if (shared->is_refused) return 0;

    void *rates_at;
    const uint64_t lo = eni_slice_lo(COUNT, rank, RANKS), hi = eni_slice_lo(COUNT, rank + 1, RANKS);
    const en_gpu_rates rates = {.inv = 1.0f / 6, .scale = {1, 2, 3}};
    const float *source[RANKS];
    for (int r = 0; r < RANKS; r++)
        source[r] = (float *)vector[r] + lo;
    GPU_OK(rig.ops->alloc(rig.ctx, sizeof rates, &rates_at));
    GPU_OK(rig.ops->copy(rig.ctx, rates_at, &rates, sizeof rates, EN_COPY_IN));
    GPU_OK(rig.ops->sync(rig.ctx)); /* it is in COMPUTE */
    const en_gpu_step step = {.size = sizeof step,
                              .nsources = RANKS,
                              .source = source,
                              .mean = (float *)vector[0] + lo,
                              .count = hi - lo,
                              .rates = rates_at};
    GPU_OK(rig.gpu->mean_step(rig.ctx, EN_STREAM_EXCHANGE, &step));
    GPU_OK(rig.ops->sync(rig.ctx));
    meet(2);

    for (int r = 0; r < RANKS; r++)
        fill_of(all[r], r);
    eni_mean(mean, (const float *const[]){all[0], all[1], all[2]}, rates.scale, RANKS, rates.inv, COUNT);
    gpu_get(&rig, own, vector[0], COUNT);
    GPU_REQUIRE(memcmp(own, mean, sizeof mean) == 0);
    for (int r = 0; r < RANKS; r++)
        if (r != rank) rig.gpu->release_memory(rig.ctx, vector[r]);
    rig.gpu->release_memory(rig.ctx, NULL);
    meet(3); /* the exporter outlives the importers' use */
    rig.ops->free(rig.ctx, vector[rank]);
    gpu_rig_close(&rig);
    return 0;
}

static void processes_work_on_each_others_memory(void **state)
{
    (void)state;
    memset(shared, 0, sizeof *shared);
    assert_true(gpu_processes(RANKS, SECONDS, exchange, NULL));
    if (!shared->is_refused) return;
    print_message("CUDA IPC is refused on this system\n");
    skip();
}

static int refuse(void *user, int rank)
{
    (void)user, (void)rank;
    uint8_t handle[EN_GPU_HANDLE] = {1, 2, 3};
    void *memory = NULL;
    gpu_rig_open(&rig, 0, 0);
    GPU_REQUIRE(rig.gpu->import_memory(rig.ctx, handle, &memory) == EN_EUNSUPPORTED);
    GPU_REQUIRE(memory == NULL);
    GPU_REQUIRE(gpu_last_error()[0] == '\0'); /* at debug level */
    const float one = 1;
    float got = 0;
    float *good = gpu_put(&rig, &one, 1); /* and nothing has happened */
    gpu_get(&rig, &got, good, 1);
    GPU_REQUIRE(got == one);
    gpu_rig_close(&rig);
    return 0;
}

static void a_handle_that_is_none_is_refused(void **state)
{
    (void)state;
    assert_true(gpu_processes(1, SECONDS, refuse, NULL));
}

/* As in a container that has no IPC: the caller hears it from the first call. */
static int have_no_ipc(void *user, int rank)
{
    (void)user, (void)rank;
    uint8_t handle[EN_GPU_HANDLE];
    const float one = 1;
    setenv("FAKE_GPU_NO_IPC", "1", 1);
    gpu_rig_open(&rig, 0, 0);
    float *memory = gpu_put(&rig, &one, 1);
    GPU_REQUIRE(rig.gpu->export_memory(rig.ctx, memory, handle) == EN_EUNSUPPORTED);
    GPU_REQUIRE(gpu_last_error()[0] == '\0');
    gpu_rig_close(&rig);
    return 0;
}

static void where_there_is_no_ipc_it_is_told(void **state)
{
    (void)state;
    if (!gpu_is_simulated(&rig)) skip();
    assert_true(gpu_processes(1, SECONDS, have_no_ipc, NULL));
}

int main(int argc, char **argv)
{
    int ngpus;
    const int code = gpu_rig_find(&rig, argc, argv, &ngpus);
    if (code != 0) return code;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_work_on_each_others_memory),
        cmocka_unit_test(a_handle_that_is_none_is_refused),
        cmocka_unit_test(where_there_is_no_ipc_it_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
