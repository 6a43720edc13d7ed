/* idx.h - reads IDX files, the format of MNIST and Fashion-MNIST, plain or in gzip.
 *
 *     byte 0, 1   0
 *     byte 2      element type: 0x08 is unsigned byte, the only one read here
 *     byte 3      dimensions d: 1 (labels) or 3 (images)
 *     4 + 4 i     size of dimension i, big-endian, i < d
 *     4 + 4 d     the elements, row-major, and nothing behind them
 *
 * Source: yann.lecun.com/exdb/mnist, "The IDX file format". Whatever is not exactly this is refused with
 * the file, what was found and what was expected. Calls may block on the file system; any thread. */
#ifndef DATA_IDX_H
#define DATA_IDX_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

enum { ENI_IDX_DIMS = 3 };
#define ENI_IDX_MAX_BYTES (UINT64_C(1) << 34) /* of elements: more is not a set for this reader */

typedef struct eni_idx {
    int ndims;                  /* 1 or 3 */
    uint64_t dim[ENI_IDX_DIMS]; /* unused ones are 1 */
    uint64_t bytes;             /* product of dim */
    uint8_t *elements;          /* (dim[0], dim[1], dim[2]), owned */
} eni_idx;

/* Reads a whole file; gzip is recognised by its first bytes, not by the name. EN_ENOENT, EN_EIO, EN_EFORMAT
 * (also for a pickle, whose remedy is named), EN_ENOMEM; all logged. eni_idx_fini frees. */
en_status eni_idx_read(const char *path, eni_idx *idx_out);

/* Its shape only, by the head of the file: no elements, nothing to free. Same errors. */
en_status eni_idx_shape(const char *path, eni_idx *idx_out);

/* The whole from memory that holds the decompressed file; `name` is for messages. Copies. */
en_status eni_idx_parse(const void *memory, size_t bytes, const char *name, eni_idx *idx_out);

/* Safe on zeroed memory. */
void eni_idx_fini(eni_idx *idx);

#endif
