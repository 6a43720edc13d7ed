/* test_store_vector.c - whole vectors in and out of a partition: a store that starts from another's snapshot
 * goes on as that one does. */
#include "tests/store/store_rig.h"

enum { COUNT = 48 };
static const uint64_t count = COUNT;

static void look(rig *r, uint32_t kind, eni_store_action *seen, float copy_out[COUNT])
{
    rig_step(r, (eni_store_event){.type = ENI_STORE_SNAPSHOT, .kind = kind});
    assert_int_equal(r->actions.n, 1);
    *seen = r->actions.item[0];
    assert_int_equal(seen->type, ENI_STORE_REPLY);
    memcpy(copy_out, seen->data, COUNT * sizeof(float));
}

static void push_as(rig *r, uint64_t seq, uint64_t base, uint64_t number)
{
    static float gradient[COUNT];
    for (int i = 0; i < COUNT; i++)
        gradient[i] = (float)(number + (uint64_t)i) * 0.01f;
    rig_step(r, (eni_store_event){.type = ENI_STORE_CALL,
                                  .incarnation = 1,
                                  .seq = seq,
                                  .kind = 1,
                                  .what = EN_GRAD,
                                  .base_version = base,
                                  .nsamples = 13,
                                  .payload = {.data = gradient, .count = COUNT}});
    assert_int_equal(r->actions.item[0].type, ENI_STORE_REPLY);
}

static void push(rig *r, uint64_t seq, uint64_t base)
{
    push_as(r, seq, base, seq);
}

static rig begin(const eni_store_config *config)
{
    rig r = {0};
    assert_int_equal(eni_store_new(config, &r.store), EN_OK);
    rig_member(&r, 0, EN_MEMBER_JOINED, 1);
    return r;
}

static void put(rig *r, uint32_t kind, const float *vector, const eni_store_action *past)
{
    rig_step(r, (eni_store_event){.type = ENI_STORE_INIT,
                                  .kind = kind,
                                  .seq = past->steps,
                                  .base_version = past->version,
                                  .nsamples = past->samples,
                                  .payload = {.data = (float *)vector, .count = COUNT}});
    assert_int_equal(r->actions.item[0].type, ENI_STORE_REPLY);
}

static void a_store_goes_on_where_another_was(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-async"), 1, &count, 1);
    rig a = begin(&config), b = begin(&config);
    eni_store_action weights, slot;
    float w[COUNT], m[COUNT];
    rig_init_bucket(&a, &config, 0);
    for (uint64_t seq = 1; seq <= 5; seq++)
        push(&a, seq, seq - 1);
    look(&a, ENI_VECTOR_FREEZE, &weights, w);
    push(&a, 6, 5); /* in between: what is frozen does not move */
    look(&a, ENI_VECTOR_SLOT, &slot, m);
    assert_int_equal(weights.version, 5);
    assert_int_equal(weights.steps, 5);
    assert_int_equal(weights.samples, 5 * 13);
    assert_int_equal(slot.version, 5);
    assert_int_equal(slot.samples, 5 * 13);
    put(&b, ENI_VECTOR_SLOT, m, &slot);
    put(&b, ENI_VECTOR_WEIGHTS, w, &weights);
    assert_int_equal(rig_look(&b, 0)->samples, 5 * 13);
    assert_int_equal(b.actions.item[0].version, 5);
    push_as(&b, 1, 5, 6); /* the sixth push again, by a client that begins anew */
    assert_memory_equal(eni_store_weights(a.store, 0, NULL), eni_store_weights(b.store, 0, NULL), sizeof w);
    float of_a[COUNT], of_b[COUNT];
    look(&a, ENI_VECTOR_FREEZE, &weights, w);
    look(&a, ENI_VECTOR_SLOT, &slot, of_a);
    look(&b, ENI_VECTOR_FREEZE, &weights, w);
    look(&b, ENI_VECTOR_SLOT, &slot, of_b);
    assert_memory_equal(of_a, of_b, sizeof of_a);
    rig_free(&a);
    rig_free(&b);
}

static void vectors_that_are_not_there_are_refused(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-async"), 1, &count, 1);
    rig r = begin(&config);
    float vector[COUNT] = {0};
    rig_step(&r, (eni_store_event){.type = ENI_STORE_SNAPSHOT, .kind = 2});
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REFUSE);
    rig_step(&r, (eni_store_event){.type = ENI_STORE_SNAPSHOT, .kind = UINT32_MAX});
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REFUSE);
    static const uint32_t kinds[] = {2, 127, ENI_VECTOR_FREEZE, 255};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        rig_step(&r, (eni_store_event){.type = ENI_STORE_INIT,
                                       .kind = kinds[i],
                                       .payload = {.data = vector, .count = COUNT}});
        assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REFUSE);
    }
    rig_step(&r, (eni_store_event){
                     .type = ENI_STORE_INIT, .seq = UINT64_MAX, .payload = {.data = vector, .count = COUNT}});
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REFUSE);
    rig_free(&r);
}

/* The weights end the start: a slot that comes later would undo steps. */
static void slots_come_before_the_weights(void **state)
{
    (void)state;
    const eni_store_config config = rig_config(rig_strategy("ps-async"), 1, &count, 1);
    rig r = begin(&config);
    float vector[COUNT] = {3};
    rig_init_bucket(&r, &config, 0);
    rig_step(&r, (eni_store_event){.type = ENI_STORE_INIT,
                                   .kind = ENI_VECTOR_SLOT,
                                   .payload = {.data = vector, .count = COUNT}});
    assert_int_equal(rig_for(&r, 0)->flags, ENI_STORE_IS_REPEAT);
    eni_store_action slot;
    look(&r, ENI_VECTOR_SLOT, &slot, vector);
    assert_true(vector[0] == 0);
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_goes_on_where_another_was),
        cmocka_unit_test(vectors_that_are_not_there_are_refused),
        cmocka_unit_test(slots_come_before_the_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
