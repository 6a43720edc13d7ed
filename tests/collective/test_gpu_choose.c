/* test_gpu_choose.c - where vectors lie, over a table of runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "entrain/strategy.h"
#include "runtime/collective/coll.h"
#include "runtime/collective/gpu_choose.h"
#include "runtime/collective/gpu_steps.h"

enum { STAGED, ALONE, GROUP, SHARED, REFUSED };
enum {
    NO_IPC = 1,
    NO_NCCL = 2,
    SOLO = 4,
    STORE = 8,
    SHAPED = 16,
    OTHER = 32,
    TCP = 64,
    PLAYED = 128,
    SLICES = 256
};

/* gpus: one letter a rank; small letters are host x, capitals host y, the same letter the same GPU. PLAYED:
 * so do hosts x and y (--host-id on one machine). SLICES: of GPUs, by MIG. */
static const struct row {
    const char *gpus;
    int facts, backend, allreduce, accumulate;
    int expected;
    const char *says; /* in why, or in the error */
} rows[] = {
    {"a", SOLO, 0, 0, 1, ALONE, "one rank"},
    {"a", SOLO | NO_IPC | NO_NCCL, 0, 0, 4, ALONE, "one rank"},
    {"a", SOLO, 0, 0, 65, STAGED, "64 micro-batches"},
    {"a", SOLO, ENI_GPU_BACKEND_HOST, 0, 1, STAGED, "--backend=host"},
    {"a", SOLO, ENI_GPU_BACKEND_NCCL, 0, 1, ALONE, "one rank"},
    {"a", 0, 0, 0, 1, ALONE, "one rank"},
    {"a", 0, ENI_GPU_BACKEND_NCCL, 0, 1, GROUP, "asked for"},
    {"a", OTHER, 0, 0, 1, STAGED, "weights"},
    {"a", STORE | OTHER, 0, 0, 1, STAGED, "servers"},
    {"ab", 0, 0, 0, 1, GROUP, "2 ranks, a GPU for each: NCCL"},
    {"ab", NO_IPC, 0, 0, 1, GROUP, "NCCL"},
    {"ab", 0, ENI_GPU_BACKEND_NCCL, 0, 1, GROUP, "NCCL"},
    {"aA", 0, 0, 0, 1, GROUP, "NCCL"}, /* the same number on another host is another GPU */
    {"aA", PLAYED, 0, 0, 1, STAGED, "host memory"},
    {"aA", PLAYED, ENI_GPU_BACKEND_NCCL, 0, 1, REFUSED, "ranks 0 and 1"},
    {"abCD", 0, 0, 0, 1, GROUP, "4 ranks"},
    {"ab", NO_NCCL, 0, 0, 1, STAGED, "NCCL"},
    {"ab", NO_NCCL, ENI_GPU_BACKEND_NCCL, 0, 1, REFUSED, "libnccl.so.2"},
    {"aa", 0, 0, 0, 1, SHARED, "2 ranks share GPU-a1a1-xyz, which NCCL refuses: CUDA IPC"},
    {"aaaa", NO_NCCL, 0, 0, 1, SHARED, "4 ranks"},
    {"aa", NO_IPC, 0, 0, 1, STAGED, "CUDA IPC"},
    {"ab", SLICES, 0, 0, 1, STAGED, "ranks 0 and 1 have slices of GPUs (MIG), which NCCL refuses"},
    {"aAb", SLICES, 0, 0, 1, STAGED, "ranks 0 and 2"},
    {"aA", SLICES, 0, 0, 1, GROUP, "NCCL"}, /* one on each host */
    {"aa", SLICES, 0, 0, 1, SHARED, "CUDA IPC"},
    {"ab", SLICES, ENI_GPU_BACKEND_NCCL, 0, 1, GROUP, "NCCL"}, /* a later one may take them */
    {"aa", TCP, 0, 0, 1, STAGED, "--transport=tcp"},
    {"aab", 0, 0, 0, 1, STAGED, "ranks 0 and 1 share GPU-a1a1-xyz"},
    {"abA", 0, 0, 0, 1, GROUP, "NCCL"},
    {"baAA", 0, 0, 0, 1, STAGED, "ranks 2 and 3 share"},
    {"aa", 0, ENI_GPU_BACKEND_HOST, 0, 1, STAGED, "--backend=host"},
    {"aba", 0, ENI_GPU_BACKEND_NCCL, 0, 1, REFUSED,
     "ranks 0 and 2 are both on cuda:0 of host x (GPU-a1a1-xyz-more)"},
    {"ab", SHAPED, 0, 0, 1, STAGED, "--net"},
    {"aa", SHAPED, 0, 0, 1, STAGED, "--net"},
    {"ab", SHAPED, ENI_GPU_BACKEND_NCCL, 0, 1, REFUSED, "--net"},
    {"aa", 0, 0, ENI_COLL_DIRECT, 1, STAGED, "--allreduce"},
    {"ab", 0, 0, ENI_COLL_RING, 1, STAGED, "--allreduce"},
    {"ab", TCP, 0, 0, 1, STAGED, "--transport=tcp"},
    {"ab", OTHER, 0, 0, 1, STAGED, "weights"},
    {"aa", STORE | OTHER, 0, 0, 1, STAGED, "servers"},
    {"ab", STORE | OTHER, ENI_GPU_BACKEND_NCCL, 0, 1, REFUSED, "servers"},
};

static char said[512];

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level == ENI_LOG_ERROR) snprintf(said, sizeof said, "%s", text);
}

static eni_rank_gpu gpu_of(char letter, int facts, int is_last)
{
    const int is_far = letter < 'a';
    eni_rank_gpu gpu = {.index = (letter | 32) - 'a',
                        .can_share = !(facts & NO_IPC && is_last), /* one is enough */
                        .has_group = !(facts & NO_NCCL && is_last)};
    snprintf(gpu.uuid, sizeof gpu.uuid, "%s-%c1%c1-xyz-more", facts & SLICES ? "MIG" : "GPU",
             facts & PLAYED ? letter | 32 : letter, letter | 32);
    snprintf(gpu.host, sizeof gpu.host, "%s", is_far ? "y" : "x");
    snprintf(gpu.host_id, sizeof gpu.host_id, "id of %s", is_far ? "y" : "x");
    return gpu;
}

static int choose(const struct row *row, eni_gpu_choice *choice)
{
    eni_rank_gpu gpus[8];
    const int n = (int)strlen(row->gpus), other = row->facts & OTHER;
    for (int r = 0; r < n; r++)
        gpus[r] = gpu_of(row->gpus[r], row->facts, r == n - 1);
    const eni_gpu_facts_of_run facts = {.nranks = n,
                                        .gpus = gpus,
                                        .strategy_flags = EN_SYNCHRONOUS |
                                                          (other || row->facts & SOLO ? 0 : EN_SHARED_PARAMS),
                                        .is_solo = (row->facts & SOLO) != 0,
                                        .has_store = (row->facts & STORE) != 0,
                                        .accumulate = row->accumulate,
                                        .backend = row->backend,
                                        .allreduce = row->allreduce,
                                        .is_shaped = (row->facts & SHAPED) != 0,
                                        .no_shm = row->facts & TCP ? "--transport=tcp" : NULL};
    said[0] = 0;
    if (eni_gpu_choose(&facts, choice) == EN_EINVAL) return REFUSED;
    if (choice->vectors == ENI_VECTORS_STAGED) return STAGED;
    assert_int_equal(choice->vectors, ENI_VECTORS_ON_GPU);
    return choice->way == ENI_GPU_ALONE ? ALONE : choice->way == ENI_GPU_GROUP ? GROUP : SHARED;
}

static void test_table(void **state)
{
    (void)state;
    eni_log_set_sink(listen_in, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        eni_gpu_choice choice = {0};
        const int got = choose(&rows[i], &choice);
        const char *why = got == REFUSED ? said : choice.why;
        if (got != rows[i].expected || strstr(why, rows[i].says) == NULL)
            fail_msg("row %zu (%s): %d, not %d: \"%s\"", i, rows[i].gpus, got, rows[i].expected, why);
    }
    eni_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
