/* test_local_sgd.c - local SGD and its outer steps (strategies/local_sgd.c) on the virtual host, against a loop in doubles of the
 * papers' equations, against each other where they meet, and diloco against the numbers that torchft publishes. */
#include <jansson.h>

#include "tests/strategies/sim_rig.h"

/* Promise: local-sgd, slowmo and diloco are their papers' equations, and equal where the papers say so.
 * Promise: diloco makes torchft's published steps of a linear model. */

enum { COUNT = 200, RANKS = 6 };

typedef struct trial {
    const char *spec, *groups; /* NULL: none; all ranks on one host */
    int nranks;
    uint64_t steps, last_samples; /* of the last rank but one, while the last has none; 0: all have 8 */
    float momentum;               /* of the ranks' optimizer, Nesterov's */
    uint64_t warmup;              /* steps of it, from rate 0 */
    float weights[COUNT];
    char hash[ENI_DIGEST_HEX];
    double sent; /* models a step and rank */
    en_theory theory;
} trial;

static void train(trial *t)
{
    rig r;
    rig_init(&r, t->spec, t->nranks, (uint64_t)t->nranks * t->steps - (t->last_samples > 0 ? 1 : 0));
    r.problem.problem.grad = rig_bent;
    r.config.hyper.momentum = t->momentum;
    r.config.hyper.nesterov = t->momentum > 0;
    r.config.schedule.warmup = t->warmup * (uint64_t)t->nranks * 8;
    if (t->last_samples > 0) rig_ragged(&r, t->last_samples);
    rig_groups(&r, t->groups);
    r.config.weights_out = t->weights;
    rig_slow(&r, t->nranks - 1, 1.5);
    const eni_sim_result *out = rig_run(&r);
    memcpy(t->hash, out->weights_sha256, sizeof t->hash);
    t->sent = (double)out->sent / (COUNT * sizeof(float) * (double)t->steps * t->nranks);
    t->theory = out->theory;
    rig_fini(&r);
}

static double gap_of(const trial *a, const trial *b)
{
    double gap = 0;
    for (int i = 0; i < COUNT; i++)
        gap = fmax(gap, fabs((double)a->weights[i] - (double)b->weights[i]));
    return gap;
}

/* ---- the papers' equations ------------------------------------------------------------------------------- */

enum { MEAN, SLOWMO, DILOCO };
enum { KEEP, AVERAGE, RESET };

typedef struct outer_rule {
    int outer, buffer;
    uint64_t period, start;
    double beta, alpha; /* slowmo's; diloco: momentum and rate */
    bool is_nesterov;
} outer_rule;

/* One weight of all ranks. */
typedef struct column {
    double x[RANKS], v[RANKS]; /* and the optimizer's momentum */
    double start, u;           /* of the last agreement; the outer momentum */
} column;

static void agree(const outer_rule *rule, column *c, int n, double rate)
{
    double mean = 0, buffer = 0;
    for (int r = 0; r < n; r++) {
        mean += c->x[r] / n;
        buffer += c->v[r] / n;
    }
    if (rule->outer == SLOWMO) { /* alg. 1: u = beta u + (x0 - mean) / rate; x0 -= alpha rate u */
        if (rate > 0) c->u = rule->beta * c->u + (c->start - mean) / rate;
        if (rate == 0) c->u *= rule->beta;
        mean = rate > 0 ? c->start - rule->alpha * rate * c->u : mean;
    } else if (rule->outer == DILOCO) { /* alg. 1 with PyTorch's SGD on x0 - mean */
        const double delta = c->start - mean;
        c->u = rule->beta * c->u + delta;
        mean = c->start - rule->alpha * (rule->is_nesterov ? delta + rule->beta * c->u : c->u);
    }
    c->start = mean;
    for (int r = 0; r < n; r++) {
        c->x[r] = mean;
        if (rule->buffer != KEEP) c->v[r] = rule->buffer == AVERAGE ? buffer : 0;
    }
}

/* A step of each island (`of` says each rank's) by PyTorch's SGD, on the mean of its gradients by their samples. */
static void inner(const trial *t, column *c, const int *of, uint64_t i, uint64_t step, double rate)
{
    const uint64_t n = (uint64_t)t->nranks, last = n * t->steps - 2;
    double sum[RANKS] = {0}, samples[RANKS] = {0};
    const double momentum = (double)t->momentum, decay = (double)1e-3f;
    for (uint64_t r = 0; r < n; r++) {
        const uint64_t micro = step * n + r;
        const double count = t->last_samples == 0 || micro < last ? 8
                             : micro == last                      ? (double)t->last_samples
                                                                  : 0;
        sum[of[r]] += count * rig_slope(i, micro, c->x[r]);
        samples[of[r]] += count;
    }
    for (uint64_t r = 0; r < n; r++) {
        if (samples[of[r]] == 0) continue;
        const double gradient = sum[of[r]] / samples[of[r]] + decay * c->x[r];
        c->v[r] = momentum * c->v[r] + gradient;
        c->x[r] -= rate * (gradient + momentum * c->v[r]);
    }
}

static double oracle(const trial *t, const outer_rule *rule, const int *of)
{
    double gap = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        column c = {{0}};
        double mean = 0;
        for (uint64_t step = 0; step < t->steps; step++) {
            const double rate =
                (double)(float)(0.02 * (step < t->warmup ? (double)step / (double)t->warmup : 1));
            inner(t, &c, of, i, step, rate);
            if (step < rule->start || (step + 1) % rule->period == 0) agree(rule, &c, t->nranks, rate);
        }
        for (int r = 0; r < t->nranks; r++)
            mean += c.x[r] / t->nranks;
        gap = fmax(gap, fabs((double)t->weights[i] - (rule->outer == MEAN ? mean : c.start)));
    }
    return gap;
}

static const int alone[RANKS] = {0, 1, 2, 3, 4, 5};

/* Two sizes of world, with and without momentum, even and ragged, with a warm-up that begins at rate 0. */
static void is_the_paper(const char *spec, const outer_rule *rule)
{
    double worst = 0;
    for (int c = 0; c < 16; c++) {
        trial t = {.spec = spec,
                   .nranks = c & 1 ? 5 : 2,
                   .steps = 30,
                   .momentum = c & 2 ? 0.9f : 0,
                   .last_samples = c & 4 ? 3 : 0,
                   .warmup = c & 8 ? 12 : 0};
        train(&t);
        const double gap = oracle(&t, rule, alone);
        if (!(gap < 2e-6))
            fail_msg("%s, %d ranks, momentum %g, last %d, warm-up %d: %.1e off", spec, t.nranks,
                     (double)t.momentum, (int)t.last_samples, (int)t.warmup, gap);
        worst = fmax(worst, gap);
    }
    printf("PROMISE %s (virtual): 16 runs are the paper's equations within %.1e\n", spec, worst);
}

static void local_sgd_is_its_paper(void **state)
{
    (void)state;
    is_the_paper("local-sgd", &(outer_rule){.period = 8});
    is_the_paper("local-sgd:period=3", &(outer_rule){.period = 3});
    is_the_paper("local-sgd:period=6,start=10", &(outer_rule){.period = 6, .start = 10});
    is_the_paper("local-sgd:period=40,start=1", &(outer_rule){.period = 40, .start = 1});
}

static void slowmo_is_its_paper(void **state)
{
    (void)state;
    outer_rule rule = {.outer = SLOWMO, .period = 4, .beta = 0.5, .alpha = 1};
    is_the_paper("slowmo:period=4", &rule);
    rule.buffer = AVERAGE;
    is_the_paper("slowmo:period=4,buffer=average", &rule);
    rule.buffer = RESET;
    is_the_paper("slowmo:period=4,buffer=reset", &rule);
    rule = (outer_rule){.outer = SLOWMO, .period = 1, .beta = 0.7, .alpha = 0.5};
    is_the_paper("slowmo:period=1,beta=0.7,alpha=0.5", &rule);
}

static void diloco_is_its_paper(void **state)
{
    (void)state;
    outer_rule rule = {.outer = DILOCO, .period = 5, .beta = 0.9, .alpha = 0.7, .is_nesterov = true};
    is_the_paper("diloco:period=5", &rule);
    rule.is_nesterov = false;
    is_the_paper("diloco:period=5,nesterov=off", &rule);
    rule = (outer_rule){.outer = DILOCO, .period = 1, .beta = 0, .alpha = 1, .is_nesterov = true};
    is_the_paper("diloco:period=1,lr=1,momentum=0", &rule);
}

/* Islands of several ranks: their ranks take each step together. */
static void islands_of_diloco(void **state)
{
    (void)state;
    static const struct {
        const char *groups;
        int nranks, of[RANKS];
    } cuts[] = {{"2", 4, {0, 0, 1, 1}},
                {"0,2;1,3", 4, {0, 1, 0, 1}},
                {"3", 6, {0, 0, 1, 1, 2, 2}},
                {"0;1-3", 4, {0, 1, 1, 1}}};
    const outer_rule rule = {.outer = DILOCO, .period = 5, .beta = 0.9, .alpha = 0.7, .is_nesterov = true};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        trial t = {.spec = "diloco:period=5",
                   .groups = cuts[i].groups,
                   .nranks = cuts[i].nranks,
                   .steps = 30,
                   .momentum = 0.9f,
                   .last_samples = 3};
        train(&t);
        const double gap = oracle(&t, &rule, cuts[i].of);
        if (!(gap < 2e-6)) fail_msg("groups %s: %.1e off", cuts[i].groups, gap);
    }
}

/* ---- where they meet ------------------------------------------------------------------------------------- */

static void near(const char *a, const char *b, float momentum, uint64_t warmup)
{
    for (int n = 1; n <= RANKS; n++) {
        trial one = {.spec = a, .nranks = n, .steps = 30, .momentum = momentum, .warmup = warmup},
              other = {.spec = b, .nranks = n, .steps = 30, .momentum = momentum, .warmup = warmup};
        train(&one);
        train(&other);
        if (!(gap_of(&one, &other) < 1e-6))
            fail_msg("%s and %s, %d ranks: %.1e", a, b, n, gap_of(&one, &other));
    }
    printf("PROMISE equal to 1e-6 (virtual): %s = %s, momentum %g, 1 to %d ranks\n", a, b, (double)momentum,
           RANKS);
}

static void equal_where_the_papers_meet(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const float momentum = i == 0 ? 0 : 0.9f;
        near("local-sgd:period=1", "ring", momentum, 0);
        near("local-sgd:period=30,start=30", "ring", momentum, 5);
        near("slowmo:period=5,beta=0,alpha=1", "local-sgd:period=5", momentum, 7);
        near("diloco:period=1,lr=1,momentum=0", "local-sgd:period=1", momentum, 7);
        near("diloco:period=5,nesterov=0", "slowmo:period=5,beta=0.9,alpha=0.7", momentum, 0);
    }
}

static void same_bytes(trial a, trial b)
{
    train(&a);
    train(&b);
    if (strcmp(a.hash, b.hash) != 0) fail_msg("%s and %s, %d ranks: other bytes", a.spec, b.spec, a.nranks);
}

static void same_bytes_where_they_are_one(void **state)
{
    (void)state;
    const trial base = {.steps = 30, .momentum = 0.9f, .last_samples = 3};
    for (int n = 1; n <= RANKS; n++) {
        char groups[4];
        trial a = base, b = base;
        snprintf(groups, sizeof groups, "%d", n);
        a.nranks = b.nranks = n;
        a.last_samples = b.last_samples = n > 1 ? 3 : 0;
        a.spec = "local-sgd:period=4";
        b.spec = n > 1 ? "grouped:period=4" : "solo";
        b.groups = n > 1 ? groups : NULL;
        same_bytes(a, b);
        b.spec = RIG_PLUGINS "/localsgd.so:period=4";
        b.groups = NULL;
        same_bytes(a, b);
        a.spec = b.spec = "diloco:period=4";
        b.groups = groups;
        same_bytes(a, b);
    }
    printf("PROMISE same bytes (virtual): local-sgd = grouped with one rank a group = examples/localsgd.c; "
           "of one rank "
           "= solo; diloco with groups of one = without groups\n");
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

static void bytes_are_those_of_the_theory(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *groups;
        double sent;
    } of[] = {{"local-sgd:period=4", NULL, 1.5 / 4},
              {"local-sgd:period=4,start=8", NULL, 1.5 * (8 + 32 / 4.0) / 40},
              {"slowmo:period=4", NULL, 1.5 / 4},
              {"slowmo:period=4,buffer=average", NULL, 3.0 / 4},
              {"diloco:period=4", NULL, 1.5 / 4},
              {"diloco:period=4", "2", 1 + 1.5 / 4}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        trial t = {.spec = of[i].spec, .groups = of[i].groups, .nranks = 4, .steps = 40, .momentum = 0.9f};
        train(&t);
        if (!(fabs(t.sent / of[i].sent - 1) < 1e-3 && fabs(t.theory.sent - of[i].sent) < 1e-9))
            fail_msg("%s: sent %.4f, theory %.4f, expected %.4f", of[i].spec, t.sent, t.theory.sent,
                     of[i].sent);
    }
}

/* ---- torchft's published steps --------------------------------------------------------------------------- */

/* tests/strategies/torchft/mocked_updates_0.json: two replicas, a weight in each of two fragments, gradient 2 at rate 1, outer
 * SGD of rate 2 without momentum, an agreement every 6 steps, the first fragment's 3 steps earlier. The other files mix or delay
 * (streaming DiLoCo), which is not here. */
static float seen[2][32]; /* by rank and step: the weight before it */
static uint64_t nseen[2];

static en_status gradient_of_2(void *user, int rank, uint64_t micro, const float *param, float *grad)
{
    (void)user, (void)micro;
    seen[rank][nseen[rank]++] = param[0];
    for (uint64_t i = 0; i < COUNT; i++)
        grad[i] = 2;
    return EN_OK;
}

static double published(const json_t *steps, uint64_t step, const char *layer)
{
    char key[8];
    snprintf(key, sizeof key, "%d", (int)step);
    const json_t *value = json_object_get(json_object_get(steps, key), layer);
    assert_non_null(value);
    return json_number_value(json_array_get(json_array_get(value, 0), 0));
}

/* The published steps from `from` up to `to`, where our run begins with the weight of `from`. */
static void follows(const char *spec, const json_t *replica, int rank, const char *layer, uint64_t from,
                    uint64_t to)
{
    float init[COUNT];
    rig r;
    const json_t *steps = json_object_get(json_array_get(replica, 0), "history");
    memset(nseen, 0, sizeof nseen);
    for (int i = 0; i < COUNT; i++)
        init[i] = (float)published(steps, from, layer);
    rig_init(&r, spec, 2, 2 * (to - from + 1));
    r.problem.problem.grad = gradient_of_2;
    r.problem.problem.init = init;
    r.config.hyper = (eni_hyper){0};
    r.config.schedule.base = 1;
    rig_run(&r);
    for (uint64_t step = from; step <= to; step++)
        assert_true(fabs((double)seen[rank][step - from] - published(steps, step, layer)) < 1e-6);
    rig_fini(&r);
}

static void diloco_makes_the_steps_of_torchft(void **state)
{
    (void)state;
    json_t *file = json_load_file(EN_SOURCE_DIR "/tests/strategies/torchft/mocked_updates_0.json", 0, NULL);
    assert_int_equal(json_array_size(file), 2);
    for (int rank = 0; rank < 2; rank++) {
        const json_t *replica = json_array_get(file, (size_t)rank);
        follows("diloco:period=6,lr=2,momentum=0", replica, rank, "layers.1.weight", 0, 15);
        follows("diloco:period=3,lr=2,momentum=0", replica, rank, "layers.0.weight", 0, 3);
        follows("diloco:period=6,lr=2,momentum=0", replica, rank, "layers.0.weight", 3, 15);
    }
    json_decref(file);
    printf("PROMISE diloco (virtual): the 16 steps of both fragments and replicas that torchft publishes\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_sgd_is_its_paper),        cmocka_unit_test(slowmo_is_its_paper),
        cmocka_unit_test(diloco_is_its_paper),           cmocka_unit_test(islands_of_diloco),
        cmocka_unit_test(equal_where_the_papers_meet),   cmocka_unit_test(same_bytes_where_they_are_one),
        cmocka_unit_test(bytes_are_those_of_the_theory), cmocka_unit_test(diloco_makes_the_steps_of_torchft)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
