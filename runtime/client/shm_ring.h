/* shm_ring.h - messages between one client and the shards of its servers without a socket.
 *
 *     client                                            shard k
 *       | eni_shm_ring_post: slot, then `asked` ---------->  |  eni_shm_ring_take, while it is awake
 *       |    shard asleep? one write to its eventfd --->  |  poll
 *       |  <---- slot, `answered`, then the flag ------  |  eni_shm_ring_answer
 *       | eni_shm_ring_await                                |
 *
 * Each client makes one memfd, and passes it on with its arena. For every shard it has two rings of `slots`
 * messages, one each way, with one writer and one reader. A message is the header of wire.h, in the very bytes
 * of a socket: the reader copies it out first and then reads it with the same code, so a writer here can do no
 * more than a sender there. A side never reads its own counters back from the memory. A client waits for all
 * shards on one flag.
 *
 * A shard that has had nothing to do for a while announces its sleep (eni_shm_ring_sleep) in the memory of all
 * its clients, and checks once more: so either it sees the message or the client sees that the doorbell is
 * needed.
 *
 * A client has no more calls unanswered than there is room for answers; so an honest client's ring is never
 * full.
 *
 * Threads: one at a time for the client; for each shard its own thread. Nothing blocks but
 * eni_shm_ring_await. */
#ifndef CLIENT_SHM_RING_H
#define CLIENT_SHM_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"
#include "runtime/collective/sync.h"
#include "runtime/net/wire.h"

enum { ENI_SHM_RING_SHARDS = 256, ENI_SHM_RING_SLOTS = 4096 /* at most, of a ring */ };

typedef struct eni_shm_ring eni_shm_ring;

/* ---- the client's side */

/* Room for `parts` unanswered messages to each of `nshards` shards. EN_EUNSUPPORTED (not logged): more than
 * there can be; EN_ENOMEM, logged. */
en_status eni_shm_ring_open(uint32_t nshards, uint32_t parts, eni_shm_ring **ring_out);

int eni_shm_ring_fd(const eni_shm_ring *ring);         /* to pass on; borrowed */
uint32_t eni_shm_ring_slots(const eni_shm_ring *ring); /* for the other side's eni_shm_ring_map */

/* The doorbell of shard k: an eventfd, owned from here on. */
void eni_shm_ring_set_doorbell(eni_shm_ring *ring, uint32_t shard, int fd);

/* Whether shard k has a doorbell and there is room for one more message. */
bool eni_shm_ring_may_post(const eni_shm_ring *ring, uint32_t shard);
/* Sends; only if eni_shm_ring_may_post. */
void eni_shm_ring_post(eni_shm_ring *ring, uint32_t shard, const eni_header *header);

/* The next answer of shard k. EN_ETIMEOUT: none is there. EN_EPROTO (logged): it is invalid. */
en_status eni_shm_ring_poll(eni_shm_ring *ring, uint32_t shard, eni_header *header_out);

/* Messages that are not answered yet. */
uint64_t eni_shm_ring_unanswered(const eni_shm_ring *ring);

/* Waits until a shard has answered since the last call, until until_ns, or until `alive` reports a failure. */
en_status eni_shm_ring_await(eni_shm_ring *ring, int64_t until_ns, const eni_alive *alive);

/* ---- the shards' side */

/* Maps a client's memory, which is not trusted: EN_EPROTO, logged, unless it is a sealed memfd of exactly
 * that shape. Borrows fd. */
en_status eni_shm_ring_map(int fd, uint32_t nshards, uint32_t slots, eni_shm_ring **ring_out);

/* The next message to shard k. EN_ETIMEOUT: none is there. EN_EPROTO: it is not a valid header, as *why_out
 * (static) explains, and is consumed. EN_EMISMATCH, once: the counters are invalid, and nothing more is taken
 * from this client. Not logged. */
en_status eni_shm_ring_take(eni_shm_ring *ring, uint32_t shard, eni_header *header_out, const char **why_out);

/* Whether a message waits. */
bool eni_shm_ring_has_message(const eni_shm_ring *ring, uint32_t shard);

/* Answers and wakes the client. EN_ETIMEOUT: no room, because it has not read its answers. */
en_status eni_shm_ring_answer(eni_shm_ring *ring, uint32_t shard, const eni_header *header);

/* Announces whether shard k needs its doorbell or looks by itself. After announcing sleep, look once more. */
void eni_shm_ring_sleep(eni_shm_ring *ring, uint32_t shard, bool is_asleep);

/* Unmaps; the client's side also closes. NULL is fine. */
void eni_shm_ring_close(eni_shm_ring *ring);

#endif
