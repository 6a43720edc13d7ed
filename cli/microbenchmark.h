/* microbenchmark.h - short measurements with processes of our own on this host, without a run: what
 * exchanges, copies and a model's computing take when n processes do it at once.
 *
 * Every function forks and waits with a deadline, or for a signal in `signal_fd` (-1: none); processes.h says what
 * they return. */
#ifndef CLI_MICROBENCHMARK_H
#define CLI_MICROBENCHMARK_H

#include <stdbool.h>

#include "cli/processes.h"
#include "config/config.h"
#include "runtime/collective/probe.h"
#include "runtime/host/cost_model.h"

/* All-reduces of the given sizes among n ranks (2 .. ENI_PROCESSES_MAX), by ENI_COLL_* over ENI_OVER_*:
 * medians of the slowest rank, some budget_ns a size. */
en_status eni_measure_allreduce(int signal_fd, int n, int algorithm, int transport, const uint64_t *bytes,
                                int nsizes, int64_t budget_ns, eni_cost_curve *curve_out);

/* One of `bytes` among n ranks that meet over TCP, each with a card of that rate (bytes a second each way, 0: as it
 * is) and delay, as --net emulates them: its seconds, and the bytes that a rank sends in it, the mean of all. */
en_status eni_measure_shaped(int signal_fd, int n, int algorithm, uint64_t rate, int64_t delay_ns,
                             uint64_t bytes, int64_t budget_ns, double *seconds_out, double *sent_out);

/* What the formulas of cost_model.h need of two ranks on this host: of direct, a flag's latency and seconds
 * per byte that a core moves; of TCP, a hop's. gamma is in beta: both are work of the same core. */
en_status eni_measure_numbers(int signal_fd, int cores, double *flag_out, double *move_out,
                              eni_cost_numbers *tcp_out);

/* Seconds per byte loaded or stored by a core while n processes copy `bytes` at once, and per byte added. */
en_status eni_measure_copy(int signal_fd, int n, uint64_t bytes, double *move_out, double *sum_out);

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
