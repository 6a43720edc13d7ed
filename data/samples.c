/* samples.c - what is done with an open set: its samples as a model wants them, their hash and size, and its
 * end; see dataset.h. */
#include "data/dataset.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/log.h"
#include "core/memory.h"

typedef unsigned long long ull;

void eni_dataset_close(eni_dataset *dataset)
{
    if (dataset == NULL) return;
    if (dataset->map != NULL) munmap(dataset->map, dataset->map_bytes);
    for (int s = ENI_TRAIN; dataset->map == NULL && s <= ENI_TEST; s++) {
        eni_free(dataset->split[s].images);
        eni_free(dataset->split[s].labels);
        eni_free(dataset->split[s].features);
        eni_free(dataset->split[s].targets);
    }
    eni_free(dataset);
}

/* One sample to row i of the outputs. */
static void copy_sample(const eni_dataset *set, const eni_split *split, uint64_t sample, size_t i,
                        float *x_out, int32_t *labels_out, float *targets_out)
{
    const size_t size = set->sample_floats, targets = (size_t)set->targets;
    float *x = x_out + i * size;
    if (split->images != NULL) {
        const uint8_t *pixel = split->images + sample * size;
        for (size_t k = 0; k < size; k++)
            x[k] = set->table[pixel[k]];
    } else {
        memcpy(x, split->features + sample * size, size * sizeof *x);
    }
    if (split->labels != NULL && labels_out != NULL) labels_out[i] = split->labels[sample];
    if (split->targets != NULL && targets_out != NULL)
        memcpy(targets_out + i * targets, split->targets + sample * targets, targets * sizeof *targets_out);
}

void eni_dataset_gather(const eni_dataset *dataset, int split, const uint32_t *indices, size_t count,
                        float *x_out, int32_t *labels_out, float *targets_out)
{
    const eni_split *from = &dataset->split[split];
    for (size_t i = 0; i < count; i++)
        copy_sample(dataset, from, indices[i], i, x_out, labels_out, targets_out);
}

void eni_dataset_range(const eni_dataset *dataset, int split, uint64_t first, size_t count, float *x_out,
                       int32_t *labels_out, float *targets_out)
{
    const eni_split *from = &dataset->split[split];
    for (size_t i = 0; i < count; i++)
        copy_sample(dataset, from, first + i, i, x_out, labels_out, targets_out);
}

static bool is_summed(const eni_dataset *dataset)
{
    for (int s = 0; s < ENI_SPLITS; s++)
        if (dataset->summed[s] != dataset->split[s].count) return false;
    return dataset->sha256[0] != 0;
}

en_status eni_dataset_sha256(const eni_dataset *dataset, char hex_out[ENI_DIGEST_HEX])
{
    if (is_summed(dataset)) {
        memcpy(hex_out, dataset->sha256, sizeof dataset->sha256);
        return EN_OK;
    }
    eni_debug("dataset", "hashing %s", dataset->name);
    eni_digest *digest = eni_digest_new();
    if (digest == NULL) return EN_ENOMEM;
    for (int s = 0; s < ENI_SPLITS; s++) {
        const eni_split *split = &dataset->split[s];
        if (s == ENI_HOLDOUT && split->count == 0) continue; /* the sum of a set that has none is as ever */
        const size_t samples = split->count * dataset->sample_floats;
        char shape[128];
        int length =
            snprintf(shape, sizeof shape, "%llu %d %d %d %d %d\n", (ull)split->count, dataset->height,
                     dataset->width, dataset->channels, dataset->classes, dataset->targets);
        eni_digest_add(digest, shape, (size_t)length);
        if (split->images != NULL) eni_digest_add(digest, split->images, samples);
        if (split->features != NULL) eni_digest_add(digest, split->features, samples * sizeof(float));
        if (split->labels != NULL) eni_digest_add(digest, split->labels, split->count);
        if (split->targets != NULL)
            eni_digest_add(digest, split->targets, split->count * (size_t)dataset->targets * sizeof(float));
    }
    eni_digest_take(digest, hex_out);
    return EN_OK;
}

uint64_t eni_dataset_bytes(const eni_dataset *dataset)
{
    const uint64_t image = dataset->sample_floats, targets = (uint64_t)dataset->targets;
    uint64_t bytes = 0;
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++) {
        const eni_split *split = &dataset->split[s];
        const uint64_t sample = (split->images != NULL ? image : 0) + (split->labels != NULL ? 1 : 0) +
                                (split->features != NULL ? image * sizeof(float) : 0) +
                                (split->targets != NULL ? targets * sizeof(float) : 0);
        bytes += split->read * sample;
    }
    return bytes;
}

static void fill(const eni_dataset *d, int split, uint64_t first, uint64_t n, float *x_out, void *target_out)
{
    eni_dataset_range(d, split, first, n, x_out, d->classes > 0 ? target_out : NULL,
                      d->classes > 0 ? NULL : target_out);
}

void eni_dataset_fill_test(void *dataset, uint64_t first, uint64_t n, float *x_out, void *target_out)
{
    fill(dataset, ENI_TEST, first, n, x_out, target_out);
}

void eni_dataset_fill_holdout(void *dataset, uint64_t first, uint64_t n, float *x_out, void *target_out)
{
    fill(dataset, ENI_HOLDOUT, first, n, x_out, target_out);
}
