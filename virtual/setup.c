/* setup.c - from the flags of `entrain sim` to a configuration of the virtual host. */
#include "virtual/setup.h"

#include <math.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "run/rank_groups.h"
#include "run/units.h"
#include "runtime/spec/strategies.h"

static eni_sim_network network_of(const eni_config *c)
{
    uint64_t rate = 0;
    int64_t delay_ns = 0;
    if (c->net != NULL) (void)eni_net_parse(c->net, &rate, &delay_ns); /* config/ has checked it */
    return (eni_sim_network){.latency_ns = delay_ns > 0 ? delay_ns : (int64_t)(c->latency_us * ENI_MICRO),
                             .bytes_per_s = rate > 0 ? (double)rate : c->rate_mb * 1e6};
}

static en_status take_visits(const char *flag, const eni_list *list, int64_t nranks, int64_t *at_ns)
{
    int64_t rank, at;
    for (int i = 0; i < list->count; i++) {
        (void)eni_visit_parse(list->item[i], &rank, &at); /* config/ has checked it */
        if (rank >= nranks)
            return eni_fail(EN_EINVAL, "sim",
                            "%s=%s: there are ranks 0 to %lld; give one of them, or a larger -n", flag,
                            list->item[i], (long long)nranks - 1);
        at_ns[rank] = at;
    }
    return EN_OK;
}

/* What each rank is like. */
static en_status set_ranks(const eni_config *c, eni_virtual *v)
{
    int64_t rank;
    double slow;
    for (int r = 0; r < c->workers; r++) {
        v->factor[r] = 1;
        v->leave_ns[r] = INT64_MAX;
    }
    if (c->groups != NULL) EN_TRY(eni_rank_groups_read(c->groups, (int32_t)c->workers, v->groups));
    EN_TRY(take_visits("--join", &c->join, c->workers, v->join_ns));
    EN_TRY(take_visits("--leave", &c->leave, c->workers, v->leave_ns));
    for (int i = 0; i < c->straggler.count; i++)
        if (eni_straggler_parse(c->straggler.item[i], &rank, &slow)) v->factor[rank] = slow;
    return EN_OK;
}

en_status eni_virtual_open(const eni_config *c, const char *plugins, eni_virtual *v)
{
    const double ranks = (double)c->workers * (double)c->accumulate;
    const size_t n = (size_t)c->workers;
    const en_strategy *strategy;
    *v = (eni_virtual){0};
    EN_TRY(eni_strategy_find(plugins, c->strategy, &strategy));
    EN_TRY(eni_strategy_groups(strategy, c->groups));
    en_status st = eni_options_new(strategy, eni_spec_options(c->strategy), &v->options);
    v->factor = eni_alloc_array(n, sizeof *v->factor);
    v->join_ns = eni_alloc_array(n, sizeof *v->join_ns);
    v->leave_ns = eni_alloc_array(n, sizeof *v->leave_ns);
    v->groups = eni_alloc_array(n, sizeof *v->groups);
    if (st == EN_OK && (v->factor == NULL || v->join_ns == NULL || v->leave_ns == NULL || v->groups == NULL))
        st = EN_ENOMEM;
    if (st == EN_OK) st = set_ranks(c, v);
    if (st != EN_OK) {
        eni_virtual_close(v);
        return st;
    }
    v->sim = (eni_sim_config){
        .strategy = strategy,
        .options = v->options,
        .nranks = (int32_t)c->workers,
        .nshards = (int32_t)c->shards,
        .local_size = (int32_t)c->local_size,
        .groups = c->groups != NULL ? v->groups : NULL,
        .seed = (uint64_t)c->seed,
        .micro_batches = (uint64_t)fmin((double)c->steps * ranks, 1e18), /* nobody waits for so many */
        .accumulate = (uint64_t)c->accumulate,
        .bucket_cap_bytes = (uint64_t)c->bucket_cap,
        .hyper = {.momentum = (float)c->momentum, .weight_decay = (float)c->weight_decay},
        .schedule = {.kind = ENI_LR_CONSTANT, .base = c->lr},
        .compute = {.mean_ns = (int64_t)(c->step_ms * ENI_MILLI),
                    .noise = c->sigma > 0 ? ENI_SIM_LOGNORMAL : ENI_SIM_CONSTANT,
                    .sigma = c->sigma,
                    .factor = v->factor},
        .network = network_of(c),
        .join_ns = c->join.count > 0 ? v->join_ns : NULL,
        .leave_ns = c->leave.count > 0 ? v->leave_ns : NULL};
    return EN_OK;
}

void eni_virtual_close(eni_virtual *v)
{
    eni_options_free(v->options);
    eni_free(v->factor);
    eni_free(v->join_ns);
    eni_free(v->leave_ns);
    eni_free(v->groups);
    *v = (eni_virtual){0};
}
