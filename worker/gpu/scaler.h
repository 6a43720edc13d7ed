/* scaler.h - the loss scale of fp16: so large that small gradients do not become zero, so small that large
 * ones do not overflow.
 *
 *     forward, backward (times scale), weights' gradients (divided by scale) | any not finite? | flag -> host
 *     host: the flag is read before a bucket is submitted. Overflow: the rank takes part in the step without
 *           samples, and the scale is halved. 2000 good steps in a row: it is doubled
 *
 * The rule is PyTorch's GradScaler (torch.amp, init_scale 2^16, growth_factor 2, backoff_factor 0.5,
 * growth_interval 2000; Micikevicius et al. 2018, "Mixed precision training", sec. 3.2), except that the
 * scale does not sink below 1: what overflows then has diverged. Each rank has its own. Compute thread only. */
#ifndef WORKER_GPU_SCALER_H
#define WORKER_GPU_SCALER_H

#include "worker/worker.h"

/* The rule: pure. */
typedef struct eni_scale {
    float scale;        /* a power of two */
    uint32_t good;      /* steps since it last changed */
    uint64_t overflows; /* steps of the whole run */
} eni_scale;

#define ENI_SCALE_FIRST 65536.0f
enum { ENI_SCALE_GROWTH = 2000 };

/* Whether the scale has changed. */
bool eni_scale_step(eni_scale *scale, bool has_overflown);

typedef struct eni_scaler {
    const en_gpu *gpu;
    eni_scale scale;
    int64_t nmicros;
    float *there;             /* on the device */
    uint32_t *flags_there;    /* (nmicros) */
    volatile float *here;     /* registered: what goes there next */
    volatile uint32_t *flags; /* (nmicros) registered: from there; not 0: that gradient does not count */
    en_event *event;
} eni_scaler;

/* w->gpu.scaler with --precision=fp16, else nothing. After the device, before the model, which reads the
 * scale. */
en_status eni_scaler_open(eni_worker *w);
void eni_scaler_close(eni_worker *w);

/* For a checkpoint; zeroes where there is none. A run goes on from one: nothing happens where either has
 * none. */
eni_scale_facts eni_scaler_facts(void *worker);
en_status eni_scaler_resume(void *worker, const eni_scale_facts *facts);

/* Puts the search of one micro-batch's gradient into COMPUTE. */
en_status eni_scaler_check(eni_worker *w, int64_t micro, const float *grad);

/* Once a step, with all checks in COMPUTE: blocks until the flags are there and sets the scale of the next
 * step. */
en_status eni_scaler_await(eni_worker *w);

#endif
