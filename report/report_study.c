/* report_study.c - questions to a study that has been read. */
#include "report/report_study.h"

#include <math.h>
#include <stdio.h>

void eni_study_find_target(eni_run *run, double target)
{
    eni_reach reach = eni_reach_find(run->evals, run->nevals, target);
    bool has_accuracy = false;
    for (size_t i = 0; i < run->nevals; i++)
        has_accuracy = has_accuracy || !isnan(run->evals[i].accuracy);
    if (run->is_complete && !has_accuracy)
        reach = (eni_reach){.t = NAN, .samples = NAN, .low = NAN, .high = NAN};
    run->reach_t = reach.t;
    run->reach_samples = reach.samples;
    run->reach_low = reach.low;
    run->reach_high = reach.high;
    run->last_t = run->nevals > 0 ? run->evals[run->nevals - 1].t : 0;
}

bool eni_study_bracket_is_wide(const eni_run *run)
{
    return isfinite(run->reach_t) && run->reach_high - run->reach_low > 0.1 * run->reach_t;
}

bool eni_study_bracket_is_of_grid(const eni_run *run, double target)
{
    return isfinite(run->reach_t) && isfinite(run->evaluated_for) && fabs(run->evaluated_for - target) > 1e-9;
}

const eni_run *eni_study_next(const eni_study *study, size_t setting, size_t arm, const eni_run *before)
{
    for (const eni_run *run = before == NULL ? study->runs : before + 1; run < study->runs + study->nruns;
         run++)
        if (run->setting == setting && run->arm == arm) return run;
    return NULL;
}

const eni_run *eni_study_find(const eni_study *study, size_t setting, size_t arm, int64_t seed)
{
    const eni_run *run = NULL;
    while ((run = eni_study_next(study, setting, arm, run)) != NULL && run->seed != seed) {
    }
    return run;
}

const eni_run *eni_study_example(const eni_study *study, size_t setting, size_t arm)
{
    const eni_run *run = NULL;
    while ((run = eni_study_next(study, setting, arm, run)) != NULL && !run->is_complete) {
    }
    return run;
}

#define METRIC_DEFINED(name, value)                                                                          \
    double eni_metric_##name(const eni_run *run)                                                             \
    {                                                                                                        \
        return value;                                                                                        \
    }
ENI_METRICS(METRIC_DEFINED)

double eni_metric_samples_per_s(const eni_run *run)
{
    if (!isnan(run->samples_per_s)) return run->samples_per_s;
    return run->train_seconds > 0 ? run->samples_computed / run->train_seconds : NAN;
}

double eni_metric_cpu_seconds(const eni_run *run)
{
    double sum = run->nroles > 0 ? 0 : NAN;
    for (size_t i = 0; i < run->nroles; i++)
        sum += run->roles[i].cpu_seconds;
    return sum;
}

/* Of one rank, or of all workers (rank -1). */
static double wait_share(const eni_run *run, int rank)
{
    double waited = 0, all = 0;
    for (size_t i = 0; i < run->nroles; i++) {
        if (run->roles[i].rank < 0 || (rank >= 0 && run->roles[i].rank != rank)) continue;
        waited += run->roles[i].ns[ENI_PHASE_WAIT];
        for (int p = 0; p < ENI_PHASES; p++)
            all += run->roles[i].ns[p];
    }
    return all > 0 ? waited / all : NAN;
}

double eni_metric_wait(const eni_run *run)
{
    return wait_share(run, -1);
}

double eni_study_wait_of_rank(const eni_study *study, size_t setting, size_t arm, int rank)
{
    double values[ENI_MAX_RUNS];
    size_t n = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;)
        if (!isnan(wait_share(run, rank))) values[n++] = wait_share(run, rank);
    return eni_stats_median(values, n);
}

size_t eni_study_values(const eni_study *study, size_t setting, size_t arm, eni_metric metric,
                        double values_out[ENI_MAX_RUNS])
{
    size_t n = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;)
        if (!isnan(metric(run))) values_out[n++] = metric(run);
    return n;
}

eni_summary eni_study_summary(const eni_study *study, size_t setting, size_t arm, eni_metric metric)
{
    double values[ENI_MAX_RUNS];
    return eni_stats_summary(values, eni_study_values(study, setting, arm, metric, values));
}

size_t eni_study_count(const eni_study *study, size_t setting, size_t arm)
{
    size_t n = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;)
        n++;
    return n;
}

size_t eni_study_missed(const eni_study *study, size_t setting, size_t arm, double *least_t_out)
{
    size_t n = 0;
    *least_t_out = NAN;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
        if (!isinf(eni_metric_reach_t(run))) continue;
        *least_t_out = fmin(*least_t_out, run->last_t);
        n++;
    }
    return n;
}

bool eni_study_has_holdout(const eni_study *study)
{
    for (size_t r = 0; r < study->nruns; r++)
        if (json_integer_value(json_object_get(study->runs[r].result, "holdout")) > 0) return true;
    return false;
}

bool eni_study_is_real(const eni_study *study, size_t setting)
{
    return study->settings[setting].emulated == NULL && study->settings[setting].straggler == NULL;
}

void eni_study_kind(const eni_study *study, size_t setting, char *text_out, size_t size)
{
    const eni_setting_spec *spec = &study->settings[setting];
    if (spec->emulated != NULL)
        snprintf(text_out, size, "emulated: %s", spec->emulated);
    else if (spec->straggler != NULL)
        snprintf(text_out, size, "emulated: straggler %s", spec->straggler);
    else
        snprintf(text_out, size, "real");
}
