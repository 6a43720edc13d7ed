/* test_parallel.c - one network on several devices ends with the bytes of one device, and is a real pipeline.
 *
 *     test_parallel ref|cpu
 *
 * Each run is compared by its outcome: the hashes of weights and running statistics, the bytes of its last
 * checkpoint (momentum is there too), its evaluation and, where the ranks are the same ones, each rank's loss
 * of each step. An epoch ends with a ragged batch: fewer samples than chunks, for most of the numbers of
 * chunks here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/outcome.h"

/* Promise: A pipeline, --parallel=model and --parallel=data end with the bytes of the plain run.
 * Promise: A network of one's own (examples/branches.c) splits as a built-in one, at three cuts. */

#define JOB                                                                                                  \
    "--data=synthetic --limit-train-samples=21 --limit-test-samples=18 --eval-batch-size=5 --lr=0.02 "       \
    "--momentum=0.9 --nesterov "                                                                             \
    "--weight-decay=0.0005 --epochs=2 "
#define RESNET "--model=resnet18:width=4,stem=cifar "

static const char *device = "ref";

/* ---- a pipeline = chunks on one device ----------------------------------------------------------------- */

typedef struct cut {
    int nstages;
    const char *flags;
} cut;

static const cut of_convnet[] = {
    {2, "--stages=2 --pipeline=gpipe"},        {2, "--split=fc1"}, {3, "--stages=3"},
    {3, "--split=conv2,fc2 --pipeline=gpipe"}, {4, "--stages=4"},  {4, "--stages=4 --pipeline=gpipe"}};
static const cut of_resnet[] = {{2, "--stages=2"},
                                {2, "--split=bn1 --pipeline=gpipe"},
                                {3, "--split=layer1.1.conv1,fc"},
                                {3, "--stages=3 --pipeline=gpipe"},
                                {4, "--stages=4 --pipeline=gpipe"},
                                {4, "--split=layer1.0.conv1,layer2.1.conv1,layer4.0.conv1"}};
enum { CUTS = 6 };

static const struct network {
    const char *name, *flags;
    const cut *cuts;
} networks[] = {{"the convnet", "--model=convnet ", of_convnet}, {"resnet18", RESNET, of_resnet}};

/* Takes every `every`-th cut, beginning with `first`; their number. */
static int expect_cuts(const struct network *network, int w, int nchunks, const char *const *strategies,
                       int first, int every)
{
    char job[512], flags[256], what[512];
    int n = 0;
    snprintf(job, sizeof job, JOB "%s --batch-size=%d", network->flags, w == 1 ? 8 : 5);
    snprintf(flags, sizeof flags, "%s --micro-batches=%d", strategies[0], nchunks);
    outcome base = outcome_of(w, nchunks > 1, job, flags);
    for (int s = 0; strategies[s] != NULL; s++)
        for (int i = first; i < CUTS; i += every, n++) {
            const cut *c = &network->cuts[i];
            snprintf(flags, sizeof flags, "%s --micro-batches=%d --parallel=pipeline %s", strategies[s],
                     nchunks, c->flags);
            snprintf(what, sizeof what, "%s, -n %d %s", network->name, w, flags);
            outcome o = outcome_of(w, c->nstages, job, flags);
            expect_same(&base, &o, what);
        }
    outcome_forget(&base);
    return n;
}

static const char *const alone[] = {"--strategy=solo", NULL};
static const char *const together[] = {"--strategy=ring", "--strategy=ps-sync --shards=2", NULL};

/* ref does all numbers of chunks with all cuts; oneDNN's kernels some. */
static void expect_pipelines(const struct network *network)
{
    static const int chunks[] = {5, 1, 2, 8};
    const int is_ref = strcmp(device, "ref") == 0;
    int n = 0, nboth = 0;
    for (int m = 0; m < (is_ref ? 4 : 1); m++)
        n += expect_cuts(network, 1, chunks[m], alone, 0, is_ref ? 1 : 2);
    for (int m = 0; m < (is_ref ? 2 : 1); m++)
        nboth += expect_cuts(network, 2, m == 0 ? 2 : 5, together, m, 3);
    promise(
        "%s, %s: %d pipelines of 2, 3 and 4 stages alone and %d of two ranks (ring, ps-sync) = "
        "--micro-batches on one device: weights, momentum, running statistics, every loss and the evaluation",
        device, network->name, n, nboth);
}

static void test_convnet(void **state)
{
    (void)state;
    expect_pipelines(&networks[0]);
}

static void test_resnet(void **state)
{
    (void)state;
    expect_pipelines(&networks[1]);
}

/* ---- the other ways ------------------------------------------------------------------------------------ */

/* Replicas = as many ranks = one process that plays them. */
static void test_replicas(void **state)
{
    char job[512], flags[160], of_process[64], devices[64] = "";
    (void)state;
    for (int d = 2; d <= 3; d++)
        for (int k = 0; k < 2; k++) {
            snprintf(job, sizeof job, JOB "%s", networks[k].flags);
            snprintf(flags, sizeof flags, "--strategy=ring --batch-size=3");
            outcome ranks = outcome_of(d, 0, job, flags);
            snprintf(of_process, sizeof of_process, "--strategy=solo --accumulate=%d --batch-size=3", d);
            outcome played = outcome_of(1, 0, job, of_process);
            assert_string_equal(ranks.hashes, played.hashes);
            outcome_forget(&played);
            snprintf(devices, sizeof devices, d == 2 ? "%s:0,%s:1" : "%s:0,%s:1,%s:2", device, device,
                     device);
            snprintf(flags, sizeof flags, "--strategy=solo --parallel=data --device=%s --batch-size=%d",
                     devices, 3 * d);
            outcome replicas = outcome_of(1, d, job, flags);
            expect_vectors(&ranks, &replicas, flags);
            outcome_forget(&ranks);
        }
    promise("%s, --parallel=data on 2 and 3 devices = ring -n 2 and 3 = solo --accumulate, the convnet and "
            "resnet18: weights, momentum and rank 0's running statistics",
            device);
}

/* One chunk: the bytes of the plain run. */
static void test_model_parallel(void **state)
{
    char job[512];
    (void)state;
    for (int k = 0; k < 2; k++) {
        snprintf(job, sizeof job, JOB "%s --batch-size=8", networks[k].flags);
        outcome plain = outcome_of(1, 0, job, "--strategy=solo");
        for (int nstages = 2; nstages <= 4; nstages += 2) {
            char flags[96];
            snprintf(flags, sizeof flags, "--strategy=solo --parallel=model --stages=%d", nstages);
            outcome o = outcome_of(1, nstages, job, flags);
            expect_same(&plain, &o, flags);
        }
        outcome_forget(&plain);
    }
    outcome plain = outcome_of(1, 0, "--model=toy " JOB "--batch-size=8", "--strategy=solo");
    outcome split = outcome_of(1, 2, "--model=toy " JOB "--batch-size=8",
                               "--strategy=solo --parallel=model --split=net2");
    expect_same(&plain, &split, "the toy of PyTorch's tutorial");
    outcome_forget(&plain);
    promise("%s, --parallel=model = the plain run: the convnet, resnet18 and PyTorch's ToyMpModel", device);
}

/* A network of one's own, which branches: the first stage ends in front of its branch, or behind it. */
static void test_own_network(void **state)
{
    static const char *const cuts[] = {"--stages=2", "--split=conv2", "--split=fc"};
    char plugin[160], job[512], flags[96];
    (void)state;
    snprintf(plugin, sizeof plugin, "%s/branches.so", system_folder());
    build_plugin("examples/branches.c", plugin);
    snprintf(job, sizeof job, "--model=%s:width=4 " JOB "--batch-size=8", plugin);
    outcome plain = outcome_of(1, 0, job, "--strategy=solo");
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        snprintf(flags, sizeof flags, "--strategy=solo --parallel=model %s", cuts[i]);
        outcome o = outcome_of(1, 2, job, flags);
        expect_same(&plain, &o, flags);
    }
    outcome_forget(&plain);
    outcome chunks = outcome_of(1, 1, job, "--strategy=solo --micro-batches=4");
    outcome o = outcome_of(1, 2, job, "--strategy=solo --micro-batches=4 --parallel=pipeline --stages=2");
    expect_same(&chunks, &o, "a pipeline of branches.so");
    outcome_forget(&chunks);
    promise("%s, a network of one's own (examples/branches.c) splits as a built-in one, three cuts", device);
}

/* Chunks of one batch = batches of one step; running statistics differ by meaning. */
static void test_micro_batches(void **state)
{
    static const int chunks[] = {2, 5};
    (void)state;
    for (int i = 0; i < 4; i++) {
        const int m = chunks[i % 2];
        char job[512], flags[96];
        snprintf(job, sizeof job, JOB "%s", networks[i / 2].flags);
        snprintf(flags, sizeof flags, "--strategy=solo --accumulate=%d --batch-size=3", m);
        outcome base = outcome_of(1, 0, job, flags);
        snprintf(flags, sizeof flags, "--strategy=solo --micro-batches=%d --batch-size=%d", m, 3 * m);
        outcome o = outcome_of(1, 1, job, flags);
        assert_memory_equal(base.hashes, o.hashes, 64);
        outcome_forget(&base);
        outcome_forget(&o);
    }
    promise("%s, solo --micro-batches=M -b M*B = solo --accumulate=M -b B: weights", device);
}

/* ---- killed, and resumed ------------------------------------------------------------------------------- */

#define LONG                                                                                                 \
    "-n 1 --strategy=solo " OF_ANY_MODEL "--model=resnet18:width=2,stem=cifar --micro-batches=2 " NESTEROV " "

/* Resumes with another pipeline, which is the same run. */
static void test_resumed(void **state)
{
    char out[160], flags[700], path[256];
    (void)state;
    if (strcmp(device, "ref") != 0) return; /* the same there */
    const char *expected = train_hash(120, LONG "--parallel=pipeline --stages=2");
    half_way(out, LONG "--parallel=pipeline --stages=2", 100);
    path_of_newest(out, path);
    snprintf(flags, sizeof flags,
             LONG "--parallel=pipeline --stages=3 --pipeline=gpipe --checkpoint-every=%d --resume=auto",
             EVERY);
    json_decref(finish_run(out, expected, flags));
    promise("a pipeline of 2 stages that was killed, and goes on with 3 under the other schedule, ends as if "
            "undisturbed: sha256 %.8s..",
            expected);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convnet),     cmocka_unit_test(test_resnet),
        cmocka_unit_test(test_replicas),    cmocka_unit_test(test_model_parallel),
        cmocka_unit_test(test_own_network), cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_resumed)};
    if (argc > 1) device = argv[1];
    outcome_on(device);
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    if (!has_device(device)) system_skip("device %s is not built here (oneDNN is missing)", device);
    return system_main(tests);
}
