/* scaler.h - the loss scale of fp16: large enough that small gradients do not become zero, small enough that
 * large ones do not overflow.
 *
 *     forward, backward (times scale), weights' gradients (divided by scale) | any not finite? | flag -> host
 *     host: the flag is read before a bucket is submitted. Overflow: the rank takes part in the step without
 *           samples, and the scale is halved. 2000 good steps in a row: it is doubled
 *
 * The rule is PyTorch's GradScaler (torch.amp, init_scale 2^16, growth_factor 2, backoff_factor 0.5,
 * growth_interval 2000; Micikevicius et al. 2018, "Mixed precision training", sec. 3.2), except that the
 * scale never falls below 1: a run that still overflows has diverged. One per rank. Compute thread. */
#ifndef WORKER_GPU_SCALER_H
#define WORKER_GPU_SCALER_H

#include "worker/worker.h"

/* The rule: pure. */
typedef struct eni_scale {
    float scale;        /* a power of two */
    uint32_t good;      /* steps since it last changed */
    uint64_t overflows; /* overflowing steps of the whole run */
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
    volatile float *here;     /* registered: the next scale for the device */
    volatile uint32_t *flags; /* (nmicros) registered, from the device; not 0: that gradient does not count */
    en_event *event;
} eni_scaler;

/* Sets w->gpu.scaler with --precision=fp16, else does nothing. After the device, before the model, which
 * reads the scale. */
en_status eni_scaler_open(eni_worker *w);
void eni_scaler_close(eni_worker *w);

/* For a checkpoint; zeroes without a scaler. resume continues from one; nothing to do if either has no
 * scale. */
eni_scale_facts eni_scaler_facts(void *worker);
en_status eni_scaler_resume(void *worker, const eni_scale_facts *facts);

/* Enqueues in COMPUTE the search of one micro-batch's gradient for values that are not finite. */
en_status eni_scaler_check(eni_worker *w, int64_t micro, const float *grad);

/* Once per step, after all checks are enqueued: blocks until the flags are there, sets the next step's
 * scale. */
en_status eni_scaler_await(eni_worker *w);

#endif
