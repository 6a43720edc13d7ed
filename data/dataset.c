/* dataset.c - see dataset.h. */
#include "data/dataset.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "data/dataset_make.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

typedef unsigned long long ull;

static const struct named {
    const char *name, *folder, *remedy, *help;
} table[] = {
    {"fashion-mnist", "/usr/share/datasets/fashion-mnist",
     "apt-get install dataset-fashion-mnist, or name the folder that holds it with --data-dir",
     "60,000 + 10,000 images of clothes, 28 x 28 grey, 10 classes (Debian: dataset-fashion-mnist)"},
    {"mnist", "/usr/share/datasets/mnist",
     "Debian does not package it: name the folder that holds its four IDX files with --data-dir",
     "60,000 + 10,000 handwritten digits, 28 x 28 grey, 10 classes"},
    {"synthetic", NULL, NULL, "made up from --seed in the shape that the model asks for"},
};
enum { NAMED = sizeof table / sizeof table[0] };

const char *eni_dataset_name_at(int i)
{
    return i >= 0 && i < NAMED ? table[i].name : NULL;
}

const char *eni_dataset_help_at(int i)
{
    return i >= 0 && i < NAMED ? table[i].help : NULL;
}

static const struct named *find_named(const char *name)
{
    for (int i = 0; i < NAMED; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

eni_data_want eni_data_want_of(const en_schema *schema)
{
    const en_extent *input = &schema->network->input;
    const int is_regression = schema->loss == EN_OP_MSE, outputs = (int)schema->outputs;
    return (eni_data_want){.height = (int)input->h,
                           .width = (int)input->w,
                           .channels = (int)input->c,
                           .classes = is_regression ? 0 : outputs,
                           .targets = is_regression ? outputs : 0};
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

const char *eni_dataset_folder(const eni_data_options *options)
{
    const struct named *named = find_named(options->name);
    if (named == NULL) return options->name;
    return named->folder != NULL && options->folder != NULL ? options->folder : named->folder;
}

/* NULL: a folder that has no name among ours. */
static en_status find_set(const eni_data_options *options, const struct named **named_out)
{
    *named_out = find_named(options->name);
    if (*named_out != NULL || is_folder(options->name)) return EN_OK;
    eni_error("dataset",
              "there is neither a set nor a folder \"%s\": --data takes fashion-mnist, mnist, "
              "synthetic or a folder with the four IDX files",
              options->name);
    return EN_ENOENT;
}

static const char *remedy_of(const struct named *named)
{
    return named != NULL ? named->remedy
                         : "a set is four files, {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz";
}

static en_status read_named(const eni_data_options *options, eni_dataset *set)
{
    const struct named *named;
    EN_TRY(find_set(options, &named));
    snprintf(set->name, sizeof set->name, "%s", named != NULL ? named->name : "folder");
    eni_debug("dataset", "reading %s", set->name);
    if (named != NULL && named->folder == NULL) return eni_dataset_make(options, set);
    return eni_dataset_read_folder(eni_dataset_folder(options), remedy_of(named), set);
}

en_status eni_dataset_train_size(const eni_data_options *options, uint64_t *size_out)
{
    const struct named *named;
    EN_TRY(find_set(options, &named));
    if (named == NULL || named->folder != NULL)
        return eni_dataset_folder_size(eni_dataset_folder(options), remedy_of(named), size_out);
    *size_out = eni_dataset_made_size(options);
    return EN_OK;
}

static en_status refuse_limit(const eni_data_options *options, int split, uint64_t limit, uint64_t count)
{
    eni_error("dataset", "--limit-%s-samples %llu is more than the %llu samples of %s%s: give at most that",
              split == ENI_TRAIN ? "train" : "test", (ull)limit, (ull)count, options->name,
              split == ENI_TRAIN && options->holdout > 0 ? " that --holdout leaves" : "");
    return EN_EINVAL;
}

/* Before anything is read: what is left to train on must be worth it. */
static en_status check_holdout(const eni_data_options *options)
{
    uint64_t size;
    if (options->holdout == 0) return EN_OK;
    EN_TRY(eni_dataset_train_size(options, &size));
    if (options->holdout <= eni_dataset_most_held_out(size)) return EN_OK;
    eni_error("dataset",
              "--holdout=%llu is more than a tenth of the %llu training samples of %s: give at most %llu",
              (ull)options->holdout, (ull)size, options->name, (ull)eni_dataset_most_held_out(size));
    return EN_EINVAL;
}

en_status eni_dataset_check(const eni_data_options *options)
{
    uint64_t size;
    EN_TRY(check_holdout(options));
    EN_TRY(eni_dataset_train_size(options, &size));
    if (options->limit_train <= size - options->holdout) return EN_OK;
    return refuse_limit(options, ENI_TRAIN, options->limit_train, size - options->holdout);
}

/* The last ones; their memory stays that of the training samples. */
static void hold_out(uint64_t n, eni_dataset *set)
{
    eni_split *train = &set->split[ENI_TRAIN], *held = &set->split[ENI_HOLDOUT];
    const uint64_t rest = train->count - n;
    train->count = rest;
    held->count = n;
    if (train->images != NULL) held->images = train->images + rest * set->sample_floats;
    if (train->labels != NULL) held->labels = train->labels + rest;
    if (train->features != NULL) held->features = train->features + rest * set->sample_floats;
    if (train->targets != NULL) held->targets = train->targets + rest * (uint64_t)set->targets;
}

/* Real sets shrink to their limit; made-up ones were made at it. */
static en_status apply_limits(const eni_data_options *options, eni_dataset *set)
{
    const uint64_t limit[2] = {options->limit_train, options->limit_test};
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++)
        set->split[s].read = set->split[s].count;
    if (options->holdout > set->split[ENI_TRAIN].count) return EN_EPROTO; /* a lent set is another one */
    if (options->holdout > 0) hold_out(options->holdout, set);
    for (int s = ENI_TRAIN; s <= ENI_TEST; s++) {
        if (limit[s] > set->split[s].count) return refuse_limit(options, s, limit[s], set->split[s].count);
        if (limit[s] > 0) set->split[s].count = limit[s];
    }
    return EN_OK;
}

static en_status check_labels(const eni_dataset *set)
{
    for (int s = 0; s < ENI_SPLITS; s++) {
        const eni_split *split = &set->split[s];
        for (uint64_t i = 0; split->labels != NULL && i < split->count; i++) {
            if (split->labels[i] < set->classes) continue;
            eni_error("dataset", "%s: label %u of %s sample %llu is not in 0 .. %d", set->name,
                      split->labels[i],
                      s == ENI_TRAIN  ? "training"
                      : s == ENI_TEST ? "test"
                                      : "held-out",
                      (ull)i, set->classes - 1);
            return EN_EFORMAT;
        }
    }
    return EN_OK;
}

static en_status check_want(const eni_data_want *want, const eni_dataset *set)
{
    int same = (want->height == 0 || want->height == set->height) &&
               (want->width == 0 || want->width == set->width) &&
               (want->channels == 0 || want->channels == set->channels) &&
               (want->classes == 0 || want->classes == set->classes) &&
               (want->targets == 0 || want->targets == set->targets);
    /* a vector model takes an image of as many values, flattened */
    int flat = want->height == 1 && want->width == 1 && want->targets == 0 &&
               (want->classes == 0 || want->classes == set->classes) &&
               (size_t)want->channels == set->sample_floats;
    if (same || flat) return EN_OK;
    eni_error(
        "dataset",
        "%s has samples of %d x %d x %d with %d classes and %d targets, the model takes %d x %d x %d with "
        "%d and %d: choose another --data or --model",
        set->name, set->height, set->width, set->channels, set->classes, set->targets, want->height,
        want->width, want->channels, want->classes, want->targets);
    return EN_EMISMATCH;
}

/* MNIST's mean and deviation for every set of images, Fashion-MNIST too: the job that this reader serves is
 * the MNIST convnet as published, whose PyTorch peer uses them for both. */
static void set_normalisation(eni_dataset *set)
{
    int is_image = set->classes > 0;
    set->mean = is_image ? 0.1307f : 0.0f;
    set->std = is_image ? 0.3081f : 1.0f;
    for (int pixel = 0; pixel < 256; pixel++) {
        float unit = (float)pixel / 255.0f;
        float centred = unit - set->mean;
        set->table[pixel] = centred / set->std;
    }
}

en_status eni_dataset_open(const eni_data_options *options, eni_dataset **dataset_out)
{
    en_status st;
    eni_dataset *set = eni_alloc(sizeof *set);
    if (set == NULL) return EN_ENOMEM;
    EN_TRY_GOTO(check_holdout(options), close_set);
    EN_TRY_GOTO(options->lent_fd != NULL ? eni_dataset_map(*options->lent_fd, set) : read_named(options, set), close_set);
    set->sample_floats = (size_t)set->height * (size_t)set->width * (size_t)set->channels;
    EN_TRY_GOTO(check_want(&options->want, set), close_set);
    EN_TRY_GOTO(apply_limits(options, set), close_set);
    EN_TRY_GOTO(check_labels(set), close_set);
    set_normalisation(set);
    *dataset_out = set;
    return EN_OK;
close_set:
    eni_dataset_close(set);
    return st;
}

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
