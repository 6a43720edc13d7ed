/* gpus.c - which rank has which GPU: gathered, printed, compared; CUDA IPC is tried between neighbours. */
#include "worker/gpu/gpus.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/nvml.h"
#include "core/try.h"
#include "ops/device.h"

enum { USERS_MAX = 256 };

/* A rank's report of its GPU, sent as it is: all ranks are of one version (run_spec.h), so of one layout. */
typedef struct gpu_report {
    char uuid[48], name[64];
    uint64_t memory_bytes, free_bytes;
    int32_t index;
    uint8_t has_group;
} gpu_report;

/* ---- what each rank has ---- */

static en_status look_at_own(eni_gpus *g)
{
    const eni_gpus_config *c = &g->config;
    const eni_gpu_want want = {.spec = c->spec, .n = 1};
    int32_t count = 0, index[ENI_DEVICES_MAX];
    int n;
    EN_TRY(g->gpu->count(c->host, &count));
    EN_TRY(eni_gpu_pick(&want, count, c->world.local_rank, c->world.nlocal, index, &n));
    g->facts.size = sizeof g->facts;
    return g->gpu->facts(c->host, index[0], &g->facts);
}

static void describe_own(const eni_gpus *g, gpu_report *own)
{
    int nusers;
    *own = (gpu_report){.memory_bytes = g->facts.memory_bytes,
                        .index = g->facts.index,
                        .has_group = g->gpu->group_version()[0] != 0};
    snprintf(own->uuid, sizeof own->uuid, "%s", g->facts.uuid);
    snprintf(own->name, sizeof own->name, "%s", g->facts.name);
    (void)eni_nvml_look(own->uuid, NULL, 0, &nusers, &own->free_bytes);
}

/* Gathers `bytes` of every rank into all_out, (nranks) of them. */
static en_status gather(const eni_gpus *g, const char *tag, const void *own, size_t bytes, void *all_out)
{
    eni_blobs blobs = {0};
    EN_TRY(g->config.gather(g->config.user, tag, own, bytes, &blobs));
    en_status st = EN_OK;
    for (int r = 0; r < g->config.world.nranks && st == EN_OK; r++) {
        if (blobs.blob[r].bytes == bytes) {
            memcpy((uint8_t *)all_out + (size_t)r * bytes, blobs.blob[r].data, bytes);
            continue;
        }
        st = eni_fail(EN_EPROTO, "gpu", "rank %d sent %zu bytes about its GPU, expected %zu", r,
                      blobs.blob[r].bytes, bytes);
    }
    eni_blobs_fini(&blobs);
    return st;
}

static void print_table(const eni_gpus *g, const gpu_report *all)
{
    const int n = g->config.world.nranks;
    for (int r = 0; r < n && n > 1 && g->config.world.rank == 0; r++)
        eni_info("gpu", "rank %-3d %-16s cuda:%-2d %.12s  %s, %.1f of %.1f GB free", r, g->of_rank[r].host,
                 (int)all[r].index, all[r].uuid, all[r].name, (double)all[r].free_bytes * 1e-9,
                 (double)all[r].memory_bytes * 1e-9);
}

static en_status meet(eni_gpus *g)
{
    const eni_gpus_config *c = &g->config;
    gpu_report own, *all = eni_alloc_array((size_t)c->world.nranks, sizeof *all);
    if (all == NULL) return EN_ENOMEM;
    describe_own(g, &own);
    const en_status st = gather(g, "GPUs", &own, sizeof own, all);
    for (int r = 0; r < c->world.nranks && st == EN_OK; r++) {
        gpu_report *t = &all[r];
        eni_rank_gpu *its = &g->of_rank[r];
        t->uuid[sizeof t->uuid - 1] = t->name[sizeof t->name - 1] = 0;
        its->index = t->index;
        its->has_group = t->has_group;
        snprintf(its->uuid, sizeof its->uuid, "%s", t->uuid);
        snprintf(its->host, sizeof its->host, "%s", c->info->peers[r].host);
        snprintf(its->host_id, sizeof its->host_id, "%s", c->info->peers[r].host_id);
    }
    if (st == EN_OK) print_table(g, all);
    eni_free(all);
    return st;
}

/* ---- lifetime ---- */

en_status eni_gpus_open(const eni_gpus_config *config, eni_gpus **gpus_out)
{
    en_status st = EN_ENOMEM;
    eni_gpus *g = eni_alloc(sizeof *g);
    if (g == NULL) return EN_ENOMEM;
    g->config = *config;
    g->gpu = config->device->gpu;
    g->of_rank = eni_alloc_array((size_t)config->world.nranks, sizeof *g->of_rank);
    if (g->of_rank == NULL) goto close_gpus;
    EN_TRY_GOTO(look_at_own(g), close_gpus);
    EN_TRY_GOTO(meet(g), close_gpus);
    *gpus_out = g;
    return EN_OK;
close_gpus:
    eni_gpus_close(g);
    return st;
}

void eni_gpus_close(eni_gpus *g)
{
    if (g != NULL) eni_free(g->of_rank);
    eni_free(g);
}

/* Both compute on the same GPU. */
static bool meet_on_one(const eni_gpus *g, int a, int b)
{
    return strcmp(g->of_rank[a].uuid, g->of_rank[b].uuid) == 0;
}

/* ---- can ranks reach each other's memory ---- */

typedef struct probe {
    uint8_t handle[EN_GPU_HANDLE];
    uint8_t is_exported;
} probe;

/* The next rank on this rank's GPU; itself if it is alone there. */
static int neighbour(const eni_gpus *g)
{
    const int n = g->config.world.nranks, rank = g->config.world.rank;
    int r = (rank + 1) % n;
    while (!meet_on_one(g, r, rank))
        r = (r + 1) % n;
    return r;
}

/* A process cannot map its own memory: each maps its neighbour's. */
static uint8_t can_map(const eni_gpus *g, en_ctx *ctx, const probe *all)
{
    void *memory = NULL;
    const int r = neighbour(g);
    if (r == g->config.world.rank) return 1;
    if (!all[r].is_exported || g->gpu->import_memory(ctx, all[r].handle, &memory) != EN_OK) return 0;
    g->gpu->release_memory(ctx, memory);
    return 1;
}

static en_status exchange_probes(eni_gpus *g, en_ctx *ctx, void *memory, probe *all, uint8_t *can)
{
    probe own = {0};
    own.is_exported = g->gpu->export_memory(ctx, memory, own.handle) == EN_OK;
    EN_TRY(gather(g, "GPU memory of others", &own, sizeof own, all));
    const uint8_t ours = can_map(g, ctx, all);
    EN_TRY(gather(g, "GPU memory mapped", &ours, sizeof ours, can)); /* from here on nobody maps the probe */
    for (int r = 0; r < g->config.world.nranks; r++)
        g->of_rank[r].can_share = can[r];
    return EN_OK;
}

static en_status try_sharing(eni_gpus *g, en_ctx *ctx)
{
    const size_t n = (size_t)g->config.world.nranks;
    void *memory = NULL;
    probe *all = eni_alloc_array(n, sizeof *all);
    uint8_t *can = eni_alloc_array(n, sizeof *can);
    en_status st = all != NULL && can != NULL ? EN_OK : EN_ENOMEM;
    if (st == EN_OK) st = g->config.device->alloc(ctx, EN_GPU_EXPORT_MIN, &memory);
    if (st == EN_OK) st = exchange_probes(g, ctx, memory, all, can);
    g->config.device->free(ctx, memory);
    eni_free(all);
    eni_free(can);
    return st;
}

en_status eni_gpus_choose(eni_gpus *g, en_ctx *ctx, const eni_gpu_facts_of_run *facts,
                          eni_gpu_choice *choice_out)
{
    eni_gpu_facts_of_run filled = *facts;
    int a, b;
    filled.nranks = g->config.world.nranks;
    filled.gpus = g->of_rank;
    if (eni_gpu_find_pair(g->of_rank, filled.nranks, &a, &b)) EN_TRY(try_sharing(g, ctx));
    return eni_gpu_choose(&filled, choice_out);
}

/* ---- other users of the GPU ---- */

/* Whether the process is a rank of this run, on this GPU. */
static bool is_rank(const eni_gpus *g, int64_t pid)
{
    for (int r = 0; r < g->config.world.nranks; r++)
        if (g->config.info->peers[r].pid == pid && meet_on_one(g, r, g->config.world.rank)) return true;
    return false;
}

static int count_ranks(const eni_gpus *g)
{
    int n = 0;
    for (int r = 0; r < g->config.world.nranks; r++)
        n += meet_on_one(g, r, g->config.world.rank);
    return n;
}

/* In a container the driver may report pids of the host, so our own is not among them and only counts can be
 * compared. Or it reports nobody, not even the ranks. */
void eni_gpus_look(const eni_gpus *g, eni_gpus_use *use_out)
{
    eni_gpu_user users[USERS_MAX];
    const int64_t own = g->config.info->peers[g->config.world.rank].pid;
    int n = 0;
    bool is_seen = false;
    *use_out = (eni_gpus_use){0};
    if (eni_nvml_look(g->facts.uuid, users, USERS_MAX, &n, &use_out->free_bytes) != EN_OK) return;
    n = n < USERS_MAX ? n : USERS_MAX;
    use_out->is_known = true;
    for (int i = 0; i < n; i++) {
        if (users[i].pid == own) {
            is_seen = true;
            use_out->own_bytes = users[i].bytes;
        } else if (!is_rank(g, users[i].pid)) {
            use_out->others++;
            use_out->pid = users[i].pid;
        }
    }
    if (is_seen) return;
    use_out->is_known = n >= count_ranks(g);
    use_out->others = use_out->is_known ? n - count_ranks(g) : 0;
    use_out->pid = 0;
}

/* ---- memory of each rank ---- */

static void print_memory(const eni_gpus *g, const eni_gpus_use *uses)
{
    const int n = g->config.world.nranks;
    for (int r = 0; r < n && n > 1; r++) {
        if (uses[r].own_bytes > 0)
            eni_info("gpu", "rank %d takes %.2f GB of cuda:%d, %.1f GB are free", r,
                     (double)uses[r].own_bytes * 1e-9, (int)g->of_rank[r].index,
                     (double)uses[r].free_bytes * 1e-9);
        else
            eni_info("gpu",
                     "rank %d has its memory on cuda:%d, %.1f GB are free (the driver does not report each "
                     "process's share)",
                     r, (int)g->of_rank[r].index, (double)uses[r].free_bytes * 1e-9);
    }
}

static void warn_of_others(const eni_gpus *g, const eni_gpus_use *uses)
{
    for (int r = 0; r < g->config.world.nranks; r++) {
        char who[48] = "";
        bool is_reported = uses[r].others == 0;
        for (int q = 0; q < r && !is_reported; q++)
            is_reported = meet_on_one(g, q, r);
        if (is_reported) continue;
        if (uses[r].pid > 0)
            snprintf(who, sizeof who, uses[r].others == 1 ? " (pid %lld)" : " (one is pid %lld)",
                     (long long)uses[r].pid);
        eni_warn("gpu", "cuda:%d of %s is used by %d other process%s%s: timings will be unreliable",
                 (int)g->of_rank[r].index, g->of_rank[r].host, uses[r].others,
                 uses[r].others == 1 ? "" : "es", who);
    }
}

en_status eni_gpus_report(eni_gpus *g)
{
    eni_gpus_use own, *uses = eni_alloc_array((size_t)g->config.world.nranks, sizeof *uses);
    if (uses == NULL) return EN_ENOMEM;
    memset(&own, 0, sizeof own);
    eni_gpus_look(g, &own);
    const en_status st = gather(g, "GPU memory in use", &own, sizeof own, uses);
    if (st == EN_OK && g->config.world.rank == 0) {
        print_memory(g, uses);
        warn_of_others(g, uses);
    }
    eni_free(uses);
    return st;
}
