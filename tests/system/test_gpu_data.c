/* test_gpu_data.c - whoever makes a batch's images, the loader or the GPU, of a set that lies there or of bytes that come
 * with each batch, a run ends with the same bytes. The loader makes them where images are scaled: --resize to the size that
 * they have changes nothing else. */
#include <stdio.h>
#include <string.h>

#include "tests/system/bad_files.h"
#include "tests/system/gpu.h"
#include "tests/system/resumed.h"

/* Promise: A GPU that keeps the set, one that gets bytes and a loader that makes floats end with the same bytes, resumed
 * too. */

#define EXACT "--device=cuda --deterministic --lr=0.02 --momentum=0.9 --batch-size=4 "
#define DIGIT EXACT "--model=convnet --data=synthetic --limit-train-samples=33 --limit-test-samples=8 "

static const char *const crops[] = {"", "--augment=crop:28:4,flip"};

/* Its hash; every rank must have had its images in this way. */
static const char *hash_of(const char *way, const char *flags)
{
    static char hashes[4][HASHES];
    static int next;
    char *hash = hashes[next++ % 4];
    size_t i;
    json_t *role;
    gpu_next_seed();
    json_t *r = train(240, "%s", flags);
    hashes_of(r, hash);
    json_array_foreach(json_object_get(r, "roles"), i, role)
    {
        if (json_object_get(role, "gpu") != NULL) assert_string_equal(text_at(role, "gpu.data"), way);
    }
    json_decref(r);
    return hash;
}

static void expect_same(const char *job, const char *as_it_is, const char *const ways[][2], size_t n)
{
    char flags[512];
    snprintf(flags, sizeof flags, "-n 2 --strategy=ring %s %s", job, as_it_is);
    const char *floats = hash_of("floats", flags);
    for (size_t i = 0; i < n; i++) {
        snprintf(flags, sizeof flags, "%s %s", job, ways[i][1]);
        const char *hash = hash_of(ways[i][0], flags);
        if (strcmp(hash, floats) != 0)
            fail_msg("%s: the loader's floats end with %s, this with %s", flags, floats, hash);
    }
    promise("same bytes whether the loader makes images or %s, of its set or of a batch's bytes: %zu runs, "
            "%.40s..",
            gpu_is_simulated() ? "the simulated GPU" : "a GPU", n + 1, job + sizeof EXACT - 1);
}

static void test_convnet(void **state)
{
    static const char *const ways[][2] = {
        {"on the device", "-n 2 --strategy=ring --data-on-device=on"},
        {"bytes", "-n 2 --strategy=ring --data-on-device=off --loader-threads=3"},
        {"bytes", "-n 2 --strategy=ps-sync --data-on-device=off --no-graph"},
        {"on the device", "-n 1 --strategy=solo --accumulate=2"}};
    (void)state;
    for (size_t i = 0; i < sizeof crops / sizeof *crops; i++) {
        char job[400];
        snprintf(job, sizeof job, DIGIT "--steps=%d %s", gpu_steps(14, 60), crops[i]);
        expect_same(job, "--resize=28", ways, sizeof ways / sizeof *ways);
    }
}

/* CIFAR's files: mapped records of a label and three planes. */
static void test_planes(void **state)
{
    static const char *const ways[][2] = {{"on the device", "-n 2 --strategy=ring"},
                                          {"bytes", "-n 2 --strategy=ring --data-on-device=off"}};
    char job[400];
    (void)state;
    write_cifar("cifar", 33, 4);
    snprintf(job, sizeof job,
             EXACT "--model=resnet18:width=1,stem=cifar --data=%s --steps=6 --augment=crop:32:4,flip",
             at("cifar"));
    expect_same(job, "--resize=32", ways, 2);
}

static void test_resumed(void **state)
{
    static const char *const kept[] = {"on", "off"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char text[500], out[160], path[256], again[160];
        gpu_next_seed();
        snprintf(text, sizeof text, "-n 2 --strategy=ring " DIGIT "--epochs=2 %s --data-on-device=%s",
                 crops[1], kept[i]);
        const char *expected = train_hash(240, "%s", text);
        half_way(out, text, 16); /* of 66 */
        path_of_newest(out, path);
        folder_for(again, kept[i]);
        gpu_next_seed();
        snprintf(text, sizeof text,
                 "-n 2 --strategy=ring " DIGIT "--epochs=2 %s --data-on-device=%s --resume=%s", crops[1],
                 kept[1 - i], path);
        json_decref(finish_run(again, expected, text));
    }
}

/* Of 30 MB free, a quarter for the ranks of this GPU: a set of 15.7 MB is brought in bytes, unless it is asked for. */
static void test_room(void **state)
{
#define LARGE                                                                                                \
    "--device=cuda --model=mlp --data=synthetic --limit-train-samples=20000 --limit-test-samples=8 "         \
    "--steps=4 "
    process p;
    (void)state;
    (void)hash_of("on the device", "-n 1 --strategy=solo " LARGE);
    if (!gpu_is_simulated()) return;
    gpu_fake("FAKE_GPU_OOM_AFTER", "50000000");
    (void)hash_of("bytes", "-n 1 --strategy=solo " LARGE);
    (void)hash_of("on the device", "-n 1 --strategy=solo --data-on-device=on " LARGE);
    gpu_fake("FAKE_GPU_OOM_AFTER", "18000000");
    process_start(&p, "entrain", NULL,
                  "run --quiet --log-level=warn -n 1 --strategy=solo --data-on-device=on " LARGE);
    const int code = process_wait(&p, 60);
    if (code != 2 || process_says(&p, "--data-on-device=on", "15.7 MB") < 1)
        fail_msg("exit %d; it should say that the set is too large:\n%s", code, process_err(&p));
    process_nobody_left(5);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {GPU_TEST(test_convnet), GPU_TEST(test_planes), GPU_TEST(test_resumed),
                                       GPU_TEST(test_room)};
    gpu_begin(argc, argv);
    return system_main(tests);
}
