/* dataset_make.h - the ways a set comes to be: read from files of MNIST's form or mapped from those of CIFAR, or
 * made up; private to data/. */
#ifndef DATA_DATASET_MAKE_H
#define DATA_DATASET_MAKE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/dataset.h"

typedef unsigned long long ull; /* what %llu prints */

/* Fills shape, classes and both splits of a zeroed set from train-images-idx3-ubyte[.gz] and its three
 * siblings in `folder` (or train-images.idx3-ubyte, ..). The counts are those of the files; `classes` 0: so are the classes,
 * from the labels; `remedy` is told when a file is absent. Errors as eni_dataset_open; on failure the caller closes what
 * is there. */
en_status eni_dataset_read_folder(const char *folder, const char *remedy, int classes, eni_dataset *set);

/* Its shape by the head of one file, and the labels as above; how many training samples it has by the head of one. */
en_status eni_dataset_folder_shape(const char *folder, const char *remedy, int classes,
                                   en_data_shape *shape_out);
en_status eni_dataset_folder_size(const char *folder, const char *remedy, uint64_t *size_out);

/* Fills a zeroed set with made-up samples of the wanted shape, the same for the same seed on every machine:
 * integers and exact float operations only. Labels and targets can be learnt from the samples. Those that are
 * held out are the last of ENI_TRAIN; what lies before them and is beyond the limit is not made. */
en_status eni_dataset_make(const eni_data_options *options, eni_dataset *set);
int eni_dataset_made_side(const eni_data_options *options);      /* what a transform asks for; 0: nothing */
uint64_t eni_dataset_made_size(const eni_data_options *options); /* training samples before the limit */

/* ---- one copy for all processes of a host (dataset_share.c) ---- */

/* Fills a zeroed set with what eni_dataset_share put behind `fd` and maps it, so that its samples are read-only. Of mapped
 * records (*has_records_out) it fills the counts only. Not logged: EN_EPROTO for anything else, EN_ENOMEM; then the caller
 * closes what is there. */
en_status eni_dataset_map(int fd, const char *identity, eni_dataset *set, bool *has_records_out);

/* Of one sample as it is stored: values, and the bytes of its x and its target. */
size_t eni_stored_floats(const eni_dataset *set);
uint64_t eni_stored_x_bytes(const eni_dataset *set);
uint64_t eni_stored_target_bytes(const eni_dataset *set);

/* ---- CIFAR's binary files (cifar.c); errors as eni_dataset_open ---- */

enum { ENI_CIFAR_10, ENI_CIFAR_100 };

/* Beside them, or not: what the set is called. */
#define ENI_CIFAR_NAME "set-name.txt"

/* Which form the files of a folder have, or of cifar-10-batches-bin and cifar-100-binary in it, where an archive
 * puts them: that folder comes out. Of several the `wanted` one (-1: none is). -1: neither is there. */
int eni_cifar_find(const char *folder, int wanted, char found_out[PATH_MAX]);
/* What cannot be read but is known, with the remedy: archives, pickles, files in place of folders. EN_OK: it is
 * none of these. */
en_status eni_cifar_refuse_other(const char *path);

/* Fills shape, classes, records and the counts of a zeroed set; its name, where the folder says one. */
en_status eni_cifar_read(int kind, const char *folder, eni_dataset *set);
en_status eni_cifar_size(int kind, const char *folder, uint64_t *size_out);
void eni_cifar_shape(int kind, en_data_shape *shape_out);
const char *eni_cifar_file(int kind, int i); /* names of the files; NULL behind the last */

typedef struct eni_record_file {
    const uint8_t *base; /* mapped, or NULL */
    uint64_t count, bytes;
} eni_record_file;

/* One file: its size is checked, and with `is_whole` it is mapped. */
en_status eni_cifar_map(int kind, const char *path, bool is_whole, eni_record_file *file_out);
/* The labels of so many of its records. */
en_status eni_cifar_check(int kind, const char *path, const eni_record_file *file, uint64_t first,
                          uint64_t count);
void eni_cifar_unmap(eni_record_file *file);

/* The image (three planes of 32 x 32) and the label of record i of the training files or the test file. */
const uint8_t *eni_cifar_at(const eni_cifar *records, bool is_test, uint64_t i, uint8_t *label_out);
void eni_cifar_hash(const eni_cifar *records, bool is_test, uint64_t first, uint64_t count,
                    eni_digest *digest);
/* Of the records that are used, and nothing beyond: of a set of 300 GB with a limit the rest stays on the disk. */
en_status eni_cifar_check_labels(const eni_cifar *records, bool is_test, uint64_t first, uint64_t count);
uint64_t eni_cifar_record_bytes(const eni_cifar *records);
void eni_cifar_close(eni_cifar *records);

/* ---- IDX files; any thread, may block on the file system ---- */

enum { ENI_IDX_DIMS = 3 };
#define ENI_IDX_MAX_BYTES (UINT64_C(1) << 34) /* of elements: more is not a set for this reader */

typedef struct eni_idx {
    int ndims;                  /* 1 or 3 */
    uint64_t dim[ENI_IDX_DIMS]; /* unused ones are 1 */
    uint64_t bytes;             /* product of dim */
    uint8_t *elements;          /* (dim[0], dim[1], dim[2]), owned */
} eni_idx;

/* Reads an IDX file, plain or in gzip; gzip is recognised by its first bytes, not by the name. Of one that is not read
 * whole only the shape: there is nothing to free. EN_ENOENT, EN_EIO, EN_EFORMAT (also for a pickle, whose remedy is named),
 * EN_ENOMEM; all logged. eni_idx_fini frees. */
en_status eni_idx_read(const char *path, bool is_whole, eni_idx *idx_out);

/* Safe on zeroed memory. */
void eni_idx_fini(eni_idx *idx);

#endif
