/* one_copy.c - one copy of the weights and of the optimizer's state for all ranks of a host (EN_ONE_COPY).
 *
 * Replicas that only mean_step changes are the same bytes on every rank: p copies are p times the memory and
 * p times the work. So the ranks map rank 0's, and mean_step is one pass: the owner of a slice reads it from
 * all gradients, averages it in registers, and steps that part of the one copy (ops/mean_step.h).
 *
 *     two copies   read 2 slices, write the mean twice; then each rank reads it all, and steps all its
 * weights one copy     read 2 slices, step one
 *
 * That is safe because a rank submits a bucket only when its backward needs neither its gradient nor its
 * weights any more, the pass over a bucket begins when all have submitted it, and finish waits for all. */
#include <string.h>

#include "runtime/host/host_state.h"
#include "core/clock.h"
#include "core/try.h"

en_status eni_host_share(eni_host *host)
{
    const eni_host_config *c = &host->config;
    if (!(c->strategy->flags & EN_ONE_COPY) || c->coll == NULL || !eni_coll_can_share(c->coll)) return EN_OK;
    EN_TRY(eni_coll_share(c->coll, ENI_SLOT_PARAM));
    for (int i = 0; i < host->noptimizer_slots; i++)
        EN_TRY(eni_coll_share(c->coll, host->optimizer_slot + (uint32_t)i));
    host->has_one_copy = 1;
    return EN_OK;
}

int eni_host_may_write(eni_host *host, const char *operation, en_vec v)
{
    const uint32_t slot = eni_vec_slot(v), first = host->optimizer_slot;
    if (host->config.strategy->flags & EN_ROUNDS && slot == ENI_SLOT_PARAM && strcmp(operation, "call") != 0) {
        eni_host_misuse(host, "called %s on the weights, which with EN_ROUNDS only call changes", operation);
        return 0;
    }
    const int is_optimizer = slot >= first && slot < first + (uint32_t)host->noptimizer_slots;
    if (!(host->config.strategy->flags & EN_ONE_COPY) || (slot != ENI_SLOT_PARAM && !is_optimizer)) return 1;
    eni_host_misuse(host, "called %s on %s, which with EN_ONE_COPY only mean_step changes", operation,
                    is_optimizer ? "optimizer state" : "the weights");
    return 0;
}

/* This rank's slice, on the compute thread. The update's time is that of the pass: reading the gradients has
 * none of its own. */
static void take_mean(void *user, uint64_t lo, uint64_t hi, const eni_sources *from)
{
    const eni_request *r = user;
    eni_host *host = r->host;
    const eni_host_config *c = &host->config;
    const uint64_t at = c->buckets->bucket[r->bucket->id].lo + lo;
    float *slots[ENI_MAX_SLOTS] = {NULL};
    const int64_t begin = eni_now_ns();
    for (int i = 0; i < host->noptimizer_slots; i++)
        slots[i] = eni_arena_at(c->arena, host->optimizer_slot + (uint32_t)i, at);
    eni_mean_step(c->optimizer, eni_arena_at(c->arena, ENI_SLOT_PARAM, at), slots, from, hi - lo, &r->hyper);
    const int64_t end = eni_now_ns();
    host->counters.update_ns += end - begin;
    eni_trace_span(c->trace, ENI_TRACE_COMPUTE, "update", begin, end, (int64_t)host->step, (int)r->bucket->id,
                   0);
}

void eni_host_fuse(eni_host *host, eni_request *request, eni_coll_op *op)
{
    request->is_fused = 1;
    request->host = host;
    request->hyper = eni_host_rates(host, request->bucket->id);
    op->op = ENI_COLL_MEAN_STEP;
    op->take = take_mean;
    op->take_user = request;
}
