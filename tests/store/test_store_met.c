/* test_store_met.c - the answer to a push names the version that it met, however long the answer was held. */
#include "core/options.h"
#include "tests/store/store_rig.h"

enum { COUNT = 4 };
static const uint64_t counts[] = {COUNT};

static void push(rig *r, int32_t client, uint64_t seq, uint64_t base)
{
    float gradient[COUNT];
    for (uint64_t i = 0; i < COUNT; i++)
        gradient[i] = rig_gradient(client, seq, 0, i);
    rig_push_owned(r, client, 0, seq, base, 8, gradient, COUNT);
}

static void expect(const eni_store_action *answer, uint64_t met, uint64_t version)
{
    assert_int_equal(answer->type, ENI_STORE_REPLY);
    assert_int_equal(answer->met, met);
    assert_int_equal(answer->version, version);
}

/* The fast client's second push is applied at once, and answered when the slow one has pushed twice: its
 * answer carries weights that are newer than its own step. */
static void a_held_push_met_what_was_there_when_it_came(void **state)
{
    (void)state;
    eni_store_config config = rig_config(rig_strategy("ssp"), 2, counts, 1);
    eni_options *options;
    assert_int_equal(eni_options_new(config.strategy, "bound=0", &options), EN_OK);
    config.options = options;
    rig r = rig_new(&config);
    push(&r, 0, 1, 0); /* version 1, held */
    assert_int_equal(rig_for(&r, 0)->type, 0);
    push(&r, 1, 1, 0); /* version 2, lets both go */
    expect(rig_for(&r, 0), 0, 2);
    expect(rig_for(&r, 1), 1, 2);
    push(&r, 1, 2, 2); /* version 3, held */
    push(&r, 0, 2, 2);
    expect(rig_for(&r, 1), 2, 4);
    expect(rig_for(&r, 0), 3, 4);
    rig_free(&r);
    eni_options_free(options);
}

static void a_round_meets_the_weights_before_it(void **state)
{
    (void)state;
    eni_store_config config = rig_config(rig_strategy("ps-sync"), 2, counts, 1);
    rig r = rig_new(&config);
    for (uint64_t round = 0; round < 3; round++) {
        push(&r, 0, round + 1, round);
        push(&r, 1, round + 1, round);
        expect(rig_for(&r, 0), round, round + 1);
        expect(rig_for(&r, 1), round, round + 1);
    }
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_held_push_met_what_was_there_when_it_came),
                                       cmocka_unit_test(a_round_meets_the_weights_before_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
