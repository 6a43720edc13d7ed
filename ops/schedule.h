/* schedule.h - the learning rate: a function of global samples, evaluated where the step is taken. */
#ifndef OPS_SCHEDULE_H
#define OPS_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

typedef enum eni_schedule_kind {
    ENI_LR_CONSTANT,
    ENI_LR_STEP,
    ENI_LR_COSINE,
    ENI_LR_MULTISTEP,
    ENI_LR_LINEAR, /* to 0, like the cosine */
    ENI_LR_POINTS  /* straight lines between points, of a schedule that a program computes */
} eni_schedule_kind;

/* "constant", "step", "cosine", "multistep", "linear", "points", by kind; and their number. */
enum { ENI_SCHEDULES = 6, ENI_MILESTONES = 8, ENI_RATE_POINTS_MAX = 4096 };
extern const char *const eni_schedule_names[ENI_SCHEDULES];

/* The factor of the rate when so many samples are applied. */
typedef struct eni_rate_point {
    uint64_t samples;
    float factor;
} eni_rate_point;
typedef struct eni_rate_points {
    uint32_t n;         /* 1 to ENI_RATE_POINTS_MAX */
    eni_rate_point *at; /* (n), rising; the first one at 0 */
} eni_rate_points;

typedef struct eni_schedule {
    eni_schedule_kind kind;
    double base;                        /* after --lr-scale */
    double gamma;                       /* STEP, MULTISTEP: factor */
    uint64_t step_samples;              /* STEP: samples between two changes */
    uint64_t warmup;                    /* linear from 0 over this many samples; 0: no warmup */
    uint64_t total;                     /* COSINE, LINEAR: the run's samples */
    uint64_t milestone[ENI_MILESTONES]; /* MULTISTEP: (nmilestones) samples, ascending */
    int nmilestones;
    const eni_rate_points *points; /* POINTS; past the last one its factor stays */
} eni_schedule;

/* The rate for a step that begins when `samples` samples are applied, as float: every mode rounds here. */
float eni_schedule_lr(const eni_schedule *schedule, uint64_t samples);

/* "600000,800000": the form in key-values, checkpoints and saved stores. */
void eni_schedule_milestones(const eni_schedule *schedule, char *text_out, size_t bytes);

/* "0:1,640:0.5": the same form for points, exact. Freed with eni_free; NULL if out of memory. And back, fully
 * checked: NULL if invalid. new: empty, with room for all; NULL if out of memory. free: safe on NULL. */
char *eni_rate_points_text(const eni_rate_points *points);
eni_rate_points *eni_rate_points_parse(const char *text);
eni_rate_points *eni_rate_points_new(void);
void eni_rate_points_free(eni_rate_points *points);

#endif
