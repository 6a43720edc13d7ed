/* progress.h - what a person sees while training runs: a bar on a terminal, plain lines elsewhere, and for a
 * launcher one line per update on a descriptor. Only rank 0 shows anything. */
#ifndef RANK_PROGRESS_H
#define RANK_PROGRESS_H

#include <stdint.h>

typedef struct eni_progress {
    int fd;         /* >= 0: machine-readable lines for a launcher go here */
    int quiet;      /* nothing for people */
    int tty;        /* stderr is a terminal */
    uint64_t total; /* global samples of the run */
    uint64_t per_epoch;
    uint64_t log_every; /* steps between two plain lines; 0: never */
    int64_t begin_ns, last_ns;
} eni_progress;

/* `fd` < 0: no launcher. */
void eni_progress_init(eni_progress *progress, int fd, int quiet, uint64_t total, uint64_t per_epoch,
                       uint64_t log_every);

/* After each step of rank 0: at most ten redraws a second. */
void eni_progress_step(eni_progress *progress, uint64_t step, uint64_t samples, float loss);

/* Ends the bar's line. */
void eni_progress_done(eni_progress *progress);

#endif
