/* test_api.c - entrain/sim.h as another program uses it: on libentrain.so alone. */

/* Promise: a gradient of the caller's in virtual time: ring and ps-sync end with the same bytes. */
#include "entrain/sim.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 40, TENSORS = 3 };

typedef struct trial {
    int breaks_at; /* micro-batch; -1: never */
    void (*breaks)(float *grad, en_status *st);
    int nevals;
    uint64_t last_samples;
    char said[512];
    float init[COUNT];
} trial;

static en_status pull_to_one(void *user, int32_t rank, uint64_t micro_batch, const float *param, float *grad)
{
    trial *t = user;
    en_status st = EN_OK;
    (void)rank;
    for (int i = 0; i < COUNT; i++)
        grad[i] =
            (0.5f + (float)i / COUNT) * (param[i] - 1 - 0.01f * (float)((micro_batch + (uint64_t)i) % 7));
    if (t->breaks_at >= 0 && micro_batch == (uint64_t)t->breaks_at) t->breaks(grad, &st);
    return st;
}

static en_status count_evals(void *user, uint64_t samples, int64_t virtual_ns, const float *param)
{
    trial *t = user;
    assert_true(samples >= t->last_samples && virtual_ns >= 0 && isfinite(param[0]));
    t->last_samples = samples;
    t->nevals++;
    return EN_OK;
}

static void keep(void *user, int level, const char *subsystem, const char *text)
{
    trial *t = user;
    (void)subsystem;
    if (level == 0) snprintf(t->said, sizeof t->said, "%s", text);
}

static const uint64_t sizes[TENSORS] = {25, 5, 10};

static en_sim_problem problem_of(trial *t)
{
    return (en_sim_problem){.abi = EN_SIM_ABI,
                            .size = sizeof(en_sim_problem),
                            .count = COUNT,
                            .init = t->init,
                            .samples = 8,
                            .tensors = sizes,
                            .ntensors = TENSORS,
                            .grad = pull_to_one,
                            .eval = count_evals,
                            .eval_every = 64,
                            .user = t};
}

static en_status open_with(trial *t, const en_sim_problem *problem, const char *settings, en_sim **sim_out)
{
    const en_sim_options options = {.size = sizeof options, .log = keep, .log_user = t};
    char text[512];
    const char *list[16];
    size_t n = 0;
    snprintf(text, sizeof text, "%s", settings);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " "))
        list[n++] = word;
    /* Through a pointer: in a program without PIE (CMakeLists.txt) the function's address then lies in the program, and the
     * library finds its strategies all the same. */
    en_status (*volatile open)(const en_sim_problem *, const char *const *, size_t, const en_sim_options *,
                               en_sim **) = en_sim_open;
    return open(problem, list, n, &options, sim_out);
}

/* The final weights; the log's hash in log_out. */
static void run(const char *settings, float weights_out[COUNT], char log_out[65])
{
    trial t = {.breaks_at = -1};
    const en_sim_problem problem = problem_of(&t);
    en_sim *sim;
    if (open_with(&t, &problem, settings, &sim) != EN_OK || en_sim_run(sim) != EN_OK)
        fail_msg("%s: %s", settings, t.said);
    const en_sim_result *r = en_sim_result_of(sim);
    memcpy(weights_out, r->weights, COUNT * sizeof(float));
    memcpy(log_out, r->log_sha256, sizeof r->log_sha256);
    assert_int_equal(r->samples, t.last_samples); /* the last eval is at the end */
    assert_int_equal(t.nevals, 2 + (r->samples - 1) / 64 + (r->samples % 64 == 0));
    en_sim_close(sim);
}

static void ring_is_ps_sync_in_every_byte(void **state)
{
    (void)state;
    float ring[COUNT], server[COUNT];
    char log[65], settings[200];
    for (int w = 2; w <= 4; w++) {
        static const char *const both[] = {"ring", "ps-sync shards=3"};
        for (int i = 0; i < 2; i++) {
            snprintf(settings, sizeof settings,
                     "workers=%d steps=50 lr=0.1 momentum=0.9 bucket-cap=64 strategy=%s", w, both[i]);
            run(settings, i == 0 ? ring : server, log);
        }
        assert_memory_equal(ring, server, sizeof ring);
    }
    printf("PROMISE virtual time, a gradient of the caller's: ring = ps-sync byte for byte, W = 2, 3, 4\n");
}

static void a_run_is_a_function_of_its_settings(void **state)
{
    (void)state;
    float a[COUNT], b[COUNT];
    char first[65], second[65], other[65];
    const char *settings = "strategy=ssp:bound=2 workers=5 steps=40 lr=0.05 compute=lognormal:1ms,0.5 seed=3";
    run(settings, a, first);
    run(settings, b, second);
    assert_memory_equal(a, b, sizeof a);
    assert_string_equal(first, second);
    run("strategy=ssp:bound=2 workers=5 steps=40 lr=0.05 compute=lognormal:1ms,0.5 seed=4", b, other);
    assert_string_not_equal(first, other);
}

/* Of memoryless workers each push meets one of every other worker's on average. */
static void staleness_of_memoryless_workers(void **state)
{
    (void)state;
    for (int w = 4; w <= 16; w *= 4) {
        trial t = {.breaks_at = -1};
        en_sim_problem problem = problem_of(&t);
        char settings[200];
        en_sim *sim;
        problem.tensors = NULL;
        problem.eval = NULL;
        snprintf(settings, sizeof settings,
                 "strategy=ps-async workers=%d steps=2000 lr=0.001 compute=exp:10ms net=none bucket_cap=4096",
                 w);
        assert_int_equal(open_with(&t, &problem, settings, &sim), EN_OK);
        assert_int_equal(en_sim_run(sim), EN_OK);
        const en_sim_result *r = en_sim_result_of(sim);
        uint64_t pushes = 0;
        for (uint64_t i = 0; i < r->nstaleness; i++)
            pushes += r->staleness[i];
        assert_true(pushes > 0 && pushes <= r->pushes);
        if (fabs(r->staleness_mean / (w - 1) - 1) > 0.005 || fabs(r->theory_staleness - (w - 1)) > 1e-9)
            fail_msg("W = %d: staleness %g, theory %g", w, r->staleness_mean, r->theory_staleness);
        assert_int_equal(en_sim_run(sim), EN_EINVAL); /* once */
        en_sim_close(sim);
    }
}

static void write_nan(float *grad, en_status *st)
{
    (void)st;
    grad[3] = NAN;
}

static void write_beyond(float *grad, en_status *st)
{
    (void)st;
    grad[COUNT] = 0;
}

static void refuse(float *grad, en_status *st)
{
    (void)grad;
    *st = EN_EIO;
}

static void be_late(float *grad, en_status *st)
{
    (void)grad;
    *st = EN_ETIMEOUT;
}

static void a_callback_that_fails_ends_the_run(void **state)
{
    (void)state;
    static const struct {
        void (*breaks)(float *, en_status *);
        en_status status;
        const char *words[2];
    } cases[] = {{write_nan, EN_ENONFINITE, {"nan", "3"}},
                 {write_beyond, EN_EBUG, {"element 40", "5"}},
                 {refuse, EN_EIO, {"micro-batch 5", "rank"}},
                 {be_late, EN_ETIMEOUT, {"micro-batch 5", "callback"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trial t = {.breaks_at = 5, .breaks = cases[i].breaks};
        const en_sim_problem problem = problem_of(&t);
        en_sim *sim;
        char why[512];
        assert_int_equal(open_with(&t, &problem, "strategy=ps-async workers=3 steps=20 lr=0.01", &sim),
                         EN_OK);
        assert_int_equal(en_sim_run(sim), cases[i].status);
        assert_null(en_sim_result_of(sim));
        en_sim_why(why, sizeof why);
        assert_string_equal(why, t.said);
        for (int k = 0; k < 2; k++)
            if (strstr(why, cases[i].words[k]) == NULL) fail_msg("\"%s\" lacks %s", why, cases[i].words[k]);
        en_sim_close(sim);
    }
}

static en_status write_half(void *user, int32_t rank, uint64_t micro_batch, const float *param, float *grad)
{
    (void)user, (void)rank, (void)micro_batch;
    for (int i = 0; i < COUNT / 2; i++)
        grad[i] = param[i] - 1;
    return EN_OK;
}

static en_status add_up(void *user, int32_t rank, uint64_t micro_batch, const float *param, float *grad)
{
    (void)user, (void)rank, (void)micro_batch;
    for (int i = 0; i < COUNT; i++)
        grad[i] += param[i] - 1;
    return EN_OK;
}

static void a_gradient_is_overwritten_as_a_whole(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        trial t = {.breaks_at = -1};
        en_sim_problem problem = problem_of(&t);
        en_sim *sim;
        problem.grad = i == 0 ? write_half : add_up;
        assert_int_equal(open_with(&t, &problem, "workers=2 steps=3", &sim), EN_OK);
        assert_int_equal(en_sim_run(sim), EN_EBUG);
        if (strstr(t.said, i == 0 ? "element 20" : "element 0") == NULL) fail_msg("\"%s\"", t.said);
        en_sim_close(sim);
    }
}

/* Times of any length and many samples: the clock and the counts do not wrap. */
static void large_numbers_do_not_wrap(void **state)
{
    (void)state;
    static const char *const too_long[] = {
        "compute=fixed:2500000h", "strategy=ps-async compute=exp:2500000h straggler=1:1000",
        "net=delay:2500000h", "strategy=ps-async net=rate:1B,delay:2500000h"};
    for (size_t i = 0; i < sizeof too_long / sizeof *too_long; i++) {
        trial t = {.breaks_at = -1};
        const en_sim_problem problem = problem_of(&t);
        en_sim *sim;
        assert_int_equal(open_with(&t, &problem, too_long[i], &sim), EN_OK);
        if (en_sim_run(sim) != EN_EINVAL || strstr(t.said, "36 years") == NULL)
            fail_msg("%s: \"%s\"", too_long[i], t.said);
        en_sim_close(sim);
    }
    trial t = {.breaks_at = -1};
    en_sim_problem problem = problem_of(&t);
    en_sim *sim;
    problem.samples = UINT64_C(1) << 31;
    problem.eval_every = 3;
    assert_int_equal(open_with(&t, &problem, "workers=2 steps=10", &sim), EN_OK);
    assert_int_equal(en_sim_run(sim), EN_OK);
    assert_true(en_sim_result_of(sim)->samples == 20 * problem.samples && t.nevals == 22);
    en_sim_close(sim);
}

static void *run_many(void *user)
{
    float(*weights)[COUNT] = user;
    for (int i = 0; i < 20; i++) {
        trial t = {.breaks_at = -1};
        const en_sim_problem problem = problem_of(&t);
        en_sim *sim;
        if (open_with(&t, &problem, "strategy=ssp:bound=1 workers=3 steps=20 compute=exp:1ms", &sim) != EN_OK)
            return "open";
        if (en_sim_run(sim) != EN_OK) return "run";
        memcpy(*weights, en_sim_result_of(sim)->weights, sizeof *weights);
        en_sim_close(sim);
    }
    return NULL;
}

static void runs_go_on_in_several_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    float weights[THREADS + 1][COUNT];
    assert_null(run_many(weights[THREADS]));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_many, weights[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        if (failed != NULL) fail_msg("%s", (const char *)failed);
        assert_memory_equal(weights[i], weights[THREADS], sizeof weights[i]);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *settings;
        en_status status;
        const char *word;
    } cases[] = {{"lrr=0.1", EN_EINVAL, "lr"},
                 {"device=cuda", EN_EINVAL, "device"},
                 {"json", EN_EINVAL, "json"},
                 {"lr=fast", EN_EINVAL, "fast"},
                 {"strategy=rong", EN_ENOENT, "ring"},
                 {"strategy=ssp:bond=2", EN_EINVAL, "bound"},
                 {"workers=0", EN_EINVAL, "workers"},
                 {"compute=exp:0.1", EN_OK, ""},
                 {"compute=gauss:1ms", EN_EINVAL, "gauss:1ms"},
                 {"compute=5-9=exp:1ms", EN_EINVAL, "5-9=exp:1ms"},
                 {"compute=0,1=exp:1ms", EN_EINVAL, "0,1=exp:1ms"},
                 {"compute=/", EN_EINVAL, "directory"},
                 {"compute=from:/nowhere", EN_ENOENT, "/nowhere"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trial t = {.breaks_at = -1};
        const en_sim_problem problem = problem_of(&t);
        en_sim *sim;
        const en_status st = open_with(&t, &problem, cases[i].settings, &sim);
        if (st != cases[i].status || strstr(t.said, cases[i].word) == NULL)
            fail_msg("%s: status %d, \"%s\"", cases[i].settings, st, t.said);
        assert_true((sim != NULL) == (st == EN_OK));
        en_sim_close(sim);
    }
    trial t = {.breaks_at = -1};
    en_sim *sim;
    en_sim_problem problem = problem_of(&t);
    problem.abi = EN_SIM_ABI + 1;
    assert_int_equal(open_with(&t, &problem, "", &sim), EN_EVERSION);
    problem = problem_of(&t);
    problem.count = COUNT + 1; /* the tensors sum up to COUNT */
    assert_int_equal(open_with(&t, &problem, "", &sim), EN_EINVAL);
    problem = problem_of(&t);
    problem.grad = NULL;
    assert_int_equal(open_with(&t, &problem, "", &sim), EN_EINVAL);
    problem = problem_of(&t);
    problem.samples = UINT64_MAX; /* -1 of somebody */
    assert_int_equal(open_with(&t, &problem, "", &sim), EN_EINVAL);
    problem = problem_of(&t);
    const char *const none[] = {"lr=0.1", NULL};
    assert_int_equal(en_sim_open(&problem, none, 2, NULL, &sim), EN_EINVAL);
    const en_sim_options unsized = {.plugins = "plugins"};
    assert_int_equal(en_sim_open(&problem, none, 1, &unsized, &sim), EN_EINVAL);
    assert_null(sim);
    char first = 'x';
    en_sim_why(&first, 0);
    assert_int_equal(first, 'x');
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ring_is_ps_sync_in_every_byte),
                                       cmocka_unit_test(a_run_is_a_function_of_its_settings),
                                       cmocka_unit_test(staleness_of_memoryless_workers),
                                       cmocka_unit_test(a_callback_that_fails_ends_the_run),
                                       cmocka_unit_test(a_gradient_is_overwritten_as_a_whole),
                                       cmocka_unit_test(large_numbers_do_not_wrap),
                                       cmocka_unit_test(runs_go_on_in_several_threads),
                                       cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
