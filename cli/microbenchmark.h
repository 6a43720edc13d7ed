/* microbenchmark.h - what a model's computing takes when n processes of this host do it at once. It forks and waits with
 * a deadline, or for a signal in `signal_fd` (-1: none); processes.h says what it returns. */
#ifndef CLI_MICROBENCHMARK_H
#define CLI_MICROBENCHMARK_H

#include "cli/processes.h"
#include "config/config.h"
#include "runtime/collective/probe.h"
#include "runtime/host/cost_model.h"

/* A model's micro-batch while n processes compute one at once and wait for each other after it, as ranks do,
 * each with `threads` threads. */
typedef struct eni_measure_model {
    double
        compute; /* seconds, forward and backward, until the slowest has done it: the mean over the rounds */
    double update; /* one step of the optimizer over all weights */
    int nbuckets;
    double bytes[ENI_COST_BUCKETS], ready[ENI_COST_BUCKETS]; /* as in cost_model.h */
} eni_measure_model;
en_status eni_measure_compute(int signal_fd, int n, const eni_config *config, const char *plugin_dir,
                              int threads, int64_t budget_ns, eni_measure_model *model_out);

#endif
