/* dataset.h - a data set in memory: read once or mapped, kept in its smallest form, made into what a model sees
 * when gathered.
 *
 * Images stay bytes (47 MB for 60,000 of 28 x 28); a gather turns them into float32, (B, H, W, C): scaled, cut
 * out, mirrored and normalised as pixels.h has it. Made-up regression sets are float already. After eni_dataset_open a set is read-only: any number of threads may
 * gather from it, and nothing is allocated. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "data/pixels.h"
#include "entrain/model.h"
#include "entrain/status.h"

enum { ENI_TRAIN, ENI_TEST, ENI_HOLDOUT, ENI_SPLITS };

/* What a model asks of a set. Zero sides: anything. */
typedef struct eni_data_want {
    int height, width, channels; /* of one sample; a vector of n features is 1 x 1 x n */
    int classes;                 /* labels are 0 .. classes-1; 0: not a classification */
    int targets;                 /* floats per sample to regress on; 0: not a regression */
} eni_data_want;

/* What the model of this schema asks: its input, and classes or targets by its loss. */
eni_data_want eni_data_want_of(const en_schema *schema);

typedef struct eni_data_options {
    /* One of eni_dataset_name_at, or a folder that holds files of MNIST or CIFAR, or a URL of one. */
    const char *name;
    const char *folder; /* of the named set (NULL: where Debian's package puts it), or the copy of a URL's */
    uint64_t holdout;   /* the last so many training samples become ENI_HOLDOUT, before limit_train counts */
    uint64_t limit_train; /* the first so many samples of the file; 0: all */
    uint64_t limit_test;
    uint64_t seed; /* of a made-up set, and of what augmentation draws */
    eni_transform transform;
    eni_data_want want;
    const int *share_fd;  /* of eni_dataset_share, borrowed; NULL: the set is read or made */
    const char *identity; /* what was said to be lent there (eni_dataset_identity) */
} eni_data_options;

typedef struct eni_split {
    uint64_t count;
    uint64_t read;  /* samples in memory: a limit makes count smaller */
    uint64_t first; /* the number of its first sample in the training or test files */
    void *x; /* (count, H, W, C): pixels, uint8_t, of a set with classes; else float. NULL: mapped records */
    void *target; /* labels (count), uint8_t; else float (count, T) */
} eni_split;

typedef struct eni_cifar eni_cifar; /* files of CIFAR, mapped */

typedef struct eni_dataset {
    char name[64];               /* "fashion-mnist", "synthetic", "folder", or what the folder says it is */
    int height, width, channels; /* as they are stored */
    int classes, targets;        /* as in eni_data_want; one of them is 0 */
    uint64_t seed;
    eni_pixels pixels;           /* what is made of them */
    eni_split split[ENI_SPLITS]; /* ENI_HOLDOUT lies in the memory of ENI_TRAIN */
    eni_cifar *records;          /* or NULL: the splits have their samples */
    size_t sample_floats;        /* of one sample as it is gathered */
    void *map; /* of a lent set, or NULL: all samples are in there, or that they are records */
    size_t map_bytes;
    char sha256[ENI_DIGEST_HEX]; /* of a lent set, or "" .. */
    uint64_t summed[ENI_SPLITS]; /* .. if it is limited to these counts */
} eni_dataset;

/* Reads or makes the set. EN_ENOENT names the file and, for fashion-mnist, the Debian package that brings it;
 * EN_EFORMAT: counts of images and labels differ, images of different sizes, a label out of range, an empty
 * set; EN_EMISMATCH: not what the model wants, both named; EN_EINVAL: a limit over the size of the set, a
 * holdout over a tenth of it, a transform that does not fit;
 * EN_ENOMEM. Logged. Blocks on the file system. eni_dataset_close frees. */
en_status eni_dataset_open(const eni_data_options *options, eni_dataset **dataset_out);
void eni_dataset_close(eni_dataset *dataset); /* NULL is fine */

/* What the options stand for on this host at this moment, for this user and within `scope`, as a hash:
 * processes that have the same, in programs of one version, may share a set. Finds it as eni_dataset_open does, with
 * its errors. */
en_status eni_dataset_identity(const eni_data_options *options, const char *scope,
                               char hex_out[ENI_DIGEST_HEX]);

/* Moves the samples and their hash into a memfd that nobody can change any more: other processes, and this
 * one, open the set from it. *fd: one that nobody has filled; it is closed, and a new one made, where somebody has;
 * -1: a new one. Closes the set in any case. EN_EUNSUPPORTED, logged, where the kernel or its memory does not allow it;
 * EN_ENOMEM; then *fd is closed. */
en_status eni_dataset_share(eni_dataset *dataset, const char *identity, int *fd);

/* Training samples of the set as it is on disk, before holdout and limit; only its shape is read. A made-up
 * one has 10,000, or as many as these two ask for. Errors as eni_dataset_open. */
en_status eni_dataset_train_size(const eni_data_options *options, uint64_t *size_out);

/* Channels and classes as they are on disk, by the heads of its files, and the sides that a model sees; zeroes for
 * what is made up as a model asks for it. Errors as eni_dataset_open. */
en_status eni_dataset_shape(const eni_data_options *options, en_data_shape *shape_out);

/* Whether holdout and limit_train fit it; the sentence that eni_dataset_open would say. */
en_status eni_dataset_check(const eni_data_options *options);

/* What may be held out of so many: a tenth. */
static inline uint64_t eni_dataset_most_held_out(uint64_t train_size)
{
    return train_size / 10;
}

/* As nothing is drawn for: eni_dataset_range, and test sets. */
#define ENI_NO_EPOCH UINT64_MAX

/* Writes `count` samples of a split as they are in an epoch: x_out (count, H, W, C), and, unless it is NULL, target_out:
 * labels, int32_t (count), or float (count, T). indices[i] < the split's count (the caller's promise).
 * Overwrites. Any thread, no allocation. */
void eni_dataset_gather(const eni_dataset *dataset, int split, uint64_t epoch, const uint32_t *indices,
                        size_t count, float *x_out, void *target_out);

/* The same for samples [first, first + count) in file order, as they are judged: training samples as they are, and
 * test samples too without --augment-test. */
void eni_dataset_range(const eni_dataset *dataset, int split, uint64_t first, size_t count, float *x_out,
                       void *target_out);

/* Of one sample, as they are written there. */
static inline uint64_t eni_dataset_target_bytes(const eni_dataset *dataset)
{
    return dataset->classes > 0 ? sizeof(int32_t) : (uint64_t)dataset->targets * sizeof(float);
}

/* The test split as models/evaluation.h asks for it (an eni_set_fill): samples [first, first + n), and labels
 * or targets, whichever the set has. `dataset` is a const eni_dataset. */
void eni_dataset_fill_test(void *dataset, uint64_t first, uint64_t n, float *x_out, void *target_out);
void eni_dataset_fill_holdout(void *dataset, uint64_t first, uint64_t n, float *x_out, void *target_out);

/* sha256 over all splits as limited (counts, shape, samples, labels): what "the same data" means. Computed
 * by the call (0.2 s for 55 MB), unless the set is lent; EN_ENOMEM. */
en_status eni_dataset_sha256(const eni_dataset *dataset, char hex_out[ENI_DIGEST_HEX]);

/* Bytes of memory that the samples of all splits take. */
uint64_t eni_dataset_bytes(const eni_dataset *dataset);

/* The i-th name that a file of a set may have in its folder; NULL behind the last. */
const char *eni_dataset_file_at(int i);

/* For `entrain data`: the i-th named set, NULL behind the last. */
const char *eni_dataset_name_at(int i);
const char *eni_dataset_help_at(int i);

#endif
