/* bad_files.h - files that are nearly right, for tests of bad input; all below system_folder(). */
#ifndef TESTS_SYSTEM_BAD_FILES_H
#define TESTS_SYSTEM_BAD_FILES_H

#include <stddef.h>

#include "tests/system/process.h"

/* The absolute path of a name below the folder, in one of a few buffers, used in rotation. */
const char *at(const char *name);

/* Overwrites a file with bytes, or with text. */
void write_bytes(const char *name, const void *bytes, size_t n);
void write_text(const char *name, const char *text);

/* Copies a file (an absolute path), at most `most` bytes of it. */
void copy_file(const char *from, const char *name, size_t most);

/* Changes bytes of a file. */
void patch_file(const char *name, long offset, const void *bytes, size_t n);

/* A folder with the four IDX files: 4 training and 2 test images of 28 x 28. */
void write_set(const char *folder);

/* A folder with the files of CIFAR-10, with this many images in all five batches and in the test set. Their
 * channels differ, and their labels can be learnt. */
void write_cifar(const char *folder, int train, int test);

/* One IDX file: magic 0 0 8 ndims, the sizes (count, 28, 28 or count), then `elements` bytes. */
void write_idx(const char *name, int ndims, unsigned count, size_t elements, int value);

/* A safetensors file: the header's JSON, then `bytes` of floats `value`. */
void write_safetensors(const char *name, const char *header, size_t bytes, float value);

#endif
