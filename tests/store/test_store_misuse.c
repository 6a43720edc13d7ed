/* test_store_misuse.c - a store half that breaks the contract is refused in one line with its place, and the
 * store's own memory stays as it was. */
#include <math.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/log.h"
#include "tests/store/store_rig.h"

/* Promise: A store that holds everybody's calls ends the run at once. */

enum { COUNT = 32 };
static const uint64_t counts[2] = {COUNT, COUNT};

typedef void (*misdeed)(en_store *, const en_partition *, const en_msg *);
static misdeed in_push, in_pull, in_timer;
static en_status push_returns;
static int pull_returns;
static const en_partition *kept_partition;
static char said[1200];
static int errors, heard_level = ENI_LOG_ERROR;
static en_status refused_with = EN_EBUG;

static void listen_to(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level > heard_level) return;
    errors++;
    snprintf(said, sizeof said, "%s", text);
}

static en_status bad_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    if (part->bucket == 0) kept_partition = part;
    if (in_push != NULL) in_push(store, part, msg);
    return push_returns;
}

static int bad_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    if (in_pull != NULL) in_pull(store, part, msg);
    return pull_returns;
}

static void bad_timer(en_store *store, void *state, const en_partition *part)
{
    (void)state;
    if (in_timer != NULL) in_timer(store, part, NULL);
}

static const en_strategy bad = {.abi = EN_STRATEGY_ABI,
                                .size = sizeof(en_strategy),
                                .name = "bad",
                                .peer_vecs = 1,
                                .on_push = bad_push,
                                .on_pull = bad_pull,
                                .on_timer = bad_timer};

/* ---- misdeeds ---- */

static void peer_of_nobody(en_store *store, const en_partition *part, const en_msg *msg)
{
    (void)msg;
    assert_null(store->peer(store, part, 2, 0));
}
static void peer_below(en_store *store, const en_partition *part, const en_msg *msg)
{
    (void)msg;
    assert_null(store->peer(store, part, -1, 0));
}
static void peer_undeclared(en_store *store, const en_partition *part, const en_msg *msg)
{
    (void)msg;
    assert_null(store->peer(store, part, 0, 1));
}
static void absorb_twice(en_store *store, const en_partition *part, const en_msg *msg)
{
    store->absorb(store, part, msg, 1);
    store->absorb(store, part, msg, 1);
}
/* Between the two the step has used it: it is not staged any more, and would count twice. */
static void absorb_after_step(en_store *store, const en_partition *part, const en_msg *msg)
{
    store->absorb(store, part, msg, 1);
    store->step(store, part);
    store->absorb(store, part, msg, 1);
}
static void absorb_nan(en_store *store, const en_partition *part, const en_msg *msg)
{
    store->absorb(store, part, msg, NAN);
}
static void absorb_copy(en_store *store, const en_partition *part, const en_msg *msg)
{
    const en_msg copy = *msg;
    store->absorb(store, part, &copy, 1);
}
static void absorb_any(en_store *store, const en_partition *part, const en_msg *msg)
{
    store->absorb(store, part, msg, 1);
}
static void step_other_partition(en_store *store, const en_partition *part, const en_msg *msg)
{
    (void)part, (void)msg;
    store->step(store, kept_partition);
}
static void set_timer(en_store *store, const en_partition *part, const en_msg *msg)
{
    (void)msg;
    store->timer(store, part, 100);
}
static void step_no_partition(en_store *store, const en_partition *part, const en_msg *msg)
{
    (void)part, (void)msg;
    store->step(store, NULL);
    store->touch(store, NULL);
    store->timer(store, NULL, 0);
}
static void answer_word(en_store *store, const en_partition *part, const en_msg *msg)
{
    (void)part;
    assert_int_equal(store->answer(store, msg, 0), EN_OK);
    assert_int_equal(store->answer(store, msg, 77), EN_EINVAL);
}
static void answer_copy(en_store *store, const en_partition *part, const en_msg *msg)
{
    (void)part;
    const en_msg copy = *msg;
    assert_int_equal(store->answer(store, &copy, 0), EN_EBUG);
}
static void no_key(en_store *store, const en_partition *part, const en_msg *msg)
{
    (void)part, (void)msg;
    store->num(store, NULL);
}

/* ---- */

static eni_store_event push_of(int32_t client, uint32_t bucket, uint64_t seq, float *data)
{
    return (eni_store_event){.type = ENI_STORE_CALL,
                             .client = client,
                             .incarnation = 1,
                             .bucket = bucket,
                             .seq = seq,
                             .kind = 1,
                             .nsamples = 2,
                             .payload = {.data = data, .count = COUNT}};
}

/* One push to bucket 1, which is refused, whose partition is whole afterwards. */
static void expect_refusal(const char *what, const char *hook, const char *words)
{
    char begin[96];
    float data[COUNT] = {1};
    eni_options *options;
    eni_store_config config = rig_config(&bad, 2, counts, 2);
    assert_int_equal(eni_options_new(&bad, NULL, &options), EN_OK);
    config.options = options;
    misdeed push = in_push, pull = in_pull;
    in_push = in_pull = NULL;
    rig r = rig_new(&config);
    rig_step(&r, push_of(0, 0, 1, data)); /* to bucket 0, with nothing wrong: kept_partition */
    in_push = push;
    in_pull = pull;
    errors = 0;
    said[0] = 0;
    rig_step(&r, push_of(1, 1, 1, data));
    const eni_store_action *answer = rig_for(&r, 1);
    snprintf(begin, sizeof begin, "%s of bad (shard 0, bucket 1, version ", hook);
    if (answer->type != ENI_STORE_REFUSE || answer->status != refused_with || errors < 1 ||
        strncmp(said, begin, strlen(begin)) != 0 || strstr(said, words) == NULL)
        fail_msg("%s: action %d, status %d, \"%s\" lacks \"%s\" or \"%s\"", what, (int)answer->type,
                 answer->status, said, begin, words);
    assert_int_equal(eni_store_count(r.store, 1), COUNT);
    uint64_t version;
    assert_non_null(eni_store_weights(r.store, 1, &version));
    in_push = in_pull = NULL;
    rig_free(&r);
    eni_options_free(options);
}

static void misuse_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        misdeed misdeed;
        const char *words;
    } cases[] = {{"peer of nobody", peer_of_nobody, "peer vector 0 of client 2"},
                 {"peer below", peer_below, "client -1"},
                 {"peer undeclared", peer_undeclared, "declared 1"},
                 {"twice", absorb_twice, "once"},
                 {"after a step", absorb_after_step, "once"},
                 {"nan", absorb_nan, "weight"},
                 {"copy", absorb_copy, "with its message"},
                 {"other partition", step_other_partition, "step with a partition that is not"},
                 {"no partition", step_no_partition, "partition that is not the hook's"},
                 {"answer", answer_copy, "without its message"},
                 {"key", no_key, "without a key"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        in_push = cases[i].misdeed;
        expect_refusal(cases[i].name, "on_push", cases[i].words);
    }
    in_pull = absorb_any; /* a pull's answer is no place to add a gradient */
    expect_refusal("absorb in on_pull", "on_pull", "belongs into on_push");
    refused_with = EN_EINVAL;
    in_push = answer_word;
    expect_refusal("word", "on_push", "called answer with the word 77, which nothing carries yet");
    in_pull = answer_word;
    expect_refusal("word in on_pull", "on_pull", "the word 77");
    refused_with = EN_EBUG;
    pull_returns = 99;
    expect_refusal("verdict", "on_pull", "returned 99");
    pull_returns = EN_REPLY_WEIGHTS;
}

static void statuses_that_are_the_hosts(void **state)
{
    (void)state;
    static const en_status all[] = {EN_ESTOP, EN_EPEER, EN_EINTR, -1, 1000};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        float data[COUNT] = {1};
        eni_store_config config = rig_config(&bad, 2, counts, 2);
        rig r = rig_new(&config);
        push_returns = all[i];
        rig_step(&r, push_of(1, 1, 1, data));
        assert_int_equal(rig_for(&r, 1)->status,
                         EN_EBUG); /* a worker believes EN_ESTOP: its run would end well */
        push_returns = EN_OK;
        rig_free(&r);
    }
}

/* Nobody waits for an answer there: the event fails, and with it the shard. */
static void misuse_in_a_timer_ends_the_shard(void **state)
{
    (void)state;
    eni_store_config config = rig_config(&bad, 2, counts, 2);
    rig r = rig_new(&config);
    float data[COUNT] = {1};
    in_push = set_timer;
    rig_step(&r, push_of(0, 0, 1, data));
    rig_step(&r, push_of(0, 1, 1, data));
    in_push = NULL;
    in_timer = step_other_partition; /* bucket 0's, which bucket 0 may, and bucket 1 may not */
    errors = 0;
    eni_store_event due = {.type = ENI_STORE_TIMER, .now_ns = r.now_ns + 1000};
    assert_int_equal(eni_store_step(r.store, &due, &r.actions), EN_EBUG);
    assert_int_equal(errors, 1);
    assert_non_null(strstr(said, "on_timer of bad (shard 0, bucket 1"));
    en_store *table = (en_store *)(void *)r.store;
    table->timer(table, kept_partition, 0);
    assert_non_null(strstr(said, "outside of a hook"));
    rig_free(&r);
    in_timer = NULL;
}

/* One client's call is held for 5 s and the other's is not: one line, and not again for a while. */
static void a_long_hold_is_named(void **state)
{
    (void)state;
    eni_store_config config = rig_config(&bad, 2, counts, 2);
    config.judges_holds = true;
    float data[COUNT] = {1};
    push_returns = EN_OK;
    pull_returns = EN_HOLD;
    rig r = rig_new(&config);
    rig_step(&r, push_of(0, 0, 1, data));
    const int64_t from = r.now_ns;
    heard_level = ENI_LOG_INFO;
    errors = 0;
    eni_store_look(r.store, from + ENI_SECOND);
    eni_store_look(r.store, from + 4 * ENI_SECOND);
    assert_int_equal(errors, 0);
    eni_store_look(r.store, from + 6 * ENI_SECOND);
    eni_store_look(r.store, from + 60 * ENI_SECOND);
    assert_int_equal(errors, 1);
    assert_non_null(
        strstr(said, "on_pull of bad (shard 0, bucket 0, version 0) has held the push of rank 0 at clock 1"));
    assert_non_null(strstr(said, "not held: rank 1 at clock 0"));
    heard_level = ENI_LOG_ERROR;
    rig_free(&r);
    pull_returns = EN_REPLY_WEIGHTS;
}

static eni_store_event finished(int32_t client)
{
    return (eni_store_event){
        .type = ENI_STORE_MEMBER, .client = client, .incarnation = 1, .member = EN_MEMBER_FINISHED};
}

/* Every client's call of a partition is held, and nothing is left that could let one go: by a push, by a
 * client that finishes, by a timer that rings for the last time. */
static void everybody_held_ends_the_shard(void **state)
{
    (void)state;
    eni_store_config config = rig_config(&bad, 2, counts, 2);
    config.judges_holds = true;
    float data[COUNT] = {1};
    push_returns = EN_OK;
    pull_returns = EN_HOLD;
    for (int by = 0; by < 3; by++) {
        rig r = rig_new(&config);
        in_push = by == 2 ? set_timer : NULL;
        errors = 0;
        const eni_store_event first = push_of(0, 0, 1, data), second = push_of(1, 0, 1, data),
                              other = push_of(1, 1, 1, data), last = finished(1),
                              due = {.type = ENI_STORE_TIMER, .now_ns = r.now_ns + ENI_SECOND};
        assert_int_equal(eni_store_step(r.store, &first, &r.actions), EN_OK);
        assert_int_equal(eni_store_step(r.store, &other, &r.actions), EN_OK); /* of another bucket */
        if (by == 2) assert_int_equal(eni_store_step(r.store, &second, &r.actions), EN_OK);
        assert_int_equal(errors, 0);
        assert_int_equal(eni_store_step(r.store,
                                        by == 0   ? &second
                                        : by == 1 ? &last
                                                  : &due,
                                        &r.actions),
                         EN_EBUG);
        assert_int_equal(errors, 1);
        assert_non_null(strstr(said, "on_pull of bad (shard 0, bucket "));
        assert_non_null(strstr(said, "holds every client's call"));
        assert_non_null(strstr(said, by == 1 ? "(rank 0 at clock 1)" : "rank 1 at clock 1"));
        rig_free(&r);
    }
    in_push = NULL;
    pull_returns = EN_REPLY_WEIGHTS;
}

int main(void)
{
    eni_log_set_sink(listen_to, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misuse_is_refused), cmocka_unit_test(statuses_that_are_the_hosts),
        cmocka_unit_test(misuse_in_a_timer_ends_the_shard), cmocka_unit_test(everybody_held_ends_the_shard),
        cmocka_unit_test(a_long_hold_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
