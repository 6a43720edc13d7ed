/* api.c - entrain/sim.h: a gradient of the caller's in virtual time.
 *
 * The virtual host keeps each parameter on a line of its own, the caller's vector is contiguous: both are copied into each
 * other around a callback. So a callback can write into nothing but its own buffer. A canary in that and behind it shows
 * what the callback has left out, and what it wrote beyond. */
#include "entrain/sim.h"

#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/folders.h"
#include "core/canary.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "virtual/simulation.h"

static const uint64_t SAMPLES_MAX = UINT64_C(1) << 31; /* so that those of a run can be counted */

struct en_sim {
    en_sim_problem given;
    eni_virtual setup;
    eni_sim_problem problem;
    en_model_tensor *tensors; /* (problem.ntensors), each at the begin of a line */
    float *init;              /* (problem.count) */
    float *weights;           /* (problem.count) at the end */
    float *param, *grad;      /* (given.count), and a canary behind grad: what callbacks see */
    eni_sim_result ended;
    en_sim_result result; /* of `ended`; size 0: the run has not ended well */
    uint64_t *steps;      /* (2, nranks): steps, samples */
    uint64_t *staleness;  /* by value */
};

/* ---- the caller's vector and ours ---- */

static void spread(const en_sim *sim, const float *flat, float *lines_out)
{
    for (uint32_t t = 0; t < sim->problem.ntensors; flat += sim->tensors[t++].count)
        memcpy(lines_out + sim->tensors[t].offset, flat, sim->tensors[t].count * sizeof *flat);
}

static void gather(const en_sim *sim, const float *lines, float *flat_out)
{
    for (uint32_t t = 0; t < sim->problem.ntensors; flat_out += sim->tensors[t++].count)
        memcpy(flat_out, lines + sim->tensors[t].offset, sim->tensors[t].count * sizeof *lines);
}

/* ---- callbacks ---- */

static uint64_t samples(void *user, uint64_t micro_batch)
{
    const en_sim *sim = user;
    (void)micro_batch;
    return sim->given.samples;
}

static en_status check_gradient(const en_sim *sim, int rank, uint64_t micro_batch)
{
    const uint64_t count = sim->given.count;
    const uint64_t beyond = eni_canary_written(sim->grad + count);
    if (beyond < ENI_CANARY)
        return eni_fail(EN_EBUG, "sim",
                        "the gradient callback wrote element %llu of a gradient of %llu elements (rank %d, "
                        "micro-batch %llu)",
                        (unsigned long long)(count + beyond), (unsigned long long)count, rank,
                        (unsigned long long)micro_batch);
    for (uint64_t i = 0; i < count; i++) {
        if (isfinite(sim->grad[i])) continue;
        if (eni_is_canary(&sim->grad[i]))
            return eni_fail(
                EN_EBUG, "sim",
                "the gradient callback left element %llu as it was: it has to overwrite all %llu (rank %d, "
                "micro-batch %llu)",
                (unsigned long long)i, (unsigned long long)count, rank, (unsigned long long)micro_batch);
        return eni_fail(
            EN_ENONFINITE, "sim",
            "the gradient of rank %d has %g as element %llu (micro-batch %llu): lower lr, or clip "
            "it in the callback",
            rank, (double)sim->grad[i], (unsigned long long)i, (unsigned long long)micro_batch);
    }
    return EN_OK;
}

static en_status gradient(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    en_sim *sim = user;
    gather(sim, param, sim->param);
    eni_canary_put(sim->grad, sim->given.count + ENI_CANARY);
    const en_status st = sim->given.grad(sim->given.user, rank, micro_batch, sim->param, sim->grad);
    if (st != EN_OK)
        return eni_fail(st, "sim", "the gradient callback failed (rank %d, micro-batch %llu): %s", rank,
                        (unsigned long long)micro_batch, en_status_str(st));
    EN_TRY(check_gradient(sim, rank, micro_batch));
    memset(grad, 0, sim->problem.count * sizeof *grad);
    spread(sim, sim->grad, grad);
    return EN_OK;
}

static en_status evaluate(void *user, uint64_t nsamples, int64_t virtual_ns, const float *param)
{
    en_sim *sim = user;
    gather(sim, param, sim->param);
    const en_status st = sim->given.eval(sim->given.user, nsamples, virtual_ns, sim->param);
    if (st == EN_OK) return EN_OK;
    return eni_fail(st, "sim", "the eval callback failed (after %llu samples): %s",
                    (unsigned long long)nsamples, en_status_str(st));
}

/* ---- open ---- */

/* A caller's header may be older or newer than ours: what it does not have is 0, what we do not know is left. */
static const size_t FIRST_PROBLEM = offsetof(en_sim_problem, user) + sizeof(void *);
static const size_t FIRST_OPTIONS = offsetof(en_sim_options, log_user) + sizeof(void *);

static en_status check_problem(const en_sim_problem *p)
{
    uint64_t sum = 0;
    if (p->abi != EN_SIM_ABI)
        return eni_fail(EN_EVERSION, "sim", "the problem has abi %u and this library %u: recompile it",
                        p->abi, EN_SIM_ABI);
    if (p->size < FIRST_PROBLEM || p->count == 0 || p->count > UINT64_C(1) << 40 || p->init == NULL ||
        p->grad == NULL)
        return eni_fail(
            EN_EINVAL, "sim",
            "the problem needs size, init, grad and a count from 1 to 2^40; it has size %u, count %llu",
            p->size, (unsigned long long)p->count);
    if (p->samples > SAMPLES_MAX)
        return eni_fail(EN_EINVAL, "sim", "a micro-batch has %llu samples: give at most %llu",
                        (unsigned long long)p->samples, (unsigned long long)SAMPLES_MAX);
    for (uint32_t t = 0; p->tensors != NULL && t < p->ntensors; t++) {
        if (p->tensors[t] == 0 || p->tensors[t] > p->count - sum)
            return eni_fail(EN_EINVAL, "sim",
                            "tensor %u has %llu elements: the %u tensors should add up to %llu", t,
                            (unsigned long long)p->tensors[t], p->ntensors, (unsigned long long)p->count);
        sum += p->tensors[t];
    }
    if (p->tensors != NULL && sum != p->count)
        return eni_fail(EN_EINVAL, "sim", "the %u tensors add up to %llu elements, and count is %llu",
                        p->ntensors, (unsigned long long)sum, (unsigned long long)p->count);
    return EN_OK;
}

/* The sizes of init and tensors, and our own vectors. */
static en_status open_problem(en_sim *sim)
{
    const en_sim_problem *p = &sim->given;
    const uint32_t n = p->tensors != NULL ? p->ntensors : 1;
    uint64_t end = 0;
    if ((sim->tensors = eni_alloc_array(n, sizeof *sim->tensors)) == NULL) return EN_ENOMEM;
    for (uint32_t t = 0; t < n; t++) {
        const uint64_t count = p->tensors != NULL ? p->tensors[t] : p->count;
        sim->tensors[t] = (en_model_tensor){.name = "w", .offset = end, .count = count};
        end += (count + ENI_LINE_FLOATS - 1) / ENI_LINE_FLOATS * ENI_LINE_FLOATS;
    }
    sim->init = eni_alloc_array(end, sizeof(float));
    sim->weights = eni_alloc_array(end, sizeof(float));
    sim->param = eni_alloc_array(p->count, sizeof(float));
    sim->grad = eni_alloc_array(p->count + ENI_CANARY, sizeof(float));
    if (sim->init == NULL || sim->weights == NULL || sim->param == NULL || sim->grad == NULL)
        return EN_ENOMEM;
    sim->problem = (eni_sim_problem){.count = end,
                                     .tensors = sim->tensors,
                                     .ntensors = n,
                                     .init = sim->init,
                                     .samples = samples,
                                     .grad = gradient,
                                     .user = sim};
    spread(sim, p->init, sim->init);
    return EN_OK;
}

/* "lr=0.1", "nesterov". */
static en_status take_setting(eni_config *config, const char *text)
{
    /* The others are about data, networks, output and tests of faults. */
    static const char *const ours[] = {
        "strategy", "workers",   "steps", "lr",           "momentum", "nesterov",   "optimizer",  "beta1",
        "beta2",    "eps",       "seed",  "weight-decay", "shards",   "bucket-cap", "local-size", "groups",
        "compute",  "straggler", "net",   "join",         "leave",    "accumulate", "server-time"};
    bool is_ours = false;
    char key[64];
    const size_t n = strcspn(text, "=");
    snprintf(key, sizeof key, "%.*s", (int)(n < 60 ? n : 60), text);
    for (char *c = key; *c != 0; c++)
        if (*c == '_') *c = '-';
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        is_ours = is_ours || strcmp(key, ours[i]) == 0;
    EN_TRY(eni_config_set(config, key, text[n] == '=' ? text + n + 1 : NULL, key));
    if (is_ours) return EN_OK;
    return eni_fail(EN_EINVAL, "sim", "setting \"%.80s\": %s belongs to the command `entrain sim`; omit it",
                    text, key);
}

static en_status read_setup(en_sim *sim, const char *const *settings, size_t n, const char *plugins)
{
    eni_config config;
    char found[PATH_MAX];
    if (plugins == NULL) EN_TRY(eni_folder_plugins_of_library(found, sizeof found));
    EN_TRY(eni_config_init(ENI_SIM, &config));
    en_status st = EN_OK;
    for (size_t i = 0; i < n && st == EN_OK; i++)
        st = settings[i] != NULL
                 ? take_setting(&config, settings[i])
                 : eni_fail(EN_EINVAL, "sim", "setting %zu is NULL: nsettings (%zu) counts the texts", i, n);
    if (st == EN_OK) st = eni_config_resolve(&config);
    if (st == EN_OK) st = eni_virtual_open(&config, plugins != NULL ? plugins : found, &sim->setup);
    eni_config_fini(&config);
    return st;
}

/* Numbers have a point in every locale of the program. */
static en_status open_setup(en_sim *sim, const char *const *settings, size_t n, const char *plugins)
{
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) return eni_fail(EN_ENOMEM, "sim", "out of memory");
    const locale_t given = uselocale(plain);
    const en_status st = read_setup(sim, settings, n, plugins);
    uselocale(given);
    freelocale(plain);
    return st;
}

en_status en_sim_open(const en_sim_problem *problem, const char *const *settings, size_t nsettings,
                      const en_sim_options *options, en_sim **sim_out)
{
    *sim_out = NULL;
    if (options != NULL && options->size < FIRST_OPTIONS)
        return eni_fail(EN_EINVAL, "sim", "the options have size %u: set it to sizeof(en_sim_options)",
                        options->size);
    if (options != NULL && options->log != NULL) eni_log_set_sink(options->log, options->log_user);
    EN_TRY(check_problem(problem));
    en_sim *sim = eni_alloc(sizeof *sim);
    if (sim == NULL) return EN_ENOMEM;
    memcpy(&sim->given, problem, problem->size < sizeof sim->given ? problem->size : sizeof sim->given);
    if (sim->given.samples == 0) sim->given.samples = 1;
    en_status st = open_problem(sim);
    if (st == EN_OK) st = open_setup(sim, settings, nsettings, options != NULL ? options->plugins : NULL);
    if (st != EN_OK) {
        en_sim_close(sim);
        return st;
    }
    sim->setup.sim.problem = &sim->problem;
    sim->setup.sim.weights_out = sim->weights;
    if (problem->eval != NULL) {
        sim->setup.sim.evaluate = evaluate;
        sim->setup.sim.evaluate_user = sim;
        sim->setup.sim.eval_every = problem->eval_every;
    }
    *sim_out = sim;
    return EN_OK;
}

/* ---- run ---- */

static en_status describe(en_sim *sim)
{
    const eni_sim_result *from = &sim->ended;
    const size_t n = (size_t)from->nranks;
    const uint32_t bins = eni_histogram_bins(&from->staleness);
    sim->steps = eni_alloc_array(2 * n, sizeof *sim->steps);
    sim->staleness = eni_alloc_array(bins, sizeof *sim->staleness);
    if (sim->steps == NULL || sim->staleness == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < from->staleness.n; i++)
        sim->staleness[from->staleness.item[i].value] = from->staleness.item[i].count;
    uint64_t computed = 0;
    for (size_t r = 0; r < n; r++) {
        sim->steps[r] = from->rank[r].steps;
        sim->steps[n + r] = from->rank[r].samples;
        computed += from->rank[r].samples;
    }
    gather(sim, sim->weights, sim->param);
    sim->result = (en_sim_result){.size = sizeof sim->result,
                                  .nranks = from->nranks,
                                  .weights = sim->param,
                                  .virtual_ns = from->virtual_ns,
                                  .events = from->events,
                                  .updates = from->updates,
                                  .samples = computed,
                                  .pushes = from->pushes,
                                  .holds = from->holds,
                                  .applied = from->applied,
                                  .dropped = from->dropped,
                                  .sent = from->sent,
                                  .received = from->recv,
                                  .rank_steps = sim->steps,
                                  .rank_samples = sim->steps + n,
                                  .staleness = sim->staleness,
                                  .nstaleness = bins,
                                  .staleness_mean = eni_histogram_mean(&from->staleness),
                                  .theory_staleness = NAN,
                                  .theory_sent = NAN,
                                  .theory_received = NAN,
                                  .has_equal_ranks = from->has_equal_ranks};
    if (from->has_theory) {
        sim->result.theory_sent = from->theory.sent;
        sim->result.theory_received = from->theory.recv;
        if (from->theory.staleness >= 0) sim->result.theory_staleness = from->theory.staleness;
    }
    memcpy(sim->result.weights_sha256, from->weights_sha256, sizeof sim->result.weights_sha256);
    memcpy(sim->result.log_sha256, from->log_sha256, sizeof sim->result.log_sha256);
    return EN_OK;
}

en_status en_sim_run(en_sim *sim)
{
    if (sim->ended.nranks > 0) return eni_fail(EN_EINVAL, "sim", "this run has ended: open another one");
    EN_TRY(eni_sim_run(&sim->setup.sim, &sim->ended));
    return describe(sim);
}

const en_sim_result *en_sim_result_of(const en_sim *sim)
{
    return sim->result.size > 0 ? &sim->result : NULL;
}

void en_sim_why(char *text_out, size_t bytes)
{
    if (bytes > 0) (void)eni_log_last_error(text_out, bytes);
}

void en_sim_close(en_sim *sim)
{
    if (sim == NULL) return;
    eni_virtual_close(&sim->setup);
    eni_sim_result_fini(&sim->ended);
    eni_free(sim->tensors);
    eni_free(sim->init);
    eni_free(sim->weights);
    eni_free(sim->param);
    eni_free(sim->grad);
    eni_free(sim->steps);
    eni_free(sim->staleness);
    eni_free(sim);
}
