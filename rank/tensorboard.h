/* tensorboard.h - event files for TensorBoard: the curves of one run, one folder per run.
 *
 * A file is a sequence of TFRecords (length, masked CRC-32C of it, data, masked CRC-32C of that), each an
 * Event message of tensorflow/core/util/event.proto, which has been stable since 2015. The few fields that a
 * scalar needs are encoded here rather than by a protobuf library.
 *
 * Every scalar's step is the number of global samples, so that runs of different strategies and worker counts
 * lie on one axis; its wall time is the start of the run plus the training clock, so that "relative" is the
 * time that the report plots. Owned by the compute thread of rank 0. */
#ifndef RANK_TENSORBOARD_H
#define RANK_TENSORBOARD_H

#include <stdint.h>

#include "entrain/status.h"
#include "rank/curve.h"
#include "rank/record.h"

typedef struct eni_tensorboard eni_tensorboard;

/* Creates `folder` (its parent exists) and a new event file in it. Of a run that goes on from a checkpoint,
 * `resumed` > 0 samples: TensorBoard then forgets what an earlier file of the folder says beyond them.
 * EN_EIO, logged. */
en_status eni_tensorboard_open(const char *folder, uint64_t resumed, eni_tensorboard **board_out);

/* train/loss, train/accuracy, train/lr, train/staleness (where there is some) and train/samples_per_s since
 * the last call. Buffered; what is older than 2 s is written out, so that a running job can be watched. NULL
 * shows nothing. */
void eni_tensorboard_step(eni_tensorboard *board, const eni_step *step);

/* SET/loss and SET/accuracy: "test", or "holdout". */
void eni_tensorboard_point(eni_tensorboard *board, const char *set, const eni_point *point);

/* EN_EIO if any write failed (logged). NULL is fine. */
en_status eni_tensorboard_close(eni_tensorboard *board);

#endif
