/* dataset.c - a set in memory: gathers samples in a model's form, hashes them, and reports sizes. dataset_open.c fills it. */
#include "data/dataset.h"

#include <string.h>
#include <sys/mman.h>

#include "core/log.h"
#include "core/memory.h"
#include "data/dataset_make.h"

size_t eni_stored_floats(const eni_dataset *set)
{
    return (size_t)set->height * (size_t)set->width * (size_t)set->channels;
}

uint64_t eni_stored_x_bytes(const eni_dataset *set)
{
    return eni_stored_floats(set) * (set->classes > 0 ? 1 : sizeof(float));
}

uint64_t eni_stored_target_bytes(const eni_dataset *set)
{
    return set->classes > 0 ? 1 : (uint64_t)set->targets * sizeof(float);
}

void eni_dataset_close(eni_dataset *dataset)
{
    if (dataset == NULL) return;
    eni_pixels_fini(&dataset->pixels);
    eni_cifar_close(dataset->records);
    if (dataset->map != NULL) munmap(dataset->map, dataset->map_bytes);
    for (int s = ENI_TRAIN; dataset->map == NULL && s <= ENI_TEST; s++) {
        eni_free(dataset->split[s].x);
        eni_free(dataset->split[s].target);
    }
    eni_free(dataset);
}

/* The crop of a sample and whether it is mirrored. */
static eni_crop cut_of(const eni_dataset *set, int split, uint64_t epoch, uint64_t sample)
{
    if (split == ENI_TRAIN && epoch == ENI_NO_EPOCH) return eni_pixels_middle(&set->pixels);
    return eni_pixels_draw(&set->pixels, set->seed, split != ENI_TRAIN, epoch,
                           set->split[split].first + sample);
}

static const uint8_t *image_at(const eni_dataset *set, int s, uint64_t sample, uint8_t *label_out)
{
    const eni_split *split = &set->split[s];
    if (set->records != NULL)
        return eni_cifar_at(set->records, s == ENI_TEST, split->first + sample, label_out);
    *label_out = ((const uint8_t *)split->target)[sample];
    return (const uint8_t *)split->x + sample * eni_stored_floats(set);
}

/* Copies one sample to row i of the outputs. */
static void copy_sample(const eni_dataset *set, int s, uint64_t epoch, uint64_t sample, size_t i,
                        float *x_out, void *target_out)
{
    const eni_split *split = &set->split[s];
    const size_t targets = (size_t)set->targets;
    float *x = x_out + i * set->sample_floats;
    if (set->classes > 0) {
        const eni_crop cut = cut_of(set, s, epoch, sample);
        uint8_t label;
        eni_pixels_write(&set->pixels, image_at(set, s, sample, &label), &cut, x);
        if (target_out != NULL) ((int32_t *)target_out)[i] = label;
    } else {
        const float *features = split->x, *target = split->target;
        memcpy(x, features + sample * set->sample_floats, set->sample_floats * sizeof *x);
        if (target_out != NULL)
            memcpy((float *)target_out + i * targets, target + sample * targets, targets * sizeof *target);
    }
}

void eni_dataset_gather(const eni_dataset *dataset, int split, uint64_t epoch, const uint32_t *indices,
                        size_t count, float *x_out, void *target_out)
{
    for (size_t i = 0; i < count; i++)
        copy_sample(dataset, split, epoch, indices[i], i, x_out, target_out);
}

uint64_t eni_dataset_sample_bytes(const eni_dataset *set, eni_form form)
{
    if (form == ENI_FORM_FLOATS) return set->sample_floats * sizeof(float);
    const uint64_t image = form == ENI_FORM_BYTES ? eni_stored_floats(set) : 0;
    return sizeof(en_gpu_cut) + eni_round_up(image, sizeof(en_gpu_cut));
}

void eni_dataset_gather_as(const eni_dataset *set, eni_form form, int split, uint64_t epoch,
                           const uint32_t *indices, size_t count, void *x_out, void *target_out)
{
    const uint64_t bytes = eni_dataset_sample_bytes(set, form);
    if (form == ENI_FORM_FLOATS) {
        eni_dataset_gather(set, split, epoch, indices, count, x_out, target_out);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t label, *to = (uint8_t *)x_out + i * bytes;
        const uint8_t *image = image_at(set, split, indices[i], &label);
        const eni_crop crop = cut_of(set, split, epoch, indices[i]);
        const en_gpu_cut cut =
            eni_pixels_cut_for_gpu(&set->pixels, &crop, form == ENI_FORM_CUTS ? indices[i] : (uint32_t)i);
        memcpy(to, &cut, sizeof cut);
        if (form == ENI_FORM_BYTES) memcpy(to + sizeof cut, image, eni_stored_floats(set));
        ((int32_t *)target_out)[i] = label;
    }
}

const uint8_t *eni_dataset_image(const eni_dataset *set, int split, uint64_t sample)
{
    uint8_t label;
    return image_at(set, split, sample, &label);
}

void eni_dataset_range(const eni_dataset *dataset, int split, uint64_t first, size_t count, float *x_out,
                       void *target_out)
{
    for (size_t i = 0; i < count; i++)
        copy_sample(dataset, split, ENI_NO_EPOCH, first + i, i, x_out, target_out);
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
    eni_digest digest;
    eni_digest_begin(&digest);
    for (int s = 0; s < ENI_SPLITS; s++) {
        const eni_split *split = &dataset->split[s];
        if (s == ENI_HOLDOUT && split->count == 0) continue; /* keeps the hash of sets without holdout */
        char shape[128];
        int length =
            snprintf(shape, sizeof shape, "%llu %d %d %d %d %d\n", (ull)split->count, dataset->height,
                     dataset->width, dataset->channels, dataset->classes, dataset->targets);
        eni_digest_add(&digest, shape, (size_t)length);
        if (dataset->records != NULL) {
            eni_cifar_hash(dataset->records, s == ENI_TEST, split->first, split->count, &digest);
            continue;
        }
        eni_digest_add(&digest, split->x, split->count * eni_stored_x_bytes(dataset));
        eni_digest_add(&digest, split->target, split->count * eni_stored_target_bytes(dataset));
    }
    eni_digest_end(&digest, hex_out);
    return EN_OK;
}

uint64_t eni_dataset_bytes(const eni_dataset *dataset)
{
    uint64_t used = 0;
    for (int s = 0; s < ENI_SPLITS; s++)
        used += dataset->split[s].count;
    if (dataset->records != NULL) return used * eni_cifar_record_bytes(dataset->records);
    return (dataset->split[ENI_TRAIN].read + dataset->split[ENI_TEST].read) *
           (eni_stored_x_bytes(dataset) + eni_stored_target_bytes(dataset));
}

void eni_dataset_fill_test(void *dataset, uint64_t first, uint64_t n, float *x_out, void *target_out)
{
    eni_dataset_range(dataset, ENI_TEST, first, n, x_out, target_out);
}

void eni_dataset_fill_holdout(void *dataset, uint64_t first, uint64_t n, float *x_out, void *target_out)
{
    eni_dataset_range(dataset, ENI_HOLDOUT, first, n, x_out, target_out);
}
