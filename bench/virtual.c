/* virtual.c - times one run in virtual time on one core, and where the time goes: gradients, the store's means and steps,
 * and the rest, which is the virtual host's own.
 *
 *     bench_virtual --json --strategy=ps-async -n 64 --model=mlp --steps=20 --compute=exp:10ms
 *
 * The flags are those of `entrain sim`. Without --model it is the quadratic without noise, whose gradients cost next to
 * nothing. Seconds are of this process's core. The store's means and steps are timed again, alone, on the same
 * partitions: as many sources as ranks, in turns, as messages come. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bench/programs.h"
#include "config/config.h"
#include "core/memory.h"
#include "tests/strategies/quadratic.h"
#include "virtual/network.h"

typedef struct trial {
    eni_virtual v;
    eni_quadratic quadratic;
    eni_virtual_network *network;
    const eni_sim_problem *inner;
    eni_sim_problem problem; /* inner, timed */
    eni_sim_result result;
    uint64_t gradients;
    double gradient_s, run_s, store_s;
    double kb_before, kb_begun; /* memory before the run, and when each rank has begun its first step */
} trial;

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Pages in use and the page tables that they need, in KB. */
static double memory_kb(void)
{
    char line[256];
    double sum = 0, kb;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmRSS: %lf", &kb) == 1 || sscanf(line, "VmPTE: %lf", &kb) == 1) sum += kb;
    if (file != NULL) fclose(file);
    return sum;
}

static uint64_t samples(void *user, uint64_t micro_batch)
{
    const trial *t = user;
    return t->inner->samples(t->inner->user, micro_batch);
}

static en_status gradient(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    trial *t = user;
    const double begin = cpu_s();
    const en_status st = t->inner->grad(t->inner->user, rank, micro_batch, param, grad);
    t->gradient_s += cpu_s() - begin;
    if (++t->gradients == (uint64_t)t->v.sim.nranks) t->kb_begun = memory_kb();
    return st;
}

static en_status open_trial(trial *t, const eni_config *c, const char *plugins)
{
    en_status st = eni_virtual_open(c, plugins, &t->v);
    if (st == EN_OK && eni_config_is_given(c, "model")) {
        st = eni_virtual_network_open(c, plugins, &t->v, &t->network);
        t->inner = t->v.sim.problem;
    } else if (st == EN_OK) {
        st = eni_quadratic_init(&t->quadratic, (uint64_t)c->elements, (uint64_t)c->seed);
        t->quadratic.noise = 0;
        t->inner = &t->quadratic.problem;
    }
    if (st != EN_OK) return st;
    t->problem = *t->inner;
    t->problem.samples = samples;
    t->problem.grad = gradient;
    t->problem.user = t;
    t->problem.threads = 1;
    t->v.sim.problem = &t->problem;
    return EN_OK;
}

/* As many means and steps as the run's stores took. */
static en_status time_store(trial *t)
{
    enum { SOURCES = 64 };
    const eni_sim_config *c = &t->v.sim;
    const uint64_t count = c->problem->count;
    eni_buckets *buckets;
    float *vector[SOURCES + ENI_MAX_SLOTS + 2], *slots[ENI_MAX_SLOTS];
    const float one = 1;
    eni_hyper hyper = c->hyper;
    hyper.lr = 1e-6;
    if (eni_buckets_new(c->problem->tensors, c->problem->ntensors, count, c->bucket_cap_bytes, &buckets) !=
        EN_OK)
        return EN_ENOMEM;
    for (size_t i = 0; i < sizeof vector / sizeof *vector; i++)
        if ((vector[i] = eni_alloc_array(count, sizeof(float))) == NULL) return EN_ENOMEM;
    float *const w = vector[SOURCES + ENI_MAX_SLOTS], *const sum = vector[SOURCES + ENI_MAX_SLOTS + 1];
    const double begin = cpu_s();
    for (uint64_t k = 0; k < t->result.updates; k++) {
        const eni_bucket_range *range = &buckets->bucket[k % buckets->n];
        const uint64_t n = range->hi - range->lo;
        const float *from = vector[k / buckets->n % SOURCES] + range->lo;
        for (int i = 0; i < ENI_MAX_SLOTS; i++)
            slots[i] = vector[SOURCES + i] + range->lo;
        hyper.step = k / buckets->n;
        eni_mean(sum, &from, &one, 1, 1, n);
        if (!eni_all_finite(sum, n)) return EN_ENONFINITE;
        eni_step_range(c->optimizer, range->lo, w + range->lo, slots, sum, n, &hyper);
    }
    t->store_s = cpu_s() - begin;
    eni_buckets_free(buckets);
    for (size_t i = 0; i < sizeof vector / sizeof *vector; i++)
        eni_free(vector[i]);
    return EN_OK;
}

static void report(const trial *t, bool is_json)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    const double mb = (double)used.ru_maxrss / 1024, ranks = t->v.sim.nranks;
    const double rank_kb = (t->kb_begun - t->kb_before) / ranks;
    printf(
        is_json
            ? "{\"bench\": \"virtual\", \"strategy\": \"%s\", \"ranks\": %d, \"elements\": %" PRIu64
              ", \"gradients\": %" PRIu64 ", \"events\": %" PRIu64
              ", \"seconds\": %.6f, \"gradient_s\": %.6f, \"store_s\": %.6f, \"overhead\": %.3f, "
              "\"beside_gradients\": %.3f, \"mb\": %.0f, \"rank_kb\": %.1f}\n"
            : "%s: %d ranks, %" PRIu64 " elements, %" PRIu64 " gradients, %" PRIu64
              " events: %.3f s of one core, gradients %.3f s, means and steps %.3f s: %.3f times both, %.3f "
              "times the gradients; %.0f MB at most, %.1f KB for a rank that has not written\n",
        t->v.sim.strategy->name, t->v.sim.nranks, t->problem.count, t->gradients, t->result.events, t->run_s,
        t->gradient_s, t->store_s, t->run_s / (t->gradient_s + t->store_s), t->run_s / t->gradient_s, mb,
        rank_kb);
}

static en_status run(trial *t, const eni_config *c, const char *plugins)
{
    en_status st = open_trial(t, c, plugins);
    if (st != EN_OK) return st;
    t->kb_before = memory_kb();
    const double begin = cpu_s();
    st = eni_sim_run(&t->v.sim, &t->result);
    t->run_s = cpu_s() - begin;
    if (st == EN_OK) st = time_store(t);
    if (st == EN_OK) report(t, c->json);
    return st;
}

int main(int argc, char **argv)
{
    static trial t;
    eni_config config;
    char plugins[4096];
    if (program_path("plugins", plugins, sizeof plugins) != 0) return 1;
    if (eni_config_parse(ENI_SIM, argc, argv, &config) != EN_OK) return 2;
    const en_status st = run(&t, &config, plugins);
    eni_sim_result_fini(&t.result);
    eni_virtual_network_close(t.network);
    eni_quadratic_fini(&t.quadratic);
    eni_virtual_close(&t.v);
    eni_config_fini(&config);
    return st == EN_OK ? 0 : 1;
}
