/* test_virtual.c - `entrain sim --model`: a network in virtual time ends with the bytes of a run on real ranks. */
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: a network in virtual time ends with the weights of a run on real ranks, byte for byte.
 * Promise: a sendrecv whose partner never comes ends the run, and both ranks are named. */

#define COMMON                                                                                               \
    "--limit-train-samples=103 --limit-test-samples=16 --epochs=2 --batch-size=8 --device=ref --lr=0.02 "    \
    "--seed=3"

typedef struct virtual_case {
    const char *strategy, *network;
} virtual_case;

static const virtual_case cases[] = {
    {"ring", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"ps-sync --shards=3", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"hybrid:ps=fc1.weight", "--model=convnet --optimizer=adamw --data=synthetic"},
    {"hierarchical", "--model=mlp --nesterov --momentum=0.5 --data=synthetic"},
    {"grouped:period=4 --groups=2", "--model=mlp --lr-schedule=cosine --lr-warmup=40 --data=synthetic"},
    {EN_BUILD_DIR "/test/plugins/zoo.so@pairs", "--model=convnet --data=synthetic"}, /* ranks that sit out */
    {"ring", "--model=resnet18:width=2,stem=cifar --data=synthetic --momentum=0.9 --augment=crop:32:4,flip"},
};

static void virtual_hash(const virtual_case *c, int workers, char hash_out[HASHES])
{
    process p;
    process_start(&p, "entrain", NULL, "sim -n %d --strategy=%s %s " COMMON " --json", workers, c->strategy,
                  c->network);
    const int code = process_wait(&p, 120);
    json_t *said = json_loads(process_out(&p), 0, NULL);
    if (code != 0 || said == NULL)
        fail_msg("sim, %s, %s: exit %d\n%s", c->strategy, c->network, code, process_err(&p));
    snprintf(hash_out, HASHES, "%s", text_at(said, "params_sha256"));
    json_decref(said);
}

static void virtual_is_real(void **state)
{
    char hash[HASHES];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int workers = 2; workers <= 4; workers++) {
            if (workers == 3 && strstr(cases[i].strategy, "groups=2") != NULL)
                continue; /* of two and of one */
            virtual_hash(&cases[i], workers, hash);
            json_t *real =
                train(120, "-n %d --strategy=%s %s " COMMON, workers, cases[i].strategy, cases[i].network);
            if (strcmp(hash, text_at(real, "params_sha256")) != 0)
                fail_msg("%s, %s, %d workers: %s in virtual time, %s on real ranks", cases[i].strategy,
                         cases[i].network, workers, hash, text_at(real, "params_sha256"));
            json_decref(real);
        }
    promise("ring, ps-sync, hybrid, hierarchical, grouped in virtual time = on real ranks, W = 2, 3, 4: mlp, "
            "convnet "
            "(AdamW), resnet18 (crops, running statistics), ragged ends");
}

/* Rank 0 waits for rank 1, which trains on alone; in both worlds. */
static void a_partner_that_never_comes(void **state)
{
    (void)state;
    process p;
    for (int is_real = 0; is_real < 2; is_real++) {
        process_start(&p, "entrain", NULL,
                      "%s -n 2 --strategy=" EN_BUILD_DIR "/test/plugins/zoo.so@lonely "
                      "--model=mlp --data=synthetic " COMMON,
                      is_real ? "run" : "sim");
        assert_int_not_equal(process_wait(&p, 60), 0);
        const char *said = process_err(&p);
        if (strstr(said, "rank 0 in step 0") == NULL || strstr(said, "sendrecv") == NULL ||
            strstr(said, "rank 1") == NULL)
            fail_msg("%s", said);
    }
    promise("a sendrecv without a partner ends with both ranks named, on real ranks after 5 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(virtual_is_real),
                                       cmocka_unit_test(a_partner_that_never_comes)};
    return system_main(tests);
}
