/* shard_save.h - what a shard keeps on disk, and what it may promise because of it; shard's thread only.
 *
 * A shard writes its state between two events: after every --state-every updates of its partitions (or calls
 * of one client, should they update nothing), right after its partitions have got their initial weights, when
 * a client asks for it (it has no more room for what it keeps), and when a client finishes. It stops for the
 * copy only; the rest is a snapshot writer's (snapshot_writer.h). `stable` moves when the state is durable,
 * never before.
 *
 * Bytes of a state: u32 ranks, u32 0, then one byte a rank (1: it has finished), then the store's
 * (store/store_save.h). Without --state all of this does nothing. */
#ifndef SERVER_SHARD_SAVE_H
#define SERVER_SHARD_SAVE_H

#include "server/shard_impl.h"

/* Loads the newest sound state if there is one (*was_loaded_out), and starts the keeper. EN_EFORMAT,
 * EN_EMISMATCH, EN_EVERSION (logged): there is one, and it is of no use. */
en_status eni_shard_save_open(eni_shard *shard, int *was_loaded_out);
void eni_shard_save_close(eni_shard *shard);

/* After every event: takes note of a state that has become durable, begins the next one when it is due. */
void eni_shard_save_tend(eni_shard *shard);

/* A call was given to the store; initial weights were. */
void eni_shard_save_called(eni_shard *shard, int32_t rank);
void eni_shard_save_begun(eni_shard *shard);

/* A client would like what it has sent to be stable soon. */
void eni_shard_save_ask(eni_shard *shard);

/* All calls of this client to this partition up to this seq survive. */
uint64_t eni_shard_stable(const eni_shard *shard, int32_t rank, uint32_t bucket);

/* A client said FINISHED. 1: it may be answered at once; 0: eni_shard_goodbye is called when that is on disk,
 * or cannot be. */
int eni_shard_save_finished(eni_shard *shard, int32_t rank);
/* Whether the store knows that this client has finished. */
int eni_shard_has_finished(const eni_shard *shard, int32_t rank);
/* Whether that is on disk: nothing that this client has sent will be asked for again. */
int eni_shard_is_secure(const eni_shard *shard, int32_t rank);

#endif
