/* test_goldens.c - the golden traces: runs that golden_traces.py has computed from the papers' equations alone. The reference of
 * `entrain conform` must agree with each, and so must the plugin, in virtual time: what it does and the weights. */
#include "core/options.h"
#include "runtime/spec/strategies.h"
#include "tests/conform/trace.h"

/* Promise: For every strategy that has a reference, an independent script computes the same run as the reference and as the
 * plugin. */

#define FOLDER EN_SOURCE_DIR "/tests/conform/goldens"

typedef struct golden {
    char strategy[64], options[64], lines[1 << 14];
    int claims, batches;
    double times_us[ENI_PAPER_RANKS];
    hand_trace trace;
} golden;

/* ---- a file: "KEY VALUES" a line, an empty line, the trace ---- */

static int numbers(const char *text, double *out, int most)
{
    int n = 0;
    char *end;
    for (double x = strtod(text, &end); end != text && n < most; x = strtod(text = end, &end))
        out[n++] = x;
    return n;
}

static void read_key(golden *g, const char *key, const char *text)
{
    double number[HAND_BATCHES] = {0};
    hand_trace *t = &g->trace;
    const int n = numbers(text, number, HAND_BATCHES);
    if (strcmp(key, "strategy") == 0) {
        assert_true(sscanf(text, "%63[^:\n]:%63s", g->strategy, g->options) >= 1);
    } else if (strcmp(key, "ranks") == 0) {
        t->nranks = (int)number[0];
    } else if (strcmp(key, "together") == 0) {
        t->together = (int)number[0];
    } else if (strcmp(key, "claims") == 0) {
        g->claims = (int)number[0];
    } else if (strcmp(key, "times") == 0) {
        memcpy(g->times_us, number, sizeof g->times_us);
    } else if (strcmp(key, "gradients") == 0) {
        for (int i = 0; i < n; i++)
            t->gradients[i] = (float)number[i];
        g->batches = n;
    } else if (strcmp(key, "model") == 0) {
        t->model = number[0];
    } else {
        fail_msg("%s: a golden trace has no \"%s\"", g->strategy, key);
    }
}

static void read_golden(const char *strategy, golden *g)
{
    char path[256], line[256], key[32];
    snprintf(path, sizeof path, FOLDER "/%s.txt", strategy);
    FILE *file = fopen(path, "r");
    if (file == NULL) fail_msg("%s has no golden trace: add a row to golden_traces.py", strategy);
    memset(g, 0, sizeof *g);
    while (fgets(line, sizeof line, file) != NULL && line[0] != '\n') {
        int at = 0;
        assert_int_equal(sscanf(line, "%31s %n", key, &at), 1);
        read_key(g, key, line + at);
    }
    for (size_t n = 0; fgets(line, sizeof line, file) != NULL; n = strlen(g->lines)) {
        line[strcspn(line, "\n")] = '\0';
        assert_true((size_t)snprintf(g->lines + n, sizeof g->lines - n, "%s%s", n > 0 ? ";" : "", line) <
                    sizeof g->lines - n);
    }
    fclose(file);
    g->trace.strategy = g->strategy;
    g->trace.options = g->options;
    g->trace.lines = g->lines;
    g->trace.slope = 0.5f;
}

/* ---- the plugin, on the same inputs ---- */

typedef struct run {
    const golden *g;
    uint64_t n, begun[ENI_PAPER_RANKS];
    eni_sim_event event[HAND_EVENTS];
    float weight[HAND_EVENTS], model;
} run;

static void note(void *user, const eni_sim_event *e)
{
    run *r = user;
    if (e->type == ENI_SIM_COLL || e->type == ENI_SIM_SENDRECV) return;
    assert_true(r->n < HAND_EVENTS);
    if (e->type == ENI_SIM_STEP) r->begun[e->rank] = r->n;
    r->event[r->n++] = *e;
}

static en_status gradient(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    run *r = user;
    r->weight[r->begun[rank]] = param[0];
    grad[0] = hand_gradient((void *)(uintptr_t)&r->g->trace, micro_batch, 0, param[0]);
    return EN_OK;
}

static void play(const golden *g, run *r)
{
    static const eni_law law = {.kind = ENI_LAW_FIXED, .mean_ns = 1000000};
    static const float init[1];
    const en_model_tensor tensor = {.name = "x", .count = 1};
    const hand_trace *t = &g->trace;
    eni_slowdown slow[ENI_PAPER_RANKS];
    int32_t group[ENI_PAPER_RANKS];
    const en_strategy *strategy;
    eni_options *options;
    eni_sim_result result;
    for (int i = 0; i < t->nranks; i++) {
        group[i] = i - i % t->together;
        slow[i] = (eni_slowdown){.kind = ENI_SLOW_ALWAYS, .lo = i, .hi = i, .factor = g->times_us[i] / 1000};
    }
    *r = (run){.g = g};
    assert_int_equal(eni_strategy_find(EN_BUILD_DIR "/plugins", g->strategy, &strategy), EN_OK);
    assert_int_equal(eni_options_new(strategy, g->options, &options), EN_OK);
    const eni_sim_problem problem = {.count = 1,
                                     .tensors = &tensor,
                                     .ntensors = 1,
                                     .init = init,
                                     .samples = hand_samples,
                                     .grad = gradient,
                                     .user = r};
    const eni_sim_config config = {.strategy = strategy,
                                   .options = options,
                                   .problem = &problem,
                                   .nranks = t->nranks,
                                   .local_size = strategy->flags & EN_LEADERS_ARE_CLIENTS ? t->together : 0,
                                   .groups = strategy->flags & EN_USES_GROUPS ? group : NULL,
                                   .micro_batches = (uint64_t)g->batches,
                                   .assign = g->claims ? ENI_SIM_CLAIM : ENI_SIM_FIXED,
                                   .schedule = {.kind = ENI_LR_CONSTANT, .base = 0.5},
                                   .compute = {.laws = &law, .nlaws = 1, .slow = slow, .nslow = t->nranks},
                                   .trace = note,
                                   .trace_user = r,
                                   .traces_taken = true,
                                   .weights_out = &r->model};
    assert_int_equal(eni_sim_run(&config, &result), EN_OK);
    eni_sim_result_fini(&result);
    eni_options_free(options);
}

/* ---- the comparison ---- */

/* In rounds: by step, then by rank. The order of ranks after a collective means nothing. */
static void sort_steps(run *r)
{
    for (uint64_t i = 1; i < r->n; i++)
        for (uint64_t k = i; k > 0; k--) {
            eni_sim_event *a = &r->event[k - 1], *b = &r->event[k];
            if (a->clock < b->clock || (a->clock == b->clock && a->rank < b->rank)) break;
            const eni_sim_event event = *a;
            const float weight = r->weight[k - 1];
            *a = *b;
            *b = event;
            r->weight[k - 1] = r->weight[k];
            r->weight[k] = weight;
        }
}

static bool is_near(double a, double b)
{
    return (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-6 * fmax(1, fabs(b));
}

/* The i-th line of a trace. */
static const char *line_of(const char *lines, uint64_t i)
{
    for (; i > 0 && strchr(lines, ';') != NULL; i--)
        lines = strchr(lines, ';') + 1;
    return lines;
}

static void same_events(const golden *g, const run *r)
{
    eni_sim_event event[HAND_EVENTS];
    float weight[HAND_EVENTS];
    const uint64_t n = hand_events(g->lines, event, weight);
    for (uint64_t i = 0; i < n && i < r->n; i++) {
        const eni_sim_event *a = &r->event[i], *b = &event[i];
        const bool has_weight = b->type == ENI_SIM_STEP;
        if (a->type != b->type || a->rank != b->rank || (has_weight && a->clock != b->clock) ||
            (b->type != ENI_SIM_FINISHED && a->version != b->version) ||
            (b->type == ENI_SIM_PUSH && a->base != b->base) ||
            (b->type == ENI_SIM_TAKEN && !is_near(a->weight, b->weight)) ||
            (has_weight && !is_near((double)r->weight[i], (double)weight[i])))
            fail_msg("%s, event %d: expected \"%.40s..\"; the plugin: type %u, rank %d, clock %d, version "
                     "%d, base %d, weight %g",
                     g->strategy, (int)i, line_of(g->lines, i), a->type, a->rank, (int)a->clock,
                     (int)a->version, (int)a->base, has_weight ? (double)r->weight[i] : a->weight);
    }
    assert_int_equal(r->n, n);
    if (!is_near((double)r->model, g->trace.model))
        fail_msg("%s: the plugin ends with %g; expected %g", g->strategy, (double)r->model, g->trace.model);
}

static int ngoldens;

static void compare(void *user, const en_strategy *strategy, const char *path)
{
    static golden g;
    static run r;
    (void)user, (void)path;
    if (eni_reference_find(strategy->name) == NULL) return;
    read_golden(strategy->name, &g);
    hand_agrees(&g.trace, 1);
    play(&g, &r);
    if (eni_reference_find(strategy->name)->round != NULL) sort_steps(&r);
    same_events(&g, &r);
    ngoldens++;
}

static void references_and_plugins_do_what_the_script_says(void **state)
{
    (void)state;
    assert_int_equal(eni_strategy_list(EN_BUILD_DIR "/plugins", compare, NULL), EN_OK);
    assert_true(ngoldens >= 15);
    printf("PROMISE conform: %d golden traces of an independent script are those of reference and plugin\n",
           ngoldens);
}

/* A weight that is off in one step is seen. */
static void a_wrong_weight_is_seen(void **state)
{
    (void)state;
    static golden g;
    read_golden("ring", &g);
    g.trace.gradients[4] += 0.01f;
    assert_false(hand_judge(&g.trace).agrees);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(references_and_plugins_do_what_the_script_says),
                                       cmocka_unit_test(a_wrong_weight_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
