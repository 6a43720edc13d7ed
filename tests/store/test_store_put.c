/* test_store_put.c - a step writes the weights to where its push wants them, and only while that push waits. */
#include <math.h>

#include "core/options.h"
#include "tests/store/store_rig.h"

enum { COUNT = 2500, UNTOUCHED = -7 }; /* two blocks of a step and a part */
static const uint64_t counts[] = {COUNT};

static void fill(float *v, float value)
{
    for (uint64_t i = 0; i < COUNT; i++)
        v[i] = value;
}

static bool is_filled(const float *v, float value)
{
    for (uint64_t i = 0; i < COUNT; i++)
        if (v[i] != value) return false;
    return true;
}

/* A push that wants its answer at `into` (NULL: nowhere); `scale` of NaN makes it infinite. */
static const eni_store_action *push(rig *r, int32_t client, uint64_t seq, uint64_t base, float *into,
                                    float scale)
{
    float *gradient = malloc(COUNT * sizeof *gradient);
    for (uint64_t i = 0; i < COUNT; i++)
        gradient[i] = rig_gradient(client, seq, 0, i) * scale;
    rig_step(r, (eni_store_event){
                    .type = ENI_STORE_CALL,
                    .client = client,
                    .incarnation = 1,
                    .seq = seq,
                    .kind = 1,
                    .what = EN_GRAD,
                    .base_version = base,
                    .nsamples = 3,
                    .covered = 3,
                    .into = into,
                    .payload = {.data = gradient, .count = COUNT, .release = free, .owner = gradient}});
    return rig_for(r, client);
}

/* Promise: Where psd writes a worker's weights while it steps, they are those that it would have copied after the step. */
static void a_step_writes_the_weights_where_its_push_wants_them(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-async"), 2, counts, 1);
    rig r = rig_new(&config), plain = rig_new(&config);
    static float into[COUNT];
    for (uint64_t seq = 1; seq <= 5; seq++)
        for (int32_t client = 0; client < 2; client++) {
            fill(into, UNTOUCHED);
            const eni_store_action *answer = push(&r, client, seq, 0, into, 1);
            assert_int_equal(answer->flags, ENI_STORE_IS_PUT);
            assert_memory_equal(into, answer->data, sizeof into);
            answer = push(&plain, client, seq, 0, NULL, 1);
            assert_int_equal(answer->flags, 0);
            assert_memory_equal(into, answer->data, sizeof into);
        }
    rig_free(&plain);
    rig_free(&r);
}

/* The fast client's answer comes with the slow one's step: what its own step wrote is of an older version. */
static void weights_of_an_older_version_do_not_count(void **state)
{
    (void)state;
    static float fast[COUNT], slow[COUNT];
    eni_options *options;
    eni_store_config config = rig_config(rig_strategy("ssp"), 2, counts, 1);
    assert_int_equal(eni_options_new(config.strategy, "bound=0", &options), EN_OK);
    config.options = options;
    rig r = rig_new(&config);
    assert_int_equal(push(&r, 0, 1, 0, fast, 1)->type, 0); /* held */
    const eni_store_action *answer = push(&r, 1, 1, 0, slow, 1);
    assert_int_equal(answer->flags, ENI_STORE_IS_PUT);
    assert_memory_equal(slow, answer->data, sizeof slow);
    answer = rig_for(&r, 0);
    assert_int_equal(answer->version, 2);
    assert_int_equal(answer->flags, 0);
    assert_memory_not_equal(fast, answer->data, sizeof fast);
    rig_free(&r);
    eni_options_free(options);
}

static void a_step_that_fails_writes_nothing(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-async"), 1, counts, 1);
    rig r = rig_new(&config);
    static float into[COUNT];
    fill(into, UNTOUCHED);
    assert_int_equal(push(&r, 0, 1, 0, into, NAN)->type, ENI_STORE_REFUSE);
    assert_true(is_filled(into, UNTOUCHED));
    assert_int_equal(push(&r, 0, 2, 0, into, 1)->flags, ENI_STORE_IS_PUT);
    rig_free(&r);
}

static en_status when_all_have(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    const en_status st = store->absorb(store, part, msg, 1);
    return st != EN_OK || part->pending < part->nclients ? st : store->step(store, part);
}

/* The first client has its answer, and may read or write there, when the second one's push makes the step. */
static void a_client_that_was_answered_keeps_its_memory(void **state)
{
    (void)state;
    const en_strategy eager = {.abi = EN_STRATEGY_ABI,
                               .size = sizeof eager,
                               .name = "eager",
                               .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
                               .submit = rig_strategy("ps-async")->submit,
                               .on_push = when_all_have};
    const eni_store_config config = rig_config(&eager, 2, counts, 1);
    rig r = rig_new(&config);
    static float first[COUNT], second[COUNT];
    const eni_store_action *answer = push(&r, 0, 1, 0, first, 1);
    assert_int_equal(answer->type, ENI_STORE_REPLY);
    assert_int_equal(answer->flags, 0);
    fill(first, UNTOUCHED);
    answer = push(&r, 1, 1, 0, second, 1);
    assert_int_equal(answer->flags, ENI_STORE_IS_PUT);
    assert_memory_equal(second, answer->data, sizeof second);
    assert_true(is_filled(first, UNTOUCHED));
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_writes_the_weights_where_its_push_wants_them),
                                       cmocka_unit_test(weights_of_an_older_version_do_not_count),
                                       cmocka_unit_test(a_step_that_fails_writes_nothing),
                                       cmocka_unit_test(a_client_that_was_answered_keeps_its_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
