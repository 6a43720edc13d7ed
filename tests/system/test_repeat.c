/* test_repeat.c - changes that keep the bytes of a run: a repetition, the number of shards and buckets,
 * payloads through shared memory or not, one asynchronous worker. And changes that do not. */
#include <string.h>

#include "tests/system/run.h"

/* Promise: Repetition, shards, buckets and the way of payloads change no byte. */

#define JOB                                                                                                  \
    "--device=ref --model=mlp " MADE_UP " --steps=60 --batch-size=4 --lr=0.02 --momentum=0.9 --nesterov "    \
    "--weight-decay=0.0005"
/* 784-256-10 has four tensors and 0.8 MB: large ones are cut by rows. */
#define SMALL_BUCKETS "--bucket-cap-mb=0.01"

static void test_again(void **state)
{
    static const char *const arms[] = {"-n 1 --strategy=solo", "-n 3 --strategy=ring --allreduce=direct",
                                       "-n 3 --strategy=ring --allreduce=ring --transport=tcp",
                                       "-n 3 --strategy=ps-sync --shards=3"};
    (void)state;
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        const char *first = train_hash(60, "%s " JOB, arms[i]), *second = train_hash(60, "%s " JOB, arms[i]);
        assert_string_equal(first, second);
        assert_string_not_equal(first, train_hash(60, "%s " JOB " --seed=2", arms[i]));
    }
    promise(
        "the same run twice has the same bytes: solo, ring direct, ring over TCP, ps-sync, W = 3, 60 steps");
}

static void test_async_alone(void **state)
{
    (void)state;
    const char *solo = train_hash(60, "-n 1 --strategy=solo " JOB);
    assert_string_equal(solo, train_hash(60, "-n 1 --strategy=ps-async " JOB));
    assert_string_equal(solo, train_hash(60, "-n 1 --strategy=ps-async --shards=3 --transport=tcp " JOB));
    assert_string_equal(solo, train_hash(60, "-n 1 --strategy=ssp:bound=0 " JOB));
    promise(
        "ps-async with one worker = solo, byte for byte: 60 steps, 1 and 3 shards, shared memory and tcp");
}

static void test_cuts(void **state)
{
    (void)state;
    const char *whole = train_hash(60, "-n 3 --strategy=ps-sync " JOB);
    assert_string_equal(whole, train_hash(60, "-n 3 --strategy=ps-sync --shards=11 " SMALL_BUCKETS " " JOB));
    assert_string_equal(whole, train_hash(60, "-n 3 --strategy=ps-sync --shards=2 --transport=tcp " JOB));
    assert_string_equal(whole, train_hash(60, "-n 3 --strategy=ring " SMALL_BUCKETS " " JOB));
    assert_string_equal(whole, train_hash(60, "-n 3 --strategy=ring --no-overlap " JOB));
    assert_string_equal(whole, train_hash(60, "-n 3 --strategy=ring --bucket-cap-mb=100 " JOB));
    promise(
        "11 shards of 4 tensors, buckets of 10 KB and of 100 MB, tcp or shared memory, overlap or not: the "
        "same bytes, W = 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_again), cmocka_unit_test(test_async_alone),
                                       cmocka_unit_test(test_cuts)};
    return system_main(tests);
}
