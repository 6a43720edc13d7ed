/* test_gossip.c - d-psgd (strategies/gossip.c) against a loop in doubles with its mixing matrix, and what the matrix does by
 * itself: the mean stands still, and the distance from it shrinks by the second singular value. */
#include "tests/strategies/sim_rig.h"
#include "tests/heard.h"

/* Promise: d-psgd is algorithm 1 of its paper on ring, complete and exponential graph; its mixing keeps the mean and shrinks the
 * distance by the second singular value. */

enum { COUNT = 200, RANKS = 8, STEPS = 24 };

/* ---- the mixing matrices, written down from the definitions ---------------------------------------------- */

/* w[i][j]: how much of x(j) is in the new x(i). */
static void mixing(const char *graph, int n, uint64_t step, double w[RANKS][RANKS])
{
    memset(w, 0, sizeof(double) * RANKS * RANKS);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            const int behind = (i - j + n) % n;
            int log = 0;
            while (1 << log < n)
                log++;
            if (strcmp(graph, "complete") == 0) w[i][j] = 1.0 / n;
            if (strcmp(graph, "ring") == 0 && n > 2 && (behind <= 1 || behind == n - 1)) w[i][j] = 1.0 / 3;
            if (strcmp(graph, "ring") == 0 && n <= 2) w[i][j] = 1.0 / n;
            if (strcmp(graph, "exponential") == 0 && log == 0) w[i][j] = 1;
            if (strcmp(graph, "exponential") == 0 && log > 0 &&
                (behind == 0 || behind == 1 << step % (uint64_t)log))
                w[i][j] = 0.5;
        }
}

static const struct {
    const char *graph;
    int nranks;
    double sent, singular; /* models a step; of a step */
} cases[] = {{"ring", 1, 0, 0},
             {"ring", 2, 1, 0},
             {"ring", 3, 2, 0},
             {"ring", 5, 2, 0.5393446629},
             {"ring", 8, 2, 0.8047378541},
             {"complete", 2, 1, 0},
             {"complete", 3, 2, 0},
             {"complete", 5, 4, 0},
             {"complete", 8, 7, 0},
             {"exponential", 1, 0, 0},
             {"exponential", 2, 1, 0},
             {"exponential", 4, 1, 1},
             {"exponential", 8, 1, 1}};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- algorithm 1 ----------------------------------------------------------------------------------------- */

static double samples_of(const rig *r, uint64_t micro)
{
    return micro + 1 < r->config.micro_batches ? 8 : micro + 1 == r->config.micro_batches ? 3 : 0;
}

/* How far the mean of the models is from the loop's. */
static double gap_of(const rig *r, const char *graph, const float *weights, float momentum)
{
    const int n = r->config.nranks;
    const double rate = (double)0.02f, decay = (double)1e-3f, mu = (double)momentum;
    double gap = 0, w[RANKS][RANKS];
    for (uint64_t i = 0; i < COUNT; i++) {
        double x[RANKS] = {0}, v[RANKS] = {0}, mean = 0;
        for (uint64_t step = 0; step < STEPS; step++) {
            double next[RANKS] = {0};
            mixing(graph, n, step, w);
            for (int a = 0; a < n; a++) {
                const uint64_t micro = step * (uint64_t)n + (uint64_t)a;
                for (int b = 0; b < n; b++)
                    next[a] += w[a][b] * x[b];
                if (samples_of(r, micro) == 0) continue;
                const double g = rig_slope(i, micro, x[a]) + decay * x[a];
                v[a] = mu * v[a] + g;
                next[a] -= rate * (mu > 0 ? g + mu * v[a] : g);
            }
            memcpy(x, next, sizeof x);
        }
        for (int a = 0; a < n; a++)
            mean += x[a] / n;
        gap = fmax(gap, fabs((double)weights[i] - mean));
    }
    return gap;
}

static void is_algorithm_1(void **state)
{
    (void)state;
    double worst = 0;
    for (int c = 0; c < 2 * CASES; c++) {
        char spec[32];
        float weights[COUNT];
        const int n = cases[c / 2].nranks;
        rig r;
        snprintf(spec, sizeof spec, "d-psgd:graph=%s", cases[c / 2].graph);
        rig_init(&r, spec, n, (uint64_t)n * STEPS - (n > 1));
        r.problem.problem.grad = rig_bent; /* else the mean of the models would not depend on the mixing */
        rig_ragged(&r, 3);
        r.config.hyper.momentum = c % 2 ? 0.9f : 0;
        r.config.hyper.nesterov = c % 2;
        r.config.weights_out = weights;
        r.law.kind = ENI_LAW_LOGNORMAL;
        r.law.spread = 0.5;
        const eni_sim_result *out = rig_run(&r);
        const double sent = (double)out->sent / (COUNT * sizeof(float) * (double)STEPS * n),
                     gap = gap_of(&r, cases[c / 2].graph, weights, r.config.hyper.momentum);
        if (!(gap < 2e-6)) fail_msg("%s, %d ranks, momentum %d: %.1e off", spec, n, c % 2, gap);
        assert_true(fabs(sent - cases[c / 2].sent) < 1e-9 && out->theory.sent == cases[c / 2].sent);
        worst = fmax(worst, gap);
        rig_fini(&r);
    }
    printf("PROMISE d-psgd (virtual): %d runs on ring, complete and exponential graph of 1 to 8 ranks are "
           "algorithm "
           "1 within %.1e, and send what theory says\n",
           2 * CASES, worst);
}

static void one_rank_is_solo(void **state)
{
    (void)state;
    char hash[2][ENI_DIGEST_HEX];
    static const char *const specs[] = {"solo", "d-psgd"};
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_init(&r, specs[i], 1, STEPS);
        memcpy(hash[i], rig_run(&r)->weights_sha256, ENI_DIGEST_HEX);
        rig_fini(&r);
    }
    assert_string_equal(hash[0], hash[1]);
}

/* ---- the mixing alone: a kick to each rank in its first step, then a rate of 0 in all but name ------------- */

static float seen[RANKS][STEPS + 1][COUNT]; /* the weights before each step */
static uint64_t nseen[RANKS];
static double kick_of[RANKS];

static en_status kick(void *user, int rank, uint64_t micro, const float *param, float *grad)
{
    (void)user, (void)micro;
    memcpy(seen[rank][nseen[rank]], param, sizeof seen[rank][0]);
    for (uint64_t i = 0; i < COUNT; i++)
        grad[i] = nseen[rank] == 0 ? (float)(kick_of[rank] * (1 + (double)i / COUNT)) : 0;
    nseen[rank]++;
    return EN_OK;
}

/* The mean at a step, and the root of the sum of squares from it. */
static double distance_at(int n, uint64_t step, double *mean_out)
{
    double squares = 0;
    *mean_out = 0;
    for (int i = 0; i < COUNT; i++) {
        double mean = 0;
        for (int r = 0; r < n; r++)
            mean += (double)seen[r][step][i] / n;
        for (int r = 0; r < n; r++)
            squares += ((double)seen[r][step][i] - mean) * ((double)seen[r][step][i] - mean);
        *mean_out += mean / COUNT;
    }
    return sqrt(squares);
}

static void mixes_by_its_singular_value(const char *graph, int n, double singular)
{
    char spec[32];
    double mean, first;
    int log = 0;
    rig r;
    while (1 << log < n)
        log++;
    memset(nseen, 0, sizeof nseen);
    for (int i = 0; i < n; i++) /* the second singular vector of a circle */
        kick_of[i] = cos(2 * acos(-1.0) * i / n) + 2;
    snprintf(spec, sizeof spec, "d-psgd:graph=%s", graph);
    rig_init(&r, spec, n, (uint64_t)n * (STEPS / 2));
    r.problem.problem.grad = kick;
    r.config.hyper = (eni_hyper){0};
    r.config.schedule.base = 1;
    rig_run(&r);
    double before = distance_at(n, 1, &first);
    for (uint64_t step = 2; step < STEPS / 2; step++) {
        const double now = distance_at(n, step, &mean);
        assert_true(fabs(mean - first) < 1e-6 * fabs(first));
        if (singular < 1)
            assert_true(fabs(now - singular * before) < 1e-5 * (1 + before));
        else if (step >= 1 + (uint64_t)log) /* of the exponential graph: the exact mean */
            assert_true(now < 1e-5);
        before = now;
    }
    rig_fini(&r);
}

static void mixing_keeps_the_mean(void **state)
{
    (void)state;
    for (int c = 0; c < CASES; c++)
        if (cases[c].nranks > 1)
            mixes_by_its_singular_value(cases[c].graph, cases[c].nranks, cases[c].singular);
    printf("PROMISE d-psgd (virtual): at rate 0 the mean stands still, and the distance from it shrinks by "
           "the second "
           "singular value (ring of 8: 0.8047; exponential: 0 after log2 W steps)\n");
}

/* ---- refusals -------------------------------------------------------------------------------------------- */

static heard said;

static void graphs_that_the_world_does_not_allow(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *says;
        int nranks;
    } of[] = {{"d-psgd:graph=exponential", "of 3 workers", 3},
              {"d-psgd:graph=exponential", "of 5 workers", 5},
              {"d-psgd:graph=star", "graph=star is unknown", 4}};
    eni_log_set_sink(hear, &said);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        rig r;
        rig_init(&r, of[i].spec, of[i].nranks, 8);
        assert_int_equal(eni_sim_run(&r.config, &r.result), EN_EINVAL);
        if (strstr(said.text, of[i].says) == NULL) fail_msg("'%s' does not say '%s'", said.text, of[i].says);
        rig_fini(&r);
    }
    eni_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_algorithm_1), cmocka_unit_test(one_rank_is_solo),
                                       cmocka_unit_test(mixing_keeps_the_mean),
                                       cmocka_unit_test(graphs_that_the_world_does_not_allow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
