/* test_virtual.c - `entrain sim --model`: a network in virtual time ends with the bytes of a run on real ranks; a recorded
 * order; what is said of times. */
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: a network in virtual time ends with the weights of a run on real ranks, byte for byte.
 * Promise: with the recorded order of a run with a server, virtual time ends with its weights, byte for byte.
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
    {"local-sgd:period=4,start=3", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"slowmo:period=3,buffer=average",
     "--model=mlp --nesterov --momentum=0.5 --lr-warmup=40 --data=synthetic"},
    {"diloco:period=3", "--model=mlp --optimizer=adamw --data=synthetic"},
    {"diloco:period=5 --groups=2", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"d-psgd", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"d-psgd:graph=complete", "--model=mlp --momentum=0.9 --data=synthetic"},
    {"d-psgd:graph=exponential", "--model=mlp --nesterov --momentum=0.5 --data=synthetic"},
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

/* Text and JSON say how long things take, by groups of ranks. */
static void timing_is_told(void **state)
{
    static const char args[] =
        "sim -n 4 --local-size=2 --strategy=ps-async --steps=4 --compute=0-2=exp:1ms;3=fixed:4ms "
        "--straggler=1:4,2-3=transient:3:0.1:5 --net=machines=rate:10MB,delay:1ms "
        "--server-time=20us+1ms/MB";
    static const char *const lines[] = {
        "compute     ranks 0-2 exp:1ms; rank 3 fixed:4ms\n",
        "stragglers  rank 1 4 times as slow; ranks 2-3 3 times as slow for 5 steps, begun with probability "
        "0.1 in each\n",
        "network     ranks 0-3 1000 MB/s (8000 Mbit/s) each way, 50 us more latency; machines 0-1 10 MB/s "
        "(80 Mbit/s) each "
        "way, 1000 us more latency; server 0 1000 MB/s (8000 Mbit/s) each way, 50 us more latency\n",
        "server time server 0 fixed:20us; server 0 1 ms/MB\n", "theory 3; samples dropped 0 %\n"};
    process p;
    (void)state;
    process_start(&p, "entrain", NULL, "%s", args);
    assert_int_equal(process_wait(&p, 60), 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (strstr(process_out(&p), lines[i]) == NULL)
            fail_msg("no line %s in\n%s", lines[i], process_out(&p));
    process_start(&p, "entrain", NULL, "%s --json", args);
    assert_int_equal(process_wait(&p, 60), 0);
    json_t *said = json_loads(process_out(&p), 0, NULL),
           *want = json_loads("[[\"ranks 0-2\", \"exp:1ms\"], [\"rank 3\", \"fixed:4ms\"]]", 0, NULL);
    const json_t *timing = json_object_get(said, "timing");
    assert_true(json_equal(json_object_get(timing, "compute"), want));
    assert_int_equal(json_array_size(json_object_get(timing, "stragglers")), 2);
    assert_int_equal(json_array_size(json_object_get(timing, "network")), 3);
    assert_int_equal(json_array_size(json_object_get(timing, "server_time")), 2);
    json_decref(want);
    json_decref(said);
}

#define RECORDED                                                                                             \
    "--strategy=%s --model=%s --data=synthetic --shards=2 --batch-size=8 --device=ref --lr=0.02 --steps=12 " \
    "--limit-train-samples=500 --limit-test-samples=16 "

/* `entrain sim` with these flags plays what the last train() has recorded. Its exit code. */
static int replay(process *p, const char *strategy, const char *network, const char *others)
{
    process_start(p, "entrain", NULL, "sim --replay-order=%s " RECORDED " %s", train_out(), strategy, network,
                  others);
    return process_wait(p, 120);
}

static void a_recorded_order_is_played(void **state)
{
    static const char *const strategies[] = {"ps-async", "ssp:bound=1"}, *const networks[] = {"mlp",
                                                                                              "convnet"};
    process p;
    char workers[16];
    (void)state;
    for (int s = 0; s < 2; s++)
        for (int n = 0; n < 2; n++)
            for (int w = 2; w <= 4; w++) {
                json_decref(train(120, "-n %d --record-order --straggler=1:2 " RECORDED, w, strategies[s],
                                  networks[n]));
                snprintf(workers, sizeof workers, "-n %d", w);
                if (replay(&p, strategies[s], networks[n], workers) != 0 ||
                    process_says(&p, "byte for byte", "") != 1)
                    fail_msg("%s, %s, %d workers\n%s", strategies[s], networks[n], w, process_err(&p));
            }
    promise("ps-async and ssp, W = 2, 3, 4, mlp and convnet, two shards: virtual time plays the recorded "
            "order and ends "
            "with the weights of the run");
}

static void what_does_not_fit_is_not_played(void **state)
{
    static const char *const others[][3] = {{"ps-async", "-n 3", "metrics-2.jsonl"},
                                            {"ps-async", "-n 2 --shards=1", "shard 0 of 1"},
                                            {"ps-async", "-n 2 --shards=0", "shard 0 of 1"},
                                            {"ps-async", "-n 2 --model=mlp", "elements"},
                                            {"ps-async", "-n 2 --steps=11", "micro-batch"},
                                            {"ps-sync", "-n 2", "no call"},
                                            {"ring", "-n 2", "servers"},
                                            {"ps-async", "-n 2 --lr=0.03", "params_sha256"}};
    process p;
    char path[256];
    (void)state;
    /* the straggler: ranks in turns would be an order of ps-sync, too */
    json_decref(train(120, "-n 2 --record-order --straggler=1:4 " RECORDED, "ps-async", "convnet"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (replay(&p, others[i][0], "convnet", others[i][1]) != 2 ||
            process_says(&p, "--replay-order", others[i][2]) != 1)
            fail_msg("%s %s:\n%s", others[i][0], others[i][1], process_err(&p));
    snprintf(path, sizeof path, "%s/metrics-1.jsonl", train_out()); /* its last line is lost */
    json_t *steps = read_lines(path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (size_t i = 0; i + 1 < json_array_size(steps); i++) {
        json_dumpf(json_array_get(steps, i), file, JSON_COMPACT);
        fputs("\n", file);
    }
    fclose(file);
    json_decref(steps);
    assert_int_equal(replay(&p, "ps-async", "convnet", "-n 2"), 2);
    assert_int_equal(process_says(&p, "--replay-order", "rank 1"), 1);
    assert_non_null(file = fopen(path, "w"));
    fputs("{\"step\":0}\n", file); /* of a version that did not write micro-batches */
    fclose(file);
    assert_int_equal(replay(&p, "ps-async", "convnet", "-n 2"), 2);
    assert_int_equal(process_says(&p, "--replay-order", "metrics-1.jsonl"), 1);
    process_start(&p, "entrain", NULL,
                  "run -n 2 --strategy=ring --model=mlp --data=synthetic --record-order");
    assert_int_equal(process_wait(&p, 60), 2);
    assert_int_equal(process_says(&p, "--record-order", "ring"), 1);
    promise("%zu orders that do not fit, and one with a line missing, are refused",
            sizeof others / sizeof *others);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(virtual_is_real), cmocka_unit_test(timing_is_told),
                                       cmocka_unit_test(a_recorded_order_is_played),
                                       cmocka_unit_test(what_does_not_fit_is_not_played),
                                       cmocka_unit_test(a_partner_that_never_comes)};
    return system_main(tests);
}
