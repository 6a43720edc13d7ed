/* test_virtual.c - `entrain sim --model`: a network in virtual time ends with the bytes of a run on real ranks. */
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: a network in virtual time ends with the weights of a run on real ranks, byte for byte. */

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
    {"local-sgd:period=4,start=3", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"slowmo:period=3,buffer=average",
     "--model=mlp --nesterov --momentum=0.5 --lr-warmup=40 --data=synthetic"},
    {"diloco:period=3", "--model=mlp --optimizer=adamw --data=synthetic"},
    {"diloco:period=5 --groups=2", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"d-psgd", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"d-psgd:graph=complete", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"d-psgd:graph=exponential", "--model=mlp --nesterov --momentum=0.5 --data=synthetic"},
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
            if (workers == 3 && strstr(cases[i].strategy, "exponential") != NULL) continue; /* refused */
            virtual_hash(&cases[i], workers, hash);
            json_t *real =
                train(120, "-n %d --strategy=%s %s " COMMON, workers, cases[i].strategy, cases[i].network);
            if (strcmp(hash, text_at(real, "params_sha256")) != 0)
                fail_msg("%s, %s, %d workers: %s in virtual time, %s on real ranks", cases[i].strategy,
                         cases[i].network, workers, hash, text_at(real, "params_sha256"));
            json_decref(real);
        }
    promise("ring, ps-sync, hybrid, hierarchical, grouped, local-sgd, slowmo, diloco, d-psgd in virtual time "
            "= on "
            "real ranks, W = 2, 3, 4: mlp, "
            "convnet "
            "(AdamW), resnet18 (crops, running statistics), ragged ends");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(virtual_is_real)};
    return system_main(tests);
}
