/* test_gpu_equal.c - a step means the same on a GPU too: ranks that share it, a server and one process end
 * with the same bytes, however their work was interleaved.
 *
 *     solo --accumulate=W      ALONE    mean and step on the GPU
 *     ring                     SHARED   each rank steps its slice, through CUDA IPC
 *     ring, IPC refused        staged   through the pinned arena
 *     ring --backend=host      staged
 *     ps-sync                  staged   psd steps on the CPU
 *
 * each with the step recorded as a graph and without. 33 samples leave one in the last step of an epoch at
 * every W here, so all ranks but 0 have no sample in it. On the simulated GPU every run has another order of
 * work. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/gpu.h"

/* Promise: ring on a shared GPU, staged ring, ps-sync and solo end with the same bytes, with and without
 * graph, in any order of the GPU's work. */

#define EXACT    "--device=cuda --deterministic --data=synthetic --limit-test-samples=8"
#define NESTEROV "--lr=0.02 --momentum=0.9 --nesterov --weight-decay=0.0005"
#define ADAMW    "--optimizer=adamw --lr=0.002 --weight-decay=0.02 --decay=weights"

static const char *optimizer = NESTEROV;

typedef struct arm {
    const char *name, *flags;
    int has_no_ipc; /* simulated only */
    const char
        *vectors; /* as result.json says; of one rank "ring" lies on the GPU in any case but --backend=host */
} arm;

static const arm arms[] = {
    {"ring", "--strategy=ring", 0, "gpu"},
    {"ring --no-graph", "--strategy=ring --no-graph", 0, "gpu"},
    {"ring --backend=host", "--strategy=ring --backend=host", 0, "staged"},
    {"ring without IPC", "--strategy=ring", 1, "staged"},
    {"ring without IPC --no-graph", "--strategy=ring --no-graph", 1, "staged"},
    {"ps-sync", "--strategy=ps-sync --shards=2", 0, "staged"},
    {"ps-sync --no-graph", "--strategy=ps-sync --shards=2 --no-graph", 0, "staged"},
};

static const char *job(const char *model)
{
    static char text[320];
    snprintf(text, sizeof text, EXACT " %s --model=%s --limit-train-samples=33 --batch-size=4 --steps=%d",
             optimizer, model, gpu_steps(14, 60));
    return text;
}

/* Bytes equal the formula's. Each of W ranks reads W - 1 slices of gradients on the device, and its slice of
 * the weights: one model per rank, (W - 1) / W of it from others. NCCL does not show its bytes, and
 * result.json says so. */
static void expect_bytes(const json_t *r, int w)
{
    const double payload = number_at(r, "payload_bytes"), padding = number_at(r, "padding_bytes");
    const double theory = number_at(r, "theory_bytes") + padding; /* much, where tensors are small */
    const int is_nccl = strcmp(text_at(r, "collective.transport"), "nccl") == 0;
    if (!(theory > 0) || fabs(payload - theory) > 0.001 * theory)
        fail_msg("%.0f bytes of payload, and the formula says %.0f", payload, theory);
    assert_true(number_at(r, "wire_bytes") == 0);
    if (is_nccl) assert_non_null(strstr(text_at(r, "collective.bytes"), "NCCL"));
    const double model = theory / (4 * (w - 1)); /* 2 (W - 1) / W each way, on each of W ranks */
    assert_true(fabs(number_at(r, "shm_bytes") - (is_nccl ? 0 : w * model)) <= 0.001 * theory);
}

/* The hash of its weights; the run must have taken the intended path. */
static const char *hash_of(int w, const char *flags, const char *model, const char *vectors)
{
    static char hashes[4][144]; /* of the weights, and of the running statistics where there are some */
    static int next;
    char *hash = hashes[next++ % 4];
    gpu_next_seed();
    json_t *r = train(120, "-n %d %s %s", w, flags, job(model));
    const int has_state = json_object_get(r, "buffers_sha256") != NULL;
    snprintf(hash, sizeof hashes[0], "%s %s", text_at(r, "params_sha256"),
             has_state ? text_at(r, "buffers_sha256") : "");
    assert_string_equal(text_at(r, "gpu.vectors"), vectors);
    if (w > 1 && strcmp(vectors, "gpu") == 0) {
        assert_string_equal(text_at(r, "collective.transport"), "cuda-ipc");
        expect_bytes(r, w);
    }
    json_decref(r);
    return hash;
}

static void expect_same(const char *model, int w)
{
    char flags[96];
    int n = 0;
    snprintf(flags, sizeof flags, "--strategy=solo --accumulate=%d", w);
    const char *solo = hash_of(1, flags, model, "gpu");
    snprintf(flags, sizeof flags, "--strategy=solo --accumulate=%d --no-graph", w);
    assert_string_equal(solo, hash_of(1, flags, model, "gpu"));
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        if (arms[i].has_no_ipc && !gpu_is_simulated()) continue;
        gpu_fake("FAKE_GPU_NO_IPC", arms[i].has_no_ipc ? "1" : NULL);
        const int is_one = w == 1 && arms[i].has_no_ipc; /* no rank shares its memory */
        const char *hash = hash_of(w, arms[i].flags, model, is_one ? "gpu" : arms[i].vectors);
        if (strcmp(solo, hash) != 0)
            fail_msg("%s, W = %d: solo ends with %s, %s with %s", model, w, solo, arms[i].name, hash);
        n++;
    }
    gpu_fake("FAKE_GPU_NO_IPC", NULL);
    promise(
        "same bytes on %s, %s, W = %d: solo --accumulate = ring (shared memory of the GPU, pinned memory) = "
        "ps-sync, with and without graph, %d runs: sha256 %.8s..",
        gpu_is_simulated() ? "the simulated GPU" : "one GPU", model, w, n + 2, solo);
}

static void test_mlp(void **state)
{
    (void)state;
    for (int w = 1; w <= 4; w *= 2)
        expect_same("mlp", w);
}

/* Branches, sums and batch normalisation; the stem for small images, or a batch of one would have one value a
 * channel at the end. */
static void test_resnet(void **state)
{
    (void)state;
    expect_same("resnet18:width=1,stem=cifar", 2);
}

static void test_adamw(void **state)
{
    (void)state;
    optimizer = ADAMW;
    expect_same("mlp", 2);
    optimizer = NESTEROV;
}

static void test_convnet(void **state)
{
    (void)state;
    expect_same("convnet", 2);
    if (!gpu_is_simulated()) expect_same("convnet", 4);
}

/* Three ranks share a step's seven samples unevenly; and one order of the work is not enough to see a race.
 */
static void test_orders(void **state)
{
    (void)state;
    const char *first = hash_of(3, "--strategy=ring", "mlp", "gpu");
    const int n = gpu_steps(6, 3);
    for (int i = 0; i < n; i += 2) {
        assert_string_equal(first, hash_of(3, "--strategy=ring", "mlp", "gpu"));
        assert_string_equal(first, hash_of(3, "--strategy=ps-sync", "mlp", "staged"));
    }
}

/* One GPU per rank: NCCL adds in an order of its own. */
static void test_nccl(void **state)
{
    (void)state;
    gpu_fake("FAKE_GPUS", "2");
    if (gpu_count() < 2) {
        print_message("one GPU: NCCL with two ranks is not run\n");
        return;
    }
    double loss[4];
    static const char *const ways[] = {"--strategy=ps-sync", "--strategy=ring",
                                       "--strategy=ring --backend=nccl", "--strategy=ring --no-graph"};
    for (int k = 0; k < 8; k++) {
        const int i = k % 4;
        optimizer = k < 4 ? ADAMW : NESTEROV;
        gpu_next_seed();
        json_t *r = train(120, "-n 2 %s %s", ways[i], job("mlp"));
        loss[i] = number_at(r, "test_loss");
        if (i > 0) assert_string_equal(text_at(r, "collective.transport"), "nccl");
        if (i > 0) expect_bytes(r, 2);
        json_decref(r);
        if (loss[i] < loss[0] * 0.9999 || loss[i] > loss[0] * 1.0001)
            fail_msg("%s ends with a test loss of %.7f, psd with %.7f", ways[i], loss[i], loss[0]);
    }
    /* 7 samples are left for the last step of an epoch: a full batch for rank 0 alone. */
    gpu_next_seed();
    json_decref(train(120, "-n 2 --strategy=ring %s --limit-train-samples=15", job("mlp")));
    promise("two ranks on two GPUs under NCCL%s: test loss %.6f, ps-sync %.6f",
            gpu_is_simulated() ? " (simulated)" : "", loss[1], loss[0]);
}

/* Slices of one GPU: NCCL refuses them, and the run continues without it. */
static void test_slices(void **state)
{
    (void)state;
    if (!gpu_is_simulated()) return;
    gpu_fake("FAKE_GPUS", "2");
    gpu_fake("FAKE_GPU_MIG", "1");
    assert_string_equal(hash_of(2, "--strategy=ring", "mlp", "staged"),
                        hash_of(1, "--strategy=solo --accumulate=2", "mlp", "gpu"));
}

/* The transport that rank 0 reports for a group of one. */
static void test_nccl_alone(void **state)
{
    (void)state;
    json_t *r = train(120, "-n 1 --strategy=ring --backend=nccl %s", job("mlp"));
    assert_string_equal(text_at(r, "gpu.vectors"), "gpu");
    json_decref(r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {GPU_TEST(test_mlp),    GPU_TEST(test_convnet),   GPU_TEST(test_resnet),
                                       GPU_TEST(test_adamw),  GPU_TEST(test_orders),    GPU_TEST(test_nccl),
                                       GPU_TEST(test_slices), GPU_TEST(test_nccl_alone)};
    gpu_begin(argc, argv);
    return system_main(tests);
}
