/* pipeline.h - the order in which the stages of a pipeline compute the chunks of a batch: pure arithmetic.
 *
 * A batch is split into M chunks (--micro-batches=M). Each goes forward (F) through stages 0 .. S-1 and
 * backward (B) through S-1 .. 0. Both orders below take the chunks in ascending order in F and in B, so
 * gradients are added in the same order and end with the same bytes.
 *
 *     gpipe, S = 2, M = 4        F0 F1 F2 F3 .  B0 B1 B2 B3         stage 0: all forward, then all backward
 *                                .  F0 F1 F2 F3 ...                  (Huang et al., "GPipe", NeurIPS'19)
 *
 *     1f1b, S = 2, M = 4         F0 F1 .  B0 F2 B1 F3 B2 .  B3      as soon as a stage can go backward it does, so it
 *                                .  F0 B0 F1 B1 F2 B2 F3 B3         keeps at most S - s chunks (Narayanan et al.,
 *                                                                   PipeDream-Flush, ICML'21)
 *
 * Every stage has 2M turns and waits for (S-1) of them: the bubble, ideally (S-1) / (M + S-1) of the time. */
#ifndef WORKER_PARALLEL_PIPELINE_H
#define WORKER_PARALLEL_PIPELINE_H

#include <stdbool.h>

#include "entrain/status.h"

typedef enum eni_pipeline_kind { ENI_1F1B, ENI_GPIPE } eni_pipeline_kind;

typedef struct eni_turn {
    bool is_backward;
    int chunk;
} eni_turn;

/* The 2 * nchunks turns of `stage` (0 <= stage < nstages; nchunks >= 0). Returns their number. */
int eni_pipeline_turns(eni_pipeline_kind kind, int nstages, int nchunks, int stage, eni_turn *turns_out);

/* The most chunks that a stage keeps for backward at one time: M, or min(M, S - s). */
int eni_pipeline_in_flight(eni_pipeline_kind kind, int nstages, int nchunks, int stage);

/* With turns of equal length: (S-1) / (M + S-1). */
double eni_pipeline_bubble(int nstages, int nchunks);

/* The share of the time in which stages wait, if a forward of stage s takes f[s] and a backward b[s], each
 * begins as soon as its turn has come and its input is there, and handing over takes no time. `seconds_out`,
 * if not NULL: the length of the whole, in the unit of f and b. EN_ENOMEM. */
en_status eni_pipeline_play(eni_pipeline_kind kind, int nstages, int nchunks, const double *f,
                            const double *b, double *bubble_out, double *seconds_out);

#endif
