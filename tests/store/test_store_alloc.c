/* test_store_alloc.c - after warm-up a push allocates nothing, whatever its strategy and wherever the weights
 * are read meanwhile. */
#include "tests/allocations.h"
#include "tests/store/store_rig.h"

enum { WORLD = 3, COUNT = 2000, WARM = 20, STEPS = 1000 };

static const uint64_t counts[2] = {COUNT, 100};
static float gradient[COUNT];

static void nobodys(void *owner)
{
    (void)owner;
}

/* Every client pushes to every bucket once; each second answer is read while the next push is taken. */
static void do_round(rig *r, uint64_t round, uint32_t flags, eni_version_buffer **held)
{
    for (uint32_t b = 0; b < 2; b++)
        for (int32_t c = 0; c < WORLD; c++) {
            uint64_t version; /* nobody's staleness grows, or its histogram would */
            eni_store_weights(r->store, b, &version);
            const eni_store_event event = {
                .type = ENI_STORE_CALL,
                .client = c,
                .incarnation = 1,
                .bucket = b,
                .seq = round + 1,
                .kind = 1,
                .what = EN_GRAD,
                .base_version = version,
                .nsamples = 1,
                .payload = {.data = gradient, .count = counts[b], .flags = flags, .release = nobodys}};
            rig_step(r, event);
            if (*held) eni_store_release(NULL, *held);
            *held = c % 2 ? eni_store_acquire(r->store, b) : NULL;
        }
}

static void steps_allocate_nothing(const char *name, uint32_t flags)
{
    const eni_store_config config = rig_config(rig_strategy(name), WORLD, counts, 2);
    rig r = rig_new(&config);
    eni_version_buffer *held = NULL;
    uint64_t round = 0;
    while (round < WARM)
        do_round(&r, round++, flags, &held);
    allocations_begin();
    while (round < WARM + STEPS)
        do_round(&r, round++, flags, &held);
    const allocations some = allocations_end();
    assert_true(eni_store_totals(r.store)->updates >= 2 * STEPS);
    assert_true(eni_store_totals(r.store)->moved > STEPS || strcmp(name, "ps-sync") == 0);
    assert_int_equal(some.own + some.foreign, 0);
    assert_int_equal(some.freed, 0);
    if (held) eni_store_release(NULL, held);
    rig_free(&r);
}

static void in_rounds(void **state)
{
    (void)state;
    steps_allocate_nothing("ps-sync", 0);
    steps_allocate_nothing("ps-sync", ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY);
}

static void on_every_gradient(void **state)
{
    (void)state;
    steps_allocate_nothing("ps-async", 0);
    steps_allocate_nothing("ssp", ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_rounds), cmocka_unit_test(on_every_gradient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
