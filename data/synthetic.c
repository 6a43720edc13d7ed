/* synthetic.c - synthetic sets: for the toy model, and for trials without an installed set. */
#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "data/dataset_make.h"

/* Stream numbers, by what is drawn. */
enum { DRAW_PROTOTYPE, DRAW_TRAIN, DRAW_TEST, DRAW_MATRIX };

enum { TRAIN_COUNT = 10000, TEST_COUNT = 2000, MAX_SAMPLE = 1 << 22 };

static eni_rng_key stream(uint64_t seed, int draw)
{
    return (eni_rng_key){.seed = seed, .purpose = ENI_RNG_SYNTHETIC, .step = (uint64_t)draw};
}

/* A multiple of 2^-12 in [-1, 1): sums of a few products are exact in float on every machine. */
static float exact_unit(const eni_rng_key *key, uint64_t index)
{
    return (float)((int)(eni_rng_u64(key, index) >> 51) - 4096) / 4096.0f;
}

/* The numbers of the samples in memory: training samples from 0, then the holdout at the end of the set. */
typedef struct sample_numbers {
    uint64_t first; /* how many training samples */
    uint64_t held;  /* number of the first held-out sample */
} sample_numbers;

static uint64_t number_of(const sample_numbers *numbers, uint64_t i)
{
    return i < numbers->first ? i : numbers->held + (i - numbers->first);
}

/* A sample of class c is the class's prototype (one random byte per pixel) with noise of -64 .. 63. */
static en_status make_classes(uint64_t seed, int draw, const sample_numbers *numbers, eni_dataset *set,
                              eni_split *split)
{
    const eni_rng_key prototype = stream(seed, DRAW_PROTOTYPE), key = stream(seed, draw);
    const uint64_t size = set->sample_floats;
    uint8_t *images = split->x = eni_alloc_array(split->count, size);
    uint8_t *labels = split->target = eni_alloc(split->count);
    if (images == NULL || labels == NULL) return EN_ENOMEM;
    for (uint64_t i = 0; i < split->count; i++) {
        uint64_t number = number_of(numbers, i), label = number % (uint64_t)set->classes;
        labels[i] = (uint8_t)label;
        for (uint64_t p = 0; p < size; p++) {
            int base = (int)(eni_rng_u64(&prototype, label * size + p) >> 56);
            int value = base + (int)(eni_rng_u64(&key, number * size + p) >> 57) - 64;
            images[i * size + p] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
    return EN_OK;
}

/* targets = M x features with a random matrix M: a linear map, so a loss of 0 exists. */
static en_status make_regression(uint64_t seed, int draw, const sample_numbers *numbers, eni_dataset *set,
                                 eni_split *split)
{
    const eni_rng_key matrix = stream(seed, DRAW_MATRIX), key = stream(seed, draw);
    const uint64_t size = set->sample_floats, targets = (uint64_t)set->targets;
    float *features = split->x = eni_alloc_array(split->count, size * sizeof *features);
    float *all_targets = split->target = eni_alloc_array(split->count, targets * sizeof *features);
    if (features == NULL || all_targets == NULL) return EN_ENOMEM;
    for (uint64_t i = 0; i < split->count; i++) {
        const uint64_t number = number_of(numbers, i);
        float *x = features + i * size, *y = all_targets + i * targets;
        for (uint64_t k = 0; k < size; k++)
            x[k] = exact_unit(&key, number * size + k);
        for (uint64_t t = 0; t < targets; t++)
            for (uint64_t k = 0; k < size; k++)
                y[t] += exact_unit(&matrix, t * size + k) * x[k];
    }
    return EN_OK;
}

static en_status check_want(const eni_data_want *want)
{
    int64_t size = (int64_t)want->height * want->width;
    if (want->height <= 0 || want->width <= 0 || want->channels <= 0 || size > MAX_SAMPLE ||
        size * want->channels > MAX_SAMPLE)
        return eni_fail(
            EN_EINVAL, "synthetic",
            "cannot make samples of %d x %d x %d: each side must be at least 1, with at most %d values",
            want->height, want->width, want->channels, MAX_SAMPLE);
    if ((want->classes > 0) != (want->targets > 0) && want->classes >= 0 && want->classes <= 256)
        return EN_OK;
    return eni_fail(EN_EINVAL, "synthetic",
                    "%d classes and %d targets: one of them must be 0, and classes at most 256",
                    want->classes, want->targets);
}

uint64_t eni_dataset_made_size(const eni_data_options *options)
{
    const uint64_t asked = options->limit_train > 0 ? options->limit_train + options->holdout : 0;
    return asked > TRAIN_COUNT ? asked : TRAIN_COUNT;
}

int eni_dataset_made_side(const eni_data_options *options)
{
    return options->transform.resize > 0 ? options->transform.resize : options->transform.crop;
}

en_status eni_dataset_make(const eni_data_options *options, eni_dataset *set)
{
    const eni_data_want *want = &options->want;
    const uint64_t held = eni_dataset_made_size(options) - options->holdout;
    const sample_numbers train = {options->limit_train > 0 ? options->limit_train : held, held};
    const sample_numbers test = {options->limit_test > 0 ? options->limit_test : TEST_COUNT, 0};
    EN_TRY(check_want(want));
    const int side = want->height > 1 || want->width > 1 ? eni_dataset_made_side(options) : 0;
    set->height = side > 0 ? side : want->height;
    set->width = side > 0 ? side : want->width;
    set->channels = want->channels;
    set->classes = want->classes;
    set->targets = want->targets;
    set->sample_floats = (size_t)set->height * (size_t)set->width * (size_t)set->channels;
    set->split[ENI_TRAIN].count = train.first + options->holdout;
    set->split[ENI_TEST].count = test.first;
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++) {
        int draw = s == ENI_TRAIN ? DRAW_TRAIN : DRAW_TEST;
        const sample_numbers *numbers = s == ENI_TRAIN ? &train : &test;
        EN_TRY(set->classes > 0 ? make_classes(options->seed, draw, numbers, set, &set->split[s])
                                : make_regression(options->seed, draw, numbers, set, &set->split[s]));
    }
    return EN_OK;
}
