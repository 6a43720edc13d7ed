/* pushpull_worker.c - see pushpull.h. A worker does the same as the product does for a strategy, with the
 * same client, arena, buckets and control connection; only the gradient comes from a table. */
#include "bench/pushpull.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "entrain/strategy.h"
#include "ops/mean.h"
#include "ops/optimizer.h"
#include "runtime/client/client.h"
#include "runtime/control/member.h"
#include "runtime/net/host_info.h"
#include "runtime/spec/buckets.h"
#include "runtime/store/store.h"

enum { PERIOD = PUSHPULL_PERIOD, PUSH = 1, JOIN_S = 30, KEY_VALUES = 19 };
static const float rate = 1.0f / 64;

typedef struct worker {
    const pushpull_trial *trial;
    int rank;
    eni_member *member;
    eni_net *net;
    eni_arena *arena;
    eni_client *client;
    en_model_tensor vector; /* the model of the buckets */
    eni_buckets *buckets;
    float *param, *grad;                      /* (count) */
    float want[PERIOD], momentum[PERIOD];     /* the expected weights, by ops/ alone */
    float gradient[PUSHPULL_WORKERS][PERIOD]; /* of all ranks in this round */
} worker;

/* ---- the known sums ---- */

static void make_gradients(worker *w, int round)
{
    for (int r = 0; r < w->trial->workers; r++)
        for (int i = 0; i < PERIOD; i++)
            w->gradient[r][i] = (float)((i * 31 + round * 17 + r * 57) % 101 % 16);
}

static void tile(float *vector, uint64_t count, const float *pattern)
{
    for (uint64_t at = 0; at < count; at += PERIOD)
        memcpy(vector + at, pattern, (count - at < PERIOD ? count - at : PERIOD) * sizeof *vector);
}

static void step_reference(worker *w, int first, int last)
{
    const float *src[PUSHPULL_WORKERS];
    uint64_t nsamples[PUSHPULL_WORKERS];
    float mean[PERIOD], *slots[] = {w->momentum};
    for (int r = first; r < last; r++) {
        src[r - first] = w->gradient[r];
        nsamples[r - first] = 1;
    }
    const eni_hyper hyper = {.lr = rate, .momentum = (float)w->trial->momentum};
    eni_mean_ranks(mean, src, nsamples, last - first, ENI_SUM_RANK, PERIOD, 0, PERIOD);
    eni_optimizer_find("sgd")->step(w->want, slots, mean, PERIOD, &hyper);
}

/* One step on the mean of all ranks, or one on each gradient. */
static void advance_reference(worker *w)
{
    if (w->trial->is_sync) {
        step_reference(w, 0, w->trial->workers);
        return;
    }
    for (int r = 0; r < w->trial->workers; r++)
        step_reference(w, r, r + 1);
}

static uint64_t count_wrong(const worker *w)
{
    const uint64_t count = w->trial->count;
    uint64_t wrong = 0;
    for (uint64_t at = 0; at < count; at += PERIOD) {
        const uint64_t n = count - at < PERIOD ? count - at : PERIOD;
        if (memcmp(w->param + at, w->want, n * sizeof *w->want) == 0) continue;
        for (uint64_t i = 0; i < n; i++)
            wrong += w->param[at + i] != w->want[i];
    }
    return wrong;
}

/* ---- joining ---- */

uint32_t pushpull_buckets(const pushpull_trial *trial)
{
    return (uint32_t)((trial->count + trial->bucket_size - 1) / trial->bucket_size);
}

/* As a training worker's, of a model that is one tensor. */
static en_status lay_out_buckets(worker *w)
{
    const pushpull_trial *t = w->trial;
    w->vector = (en_model_tensor){.name = "vector", .count = t->count};
    return eni_buckets_new(&w->vector, 1, t->count, t->bucket_size * sizeof(float), &w->buckets);
}

/* "count,count,.." and "lo,lo,..": freed with eni_free, NULL when out of memory. */
static char *list_buckets(const worker *w, int of_offsets)
{
    const size_t room = (size_t)w->buckets->n * 21 + 1;
    char *text = eni_alloc(room);
    size_t used = 0;
    for (uint32_t b = 0; text && b < w->buckets->n; b++) {
        const eni_bucket_range *range = &w->buckets->bucket[b];
        used += (size_t)snprintf(text + used, room - used, "%s%" PRIu64, b ? "," : "",
                                 of_offsets ? range->lo : range->hi - range->lo);
    }
    return text;
}

static en_status join(worker *w, int64_t deadline_ns)
{
    const pushpull_trial *t = w->trial;
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX], elements[24], lr[24], momentum[24];
    char *counts = list_buckets(w, 0), *offsets = list_buckets(w, 1);
    snprintf(elements, sizeof elements, "%" PRIu64, t->count);
    snprintf(lr, sizeof lr, "%.17g", (double)rate);
    snprintf(momentum, sizeof momentum, "%.17g", (double)(float)t->momentum);
    const eni_key_value key_values[KEY_VALUES] = {{"strategy-name", t->strategy},
                                                  {"strategy-options", ""},
                                                  {"buckets", counts},
                                                  {"bucket-offsets", offsets},
                                                  {"elements", elements},
                                                  {"optimizer", "sgd"},
                                                  {"momentum", momentum},
                                                  {"weight-decay", "0"},
                                                  {"nesterov", "0"},
                                                  {"lr", lr},
                                                  {"lr-schedule", "constant"},
                                                  {"lr-warmup", "0"},
                                                  {"lr-step", "0"},
                                                  {"lr-gamma", "1"},
                                                  {"total-samples", "0"},
                                                  {"sum-order", "rank"},
                                                  {"seed", "1"},
                                                  {"budget", "0"},
                                                  {"net", ""}};
    eni_host_info_name(host);
    en_status st = counts && offsets ? eni_host_info_id(NULL, host_id) : EN_ENOMEM;
    const eni_member_config config = {.leader = t->psd,
                                      .token = t->token,
                                      .rank = w->rank,
                                      .nranks = t->workers,
                                      .host = host,
                                      .host_id = host_id,
                                      .key_values = key_values,
                                      .nkey_values = KEY_VALUES,
                                      .join_deadline_ns = deadline_ns,
                                      .abort_fd = -1};
    if (st == EN_OK) st = eni_member_open(&config, &w->member);
    eni_free(counts);
    eni_free(offsets);
    return st;
}

static en_status alive(void *user)
{
    const worker *w = user;
    return atomic_load(&w->trial->board->is_over) ? EN_EPEER : eni_member_status(w->member);
}

static en_status open_client(worker *w, int64_t deadline_ns)
{
    const pushpull_trial *t = w->trial;
    const eni_world_info *info = eni_member_world(w->member);
    eni_endpoints endpoints;
    const char *sharing = t->over_tcp ? NULL : info->leader.host_id;
    EN_TRY(eni_endpoints_find(&info->leader, info->epoch, sharing, &endpoints));
    if (t->over_tcp) eni_memory_keep(); /* as a training worker does */
    EN_TRY(eni_net_open(1, &w->net));
    EN_TRY(eni_arena_open(t->count, ENI_ARENA_NSLOTS, 1, &w->arena));
    w->param = eni_arena_at(w->arena, ENI_SLOT_PARAM, 0);
    w->grad = eni_arena_at(w->arena, ENI_SLOT_GRAD, 0);
    const eni_client_config config = {.net = w->net,
                                      .psd = &endpoints,
                                      .arena = w->arena,
                                      .buckets = w->buckets,
                                      .token = &t->token,
                                      .rank = w->rank,
                                      .incarnation = info->incarnation,
                                      .alive = alive,
                                      .user = w,
                                      .wake_fd = eni_member_fd(w->member),
                                      .join_deadline_ns = deadline_ns};
    EN_TRY(eni_client_open(&config, &w->client));
    if (eni_client_is_shared(w->client) == !t->over_tcp) return EN_OK;
    eni_error("pushpull", "psd and worker %d do not share memory: --transport=tcp measures the rest",
              w->rank);
    return EN_EUNSUPPORTED;
}

/* ---- the rounds ---- */

/* All buckets by message `type`, then all answers. */
static en_status exchange(worker *w, uint32_t type, int out_slot, int in_slot, int round)
{
    const int is_call = type == ENI_MSG_CALL;
    const uint32_t what = is_call ? EN_GRAD : EN_WEIGHTS, kind = is_call ? PUSH : ENI_VECTOR_WEIGHTS;
    const uint64_t nsamples = is_call ? 1 : 0; /* initial weights cover no samples */
    for (uint32_t b = 0; b < w->buckets->n; b++)
        EN_TRY(eni_client_call(w->client, b, out_slot, in_slot,
                               &(eni_header){.type = type,
                                             .kind = kind,
                                             .what = what,
                                             .nsamples = nsamples,
                                             .covered = nsamples,
                                             .step = (uint64_t)round}));
    for (uint32_t b = 0; b < w->buckets->n; b++)
        EN_TRY(eni_client_wait(w->client, b));
    return EN_OK;
}

/* Waits until every worker is ready for the round; otherwise one's time would include the rewriting of
 * another. */
static en_status meet(worker *w, int round)
{
    const eni_alive watch = {alive, w, -1};
    eni_flag *flags = w->trial->board->round;
    eni_flag_set(&flags[w->rank], (uint64_t)round + 1);
    for (int r = 0; r < w->trial->workers; r++)
        EN_TRY(eni_flag_await(&flags[r], (uint64_t)round + 1, 0, INT64_MAX, &watch));
    return EN_OK;
}

static en_status do_round(worker *w, int round, int64_t *took_ns_out)
{
    const pushpull_trial *t = w->trial;
    make_gradients(w, round);
    tile(w->grad, t->count, w->gradient[w->rank]);
    if (t->is_sync) EN_TRY(meet(w, round));
    const int64_t begin_ns = eni_now_ns();
    EN_TRY(exchange(w, ENI_MSG_CALL, ENI_SLOT_GRAD, ENI_SLOT_PARAM, round));
    *took_ns_out = eni_now_ns() - begin_ns;
    if (!t->check) return EN_OK;
    advance_reference(w);
    if (t->is_sync) t->board->wrong[w->rank] += count_wrong(w);
    return EN_OK;
}

static en_status do_rounds(worker *w)
{
    const pushpull_trial *t = w->trial;
    if (w->rank == 0) EN_TRY(exchange(w, ENI_MSG_INIT, ENI_SLOT_PARAM, ENI_SLOT_NONE, 0));
    EN_TRY(exchange(w, ENI_MSG_SNAPSHOT, ENI_SLOT_NONE, ENI_SLOT_PARAM, 0));
    int64_t begin_ns = 0, took_ns;
    bool is_mapped;
    EN_TRY(eni_client_map_weights(w->client, &is_mapped)); /* as a worker does */
    for (int round = 0; round < t->warmup + t->rounds; round++) {
        if (round == t->warmup) begin_ns = eni_now_ns();
        EN_TRY(do_round(w, round, &took_ns));
        if (round >= t->warmup) t->board->times[round - t->warmup][w->rank] = took_ns;
    }
    t->board->round_ns[w->rank] = (eni_now_ns() - begin_ns) / t->rounds;
    /* wait until all gradients are applied */
    EN_TRY(eni_member_gather(w->member, "rounds", NULL, 0, NULL, INT64_MAX));
    EN_TRY(exchange(w, ENI_MSG_SNAPSHOT, ENI_SLOT_NONE, ENI_SLOT_PARAM, 0));
    if (t->check) t->board->wrong[w->rank] += count_wrong(w);
    return eni_client_finished(w->client);
}

static en_status work(worker *w)
{
    const int64_t deadline_ns = eni_now_ns() + JOIN_S * ENI_SECOND;
    EN_TRY(lay_out_buckets(w));
    EN_TRY(join(w, deadline_ns));
    EN_TRY(open_client(w, deadline_ns));
    EN_TRY(do_rounds(w));
    EN_TRY(eni_member_gather(w->member, "result", NULL, 0, NULL, INT64_MAX));
    return eni_member_bye(w->member, eni_now_ns() + 5 * ENI_SECOND);
}

int pushpull_worker(const pushpull_trial *trial, int rank)
{
    char who[16];
    snprintf(who, sizeof who, "worker %d", rank);
    eni_log_set_who(who);
    eni_log_set_level(ENI_LOG_WARN);
    worker *w = eni_alloc(sizeof *w);
    if (!w) return 1;
    w->trial = trial;
    w->rank = rank;
    const en_status st = work(w);
    if (st != EN_OK) {
        eni_error("pushpull", "%s", en_status_str(st));
        atomic_store(&trial->board->is_over, 1);
        if (w->net) eni_net_abort(w->net);
    }
    eni_client_close(w->client);
    eni_net_close(w->net);
    eni_arena_close(w->arena);
    eni_member_close(w->member);
    eni_buckets_free(w->buckets);
    eni_free(w);
    return st == EN_OK ? 0 : 1;
}
