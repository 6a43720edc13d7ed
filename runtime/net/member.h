/* member.h - a worker's hold on the run: one connection to the leader, served by a thread of its own, so that
 * heartbeats go out while compute is inside a long kernel.
 *
 * Calls may be made from any thread, except open, bye and close, which belong to one owner. */
#ifndef NET_MEMBER_H
#define NET_MEMBER_H

#include "runtime/net/control.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

typedef struct eni_member eni_member;

typedef struct eni_member_config {
    eni_address leader;
    eni_token token;
    int32_t rank;               /* -1: the leader assigns the lowest free one */
    int32_t nranks;             /* as this rank was told; the leader refuses another number */
    const char *host, *host_id; /* place.h; borrowed during open, as the pairs are */
    const eni_pair *pairs;      /* must equal rank 0's, key by key */
    size_t npairs;
    const eni_pair *privates; /* told to all: data address, socket name, .. */
    size_t nprivates;
    int64_t join_deadline_ns; /* WELCOME must be there by then */
    int64_t peer_timeout_ns;  /* 0: 5 s; a leader silent for that long is dead */
    int abort_fd; /* readable: joining, and every later wait for the leader, ends with EN_EINTR. Stays open
                     until close; -1: none */
} eni_member_config;

/* Connects, joins and blocks until WELCOME. A refusal is logged with the leader's sentence: EN_EDENIED
 * (token), EN_EVERSION, EN_EINVAL (rank or world size), EN_EMISMATCH, EN_ETIMEOUT (not all came), EN_EPEER.
 */
en_status eni_member_open(const eni_member_config *config, eni_member **member_out);

/* Immutable; valid until close. */
const eni_world_info *eni_member_world(const eni_member *member);

/* The next micro-batch number of the run, each given to exactly one caller in all ranks. Blocks for a round
 * trip (tens of microseconds on one host). EN_ESTOP: the budget is used up, now and ever after. EN_EINTR:
 * abort_fd is readable, or this member has left (bye, abort). One caller at a time per member; others queue.
 */
en_status eni_member_claim(eni_member *member, uint64_t *index_out, int64_t deadline_ns);

/* Sends a blob (at most ENI_BLOB_MAX bytes; may be empty) and blocks until every rank has sent one under the
 * same tag; all get all. Also the barrier. All ranks must make their gathers in the same order: another tag
 * is EN_EMISMATCH for everybody. *blobs_out is the caller's, to be freed with eni_blobs_fini; NULL drops
 * them. EN_EINTR as for claims. */
en_status eni_member_gather(eni_member *member, const char *tag, const void *blob, size_t bytes,
                            eni_blobs *blobs_out, int64_t deadline_ns);

/* What this rank does, for the next heartbeat and for its obituary. `phase` must be a literal ("forward",
 * "wait"). Two relaxed stores: call it as often as you like. */
void eni_member_note(eni_member *member, int64_t step, const char *phase);

/* Samples that this rank has seen applied so far, for the leader's progress line. One relaxed store. */
void eni_member_note_samples(eni_member *member, uint64_t samples);

/* EN_OK while the run goes on; EN_EPEER after a death or an abort; EN_EMISMATCH, EN_EPROTO. One atomic load.
 */
en_status eni_member_status(const eni_member *member);

/* An eventfd, readable for ever from the moment the status is no longer EN_OK or abort_fd is readable.
 * Borrowed: poll it with your own sockets; never read or close it. */
int eni_member_fd(const eni_member *member);

/* For who lost a peer on another socket and waits to hear whom: blocks until the status is no longer EN_OK
 * and returns it; EN_EINTR when abort_fd is readable instead; EN_ETIMEOUT (not logged) at the deadline. */
en_status eni_member_verdict(eni_member *member, int64_t deadline_ns);

/* Why the status is not EN_OK, as one sentence; "" while it is. Already logged once by this member. */
void eni_member_reason(eni_member *member, char reason_out[ENI_REASON_MAX]);

/* EN_OK and the first victim of the run, or EN_ENOENT. */
en_status eni_member_death(eni_member *member, eni_death *death_out);

/* Ends the run for everyone: the leader names this rank and `reason` to all. Returns when it is sent, at most
 * 1 s later. Close afterwards. */
void eni_member_abort(eni_member *member, const char *reason);

/* Leaves in good order: from now on nobody's death concerns us, nor ours them. Blocks until the leader has
 * heard it. EN_EPEER if the run broke before; EN_EINTR when abort_fd is readable. */
en_status eni_member_bye(eni_member *member, int64_t deadline_ns);

/* Joins the thread and frees. Without a bye this is a death in the others' eyes. NULL is fine. */
void eni_member_close(eni_member *member);

#endif
