/* lane_save.h - what a lane keeps on disk, and what it may promise because of it; lane's thread only.
 *
 * A lane writes its state between two events: after every --state-every updates of its cells (or calls of one
 * client, should they update nothing), right after its cells have got their initial weights, when a client
 * asks for it (it has no more room for what it keeps), and when a client finishes. It stops for the copy
 * only; the rest is a keeper's (keeper.h). `stable` moves when the state is durable, never before.
 *
 * Bytes of a state: u32 ranks, u32 0, then one byte a rank (1: it has finished), then the store's
 * (store/store_save.h). Without --state all of this does nothing. */
#ifndef SERVER_LANE_SAVE_H
#define SERVER_LANE_SAVE_H

#include "server/lane_impl.h"

/* Loads the newest sound state if there is one (*was_loaded_out), and starts the keeper. EN_EFORMAT,
 * EN_EMISMATCH, EN_EVERSION (logged): there is one, and it is of no use. */
en_status eni_lane_save_open(eni_lane *lane, int *was_loaded_out);
void eni_lane_save_close(eni_lane *lane);

/* After every event: takes note of a state that has become durable, begins the next one when it is due. */
void eni_lane_save_tend(eni_lane *lane);

/* A call was given to the store; initial weights were. */
void eni_lane_save_called(eni_lane *lane, int32_t rank);
void eni_lane_save_begun(eni_lane *lane);

/* A client would like what it has sent to be stable soon. */
void eni_lane_save_ask(eni_lane *lane);

/* All calls of this client to this cell up to this seq survive. */
uint64_t eni_lane_stable(const eni_lane *lane, int32_t rank, uint32_t bucket);

/* A client said FINISHED. 1: it may be answered at once; 0: eni_lane_goodbye is called when that is on disk,
 * or cannot be. */
int eni_lane_save_finished(eni_lane *lane, int32_t rank);
/* Whether the store knows that this client has finished. */
int eni_lane_has_finished(const eni_lane *lane, int32_t rank);
/* Whether that is on disk: nothing that this client has sent will be asked for again. */
int eni_lane_is_secure(const eni_lane *lane, int32_t rank);

#endif
