/* scaler.c - halves the scale after an overflow, doubles it after 2,000 good steps. */
#include "worker/gpu/scaler.h"

#include <math.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "worker/gpu/vectors.h"

bool eni_scale_step(eni_scale *s, bool has_overflown)
{
    if (has_overflown) {
        s->overflows++;
        s->good = 0;
        if (s->scale <= 1) return false;
        s->scale /= 2;
        return true;
    }
    if (++s->good < ENI_SCALE_GROWTH) return false;
    s->good = 0;
    if (!isfinite(s->scale * 2)) return false;
    s->scale *= 2;
    return true;
}

/* The copy reads `here` when it runs: it must not change before the flags of a later step have arrived. */
static en_status send_scale(eni_worker *w)
{
    eni_scaler *s = w->gpu.scaler;
    *s->here = s->scale.scale;
    return s->gpu->copy(w->device.ctx, EN_STREAM_COMPUTE, s->there, (const void *)(uintptr_t)s->here,
                        sizeof *s->there, EN_COPY_IN);
}

en_status eni_scaler_open(eni_worker *w)
{
    if (w->config->precision != ENI_PRECISION_FP16) return EN_OK;
    eni_scaler *s = eni_alloc(sizeof *s);
    if (s == NULL) return EN_ENOMEM;
    w->gpu.scaler = s;
    s->gpu = w->device.ops->gpu;
    s->nmicros = w->rank.job.accumulate;
    s->scale.scale = ENI_SCALE_FIRST;
    const uint64_t bytes = (uint64_t)s->nmicros * sizeof *s->flags;
    s->here = eni_gpu_host_alloc(w, sizeof *s->here);
    s->flags = eni_gpu_host_alloc(w, bytes);
    if (s->here == NULL || s->flags == NULL) return EN_ENOMEM;
    EN_TRY(w->device.ops->alloc(w->device.ctx, sizeof *s->there, (void **)&s->there));
    EN_TRY(w->device.ops->alloc(w->device.ctx, bytes, (void **)&s->flags_there));
    EN_TRY(s->gpu->event_new(w->device.ctx, &s->event));
    return send_scale(w);
}

void eni_scaler_close(eni_worker *w)
{
    eni_scaler *s = w->gpu.scaler;
    if (s == NULL || w->gpu.is_stuck) return;
    w->device.ops->free(w->device.ctx, s->there);
    w->device.ops->free(w->device.ctx, s->flags_there);
    eni_gpu_host_free(w, (void *)(uintptr_t)s->here);
    eni_gpu_host_free(w, (void *)(uintptr_t)s->flags);
    s->gpu->event_free(s->event);
    eni_free(s);
    w->gpu.scaler = NULL;
}

eni_scale_facts eni_scaler_facts(void *worker)
{
    const eni_worker *w = worker;
    if (w->gpu.scaler == NULL) return (eni_scale_facts){0};
    const eni_scale *s = &w->gpu.scaler->scale;
    return (eni_scale_facts){(double)s->scale, s->good, s->overflows, w->gpu.overflown};
}

en_status eni_scaler_resume(void *worker, const eni_scale_facts *facts)
{
    eni_worker *w = worker;
    eni_scaler *s = w->gpu.scaler;
    if (s == NULL || facts->scale <= 0) return EN_OK;
    s->scale = (eni_scale){(float)facts->scale, (uint32_t)facts->good, facts->overflows};
    w->gpu.overflown = facts->samples;
    EN_TRY(s->gpu->event_record(s->event, EN_STREAM_COMPUTE)); /* the first scale has been sent */
    EN_TRY(eni_gpu_wait(w, s->event, "the flag that says whether fp16 overflowed"));
    return send_scale(w);
}

en_status eni_scaler_check(eni_worker *w, int64_t micro, const float *grad)
{
    eni_scaler *s = w->gpu.scaler;
    uint32_t *flag = s->flags_there + micro;
    EN_TRY(s->gpu->zero(w->device.ctx, EN_STREAM_COMPUTE, flag, sizeof *flag));
    EN_TRY(s->gpu->check_finite(w->device.ctx, EN_STREAM_COMPUTE, grad, w->rank.job.schema.count, flag));
    return s->gpu->copy(w->device.ctx, EN_STREAM_COMPUTE, (void *)(uintptr_t)(s->flags + micro), flag,
                        sizeof *flag, EN_COPY_OUT);
}

static void tell_first(const eni_worker *w)
{
    const eni_scale *s = &w->gpu.scaler->scale;
    eni_log(s->overflows == 1 ? ENI_LOG_INFO : ENI_LOG_DEBUG, "scaler",
            "rank %d: a gradient overflowed fp16 and is left out; the loss scale is %g from now on",
            w->rank.world.rank, (double)s->scale);
}

en_status eni_scaler_await(eni_worker *w)
{
    eni_scaler *s = w->gpu.scaler;
    bool has_overflown = false;
    EN_TRY(s->gpu->event_record(s->event, EN_STREAM_COMPUTE));
    EN_TRY(eni_gpu_wait(w, s->event, "the flag that says whether fp16 overflowed"));
    for (int64_t i = 0; i < s->nmicros; i++)
        has_overflown |= s->flags[i] != 0;
    const bool has_changed = eni_scale_step(&s->scale, has_overflown);
    if (has_overflown) tell_first(w);
    return has_changed ? send_scale(w) : EN_OK;
}
