/* coll.c - opens and closes a group; its public calls.
 *
 * open checks the config and opens the engine: direct.c over shared memory, progress_engine.c over TCP, none
 * for a group of one. submit checks an operation, numbers it, keeps a copy in coll->ops and hands the number
 * to the engine; test and wait ask the engine. group.c, below the engines, has what they share. */
#include "runtime/collective/coll.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/collective/group.h"
#include "runtime/net/host_info.h"

/* Two flag exchanges take under 1 us. A rank that has to wait much longer yields: it polls nearly as often,
 * and lets the other rank run if something else has taken its core. */
#define SPIN_NS (2 * ENI_MICRO)

/* ---- a group of one ---- */

static void alone_run(eni_coll *coll, const eni_coll_op *op)
{
    float *vector = eni_group_vector(coll, op);
    const uint64_t weight = eni_group_weight(op);
    const float *const src[] = {vector};
    if (eni_coll_is_reduction(op)) {
        eni_mean_ranks(vector, src, &weight, 1, ENI_SUM_RANK, op->count, 0, op->count);
        eni_group_note_samples(coll, coll->nsubmitted, weight);
    }
    if (op->op == ENI_COLL_SENDRECV) eni_group_copy(coll, op);
}

/* ---- open and close ---- */

static en_status config_check(const eni_coll_config *config)
{
    const bool over_shm = config->transport == ENI_OVER_SHM;
    bool is_valid = config->nranks >= 1 && config->nranks <= ENI_MEAN_MAX && config->rank >= 0 &&
                    config->rank < config->nranks && config->arenas != NULL &&
                    config->arenas[config->rank] != NULL;
    is_valid = is_valid && config->area >= 0 && config->area < ENI_ARENA_AREAS;
    if (is_valid && config->nranks > 1) {
        if (over_shm)
            is_valid = config->algorithm == ENI_COLL_DIRECT || config->algorithm == ENI_COLL_NAIVE;
        else
            is_valid = config->sockets != NULL &&
                       (config->algorithm == ENI_COLL_RING || config->algorithm == ENI_COLL_NAIVE);
    }
    for (int r = 0; is_valid && over_shm && r < config->nranks; r++) {
        const eni_arena *own = config->arenas[config->rank], *other = config->arenas[r];
        is_valid = other != NULL && eni_arena_count(other) == eni_arena_count(own) &&
                   eni_arena_nslots(other) == eni_arena_nslots(own);
    }
    if (is_valid) return EN_OK;
    return eni_fail(
        EN_EINVAL, "coll",
        "rank %d of %d cannot open %s over %s: an arena or a socket is missing, or the shapes differ",
        config->rank, config->nranks, eni_coll_algorithm_name(config->algorithm), over_shm ? "shm" : "tcp");
}

en_status eni_coll_open(const eni_coll_config *config, eni_coll **coll_out)
{
    EN_TRY(config_check(config));
    const int n = config->nranks;
    eni_coll *coll = eni_alloc(sizeof *coll);
    eni_arena **arenas = eni_alloc_array((size_t)n, sizeof(*arenas));
    if (coll == NULL || arenas == NULL) {
        eni_free(coll);
        eni_free(arenas);
        return EN_ENOMEM;
    }
    coll->nsent = eni_alloc_array((size_t)n, sizeof *coll->nsent);
    coll->nwanted = eni_alloc_array((size_t)n, sizeof *coll->nwanted);
    for (int r = 0; r < n; r++)
        arenas[r] = config->arenas[r];
    coll->config = *config;
    coll->arenas = arenas;
    coll->config.arenas = NULL;
    if (coll->config.segment == 0) coll->config.segment = 65536;
    if (coll->config.max_count == 0) coll->config.max_count = eni_arena_count(arenas[config->rank]);
    coll->spin_ns = n <= eni_host_info_cores() ? SPIN_NS : 0;
    if (n > 1) coll->engine = config->transport == ENI_OVER_SHM ? &eni_engine_direct : &eni_engine_tcp;

    coll->can_share =
        coll->engine == &eni_engine_direct && config->algorithm == ENI_COLL_DIRECT && eni_arena_can_alias();

    en_status st = coll->nsent != NULL && coll->nwanted != NULL ? EN_OK : EN_ENOMEM;
    if (st == EN_OK && coll->engine != NULL) st = coll->engine->open(coll);
    if (st != EN_OK) {
        coll->config.sockets = NULL; /* still the caller's */
        eni_coll_close(coll);
        return st;
    }
    *coll_out = coll;
    return EN_OK;
}

void eni_coll_close(eni_coll *coll)
{
    if (coll == NULL) return;
    if (coll->engine != NULL) coll->engine->close(coll);
    eni_free(coll->arenas);
    eni_free(coll->nsent);
    eni_free(coll->nwanted);
    eni_free(coll);
}

/* ---- operations ---- */

static en_status op_check(const eni_coll *coll, const eni_coll_op *op)
{
    const eni_arena *own = coll->arenas[coll->config.rank];
    const uint64_t length = eni_arena_count(own);
    const int n = coll->config.nranks;
    bool is_valid = op->op >= EN_ALLREDUCE && op->op <= ENI_COLL_MEAN_STEP &&
                    op->slot < eni_arena_nslots(own) && op->offset <= length &&
                    op->count <= length - op->offset;
    if (op->op == EN_REDUCE_SCATTER || op->op == EN_ALLGATHER)
        is_valid = is_valid && op->lo <= op->hi && op->hi <= op->count;
    if (op->op == ENI_COLL_SENDRECV)
        is_valid = is_valid && op->slot_in < eni_arena_nslots(own) && op->to >= 0 && op->to < n &&
                   op->from >= 0 && op->from < n;
    if (op->op == ENI_COLL_MEAN_STEP)
        is_valid = is_valid && op->on_reduced != NULL && eni_coll_can_share(coll) &&
                   (!op->copies || op->slot_in < eni_arena_nslots(own));
    if (is_valid) return EN_OK;
    return eni_fail(EN_EINVAL, "coll",
                    "invalid %s of bucket %u: vector %u, elements %llu + %llu of %llu, range %llu to %llu",
                    eni_coll_op_name(op->op), op->bucket, op->slot, (unsigned long long)op->offset,
                    (unsigned long long)op->count, (unsigned long long)length, (unsigned long long)op->lo,
                    (unsigned long long)op->hi);
}

/* Requests of sendrecvs have this bit. */
static const uint64_t pair_bit = UINT64_C(1) << 63;

static bool engine_test(eni_coll *coll, uint64_t req)
{
    return req & pair_bit ? coll->engine->test_pair(coll, (req & ~pair_bit) - 1)
                          : coll->engine->test(coll, req - 1);
}

/* Whether the operation that had the place of the next of `n` is done. */
static en_status room_check(eni_coll *coll, uint64_t n, uint64_t bit)
{
    if (n < ENI_COLL_DEPTH || engine_test(coll, (n - ENI_COLL_DEPTH + 1) | bit)) return EN_OK;
    return eni_fail(EN_EBUG, "coll",
                    "more than %d collectives are unfinished: wait for some before submitting more",
                    ENI_COLL_DEPTH);
}

/* A half with the rank itself is on no link. */
static en_status submit_pair(eni_coll *coll, const eni_coll_op *op, uint64_t *req_out)
{
    EN_TRY(room_check(coll, coll->npairs, pair_bit));
    const int rank = coll->config.rank;
    coll->pairs[coll->npairs % ENI_COLL_DEPTH] = (eni_pair){.op = *op,
                                                            .after = coll->nsubmitted,
                                                            .to_number = coll->nsent[op->to],
                                                            .from_number = coll->nwanted[op->from],
                                                            .begin_ns = eni_now_ns()};
    EN_TRY(coll->engine->submit_pair(coll, coll->npairs));
    coll->nsent[op->to] += op->to != rank;
    coll->nwanted[op->from] += op->from != rank;
    *req_out = ++coll->npairs | pair_bit;
    return EN_OK;
}

en_status eni_coll_submit(eni_coll *coll, const eni_coll_op *op, uint64_t *req_out)
{
    EN_TRY(eni_group_status(coll));
    EN_TRY(op_check(coll, op));
    if (op->op == ENI_COLL_SENDRECV && coll->engine != NULL) return submit_pair(coll, op, req_out);
    eni_group_note_samples(coll, coll->nsubmitted, UINT64_MAX);
    if (coll->engine == NULL) {
        alone_run(coll, op);
        *req_out = ++coll->nsubmitted;
        return EN_OK;
    }
    EN_TRY(room_check(coll, coll->nsubmitted, 0));
    const uint64_t seq = coll->nsubmitted;
    eni_coll_op *kept = &coll->ops[seq % ENI_COLL_DEPTH];
    *kept = *op;
    if (op->op == ENI_COLL_BARRIER) kept->count = 0;
    coll->begin_ns[seq % ENI_COLL_DEPTH] = eni_now_ns();
    EN_TRY(coll->engine->submit(coll, seq));
    *req_out = ++coll->nsubmitted;
    return EN_OK;
}

bool eni_coll_test(eni_coll *coll, uint64_t req)
{
    if (coll->engine == NULL || eni_group_status(coll) != EN_OK) return true;
    return engine_test(coll, req) || eni_group_status(coll) != EN_OK;
}

en_status eni_coll_wait(eni_coll *coll, uint64_t req)
{
    if (coll->engine == NULL) return EN_OK;
    if (engine_test(coll, req)) return EN_OK;
    EN_TRY(eni_group_status(coll));
    const int64_t begin_ns = eni_now_ns(), worked_ns = coll->work_ns;
    const en_status st = req & pair_bit ? coll->engine->wait_pair(coll, (req & ~pair_bit) - 1)
                                        : coll->engine->wait(coll, req - 1);
    eni_group_count(&coll->wait_ns, (uint64_t)(eni_now_ns() - begin_ns - (coll->work_ns - worked_ns)));
    return st == EN_OK ? EN_OK : eni_group_fail(coll, st);
}

uint64_t eni_coll_samples(const eni_coll *coll, uint64_t req)
{
    const uint64_t seq = req - 1;
    return seq < coll->nsubmitted && coll->nsubmitted - seq <= ENI_COLL_KEPT
               ? coll->samples[seq % ENI_COLL_KEPT]
               : UINT64_MAX;
}

en_status eni_coll_run(eni_coll *coll, const eni_coll_op *op)
{
    uint64_t req;
    EN_TRY(eni_coll_submit(coll, op, &req));
    return eni_coll_wait(coll, req);
}

/* ---- a shared vector ---- */

bool eni_coll_can_share(const eni_coll *coll)
{
    return coll->can_share;
}

en_status eni_coll_share(eni_coll *coll, uint32_t slot)
{
    const eni_coll_op barrier = {.op = ENI_COLL_BARRIER};
    if (!eni_coll_can_share(coll) || slot >= eni_arena_nslots(coll->arenas[0])) return EN_EINVAL;
    EN_TRY(eni_coll_run(coll, &barrier)); /* rank 0's is complete, and nobody reads another's */
    for (int r = 1; r < coll->config.nranks; r++) {
        const en_status st = eni_arena_alias(coll->arenas[r], slot, coll->arenas[0]);
        if (st != EN_OK) return eni_group_fail(coll, st);
    }
    return eni_coll_run(coll, &barrier);
}

float *eni_coll_slot(const eni_coll *coll, uint32_t slot)
{
    return eni_arena_at(coll->arenas[coll->config.rank], slot, 0);
}

void eni_coll_count(const eni_coll *coll, eni_coll_counters *counters_out)
{
    *counters_out = (eni_coll_counters){
        .ops = coll->nsubmitted + coll->npairs,
        .payload_sent = atomic_load(&coll->payload_sent),
        .payload_recv = atomic_load(&coll->payload_recv),
        .wire_sent = atomic_load(&coll->wire_sent),
        .wire_recv = atomic_load(&coll->wire_recv),
        .shm_bytes = atomic_load(&coll->shm_bytes),
        .wait_ns = atomic_load(&coll->wait_ns),
    };
}
