/* test_sim.c - the virtual host itself: its clock against closed forms, and what it says of runs that cannot
 * end. */
#include "tests/strategies/sim_rig.h"

/* Promise: Virtual time agrees with closed forms, also where ranks join and leave. */

static void quiet(void *user, int level, const char *subsystem, const char *text)
{
    (void)level;
    snprintf(user, 512, "%s: %s", subsystem, text);
}

/* Dutta'18: a synchronous step of N workers with exponential compute of mean 1 takes H_N on average. */
static void a_synchronous_step_waits_for_the_slowest(void **state)
{
    (void)state;
    enum { STEPS = 4000 };
    for (int world = 2; world <= 8; world *= 2) {
        double harmonic = 0;
        rig r;
        for (int i = 1; i <= world; i++)
            harmonic += 1.0 / i;
        rig_init(&r, "ring", world, (uint64_t)world * STEPS);
        r.config.network = (eni_sim_network){0};
        r.law.kind = ENI_LAW_EXPONENTIAL;
        r.config.bucket_cap_bytes = 0;
        const double mean = (double)rig_run(&r)->virtual_ns / ENI_MILLI / STEPS;
        assert_true(fabs(mean / harmonic - 1) < 0.04);
        printf("PROMISE virtual time: synchronous step of %d exponential workers %.3f, H_N %.3f\n", world,
               mean, harmonic);
        rig_fini(&r);
    }
}

/* One push-pull of b bytes: compute + 2 (latency + b/rate), and in-cast of W on the one server. */
static void a_round_trip_takes_what_the_model_says(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, "ps-async", 1, 10);
    r.config.bucket_cap_bytes = 0;
    r.link = (eni_net_link){20000, 1e8};
    assert_int_equal(rig_run(&r)->virtual_ns, 10 * (ENI_MILLI + 2 * (20000 + 8000)) + 20000);
    rig_fini(&r); /* the last 20000: the notice that the rank has finished */

    rig_init(&r, "ps-sync", 4, 4);
    r.config.bucket_cap_bytes = 0;
    r.link = (eni_net_link){20000, 1e8};
    /* Four pushes arrive one after the other, then four answers leave one after the other. */
    assert_int_equal(rig_run(&r)->virtual_ns, ENI_MILLI + 2 * (20000 + 4 * 8000) + 20000);
    rig_fini(&r);
}

/* Steps of constant length: a rank that is there for a part of the time makes that part of the others' steps, and a
 * newcomer is held back by nobody and holds nobody back. */
static void ranks_come_and_go(void **state)
{
    enum { WORLD = 4, BATCHES = 400 };
    int64_t join_ns[WORLD] = {0, 0, 20 * ENI_MILLI, 50 * ENI_MILLI},
            leave_ns[WORLD] = {INT64_MAX, 80 * ENI_MILLI, INT64_MAX, INT64_MAX};
    static const char *const specs[] = {"ps-async", "ssp:bound=2", "ssp:bound=0"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char log[2][ENI_DIGEST_HEX];
        for (int k = 0; k < 2; k++) {
            rig r;
            rig_init(&r, specs[i], WORLD, BATCHES);
            r.config.network = (eni_sim_network){0};
            r.config.join_ns = join_ns;
            r.config.leave_ns = leave_ns;
            const eni_sim_result *out = rig_run(&r);
            uint64_t steps = 0;
            for (int n = 0; n < WORLD; n++)
                steps += out->rank[n].steps;
            assert_int_equal(steps, BATCHES);
            assert_int_equal(out->dropped, 0);
            /* 40 in 20 ms, 90 in 30, 120 in 30; then three ranks share 150. */
            assert_in_range(out->virtual_ns, 129 * ENI_MILLI, 131 * ENI_MILLI);
            assert_in_range(out->rank[1].steps, 79, 81);
            assert_in_range(out->rank[2].steps, out->rank[0].steps - 21, out->rank[0].steps - 19);
            assert_in_range(out->rank[3].steps, out->rank[0].steps - 51, out->rank[0].steps - 49);
            if (i > 0) assert_true(out->clocks_ahead <= (i == 1 ? 2 : 0));
            memcpy(log[k], out->log_sha256, sizeof log[k]);
            rig_fini(&r);
        }
        assert_string_equal(log[0], log[1]);
    }
    printf("PROMISE virtual time: ranks that come at 20 and 50 ms and one that leaves at 80 ms: every "
           "micro-batch is one "
           "step, nobody waits for a newcomer, ssp's bound holds\n");
}

static void gossip_keeps_the_mean(void **state)
{
    (void)state;
    enum { WORLD = 16, COUNT = 200 };
    float weights[COUNT];
    rig r;
    rig_init(&r, RIG_ZOO "gossip", WORLD, WORLD * 50);
    r.config.schedule.base = 0; /* nobody learns: the mean of the models must stand still */
    for (int i = 0; i < COUNT; i++)
        r.problem.init[i] = (float)i;
    r.config.weights_out = weights;
    const eni_sim_result *out = rig_run(&r);
    for (int i = 0; i < COUNT; i++)
        assert_true(weights[i] == (float)i);
    assert_int_equal(out->sent, (uint64_t)WORLD * 50 * 2 * COUNT * sizeof(float));
    rig_fini(&r);
}

static void timers_ring_in_virtual_time(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, RIG_ZOO "late", 2, 40);
    r.config.network = (eni_sim_network){0};
    /* Each step: 1 ms of compute, then the store steps when its timer rings, 1 ms after the last push. */
    assert_int_equal(rig_run(&r)->virtual_ns, 20 * 2 * ENI_MILLI);
    rig_fini(&r);
}

static void stores_on_ranks_answer_at_any_time(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, RIG_ZOO "visit", 6, 600);
    rig_slow(&r, 1, 8);
    const eni_sim_result *out = rig_run(&r);
    uint64_t steps = 0;
    for (int i = 0; i < 6; i++)
        steps += out->rank[i].steps;
    assert_int_equal(steps, 600);
    assert_true(out->rank[0].steps > 4 * out->rank[1].steps); /* a slow peer does not slow its visitors */
    rig_fini(&r);
}

static void fails_with(const char *spec, en_status expected, const char *const *words)
{
    char log[512] = "";
    rig r;
    rig_init(&r, spec, 2, 20);
    eni_log_set_sink(quiet, log);
    const en_status st = eni_sim_run(&r.config, &r.result);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(st, expected);
    for (; *words; words++)
        if (!strstr(log, *words)) fail_msg("'%s' does not say '%s'", log, *words);
    rig_fini(&r);
}

/* 50 steps of two ranks, a push every four, of which the store drops each third; and a leader's push, which
 * is for all ranks of its host. */
static void a_push_covers_what_was_computed_since_the_last(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, RIG_LOCAL "downpour:period=4,drop=3", 2, 100);
    r.config.assign = ENI_SIM_FIXED;
    const eni_sim_result *out = rig_run(&r);
    const uint64_t each = out->rank[0].samples / out->rank[0].steps;
    assert_int_equal(out->applied, out->pushes * 2 / 3 * 4 * each);
    assert_int_equal(out->dropped, out->pushes * 1 / 3 * 4 * each);
    rig_fini(&r);
    rig_init(&r, RIG_ZOO "hier", 6, 60);
    r.config.local_size = 3;
    out = rig_run(&r);
    assert_int_equal(out->applied, out->pushes * 3 * each);
    assert_int_equal(out->dropped, 0);
    rig_fini(&r);
}

static void a_run_that_cannot_end_is_told(void **state)
{
    (void)state;
    fails_with(RIG_ZOO "stuck", EN_EBUG,
               (const char *const[]){"on_pull of stuck", "rank 0 at clock 1, rank 1 at clock 1", NULL});
    fails_with(RIG_ZOO "lonely", EN_ETIMEOUT,
               (const char *const[]){"1 of 2 ranks", "rank 0 in step 0", "bucket 0", NULL});
    fails_with(RIG_ZOO "mixed", EN_EMISMATCH,
               (const char *const[]){"#0 broadcast of bucket 0", "#0 all-reduce", NULL});
    fails_with(RIG_ZOO "failing", EN_EPEER, (const char *const[]){"rank 1", "step 3", NULL});
}

/* Promise: A store hook that writes behind its partition's weights, or behind a message, ends a run in virtual time with hook,
 * partition and element. */
static void a_write_beyond_the_end_is_named(void **state)
{
    (void)state;
    fails_with(
        RIG_ZOO "beyond:where=0", EN_EBUG,
        (const char *const[]){"on_push of beyond (shard 0, bucket 3", "element 48 of the weights", NULL});
    fails_with(RIG_ZOO "beyond:where=1", EN_EBUG,
               (const char *const[]){"on_push of beyond (shard 0, bucket 3", "element 55 ", "message", NULL});
    fails_with(
        RIG_ZOO "beyond:where=2", EN_EBUG,
        (const char *const[]){"on_pull of beyond (shard 0, bucket 3", "element 49 of the weights", NULL});
}

/* Timers that never stop do not keep a stuck run alive for ever. */
static void events_are_limited(void **state)
{
    (void)state;
    char log[512] = "";
    rig r;
    rig_init(&r, "ring", 2, 1000);
    r.config.max_events = 100;
    eni_log_set_sink(quiet, log);
    assert_int_equal(eni_sim_run(&r.config, &r.result), EN_ETIMEOUT);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(r.result.nstuck, 2);
    assert_int_equal(r.result.events, 100);
    rig_fini(&r);
}

static void odd_configurations_are_refused(void **state)
{
    (void)state;
    char log[512] = "";
    eni_log_set_sink(quiet, log);
    static const int64_t late[4] = {0, ENI_SECOND, 0, 0}, first[4] = {ENI_SECOND, 0, 0, 0};
    for (int i = 0; i < 6; i++) {
        rig r;
        rig_init(&r, i == 5 ? "ps-async" : "ring", 4, 20);
        if (i == 0) r.config.nranks = ENI_SIM_RANKS_MAX + 1;
        if (i == 4) r.config.join_ns = late;
        if (i == 5) r.config.join_ns = first;
        if (i == 1) r.config.local_size = 3;
        if (i == 2) r.config.accumulate = 2;
        if (i == 3) r.config.nshards = -1;
        log[0] = 0;
        assert_int_equal(eni_sim_run(&r.config, &r.result), EN_EINVAL);
        assert_true(log[0] != 0);
        rig_fini(&r);
    }
    eni_log_set_sink(NULL, NULL);
}

static en_status note_loss(void *user, uint64_t samples, int64_t virtual_ns, const float *param)
{
    double *sum = user;
    *sum += (double)samples + (double)virtual_ns + (double)param[samples % 200];
    return EN_OK;
}

/* Rank 0 is asked for its model while its fiber is left: a wait there has nowhere to go. */
static void an_eval_that_waits_ends_the_run(void **state)
{
    (void)state;
    char log[512] = "";
    double curve = 0;
    rig r;
    rig_init(&r, RIG_ZOO "prying", 2, 20);
    r.config.evaluate = note_loss;
    r.config.evaluate_user = &curve;
    r.config.eval_every = 40;
    eni_log_set_sink(quiet, log);
    assert_int_equal(eni_sim_run(&r.config, &r.result), EN_EBUG);
    eni_log_set_sink(NULL, NULL);
    assert_non_null(strstr(log, "prying (rank 0) waits in eval"));
    rig_fini(&r);
}

/* Promise: A run in virtual time has the same weights, event log and curve on one thread, two and five. */
static void threads_change_nothing(void **state)
{
    (void)state;
    static const char *const specs[] = {"ring",
                                        "ps-async",
                                        "ssp:bound=1",
                                        "hierarchical",
                                        "hybrid",
                                        "grouped",
                                        RIG_ZOO "gossip",
                                        RIG_ZOO "visit",
                                        RIG_ZOO "zero1",
                                        RIG_ZOO "softsync",
                                        RIG_LOCAL "downpour:period=4,drop=3"};
    static const int threads[] = {1, 2, 5};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        char weights[ENI_DIGEST_HEX] = "", log[ENI_DIGEST_HEX] = "";
        double first = 0;
        for (int k = 0; k < 3; k++) {
            rig r;
            double curve = 0;
            rig_init(&r, specs[i], 8, 400);
            r.config.local_size = 4;
            r.law.kind = ENI_LAW_EXPONENTIAL;
            r.config.evaluate = note_loss;
            r.config.evaluate_user = &curve;
            r.config.eval_every = 300;
            r.problem.problem.threads = threads[k];
            const eni_sim_result *out = rig_run(&r);
            if (k == 0) {
                memcpy(weights, out->weights_sha256, sizeof weights);
                memcpy(log, out->log_sha256, sizeof log);
                first = curve;
            }
            assert_string_equal(weights, out->weights_sha256);
            assert_string_equal(log, out->log_sha256);
            assert_true(first == curve);
            rig_fini(&r);
        }
    }
}

static en_status failing_gradient(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    (void)user, (void)rank, (void)param, (void)grad;
    return micro_batch == 17 ? EN_EIO : EN_OK;
}

static void a_gradient_that_fails_ends_the_run_on_any_thread(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        char log[512] = "";
        rig r;
        rig_init(&r, "ps-async", 8, 400);
        r.problem.problem.grad = failing_gradient;
        r.problem.problem.threads = threads;
        eni_log_set_sink(quiet, log);
        assert_int_equal(eni_sim_run(&r.config, &r.result), EN_EIO);
        eni_log_set_sink(NULL, NULL);
        rig_fini(&r);
    }
}

/* Promise: More than 1,024 ranks take means, by `ring` and by `ps-sync`, with the same bytes; no configuration needs more
 * memory than there is without a word. */
static void two_thousand_ranks_take_a_mean(void **state)
{
    (void)state;
    char log[512] = "", first[ENI_DIGEST_HEX] = "";
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_init(&r, i == 0 ? "ring" : "ps-sync", 2000, 4000);
        r.law.kind = ENI_LAW_EXPONENTIAL; /* pushes come in any order */
        const eni_sim_result *out = rig_run(&r);
        assert_true(out->has_equal_ranks);
        if (i == 0) memcpy(first, out->weights_sha256, sizeof first);
        assert_string_equal(first, out->weights_sha256);
        rig_fini(&r);
    }
    rig r;
    rig_init(&r, "ring", 4, 20);
    eni_sim_problem huge = *r.config.problem;
    huge.count = UINT64_C(1) << 50;
    r.config.problem = &huge;
    eni_log_set_sink(quiet, log);
    assert_int_equal(eni_sim_run(&r.config, &r.result), EN_EINVAL);
    eni_log_set_sink(NULL, NULL);
    assert_non_null(strstr(log, "GB"));
    rig_fini(&r);
}

/* Promise: Virtual time passes vectors on without a copy, and ends with the bytes of a run that copies them. */
static void what_is_not_copied_has_the_same_bytes(void **state)
{
    enum { COUNT = 5008 };
    /* A server's answer is the whole model, not copied; those of two are halves, and too short. */
    static const char *const specs[] = {
        "ps-sync",           "ps-async",           "ssp:bound=1",   "easgd",          "dc-asgd",
        "softsync:splits=2", RIG_LOCAL "downpour", RIG_ZOO "moody", RIG_ZOO "overlap"};
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        char weights[3][ENI_DIGEST_HEX];
        int64_t ends[3];
        for (int k = 0; k < 3; k++) {
            rig r;
            rig_init(&r, specs[i], 5, 60);
            eni_quadratic_fini(&r.problem);
            assert_int_equal(eni_quadratic_init(&r.problem, COUNT, 7), EN_OK);
            r.problem.problem.threads = k == 2 ? 2 : 1;
            r.config.assign = ENI_SIM_FIXED;
            r.config.nshards = k == 1 ? 2 : 1;
            r.config.bucket_cap_bytes = 0;
            r.link = (eni_net_link){.delay_ns = 700 * ENI_MICRO};
            r.law = (eni_law){.kind = ENI_LAW_LOGNORMAL, .mean_ns = ENI_MILLI, .spread = 0.6};
            ends[k] = rig_run(&r)->virtual_ns;
            memcpy(weights[k], r.result.weights_sha256, sizeof weights[k]);
            rig_fini(&r);
        }
        if (strstr(specs[i], "moody") == NULL) assert_string_equal(weights[0], weights[1]);
        assert_string_equal(weights[0], weights[2]);
        assert_true(ends[0] == ends[2]);
    }
}

/* A gradient is pushed, and the next one is computed before the server has the first, or needs it no more. */
static void a_gradient_on_its_way_is_not_overwritten(void **state)
{
    static const char *const specs[] = {RIG_ZOO "overlap:copies=0", RIG_ZOO "overlap:copies=1"};
    (void)state;
    for (int64_t delay_ns = 0; delay_ns <= 2 * ENI_MILLI; delay_ns += 2 * ENI_MILLI) {
        char weights[2][ENI_DIGEST_HEX];
        for (int k = 0; k < 2; k++) {
            rig r;
            rig_init(&r, specs[k], 4, 80);
            r.config.assign = ENI_SIM_FIXED;
            r.link.delay_ns = delay_ns;
            r.law = (eni_law){.kind = ENI_LAW_EXPONENTIAL, .mean_ns = ENI_MILLI};
            memcpy(weights[k], rig_run(&r)->weights_sha256, sizeof weights[k]);
            rig_fini(&r);
        }
        assert_string_equal(weights[0], weights[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_synchronous_step_waits_for_the_slowest),
        cmocka_unit_test(a_round_trip_takes_what_the_model_says),
        cmocka_unit_test(ranks_come_and_go),
        cmocka_unit_test(gossip_keeps_the_mean),
        cmocka_unit_test(timers_ring_in_virtual_time),
        cmocka_unit_test(stores_on_ranks_answer_at_any_time),
        cmocka_unit_test(a_push_covers_what_was_computed_since_the_last),
        cmocka_unit_test(a_run_that_cannot_end_is_told),
        cmocka_unit_test(an_eval_that_waits_ends_the_run),
        cmocka_unit_test(a_write_beyond_the_end_is_named),
        cmocka_unit_test(what_is_not_copied_has_the_same_bytes),
        cmocka_unit_test(a_gradient_on_its_way_is_not_overwritten),
        cmocka_unit_test(events_are_limited),
        cmocka_unit_test(odd_configurations_are_refused),
        cmocka_unit_test(two_thousand_ranks_take_a_mean),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(a_gradient_that_fails_ends_the_run_on_any_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
