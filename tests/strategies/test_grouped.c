/* test_grouped.c - groups of ranks on the virtual host. One group is ring, groups of one rank are localsgd, byte for
 * byte; of several groups a loop in doubles, which shares neither a mean nor an optimizer with what it judges, is the
 * oracle. The first ranks of groups have a group of their own. */
#include "tests/strategies/sim_rig.h"

/* Promise: grouped with one group is ring, byte for byte; groups of one rank are localsgd.
 * Promise: Several groups agree with a loop in doubles that shares no mean and no optimizer with them. */

enum { COUNT = 200, RANKS = 6 };

/* Momentum 0.9, Nesterov and weight decay (sim_rig.h); ragged: in the last round a rank has three samples, and the last
 * rank none. */
typedef struct trial {
    const char *spec, *groups; /* NULL: hosts of `local` ranks */
    int nranks, local;
    uint64_t steps;
    uint64_t last_samples;
    float weights[COUNT];
    char log[ENI_DIGEST_HEX];
    double sent; /* models a step and rank */
    en_theory theory;
} trial;

static void train(trial *t)
{
    rig r;
    rig_init(&r, t->spec, t->nranks, (uint64_t)t->nranks * t->steps - (t->last_samples > 0 ? 1 : 0));
    r.problem.problem.grad =
        rig_bent; /* else the mean over the groups would be the same whether they average or not */
    if (t->last_samples > 0) rig_ragged(&r, t->last_samples);
    rig_groups(&r, t->groups);
    r.config.local_size = t->local;
    r.config.weights_out = t->weights;
    rig_slow(&r, t->nranks - 1, 1.5);
    const eni_sim_result *out = rig_run(&r);
    memcpy(t->log, out->log_sha256, sizeof t->log);
    t->sent = (double)out->sent / (COUNT * sizeof(float) * (double)t->steps * t->nranks);
    t->theory = out->theory;
    rig_fini(&r);
}

static void one_group_is_ring(void **state)
{
    (void)state;
    for (int n = 1; n <= RANKS; n++)
        for (int local = 1; local <= n; local += n - 1 + (n == 1)) {
            trial ring = {.spec = "ring", .nranks = n, .local = local, .steps = 50, .last_samples = 3};
            trial one = {.spec = "grouped:period=3",
                         .groups = "1",
                         .nranks = n,
                         .local = local,
                         .steps = 50,
                         .last_samples = 3};
            train(&ring);
            train(&one);
            assert_memory_equal(ring.weights, one.weights, sizeof ring.weights);
            assert_string_equal(ring.log, one.log); /* at the same times, too */
        }
    printf("PROMISE same bytes (virtual): grouped with one group = ring, 1 to %d ranks, nesterov, ragged\n",
           RANKS);
}

static void groups_of_one_are_localsgd(void **state)
{
    (void)state;
    trial local = {.spec = RIG_PLUGINS "/localsgd.so:period=4", .nranks = 4, .local = 1, .steps = 50};
    trial ones = {.spec = "grouped:period=4", .nranks = 4, .local = 1, .steps = 50};
    train(&local);
    train(&ones);
    assert_memory_equal(local.weights, ones.weights, sizeof local.weights);
}

/* ---- several groups ------------------------------------------------------------------------------------- */

/* Every group by itself, one weight after the other: the mean of its ranks' gradients by their samples, a step of SGD
 * with Nesterov's momentum as PyTorch writes it, and the mean over all ranks. `of` says each rank's group. */
static void oracle(const trial *t, const int *of, uint64_t period, double *mean_out)
{
    const double momentum = (double)0.9f, decay = (double)1e-3f, rate = (double)0.02f;
    const uint64_t n = (uint64_t)t->nranks, last = n * t->steps - 2;
    for (uint64_t i = 0; i < COUNT; i++) {
        double w[RANKS] = {0}, v[RANKS] = {0}; /* of a group */
        for (uint64_t step = 0; step < t->steps; step++) {
            double sum[RANKS] = {0}, samples[RANKS] = {0}, all = 0;
            for (uint64_t r = 0; r < n; r++) {
                const uint64_t micro = step * n + r;
                const double count = t->last_samples == 0 || micro < last ? 8
                                     : micro == last                      ? (double)t->last_samples
                                                                          : 0;
                sum[of[r]] += count * rig_slope(i, micro, w[of[r]]);
                samples[of[r]] += count;
            }
            for (int g = 0; g < RANKS; g++) {
                if (samples[g] == 0) continue;
                const double gradient = sum[g] / samples[g] + decay * w[g];
                v[g] = momentum * v[g] + gradient;
                w[g] -= rate * (gradient + momentum * v[g]);
            }
            for (uint64_t r = 0; r < n; r++)
                all += w[of[r]] / (double)n;
            for (int g = 0; g < RANKS && period > 0 && (step + 1) % period == 0; g++)
                w[g] = all;
            mean_out[i] = all;
        }
    }
}

static void several_groups_are_the_oracle(void **state)
{
    (void)state;
    static const struct {
        int nranks, local;
        const char *groups;
        int of[RANKS];
    } cuts[] = {{4, 2, NULL, {0, 0, 1, 1}},          {4, 4, "2", {0, 0, 1, 1}},
                {4, 4, "0,2;1,3", {0, 1, 0, 1}},     {4, 2, "1-2;3,0", {0, 1, 1, 0}},
                {4, 4, "0;1-3", {0, 1, 1, 1}},       {6, 3, "3", {0, 0, 1, 1, 2, 2}},
                {5, 5, "0,4;1;2-3", {0, 1, 2, 2, 0}}};
    double worst = 0, least = 1;
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
        for (int period = 0; period <= 7; period += period == 0 ? 1 : 3)
            for (uint64_t last = 0; last <= 3; last += 3) {
                char spec[32];
                double expected[COUNT], gap = 0, apart = 0;
                trial t = {.spec = spec,
                           .groups = cuts[c].groups,
                           .nranks = cuts[c].nranks,
                           .local = cuts[c].local,
                           .steps = 28,
                           .last_samples = last};
                trial ring = {
                    .spec = "ring", .nranks = t.nranks, .local = t.local, .steps = 28, .last_samples = last};
                snprintf(spec, sizeof spec, "grouped:period=%d", period);
                train(&t);
                train(&ring);
                oracle(&t, cuts[c].of, (uint64_t)period, expected);
                for (int i = 0; i < COUNT; i++) {
                    gap = fmax(gap, fabs((double)t.weights[i] - expected[i]));
                    apart = fmax(apart, fabs((double)t.weights[i] - (double)ring.weights[i]));
                }
                if (gap >= 2e-6) fail_msg("%s, groups %s: %.2e off", spec, t.groups, gap);
                worst = fmax(worst, gap);
                if (period != 1)
                    least = fmin(least, apart); /* momentum is linear: 1 is ring, but for rounding */
            }
    assert_true(least > 1e-5); /* what is judged is another algorithm than ring */
    printf("PROMISE grouped (virtual): 7 cuts of 4 to 6 ranks, 4 periods, ragged: the sequential oracle "
           "within %.1e\n",
           worst);
}

/* ---- the first ranks of groups -------------------------------------------------------------------------- */

/* Were a group's mean counted with its leader's samples, groups of unequal load would count alike. */
static void leaders_count_by_their_groups(void **state)
{
    (void)state;
    static const char *const groups[] = {"2", "0,2;1,3", "0;1-3", "0-1;2;3", "4", "1"};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        double gap = 0;
        trial ring = {.spec = "ring", .nranks = 4, .local = 4, .steps = 50, .last_samples = 1};
        trial two = {.spec = RIG_ZOO "two-level",
                     .groups = groups[g],
                     .nranks = 4,
                     .local = 4,
                     .steps = 50,
                     .last_samples = 1};
        train(&ring);
        train(&two);
        for (int i = 0; i < COUNT; i++)
            gap = fmax(gap, fabs((double)ring.weights[i] - (double)two.weights[i]));
        if (gap >= 2e-6) fail_msg("groups %s: %.2e from ring", groups[g], gap);
    }
}

/* 2 (p-1)/p of the model inside a group, and the same of the world once in a period. */
static void bytes_are_those_of_the_theory(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *groups;
        int nranks;
        double sent, ahead;
    } of[] = {
        {"grouped:period=4", "2", 4, 1 + 1.5 / 4, 3},    {"grouped:period=1", "0,2;1,3", 4, 1 + 1.5, 0},
        {"grouped:period=0", "2", 6, 4.0 / 3, INFINITY}, {"grouped:period=8", "3", 6, 1 + 5.0 / 3 / 8, 7},
        {"grouped:period=8", "6", 6, 5.0 / 3 / 8, 7},    {"grouped:period=8", "1", 6, 5.0 / 3, 0}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        trial t = {.spec = of[i].spec,
                   .groups = of[i].groups,
                   .nranks = of[i].nranks,
                   .local = of[i].nranks,
                   .steps = 40};
        train(&t);
        assert_true(fabs(t.sent - of[i].sent) < 1e-3 && fabs(t.theory.sent - of[i].sent) < 1e-9);
        assert_true(t.theory.max_clocks_behind == of[i].ahead);
        if (i == 0)
            printf("PROMISE bytes (virtual): grouped, 2 groups of 2, period 4: sent %.4f of the model a "
                   "step, theory "
                   "%.4f\n",
                   t.sent, t.theory.sent);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_group_is_ring), cmocka_unit_test(groups_of_one_are_localsgd),
        cmocka_unit_test(several_groups_are_the_oracle), cmocka_unit_test(leaders_count_by_their_groups),
        cmocka_unit_test(bytes_are_those_of_the_theory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
