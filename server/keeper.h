/* keeper.h - writes a shard's states to disk while the shard serves.
 *
 *     shard's thread     eni_keeper_begin -> fill by eni_keeper_add -> eni_keeper_commit .. eni_keeper_done
 *     keeper's thread                                                 write, fsync, rename, fsync
 *
 * The shard stops only for the copy of its store into memory; what takes long is the disk. One state is under
 * way at a time, so memory is one copy of the store. */
#ifndef SERVER_KEEPER_H
#define SERVER_KEEPER_H

#include "server/state.h"

typedef struct eni_keeper eni_keeper;

/* Starts the thread. The next state will be generation stamp->generation + 1. `on_done` is called on the
 * keeper's thread when a commit has ended, well or not. `state` is borrowed. */
en_status eni_keeper_start(const eni_state *state, const eni_state_stamp *stamp, void (*on_done)(void *user),
                           void *user, eni_keeper **keeper_out);

/* The calls from here on are the shard's thread's. */

/* Whether a state is being written: then begin has to wait. */
int eni_keeper_is_busy(const eni_keeper *keeper);

/* An empty buffer for the next state; then the same filled, an eni_log_write (EN_ENOMEM); then off to the
 * disk. */
void eni_keeper_begin(eni_keeper *keeper);
en_status eni_keeper_add(void *keeper, const void *bytes, size_t length);
void eni_keeper_commit(eni_keeper *keeper);

/* 1 once per commit that has ended, *status_out says how. */
int eni_keeper_done(eni_keeper *keeper, en_status *status_out);

typedef struct eni_keeper_figures {
    uint64_t states, failures, bytes; /* written; not written; size of the last one */
    int64_t write_ns;                 /* spent writing, on the keeper's thread */
} eni_keeper_figures;
void eni_keeper_count(const eni_keeper *keeper, eni_keeper_figures *figures_out);

/* Waits for the state under way, joins the thread and frees. NULL is fine. */
void eni_keeper_stop(eni_keeper *keeper);

#endif
