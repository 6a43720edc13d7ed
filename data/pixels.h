/* pixels.h - from the stored bytes of an image to the numbers that a model sees: scaled, cut out, mirrored,
 * normalised, in one pass and without memory of its own.
 *
 *     stored bytes, in rows      scaled as Pillow does it       black around it,          (y, x, channel), float32
 *     or in planes          ->   (bytes between the passes) ->  a square cut out     ->   ((byte / 255) - M) / S
 *
 * Every operation of the last is rounded to float as PyTorch's are: a table of 256 values a channel. */
#ifndef DATA_PIXELS_H
#define DATA_PIXELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entrain/model.h"
#include "entrain/status.h"
#include "run/transform.h"

/* How images lie in memory. Up to ENI_CHANNELS channels; those of a set with more are features, and only
 * normalised. */
typedef struct eni_image_layout {
    int height, width, channels;
    bool is_planar; /* one plane a channel; else the channels of a pixel lie together */
} eni_image_layout;

/* Pillow's weights of one side: out[i] is made of `count` values from `first`, each times a weight of 22 bits. */
typedef struct eni_scaling {
    int taps;        /* weights of each, the last ones may be 0 */
    int32_t *first;  /* (side) */
    int32_t *count;  /* (side) */
    int32_t *weight; /* (side, taps) */
} eni_scaling;

typedef struct eni_pixels {
    eni_image_layout stored;
    eni_transform asked;      /* with the normalisation resolved */
    int repeat;               /* 3: each value thrice, a grey image for a model of colours; or 1 */
    int height, width;        /* as they come out */
    eni_scaling across, down; /* where `asked` has a resize */
    float table[ENI_CHANNELS][256];
} eni_pixels;

/* Sides as they come out of images that are stored so, and whether they can: EN_EINVAL (a square larger than
 * what it is cut from; a set without images), logged. */
en_status eni_pixels_shape(const eni_transform *asked, en_data_shape *shape);

/* Plans it. `asked` has a normalisation of one channel, of all that there are, or of `repeat` ones. EN_EINVAL,
 * EN_ENOMEM, logged; eni_pixels_fini frees, and is safe on zeroed memory. */
en_status eni_pixels_init(const eni_transform *asked, const eni_image_layout *stored, int repeat,
                          eni_pixels *pixels_out);
void eni_pixels_fini(eni_pixels *pixels);

/* Where an image is cut, and whether it is mirrored. */
typedef struct eni_crop {
    int top, left; /* in the image with what is around it */
    bool is_flipped;
} eni_crop;

/* The draws of a sample: a function of seed, epoch and its number in the file alone. Of a test image, epoch 0 of a
 * stream of their own. */
eni_crop eni_pixels_draw(const eni_pixels *pixels, uint64_t seed, bool is_test, uint64_t epoch,
                         uint64_t sample);
eni_crop eni_pixels_middle(const eni_pixels *pixels);

/* One image: out (height, width, channels * repeat). Any thread. */
void eni_pixels_write(const eni_pixels *pixels, const uint8_t *image, const eni_crop *cut, float *out);

/* The same as texts. `asked` has a normalisation. */
void eni_pixels_describe(const eni_transform *asked, eni_pixel_facts *facts_out);

#endif
