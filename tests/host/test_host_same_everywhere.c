/* test_host_same_everywhere.c - a strategy cannot tell virtual time from sockets: every strategy of the tree
 * runs on both, on the same problem, and makes the same requests with the same answers at the same rates;
 * refusals are the same; and where the result does not depend on who was first, so are the weights, byte for
 * byte.
 *
 * On the one side `eni_sim_run`, on the other threads with shared memory and sockets (sockets.h). Between host
 * and strategy stands a recorder, the same on both sides.
 *
 * Where the result does depend on who was first, the order is recorded: psd's shard notes in which order calls,
 * timers and the ends of ranks reached its store, as the ranks' speeds made it, and virtual time plays it. Then
 * what the store saw and the weights are the same, too. */
#include "run/rank_groups.h"
#include "tests/heard.h"
#include "tests/host/recorder.h"
#include "tests/host/sockets.h"
#include "tests/strategies/sim_rig.h"

/* Promise: A strategy cannot tell virtual time from sockets: requests, refusals and rates are the same,
 * and so are weights where the order determines them.
 * Promise: With a server, virtual time ends with the bytes of sockets when it plays the order that was recorded
 * there. */

enum { STEPS = 8, COUNT = 200 };

/* ---- both ------------------------------------------------------------------------------------------------
 */

typedef struct outcome {
    en_status status;
    char *text[RECORDER_RANKS + 1]; /* the last: of the store */
    float model[COUNT];
    bool has_theory;
    en_theory theory;
    int arrivals;
} outcome;

static void take_records(outcome *out)
{
    for (int r = 0; r <= RECORDER_RANKS; r++)
        out->text[r] = recorder_take(r);
}

/* `slowest`: virtual time plays the order that this rank's slowness makes on sockets; -1: each as it comes. */
static void run_both(const char *spec, const en_strategy *given, int nranks, const char *groups, int slowest,
                     outcome out[2])
{
    sockets_outcome sockets;
    int32_t first[RECORDER_RANKS];
    rig r;
    rig_init(&r, given == NULL ? spec : "ring", nranks, (uint64_t)nranks * STEPS - (nranks > 1 ? 1 : 0));
    if (given != NULL) {
        eni_options_free(r.options);
        assert_int_equal(eni_options_new(given, NULL, &r.options), EN_OK);
    }
    for (int i = 0; i < COUNT; i++)
        r.problem.init[i] = 0.01f * (float)i;
    r.problem.last_batch = r.config.micro_batches - 1;
    r.problem.last_samples = 3;
    r.config.strategy = recorder_open(given == NULL ? r.config.strategy : given);
    r.config.options = r.options;
    if (groups != NULL && nranks == RECORDER_RANKS) {
        assert_int_equal(eni_rank_groups_read(groups, nranks, first), EN_OK);
        r.config.groups = first;
    }
    r.config.assign = ENI_SIM_FIXED;
    r.config.schedule = (eni_schedule){
        .kind = ENI_LR_STEP, .base = 0.02, .gamma = 0.5, .step_samples = (uint64_t)nranks * 16};
    r.config.weights_out = out[0].model;
    out[1].status = sockets_run(&r.config, slowest, &sockets);
    out[1].theory = sockets.theory;
    out[1].arrivals = (int)sockets.arrivals.n;
    memcpy(out[1].model, sockets.model, sizeof sockets.model);
    take_records(&out[1]);
    const eni_sim_order order = {.arrivals = &sockets.arrivals};
    if (sockets.arrivals.n > 0) r.config.order = &order;
    out[0].status = eni_sim_run(&r.config, &r.result);
    out[0].theory = r.result.theory;
    out[0].has_theory = r.result.has_theory;
    take_records(&out[0]);
    rig_fini(&r);
    eni_arrivals_fini(&sockets.arrivals);
    recorder_close();
}

static void free_both(outcome out[2])
{
    for (int i = 0; i < 2; i++)
        for (int r = 0; r <= RECORDER_RANKS; r++)
            free(out[i].text[r]);
}

static void expect_same_text(const char *spec, int rank, const char *virtual_time, const char *sockets)
{
    size_t at = 0;
    int line = 1;
    if (strcmp(virtual_time, sockets) == 0) return;
    for (size_t i = 0; virtual_time[i] != 0 && virtual_time[i] == sockets[i]; i++)
        if (virtual_time[i] == '\n') {
            at = i + 1;
            line++;
        }
    fail_msg("%s, rank %d, line %d: in virtual time \"%.80s\", on sockets \"%.80s\"", spec, rank, line,
             virtual_time + at, sockets + at);
}

/* How many arrivals were recorded. */
static int compare(const char *spec, int nranks, const char *groups, int slowest, bool is_determined)
{
    outcome out[2];
    memset(out, 0, sizeof out);
    run_both(spec, NULL, nranks, groups, slowest, out);
    if (out[0].status != EN_OK || out[1].status != EN_OK)
        fail_msg("%s with %d: %d in virtual time, %d on sockets", spec, nranks, out[0].status, out[1].status);
    for (int r = 0; r < nranks; r++) {
        expect_same_text(spec, r, out[0].text[r], out[1].text[r]);
        assert_true(strlen(out[0].text[r]) > 100);
    }
    if (out[1].arrivals > 0)
        expect_same_text(spec, RECORDER_RANKS, out[0].text[RECORDER_RANKS], out[1].text[RECORDER_RANKS]);
    if (is_determined && memcmp(out[0].model, out[1].model, sizeof out[0].model) != 0)
        fail_msg("%s with %d: other weights on sockets: %.9g, %.9g", spec, nranks, (double)out[0].model[0],
                 (double)out[1].model[0]);
    if (out[0].has_theory) {
        assert_true(out[0].theory.sent == out[1].theory.sent && out[0].theory.recv == out[1].theory.recv);
        assert_true(out[0].theory.staleness == out[1].theory.staleness);
    }
    free_both(out);
    return out[1].arrivals;
}

static const struct {
    const char *spec;
    int is_lock_step;   /* the weights of three ranks do not depend on who is first */
    const char *groups; /* of three ranks; NULL: the ranks of the one host */
} everyone[] = {{"ring", 1},
                {"ps-sync", 1},
                {"ps-async", 0},
                {"ssp:bound=2", 0},
                {"hierarchical", 1},
                {"hierarchical:bound=1", 1}, /* of one host: it waits for itself only */
                {"hybrid:ps=c", 1},
                {RIG_PLUGINS "/localsgd.so:period=4", 1},
                {EN_BUILD_DIR "/test/plugins/short.so:period=2", 1},
                {"grouped:period=3", 1, "0,2;1"},
                {"grouped:period=3", 1, "1"},
                {RIG_ZOO "two-level", 1, "0-1;2"},
                {RIG_ZOO "zero1", 1},
                {RIG_ZOO "gossip", 1},
                {RIG_ZOO "pairs", 1}, /* of three: at least one sits out */
                {RIG_ZOO "hier", 1},
                {RIG_ZOO "late", 0},
                {RIG_ZOO "softsync", 0},
                {RIG_ZOO "backup", 0},
                {RIG_ZOO "moody", 0},
                {"ringmaster:threshold=2", 0},
                {"delay-adaptive", 0},
                {"softsync:splits=1", 0},
                {"dc-asgd", 0},
                {"dc-asgd:adaptive", 0},
                {"easgd:period=2", 0},
                {"easgd:period=1,momentum=0.9", 0},
                {"local-sgd:period=3,start=2", 1},
                {"slowmo:period=2,buffer=average", 1},
                {"diloco:period=3", 1},
                {"diloco:period=2", 1, "0,2;1"},
                {"d-psgd", 1},
                {"d-psgd:graph=complete", 1},
                {RIG_LOCAL "easgd", 0},
                {RIG_LOCAL "downpour:period=2,drop=3", 0}};
enum { EVERYONE = sizeof everyone / sizeof *everyone };

static void strategies_do_the_same(void **state)
{
    (void)state;
    compare("solo", 1, NULL, -1, true);
    for (int i = 0; i < EVERYONE; i++) {
        compare(everyone[i].spec, 1, NULL, 0, true);
        compare(everyone[i].spec, 3, everyone[i].groups, -1, everyone[i].is_lock_step);
    }
    printf("PROMISE one host: %d strategies make the same requests at the same rates in virtual time and on "
           "sockets, "
           "with 1 and 3 ranks\n",
           EVERYONE + 1);
}

static void a_recorded_order_determines_the_weights(void **state)
{
    (void)state;
    int strategies = 0, arrivals = 0;
    for (int i = 0; i < EVERYONE; i++) {
        int own = 0;
        for (int slowest = 0; slowest < RECORDER_RANKS; slowest++)
            own += compare(everyone[i].spec, RECORDER_RANKS, everyone[i].groups, slowest, true);
        strategies += own > 0;
        arrivals += own;
    }
    printf(
        "PROMISE recorded order: %d strategies with a server end with the same bytes in virtual time and on "
        "sockets under %d orders of arrival each (%d arrivals)\n",
        strategies, RECORDER_RANKS, arrivals);
}

/* ---- what is refused -------------------------------------------------------------------------------------
 */

static int misdeed;

enum {
    KIND_0,
    NO_STORE,
    FAR_RANK,
    NO_OPERATION,
    FOREIGN_VECTOR,
    TWO_BUCKETS,
    NO_REQUEST,
    NO_GROUP,
    NO_LEADERS,
    NO_SUCH_GROUP,
    A_WORD,
    TWO_CALLS,
    NOT_FIRST, /* these two of ranks in groups */
    TWO_GROUPS,
    MISDEEDS
};

static en_status rude_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    en_vec grad = bucket->grad, foreign = bucket->id == 0 ? grad + 1 : grad - 1;
    switch (misdeed) {
    case KIND_0:
        host->wait(host, host->call(host, EN_SERVERS, 0, EN_GRAD, bucket, grad, bucket->param, 0));
        break;
    case NO_STORE:
        host->wait(host, host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, grad, bucket->param, 0));
        break;
    case FAR_RANK:
        return host->wait(host,
                          host->sendrecv(host, EN_WORLD, EN_WEIGHTS, bucket, 99, grad, 99, bucket->param));
    case NO_OPERATION: return host->wait(host, host->coll(host, 77, EN_WORLD, EN_GRAD, bucket, grad));
    case FOREIGN_VECTOR:
        host->wait(host, host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_GRAD, bucket, foreign));
        break;
    case TWO_BUCKETS: host->lin(host, grad, 1, foreign, 0); break;
    case NO_REQUEST: host->wait(host, 12345); break;
    case NO_GROUP: host->coll(host, EN_ALLREDUCE, EN_GROUP, EN_GRAD, bucket, grad); break;
    case NO_LEADERS: host->coll(host, EN_ALLREDUCE, EN_LEADERS, EN_GRAD, bucket, grad); break;
    case NO_SUCH_GROUP: host->coll(host, EN_ALLREDUCE, 9, EN_GRAD, bucket, grad); break;
    case A_WORD: host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, grad, bucket->param, 77); break;
    case NOT_FIRST: req[0] = host->coll(host, EN_ALLREDUCE, EN_LEADERS, EN_GRAD, bucket, grad); break;
    case TWO_GROUPS:
        req[0] = host->coll(host, EN_ALLREDUCE, EN_GROUP, EN_GRAD, bucket, grad);
        req[1] = host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_GRAD, bucket, grad);
        break;
    default:
        req[0] = host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, grad, bucket->param, 0);
        host->wait(host, host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, grad, bucket->param, 0));
    }
    return EN_OK;
}

static const en_strategy rude = {
    .abi = EN_STRATEGY_ABI, .size = sizeof(en_strategy), .name = "rude", .submit = rude_submit};
static const en_strategy rude_client = {.abi = EN_STRATEGY_ABI,
                                        .size = sizeof(en_strategy),
                                        .name = "rude-client",
                                        .flags = EN_STORE_ON_SERVERS,
                                        .submit = rude_submit};

static const en_strategy rude_member = {.abi = EN_STRATEGY_ABI,
                                        .size = sizeof(en_strategy),
                                        .name = "rude-member",
                                        .flags = EN_USES_GROUPS,
                                        .submit = rude_submit};

static void refusals_are_the_same(void **state)
{
    (void)state;
    eni_log_set_sink(hear, NULL);
    for (misdeed = 0; misdeed < MISDEEDS; misdeed++)
        for (int nranks = misdeed >= NOT_FIRST ? 3 : 1; nranks <= 3; nranks += 2) {
            outcome out[2];
            memset(out, 0, sizeof out);
            run_both(NULL,
                     misdeed >= NOT_FIRST   ? &rude_member
                     : misdeed == TWO_CALLS ? &rude_client
                                            : &rude,
                     nranks, "0-1;2", -1, out);
            if (out[0].status != out[1].status || out[0].status == EN_OK)
                fail_msg("misdeed %d with %d: %d in virtual time, %d on sockets", misdeed, nranks,
                         out[0].status, out[1].status);
            const int who =
                misdeed == NOT_FIRST; /* the others do nothing wrong, and get as far as they get */
            expect_same_text("a misdeed", who, out[0].text[who], out[1].text[who]);
            free_both(out);
        }
    eni_log_set_sink(NULL, NULL);
    printf("PROMISE one host: %d breaches of the contract are refused alike in virtual time and on sockets\n",
           MISDEEDS);
}

/* ---- a known vector -------------------------------------------------------------------------------------
 */

static en_status finder_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)lo, (void)hi;
    return host->vec(host, "memory", bucket) != 0 ? EN_OK : EN_ENOMEM;
}

/* By its name in a step: the handle of plan; a new name: none. */
static en_status finder_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state, (void)req;
    const en_vec memory = host->vec(host, "memory", bucket);
    if (memory == 0 || host->vec(host, "too late", bucket) != 0) return EN_EBUG;
    const en_status st = host->lin(host, memory, 1, bucket->grad, 0.5);
    return st == EN_OK ? host->lin(host, bucket->param, -0.01, memory, 1) : st;
}

static const en_strategy finder = {.abi = EN_STRATEGY_ABI,
                                   .size = sizeof(en_strategy),
                                   .name = "finder",
                                   .plan = finder_plan,
                                   .submit = finder_submit};

static void a_known_vector_is_found_in_a_step(void **state)
{
    (void)state;
    eni_log_set_sink(hear, NULL);
    outcome out[2];
    memset(out, 0, sizeof out);
    run_both(NULL, &finder, 3, NULL, -1, out);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(out[0].status, EN_OK);
    assert_int_equal(out[1].status, EN_OK);
    for (int r = 0; r < RECORDER_RANKS; r++) {
        assert_non_null(strstr(out[0].text[r], "vec too late of 0: 0\n"));
        expect_same_text("finder", r, out[0].text[r], out[1].text[r]);
    }
    assert_memory_equal(out[0].model, out[1].model, sizeof out[0].model);
    free_both(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_do_the_same), cmocka_unit_test(a_recorded_order_determines_the_weights),
        cmocka_unit_test(refusals_are_the_same), cmocka_unit_test(a_known_vector_is_found_in_a_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
