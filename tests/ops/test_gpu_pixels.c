/* test_gpu_pixels.c - images that a GPU makes of stored bytes are those of data/pixels.c, byte for byte: in every layout,
 * cut, mirrored, beyond the edges, from a set on the device and from bytes that follow their cuts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data/pixels.h"
#include "tests/ops/gpu_rig.h"

enum { IMAGES = 5, COUNT = 23, SEED = 3, MOST = 16 * 16 * 3 };

static gpu_rig rig;

typedef struct layout {
    const char *name;
    eni_image_layout stored;
    int repeat;
    eni_transform asked;
} layout;

#define GREY .nchannels = 1, .mean = {0.1307f}, .deviation = {0.3081f}
#define RGB  .nchannels = 3, .mean = {0.4914f, 0.4822f, 0.4465f}, .deviation = {0.2023f, 0.1994f, 0.2010f}

static const layout layouts[] = {
    {"grey", {9, 7, 1, false}, 1, {GREY}},
    {"grey, cropped", {9, 7, 1, false}, 1, {.pad = 2, .crop = 6, .has_flip = true, GREY}},
    {"grey, more than an edge", {5, 5, 1, false}, 1, {.pad = 6, .crop = 5, .has_flip = true, GREY}},
    {"grey for a model of colours", {8, 8, 1, false}, 3, {.pad = 1, .crop = 8, .has_flip = true, RGB}},
    {"two channels", {4, 6, 2, false}, 1, {.has_flip = true, GREY}},
    {"colours, in pixels", {8, 10, 3, false}, 1, {.pad = 4, .crop = 9, .has_flip = true, RGB}},
    {"colours, in planes", {16, 16, 3, true}, 1, {.pad = 4, .crop = 16, .has_flip = true, RGB}},
    {"features", {2, 3, 7, false}, 1, {GREY}},
    {"a vector", {1, 1, 13, false}, 1, {GREY}},
};

static void *put(const void *from, uint64_t bytes)
{
    void *there;
    GPU_OK(rig.ops->alloc(rig.ctx, bytes, &there));
    GPU_OK(rig.ops->copy(rig.ctx, there, from, bytes, EN_COPY_IN));
    return there;
}

/* The images of one call; `is_inline`: their bytes follow their cuts. */
static void compare(const layout *l, const eni_pixels *pixels, int is_inline)
{
    static uint8_t images[IMAGES][MOST], raw[COUNT][sizeof(en_gpu_cut) + MOST];
    static float expected[COUNT * MOST], got[COUNT * MOST];
    const size_t bytes = (size_t)l->stored.height * (size_t)l->stored.width * (size_t)l->stored.channels;
    const size_t values =
        (size_t)pixels->height * (size_t)pixels->width * (size_t)(l->stored.channels * pixels->repeat);
    for (size_t i = 0; i < IMAGES * MOST; i++)
        images[i / MOST][i % MOST] = (uint8_t)(i * 2654435761u >> 13);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t from = i * 7 % IMAGES;
        const eni_crop crop = eni_pixels_draw(pixels, SEED, false, 2, i);
        const en_gpu_cut cut = eni_pixels_cut_for_gpu(pixels, &crop, is_inline ? i : from);
        eni_pixels_write(pixels, images[from], &crop, expected + i * values);
        memcpy(raw[i], &cut, sizeof cut);
        memcpy(raw[i] + sizeof cut, images[from], bytes);
    }
    en_gpu_pixels p;
    eni_pixels_describe_to_gpu(pixels, &p);
    uint8_t *set = put(images, sizeof images), *cuts = put(raw, sizeof raw);
    float *table = put(pixels->table, sizeof pixels->table), *out = put(got, sizeof got);
    p.images = is_inline ? cuts + sizeof(en_gpu_cut) : set;
    p.image_bytes = is_inline ? sizeof raw[0] : MOST;
    p.cuts = cuts;
    p.cut_bytes = sizeof raw[0];
    p.table = table;
    p.out = out;
    p.count = COUNT;
    GPU_OK(rig.ops->sync(rig.ctx));
    GPU_OK(rig.gpu->pixels(rig.ctx, EN_STREAM_PREFETCH, &p));
    GPU_OK(rig.ops->sync(rig.ctx));
    gpu_get(&rig, got, out, COUNT * values);
    if (memcmp(got, expected, COUNT * values * sizeof *got) != 0)
        fail_msg("%s, %s: other bytes", l->name, is_inline ? "behind their cuts" : "from the set");
    rig.ops->free(rig.ctx, set);
    rig.ops->free(rig.ctx, cuts);
    rig.ops->free(rig.ctx, table);
    rig.ops->free(rig.ctx, out);
}

static void test_the_bytes_of_the_host(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        eni_pixels pixels;
        assert_int_equal(eni_pixels_init(&layouts[i].asked, &layouts[i].stored, layouts[i].repeat, &pixels),
                         EN_OK);
        compare(&layouts[i], &pixels, 0);
        compare(&layouts[i], &pixels, 1);
        eni_pixels_fini(&pixels);
    }
}

/* A caller with an older description, and nothing to do. */
static void test_sizes(void **state)
{
    (void)state;
    en_gpu_pixels p = {.size = sizeof p};
    GPU_OK(rig.gpu->pixels(rig.ctx, EN_STREAM_PREFETCH, &p));
    p.size--;
    assert_int_equal(rig.gpu->pixels(rig.ctx, EN_STREAM_PREFETCH, &p), EN_EUNSUPPORTED);
}

static void test_free_bytes(void **state)
{
    (void)state;
    uint64_t before = 0, after = 0;
    void *memory;
    GPU_OK(rig.gpu->free_bytes(rig.ctx, &before));
    GPU_OK(rig.ops->alloc(rig.ctx, 64 << 20, &memory));
    GPU_OK(rig.gpu->free_bytes(rig.ctx, &after));
    if (gpu_is_simulated(&rig)) assert_int_equal(before - after, 64 << 20); /* others use a real one */
    assert_true(after > 0);
    rig.ops->free(rig.ctx, memory);
}

static int open_rig(void **state)
{
    (void)state;
    gpu_rig_open(&rig, 0, 0);
    return 0;
}

static int close_rig(void **state)
{
    (void)state;
    gpu_rig_close(&rig);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_bytes_of_the_host),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_free_bytes),
    };
    int ngpus;
    const int code = gpu_rig_find(&rig, argc, argv, &ngpus);
    return code != EN_OK ? code : cmocka_run_group_tests(tests, open_rig, close_rig);
}
