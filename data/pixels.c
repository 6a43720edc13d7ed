/* pixels.c - see pixels.h. Scaling follows Pillow (libImaging/Resample.c, BILINEAR on bytes) operation by operation, so that
 * the bytes are equal: weights in double, rounded to 22 bits; across, to bytes; then down, to bytes. (Pillow 13 scales some
 * images that are higher than wide in the other order; for square ones all versions agree.) */
#include "data/pixels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "ops/multiversion.h"

/* ---- output ---- */

en_status eni_pixels_shape(const eni_transform *asked, en_data_shape *shape)
{
    if (asked->resize > 0) shape->height = shape->width = asked->resize;
    if (asked->crop == 0) return EN_OK;
    const int64_t height = shape->height + 2 * asked->pad, width = shape->width + 2 * asked->pad;
    const int64_t most = height < width ? height : width;
    if (asked->crop > most)
        return eni_fail(EN_EINVAL, "dataset",
                        "--augment=crop:%d:%d needs %d x %d pixels, but images are %lld x %lld, and %lld x "
                        "%lld with %d black pixels around: give crop:%lld:%d at most",
                        asked->crop, asked->pad, asked->crop, asked->crop, (long long)shape->height,
                        (long long)shape->width, (long long)height, (long long)width, asked->pad,
                        (long long)most, asked->pad);
    shape->height = shape->width = asked->crop;
    return EN_OK;
}

static void make_table(float mean, float deviation, float table[256])
{
    for (int pixel = 0; pixel < 256; pixel++) {
        const float unit = (float)pixel / 255.0f;
        const float centred = unit - mean;
        table[pixel] = centred / deviation;
    }
}

static en_status make_tables(eni_pixels *p)
{
    const eni_transform *t = &p->asked;
    const int channels = p->stored.channels * p->repeat;
    if (t->nchannels != 1 && t->nchannels != channels)
        return eni_fail(
            EN_EINVAL, "dataset",
            "--normalize has values for %d channels, but the images have %d: give one, or %d of each",
            t->nchannels, channels, channels);
    for (int c = 0; c < ENI_CHANNELS; c++) {
        const int from = t->nchannels == 1 ? 0 : c;
        if (from < t->nchannels) make_table(t->mean[from], t->deviation[from], p->table[c]);
    }
    return EN_OK;
}

/* ---- scaling ---- */

enum { WEIGHT_BITS = 22, ROUND = 1 << (WEIGHT_BITS - 1) };

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* Computes the normalised weights of output i into weight[0 .. taps). */
static void weigh(int in, int out, int i, eni_scaling *s, double *weight)
{
    const double scale = (double)in / out, wide = scale < 1 ? 1 : scale;
    const double centre = (i + 0.5) * scale, shrink = 1 / wide;
    double sum = 0;
    int first = (int)(centre - wide + 0.5), end = (int)(centre + wide + 0.5);
    if (first < 0) first = 0;
    if (end > in) end = in;
    for (int k = 0; k < end - first; k++) {
        weight[k] = triangle((k + first - centre + 0.5) * shrink);
        sum += weight[k];
    }
    s->first[i] = first;
    s->count[i] = end - first;
    for (int k = 0; k < end - first; k++)
        s->weight[i * s->taps + k] =
            (int32_t)(0.5 + (sum != 0 ? weight[k] / sum : weight[k]) * (1 << WEIGHT_BITS));
}

static en_status plan_scaling(int in, int out, eni_scaling *s)
{
    const double scale = (double)in / out;
    s->taps = (int)ceil(scale < 1 ? 1 : scale) * 2 + 1;
    s->first = eni_alloc_array((size_t)out, sizeof *s->first);
    s->count = eni_alloc_array((size_t)out, sizeof *s->count);
    s->weight = eni_alloc_array((size_t)out * (size_t)s->taps, sizeof *s->weight);
    double *weight = eni_alloc_array((size_t)s->taps, sizeof *weight);
    const bool is_there = s->first != NULL && s->count != NULL && s->weight != NULL && weight != NULL;
    for (int i = 0; i < out && is_there; i++)
        weigh(in, out, i, s, weight);
    eni_free(weight);
    return is_there ? EN_OK : EN_ENOMEM;
}

static void free_scaling(eni_scaling *s)
{
    eni_free(s->first);
    eni_free(s->count);
    eni_free(s->weight);
    *s = (eni_scaling){0};
}

/* ---- lifetime ---- */

en_status eni_pixels_init(const eni_transform *asked, const eni_image_layout *stored, int repeat,
                          eni_pixels *pixels_out)
{
    en_status st;
    en_data_shape shape = {stored->height, stored->width, 0, 0};
    eni_pixels p = {.stored = *stored, .asked = *asked, .repeat = repeat};
    const bool is_moved = asked->resize > 0 || asked->crop > 0 || asked->has_flip;
    if (is_moved && stored->channels > ENI_CHANNELS)
        return eni_fail(EN_EINVAL, "dataset",
                        "--resize and --augment are for images of one or three channels, but these samples "
                        "have %d: omit them",
                        stored->channels);
    EN_TRY(eni_pixels_shape(asked, &shape));
    p.height = (int)shape.height, p.width = (int)shape.width;
    EN_TRY(make_tables(&p));
    if (asked->resize > 0) {
        EN_TRY_GOTO(plan_scaling(stored->width, asked->resize, &p.across), fail);
        EN_TRY_GOTO(plan_scaling(stored->height, asked->resize, &p.down), fail);
    }
    *pixels_out = p;
    return EN_OK;
fail:
    eni_pixels_fini(&p);
    return st;
}

void eni_pixels_fini(eni_pixels *p)
{
    free_scaling(&p->across);
    free_scaling(&p->down);
}

/* Appends the shortest text that reads back as the value. */
static void add_value(const char *mark, float value, char *text, size_t bytes)
{
    char number[24];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, (double)value);
        if (memcmp(&(float){strtof(number, NULL)}, &value, sizeof value) == 0) break;
    }
    eni_text_add(text, bytes, "%s%s", mark, number);
}

void eni_pixels_describe(const eni_transform *asked, eni_pixel_facts *facts)
{
    char crop[32] = "";
    *facts = (eni_pixel_facts){0};
    snprintf(facts->resize, sizeof facts->resize, "%d", asked->resize);
    if (asked->crop > 0) snprintf(crop, sizeof crop, "crop:%d:%d", asked->crop, asked->pad);
    snprintf(facts->augment, sizeof facts->augment, "%.22s%s%s", crop, crop[0] && asked->has_flip ? "," : "",
             asked->has_flip ? "flip"
             : crop[0] == 0  ? "none"
                             : "");
    snprintf(facts->augment_test, sizeof facts->augment_test, "%s", asked->is_test_drawn ? "on" : "off");
    for (int i = 0; i < 2 * asked->nchannels; i++) {
        const int c = i % asked->nchannels;
        add_value(i == 0   ? ""
                  : c == 0 ? ":"
                           : ",",
                  i < asked->nchannels ? asked->mean[c] : asked->deviation[c], facts->normalize,
                  sizeof facts->normalize);
    }
}

/* ---- the draws ---- */

/* The sides that crops are taken from, padding included. */
static int height_of(const eni_pixels *p)
{
    return (p->asked.resize > 0 ? p->asked.resize : p->stored.height) + 2 * p->asked.pad;
}

static int width_of(const eni_pixels *p)
{
    return (p->asked.resize > 0 ? p->asked.resize : p->stored.width) + 2 * p->asked.pad;
}

eni_crop eni_pixels_draw(const eni_pixels *p, uint64_t seed, bool is_test, uint64_t epoch, uint64_t sample)
{
    enum { TOP, LEFT, FLIP, DRAWS = 4 };
    const eni_rng_key key = {
        .seed = seed, .purpose = ENI_RNG_AUGMENT, .rank = is_test, .step = is_test ? 0 : epoch};
    const uint64_t at = DRAWS * sample;
    eni_crop cut = eni_pixels_middle(p);
    if (is_test && !p->asked.is_test_drawn) return cut;
    if (p->asked.crop > 0) {
        cut.top = (int)eni_rng_below(&key, at + TOP, (uint64_t)(height_of(p) - p->height + 1));
        cut.left = (int)eni_rng_below(&key, at + LEFT, (uint64_t)(width_of(p) - p->width + 1));
    }
    cut.is_flipped = p->asked.has_flip && eni_rng_below(&key, at + FLIP, 2) == 1;
    return cut;
}

eni_crop eni_pixels_middle(const eni_pixels *p)
{
    return (eni_crop){.top = (height_of(p) - p->height) / 2, .left = (width_of(p) - p->width) / 2};
}

/* ---- one image ---- */

/* Size of a strip of a scaled image: all columns of a 32 x 32 image, some of a large one. */
enum { STRIP_BYTES = 1 << 16, STRIP_LEAST = 4 };
_Static_assert(ENI_SIDE_MAX *STRIP_LEAST *ENI_CHANNELS <= STRIP_BYTES, "a few columns always fit");

/* Writes n pixels of a row, channel c's at line[c][i * step], to `out` or, mirrored, backwards from its end. */
ENI_ALWAYS_INLINE void put_row(const eni_pixels *p, const uint8_t *const line[ENI_CHANNELS], ptrdiff_t step,
                               int n, bool is_flipped, int channels, float *out)
{
    const ptrdiff_t way = is_flipped ? -channels : channels;
    float *to = is_flipped ? out + (ptrdiff_t)(n - 1) * channels : out;
    for (int i = 0; i < n; i++, to += way)
        for (int c = 0; c < channels; c++)
            to[c] = p->table[c][line[c][i * step]];
}

static void put_pixels(const eni_pixels *p, const uint8_t *const line[ENI_CHANNELS], ptrdiff_t step, int n,
                       bool is_flipped, float *out)
{
    if (p->stored.channels * p->repeat == 3)
        put_row(p, line, step, n, is_flipped, 3, out);
    else if (p->stored.channels == 1)
        put_row(p, line, step, n, is_flipped, 1, out);
    else
        put_row(p, line, step, n, is_flipped, 2, out);
}

static void put_black(const eni_pixels *p, int n, float *out)
{
    const int channels = p->stored.channels * p->repeat;
    for (int i = 0; i < n * channels; i++)
        out[i] = p->table[i % channels][0];
}

/* Output columns (or rows) [from, to) lie on the image; the others are black. */
typedef struct interval {
    int from, to;
} interval;

static interval on_image(int offset, int image, int out)
{
    interval s = {offset < 0 ? -offset : 0, image - offset < out ? image - offset : out};
    if (s.from > out) s.from = out;
    if (s.to < s.from) s.to = s.from;
    return s;
}

/* Where output columns [from, to) of a row begin in `out`. */
static float *place(const eni_pixels *p, const eni_crop *cut, int y, int from, int to, float *out)
{
    const int x = cut->is_flipped ? p->width - to : from;
    return out + ((size_t)y * (size_t)p->width + (size_t)x) * (size_t)(p->stored.channels * p->repeat);
}

/* Fills the black margins. */
static void put_margins(const eni_pixels *p, const eni_crop *cut, interval rows, interval columns, float *out)
{
    for (int y = 0; y < p->height; y++) {
        const bool is_outside = y < rows.from || y >= rows.to;
        const interval in = is_outside ? (interval){p->width, p->width} : columns;
        put_black(p, in.from, place(p, cut, y, 0, in.from, out));
        put_black(p, p->width - in.to, place(p, cut, y, in.to, p->width, out));
    }
}

/* Bytes to the next pixel, row and channel of a stored image. */
typedef struct strides {
    ptrdiff_t pixel, row, channel;
} strides;

static strides strides_of(const eni_pixels *p)
{
    const eni_image_layout *s = &p->stored;
    const ptrdiff_t pixel = s->is_planar ? 1 : s->channels, row = pixel * s->width;
    return (strides){pixel, row, p->repeat == 3 ? 0 : s->is_planar ? row * s->height : 1};
}

static void put_as_stored(const eni_pixels *p, const uint8_t *image, const eni_crop *cut, interval rows,
                          interval columns, float *out)
{
    const strides s = strides_of(p);
    const int top = cut->top - p->asked.pad, left = cut->left - p->asked.pad, n = columns.to - columns.from;
    for (int y = rows.from; y < rows.to; y++) {
        const uint8_t *from = image + (y + top) * s.row + (columns.from + left) * s.pixel;
        const uint8_t *const line[ENI_CHANNELS] = {from, from + s.channel, from + 2 * s.channel};
        put_pixels(p, line, s.pixel, n, cut->is_flipped, place(p, cut, y, columns.from, columns.to, out));
    }
}

/* Weights are never negative, and sum to 1 within the rounding of a few thousand terms: no clamping needed. */
static uint8_t to_byte(int32_t sum)
{
    return (uint8_t)(sum >> WEIGHT_BITS);
}

/* Scales columns [first, first + n) of one row across. When enlarging, a pixel has two sources, or one at the edges, with a
 * weight of 0 for the other. */
static void scale_across(const eni_scaling *s, const uint8_t *row, ptrdiff_t step, int first, int n,
                         uint8_t *out)
{
    for (int i = 0; i < n; i++) {
        const int32_t *weight = s->weight + (ptrdiff_t)(first + i) * s->taps;
        const uint8_t *from = row + s->first[first + i] * step;
        const int count = s->count[first + i];
        int32_t sum = ROUND + from[0] * weight[0];
        if (s->taps == 3)
            sum += from[(count - 1) * step] * weight[1];
        else
            for (int k = 1; k < count; k++)
                sum += from[k * step] * weight[k];
        out[i] = to_byte(sum);
    }
}

/* Scales one row of `n` from `taps` rows, n apart; two when enlarging. */
ENI_MULTIVERSION static void scale_down(const uint8_t *restrict rows, const int32_t *weight, int taps, int n,
                                        uint8_t *restrict out)
{
    int32_t sum[ENI_SIDE_MAX];
    const uint8_t *next = rows + (taps > 1 ? n : 0);
    const int32_t w = weight[0], w_next = taps > 1 ? weight[1] : 0;
    if (taps <= 2) {
        for (int i = 0; i < n; i++)
            out[i] = to_byte(ROUND + rows[i] * w + next[i] * w_next);
        return;
    }
    for (int i = 0; i < n; i++)
        sum[i] = ROUND + rows[i] * w + next[i] * w_next;
    for (int k = 2; k < taps; k++)
        for (int i = 0; i < n; i++)
            sum[i] += rows[(ptrdiff_t)k * n + i] * weight[k];
    for (int i = 0; i < n; i++)
        out[i] = to_byte(sum[i]);
}

static void put_scaled(const eni_pixels *p, const uint8_t *image, const eni_crop *cut, interval rows,
                       interval columns, float *out)
{
    uint8_t across[STRIP_BYTES], down[ENI_CHANNELS][ENI_SIDE_MAX];
    const strides s = strides_of(p);
    const int top = cut->top - p->asked.pad, left = cut->left - p->asked.pad, channels = p->stored.channels;
    if (rows.from == rows.to || columns.from == columns.to) return;
    const int first = p->down.first[rows.from + top], last = rows.to - 1 + top;
    const int height = p->down.first[last] + p->down.count[last] - first;
    const int most = STRIP_BYTES / (height * channels), same = p->repeat == 3 ? 0 : 1;
    const uint8_t *const line[ENI_CHANNELS] = {down[0], down[same], down[2 * same]};
    for (int x = columns.from; x < columns.to; x += most) {
        const int n = columns.to - x < most ? columns.to - x : most;
        for (int r = 0; r < height * channels; r++)
            scale_across(&p->across, image + (first + r % height) * s.row + r / height * s.channel, s.pixel,
                         x + left, n, across + (ptrdiff_t)r * n);
        for (int y = rows.from; y < rows.to; y++) {
            const int at = y + top;
            for (int c = 0; c < channels; c++)
                scale_down(across + (ptrdiff_t)(c * height + p->down.first[at] - first) * n,
                           p->down.weight + (ptrdiff_t)at * p->down.taps, p->down.count[at], n, down[c]);
            put_pixels(p, line, 1, n, cut->is_flipped, place(p, cut, y, x, x + n, out));
        }
    }
}

void eni_pixels_write(const eni_pixels *p, const uint8_t *image, const eni_crop *cut, float *out)
{
    const eni_image_layout *stored = &p->stored;
    if (stored->channels > ENI_CHANNELS) { /* features: one table, without moving pixels */
        const size_t n = (size_t)stored->height * (size_t)stored->width * (size_t)stored->channels;
        for (size_t k = 0; k < n; k++)
            out[k] = p->table[0][image[k]];
        return;
    }
    const int height = height_of(p) - 2 * p->asked.pad, width = width_of(p) - 2 * p->asked.pad;
    const interval rows = on_image(cut->top - p->asked.pad, height, p->height);
    const interval columns = on_image(cut->left - p->asked.pad, width, p->width);
    if (rows.to - rows.from < p->height || columns.to - columns.from < p->width)
        put_margins(p, cut, rows, columns, out);
    if (p->asked.resize > 0)
        put_scaled(p, image, cut, rows, columns, out);
    else
        put_as_stored(p, image, cut, rows, columns, out);
}

/* ---- for a GPU ---- */

void eni_pixels_describe_to_gpu(const eni_pixels *p, en_gpu_pixels *gpu)
{
    const eni_image_layout *stored = &p->stored;
    const strides s = strides_of(p);
    *gpu = (en_gpu_pixels){.size = sizeof *gpu,
                           .height = p->height,
                           .width = p->width,
                           .channels = stored->channels * p->repeat,
                           .stored_height = stored->height,
                           .stored_width = stored->width,
                           .row_step = (int32_t)s.row,
                           .pixel_step = (int32_t)s.pixel,
                           .channel_step = (int32_t)s.channel};
    if (stored->channels <= ENI_CHANNELS) return;
    gpu->width = gpu->stored_width =
        stored->height * stored->width * stored->channels; /* features: one row */
    gpu->height = gpu->stored_height = gpu->channels = gpu->pixel_step = 1;
}

en_gpu_cut eni_pixels_cut_for_gpu(const eni_pixels *p, const eni_crop *cut, uint32_t image)
{
    return (en_gpu_cut){image, cut->top - p->asked.pad, cut->left - p->asked.pad, cut->is_flipped};
}
