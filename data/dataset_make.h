/* dataset_make.h - the sources of a set: files of MNIST's form, mapped files of CIFAR's, or synthetic samples; private to
 * data/. */
#ifndef DATA_DATASET_MAKE_H
#define DATA_DATASET_MAKE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/dataset.h"

typedef unsigned long long ull; /* for %llu */

/* Fills shape, classes and both splits of a zeroed set from train-images-idx3-ubyte[.gz] and its three siblings in `folder`
 * (or train-images.idx3-ubyte, ..). Counts are the files'; with `classes` 0 the labels determine the classes; `remedy` ends
 * the message about an absent file. Errors as of eni_dataset_open; on failure the caller closes the partial set. */
en_status eni_dataset_read_folder(const char *folder, const char *remedy, int classes, eni_dataset *set);

/* Its shape by the head of one file, and the labels as above; its number of training samples by the head of one file. */
en_status eni_dataset_folder_shape(const char *folder, const char *remedy, int classes,
                                   en_data_shape *shape_out);
en_status eni_dataset_folder_size(const char *folder, const char *remedy, uint64_t *size_out);

/* Fills a zeroed set with synthetic samples of the required shape, the same for a seed on every machine: integers and exact
 * float operations only. Labels and targets can be learnt from the samples. The holdout is the last part of ENI_TRAIN;
 * samples between the limit and the holdout are not made. */
en_status eni_dataset_make(const eni_data_options *options, eni_dataset *set);
int eni_dataset_made_side(const eni_data_options *options);      /* side that the transform needs; 0: any */
uint64_t eni_dataset_made_size(const eni_data_options *options); /* training samples before the limit */

/* ---- one copy for all processes of a host (dataset_share.c) ---- */

/* Fills a zeroed set from eni_dataset_share's `fd` and maps its samples read-only. For mapped records (*has_records_out) it
 * fills the counts only. Not logged: EN_EPROTO for anything else, EN_ENOMEM; then the caller closes the partial set. */
en_status eni_dataset_map(int fd, const char *identity, eni_dataset *set, bool *has_records_out);

/* One stored sample: its values, and the bytes of its x and its target. */
size_t eni_stored_floats(const eni_dataset *set);
uint64_t eni_stored_x_bytes(const eni_dataset *set);
uint64_t eni_stored_target_bytes(const eni_dataset *set);

/* ---- CIFAR's binary files (cifar.c); errors as eni_dataset_open ---- */

enum { ENI_CIFAR_10, ENI_CIFAR_100 };

/* Optional file beside them with the set's name. */
#define ENI_CIFAR_NAME "set-name.txt"

/* Finds which form the files have in a folder, or in its cifar-10-batches-bin or cifar-100-binary, as archives unpack;
 * found_out is that folder. Prefers the `wanted` form (-1: none). -1: neither form. */
int eni_cifar_find(const char *folder, int wanted, char found_out[PATH_MAX]);
/* Refuses known unreadable forms with the remedy: archives, pickles, files in place of folders. EN_OK for all
 * others. */
en_status eni_cifar_refuse_other(const char *path);

/* Fills shape, classes, records and counts of a zeroed set, and its name if the folder has one. */
en_status eni_cifar_read(int kind, const char *folder, eni_dataset *set);
en_status eni_cifar_size(int kind, const char *folder, uint64_t *size_out);
void eni_cifar_shape(int kind, en_data_shape *shape_out);
const char *eni_cifar_file(int kind, int i); /* names of the files; NULL after the last */

typedef struct eni_record_file {
    const uint8_t *base; /* mapped, or NULL */
    uint64_t count, bytes;
} eni_record_file;

/* Opens one file: checks its size, and with `is_whole` maps it. */
en_status eni_cifar_map(int kind, const char *path, bool is_whole, eni_record_file *file_out);
/* Checks the labels of these records. */
en_status eni_cifar_check(int kind, const char *path, const eni_record_file *file, uint64_t first,
                          uint64_t count);
void eni_cifar_unmap(eni_record_file *file);

/* The image (three planes of 32 x 32) and the label of record i of the training files or the test file. */
const uint8_t *eni_cifar_at(const eni_cifar *records, bool is_test, uint64_t i, uint8_t *label_out);
void eni_cifar_hash(const eni_cifar *records, bool is_test, uint64_t first, uint64_t count,
                    eni_digest *digest);
/* Checks the used records only: of a 300 GB set with a limit the rest stays on disk. */
en_status eni_cifar_check_labels(const eni_cifar *records, bool is_test, uint64_t first, uint64_t count);
uint64_t eni_cifar_record_bytes(const eni_cifar *records);
void eni_cifar_close(eni_cifar *records);

/* ---- IDX files; any thread, may block on the file system ---- */

enum { ENI_IDX_DIMS = 3 };
#define ENI_IDX_MAX_BYTES (UINT64_C(1) << 34) /* of elements: the most that this reader supports */

typedef struct eni_idx {
    int ndims;                  /* 1 or 3 */
    uint64_t dim[ENI_IDX_DIMS]; /* unused ones are 1 */
    uint64_t bytes;             /* product of dim */
    uint8_t *elements;          /* (dim[0], dim[1], dim[2]), owned */
} eni_idx;

/* Reads an IDX file, plain or gzip (detected by its first bytes, not its name). Without is_whole only the shape, and there is
 * nothing to free. EN_ENOENT, EN_EIO, EN_EFORMAT (also for a pickle, with the remedy), EN_ENOMEM; all logged. eni_idx_fini
 * frees. */
en_status eni_idx_read(const char *path, bool is_whole, eni_idx *idx_out);

/* Safe on zeroed memory. */
void eni_idx_fini(eni_idx *idx);

#endif
