/* snapshot_writer.h - writes a shard's states to disk while the shard serves.
 *
 *     shard's thread     eni_snapshot_writer_begin -> fill by eni_snapshot_writer_add ->
 * eni_snapshot_writer_commit .. eni_snapshot_writer_done snapshot writer's thread write, fsync, rename, fsync
 *
 * The shard stops only for the copy of its store into memory; what takes long is the disk. One state is under
 * way at a time, so memory is one copy of the store. */
#ifndef SERVER_SNAPSHOT_WRITER_H
#define SERVER_SNAPSHOT_WRITER_H

#include "server/state.h"

typedef struct eni_snapshot_writer eni_snapshot_writer;

/* Starts the thread. The next state will be generation stamp->generation + 1. `on_done` is called on the
 * snapshot writer's thread when a commit has ended, well or not. `state` is borrowed. */
en_status eni_snapshot_writer_start(const eni_state *state, const eni_state_stamp *stamp,
                                    void (*on_done)(void *user), void *user,
                                    eni_snapshot_writer **writer_out);

/* The calls from here on are the shard's thread's. */

/* Whether a state is being written: then begin has to wait. */
int eni_snapshot_writer_is_busy(const eni_snapshot_writer *writer);

/* An empty buffer for the next state; then the same filled, an eni_log_write (EN_ENOMEM); then off to the
 * disk. */
void eni_snapshot_writer_begin(eni_snapshot_writer *writer);
en_status eni_snapshot_writer_add(void *writer, const void *bytes, size_t length);
void eni_snapshot_writer_commit(eni_snapshot_writer *writer);

/* 1 once per commit that has ended, *status_out says how. */
int eni_snapshot_writer_done(eni_snapshot_writer *writer, en_status *status_out);

typedef struct eni_snapshot_figures {
    uint64_t states, failures, bytes; /* written; not written; size of the last one */
    int64_t write_ns;                 /* spent writing, on the snapshot writer's thread */
} eni_snapshot_figures;
void eni_snapshot_writer_count(const eni_snapshot_writer *writer, eni_snapshot_figures *figures_out);

/* Waits for the state under way, joins the thread and frees. NULL is fine. */
void eni_snapshot_writer_stop(eni_snapshot_writer *writer);

#endif
