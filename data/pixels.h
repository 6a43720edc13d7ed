/* pixels.h - converts an image's stored bytes to a model's input: scales, crops, mirrors and normalises in one pass, without
 * allocating.
 *
 *     stored bytes, in rows      scaled as Pillow does it       black around it,          (y, x, channel), float32
 *     or in planes          ->   (bytes between the passes) ->  a square cropped     ->   ((byte / 255) - M) / S
 *
 * Every operation of the last stage is rounded to float as in PyTorch: a table of 256 values a channel. */
#ifndef DATA_PIXELS_H
#define DATA_PIXELS_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/gpu.h"
#include "entrain/model.h"
#include "entrain/status.h"
#include "run/transform.h"

/* The memory layout of images. Up to ENI_CHANNELS channels; samples with more are features, which are only normalised. */
typedef struct eni_image_layout {
    int height, width, channels;
    bool is_planar; /* one plane a channel; else a pixel's channels are adjacent */
} eni_image_layout;

/* Pillow's weights along one side: out[i] sums `count` values from `first`, each times a weight of 22 bits. */
typedef struct eni_scaling {
    int taps;        /* weights of each output, the last may be 0 */
    int32_t *first;  /* (side) */
    int32_t *count;  /* (side) */
    int32_t *weight; /* (side, taps) */
} eni_scaling;

typedef struct eni_pixels {
    eni_image_layout stored;
    eni_transform asked;      /* with the normalisation resolved */
    int repeat;               /* 3: grey images for a colour model, each value three times; else 1 */
    int height, width;        /* of the output */
    eni_scaling across, down; /* if `asked` has a resize */
    float table[ENI_CHANNELS][256];
} eni_pixels;

/* Output sides of images stored with `shape`, or EN_EINVAL, logged: a crop larger than the image, or a set without
 * images. */
en_status eni_pixels_shape(const eni_transform *asked, en_data_shape *shape);

/* Plans the transform. `asked` has a normalisation of one channel, of all channels, or of `repeat`. EN_EINVAL, EN_ENOMEM,
 * logged; eni_pixels_fini frees, and is safe on zeroed memory. */
en_status eni_pixels_init(const eni_transform *asked, const eni_image_layout *stored, int repeat,
                          eni_pixels *pixels_out);
void eni_pixels_fini(eni_pixels *pixels);

/* The crop of an image, and whether it is mirrored. */
typedef struct eni_crop {
    int top, left; /* in the padded image */
    bool is_flipped;
} eni_crop;

/* Draws the crop of a sample, a function of seed, epoch and the sample's position in the file alone. Test images use epoch 0
 * of a separate stream. */
eni_crop eni_pixels_draw(const eni_pixels *pixels, uint64_t seed, bool is_test, uint64_t epoch,
                         uint64_t sample);
eni_crop eni_pixels_middle(const eni_pixels *pixels);

/* Transforms one image: out (height, width, channels * repeat). Any thread. */
void eni_pixels_write(const eni_pixels *pixels, const uint8_t *image, const eni_crop *cut, float *out);

/* For a GPU (en_gpu.pixels), which makes the same of stored bytes, without scaling: describes all images; and the cut of
 * one. */
void eni_pixels_describe_to_gpu(const eni_pixels *pixels, en_gpu_pixels *gpu_out);
en_gpu_cut eni_pixels_cut_for_gpu(const eni_pixels *pixels, const eni_crop *cut, uint32_t image);

/* Formats the transform as texts. `asked` has a normalisation. */
void eni_pixels_describe(const eni_transform *asked, eni_pixel_facts *facts_out);

#endif
