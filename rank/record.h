/* record.h - records of a run in progress: a line per step, the bar, TensorBoard's events.
 *
 * Event files are a sequence of TFRecords (length, masked CRC-32C of it, data, masked CRC-32C of that), each
 * an Event message of tensorflow/core/util/event.proto, which has been stable since 2015. The few fields that
 * a scalar needs are encoded here rather than by a protobuf library. Every scalar's step is the number of
 * global samples, so that runs of different strategies and worker counts lie on one axis; its wall time is
 * the start of the run plus the training clock, so that "relative" is the time that the report plots.
 *
 * Compute thread. */
#ifndef RANK_RECORD_H
#define RANK_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "entrain/status.h"

/* ---- files of one JSON object per line ---- */

/* Opens `path` for writing at its end. resumed 0: truncates it. Else keeps the lines whose "samples" are at
 * most `resumed` and whose "t" is at most `seconds` (0: any), and removes the rest (of a killed run, perhaps
 * torn): so the file is one run's. A missing file begins empty. EN_EIO, logged. */
en_status eni_jsonl_open(const char *path, uint64_t resumed, double seconds, FILE **file_out);

/* Closes one: EN_EIO if any write failed, logged for `who`. NULL is fine. */
en_status eni_record_close(const char *who, const char *path, FILE *file);

/* Whether a line of that time stays; six digits are written of it. */
static inline bool eni_jsonl_is_before(double t, double seconds)
{
    return !(seconds > 0) || t <= seconds + 1e-6;
}

/* ---- metrics-RANK.jsonl: the machine-readable twin of the bar ---- */

/* The costs and effects of one step. Nanoseconds are of the compute thread and do not overlap:
 * step = data + compute + send + wait + update + (straggler's sleep, counted as compute) + rest.
 *
 * On a GPU compute is the thread's time too: to put the step into the queues, and to wait for the GPU, be it
 * for a gradient (staged) or, where vectors stay on the GPU, for the step before this one. So steps add up to
 * the time of the run, and compute to what the GPU needed where it is the bottleneck. There send is putting
 * the exchange into the queues; the GPU's own time for exchange and update hides behind compute. */
typedef struct eni_step {
    double t;      /* seconds on the training clock at the end of the step */
    int rank;      /* written to a file of all ranks only */
    uint64_t step; /* of this rank */
    uint64_t epoch;
    uint64_t micro_batch;  /* of the plan; of several, the last */
    uint64_t samples;      /* global samples, as far as this rank knows */
    uint64_t nsamples;     /* of this rank's micro-batch */
    uint64_t update;       /* version of the weights after the step */
    uint64_t base_version; /* version of the weights that the gradient was computed on */
    float loss;            /* mean over this rank's micro-batch */
    uint64_t correct;
    double accuracy; /* share of its samples that are hit; NaN: no classes */
    float lr;
    int64_t step_ns, data_ns, compute_ns, send_ns, wait_ns, update_ns;
    uint64_t payload_bytes, wire_bytes; /* of this step */
    double staleness;                   /* versions between base and application, mean over the partitions */
} eni_step;

typedef struct eni_recorder eni_recorder;

enum { ENI_RECORDER_ALL = -1 }; /* in place of a rank: metrics-all.jsonl, whose lines name theirs */

/* Creates DIR/metrics-RANK.jsonl, or continues it (above). Buffered: no system call per step. */
en_status eni_recorder_open(const char *dir, int rank, uint64_t resumed, double seconds,
                            eni_recorder **recorder_out);
/* Right after it: every line is written as it is added, so that a child made by fork has nothing to write a second time
 * when it exits. */
void eni_recorder_write_at_once(eni_recorder *recorder);

/* Truncates the files of ranks from `first` on likewise, for a run resumed with fewer. EN_EIO, logged. */
en_status eni_recorder_cut(const char *dir, int first, uint64_t resumed, double seconds);

/* Passes buffered lines to the system, where they survive this process. NULL is fine. */
void eni_recorder_flush(eni_recorder *recorder);

/* NULL records nothing. */
void eni_recorder_add(eni_recorder *recorder, const eni_step *step);

/* Flushes and closes; EN_EIO if any write failed (logged). NULL is fine. */
en_status eni_recorder_close(eni_recorder *recorder);
/* The same in a run that has failed: its cause is logged, and a full disk would be named once for each file. */
void eni_recorder_free(eni_recorder *recorder);

/* ---- for people: a bar on a terminal, plain lines elsewhere; for a launcher a line per update -- */

typedef struct eni_bar {
    int fd;         /* >= 0: machine-readable lines for a launcher go here */
    bool quiet;     /* nothing for people */
    uint64_t total; /* global samples of the run */
    uint64_t per_epoch;
    bool has_lines; /* without a terminal: a plain line for each score */
    bool tty;       /* stderr is a terminal: this and the rest by eni_bar_begin */
    int64_t begin_ns, last_ns;
    uint64_t steps, samples; /* as far as the run has come */
    double loss, accuracy;   /* of the last score; NaN: none yet, or no classes */
} eni_bar;

void eni_bar_begin(eni_bar *bar);

/* Training begins after `steps` steps and `samples` samples. Reported to a launcher at once. */
void eni_bar_start(eni_bar *bar, uint64_t steps, uint64_t samples);

/* After each step of rank 0, with its count of the run's samples: at most ten redraws a second. */
void eni_bar_step(eni_bar *bar, uint64_t steps, uint64_t samples);

/* Mean loss and share of hits over all ranks, of the step that ended at `samples` samples. */
void eni_bar_score(eni_bar *bar, uint64_t samples, double loss, double accuracy);

/* Ends the bar's line; reports the progress to a launcher. */
void eni_bar_done(eni_bar *bar);

/* ---- TensorBoard: the curves of one run, one folder per run ---- */

/* A point of the curve (curve.h). */
typedef struct eni_point {
    uint64_t samples, update;
    double t; /* seconds on the training clock */
    double loss, accuracy;
} eni_point;

typedef struct eni_tensorboard eni_tensorboard;

/* Creates a new event file in `folder`. `resumed` > 0: the samples of the checkpoint that the run resumes;
 * TensorBoard then ignores what earlier files of the folder have beyond them. EN_EIO, logged. */
en_status eni_tensorboard_open(const char *folder, uint64_t resumed, eni_tensorboard **board_out);

/* train/lr, train/staleness (where there is some) and train/samples_per_s since the last call. Buffered;
 * events older than 2 s are written out, so that a running job can be watched. NULL shows nothing. */
void eni_tensorboard_step(eni_tensorboard *board, const eni_step *step);

/* train/loss and train/accuracy (NaN: none): the means over all ranks of the step that ended at `samples`
 * samples, known at `t` seconds on the training clock. */
void eni_tensorboard_score(eni_tensorboard *board, uint64_t samples, double t, double loss, double accuracy);

/* SET/loss and SET/accuracy: "test", or "holdout". */
void eni_tensorboard_point(eni_tensorboard *board, const char *set, const eni_point *point);

/* EN_EIO if any write failed (logged). NULL is fine. */
en_status eni_tensorboard_close(eni_tensorboard *board);
void eni_tensorboard_free(eni_tensorboard *board); /* as eni_recorder_free */

#endif
