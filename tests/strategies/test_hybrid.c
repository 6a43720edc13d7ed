/* test_hybrid.c - which buckets hybrid sends where, that it changes no bit, and that the two ways are in
 * balance: read from the event log, compared with the best of all cuts. */
#include "core/memory.h"
#include "tests/heard.h"
#include "tests/strategies/sim_rig.h"

/* Promise: hybrid changes no bit, and hybrid:auto balances its two ways within a few percent of the best
 * split. */

enum { BUCKETS = 10 };

/* Who went where: bit b of the bucket. */
typedef struct ways {
    uint64_t server, ring;
} ways;

static void watch(void *user, const eni_sim_event *event)
{
    ways *seen = user;
    if (event->type == ENI_SIM_PUSH) seen->server |= UINT64_C(1) << event->bucket;
    if (event->type == ENI_SIM_COLL) seen->ring |= UINT64_C(1) << event->bucket;
}

/* Tensors t0, t1, .. too large to share a bucket: bucket b is tensor BUCKETS - 1 - b. */
typedef struct many {
    rig rig;
    en_model_tensor tensor[BUCKETS];
    ways seen;
} many;

static void many_init(many *m, const char *spec, int nranks, uint64_t seed)
{
    enum { CAP = 15 };
    uint64_t at = 0;
    rig_init(&m->rig, spec, nranks, (uint64_t)nranks * 20);
    for (uint64_t i = 0; i < BUCKETS; i++) {
        const eni_rng_key key = {seed, ENI_RNG_SYNTHETIC, 0, i};
        const uint64_t count = ENI_LINE_FLOATS * (8 + (uint64_t)(eni_rng_unit(&key, 0) * 8));
        m->tensor[i] = (en_model_tensor){.offset = at, .count = count};
        snprintf(m->tensor[i].name, sizeof m->tensor[i].name, "t%d", (int)i);
        at += count;
    }
    eni_quadratic_fini(&m->rig.problem);
    assert_int_equal(eni_quadratic_init(&m->rig.problem, at, 7), EN_OK);
    m->rig.problem.problem.tensors = m->tensor;
    m->rig.problem.problem.ntensors = BUCKETS;
    m->rig.config.bucket_cap_bytes = CAP * ENI_LINE_FLOATS * sizeof(float);
    m->rig.config.local_size = 1; /* a host each */
    m->seen = (ways){0};
    m->rig.config.trace = watch;
    m->rig.config.trace_user = &m->seen;
}

/* ---- the rule ------------------------------------------------------------------------------------------ */

static void go(const char *rule, uint64_t to_server)
{
    char spec[64];
    static many m;
    const uint64_t all = (UINT64_C(1) << BUCKETS) - 1;
    snprintf(spec, sizeof spec, "hybrid:ps=%s", rule);
    many_init(&m, spec, 3, 1);
    rig_run(&m.rig);
    if (m.seen.server != to_server || m.seen.ring != (all & ~to_server))
        fail_msg("%s: buckets %llx to the server, %llx all-reduced", rule, (unsigned long long)m.seen.server,
                 (unsigned long long)m.seen.ring);
    rig_fini(&m.rig);
}

static void a_bucket_goes_where_its_tensor_goes(void **state)
{
    (void)state;
    go("t9", 1);
    go("t0+t9", 1 | 1 << 9);
    go("t?", 0x3ff);
    go("*", 0x3ff);
    go("*3*", 1 << 6);
    go("**t*3", 1 << 6);
    go("x+t8+", 1 << 1);
}

/* Three tensors a (96), b (16), c (88) in one bucket: the largest decides. */
static void the_largest_tensor_decides(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        uint64_t server;
    } of[] = {{"hybrid:ps=a", 1}, {"hybrid:ps=a,apart=off", 1}};
    for (int i = 0; i < 2; i++) {
        rig r;
        ways seen = {0};
        rig_init(&r, of[i].spec, 2, 8);
        r.config.bucket_cap_bytes = 1 << 20;
        r.config.trace = watch;
        r.config.trace_user = &seen;
        rig_run(&r);
        assert_int_equal(seen.server, of[i].server);
        assert_int_equal(seen.ring, 0);
        rig_fini(&r);
    }
}

static void refused(const char *spec, en_status expected)
{
    rig r;
    rig_init(&r, spec, 2, 8);
    r.config.bucket_cap_bytes = 1 << 20;
    assert_int_equal(eni_sim_run(&r.config, &r.result), expected);
    rig_fini(&r);
}

static void a_rule_that_makes_no_sense_is_refused(void **state)
{
    (void)state;
    refused("hybrid:ps=b", EN_EINVAL); /* there, but never the largest */
    refused("hybrid:ps=nothing", EN_EINVAL);
    refused("hybrid:ps=a,auto", EN_EINVAL);
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

static void weights_of(const char *spec, int nranks, int nshards, char *hex_out)
{
    rig r;
    rig_init(&r, spec, nranks, (uint64_t)nranks * 250 - 1);
    rig_ragged(&r, 3);
    r.config.nshards = nshards;
    r.config.local_size = 1;
    rig_slow(&r, 0, 2);
    const eni_sim_result *out = rig_run(&r);
    assert_int_equal(out->has_equal_ranks, 1);
    assert_int_equal(out->dropped, 0);
    memcpy(hex_out, out->weights_sha256, ENI_DIGEST_HEX);
    rig_fini(&r);
}

static void the_way_changes_no_bit(void **state)
{
    (void)state;
    static const char *const specs[] = {"hybrid:ps=a", "hybrid:ps=c+b", "hybrid:ps=*", "hybrid:auto",
                                        "ps-sync"};
    char ring[ENI_DIGEST_HEX], other[ENI_DIGEST_HEX];
    for (int world = 2; world <= 4; world++) {
        weights_of("ring", world, 1, ring);
        for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
            weights_of(specs[i], world, 1 + (int)i % 3, other);
            assert_string_equal(ring, other);
        }
        printf("PROMISE same bytes (virtual): hybrid by four rules = ring = ps-sync, W = %d, 250 steps, "
               "nesterov, "
               "ragged, straggler: %.16s\n",
               world, ring);
    }
}

static void bytes_are_those_of_the_theory(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        static many m;
        many_init(&m, "hybrid:ps=t1+t5+t6", world, 3);
        m.rig.config.nshards = 3;
        const eni_sim_result *out = rig_run(&m.rig);
        const double model = (double)m.rig.problem.problem.count * sizeof(float), steps = world * 20;
        double server = 0;
        for (int b = 0; b < BUCKETS; b++)
            if (m.seen.server >> b & 1)
                server += (double)m.tensor[BUCKETS - 1 - b].count * sizeof(float) / model;
        const double formula = server + (1 - server) * 2 * (world - 1) / world;
        assert_true(fabs(out->theory.sent - formula) < 1e-9 && fabs(out->theory.recv - formula) < 1e-9);
        assert_true(fabs((double)out->sent - formula * model * steps) < 0.001 * model * steps);
        assert_true(fabs((double)out->recv - formula * model * steps) < 0.001 * model * steps);
        if (world == 4)
            printf("PROMISE bytes (virtual): hybrid W=4 with %.3f of the model to the server: sent %.4f of "
                   "the model "
                   "a step, theory %.4f\n",
                   server, (double)out->sent / model / steps, out->theory.sent);
        rig_fini(&m.rig);
    }
}

/* ---- the balance --------------------------------------------------------------------------------------- */

/* What the virtual host says that both ways cost (runtime/sim/sim_rank.c), in ns. */
static void costs(const many *m, double server[BUCKETS], double ring[BUCKETS])
{
    const eni_sim_config *c = &m->rig.config;
    const double lat = (double)c->network.links->delay_ns, n = c->nranks,
                 share = n / (c->nshards > 0 ? c->nshards : 1);
    for (int b = 0; b < BUCKETS; b++) {
        const double wire =
            (double)m->tensor[BUCKETS - 1 - b].count * 4 * 1e9 / c->network.links->bytes_per_s;
        server[b] = 2 * (lat + wire * (share > 1 ? share : 1));
        ring[b] = 2 * (n - 1) * (lat + wire / n);
    }
}

static double span_of(uint64_t to_server, const double *server, const double *ring)
{
    double sum[2] = {0};
    for (int b = 0; b < BUCKETS; b++)
        sum[to_server >> b & 1] += to_server >> b & 1 ? server[b] : ring[b];
    return fmax(sum[0], sum[1]);
}

static void auto_is_near_the_best_of_all_cuts(void **state)
{
    (void)state;
    double worst = 1;
    int exact = 0, all = 0;
    for (uint64_t seed = 1; seed <= 12; seed++)
        for (int nranks = 2; nranks <= 6; nranks += 2) {
            static many m;
            double server[BUCKETS], ring[BUCKETS], best = INFINITY;
            many_init(&m, "hybrid:auto", nranks, seed);
            m.rig.link.delay_ns = seed % 2 ? 1000 : 20000;
            m.rig.config.nshards = seed % 3 == 0 ? 2 : 1;
            rig_run(&m.rig);
            costs(&m, server, ring);
            for (uint64_t cut = 0; cut < 1 << BUCKETS; cut++)
                best = fmin(best, span_of(cut, server, ring));
            const double ours = span_of(m.seen.server, server, ring);
            assert_true(ours <= span_of(0, server, ring) && ours <= span_of(0x3ff, server, ring));
            worst = fmax(worst, ours / best);
            exact += ours <= best * 1.000001;
            all++;
            rig_fini(&m.rig);
        }
    assert_true(worst < 1.05);
    printf("PROMISE hybrid:auto: the longer of the two ways is at most %.3f of the best of all 1024 cuts, "
           "and the best "
           "%d times of %d\n",
           worst, exact, all);
}

static double seconds_of(const char *spec, int64_t latency_ns, int local)
{
    static many m;
    many_init(&m, spec, 4, 5);
    m.rig.link = (eni_net_link){latency_ns, 1e8};
    m.rig.law.mean_ns = 1000;
    m.rig.config.nshards = 2;
    m.rig.config.local_size = local;
    const eni_sim_result *out = rig_run(&m.rig);
    const double seconds = (double)out->virtual_ns * 1e-9;
    rig_fini(&m.rig);
    return seconds;
}

/* On the virtual host the two ways share no link. What an exchange costs is its time alone: where latency is
 * most of it, calls overlap each other and hybrid counts too much of it; so here bytes are. */
static void auto_beats_both_parents(void **state)
{
    (void)state;
    for (int64_t latency = 0; latency <= 1000; latency += 500) {
        const double ring = seconds_of("ring", latency, 1), ps = seconds_of("ps-sync", latency, 1);
        const double both = seconds_of("hybrid:auto", latency, 1);
        assert_true(both < ring && both < ps);
        printf(
            "PROMISE hybrid:auto (virtual, 4 hosts, latency %d ns): %.2f ms; ring %.2f ms, ps-sync %.2f ms\n",
            (int)latency, 1e3 * both, 1e3 * ring, 1e3 * ps);
    }
}

/* One host: the same cores do both, so each bucket takes the cheaper way, whatever the other is doing. */
static void one_host_takes_the_cheaper_way(void **state)
{
    (void)state;
    static const char *const specs[] = {"hybrid:auto", "hybrid", "hybrid:apart=off"};
    for (int i = 0; i < 3; i++)
        for (int nshards = 1; nshards <= 4; nshards += 3) {
            static many m;
            double server[BUCKETS], ring[BUCKETS];
            uint64_t cheaper = 0;
            many_init(&m, specs[i], 4, 2);
            m.rig.config.nshards = nshards;
            m.rig.link = (eni_net_link){100, 1e9};
            m.rig.config.local_size = i < 2 ? 0 : 1;
            rig_run(&m.rig);
            costs(&m, server, ring);
            for (int b = 0; b < BUCKETS; b++)
                cheaper |= (uint64_t)(server[b] < ring[b]) << b;
            assert_int_equal(m.seen.server, cheaper);
            rig_fini(&m.rig);
        }
}

int main(void)
{
    eni_log_set_sink(hear, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_goes_where_its_tensor_goes),
        cmocka_unit_test(the_largest_tensor_decides),
        cmocka_unit_test(a_rule_that_makes_no_sense_is_refused),
        cmocka_unit_test(the_way_changes_no_bit),
        cmocka_unit_test(bytes_are_those_of_the_theory),
        cmocka_unit_test(auto_is_near_the_best_of_all_cuts),
        cmocka_unit_test(auto_beats_both_parents),
        cmocka_unit_test(one_host_takes_the_cheaper_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
