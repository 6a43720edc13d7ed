/* images.c - times the loader's work on an image, on one core: from stored bytes to a model's input.
 *
 *     bench_images --what=augment      32 x 32, --augment=crop:32:4,flip, normalised
 *     bench_images --what=resize       32 x 32 to 224 x 224, normalised
 *
 * 256 images in planes, as CIFAR has them, go into one batch again and again; the random draws are included. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "bench/figures.h"
#include "core/clock.h"
#include "core/memory.h"
#include "data/pixels.h"

enum { IMAGES = 256, SIDE = 32, BYTES = SIDE * SIDE * 3, MAX_ROUNDS = 1000 };

static const char usage[] =
    "usage: bench_images [options]\n"
    "      --what=W          augment, resize [both]\n"
    "  -n, --iters=N         passes over 256 images, 1 .. 1000; the median counts [30]\n"
    "      --json            one object per line\n";

static const struct option long_options[] = {
    {"what", required_argument, NULL, 'w'},
    {"iters", required_argument, NULL, 'n'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const eni_image_layout stored = {SIDE, SIDE, 3, true};

static int64_t pass_ns(const eni_pixels *pixels, const uint8_t *images, uint64_t epoch, float *out)
{
    const size_t floats = (size_t)pixels->height * (size_t)pixels->width * 3;
    const int64_t begin = eni_now_ns();
    for (uint64_t i = 0; i < IMAGES; i++) {
        const eni_crop crop = eni_pixels_draw(pixels, 1, false, epoch, i);
        eni_pixels_write(pixels, images + i * BYTES, &crop, out + i * floats);
    }
    return eni_now_ns() - begin;
}

/* 0, or an exit code. */
static int run(const char *what, eni_transform transform, int rounds, bool is_json)
{
    static int64_t ns[MAX_ROUNDS];
    double median, tail;
    eni_pixels pixels;
    transform.nchannels = 3;
    memcpy(transform.mean, (const float[]){0.4914f, 0.4822f, 0.4465f}, sizeof transform.mean);
    memcpy(transform.deviation, (const float[]){0.2023f, 0.1994f, 0.2010f}, sizeof transform.deviation);
    if (eni_pixels_init(&transform, &stored, 1, &pixels) != EN_OK) return 1;
    uint8_t *images = eni_alloc((size_t)IMAGES * BYTES);
    float *out =
        eni_alloc_array((size_t)IMAGES * 3 * (size_t)pixels.height * (size_t)pixels.width, sizeof *out);
    if (images == NULL || out == NULL) return 1;
    uint32_t state = 1;
    for (size_t i = 0; i < (size_t)IMAGES * BYTES; i++) {
        state = state * 1664525u + 1013904223u;
        images[i] = (uint8_t)(state >> 24);
    }
    (void)pass_ns(&pixels, images, 0, out); /* touches its pages */
    for (int i = 0; i < rounds; i++)
        ns[i] = pass_ns(&pixels, images, (uint64_t)i, out);
    figures_times(ns, (size_t)rounds, &median, &tail);
    median /= IMAGES;
    if (is_json)
        printf("{\"what\": \"%s\", \"us\": %.3f, \"images_s\": %.0f}\n", what, median, 1e6 / median);
    else
        printf("%-8s %8.2f us per image, %.0f images/s\n", what, median, 1e6 / median);
    eni_free(out);
    eni_free(images);
    eni_pixels_fini(&pixels);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = "";
    uint64_t rounds = 30;
    bool is_json = false;
    for (int c; (c = getopt_long(argc, argv, "n:h", long_options, NULL)) != -1;) {
        if (c == 'h') return fputs(usage, stdout) < 0;
        if (c == 'j') is_json = true;
        if (c == 'w') what = optarg;
        if (c == 'n') rounds = figures_number(optarg);
        if (c == '?') return 2;
    }
    if (rounds < 1 || rounds > MAX_ROUNDS || optind < argc ||
        (what[0] != '\0' && strcmp(what, "augment") != 0 && strcmp(what, "resize") != 0)) {
        fputs("bench_images: invalid flag; see --help\n", stderr);
        return 2;
    }
    int code = 0;
    if (strcmp(what, "resize") != 0)
        code = run("augment", (eni_transform){.pad = 4, .crop = 32, .has_flip = true}, (int)rounds, is_json);
    if (strcmp(what, "augment") != 0 && code == 0)
        code = run("resize", (eni_transform){.resize = 224}, (int)rounds, is_json);
    return code;
}
