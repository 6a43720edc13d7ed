/* safetensors.h - the safetensors format (huggingface.co/docs/safetensors), with strict reading: float32, bytes, and int64
 * for scalars num_batches_tracked of 0 to 2^53; all types of tensor.h in a file whose metadata say "types": "any".
 *
 * A file is: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}, ...,
 * "__metadata__": {text: text}}, and the tensors' bytes, row-major, little endian, without holes.
 *
 * The reader refuses whatever violates the format: a header over 16 MiB, duplicate keys, unknown fields, another dtype,
 * offsets that leave the file, overlap or leave holes, a shape that does not multiply to its bytes, values that are not
 * finite, names with control characters. All functions log the cause of a failure once, except those with why_out: they
 * write it there, for callers that can go on without the file.
 *
 * A sealed file contains its own hash at a fixed position, so that every flipped bit and every truncation is found before
 * anything is parsed: the header begins with {"__metadata__":{"digest":"HEX", where HEX is the SHA-256 of the whole file
 * with these 64 characters as '0'. */
#ifndef FORMATS_SAFETENSORS_H
#define FORMATS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "entrain/model.h"
#include "entrain/status.h"

enum { ENI_ST_MAX_HEADER = 16 << 20, ENI_ST_MAX_NAME = 255, ENI_ST_WHY = 512 };

typedef struct eni_st_tensor {
    const char *name;
    uint32_t dtype; /* EN_F32 .. */
    uint32_t ndim;  /* 0: a scalar */
    int64_t shape[EN_MAX_DIMS];
    uint64_t count;             /* elements; 0 if a side is 0 */
    const void *data;           /* (count), little endian; unaligned after reading */
    const en_model_tensor *own; /* to write: data lie in its order; NULL: row-major */
} eni_st_tensor;

static inline uint64_t eni_st_bytes(const eni_st_tensor *tensor)
{
    return tensor->count * en_dtype_bytes(tensor->dtype);
}

typedef struct eni_st_meta {
    const char *key, *value;
} eni_st_meta;

typedef struct eni_st_file {
    eni_st_tensor *tensors; /* (ntensors), in the order of their data */
    uint32_t ntensors;
    eni_st_meta *meta; /* (nmeta) */
    uint32_t nmeta;
    void *header; /* the parsed JSON: owns names and metadata */
    void *bytes;  /* the file's contents if read from disk, else NULL */
} eni_st_file;

/* Parses `bytes` bytes at `data`, which is borrowed and must outlive the result. Messages call it `name`. EN_EFORMAT,
 * EN_ENONFINITE, EN_ENOMEM. Closed by eni_st_close. */
en_status eni_st_parse(const char *name, const void *data, size_t bytes, eni_st_file *file_out);

/* The contents of a regular file of at most max_bytes, freed with eni_free. EN_ENOENT, EN_EIO, EN_EFORMAT
 * (too large), EN_ENOMEM. */
en_status eni_st_contents(const char *path, uint64_t max_bytes, unsigned char **bytes_out, size_t *size_out,
                          char why_out[ENI_ST_WHY]);

/* Reads a whole regular file of at most max_bytes, then parses it. EN_ENOENT, EN_EIO, and as above. */
en_status eni_st_read(const char *path, uint64_t max_bytes, eni_st_file *file_out);

/* Safe on a zeroed struct and when called twice. */
void eni_st_close(eni_st_file *file);

/* Finds a tensor, or returns NULL; borrowed until close. */
const eni_st_tensor *eni_st_find(const eni_st_file *file, const char *name);
const char *eni_st_find_meta(const eni_st_file *file, const char *key);

/* "F32", "U8", "I64" .. */
const char *eni_st_dtype_text(uint32_t dtype);

/* Writes the tensors in the given order, but wider types first: torch reads a type only at multiples of its bytes in the file.
 * Atomic and durable: writes a temporary file beside `path`, syncs it, renames it, and syncs the folder; after a crash the
 * old file or the whole new one is there. EN_EIO, EN_ENOENT (no such folder), EN_ENOMEM; then `path` is unchanged. */
en_status eni_st_write(const char *path, const eni_st_tensor *tensors, uint32_t ntensors,
                       const eni_st_meta *meta, uint32_t nmeta);

/* The same with a seal, returned in digest_out; nothing is logged. Reserves space for the file first, so that a full disk
 * shows before anything is written. */
en_status eni_st_write_sealed(const char *path, const eni_st_tensor *tensors, uint32_t ntensors,
                              const eni_st_meta *meta, uint32_t nmeta, char digest_out[ENI_DIGEST_HEX],
                              char why_out[ENI_ST_WHY]);

/* EN_OK if `data` is a whole sealed file; EN_EFORMAT with why_out if the seal is missing or does not match. */
en_status eni_st_check_seal(const void *data, size_t bytes, char digest_out[ENI_DIGEST_HEX],
                            char why_out[ENI_ST_WHY]);

/* Formats "(20, 1, 5, 5)" into text_out and returns it. */
enum { ENI_ST_SHAPE_TEXT = 192 };
const char *eni_st_shape_text(const int64_t *shape, uint32_t ndim, char text_out[ENI_ST_SHAPE_TEXT]);

#endif
