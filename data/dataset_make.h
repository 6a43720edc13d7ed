/* dataset_make.h - the two ways a set comes to be: read from files, or made up; private to data/. */
#ifndef DATA_DATASET_MAKE_H
#define DATA_DATASET_MAKE_H

#include <stddef.h>
#include <stdint.h>

#include "data/dataset.h"

/* Fills shape, classes and both splits of a zeroed set from train-images-idx3-ubyte[.gz] and its three
 * siblings in `folder`. The counts are those of the files; `remedy` is told when one is absent. Errors as
 * eni_dataset_open; on failure the caller closes what is there. */
en_status eni_dataset_read_folder(const char *folder, const char *remedy, eni_dataset *set);

/* Its shape, and how many training samples it has, by the head of one file each. */
en_status eni_dataset_folder_shape(const char *folder, const char *remedy, en_data_shape *shape_out);
en_status eni_dataset_folder_size(const char *folder, const char *remedy, uint64_t *size_out);

/* Fills a zeroed set with made-up samples of the wanted shape, the same for the same seed on every machine:
 * integers and exact float operations only. Labels and targets can be learnt from the samples. Those that are
 * held out are the last of ENI_TRAIN; what lies before them and is beyond the limit is not made. */
en_status eni_dataset_make(const eni_data_options *options, eni_dataset *set);
uint64_t eni_dataset_made_size(const eni_data_options *options); /* training samples before the limit */

/* ---- IDX files; any thread, may block on the file system ---- */

enum { ENI_IDX_DIMS = 3 };
#define ENI_IDX_MAX_BYTES (UINT64_C(1) << 34) /* of elements: more is not a set for this reader */

typedef struct eni_idx {
    int ndims;                  /* 1 or 3 */
    uint64_t dim[ENI_IDX_DIMS]; /* unused ones are 1 */
    uint64_t bytes;             /* product of dim */
    uint8_t *elements;          /* (dim[0], dim[1], dim[2]), owned */
} eni_idx;

/* Reads a whole IDX file, plain or in gzip; gzip is recognised by its first bytes, not by the name.
 * EN_ENOENT, EN_EIO, EN_EFORMAT (also for a pickle, whose remedy is named), EN_ENOMEM; all logged.
 * eni_idx_fini frees. */
en_status eni_idx_read(const char *path, eni_idx *idx_out);

/* Safe on zeroed memory. */
void eni_idx_fini(eni_idx *idx);

#endif
