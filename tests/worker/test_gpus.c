/* test_gpus.c - which rank uses which GPU, what ranks learn of each other's, and who else is there: on a
 * table that says what the test wants, with ranks as processes. */
#include <sched.h>
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
#include "core/log.h"
#include "core/memory.h"
#include "core/nvml.h"
#include "entrain/strategy.h"
#include "ops/device.h"
#include "runtime/collective/gpu_steps.h"
#include "runtime/collective/sync.h"
#include "tests/cluster.h"
#include "worker/gpu/gpus.h"

enum { MAX_RANKS = 5, BLOB = 4096 };

/* ---- a machine ---- */

static struct {
    int count;
    int has_group;
    int rank;       /* of this process */
    int cannot_map; /* this rank; -1: all can */
    int allocated;
} machine;

static eni_gpu_machine driver; /* the same one, as its driver tells (tests/fake_nvml) */

/* "pid:bytes,.."; NULL: the driver does not tell. */
static void set_users(const char *users)
{
    setenv("FAKE_GPU_NO_USERS", users == NULL ? "1" : "0", 1);
    setenv("FAKE_NVML_USERS", users == NULL ? "" : users, 1);
}

static char said[8192];

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    const size_t used = strlen(said);
    snprintf(said + used, sizeof said - used, "%s\n", text);
}

static en_status fake_count(const en_device_host *host, int32_t *n_out)
{
    (void)host;
    *n_out = machine.count;
    return machine.count > 0 ? EN_OK : EN_EUNSUPPORTED;
}

static en_status fake_facts(const en_device_host *host, int32_t index, en_gpu_facts *facts_out)
{
    (void)host;
    facts_out->index = index;
    facts_out->memory_bytes = 8000000000u;
    snprintf(facts_out->name, sizeof facts_out->name, "Test GPU");
    snprintf(facts_out->uuid, sizeof facts_out->uuid, "%.47s", driver.gpu[index].uuid);
    return EN_OK;
}

static const char *fake_version(void)
{
    return machine.has_group ? "NCCL 2.28.9" : "";
}

static en_status fake_alloc(en_ctx *ctx, uint64_t bytes, void **memory_out)
{
    (void)ctx;
    machine.allocated++;
    *memory_out = malloc(bytes);
    return EN_OK;
}

static void fake_free(en_ctx *ctx, void *memory)
{
    (void)ctx;
    machine.allocated -= memory != NULL;
    free(memory);
}

/* A handle names its rank; nobody can map what nobody has exported, nor his own. */
static en_status fake_export(en_ctx *ctx, void *memory, uint8_t handle_out[EN_GPU_HANDLE])
{
    (void)ctx, (void)memory;
    handle_out[0] = (uint8_t)(100 + machine.rank);
    return EN_OK;
}

static en_status fake_import(en_ctx *ctx, const uint8_t handle[EN_GPU_HANDLE], void **memory_out)
{
    (void)ctx;
    if (handle[0] < 100 || handle[0] == 100 + machine.rank) return EN_EINVAL;
    if (machine.rank == machine.cannot_map) return EN_EUNSUPPORTED;
    machine.allocated++;
    *memory_out = malloc(1);
    return EN_OK;
}

static const en_gpu table = {.size = sizeof table,
                             .count = fake_count,
                             .facts = fake_facts,
                             .export_memory = fake_export,
                             .import_memory = fake_import,
                             .release_memory = fake_free,
                             .group_version = fake_version};
static const en_device device = {.name = "cuda", .gpu = &table, .alloc = fake_alloc, .free = fake_free};

/* ---- a control plane ---- */

typedef struct plane {
    _Atomic uint64_t arrived;
    struct {
        size_t bytes;
        uint8_t data[BLOB];
    } own[2][MAX_RANKS]; /* by the parity of the gather */
} plane;

typedef struct world {
    plane *plane;
    int rank, n;
    uint64_t ngathers;
} world;

static en_status gather(void *user, const char *tag, const void *blob, size_t bytes, eni_blobs *blobs_out)
{
    world *w = user;
    const int64_t deadline = eni_now_ns() + 20 * ENI_SECOND;
    const uint64_t turn = w->ngathers++ % 2;
    (void)tag;
    if (bytes > BLOB) return EN_EINVAL;
    w->plane->own[turn][w->rank].bytes = bytes;
    if (bytes > 0) memcpy(w->plane->own[turn][w->rank].data, blob, bytes);
    w->plane->arrived++;
    while (w->plane->arrived < w->ngathers * (uint64_t)w->n) {
        if (eni_now_ns() > deadline) return EN_ETIMEOUT;
        sched_yield();
    }
    if (blobs_out == NULL) return EN_OK;
    blobs_out->count = (size_t)w->n + 1;
    blobs_out->blob = eni_alloc_array((size_t)w->n + 1, sizeof *blobs_out->blob);
    for (int r = 0; r < w->n; r++) {
        uint8_t *copy = eni_alloc(BLOB);
        memcpy(copy, w->plane->own[turn][r].data, BLOB);
        blobs_out->blob[r] = (eni_blob){copy, w->plane->own[turn][r].bytes};
    }
    return EN_OK;
}

/* ---- one rank ---- */

typedef struct trial {
    plane *plane;
    int ngpus, has_group, cannot_map; /* rank; -1: all can */
    const char *spec;
    uint32_t flags;
    int vectors, way; /* that must be chosen */
    const char *says; /* why */
} trial;

static int meets(int rank, int n, cluster_board *board, void *user)
{
    const trial *t = user;
    (void)board;
    static eni_peer peers[MAX_RANKS];
    world w = {.plane = t->plane, .rank = rank, .n = n};
    eni_world_info info = {.rank = rank, .nranks = n, .peers = peers};
    eni_gpus *gpus = NULL;
    eni_gpu_choice choice = {0};
    machine.count = t->ngpus;
    machine.has_group = t->has_group;
    machine.rank = rank;
    machine.cannot_map = t->cannot_map;
    for (int r = 0; r < n; r++)
        peers[r] = (eni_peer){.rank = r, .pid = 1000 + r, .host = "here", .host_id = "the same"};
    const eni_gpus_config config = {.spec = t->spec,
                                    .device = &device,
                                    .world = {.rank = rank, .nranks = n, .local_rank = rank, .nlocal = n},
                                    .info = &info,
                                    .gather = gather,
                                    .user = &w};
    CLUSTER_CHECK(eni_gpus_open(&config, &gpus) == EN_OK);
    const int index = strcmp(t->spec, "cuda") == 0 ? rank % t->ngpus : atoi(t->spec + 5);
    CLUSTER_CHECK(gpus->facts.index == index);
    for (int r = 0; r < n; r++)
        CLUSTER_CHECK(gpus->of_rank[r].index == (strcmp(t->spec, "cuda") == 0 ? r % t->ngpus : index));
    CLUSTER_CHECK((strstr(said, "rank 1 ") != NULL && strstr(said, "7.0 of 8.0 GB") != NULL) == (rank == 0));
    const eni_gpu_facts_of_run facts = {.strategy_flags = t->flags, .accumulate = 1};
    CLUSTER_CHECK(eni_gpus_choose(gpus, NULL, &facts, &choice) == EN_OK);
    CLUSTER_CHECK(choice.vectors == t->vectors && choice.way == t->way &&
                  strstr(choice.why, t->says) != NULL);
    CLUSTER_CHECK(machine.allocated == 0); /* what was tried is given back */

    /* two ranks share each GPU at most; the other users are not ours */
    char users[128];
    snprintf(users, sizeof users, "%d:500000000,77:1", 1000 + rank);
    set_users(users);
    if (rank == 1) set_users(NULL);
    eni_gpus_use use;
    eni_gpus_look(gpus, &use);
    CLUSTER_CHECK(use.is_known == (rank != 1));
    CLUSTER_CHECK(use.free_bytes == 7000000000u - (rank != 1 ? 500000001 : 0));
    CLUSTER_CHECK(use.others == (rank != 1) && use.pid == (rank != 1 ? 77 : 0));
    CLUSTER_CHECK(use.own_bytes == (rank != 1 ? 500000000u : 0));
    said[0] = 0;
    CLUSTER_CHECK(eni_gpus_report(gpus) == EN_OK);
    CLUSTER_CHECK((strstr(said, "rank 0 ") != NULL && strstr(said, "0.50 GB") != NULL) == (rank == 0));
    CLUSTER_CHECK((strstr(said, "pid 77") != NULL) == (rank == 0));

    /* pids of another container's numbering: numbers are compared */
    int sharers = 0;
    for (int r = 0; r < n; r++)
        sharers += gpus->of_rank[r].index == index;
    users[0] = 0;
    for (int i = 0; i < sharers; i++)
        eni_text_add(users, sizeof users, "%s%d:1", i > 0 ? "," : "", 20 + i);
    set_users(users);
    eni_gpus_look(gpus, &use);
    CLUSTER_CHECK(use.is_known && use.others == 0 && use.own_bytes == 0);
    eni_text_add(users, sizeof users, ",%d:1", 20 + sharers);
    set_users(users);
    eni_gpus_look(gpus, &use);
    CLUSTER_CHECK(use.others == 1 && use.pid == 0);
    set_users(""); /* not even ourselves */
    eni_gpus_look(gpus, &use);
    CLUSTER_CHECK(!use.is_known && use.others == 0);
    eni_gpus_close(gpus);
    return 0;
}

static void run(trial t, int n)
{
    struct cluster cluster;
    char count[8];
    said[0] = 0;
    eni_log_set_sink(listen_in, NULL);
    set_users("");
    snprintf(count, sizeof count, "%d", t.ngpus);
    setenv("FAKE_GPUS", count, 1);
    setenv("FAKE_GPU_MEMORY", "7000000000", 1);
    assert_int_equal(eni_nvml_list(NULL, -1, &driver), EN_OK);
    t.plane = mmap(NULL, sizeof *t.plane, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(t.plane != MAP_FAILED);
    assert_int_equal(cluster_run(&cluster, n, meets, &t, 30000), 0);
    cluster_close(&cluster);
    munmap(t.plane, sizeof *t.plane);
    eni_log_set_sink(NULL, NULL);
}

/* ---- the tests ---- */

/* The GPUs that rank `local` of `nlocal` gets of `count`, "2,3"; if it gets no GPU, the refusal. */
static const char *pick(const char *spec, int n, bool is_shared, int count, int local, int nlocal)
{
    static char text[256];
    int32_t index[ENI_DEVICES_MAX];
    int taken = 0;
    const eni_gpu_want want = {.spec = spec, .n = n, .is_shared = is_shared};
    text[0] = said[0] = 0;
    if (eni_gpu_pick(&want, count, local, nlocal, index, &taken) != EN_OK) return said;
    for (int i = 0; i < taken; i++)
        snprintf(text + strlen(text), 8, "%s%d", i > 0 ? "," : "", (int)index[i]);
    return text;
}

/* The refusal names all three. */
static void refused(const char *refusal, const char *flag, const char *found, const char *remedy)
{
    assert_non_null(strstr(refusal, flag));
    assert_non_null(strstr(refusal, found));
    assert_non_null(strstr(refusal, remedy));
}

static void test_pick(void **state)
{
    (void)state;
    eni_log_set_sink(listen_in, NULL);
    assert_string_equal(pick("cuda", 1, false, 4, 1, 2), "2");
    assert_string_equal(pick("cuda", 1, false, 2, 2, 3), "0");
    assert_string_equal(pick("cuda:3", 1, false, 4, 0, 4), "3");
    refused(pick("cuda:4", 1, false, 4, 0, 1), "--device=cuda:4", "4 GPUs", "cuda:3");
    refused(pick("cuda:1", 1, false, 1, 0, 1), "--device=cuda:1", "one GPU", "cuda:0");
    const eni_gpu_want one = {.spec = "cuda", .n = 1}, third = {.spec = "cuda:2", .n = 1},
                       three = {.spec = "cuda", .n = 3};
    machine.count = 2;
    assert_int_equal(eni_gpu_check(&one, 1, &device, NULL), EN_OK);
    assert_int_equal(eni_gpu_check(&third, 1, &device, NULL), EN_EINVAL);
    assert_int_equal(eni_gpu_check(&three, 1, &device, NULL), EN_EINVAL);
    machine.count = 0;
    assert_int_equal(eni_gpu_check(&one, 1, &device, NULL), EN_EUNSUPPORTED);
    eni_log_set_sink(NULL, NULL);
}

static void test_pick_several(void **state)
{
    (void)state;
    eni_log_set_sink(listen_in, NULL);
    assert_string_equal(pick("cuda", 2, false, 8, 1, 2), "2,3");
    assert_string_equal(pick("cuda:all", 2, false, 8, 1, 2), "2,3");
    assert_string_equal(pick("cuda:3,cuda:0", 2, false, 4, 0, 1), "3,0");
    refused(pick("cuda:3,cuda:4", 2, false, 4, 0, 1), "--device=cuda:3,cuda:4", "4 GPUs", "cuda:0");
    /* all that are seen */
    assert_string_equal(pick("cuda", 0, false, 3, 0, 1), "0,1,2");
    assert_string_equal(pick("cuda:all", 0, false, 5, 1, 2), "2,3");
    assert_string_equal(pick("cuda", 0, false, 1, 1, 2), "0");
    /* too few */
    refused(pick("cuda", 3, true, 2, 0, 1), "--device=cuda", "3 GPUs", " 2 ");
    refused(pick("cuda", 2, false, 4, 0, 3), "4 GPUs", "2 of its 3 ranks", "--gpu-sharing");
    assert_string_equal(pick("cuda", 2, true, 4, 2, 3), "0,1");
    refused(pick("cuda:0,cuda:1", 2, false, 4, 0, 2), "--device=cuda:0,cuda:1", " 2 ", "--gpu-sharing");
    assert_string_equal(pick("cuda:0,cuda:1", 2, true, 4, 1, 2), "0,1");
    eni_log_set_sink(NULL, NULL);
}

static void test_choices(void **state)
{
    (void)state;
    const trial shared = {.ngpus = 1,
                          .cannot_map = -1,
                          .spec = "cuda",
                          .flags = EN_SHARED_PARAMS,
                          .vectors = ENI_VECTORS_ON_GPU,
                          .way = ENI_GPU_SHARED,
                          .says = "CUDA IPC"};
    run(shared, 2);
    run(shared, 5);
    trial t = shared;
    t.cannot_map = 2; /* one of them is enough, and all know it */
    t.vectors = ENI_VECTORS_STAGED;
    t.way = 0;
    t.says = "CUDA IPC";
    run(t, 4);
    t = shared;
    t.ngpus = 4;
    t.spec = "cuda:3";
    run(t, 2);
    t = (trial){.ngpus = 2,
                .has_group = 1,
                .cannot_map = -1,
                .spec = "cuda",
                .flags = EN_SHARED_PARAMS,
                .vectors = ENI_VECTORS_ON_GPU,
                .way = ENI_GPU_GROUP,
                .says = "NCCL"};
    run(t, 2);
    t.vectors = ENI_VECTORS_STAGED;
    t.way = 0;
    t.says = "NCCL";
    run(t, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pick), cmocka_unit_test(test_pick_several),
                                       cmocka_unit_test(test_choices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
