/* schedule.c - see schedule.h. */
#include "ops/schedule.h"

#include <math.h>

const char *const eni_schedule_names[ENI_SCHEDULES] = {"constant", "step", "cosine"};

float eni_schedule_lr(const eni_schedule *schedule, uint64_t samples)
{
    double lr = schedule->base;
    switch (schedule->kind) {
    case ENI_LR_CONSTANT: break;
    case ENI_LR_STEP:
        if (schedule->step_samples > 0)
            lr *= pow(schedule->gamma, (double)(samples / schedule->step_samples));
        break;
    case ENI_LR_COSINE: {
        double done = schedule->total > 0 ? (double)samples / (double)schedule->total : 0;
        lr *= 0.5 * (1 + cos(acos(-1.0) * (done < 1 ? done : 1)));
        break;
    }
    }
    if (samples < schedule->warmup) lr *= (double)samples / (double)schedule->warmup;
    return (float)lr;
}
