/* trial.h - one operation on one device with random tensors: what the tests of ops/ compare. */
#ifndef TESTS_OPS_TRIAL_H
#define TESTS_OPS_TRIAL_H

#include "ops/device.h"

/* Where the tensors of a trial lie, instead of the heap: for a test that looks at what is written beside them. */
typedef struct trial_memory {
    void *(*take)(const char *name, size_t bytes, size_t align);
    void (*give)(void *memory);
} trial_memory;

typedef struct trial {
    const eni_device *device;   /* borrowed */
    const trial_memory *memory; /* borrowed; NULL: the heap */
    en_op op;
    en_extent y_extent;
    int64_t nx, ny, nw, nb, nstats; /* elements of x (and x2), y, w, b, stats */
    en_plan *plan;
    en_plan_info info;
    float *x, *x2, *y, *w, *b, *dy, *dx, *dw, *db, *stats;
    void *target; /* labels, or for mse values like x */
    unsigned char *saved, *workspace;
    unsigned char *kept; /* NULL: the device keeps nothing of w */
    uint32_t is_same_w;
} trial;

/* Plans the op and fills x, x2, w, b, dy, stats and the target with values that depend on `seed` alone, in (-1, 1);
 * variances in (0.5, 1.5).
 * Outputs are filled with not-a-number, so that what a call forgets to write shows. w, b, dw, db start 4
 * bytes after a cache line, as views of the flat vector may. Fails the running test when planning fails. */
void trial_init(trial *t, const eni_device *device, const en_op *op, uint64_t seed);
/* The same in other memory. Tensors begin on 64 bytes there, and w, b, dw, db on 4. */
void trial_init_in(trial *t, const trial_memory *memory, const eni_device *device, const en_op *op,
                   uint64_t seed);
void trial_fini(trial *t);

/* Memory that trial_run checks for writes behind it, and trial_fini frees. */
unsigned char *trial_guarded(const trial *t, const char *name, uint64_t bytes);

/* The arguments of its calls. */
en_args trial_args(const trial *t);

/* The running variances and the batches counted; the means are at t->stats. */
float *trial_var(const trial *t);
int64_t *trial_batches(const trial *t);

/* Forward, then the backward calls that the op has; fails the running test on an error, or when a call wrote
 * past its saved, workspace or kept bytes. */
void trial_run(trial *t);

/* The names of the passes, for messages: one line, static storage. */
const char *trial_name(const trial *t);

/* Fails the running test unless |a - b| <= tolerance * (the largest |b|, at least 1e-3) for all elements. */
void assert_close(const char *what, const trial *t, const float *a, const float *b, int64_t count,
                  double tolerance);

/* Ops in short. Windows are square. */
en_op conv_op(en_extent x, int64_t channels, int64_t kernel, int64_t stride, int64_t pad, uint32_t flags);
en_op linear_op(int64_t n, int64_t in, int64_t out, uint32_t flags);
en_op pool_op(uint32_t kind, en_extent x, int64_t kernel, int64_t stride, int64_t pad);
en_op plain_op(uint32_t kind, en_extent x);
en_op batchnorm_op(en_extent x, uint32_t flags); /* EN_OP_BIAS and these */

/* A fixed set that covers every kind: odd sizes, batch 1, ragged batches, strides, padding, and the layers of
 * the convnet. *count_out ops in static storage. */
const en_op *trial_ops(int *count_out);

/* Rounds what a product of the op reads to bf16: x, w and dy, of a conv2d or linear. Factors that are bf16
 * already have exact products, so that a device opened with EN_OPEN_BF16 keeps to the bounds of float32. */
void trial_round(trial *t);

/* Opens `cpu` with so many threads; 0 when this build has none (the test is then skipped by its caller). */
int open_cpu(eni_device *device_out, int threads);
/* With EN_OPEN_BF16; 0 also on a CPU without it. */
int open_cpu_bf16(eni_device *device_out, int threads);
int cpu_has_bf16(void);

#endif
