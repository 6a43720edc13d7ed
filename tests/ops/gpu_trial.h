/* gpu_trial.h - one operation on a GPU beside ref on the same numbers.
 *
 * With 16 bits, ref gets inputs that were rounded to them, so that what remains is the rounding of sums and
 * of results. Backward runs on ref's y on both sides: otherwise, with y near 0, a fused relu may be open on
 * one side and closed on the other without an error. Every tensor on the GPU lies between two guard zones;
 * what a call may not write must be as it was, to the bit. */
#ifndef TESTS_OPS_GPU_TRIAL_H
#define TESTS_OPS_GPU_TRIAL_H

#include "tests/ops/gpu_rig.h"
#include "tests/ops/trial.h"

enum {
    GPU_X,
    GPU_X2,
    GPU_Y,
    GPU_W,
    GPU_B,
    GPU_DY,
    GPU_DX,
    GPU_DW,
    GPU_DB,
    GPU_TARGET,
    GPU_STATS,
    GPU_SAVED,
    GPU_WORK,
    GPU_TENSORS
};

typedef struct gpu_tensor {
    uint64_t bytes, skew; /* the tensor begins `skew` bytes after a guard zone */
    uint32_t dtype;
    int64_t count;
    unsigned char *image, *now; /* what was put there, guards included; what is there */
    unsigned char *memory;      /* device address of the image; the tensor is GUARD + skew behind it */
} gpu_tensor;

typedef struct gpu_trial {
    gpu_rig *rig; /* borrowed */
    en_op op;
    uint64_t skew; /* of w, b, dw, db */
    float scale;   /* loss scale; 0: none is given */
    en_plan *plan;
    en_plan_info info;
    trial want; /* what ref says, in float32 */
    gpu_tensor tensor[GPU_TENSORS];
    gpu_tensor loss_scale;
} gpu_trial;

/* `skew` 4: weights on bounds of 4 bytes. After it want holds ref's results, scaled as the GPU's will be. */
void gpu_trial_init(gpu_trial *t, gpu_rig *rig, const eni_device *ref, const en_op *op, uint64_t skew,
                    float scale);
void gpu_trial_fini(gpu_trial *t);

/* Other values for an input, before a run. */
void gpu_trial_set(gpu_trial *t, int which, const float *values);

/* Forward, then the backward calls that the op has, and looks at what was written where. y_out: what forward
 * gave (want.ny floats), or NULL. */
void gpu_trial_run(gpu_trial *t, float *y_out);

/* The arguments of its calls: a test may give others. */
en_args gpu_trial_args(const gpu_trial *t);

/* The calls alone: forward, then backward on this y. Nothing is looked at until gpu_trial_look. */
void gpu_trial_enqueue(gpu_trial *t);
void gpu_trial_look(gpu_trial *t, int which);

/* The numbers of a tensor as they were when the run ended; freed with eni_free. */
float *gpu_trial_floats(const gpu_trial *t, int which);
const void *gpu_trial_bits(const gpu_trial *t, int which); /* tensor[which].bytes of them */

/* Rounds to the nearest number of a type, ties to even. */
float gpu_rounded(float value, uint32_t dtype);

const char *gpu_trial_name(const gpu_trial *t); /* static storage */

#endif
