/* record.h - metrics-RANK.jsonl: one JSON object per step, the machine-readable twin of the progress bar. */
#ifndef RANK_RECORD_H
#define RANK_RECORD_H

#include <stdint.h>

#include "entrain/status.h"

/* What one step cost and did. Nanoseconds are of the compute thread and do not overlap:
 * step = data + compute + send + wait + update + (straggler's sleep, counted as compute) + rest.
 *
 * On a GPU compute is the thread's time too: to put the step into the queues, and to wait for the GPU, be it
 * for a gradient (staged) or, where vectors stay on the GPU, for the step before this one. So steps add up to
 * the time of the run, and compute to what the GPU needed where it is the bottleneck. There send is putting
 * the exchange into the queues; the GPU's own time for exchange and update hides behind compute. */
typedef struct eni_step {
    double t;      /* seconds on the training clock at the end of the step */
    uint64_t step; /* of this rank */
    uint64_t epoch;
    uint64_t samples;      /* global samples, as far as this rank knows */
    uint64_t nsamples;     /* of this rank's micro-batch */
    uint64_t update;       /* version of the weights after the step */
    uint64_t base_version; /* version of the weights that the gradient was computed on */
    float loss;            /* mean over this rank's micro-batch */
    uint64_t correct;
    float lr;
    int64_t step_ns, data_ns, compute_ns, send_ns, wait_ns, update_ns;
    uint64_t payload_bytes, wire_bytes; /* of this step */
    double staleness;                   /* versions between base and application, mean over the partitions */
} eni_step;

/* A step that has been taken and is not recorded yet: its loss is on its way from a GPU. */
typedef struct eni_deferred_step {
    int is_there;
    eni_step step; /* but for loss and correct */
    int set;       /* where they will be (scores.h) */
    double loss;   /* sum over the samples */
    uint64_t correct;
} eni_deferred_step;

typedef struct eni_recorder eni_recorder;

/* Creates DIR/metrics-RANK.jsonl, or goes on with it (jsonl.h). Buffered: no system call per step. */
en_status eni_recorder_open(const char *dir, int rank, uint64_t resumed, double seconds,
                            eni_recorder **recorder_out);

/* Hands what is buffered to the system, where it survives this process. NULL is fine. */
void eni_recorder_flush(eni_recorder *recorder);

/* NULL records nothing. */
void eni_recorder_add(eni_recorder *recorder, const eni_step *step);

/* Flushes and closes; EN_EIO if any write failed (logged). NULL is fine. */
en_status eni_recorder_close(eni_recorder *recorder);

#endif
