/* dataset.h - a data set in memory: read once or mapped, kept in its smallest form, converted to a model's form when
 * gathered.
 *
 * Images stay bytes (47 MB for 60,000 of 28 x 28); a gather turns them into float32, (B, H, W, C): scaled, cropped, mirrored
 * and normalised (pixels.h). Synthetic regression sets are float already. After eni_dataset_open a set is read-only: any
 * number of threads may gather from it, and nothing is allocated. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "data/pixels.h"
#include "entrain/model.h"
#include "entrain/status.h"

enum { ENI_TRAIN, ENI_TEST, ENI_HOLDOUT, ENI_SPLITS };

/* A model's requirements on a set. Zero sides: anything. */
typedef struct eni_data_want {
    int height, width, channels; /* of one sample; a vector of n features is 1 x 1 x n */
    int classes;                 /* labels are 0 .. classes-1; 0: not a classification */
    int targets;                 /* floats per sample to regress on; 0: not a regression */
} eni_data_want;

/* The requirements of this schema's model: its input, and classes or targets by its loss. */
eni_data_want eni_data_want_of(const en_schema *schema);

typedef struct eni_data_options {
    /* One of eni_dataset_name_at, or a folder with files of MNIST or CIFAR, or a URL of one. */
    const char *name;
    const char *folder; /* of the named set (NULL: as its package installs it), or the local copy of a URL */
    uint64_t holdout;   /* the number of last training samples in ENI_HOLDOUT, before limit_train applies */
    uint64_t limit_train; /* use this many of the first samples; 0: all */
    uint64_t limit_test;
    uint64_t seed; /* of a synthetic set, and of augmentation */
    eni_transform transform;
    eni_data_want want;
    const int *share_fd;  /* of eni_dataset_share, borrowed; NULL: read or make the set */
    const char *identity; /* expected identity of the shared set (eni_dataset_identity) */
} eni_data_options;

typedef struct eni_split {
    uint64_t count;
    uint64_t read;  /* samples in memory; count is smaller with a limit */
    uint64_t first; /* position of its first sample in the training or test files */
    void *x; /* (count, H, W, C): uint8_t pixels of a set with classes, else float. NULL: mapped records */
    void *target; /* labels (count), uint8_t; else float (count, T) */
} eni_split;

typedef struct eni_cifar eni_cifar; /* files of CIFAR, mapped */

typedef struct eni_dataset {
    char name[64];               /* "fashion-mnist", "synthetic", "folder", or the name in the folder */
    int height, width, channels; /* as stored */
    int classes, targets;        /* as in eni_data_want; one of them is 0 */
    uint64_t seed;
    eni_pixels pixels;           /* the transform of stored pixels */
    eni_split split[ENI_SPLITS]; /* ENI_HOLDOUT lies in the memory of ENI_TRAIN */
    eni_cifar *records;          /* mapped records; NULL: the splits have the samples */
    size_t sample_floats;        /* of one gathered sample */
    void *map; /* the mapping of a shared set, with all samples or just the header of records; or NULL */
    size_t map_bytes;
    char sha256[ENI_DIGEST_HEX]; /* of a shared set, or "" .. */
    uint64_t summed[ENI_SPLITS]; /* .. valid for these counts */
} eni_dataset;

/* Reads or makes the set. EN_ENOENT names the file and, for fashion-mnist, the Debian package that has it; EN_EFORMAT: counts
 * of images and labels differ, images of different sizes, a label out of range, an empty set; EN_EMISMATCH: not what the
 * model needs, both named; EN_EINVAL: a limit over the size of the set, a holdout over a tenth of it, a transform that does
 * not fit; EN_ENOMEM. Logged. Blocks on the file system. eni_dataset_close frees. */
en_status eni_dataset_open(const eni_data_options *options, eni_dataset **dataset_out);
void eni_dataset_close(eni_dataset *dataset); /* NULL is fine */

/* Hashes what the options mean on this host now, for this user and within `scope`: processes of one version with equal
 * hashes may share a set. Locates the set as eni_dataset_open does, with its errors. */
en_status eni_dataset_identity(const eni_data_options *options, const char *scope,
                               char hex_out[ENI_DIGEST_HEX]);

/* Moves the samples and their hash into a sealed memfd, from which other processes and this one open the set. *fd: an
 * empty memfd, which is closed and replaced if somebody has filled it; -1: makes one. Closes the set in any case.
 * EN_EUNSUPPORTED, logged, if the kernel or its memory does not allow it; EN_ENOMEM; then *fd is closed. */
en_status eni_dataset_share(eni_dataset *dataset, const char *identity, int *fd);

/* Training samples of the set on disk, before holdout and limit; reads only its shape. A synthetic set has 10,000, or as
 * many as these two ask for. Errors as of eni_dataset_open. */
en_status eni_dataset_train_size(const eni_data_options *options, uint64_t *size_out);

/* Channels and classes on disk, by the heads of the files, and the sides that a model sees; zeroes for a set made as a model
 * requires. Errors as of eni_dataset_open. */
en_status eni_dataset_shape(const eni_data_options *options, en_data_shape *shape_out);

/* Whether holdout and limit_train fit the set; with eni_dataset_open's message. */
en_status eni_dataset_check(const eni_data_options *options);

/* The largest holdout: a tenth. */
static inline uint64_t eni_dataset_most_held_out(uint64_t train_size)
{
    return train_size / 10;
}

/* Without random transforms: eni_dataset_range, and test sets. */
#define ENI_NO_EPOCH UINT64_MAX

/* Writes `count` samples of a split as transformed in an epoch: x_out (count, H, W, C), and, unless NULL, target_out: labels,
 * int32_t (count), or float (count, T). The caller ensures indices[i] < the split's count. Overwrites. Any thread, no
 * allocation. */
void eni_dataset_gather(const eni_dataset *dataset, int split, uint64_t epoch, const uint32_t *indices,
                        size_t count, float *x_out, void *target_out);

/* The contents of a batch's x, a sample: the finished floats; or the en_gpu_cut from which a GPU makes them (en_gpu.pixels;
 * sets with classes, without --resize), alone or followed by the stored bytes. */
typedef enum eni_form { ENI_FORM_FLOATS, ENI_FORM_CUTS, ENI_FORM_BYTES } eni_form;
uint64_t eni_dataset_sample_bytes(const eni_dataset *dataset, eni_form form);

/* As eni_dataset_gather, in a form: images of ENI_FORM_CUTS are numbered as the split's samples, of ENI_FORM_BYTES from 0. */
void eni_dataset_gather_as(const eni_dataset *dataset, eni_form form, int split, uint64_t epoch,
                           const uint32_t *indices, size_t count, void *x_out, void *target_out);

/* The stored bytes of a sample of a set with classes (height * width * channels). */
const uint8_t *eni_dataset_image(const eni_dataset *dataset, int split, uint64_t sample);

/* As eni_dataset_gather for samples [first, first + count) in file order, as evaluated: training samples without augmentation, and test
 * samples too without --augment-test. */
void eni_dataset_range(const eni_dataset *dataset, int split, uint64_t first, size_t count, float *x_out,
                       void *target_out);

/* Bytes of one sample's target, as gathered. */
static inline uint64_t eni_dataset_target_bytes(const eni_dataset *dataset)
{
    return dataset->classes > 0 ? sizeof(int32_t) : (uint64_t)dataset->targets * sizeof(float);
}

/* The test split for models/evaluation.h (an eni_set_fill): samples [first, first + n), and labels or targets, whichever the
 * set has. `dataset` is a const eni_dataset. */
void eni_dataset_fill_test(void *dataset, uint64_t first, uint64_t n, float *x_out, void *target_out);
void eni_dataset_fill_holdout(void *dataset, uint64_t first, uint64_t n, float *x_out, void *target_out);

/* sha256 over all splits as limited (counts, shape, samples, labels), which defines "the same data". Computed by the call
 * (0.2 s for 55 MB), unless the set is shared; EN_ENOMEM. */
en_status eni_dataset_sha256(const eni_dataset *dataset, char hex_out[ENI_DIGEST_HEX]);

/* Bytes of memory taken by the samples of all splits. */
uint64_t eni_dataset_bytes(const eni_dataset *dataset);

/* The i-th possible name of a set's file in its folder; NULL after the last. */
const char *eni_dataset_file_at(int i);

/* For `entrain data`: the i-th named set, NULL after the last. */
const char *eni_dataset_name_at(int i);
const char *eni_dataset_help_at(int i);

#endif
