/* team.c - see team.h. */
#include "worker/parallel/team.h"

#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { SLICE_MS = 20, CHUNKS_OF_A_STAGE = 4 };

/* ---- which devices --------------------------------------------------------------------------------------- */

bool eni_team_is_wanted(const eni_config *c)
{
    return c->parallel != ENI_PARALLEL_NONE || c->micro_batches > 1;
}

int eni_team_chunks(const eni_config *c, int ndevices)
{
    const int64_t asked = c->micro_batches > 0 ? c->micro_batches : CHUNKS_OF_A_STAGE * (int64_t)ndevices;
    if (c->parallel == ENI_PARALLEL_DATA) return ndevices;
    if (c->parallel == ENI_PARALLEL_MODEL) return 1;
    if (c->parallel == ENI_PARALLEL_NONE) return c->micro_batches > 0 ? (int)c->micro_batches : 1;
    return (int)(asked < c->batch_size ? asked : c->batch_size);
}

/* Where the network is cut. */
static en_status choose_parts(eni_worker *w)
{
    eni_team *t = w->team;
    const en_schema *schema = &w->rank.job.schema;
    int n = 0;
    if (w->config->split != NULL && !t->are_replicas) {
        EN_TRY(eni_split_at(schema, w->config->split, &n, t->parts));
        if (n == t->n) return EN_OK;
        return eni_fail(EN_EINVAL, "worker", "--split=%s cuts %s into %d stages, but there are %d devices",
                        w->config->split, schema->network->name, n, t->n);
    }
    if (!t->are_replicas) return eni_split_balance(schema, t->n, t->parts);
    for (int d = 0; d < t->n; d++)
        EN_TRY(eni_split_balance(schema, 1, &t->parts[d]));
    return EN_OK;
}

static en_status open_stages(eni_worker *w, const int *index)
{
    eni_team *t = w->team;
    const eni_config *c = w->config;
    const eni_stages_options options = {.schema = &w->rank.job.schema,
                                        .device = t->device,
                                        .plugin_dir = w->plugin_dir,
                                        .n = t->n,
                                        .parts = t->parts,
                                        .are_replicas = t->are_replicas,
                                        .kind = c->pipeline == ENI_PIPELINE_GPIPE ? ENI_GPIPE : ENI_1F1B,
                                        .nchunks = t->nchunks,
                                        .index = index,
                                        .threads = w->threads,
                                        .gpu_timeout_ns = c->gpu_timeout_ns,
                                        .flags = eni_config_open_flags(c),
                                        .dtype = eni_config_dtype(c)};
    return eni_stages_open(&options, &t->stages);
}

/* Sets all that depends on the number of devices. */
static en_status choose_sizes(eni_worker *w, int ndevices)
{
    eni_team *t = w->team;
    t->n = ndevices;
    t->are_replicas =
        w->config->parallel == ENI_PARALLEL_DATA && ndevices > 1; /* one replica is the plain run */
    t->nchunks = eni_team_chunks(w->config, ndevices);
    const size_t n = (size_t)t->nchunks + ENI_STAGES_AT_ONCE;
    t->chunk = eni_alloc_array(n, sizeof *t->chunk);
    t->score = eni_alloc_array(n, sizeof *t->score);
    if (t->chunk == NULL || t->score == NULL) return EN_ENOMEM;
    return choose_parts(w);
}

/* The GPUs to pick: their numbers depend on the other ranks of this host, so they follow after the join. */
static eni_gpu_want wanted_gpus(const eni_worker *w)
{
    return (eni_gpu_want){
        .spec = w->config->device, .n = eni_config_ndevices(w->config), .is_shared = w->config->gpu_sharing};
}

en_status eni_team_open(eni_worker *w, int cores)
{
    eni_device_list list;
    const eni_config *c = w->config;
    eni_team *t = w->team = eni_alloc(sizeof *t);
    if (t == NULL) return EN_ENOMEM;
    EN_TRY(eni_device_list_parse(c->device, w->plugin_dir, &list));
    memcpy(t->device, list.kind, sizeof t->device);
    w->device.ops = eni_ref_device(); /* vectors lie in host memory */
    const int n = eni_config_ndevices(c), share = cores / (n > 0 ? n : 1);
    w->threads = c->threads > 0 ? (int)c->threads : share > 0 ? share : 1;
    if (eni_device_is_gpu(c->device)) {
        const eni_gpu_want want = wanted_gpus(w);
        const en_device *table;
        EN_TRY(eni_device_load(list.kind, w->plugin_dir, &table));
        t->gpu = table->gpu;
        return eni_gpu_check(&want, c->local_size > 0 ? (int)c->local_size : 1, table, eni_device_host());
    }
    EN_TRY(choose_sizes(w, n));
    return open_stages(w, list.n > 0 ? list.index : NULL);
}

en_status eni_team_open_gpus(eni_worker *w)
{
    const eni_gpu_want want = wanted_gpus(w);
    int32_t count, index[ENI_DEVICES_MAX];
    int n;
    if (w->team->gpu == NULL) return EN_OK;
    EN_TRY(w->team->gpu->count(eni_device_host(), &count));
    EN_TRY(eni_gpu_pick(&want, count, w->rank.world.local_rank, w->rank.world.nlocal, index, &n));
    EN_TRY(choose_sizes(w, n));
    return open_stages(w, index);
}

en_status eni_team_prepare(eni_worker *w, const uint64_t *sizes, int n)
{
    eni_team *t = w->team;
    const eni_split *split = w->dataset->split;
    const uint64_t most = split[ENI_TEST].count > split[ENI_HOLDOUT].count ? split[ENI_TEST].count
                                                                           : split[ENI_HOLDOUT].count,
                   asked = (uint64_t)w->config->eval_batch_size;
    for (int i = 0; i < n; i++)
        EN_TRY(eni_stages_prepare(t->stages, sizes[i], EN_MODEL_TRAIN));
    if (w->rank.world.rank != 0 || most == 0) return EN_OK;
    return eni_stages_prepare(t->stages, asked < most ? asked : most, EN_MODEL_EVALUATE);
}

en_status eni_team_start(void *worker)
{
    eni_worker *w = worker;
    eni_team *t = w->team;
    const int each = t->n * w->threads, nlocal = w->rank.world.nlocal > 0 ? w->rank.world.nlocal : 1;
    int first = t->n > 1 && t->gpu == NULL ? w->rank.world.local_rank * each : -1;
    if (first >= 0 && nlocal * each > eni_host_info_cores()) {
        if (w->rank.world.rank == 0)
            eni_info("worker", "%d threads on %d cores: devices share cores", nlocal * each,
                     eni_host_info_cores());
        first = -1;
    }
    if (t->are_replicas) {
        t->own = eni_alloc_array((size_t)t->n, sizeof *t->own);
        for (int d = 0; t->own != NULL && d < t->n; d++) {
            t->own[d] = eni_alloc_array(w->rank.job.schema.count, sizeof **t->own);
            if (t->own[d] == NULL) return EN_ENOMEM;
        }
        if (t->own == NULL) return EN_ENOMEM;
    }
    if (t->nchunks > 1 && w->dataset->sample_floats % ENI_LINE_FLOATS != 0) {
        t->moved = eni_alloc_array(
            (size_t)t->nchunks,
            eni_round_up(eni_team_chunk_rows(w) * w->dataset->sample_floats, ENI_LINE_FLOATS) *
                sizeof *t->moved);
        if (t->moved == NULL) return EN_ENOMEM;
    }
    return eni_stages_start(t->stages, first, &w->straggler, w->rank.records.trace);
}

void eni_team_close(eni_worker *w)
{
    eni_team *t = w->team;
    if (t == NULL) return;
    if (!eni_stages_close(t->stages)) w->gpu.is_stuck = true;
    if (w->gpu.is_stuck) return; /* it may still write to the memory */
    for (int d = 0; t->own != NULL && d < t->n; d++)
        eni_free(t->own[d]);
    for (int i = 0; i < ENI_STAGES_AT_ONCE; i++)
        eni_free(t->evaluated[i]);
    eni_free(t->own);
    eni_free(t->moved);
    eni_free(t->chunk);
    eni_free(t->score);
    eni_free(t);
    w->team = NULL;
}

/* ---- a pass ---------------------------------------------------------------------------------------------- */

uint64_t eni_team_chunk_rows(const eni_worker *w)
{
    const uint64_t n = (uint64_t)w->team->nchunks;
    return (w->rank.job.plan.batch + n - 1) / n;
}

/* Copies a chunk that begins inside a line (samples are not whole lines) to memory that begins on one. */
static const float *aligned(const eni_worker *w, const float *x, uint64_t rows, int chunk)
{
    const eni_team *t = w->team;
    const uint64_t floats = w->dataset->sample_floats,
                   stride = eni_round_up(eni_team_chunk_rows(w) * floats, ENI_LINE_FLOATS);
    if (t->moved == NULL) return x;
    float *to = t->moved + (uint64_t)chunk * stride;
    memcpy(to, x, rows * floats * sizeof *to);
    return to;
}

int eni_team_cut(const eni_worker *w, const en_batch *batch)
{
    const eni_team *t = w->team;
    const eni_dataset *d = w->dataset;
    const eni_micro whole = {.stride = 1, .count = (uint64_t)batch->n};
    const int n = batch->n < t->nchunks ? (int)batch->n : t->nchunks;
    uint64_t at = 0;
    for (int c = 0; c < n; c++) {
        const uint64_t rows = eni_micro_chunk(&whole, (uint64_t)t->nchunks, (uint64_t)c).count;
        t->chunk[c] = (en_batch){.n = (int64_t)rows,
                                 .x = aligned(w, batch->x + at * d->sample_floats, rows, c),
                                 .target = (const char *)batch->target + at * eni_dataset_target_bytes(d)};
        at += rows;
    }
    return n;
}

en_status eni_team_give_up(eni_worker *w, en_status why)
{
    uint32_t first = 0;
    eni_stages_abort(w->team->stages);
    while (eni_stages_await(w->team->stages, 0, eni_now_ns() + ENI_SECOND, &first) == EN_ETIMEOUT) {
    }
    return why;
}

/* The other ranks log that they wait for this one; this rank logs which of its stages it waits for. */
en_status eni_team_await(eni_worker *w, uint32_t *first)
{
    char doing[ENI_STAGES_TEXT];
    const int64_t begin = eni_now_ns();
    int64_t say = begin + 5 * ENI_SECOND;
    en_status st;
    while ((st = eni_stages_await(w->team->stages, *first, eni_now_ns() + SLICE_MS * ENI_MILLI, first)) ==
           EN_ETIMEOUT) {
        const en_status alive = eni_rank_alive(&w->rank);
        if (alive != EN_OK) return eni_team_give_up(w, alive);
        if (eni_now_ns() < say) continue;
        eni_info("worker", "rank %d has waited %.0f s for its devices: %s", w->rank.world.rank,
                 (double)(eni_now_ns() - begin) * 1e-9, eni_stages_doing(w->team->stages, doing));
        say += 2 * (say - begin);
    }
    return st;
}

static en_status run_to_the_end(eni_worker *w, const eni_pass *pass)
{
    uint32_t first = w->rank.job.schema.ntensors;
    en_status st = eni_stages_begin(w->team->stages, pass);
    while (st == EN_OK)
        st = eni_team_await(w, &first);
    return st == EN_ESTOP ? EN_OK : st;
}

en_status eni_team_warm_up(eni_worker *w, const en_batch *batch, float *grad)
{
    eni_team *t = w->team;
    const eni_pass pass = {.kind = ENI_PASS_TRAIN,
                           .step = -1,
                           .nchunks = eni_team_cut(w, batch),
                           .chunk = t->chunk,
                           .param = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_PARAM, 0),
                           .grad = t->are_replicas ? t->own : &grad,
                           .score = t->score};
    return run_to_the_end(w, &pass);
}

en_status eni_team_forward(eni_worker *w, const float *param, float *state, const en_batch *batch)
{
    const eni_pass pass = {.kind = ENI_PASS_FORWARD,
                           .nchunks = 1,
                           .chunk = batch,
                           .param = param,
                           .state = state,
                           .score = w->team->score};
    return run_to_the_end(w, &pass);
}

/* Fills as many batches as may be in flight. Returns how many. */
static int fill_batches(eni_worker *w, const eni_set *set, uint64_t at)
{
    eni_team *t = w->team;
    int n = 0;
    for (; n < ENI_STAGES_AT_ONCE && at < set->count; n++) {
        const uint64_t rows = set->count - at < set->batch ? set->count - at : set->batch;
        float *x = t->evaluated[n];
        void *target = x + set->batch * (set->sample_bytes / sizeof *x);
        set->fill(set->user, at, rows, x, target);
        t->chunk[n] = (en_batch){.n = (int64_t)rows, .x = x, .target = target};
        at += rows;
    }
    return n;
}

en_status eni_team_evaluate(eni_worker *w, const float *param, const float *state, const eni_set *set,
                            eni_set_score *score_out)
{
    eni_team *t = w->team;
    eni_set_score sum = {.count = set->count};
    for (int i = 0; i < ENI_STAGES_AT_ONCE; i++) { /* all sets have the same batch sizes */
        if (t->evaluated[i] == NULL)
            t->evaluated[i] = eni_alloc(set->batch * (set->sample_bytes + set->target_bytes));
        if (t->evaluated[i] == NULL) return EN_ENOMEM;
    }
    for (uint64_t at = 0; at < set->count;) {
        EN_TRY(set->alive(set->alive_user));
        const eni_pass pass = {.kind = ENI_PASS_EVALUATE,
                               .nchunks = fill_batches(w, set, at),
                               .chunk = t->chunk,
                               .param = param,
                               .state = (float *)(uintptr_t)state, /* read only */
                               .score = t->score};
        EN_TRY(run_to_the_end(w, &pass));
        for (int i = 0; i < pass.nchunks; i++) {
            sum.loss += t->score[i].loss * (double)t->chunk[i].n;
            sum.correct += (uint64_t)t->score[i].correct;
            at += (uint64_t)t->chunk[i].n;
        }
    }
    const double n = sum.count > 0 ? (double)sum.count : 1;
    sum.loss /= n;
    sum.accuracy = (double)sum.correct / n;
    *score_out = sum;
    return EN_OK;
}
