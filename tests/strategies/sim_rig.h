/* sim_rig.h - one line per run on the virtual host: what the conformance tests are written in. */
#ifndef TESTS_STRATEGIES_SIM_RIG_H
#define TESTS_STRATEGIES_SIM_RIG_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/rng.h"
#include "plugin/plugin.h"
#include "run/rank_groups.h"
#include "runtime/sim/sim.h"
#include "runtime/spec/strategies.h"
#include "tests/strategies/quadratic.h"

#define RIG_PLUGINS EN_BUILD_DIR "/plugins"
#define RIG_ZOO     EN_BUILD_DIR "/test/plugins/zoo.so@"
#define RIG_LOCAL   EN_BUILD_DIR "/test/plugins/local.so@"

enum { RIG_GROUPED = 16 }; /* the most ranks that rig_groups groups */

/* A configuration and what it points at. Must not move. */
typedef struct rig {
    eni_quadratic problem;
    eni_sim_config config;
    eni_law law;       /* of all ranks */
    eni_net_link link; /* of all ranks and shards */
    eni_options *options;
    eni_slowdown slow;
    int32_t groups[RIG_GROUPED];
    eni_sim_result result;
} rig;

static inline const en_strategy *rig_strategy(const char *word)
{
    const en_strategy *strategy = NULL;
    assert_int_equal(eni_strategy_find(RIG_PLUGINS, word, &strategy), EN_OK);
    return strategy;
}

/* Momentum 0.9, Nesterov, weight decay; three buckets; 1 ms a step; a network with latency and rate. */
static inline void rig_init(rig *r, const char *spec, int nranks, uint64_t micro_batches)
{
    char word[ENI_PLUGIN_WORD_MAX];
    const char *given;
    memset(r, 0, sizeof *r);
    assert_int_equal(eni_quadratic_init(&r->problem, 200, 7), EN_OK);
    assert_int_equal(eni_plugin_split("--strategy", spec, word, &given), EN_OK);
    r->law = (eni_law){.mean_ns = ENI_MILLI};
    r->link = (eni_net_link){10 * ENI_MICRO, 1e9};
    r->config = (eni_sim_config){
        .strategy = rig_strategy(word),
        .problem = &r->problem.problem,
        .nranks = nranks,
        .seed = 42,
        .micro_batches = micro_batches,
        .bucket_cap_bytes = 256,
        .hyper = {.momentum = 0.9f, .nesterov = 1, .weight_decay = 1e-3f},
        .schedule = {.kind = ENI_LR_CONSTANT, .base = 0.02},
        .compute = {.laws = &r->law, .nlaws = 1},
        .network = {.links = &r->link, .nlinks = 1},
    };
    assert_int_equal(eni_options_new(r->config.strategy, given, &r->options), EN_OK);
    r->config.options = r->options;
}

static inline void rig_slow(rig *r, int rank, double factor)
{
    r->slow = (eni_slowdown){.kind = ENI_SLOW_ALWAYS, .lo = rank, .hi = rank, .factor = factor};
    r->config.compute.slow = &r->slow;
    r->config.compute.nslow = 1;
}

/* The last micro-batch has fewer samples. */
static inline void rig_ragged(rig *r, uint64_t samples)
{
    r->problem.last_batch = r->config.micro_batches - 1;
    r->problem.last_samples = samples;
}

/* As --groups; NULL: the ranks of a host. */
static inline void rig_groups(rig *r, const char *text)
{
    if (text == NULL) return;
    assert_true(r->config.nranks <= RIG_GROUPED);
    assert_int_equal(eni_rank_groups_read(text, r->config.nranks, r->groups), EN_OK);
    r->config.groups = r->groups;
}

/* A gradient that is no straight line, as the problem's is: of one, the order of means and steps would not matter. */
static inline double rig_slope(uint64_t i, uint64_t micro, double at)
{
    const eni_rng_key key = {7, ENI_RNG_SYNTHETIC, 0, micro};
    const double d = at - 1 - 0.5 * (2 * eni_rng_unit(&key, i) - 1);
    return eni_quadratic_curvature(i) * (d + 0.25 * d * d);
}

static inline en_status rig_bent(void *quadratic, int rank, uint64_t micro, const float *param, float *grad)
{
    const eni_quadratic *q = quadratic;
    (void)rank;
    for (uint64_t i = 0; i < q->problem.count; i++)
        grad[i] = (float)rig_slope(i, micro, (double)param[i]);
    return EN_OK;
}

static inline const eni_sim_result *rig_run(rig *r)
{
    eni_sim_result_fini(&r->result);
    const en_status st = eni_sim_run(&r->config, &r->result);
    if (st != EN_OK) fail_msg("%s: %s", r->config.strategy->name, en_status_str(st));
    return &r->result;
}

static inline void rig_fini(rig *r)
{
    eni_sim_result_fini(&r->result);
    eni_options_free(r->options);
    eni_quadratic_fini(&r->problem);
}

#endif
