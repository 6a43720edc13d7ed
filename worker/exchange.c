/* exchange.c - opens what carries vectors between ranks, and starts everybody from the same weights. */
#include <string.h>
#include <unistd.h>

#include "config/units.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/weights.h"
#include "runtime/client/endpoints.h"
#include "worker/save.h"
#include "worker/vectors.h"

static en_status open_shaper(eni_worker *w)
{
    uint64_t rate;
    int64_t delay;
    const char *wrong;
    if (w->config->net == NULL) return EN_OK;
    if (!eni_net_parse(w->config->net, &rate, &delay, &wrong)) {
        eni_error("exchange", "--net=%s: cannot read \"%s\"", w->config->net, wrong);
        return EN_EINVAL;
    }
    if (rate == 0 && delay == 0) return EN_OK;
    w->shaper = eni_shaper_new(rate, delay);
    return w->shaper == NULL ? EN_ENOMEM : EN_OK;
}

/* ---- collectives ---- */

static void trace_coll(void *user, const char *name, int64_t begin_ns, int64_t end_ns, uint32_t bucket,
                       uint64_t bytes)
{
    eni_worker *w = user;
    eni_trace_span(w->trace, ENI_TRACE_COMM, name, begin_ns, end_ns, (int64_t)w->tally.steps, (int)bucket,
                   bytes);
}

static en_status reach_peers(eni_worker *w, int64_t deadline)
{
    size_t n = (size_t)w->world.nranks;
    int abort_fd = eni_member_fd(w->member);
    w->arenas = eni_alloc_array(n, sizeof *w->arenas);
    if (w->arenas == NULL) return EN_ENOMEM;
    w->arenas[w->world.rank] = w->arena;
    if (w->choice.transport == ENI_OVER_SHM)
        return eni_mesh_arenas(&w->mesh, w->info, &w->token, w->arena, deadline, abort_fd, w->arenas);
    w->sockets = eni_alloc_array(n, sizeof *w->sockets);
    if (w->sockets == NULL) return EN_ENOMEM;
    return eni_mesh_sockets(&w->mesh, w->info, &w->token, deadline, abort_fd, w->sockets);
}

/* All buckets of a step may be under way at once. */
static en_status check_depth(const eni_worker *w)
{
    if (w->strategy->flags & EN_STORE_ON_SERVERS || w->buckets->n <= ENI_COLL_DEPTH) return EN_OK;
    eni_error("exchange",
              "--bucket-cap-mb=%g cuts the model into %u buckets, and at most %d can be under way: give a "
              "larger --bucket-cap-mb",
              w->config->bucket_cap_mb, w->buckets->n, ENI_COLL_DEPTH);
    return EN_EINVAL;
}

int eni_exchange_asked(const eni_config *config)
{
    static const int asked[] = {[ENI_ALLREDUCE_AUTO] = ENI_COLL_AUTO,
                                [ENI_ALLREDUCE_DIRECT] = ENI_COLL_DIRECT,
                                [ENI_ALLREDUCE_RING] = ENI_COLL_RING,
                                [ENI_ALLREDUCE_NAIVE] = ENI_COLL_NAIVE};
    return asked[config->allreduce];
}

const char *eni_exchange_no_shm(const eni_config *config)
{
    return config->transport == ENI_TRANSPORT_TCP ? "--transport=tcp" : NULL;
}

static en_status open_coll(eni_worker *w, int64_t deadline)
{
    eni_coll_facts facts = {.asked = eni_exchange_asked(w->config),
                            .nranks = w->world.nranks,
                            .nhosts = w->world.nhosts,
                            .is_shaped = w->shaper != NULL,
                            .no_shm = eni_exchange_no_shm(w->config)};
    EN_TRY(check_depth(w));
    EN_TRY(eni_coll_choose(&facts, &w->choice));
    EN_TRY(reach_peers(w, deadline));
    eni_coll_config config = {.rank = w->world.rank,
                              .nranks = w->world.nranks,
                              .epoch = w->world.epoch,
                              .algorithm = w->choice.algorithm,
                              .transport = w->choice.transport,
                              .sum_order = (eni_sum_order)w->config->sum_order,
                              .arenas = w->arenas,
                              .area = ENI_AREA_WORLD,
                              .sockets = w->sockets,
                              .shaper = w->shaper,
                              .trace = w->trace == NULL ? NULL : trace_coll,
                              .trace_user = w,
                              .alive = {eni_worker_alive, w, eni_member_fd(w->member)}};
    EN_TRY(eni_coll_open(&config, &w->coll));
    eni_free(w->sockets); /* the group has them now */
    w->sockets = NULL;
    /* once, where it was ours to choose and not plain from the command; what carries gradients between GPUs was
     * said when their vectors were placed */
    const int is_news = facts.asked == ENI_COLL_AUTO && !w->config->check && !eni_worker_is_on_gpu(w);
    eni_log(w->world.rank == 0 && is_news ? ENI_LOG_INFO : ENI_LOG_DEBUG,
            "exchange", "all-reduce %s: %s", eni_coll_algorithm_name(w->choice.algorithm), w->choice.why);
    return EN_OK;
}

/* ---- servers ---- */

static eni_client_endpoints endpoints_of(const eni_worker *w, uint32_t epoch)
{
    int may_share = w->shaper == NULL && w->config->transport != ENI_TRANSPORT_TCP;
    return eni_endpoints_place(w->endpoints, may_share ? w->host_id : NULL, epoch);
}

static uint64_t generation(void *user)
{
    const eni_worker *w = user;
    return eni_member_generation(w->member);
}

/* psd is back, or another server is: in other places. */
static en_status locate(void *user, eni_client_endpoints *psd_out)
{
    eni_worker *w = user;
    uint32_t epoch;
    const eni_peer *psd = eni_member_leader(w->member, &epoch);
    EN_TRY(eni_endpoints_find(psd, w->endpoints));
    *psd_out = endpoints_of(w, epoch);
    return EN_OK;
}

/* How many calls a partition keeps for a psd that comes back: those until its next state, as many again while that
 * is written, and those under way. */
static en_status calls_to_keep(const eni_worker *w, uint32_t *keep_out)
{
    const uint64_t every = w->endpoints->state_every, keep = 2 * every + 8;
    *keep_out = 0;
    if (w->config->server_timeout_ns == 0) return EN_OK;
    if (every == 0) {
        eni_error("exchange", "--server-timeout: this psd could not come back, it was started without "
                              "--state=FOLDER (entrain run: --server-restarts=N)");
        return EN_EINVAL;
    }
    *keep_out = keep < UINT32_MAX ? (uint32_t)keep : UINT32_MAX;
    return EN_OK;
}

static en_status open_client(eni_worker *w, int64_t deadline)
{
    uint32_t keep;
    w->endpoints = eni_alloc(sizeof *w->endpoints);
    if (w->endpoints == NULL) return EN_ENOMEM;
    EN_TRY(eni_endpoints_find(&w->info->leader, w->endpoints));
    EN_TRY(calls_to_keep(w, &keep));
    EN_TRY(eni_net_open(1, &w->net));
    eni_client_config config = {.net = w->net,
                                .psd = endpoints_of(w, w->world.epoch),
                                .arena = w->arena,
                                .buckets = w->buckets,
                                .token = &w->token,
                                .rank = w->world.rank,
                                .incarnation = w->info->incarnation,
                                .shaper = w->shaper,
                                .alive = eni_worker_alive,
                                .user = w,
                                .wake_fd = eni_member_fd(w->member),
                                .join_deadline_ns = deadline,
                                .keep = keep,
                                .generation = generation,
                                .locate = locate};
    EN_TRY(eni_client_open(&config, &w->client));
    if (!eni_client_is_shared(w->client)) eni_memory_keep(); /* weights come as messages */
    return EN_OK;
}

/* ---- the same start ---- */

/* Every rank's weights become rank 0's. */
static en_status broadcast_init(eni_worker *w)
{
    if (w->client != NULL && w->world.rank == 0) EN_TRY(eni_resume_store(w));
    for (uint32_t b = 0; b < w->buckets->n; b++) {
        const eni_bucket_range *range = &w->buckets->bucket[b];
        if (w->client != NULL) {
            if (w->world.rank == 0) {
                EN_TRY(eni_client_call(w->client, ENI_MSG_INIT, b, 0, EN_WEIGHTS, ENI_SLOT_PARAM,
                                       ENI_SLOT_NONE, 0, 0));
                EN_TRY(eni_client_wait(w->client, b));
            }
            EN_TRY(eni_client_call(w->client, ENI_MSG_SNAPSHOT, b, 0, EN_WEIGHTS, ENI_SLOT_NONE,
                                   ENI_SLOT_PARAM, 0, 0));
            EN_TRY(eni_client_wait(w->client, b));
        } else if (w->coll != NULL) {
            eni_coll_op op = {.op = EN_BCAST,
                              .what = EN_WEIGHTS,
                              .bucket = b,
                              .slot = ENI_SLOT_PARAM,
                              .offset = range->lo,
                              .count = range->hi - range->lo};
            EN_TRY(eni_coll_run(w->coll, &op));
        }
    }
    return eni_local_group_spread(w);
}

/* Nobody writes weights here from now on: the store's own may be read in their place. */
static en_status share_weights(eni_worker *w)
{
    int is_mapped = 0;
    if (w->client == NULL || !(w->strategy->flags & EN_ROUNDS)) return EN_OK;
    if (w->vectors != NULL) return EN_OK; /* pinned memory stays as it is mapped */
    EN_TRY(eni_client_map_weights(w->client, &is_mapped));
    eni_debug("exchange", "weights are %s", is_mapped ? "read where psd has them" : "copied from psd");
    return EN_OK;
}

/* All ranks compare the hash of what they start from: replicas that differ at step 0 never agree again. */
static en_status check_same_start(eni_worker *w, int64_t deadline)
{
    eni_blobs blobs = {0};
    EN_TRY(eni_weights_digest(&w->schema, eni_arena_at(w->arena, ENI_SLOT_PARAM, 0), w->init_sha256));
    EN_TRY(eni_member_gather(w->member, "start", w->init_sha256, sizeof w->init_sha256, &blobs, deadline));
    en_status st = EN_OK;
    for (int r = 0; r < w->world.nranks && st == EN_OK; r++)
        if (blobs.blob[r].bytes != sizeof w->init_sha256 ||
            memcmp(blobs.blob[r].data, w->init_sha256, sizeof w->init_sha256) != 0) {
            eni_error("exchange", "rank %d starts from other weights (%.*s..) than rank %d (%.8s..)", r,
                      blobs.blob[r].bytes < 8 ? (int)blobs.blob[r].bytes : 8,
                      (const char *)blobs.blob[r].data, w->world.rank, w->init_sha256);
            st = EN_EMISMATCH;
        }
    eni_blobs_fini(&blobs);
    return st;
}

/* ---- what an operation takes here, for a strategy that asks ---- */

/* All ranks leave with rank 0's bytes. */
static en_status share(void *user, void *bytes, size_t length)
{
    eni_worker *w = user;
    eni_blobs blobs = {0};
    EN_TRY(eni_member_gather(w->member, "costs", bytes, w->world.rank == 0 ? length : 0, &blobs,
                             eni_now_ns() + w->config->join_timeout_ns));
    const en_status st = blobs.blob[0].bytes == length ? EN_OK : EN_EPROTO;
    if (st == EN_OK)
        memcpy(bytes, blobs.blob[0].data, length);
    else
        eni_error("exchange", "rank 0 tells %llu bytes of what an exchange costs, not %zu",
                  (unsigned long long)blobs.blob[0].bytes, length);
    eni_blobs_fini(&blobs);
    return st;
}

en_status eni_exchange_measure(void *user, eni_costs *costs_out)
{
    eni_worker *w = user;
    const int64_t begin = eni_now_ns();
    const eni_costs_config config = {.rank = w->world.rank,
                                     .nranks = w->world.nranks,
                                     .buckets = w->buckets,
                                     .coll = w->coll,
                                     .client = w->client,
                                     .optimizer = w->optimizer,
                                     .hyper = w->hyper,
                                     .share = share,
                                     .user = w};
    EN_TRY(eni_costs_measure(&config, costs_out));
    eni_debug("exchange", "what an exchange costs here was measured in %.1f ms",
              (double)(eni_now_ns() - begin) * 1e-6);
    return EN_OK;
}

/* ---- long waits are explained by the control plane ---- */

static void wait_begins(void *user, const char *what, const char *name, uint64_t bytes, uint32_t number)
{
    eni_member_wait_begin(user, what, name, bytes, number);
}

static void wait_ends(void *user)
{
    eni_member_wait_end(user);
}

/* What a mean over all ranks would need is not open. */
static en_status check_leaders(eni_worker *w)
{
    uint32_t slot;
    int which;
    EN_TRY(eni_host_eval(w->strategy_host, &which, &slot));
    if (!eni_worker_has_leaders(w) || which != EN_EVAL_MEAN || w->world.nranks == 1) return EN_OK;
    eni_error("exchange", "%s evaluates the mean of all ranks' weights, and with EN_LEADERS_ARE_CLIENTS ranks of "
                          "different hosts never meet: let eval return EN_EVAL_STORE",
              w->strategy->name);
    return EN_EUNSUPPORTED;
}

/* What steps will read and write is there before the first of them. Of a peer its gradient: its weights may
 * be rank 0's by now, and its own memory given back. */
static void touch_peers(eni_arena **arenas, int n, int own)
{
    for (int r = 0; arenas != NULL && r < n; r++)
        if (r != own && arenas[r] != NULL) eni_arena_touch(arenas[r], ENI_SLOT_GRAD);
}

static void touch(const eni_worker *w)
{
    for (uint32_t s = 0; s < eni_host_slots(w->strategy_host); s++)
        if (s != ENI_SLOT_INBOX || w->client != NULL) eni_arena_touch(w->arena, s);
    if (w->world.rank == 0) eni_arena_touch(w->arena, ENI_SLOT_EVAL);
    touch_peers(w->arenas, w->world.nranks, w->world.rank);
    touch_peers(w->local.arenas, w->local.info.nranks, w->local.info.rank);
}

en_status eni_exchange_open(eni_worker *w)
{
    int64_t deadline = eni_now_ns() + w->config->join_timeout_ns;
    float *param = eni_arena_at(w->arena, ENI_SLOT_PARAM, 0);
    EN_TRY(open_shaper(w));
    if (eni_worker_has_leaders(w))
        EN_TRY(eni_local_group_open(w, w->trace == NULL ? NULL : trace_coll, deadline));
    else if (w->world.nranks > 1)
        EN_TRY(open_coll(w, deadline));
    if (eni_worker_has_store(w) && !(eni_worker_has_leaders(w) && w->world.local_rank > 0))
        EN_TRY(open_client(w, deadline));
    if (w->world.rank == 0) {
        if (w->is_resumed)
            EN_TRY(eni_resume_weights(w));
        else if (w->init != NULL)
            memcpy(param, w->init, w->schema.count * sizeof *param);
        else
            en_schema_init_param(&w->schema, (uint64_t)w->config->seed, param);
    }
    eni_member_wait_begin(w->member, "broadcast", "weights of rank 0", w->schema.count * sizeof(float), 1);
    en_status st = broadcast_init(w);
    eni_member_wait_end(w->member);
    EN_TRY(st);
    EN_TRY(check_same_start(w, deadline));
    EN_TRY(eni_vectors_open(w));
    w->waits = (eni_waits){wait_begins, wait_ends, w->member};
    eni_host_config config = {.strategy = w->strategy,
                              .options = w->options,
                              .world = w->world,
                              .seed = (uint64_t)w->config->seed,
                              .buckets = w->buckets,
                              .arena = w->arena,
                              .coll = w->coll,
                              .coll_algorithm = w->choice.algorithm,
                              .local = w->local.coll,
                              .local_algorithm = w->local.choice.algorithm,
                              .client = w->client,
                              .has_store = eni_worker_has_store(w),
                              .optimizer = w->optimizer,
                              .hyper = w->hyper,
                              .schedule = w->schedule,
                              .trace = w->trace,
                              .waits = &w->waits,
                              .gpu = eni_vectors_steps(w),
                              .measure = eni_exchange_measure,
                              .measure_user = w,
                              .alive_status = eni_worker_alive,
                              .alive_user = w};
    EN_TRY(eni_host_open(&config, &w->strategy_host));
    EN_TRY(check_leaders(w));
    EN_TRY(eni_resume_state(w));
    eni_member_wait_begin(w->member, "barrier", "one copy of the weights", 0, 1);
    st = eni_host_share_params(w->strategy_host);
    eni_member_wait_end(w->member);
    EN_TRY(st);
    EN_TRY(share_weights(w));
    touch(w);
    return eni_vectors_start(w);
}

void eni_exchange_close(eni_worker *w)
{
    eni_host_close(w->strategy_host);
    eni_client_close(w->client);
    eni_net_close(w->net);
    eni_free(w->endpoints);
    eni_local_group_close(w);
    eni_coll_close(w->coll);
    for (int r = 0; w->sockets != NULL && r < w->world.nranks; r++)
        if (w->sockets[r] >= 0) close(w->sockets[r]);
    for (int r = 0; w->arenas != NULL && r < w->world.nranks; r++)
        if (r != w->world.rank) eni_arena_close(w->arenas[r]);
    eni_free(w->sockets);
    eni_free(w->arenas);
    eni_shaper_free(w->shaper);
}
