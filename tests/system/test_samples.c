/* test_samples.c - samples computed, applied, dropped: where ranks step alone and push now and then, a push
 * covers all that its rank has computed since the last one. */
#include <math.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: Every sample is computed, applied, dropped or behind a last push, and is counted once. */

enum { STEPS = 50, BATCH = 8, BUDGET = 2 * STEPS * BATCH };

#define LOCAL EN_BUILD_DIR "/test/plugins/local.so"
#define JOB                                                                                                  \
    "-n 2 --device=ref --model=mlp --data=synthetic --limit-train-samples=800 --limit-test-samples=64 "      \
    "--batch-size=8 --epochs=1 --lr=0.01 "

static const json_t *psd_of(const json_t *r)
{
    size_t i;
    json_t *role;
    json_array_foreach(json_object_get(r, "roles"), i, role)
    {
        if (strcmp(text_at(role, "role"), "psd") == 0) return role;
    }
    fail_msg("no psd among the roles");
    return NULL;
}

/* What holds whatever the strategy: the sums are those of the workers, and nothing is counted twice. */
static void expect_whole(const char *name, const json_t *r)
{
    double computed = 0, applied = 0, dropped = 0, seconds = number_at(r, "train_seconds");
    size_t i;
    json_t *worker;
    json_array_foreach(json_object_get(r, "per_worker"), i, worker)
    {
        const double rest = number_at(worker, "samples_computed") - number_at(worker, "samples_applied") -
                            number_at(worker, "samples_dropped");
        if (rest < 0) fail_msg("%s: rank %zu has applied and dropped more than it computed", name, i);
        computed += number_at(worker, "samples_computed");
        applied += number_at(worker, "samples_applied");
        dropped += number_at(worker, "samples_dropped");
    }
    assert_true(computed == number_at(r, "samples_computed"));
    assert_true(applied == number_at(r, "samples_applied"));
    assert_true(dropped == number_at(r, "samples_dropped"));
    if (computed != BUDGET) fail_msg("%s: %.0f samples were computed of %d", name, computed, BUDGET);
    const double rate = (computed - number_at(r, "warmup_samples")) / seconds;
    if (!(fabs(number_at(r, "samples_per_s") - rate) <= 0.001 * rate))
        fail_msg("%s: %g samples/s, and %g were computed", name, number_at(r, "samples_per_s"), rate);
}

typedef struct arm {
    const char *strategy;
    int applied, dropped;   /* samples of each rank */
    int pushes, is_dropped; /* of each rank: all, and those that were dropped */
} arm;

/* 50 steps, an exchange every 4: the last two steps of each rank lie behind its last push. */
static const arm arms[] = {{LOCAL "@easgd:period=4", 48 * BATCH, 0, 12, 0},
                           {LOCAL "@downpour:period=4", 48 * BATCH, 0, 12, 0},
                           {LOCAL "@downpour:period=4,drop=3", 32 * BATCH, 16 * BATCH, 12, 4},
                           {LOCAL "@downpour:period=10,drop=2", 30 * BATCH, 20 * BATCH, 5, 2},
                           {LOCAL "@easgd:period=60", 0, 0, 0, 0},
                           {"ps-async", 50 * BATCH, 0, 50, 0}};

static void a_push_covers_what_was_computed_since_the_last(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        const arm *a = &arms[i];
        json_t *r = train(60, "--strategy=%s --assign=fixed --shards=2 " JOB, a->strategy);
        const json_t *psd = psd_of(r);
        const double parts = number_at(psd, "parts");
        expect_whole(a->strategy, r);
        if (number_at(r, "samples_applied") != 2 * a->applied ||
            number_at(r, "samples_dropped") != 2 * a->dropped)
            fail_msg("%s: %.0f applied, %.0f dropped", a->strategy, number_at(r, "samples_applied"),
                     number_at(r, "samples_dropped"));
        assert_true(number_at(psd, "pushes") == 2 * a->pushes);
        assert_true(number_at(psd, "staleness.count") == parts * 2 * (a->pushes - a->is_dropped));
        json_decref(r);
    }
    promise(
        "easgd and downpour: of %d samples computed those are applied that pushes cover, and dropped pushes "
        "are no staleness",
        BUDGET);
}

/* Ranks of different pace claim what they compute: still the budget, and each sample in one place. */
static void claimed_samples_are_the_budget(void **state)
{
    static const char *const strategies[] = {LOCAL "@easgd:period=4", LOCAL "@downpour:period=4,drop=3",
                                             "ring"};
    (void)state;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        json_t *r = train(60, "--strategy=%s --straggler=1:3 " JOB, strategies[i]);
        expect_whole(strategies[i], r);
        json_decref(r);
    }
}

/* Who averages weights in place has nothing that is not applied. */
static void averaged_weights_cover_everything(void **state)
{
    (void)state;
    json_t *r = train(60, "--strategy=" EN_BUILD_DIR "/plugins/localsgd.so:period=8 " JOB);
    expect_whole("localsgd", r);
    assert_true(number_at(r, "samples_applied") == BUDGET);
    json_decref(r);
}

/* psd's account of the bytes is the workers': the weights' way at the start and to evaluation stands apart.
 */
static void psd_and_the_workers_agree_about_bytes(void **state)
{
    (void)state;
    json_t *r = train(60, "--strategy=ps-sync --shards=2 --eval-every=200 " JOB);
    const json_t *psd = psd_of(r);
    double workers = 0;
    for (int rank = 0; rank < 2; rank++) {
        const json_t *role = json_array_get(json_object_get(r, "roles"), (size_t)rank);
        workers += number_at(role, "payload_sent") + number_at(role, "payload_received");
    }
    assert_true(workers == number_at(r, "payload_bytes"));
    if (number_at(psd, "payload_bytes") != workers)
        fail_msg("psd has %.0f bytes, the workers %.0f", number_at(psd, "payload_bytes"), workers);
    assert_true(number_at(psd, "payload_beside_steps") > 0);
    json_decref(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_push_covers_what_was_computed_since_the_last),
                                       cmocka_unit_test(claimed_samples_are_the_budget),
                                       cmocka_unit_test(averaged_weights_cover_everything),
                                       cmocka_unit_test(psd_and_the_workers_agree_about_bytes)};
    return system_main(tests);
}
