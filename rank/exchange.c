/* exchange.c - opens the transports between ranks, and starts all ranks from the same weights. */
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/weights.h"
#include "rank/rank.h"
#include "rank/save.h"
#include "runtime/client/client.h"

/* ---- groups: all ranks, or some by themselves ---- */

static void trace_coll(void *user, const char *name, int64_t begin_ns, int64_t end_ns, uint32_t bucket,
                       uint64_t bytes)
{
    eni_rank *self = user;
    eni_trace_span(self->records.trace, ENI_TRACE_COMM, name, begin_ns, end_ns,
                   (int64_t)self->records.stats.sum.steps, (int)bucket, bytes);
}

/* Opens the members' connections or arenas, and the group. Maps no arena that all ranks have mapped. */
static en_status open_group(eni_rank *self, eni_rank_group *g, const eni_coll_facts *facts, uint32_t area,
                            int64_t deadline)
{
    const size_t n = (size_t)g->info.nranks;
    const int abort_fd = eni_member_fd(self->member);
    const eni_rank_group *all = &self->exchange.all;
    EN_TRY(eni_coll_choose(facts, &g->choice));
    g->arenas = eni_alloc_array(n, sizeof *g->arenas);
    if (g->arenas == NULL) return EN_ENOMEM;
    g->arenas[g->info.rank] = self->exchange.arena;
    g->is_borrowing = all->coll != NULL && all->choice.transport == ENI_OVER_SHM;
    if (g->is_borrowing) {
        for (size_t i = 0; i < n; i++)
            g->arenas[i] = all->arenas[g->peers[i].rank];
    } else if (g->choice.transport == ENI_OVER_SHM) {
        EN_TRY(eni_mesh_arenas(&self->mesh, &g->info, &self->token.value, self->exchange.arena, deadline,
                               abort_fd, g->arenas));
    } else {
        g->sockets = eni_alloc_array(n, sizeof *g->sockets);
        if (g->sockets == NULL) return EN_ENOMEM;
        EN_TRY(eni_mesh_sockets(&self->mesh, &g->info, &self->token.value, deadline, abort_fd, g->sockets));
    }
    const eni_coll_config config = {.rank = g->info.rank,
                                    .nranks = g->info.nranks,
                                    .epoch = self->world.epoch,
                                    .algorithm = g->choice.algorithm,
                                    .transport = g->choice.transport,
                                    .sum_order = self->exchange.asked.sum_order,
                                    .arenas = g->arenas,
                                    .area = area,
                                    .sockets = g->sockets,
                                    .shaper = facts->is_shaped ? self->exchange.shaper : NULL,
                                    .trace = self->records.trace == NULL ? NULL : trace_coll,
                                    .trace_user = self,
                                    .alive = {eni_rank_alive, self, abort_fd}};
    EN_TRY(eni_coll_open(&config, &g->coll));
    eni_free(g->sockets); /* the group has them now */
    g->sockets = NULL;
    return EN_OK;
}

static void close_group(eni_rank_group *g)
{
    eni_coll_close(g->coll);
    for (int r = 0; g->sockets != NULL && r < g->info.nranks; r++)
        if (g->sockets[r] >= 0) close(g->sockets[r]);
    for (int r = 0; g->arenas != NULL && !g->is_borrowing && r < g->info.nranks; r++)
        if (r != g->info.rank) eni_arena_close(g->arenas[r]);
    eni_free(g->sockets);
    eni_free(g->arenas);
    eni_free(g->peers);
}

/* All buckets of a step may be under way at once, except as collectives where every rank is a client. */
static en_status check_depth(const eni_rank *self)
{
    const uint32_t flags = self->job.strategy->flags;
    const bool has_collectives = !(flags & EN_STORE_ON_SERVERS) || flags & EN_LEADERS_ARE_CLIENTS;
    if (!has_collectives || self->job.buckets->n <= ENI_COLL_DEPTH) return EN_OK;
    return eni_fail(EN_EINVAL, "exchange",
                    "--bucket-cap-mb=%g divides the model into %u buckets, but at most %d can be under way: "
                    "use a larger one, or auto",
                    self->exchange.asked.bucket_cap_mb, self->job.buckets->n, ENI_COLL_DEPTH);
}

static en_status open_all(eni_rank *self, int64_t deadline)
{
    eni_rank_group *g = &self->exchange.all;
    const eni_coll_facts facts = {.asked = self->exchange.asked.allreduce,
                                  .nranks = self->world.nranks,
                                  .nhosts = self->world.nhosts,
                                  .is_shaped = self->exchange.shaper != NULL,
                                  .no_shm = self->exchange.asked.no_shm,
                                  .naive_in_shm = self->exchange.asked.is_check};
    g->info = *self->info;
    EN_TRY(open_group(self, g, &facts, ENI_AREA_WORLD, deadline));
    /* logged once, if chosen here and not obvious from the command; the carrier between GPUs was logged when
     * their vectors were placed */
    const bool is_news =
        facts.asked == ENI_COLL_AUTO && !self->exchange.asked.is_check && self->trainer.carrier == NULL;
    eni_log(self->world.rank == 0 && is_news ? ENI_LOG_INFO : ENI_LOG_DEBUG, "exchange", "all-reduce %s: %s",
            eni_coll_algorithm_name(g->choice.algorithm), g->choice.why);
    return EN_OK;
}

/* Whether a rank is in a group of only some: in this rank's group, or the first of its group. */
static bool takes_part(const eni_rank *self, const eni_rank_group *g, int rank)
{
    const int first = self->groups[rank];
    return g == &self->exchange.leaders ? first == rank : first == self->groups[self->info->rank];
}

/* The group as a world of its own, for mesh.h; and its number of hosts. */
static en_status gather_peers(eni_rank *self, eni_rank_group *g, int *nhosts_out)
{
    const eni_world_info *all = self->info;
    g->peers = eni_alloc_array((size_t)all->nranks, sizeof *g->peers);
    if (g->peers == NULL) return EN_ENOMEM;
    g->info = *all;
    g->info.nranks = *nhosts_out = 0;
    for (int r = 0; r < all->nranks; r++) {
        if (!takes_part(self, g, r)) continue;
        int q = 0;
        while (q < g->info.nranks && strcmp(g->peers[q].host_id, all->peers[r].host_id) != 0)
            q++;
        *nhosts_out += q == g->info.nranks;
        if (r == all->rank) g->info.rank = g->info.nranks;
        g->peers[g->info.nranks++] = all->peers[r];
    }
    g->info.peers = g->peers;
    return EN_OK;
}

/* --net emulates the network between hosts, or between groups of ranks: inside one it does not apply. If
 * hosts meet only at the servers, --allreduce does not apply to them. */
static en_status open_part(eni_rank *self, eni_rank_group *g, uint32_t area, int64_t deadline)
{
    int nhosts;
    EN_TRY(gather_peers(self, g, &nhosts));
    const bool is_inside = g == &self->exchange.group;
    const eni_coll_facts facts = {.asked = eni_rank_has_leaders(self) ? ENI_COLL_AUTO
                                                                      : self->exchange.asked.allreduce,
                                  .nranks = g->info.nranks,
                                  .nhosts = nhosts,
                                  .is_shaped = self->exchange.shaper != NULL && (!is_inside || nhosts > 1),
                                  .no_shm = self->exchange.asked.no_shm};
    EN_TRY(open_group(self, g, &facts, area, deadline));
    const bool is_news = is_inside && self->world.rank == 0 && eni_rank_uses_groups(self);
    eni_log(is_news ? ENI_LOG_INFO : ENI_LOG_DEBUG, "exchange", "%s of %d, %s: %s",
            is_inside ? "in this group" : "among the first ranks of groups", g->info.nranks,
            eni_coll_algorithm_name(g->choice.algorithm), g->choice.why);
    return EN_OK;
}

/* For strategies whose hosts meet only at the servers (EN_LEADERS_ARE_CLIENTS): ranks of different hosts do
 * not connect, so there is only the group of a host. */
static en_status open_local(eni_rank *self, int64_t deadline)
{
    if (self->world.nlocal < 2) return EN_OK;
    return open_part(self, &self->exchange.group, ENI_AREA_GROUP, deadline);
}

/* The groups beside that of all ranks. A rank listens at one address for all its groups: a group begins when
 * all have opened the one before, so that no rank is taken for one of another group. */
static en_status open_groups(eni_rank *self, int64_t deadline)
{
    const en_world *w = &self->world;
    const eni_coll_op barrier = {.op = ENI_COLL_BARRIER};
    eni_coll *all = self->exchange.all.coll;
    if (w->ngroups == 1 || w->ngroups == w->nranks) return EN_OK; /* each is all ranks, or one */
    EN_TRY(eni_coll_run(all, &barrier));
    if (w->ngroup > 1) EN_TRY(open_part(self, &self->exchange.group, ENI_AREA_GROUP, deadline));
    EN_TRY(eni_coll_run(all, &barrier));
    return w->group_rank > 0 ? EN_OK : open_part(self, &self->exchange.leaders, ENI_AREA_LEADERS, deadline);
}

static en_status open_shaper(eni_rank *self)
{
    const eni_exchange_options *asked = &self->exchange.asked;
    char network[96];
    if (asked->net_bytes_per_s == 0 && asked->net_delay_ns == 0) return EN_OK;
    self->exchange.shaper = eni_shaper_new(asked->net_bytes_per_s, asked->net_delay_ns);
    eni_net_describe(asked->net_bytes_per_s, asked->net_delay_ns, network, sizeof network);
    if (self->world.rank == 0) eni_info("exchange", "emulated network: %s", network);
    return self->exchange.shaper == NULL ? EN_ENOMEM : EN_OK;
}

/* ---- servers ---- */

static en_status find_endpoints(const eni_rank *self, const eni_peer *psd, uint32_t epoch)
{
    const bool may_share = self->exchange.shaper == NULL && self->exchange.asked.no_shm == NULL;
    return eni_endpoints_find(psd, epoch, may_share ? self->host_id : NULL, self->exchange.endpoints);
}

static uint64_t generation(void *user)
{
    const eni_rank *self = user;
    return eni_member_generation(self->member);
}

/* psd, or one of its servers, came back at another address. */
static en_status locate(void *user, const eni_endpoints **psd_out)
{
    eni_rank *self = user;
    uint32_t epoch;
    const eni_peer *psd = eni_member_leader(self->member, &epoch);
    *psd_out = self->exchange.endpoints;
    return find_endpoints(self, psd, epoch);
}

/* Calls that a partition keeps for a psd that comes back: those until its next state, as many again while
 * that is written, and those under way. */
static en_status calls_to_keep(const eni_rank *self, uint32_t *keep_out)
{
    const uint64_t every = self->exchange.endpoints->state_every, keep = 2 * every + 8;
    *keep_out = 0;
    if (self->asked.server_timeout_ns == 0) return EN_OK;
    if (every == 0)
        return eni_fail(EN_EINVAL, "exchange",
                        "--server-timeout: this psd cannot come back, because it was started without "
                        "--state=FOLDER (entrain run: --server-restarts=N)");
    *keep_out = keep < UINT32_MAX ? (uint32_t)keep : UINT32_MAX;
    return EN_OK;
}

static en_status open_client(eni_rank *self, int64_t deadline)
{
    uint32_t keep;
    self->exchange.endpoints = eni_alloc(sizeof *self->exchange.endpoints);
    if (self->exchange.endpoints == NULL) return EN_ENOMEM;
    EN_TRY(find_endpoints(self, &self->info->leader, self->world.epoch));
    EN_TRY(calls_to_keep(self, &keep));
    EN_TRY(eni_net_open(1, &self->exchange.net));
    eni_client_config config = {.net = self->exchange.net,
                                .psd = self->exchange.endpoints,
                                .arena = self->exchange.arena,
                                .buckets = self->job.buckets,
                                .token = &self->token.value,
                                .rank = self->world.rank,
                                .incarnation = self->info->incarnation,
                                .shaper = self->exchange.shaper,
                                .alive = eni_rank_alive,
                                .user = self,
                                .wake_fd = eni_member_fd(self->member),
                                .join_deadline_ns = deadline,
                                .keep = keep,
                                .generation = generation,
                                .locate = locate};
    EN_TRY(eni_client_open(&config, &self->exchange.client));
    if (!eni_client_is_shared(self->exchange.client)) eni_memory_keep(); /* weights come as messages */
    return EN_OK;
}

/* ---- the same start ---- */

/* Every rank's weights become rank 0's. */
static en_status broadcast_init(eni_rank *self)
{
    const eni_coll_op op = {.op = EN_BCAST, .what = EN_WEIGHTS, .slot = ENI_SLOT_PARAM};
    if (self->exchange.client == NULL) {
        EN_TRY(eni_rank_collect(self, self->exchange.all.coll, &op));
    } else {
        if (self->world.rank == 0) EN_TRY(eni_resume_store(self));
        if (self->world.rank == 0)
            EN_TRY(eni_rank_call_store(self, ENI_MSG_INIT, 0, ENI_SLOT_PARAM, ENI_SLOT_NONE));
        EN_TRY(eni_rank_call_store(self, ENI_MSG_SNAPSHOT, 0, ENI_SLOT_NONE, ENI_SLOT_PARAM));
    }
    return eni_rank_has_leaders(self) ? eni_rank_collect(self, self->exchange.group.coll, &op) : EN_OK;
}

/* No rank writes weights here from now on: the store's own may be read in their place. */
static en_status share_weights(eni_rank *self)
{
    bool is_mapped = false;
    if (self->exchange.client == NULL || !(self->job.strategy->flags & EN_ROUNDS)) return EN_OK;
    if (self->trainer.writes_arena) return EN_OK;
    if (!self->trainer.reads_arena) return EN_OK; /* memory that a device reaches stays as it is mapped */
    EN_TRY(eni_client_map_weights(self->exchange.client, &is_mapped));
    eni_debug("exchange", "weights are %s", is_mapped ? "read where psd has them" : "copied from psd");
    return EN_OK;
}

/* All ranks compare the hash of what they start from: replicas that differ at step 0 never agree again. */
static en_status check_same_start(eni_rank *self, int64_t deadline)
{
    eni_blobs blobs = {0};
    EN_TRY(eni_weights_digest(&self->job.schema, eni_rank_flat(self, ENI_SLOT_PARAM), self->job.init_sha256));
    EN_TRY(eni_member_gather(self->member, "start", self->job.init_sha256, sizeof self->job.init_sha256,
                             &blobs, deadline));
    en_status st = EN_OK;
    for (int r = 0; r < self->nfirst && st == EN_OK; r++) {
        const eni_blob *its = &blobs.blob[r];
        if (its->bytes == 0) continue; /* it died meanwhile, as the leader has reported */
        if (its->bytes != sizeof self->job.init_sha256 ||
            memcmp(its->data, self->job.init_sha256, its->bytes) != 0)
            st = eni_fail(EN_EMISMATCH, "exchange",
                          "rank %d starts from different weights (%.*s..) than rank %d (%.8s..)", r,
                          its->bytes < 8 ? (int)its->bytes : 8, (const char *)its->data, self->world.rank,
                          self->job.init_sha256);
    }
    eni_blobs_fini(&blobs);
    return st;
}

/* ---- the cost of an operation, for a strategy that asks ---- */

/* Overwrites all ranks' bytes with rank 0's. */
static en_status share_named(eni_rank *self, const char *name, void *bytes, size_t length)
{
    eni_blobs blobs = {0};
    EN_TRY(eni_member_gather(self->member, name, bytes, self->world.rank == 0 ? length : 0, &blobs,
                             eni_now_ns() + self->asked.join_timeout_ns));
    const en_status st = blobs.blob[0].bytes == length ? EN_OK : EN_EPROTO;
    if (st == EN_OK)
        memcpy(bytes, blobs.blob[0].data, length);
    else
        eni_error("exchange", "rank 0 sent %llu bytes of its %s, expected %zu",
                  (unsigned long long)blobs.blob[0].bytes, name, length);
    eni_blobs_fini(&blobs);
    return st;
}

static en_status share(void *user, void *bytes, size_t length)
{
    return share_named(user, "costs", bytes, length);
}

/* Sets the running statistics to rank 0's, or to the rank's own if a checkpoint has those of each. */
static en_status begin_state(eni_rank *self)
{
    const eni_job *job = &self->job;
    const eni_checkpoint *c = &self->saving.past;
    const uint64_t first = (uint64_t)self->world.rank * (uint64_t)job->accumulate;
    const bool is_own = c->states != NULL && c->nstates == job->plan.world;
    if (c->states != NULL && !is_own && self->world.rank == 0)
        eni_warn(
            "exchange",
            "the checkpoint has running statistics of %llu rank%s, but this run has %llu: all go on with "
            "the mean of those, as evaluated with --bn-stats=mean",
            (unsigned long long)c->nstates, c->nstates == 1 ? "" : "s", (unsigned long long)job->plan.world);
    for (int64_t i = 0; i < job->accumulate; i++) {
        const float *state = is_own ? c->states + (first + (uint64_t)i) * job->schema.nstate : job->state;
        EN_TRY(self->trainer.ops->set_state(self->trainer.self, i, state));
    }
    return EN_OK;
}

/* No strategy sees running statistics, so they do not travel like weights: the control plane carries them. */
static en_status share_state(eni_rank *self)
{
    const size_t all = self->job.schema.nstate * sizeof(float);
    char *bytes = (char *)self->job.state;
    if (all == 0) return EN_OK;
    for (size_t at = 0; at < all && self->world.nranks > 1 && !self->is_newcomer; at += ENI_BLOB_MAX)
        EN_TRY(
            share_named(self, "statistics", bytes + at, all - at < ENI_BLOB_MAX ? all - at : ENI_BLOB_MAX));
    return begin_state(self);
}

en_status eni_exchange_measure(void *user, eni_costs *costs_out)
{
    eni_rank *self = user;
    const int64_t begin = eni_now_ns();
    if (eni_rank_has_seats(self))
        return eni_fail(EN_EUNSUPPORTED, "exchange",
                        "%s asks for the cost of an exchange, which all ranks measure together, but with "
                        "--max-workers they come and go: omit --max-workers",
                        self->job.strategy->name);
    const eni_costs_config config = {.rank = self->world.rank,
                                     .nranks = self->world.nranks,
                                     .buckets = self->job.buckets,
                                     .coll = self->exchange.all.coll,
                                     .client = self->exchange.client,
                                     .optimizer = self->job.optimizer,
                                     .hyper = self->job.hyper,
                                     .share = share,
                                     .user = self};
    EN_TRY(eni_costs_measure(&config, costs_out));
    eni_debug("exchange", "measured the cost of an exchange in %.1f ms",
              (double)(eni_now_ns() - begin) * 1e-6);
    return EN_OK;
}

/* Ranks that claim take their copies at different steps, and a lost one would keep the others waiting at the
 * end; between hosts there may be no group for a mean over all ranks. */
static en_status check_mean(const eni_rank *self)
{
    const eni_run_spec *spec = self->asked.spec;
    const char *loss = eni_key_value_find(spec->key_value, spec->n, "on-worker-loss");
    const bool may_lose = loss != NULL && strcmp(loss, "continue") == 0;
    if (eni_rank_has_seats(self) || (self->world.nranks > 1 && (self->job.is_claiming || may_lose)))
        return eni_fail(
            EN_EUNSUPPORTED, "exchange",
            "%s evaluates the mean of all ranks' weights, which needs all of them at the same step: "
            "use --assign=fixed, omit --max-workers and --on-worker-loss=continue, or let eval "
            "return EN_EVAL_STORE",
            self->job.strategy->name);
    if (!eni_rank_has_leaders(self) || self->world.nranks == 1) return EN_OK;
    return eni_fail(EN_EUNSUPPORTED, "exchange",
                    "%s evaluates the mean of all ranks' weights, but with EN_LEADERS_ARE_CLIENTS ranks of "
                    "different hosts never meet: let eval return EN_EVAL_STORE",
                    self->job.strategy->name);
}

/* No rank has trained with a mean of weights, over ranks or over time, so no rank has its statistics. */
static void warn_of_statistics(const eni_rank *self, int which)
{
    const bool is_mean = which == EN_EVAL_MEAN && self->world.nranks > 1, is_vector = which == EN_EVAL_VEC;
    if (self->job.state == NULL || self->job.is_mean || self->job.is_recomputed || self->world.rank != 0 ||
        (!is_mean && !is_vector))
        return;
    eni_warn("exchange",
             "%s evaluates %s, with which no rank has trained, with the running statistics of rank 0's own "
             "weights: use --bn-stats=recompute:N for those that fit",
             self->job.strategy->name, is_mean ? "the mean of all ranks' weights" : "a vector of its own");
}

/* Checks the model that the strategy evaluates, now that it is open. */
static en_status check_judged(const eni_rank *self)
{
    uint32_t slot;
    int which;
    EN_TRY(eni_host_eval(self->exchange.host, &which, &slot));
    if (which == EN_EVAL_MEAN) EN_TRY(check_mean(self));
    warn_of_statistics(self, which);
    return EN_OK;
}

/* Touches what steps will read of a peer before the first of them: its gradient. Its weights may be rank 0's
 * by now, and its own memory freed. */
static void touch_peers(const eni_rank_group *g)
{
    for (int r = 0; g->arenas != NULL && r < g->info.nranks; r++)
        if (r != g->info.rank && g->arenas[r] != NULL) eni_arena_touch(g->arenas[r], ENI_SLOT_GRAD);
}

static void touch(const eni_rank *self)
{
    for (uint32_t s = 0; s < eni_host_slots(self->exchange.host); s++)
        if (s != ENI_SLOT_INBOX || self->exchange.client != NULL) eni_arena_touch(self->exchange.arena, s);
    if (self->world.rank == 0) eni_arena_touch(self->exchange.arena, ENI_SLOT_EVAL);
    touch_peers(&self->exchange.all);
    if (!self->exchange.group.is_borrowing) touch_peers(&self->exchange.group);
}

en_status eni_rank_connect(eni_rank *self)
{
    int64_t deadline = eni_now_ns() + self->asked.join_timeout_ns;
    EN_TRY(eni_resume_groups(self));
    EN_TRY(open_shaper(self));
    if (self->world.nranks > 1) EN_TRY(check_depth(self));
    if (eni_rank_has_leaders(self))
        EN_TRY(open_local(self, deadline));
    else if (self->world.nranks > 1 && !eni_rank_has_seats(self))
        EN_TRY(open_all(self, deadline));
    if (eni_rank_uses_groups(self)) EN_TRY(open_groups(self, deadline));
    if (eni_rank_has_store(self) && !(eni_rank_has_leaders(self) && self->world.local_rank > 0))
        EN_TRY(open_client(self, deadline));
    if (self->world.rank == 0) EN_TRY(eni_resume_weights(self));
    eni_member_wait_begin(self->member, "broadcast", "weights of rank 0",
                          self->job.schema.count * sizeof(float), 1);
    en_status st = broadcast_init(self);
    eni_member_wait_end(self->member);
    EN_TRY(st);
    EN_TRY(share_state(self));
    return self->is_newcomer ? EN_OK : check_same_start(self, deadline);
}

en_status eni_rank_come_in(eni_rank *self)
{
    eni_member_note(self->member, -1, "joining");
    if (self->trainer.reads_arena) /* those read at the opening are older than the warm-up */
        EN_TRY(eni_rank_call_store(self, ENI_MSG_SNAPSHOT, 0, ENI_SLOT_NONE, ENI_SLOT_PARAM));
    return eni_client_join(self->exchange.client, eni_rank_answer_by(self, 10 * ENI_SECOND));
}

en_status eni_rank_start(eni_rank *self)
{
    eni_host_config config = {.strategy = self->job.strategy,
                              .options = self->job.options,
                              .hooks = self->job.hooks,
                              .world = self->world,
                              .seed = self->job.seed,
                              .buckets = self->job.buckets,
                              .arena = self->exchange.arena,
                              .coll = self->exchange.all.coll,
                              .coll_algorithm = self->exchange.all.choice.algorithm,
                              .group = self->exchange.group.coll,
                              .group_algorithm = self->exchange.group.choice.algorithm,
                              .leaders = self->exchange.leaders.coll,
                              .leaders_algorithm = self->exchange.leaders.choice.algorithm,
                              .has_own_groups = self->has_own_groups,
                              .client = self->exchange.client,
                              .has_store = eni_rank_has_store(self),
                              .steps_outside = self->trainer.steps_itself || self->job.clip_norm > 0,
                              .step = self->trainer.ops->step,
                              .step_user = self->trainer.self,
                              .optimizer = self->job.optimizer,
                              .hyper = self->job.hyper,
                              .schedule = self->job.schedule,
                              .trace = self->records.trace,
                              .wait_note = eni_member_wait_note(self->member),
                              .gpu = self->trainer.steps,
                              .measure = eni_exchange_measure,
                              .measure_user = self,
                              .alive_status = eni_rank_alive,
                              .alive_user = self};
    EN_TRY(eni_host_open(&config, &self->exchange.host));
    EN_TRY(check_judged(self));
    EN_TRY(eni_resume_state(self));
    eni_member_wait_begin(self->member, "barrier", "one optimizer state", 0, 1);
    const en_status st = eni_host_share_step(self->exchange.host, self->trainer.writes_arena);
    eni_member_wait_end(self->member);
    EN_TRY(st);
    EN_TRY(share_weights(self));
    if (!self->exchange.asked.is_check) touch(self); /* a check has no steps */
    return EN_OK;
}

void eni_exchange_close(eni_rank *self)
{
    eni_host_close(self->exchange.host);
    eni_client_close(self->exchange.client);
    eni_net_close(self->exchange.net);
    eni_free(self->exchange.endpoints);
    close_group(&self->exchange.leaders);
    close_group(&self->exchange.group);
    close_group(&self->exchange.all);
    eni_shaper_free(self->exchange.shaper);
}
