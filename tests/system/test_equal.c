/* test_equal.c - a step means the same everywhere: the ring, the server and one process end with the same
 * bytes.
 *
 *     test_equal cpu|ref
 *
 * W workers with B samples each, and one process with W micro-batches of B, take 60 steps, which are
 * more than an epoch. An epoch ends with one sample left (97 = 1 modulo all the W*B here, so every rank but 0 has none)
 * or, for W = 3 on cpu, with seven, which the ranks share unevenly. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/bad_files.h"
#include "tests/system/run.h"

/* Promise: ring, ps-sync and one process end with the same bytes, on cpu and ref, for every optimizer,
 * network, shard and batch tried.
 * Promise: One worker is solo in every synchronous strategy, whatever the batch. */

#define STEPS    60
#define NESTEROV "--lr=0.02 --momentum=0.9 --nesterov --weight-decay=0.0005"
#define ADAMW    "--optimizer=adamw --lr=0.002 --weight-decay=0.02 --decay=weights"

static const char *optimizer = NESTEROV;
static const char *device = "cpu";
static const char
    *bn_stats; /* NULL: the convnet; else a small resnet18 with these statistics, on colours .. */
static const char *pixels = "--augment=crop:32:4,flip"; /* .. that are cut out and mirrored */
static const char *resnet = "width=2";                  /* its options */
static int threads = 1, batch = 8;                      /* of a resnet18 */

typedef struct arm {
    const char *name, *flags;
} arm;

/* All flags but those that choose where gradients are computed and summed. */
static const char *job(int w)
{
    static char text[512];
    int is_ref = strcmp(device, "ref") == 0;
    if (bn_stats != NULL) {
        snprintf(text, sizeof text,
                 "--device=%s --threads=%d --model=resnet18:%s --data=%s %s --steps=6 --batch-size=%d "
                 "--bn-stats=%s %s",
                 device, threads, resnet, at("colours"), pixels, batch, bn_stats, optimizer);
        return text;
    }
    snprintf(text, sizeof text,
             "--device=%s --data=synthetic --limit-train-samples=%d --limit-test-samples=8 --steps=%d "
             "--batch-size=%d %s",
             device, w == 3 && !is_ref ? 103 : 97, STEPS, is_ref ? 1 : 4, optimizer);
    return text;
}

/* The hash that all of them have; `order` is --sum-order. */
static const char *expect_same(int w, const char *order, const arm *arms, size_t n)
{
    const char *solo =
        train_hash(120, "-n 1 --strategy=solo --accumulate=%d --sum-order=%s %s", w, order, job(w));
    for (size_t i = 0; i < n; i++) {
        const char *hash = train_hash(120, "-n %d %s --sum-order=%s %s", w, arms[i].flags, order, job(w));
        if (strcmp(solo, hash) != 0)
            fail_msg("W = %d, --sum-order=%s: solo ends with %s, %s with %s", w, order, solo, arms[i].name,
                     hash);
    }
    return solo;
}

/* Tensors have other names in each network: a hybrid of the convnet is the first, one of resnet18 the last. */
static const arm all[] = {
    {"hybrid", "--strategy=hybrid:ps=fc1.*+conv1.* --shards=3 --bucket-cap-mb=0.3"},
    {"ring direct", "--strategy=ring --allreduce=direct"},
    {"naive", "--strategy=ring --allreduce=naive"},
    {"ps-sync", "--strategy=ps-sync --shards=3 --loader-threads=3"},
    {"hybrid", "--strategy=hybrid:ps=layer?.1.*+conv1.* --shards=3 --bucket-cap-mb=0.005"}};
static const arm *const in_rank_order = all, *const of_any_network = all + 1, *const of_resnet = all + 1;
enum { IN_RANK_ORDER = 4, OF_ANY_NETWORK = 3 };

static void test_rank_order(void **state)
{
    (void)state;
    for (int w = 2; w <= 4; w++) {
        const char *hash = expect_same(w, "rank", in_rank_order, IN_RANK_ORDER);
        promise("same bytes, %s, W = %d: ring direct = ring naive = ps-sync (3 shards) = hybrid = solo, "
                "convnet, Nesterov 0.9, %d steps, ragged: sha256 %.8s..",
                device, w, STEPS, hash);
    }
}

/* In a world of one the rank averages, or the server, or neither; x * 15 * (1 / 15) would not be x. The last
 * step of an epoch has 7, 37 or 33 of 97 samples. */
static void test_one_worker(void **state)
{
    static const char *const strategies[] = {"ring",
                                             "ps-sync",
                                             "hierarchical",
                                             "hybrid:auto",
                                             "hybrid:ps=*",
                                             "hybrid:ps=fc1.*",
                                             "grouped",
                                             "local-sgd:period=3",
                                             "ringmaster:threshold=1",
                                             "dc-asgd:adaptive",
                                             "d-psgd"};
    static const int batches[] = {15, 60, 64};
    (void)state;
    if (strcmp(device, "ref") == 0) return; /* what averages is the same there */
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        char solo[HASHES] = "";
        for (size_t i = 0; i <= sizeof strategies / sizeof *strategies; i++) {
            const char *strategy = i == 0 ? "solo" : strategies[i - 1];
            const char *hash = train_hash(60,
                                          "-n 1 --strategy=%s --device=%s --model=mlp --data=synthetic "
                                          "--limit-train-samples=97 --limit-test-samples=8 --steps=8 "
                                          "--batch-size=%d --bucket-cap-mb=0.3 " NESTEROV,
                                          strategy, device, batches[b]);
            if (i == 0) snprintf(solo, sizeof solo, "%s", hash);
            if (strcmp(solo, hash) != 0)
                fail_msg("-b %d: solo ends with %s, %s with %s", batches[b], solo, strategy, hash);
        }
    }
    promise("same bytes, %s, one worker, batches of 15, 60 and 64, ragged: ring = ps-sync = hierarchical "
            "= hybrid = grouped = local-sgd = ringmaster = dc-asgd = d-psgd = solo",
            device);
}

/* AdamW counts its steps for the bias corrections, and each place counts in its own way. */
static void test_adamw(void **state)
{
    (void)state;
    const char *hash = NULL;
    optimizer = ADAMW;
    for (int w = 2; w <= 3; w++)
        hash = expect_same(w, "rank", in_rank_order, IN_RANK_ORDER);
    promise("same bytes, %s, W = 2, 3, AdamW, no decay of biases: ring direct = naive = ps-sync (3 shards) = "
            "hybrid = solo: "
            "sha256 %.8s..",
            device, hash);
    optimizer = NESTEROV;
}

/* Shard and bucket boundaries lie inside tensors, and those of parameter groups inside both. */
static void test_groups(void **state)
{
    char hash[3][HASHES];
    (void)state;
    if (strcmp(device, "ref") == 0) return; /* what steps is the same there */
    optimizer = NESTEROV " --decay=weights --bucket-cap-mb=0.3";
    snprintf(hash[0], sizeof hash[0], "%s", expect_same(2, "rank", of_any_network, OF_ANY_NETWORK));
    const char *solo = "-n 1 --strategy=solo --accumulate=2";
    optimizer = NESTEROV " --decay=all --bucket-cap-mb=0.3";
    assert_string_not_equal(hash[0], train_hash(120, "%s %s", solo, job(2)));
    optimizer = "--decay=weights --weight-decay=0"; /* equal groups are one */
    snprintf(hash[1], sizeof hash[1], "%s", train_hash(120, "%s %s", solo, job(2)));
    optimizer = "";
    snprintf(hash[2], sizeof hash[2], "%s", train_hash(120, "%s %s", solo, job(2)));
    assert_string_equal(hash[1], hash[2]);
    optimizer = NESTEROV;
    promise("same bytes, %s, W = 2, no decay of biases: ring direct = naive = ps-sync (3 shards) = solo",
            device);
}

/* The server gets amounts in samples, which the ranks make of epochs. */
static void test_schedules(void **state)
{
    static const char *const written[] = {
        " --lr-schedule=multistep --lr-gamma=0.5 --lr-warmup=1epoch --lr-milestones=2epochs,3epochs",
        " --lr-schedule=multistep --lr-gamma=0.5 --lr-warmup=97 --lr-milestones=194,291",
        " --lr-schedule=linear"};
    char flags[200], hash[3][HASHES];
    (void)state;
    if (strcmp(device, "ref") == 0) return; /* what steps is the same there */
    for (int i = 0; i < 3; i++) {
        snprintf(flags, sizeof flags, NESTEROV "%s", written[i]);
        optimizer = flags;
        snprintf(hash[i], sizeof hash[i], "%s", expect_same(2, "rank", of_any_network, OF_ANY_NETWORK));
    }
    optimizer = NESTEROV;
    assert_string_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[0], hash[2]);
    promise("same bytes, %s, W = 2: a rate in steps after 2 and 3 epochs, or 194 and 291 samples, in ring, "
            "naive, "
            "ps-sync and solo",
            device);
}

/* The images of resnet18, shared by several tests. */
static void have_colours(void)
{
    static bool is_written;
    if (!is_written) write_cifar("colours", 37, 8);
    is_written = true;
}

/* Running statistics too: one process that plays W ranks chooses among its W as the ranks do. Weights, space,
 * buffers. */
static void expect_same_statistics(const char *mode, char seen[HASHES])
{
    bn_stats = mode;
    for (int w = 2; w <= 3; w++)
        snprintf(seen, HASHES, "%s", expect_same(w, "rank", of_resnet, IN_RANK_ORDER));
    bn_stats = NULL;
    assert_int_equal(strlen(seen), 129);
    promise(
        "same bytes, %s, W = 2, 3, resnet18, --bn-stats=%s%s %s: ring direct = naive = ps-sync (3 shards, "
        "3 loader threads) = hybrid = solo, weights and buffers, ragged: sha256 %.8s.. and %.8s..",
        device, mode, strcmp(optimizer, ADAMW) == 0 ? ", AdamW" : "", pixels, seen, seen + 65);
}

static void test_statistics(void **state)
{
    static const char *const modes[] = {"rank0", "mean", "recompute:20"};
    char seen[3][HASHES], other[HASHES];
    (void)state;
    have_colours();
    for (int m = 0; m < 3; m++) {
        expect_same_statistics(modes[m], seen[m]);
        for (int before = 0; before < m; before++) { /* the same weights, other buffers */
            assert_memory_equal(seen[before], seen[m], 64);
            assert_string_not_equal(seen[before] + 65, seen[m] + 65);
        }
    }
    optimizer = ADAMW;
    expect_same_statistics("mean", other);
    optimizer = NESTEROV;
    assert_memory_not_equal(other, seen[1], 64);
    pixels = "--resize=20 --augment=crop:20:2"; /* and scaled, which is another job */
    expect_same_statistics("mean", other);
    assert_memory_not_equal(other, seen[1], 64);
    pixels = "";
    expect_same_statistics("mean", other);
    assert_memory_not_equal(other, seen[1], 64);
}

/* Ranks of two threads; widths that the blocks of 8 or 16 channels of oneDNN do not divide, an image at a time. */
static void test_threads(void **state)
{
    static const char *const networks[] = {"width=4,stem=cifar", "width=8,stem=cifar"};
    (void)state;
    if (strcmp(device, "ref") == 0) return; /* it has one */
    have_colours();
    bn_stats = "rank0";
    threads = 2;
    batch = 1;
    for (int i = 0; i < 2; i++) {
        resnet = networks[i];
        const char *hash = expect_same(2, "rank", of_resnet, OF_ANY_NETWORK);
        promise(
            "same bytes, %s, W = 2, two threads each, resnet18:%s: ring direct = naive = ps-sync (3 shards) "
            "= solo: sha256 %.8s..",
            device, resnet, hash);
    }
    bn_stats = NULL;
    resnet = "width=2";
    threads = 1;
    batch = 8;
}

/* Steps that a convolution of oneDNN's once spoilt, differently each time: a block of 16 or, with AVX2, of 8 channels is
 * wider than the network. */
static void test_threads_again(void **state)
{
    static const struct {
        int width, batch, threads;
    } steps[] = {{3, 1, 3}, {4, 64, 2}, {8, 1, 2}, {8, 1, 4}, {8, 2, 4}};
    enum { TIMES = 5 };
    char first[HASHES];
    (void)state;
    if (strcmp(device, "ref") == 0) return; /* it has one */
    write_cifar("more", 64, 8);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        for (int time = 0; time < TIMES; time++) {
            const char *hash = train_hash(
                60,
                "-n 1 --strategy=solo --device=%s --threads=%d --model=resnet18:stem=cifar,width=%d "
                "--data=%s --steps=1 --batch-size=%d --lr=0.05",
                device, steps[i].threads, steps[i].width, at("more"), steps[i].batch);
            if (time == 0) snprintf(first, sizeof first, "%s", hash);
            if (strcmp(hash, first) != 0)
                fail_msg("width %d, batch %d, %d threads: run %d ends with %s, the first with %s",
                         steps[i].width, steps[i].batch, steps[i].threads, time, hash, first);
        }
    promise("same bytes, %s, one step %d times on two to four threads: resnet18 of 3, 4 and 8 channels",
            device, TIMES);
}

/* With weights that hardly move, on the same batch again and again, running statistics become those of the
 * batch. */
static void test_recomputed(void **state)
{
    double loss[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        json_t *r = train(60,
                          "-n 1 --strategy=solo --device=%s --model=resnet18:width=2 --data=synthetic "
                          "--limit-train-samples=8 --limit-test-samples=8 --steps=200 --batch-size=8 "
                          "--lr=1e-12 --bn-stats=%s",
                          device, i == 0 ? "rank0" : "recompute:8");
        loss[i] = number_at(r, "test_loss");
        json_decref(r);
    }
    if (!(fabs(loss[0] - loss[1]) < 1e-5 * loss[0]))
        fail_msg("the loss is %.9g by running statistics and %.9g by recomputed ones", loss[0], loss[1]);
}

/* The TCP ring rotates the order of the sum per chunk; every other path can follow it. With two ranks the
 * rotation changes nothing, with three it must, or the flag would do nothing. */
static void test_ring_order(void **state)
{
    static const arm arms[] = {
        {"ring over tcp", "--strategy=ring --allreduce=ring --transport=tcp"},
        {"ring direct", "--strategy=ring --allreduce=direct"},
        {"ps-sync", "--strategy=ps-sync --shards=3"},
        {"hybrid", "--strategy=hybrid:ps=fc1.weight --allreduce=ring --transport=tcp"}};
    (void)state;
    int first = strcmp(device, "ref") == 0 ? 3 : 2, last = strcmp(device, "ref") == 0 ? 3 : 4;
    for (int w = first; w <= last; w++) {
        const char *hash = expect_same(w, "ring", arms, sizeof arms / sizeof *arms);
        if (w == 3) {
            const char *other = train_hash(120, "-n 1 --strategy=solo --accumulate=3 %s", job(3));
            assert_string_not_equal(hash, other);
        }
        promise("same bytes, %s, W = %d, --sum-order=ring: ring over TCP = ring direct = ps-sync (3 shards) "
                "= hybrid over TCP = solo: sha256 %.8s..",
                device, w, hash);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_order), cmocka_unit_test(test_one_worker),
        cmocka_unit_test(test_adamw),      cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_groups),     cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_threads),    cmocka_unit_test(test_threads_again),
        cmocka_unit_test(test_recomputed), cmocka_unit_test(test_ring_order)};
    if (argc > 1) device = argv[1];
    if (!has_device(device)) system_skip("device %s is not built here (oneDNN is missing)", device);
    return system_main(tests);
}
