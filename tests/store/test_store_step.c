/* test_store_step.c - identity, refusals, clocks and members: who is answered, when, and who is not. */
#include "tests/store/store_rig.h"

enum { COUNT = 48 };
static const uint64_t count = COUNT;
static float grad[COUNT] = {0.25f};

static rig new_rig(const char *strategy, int world)
{
    const eni_store_config config = rig_config(rig_strategy(strategy), world, &count, 1);
    return rig_new(&config);
}

static void push(rig *r, int32_t client, uint64_t seq, uint64_t base)
{
    rig_call(r, client, 0, seq, base, 4, grad, count);
}

static uint64_t version(const rig *r)
{
    uint64_t v;
    assert_non_null(eni_store_weights(r->store, 0, &v));
    return v;
}

static void expect_refused(const rig *r, int32_t client, en_status status, const char *part)
{
    assert_int_equal(r->actions.n, 1);
    assert_int_equal(rig_for(r, client)->type, ENI_STORE_REFUSE);
    assert_int_equal(rig_for(r, client)->ticket, r->ticket);
    assert_int_equal(rig_for(r, client)->status, status);
    if (!strstr(rig_for(r, client)->text, part)) fail_msg("'%s' not in '%s'", part, rig_for(r, client)->text);
}

/* ---- identity ------------------------------------------------------------------------------------------ */

static void a_repeat_is_answered_and_not_applied(void **state)
{
    (void)state;
    rig r = new_rig("ps-async", 2);
    push(&r, 0, 1, 0);
    assert_int_equal(rig_for(&r, 0)->flags, 0);
    push(&r, 0, 1, 0);
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REPLY);
    assert_int_equal(rig_for(&r, 0)->flags, ENI_STORE_IS_REPEAT);
    assert_int_equal(rig_for(&r, 0)->ticket, r.ticket);
    assert_int_equal(rig_for(&r, 0)->version, 1);
    assert_ptr_equal(rig_for(&r, 0)->data, eni_store_weights(r.store, 0, NULL));
    assert_int_equal(version(&r), 1);
    assert_int_equal(eni_store_client(r.store, 0)->applied, 4);
    assert_int_equal(eni_store_totals(r.store)->repeats, 1);
    rig_free(&r);
}

static void a_repeat_of_a_held_call_takes_its_place(void **state)
{
    (void)state;
    rig r = new_rig("ps-sync", 2);
    push(&r, 0, 1, 0);
    push(&r, 0, 1, 0);
    const uint64_t newer = r.ticket;
    assert_int_equal(r.actions.n, 0);
    push(&r, 1, 1, 0);
    assert_int_equal(r.actions.n, 2);
    assert_int_equal(rig_for(&r, 0)->ticket, newer);
    assert_int_equal(eni_store_client(r.store, 0)->applied, 4);
    rig_free(&r);
}

static void stale_and_gaps_are_refused(void **state)
{
    (void)state;
    rig r = new_rig("ps-async", 1);
    push(&r, 0, 2, 0);
    expect_refused(&r, 0, EN_EPROTO, "gap");
    for (uint64_t t = 0; t < 3; t++)
        push(&r, 0, t + 1, t);
    push(&r, 0, 2, 1);
    expect_refused(&r, 0, EN_EPROTO, "stale");
    push(&r, 0, 0, 1);
    expect_refused(&r, 0, EN_EPROTO, "stale");
    push(&r, 0, 5, 3);
    expect_refused(&r, 0, EN_EPROTO, "gap");
    push(&r, 0, UINT64_MAX, 3);
    expect_refused(&r, 0, EN_EPROTO, "gap");
    push(&r, 0, 4, 3); /* and refusals have moved nothing */
    assert_int_equal(rig_for(&r, 0)->version, 4);
    rig_free(&r);
}

static void lies_are_refused(void **state)
{
    (void)state;
    rig r = new_rig("ps-async", 2);
    rig_call(&r, 0, 0, 1, 0, 4, grad, COUNT - 1);
    expect_refused(&r, 0, EN_EPROTO, "47 elements");
    rig_call(&r, 0, 1, 1, 0, 4, grad, COUNT);
    expect_refused(&r, 0, EN_EPROTO, "bucket 1");
    push(&r, 0, 1, 1);
    expect_refused(&r, 0, EN_EPROTO, "version 1");
    rig_call(&r, 0, 0, 1, 0, UINT64_MAX, grad, COUNT);
    expect_refused(&r, 0, EN_EPROTO, "18446744073709551615");
    push(&r, 2, 1, 0);
    expect_refused(&r, 2, EN_EPROTO, "rank 2");
    push(&r, -1, 1, 0);
    expect_refused(&r, -1, EN_EPROTO, "rank -1");
    assert_int_equal(version(&r), 0);
    assert_int_equal(eni_store_totals(r.store)->refused, 6);
    rig_free(&r);
}

static void an_older_incarnation_is_fenced_a_newer_one_starts_afresh(void **state)
{
    (void)state;
    rig r = new_rig("ps-sync", 2);
    push(&r, 0, 1, 0);
    eni_store_event event = {.type = ENI_STORE_CALL,
                             .incarnation = 5,
                             .seq = 1,
                             .nsamples = 4,
                             .covered = 4,
                             .payload = {.data = grad, .count = COUNT}};
    rig_step(&r, event); /* rank 0 was restarted: its first life's gradient does not count */
    assert_int_equal(r.actions.n, 0);
    const uint64_t ticket = r.ticket;
    push(&r, 0, 1, 0);
    expect_refused(&r, 0, EN_EMEMBER, "fenced");
    push(&r, 1, 1, 0);
    assert_int_equal(r.actions.n, 2);
    assert_int_equal(rig_for(&r, 0)->ticket, ticket);
    assert_int_equal(rig_look(&r, 0)->samples, 8);
    assert_int_equal(eni_store_client(r.store, 0)->dropped, 4);
    event.seq = 2;
    event.base_version = 1;
    rig_step(&r, event);
    assert_int_equal(r.actions.n, 0); /* held: taken in */
    rig_free(&r);
}

static void who_has_not_joined_may_not_call(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-async"), 2, &count, 1);
    rig r = {0};
    assert_int_equal(eni_store_new(&config, &r.store), EN_OK);
    rig_member(&r, 0, EN_MEMBER_JOINED, 1);
    push(&r, 1, 1, 0);
    expect_refused(&r, 1, EN_EMEMBER, "not joined");
    push(&r, 0, 1, 0);
    expect_refused(&r, 0, EN_EPROTO, "rank 0");
    rig_free(&r);
}

/* ---- INIT and SNAPSHOT --------------------------------------------------------------------------------- */

static void snapshots_wait_for_the_weights(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-sync"), 2, &count, 1);
    rig r = {0};
    assert_int_equal(eni_store_new(&config, &r.store), EN_OK);
    rig_step(&r, (eni_store_event){.type = ENI_STORE_SNAPSHOT, .client = 1});
    const uint64_t ticket = r.ticket;
    rig_member(&r, 0, EN_MEMBER_JOINED, 1);
    rig_member(&r, 1, EN_MEMBER_JOINED, 1);
    assert_int_equal(r.actions.n, 0);
    rig_init_bucket(&r, &config, 0);
    assert_int_equal(r.actions.n, 2);
    assert_int_equal(rig_for(&r, 1)->ticket, ticket);
    assert_int_equal(rig_for(&r, 1)->count, COUNT);
    assert_true(rig_for(&r, 1)->data[3] == rig_weight(0, 3));
    push(&r, 0, 1, 0); /* held, and a snapshot passes it by: no clock, no strategy */
    rig_step(&r, (eni_store_event){.type = ENI_STORE_SNAPSHOT, .client = 0});
    assert_int_equal(r.actions.n, 1);
    assert_int_equal(rig_for(&r, 0)->ticket, r.ticket);
    assert_int_equal(eni_store_client(r.store, 0)->pulls, 0);
    rig_free(&r);
}

static void initial_weights_are_taken_once(void **state)
{
    (void)state;
    rig r = new_rig("ps-async", 1);
    push(&r, 0, 1, 0);
    float before[COUNT], other[COUNT] = {9};
    memcpy(before, eni_store_weights(r.store, 0, NULL), sizeof before);
    rig_step(&r, (eni_store_event){.type = ENI_STORE_INIT, .payload = {.data = other, .count = COUNT}});
    assert_int_equal(rig_for(&r, 0)->flags, ENI_STORE_IS_REPEAT);
    assert_memory_equal(before, eni_store_weights(r.store, 0, NULL), sizeof before);
    rig_step(&r, (eni_store_event){.type = ENI_STORE_INIT, .payload = {.data = other, .count = 1}});
    expect_refused(&r, 0, EN_EPROTO, "1 elements");
    rig_free(&r);
}

/* ---- clocks and members -------------------------------------------------------------------------------- */

static void a_finished_client_releases_the_others(void **state)
{
    (void)state;
    rig r = new_rig("ps-sync", 3);
    push(&r, 0, 1, 0);
    push(&r, 2, 1, 0);
    assert_int_equal(r.actions.n, 0);
    rig_member(&r, 1, EN_MEMBER_FINISHED, 1);
    assert_int_equal(r.actions.n, 2);
    assert_int_equal(rig_for(&r, 0)->version, 1);
    assert_int_equal(rig_look(&r, 0)->samples, 8);
    push(&r, 1, 1, 0);
    expect_refused(&r, 1, EN_EMEMBER, "finished");
    push(&r, 0, 2, 1);
    push(&r, 2, 2, 1);
    assert_int_equal(r.actions.n, 2); /* quorum is two from now on */
    rig_free(&r);
}

static void a_lost_client_takes_its_gradient_along(void **state)
{
    (void)state;
    rig r = new_rig("ps-sync", 3);
    push(&r, 0, 1, 0);
    push(&r, 1, 1, 0);
    rig_member(&r, 1, EN_MEMBER_LEFT, 1);
    assert_int_equal(r.actions.n, 0); /* rank 2 is still to come */
    push(&r, 2, 1, 0);
    assert_int_equal(r.actions.n, 2);
    assert_int_equal(rig_for(&r, 1)->type, 0);
    assert_int_equal(rig_look(&r, 0)->samples, 8);
    assert_int_equal(eni_store_client(r.store, 1)->dropped, 4);
    assert_int_equal(eni_store_client(r.store, 0)->holds, 1); /* asked four times, held once */
    assert_int_equal(eni_store_client(r.store, 2)->holds, 0);
    rig_free(&r);
}

static void ssp_holds_at_its_bound_and_never_passes_it(void **state)
{
    (void)state;
    eni_store_config config = rig_config(rig_strategy("ssp"), 2, &count, 1);
    eni_options *options;
    assert_int_equal(eni_options_new(config.strategy, "bound=2", &options), EN_OK);
    config.options = options;
    rig r = rig_new(&config);
    for (uint64_t t = 0; t < 2; t++) {
        push(&r, 0, t + 1, t);
        assert_int_equal(r.actions.n, 1);
    }
    push(&r, 0, 3, 2);
    assert_int_equal(r.actions.n, 0);
    push(&r, 1, 1, 0);
    assert_int_equal(r.actions.n, 2); /* in the order of arrival */
    assert_int_equal(r.actions.item[0].client, 0);
    assert_int_equal(r.actions.item[1].client, 1);
    assert_int_equal(eni_store_client(r.store, 0)->holds, 1);
    assert_int_equal(eni_store_client(r.store, 0)->clocks_ahead, 2);
    assert_int_equal(eni_store_client(r.store, 1)->clocks_ahead, 0);
    push(&r, 0, 4, 3);
    assert_int_equal(r.actions.n, 0);
    rig_member(&r, 1, EN_MEMBER_FINISHED, 1); /* nobody is slower than the only one */
    assert_int_equal(r.actions.n, 1);
    rig_free(&r);
    eni_options_free(options);
}

/* A restarted client must not hold everyone back to clock 0. */
static void a_rejoined_client_starts_at_the_least_clock(void **state)
{
    (void)state;
    eni_store_config config = rig_config(rig_strategy("ssp"), 3, &count, 1);
    eni_options *options;
    assert_int_equal(eni_options_new(config.strategy, "bound=1", &options), EN_OK);
    config.options = options;
    rig r = rig_new(&config);
    for (uint64_t t = 0; t < 5; t++)
        for (int32_t c = 0; c < 3; c++)
            push(&r, c, t + 1, 3 * t);
    rig_member(&r, 1, EN_MEMBER_JOINED, 2);
    push(&r, 0, 6, 15);
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REPLY);
    rig_free(&r);
    eni_options_free(options);
}

/* Between two pushes of one client each other client pushes once on average: the mean is W - 1. */
static void the_staleness_of_async_is_the_number_of_others(void **state)
{
    (void)state;
    enum { WORLD = 4, STEPS = 4000 };
    rig r = new_rig("ps-async", WORLD);
    const eni_rng_key key = {.seed = 3, .purpose = ENI_RNG_TEST};
    uint64_t seq[WORLD] = {0}, base[WORLD] = {0};
    for (uint64_t i = 0; i < STEPS; i++) {
        const uint64_t draw = eni_rng_below(&key, i, 13); /* client 3 is four times slower */
        const int32_t c = draw == 12 ? 3 : (int32_t)(draw % 3);
        push(&r, c, ++seq[c], base[c]);
        base[c] = rig_for(&r, c)->version;
    }
    eni_histogram all = {0};
    for (int32_t c = 0; c < WORLD; c++)
        assert_int_equal(eni_histogram_merge(&all, &eni_store_client(r.store, c)->steady), EN_OK);
    assert_true(all.count > STEPS - 200);
    assert_true(eni_histogram_mean(&all) > (WORLD - 1) * 0.99 &&
                eni_histogram_mean(&all) < (WORLD - 1) * 1.01);
    assert_true(eni_histogram_mean(&eni_store_client(r.store, 3)->steady) > 8);
    const uint64_t steady = eni_store_client(r.store, 0)->steady.count;
    rig_member(&r, 3, EN_MEMBER_FINISHED, 1);
    push(&r, 0, ++seq[0], base[0]);
    assert_int_equal(eni_store_client(r.store, 0)->steady.count, steady); /* no longer all are active */
    eni_histogram_fini(&all);
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_repeat_is_answered_and_not_applied),
        cmocka_unit_test(a_repeat_of_a_held_call_takes_its_place),
        cmocka_unit_test(stale_and_gaps_are_refused),
        cmocka_unit_test(lies_are_refused),
        cmocka_unit_test(an_older_incarnation_is_fenced_a_newer_one_starts_afresh),
        cmocka_unit_test(who_has_not_joined_may_not_call),
        cmocka_unit_test(snapshots_wait_for_the_weights),
        cmocka_unit_test(initial_weights_are_taken_once),
        cmocka_unit_test(a_finished_client_releases_the_others),
        cmocka_unit_test(a_lost_client_takes_its_gradient_along),
        cmocka_unit_test(ssp_holds_at_its_bound_and_never_passes_it),
        cmocka_unit_test(a_rejoined_client_starts_at_the_least_clock),
        cmocka_unit_test(the_staleness_of_async_is_the_number_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
