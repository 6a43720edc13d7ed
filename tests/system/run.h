/* run.h - whole runs of entrain, and the contents of their files. */
#ifndef TESTS_SYSTEM_RUN_H
#define TESTS_SYSTEM_RUN_H

#include <jansson.h>

#include "tests/system/process.h"

/* The convnet on few samples: 103 leave a ragged last batch at every W and batch of these tests. */
#define MADE_UP "--data=synthetic --limit-train-samples=103 --limit-test-samples=64"

/* `entrain run --quiet --threads=1 --out=FOLDER/N` with these flags; it must end with 0 within `seconds`.
 * Its result.json; the caller releases it. */
json_t *train(double seconds, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Where the last train() wrote. */
const char *train_out(void);

/* params_sha256; and buffers_sha256 behind a space where the network has running statistics. */
enum { HASHES = 136 };
void hashes_of(const json_t *result, char hashes_out[HASHES]);

/* The hashes of such a run, in one of a few buffers, used in rotation. */
const char *train_hash(double seconds, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A number at a path such as "staleness_steady.mean"; fails the test without one. */
double number_at(const json_t *object, const char *path);
const char *text_at(const json_t *object, const char *path);

/* A file of one JSON object a line, as an array. */
json_t *read_lines(const char *path);

/* Whether there is a device library of this name ("cpu"); "ref" always exists. */
int has_device(const char *name);

/* Whether this CPU has the instructions for --precision=bf16. */
int has_bf16(void);

/* Whether Fashion-MNIST is installed; asks `entrain data`. */
int has_fashion_mnist(void);

#endif
