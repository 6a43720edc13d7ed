/* schedule.h - the learning rate as a function of global samples, evaluated where the step is taken. */
#ifndef OPS_SCHEDULE_H
#define OPS_SCHEDULE_H

#include <stdint.h>

typedef enum eni_schedule_kind { ENI_LR_CONSTANT, ENI_LR_STEP, ENI_LR_COSINE } eni_schedule_kind;

/* "constant", "step", "cosine", by kind; and how many. */
enum { ENI_SCHEDULES = 3 };
extern const char *const eni_schedule_names[ENI_SCHEDULES];

typedef struct eni_schedule {
    eni_schedule_kind kind;
    double base;           /* after --lr-scale */
    double gamma;          /* STEP: factor */
    uint64_t step_samples; /* STEP: every so many samples */
    uint64_t warmup;       /* linear from 0 over so many samples; 0: none */
    uint64_t total;        /* COSINE: the run's samples */
} eni_schedule;

/* The rate for a step that begins when `samples` samples have been applied, as float: every mode rounds here.
 */
float eni_schedule_lr(const eni_schedule *schedule, uint64_t samples);

#endif
