/* member.h - a process' membership in the run: one connection to the leader, served by a thread of its own,
 * so that heartbeats go out while compute is inside a long kernel. Every worker has one; so has every server
 * but psd 0, which leads.
 *
 * Calls may be made from any thread, except open, bye and close, which belong to one owner. */
#ifndef CONTROL_MEMBER_H
#define CONTROL_MEMBER_H

#include <stdatomic.h>

#include "core/wait_note.h"
#include "runtime/control/control.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

typedef struct eni_member eni_member;

typedef struct eni_member_config {
    eni_address leader;
    eni_token token;
    /* -1: the leader assigns the lowest free one. ENI_RANK_NEW: it joins a running run
     * (leader_config.nplaces). Unused for a server */
    int32_t rank;
    int32_t nranks; /* this process' own setting; the leader refuses another number */
    /* 0: a worker. k >= 1: server k; then only the calls for servers below, status, verdict, fd, reason,
     * death, stop, abort and close make sense */
    int32_t server;
    int32_t nservers;                /* servers only: its own setting; the leader refuses another number */
    const char *host, *host_id;      /* host_info.h; borrowed during open, as the key-values are */
    const eni_key_value *key_values; /* must equal rank 0's, key by key; a server has none */
    size_t nkey_values;
    const eni_key_value *member_data; /* published to all: data address, socket name, .. */
    size_t nmember_data;
    int64_t join_deadline_ns; /* WELCOME must arrive by then */
    int64_t peer_timeout_ns;  /* 0: 5 s; a leader silent for that long is dead */

    /* readable: the user wants to end. Joining, and every later wait for the leader, ends with EN_EINTR
     * (after stop_grace_ns). Stays open until close; -1: none */
    int abort_fd;
    atomic_int *ended; /* NULL, or set to the run's status when it breaks, unless it is set already */
    /* 0: at once. Else, once WELCOME is there, a readable abort_fd first requests an early end like
     * eni_member_stop, and only after this time wakes all waits and makes eni_member_fd readable */
    int64_t stop_grace_ns;

    /* > 0: how long a psd (leader with rank < 0) whose connection breaks is waited for: see Rejoin below. 0:
     * its end is the run's end */
    int64_t server_timeout_ns;
    bool is_slowed;    /* --net emulation: a long wait without a byte is normal, and not a deadlock */
    int64_t notice_ns; /* a wait is explained after this time; 0: 5 s; then again every 6 times as long */

    /* Servers only; on the opener's thread, later on the member's. All ranks are there: open the shards and
     * fill *member_data_out, which is copied at once; `world` is valid during the call. Called again with the
     * same world under another epoch when a restarted psd 0 leads again: the shards then serve that epoch.
     * Anything but EN_OK ends the run. */
    en_status (*on_serve)(void *user, const eni_world_info *world, const eni_key_value **member_data_out,
                          size_t *n_out);
    /* Servers only; on the member's thread: the leader collects what to add to gather `tag`. Copied at once. */
    void (*on_ask)(void *user, const char *tag, eni_blob *own_out);
    /* Servers only; on the member's thread: the run goes on without this rank, and must not wait for it. */
    void (*on_left)(void *user, int32_t rank);
    void *user;
} eni_member_config;

/* Connects, joins and blocks until WELCOME. A refusal is logged with the leader's sentence: EN_EDENIED
 * (token), EN_EVERSION, EN_EINVAL (rank or world size), EN_EMISMATCH, EN_ETIMEOUT (ranks are missing),
 * EN_EPEER (a process died meanwhile: it is named). Logs after 5 s of waiting, and every 30 s, which ranks
 * are missing. */
en_status eni_member_open(const eni_member_config *config, eni_member **member_out);

/* Immutable, as of the first WELCOME; valid until close. */
const eni_world_info *eni_member_world(const eni_member *member);

/* Returns the next micro-batch number of the run; each is given to exactly one caller in all ranks, even if
 * psd is killed and comes back. Blocks for a round trip (tens of microseconds on one host). EN_ESTOP: the
 * budget is used up or the run is being stopped; permanent. EN_EINTR: abort_fd is readable, or this member
 * has left (bye, abort). One caller at a time per member; others queue. */
en_status eni_member_claim(eni_member *member, uint64_t *index_out, int64_t deadline_ns);

/* Sends a blob (at most ENI_BLOB_MAX bytes; may be empty) and blocks until every living rank has sent one
 * under the same tag; all get all. Also the barrier. All ranks must make their gathers in the same order:
 * another tag is EN_EMISMATCH for all. *blobs_out is the caller's, freed with eni_blobs_fini; NULL drops
 * them. EN_EINTR as for claims. */
en_status eni_member_gather(eni_member *member, const char *tag, const void *blob, size_t bytes,
                            eni_blobs *blobs_out, int64_t deadline_ns);

/* ---- progress of this rank ---- */

/* For the next heartbeat and for the failure record. `phase` must be a literal ("forward", "checkpoint"). A
 * few relaxed stores: call it as often as you like. */
void eni_member_note(eni_member *member, int64_t step, const char *phase);

/* Samples that this rank has seen applied so far, for the leader's progress line. One relaxed store. */
void eni_member_note_samples(eni_member *member, uint64_t samples);

/* Loss and hits of this rank's samples of a step. The leader adds up those of all ranks for rank 0, which
 * gets each complete sum by eni_member_next_score (false: none yet), in order of completion. All ranks report
 * the same steps. For people: it is sent with the next message, within a quarter of a second, and may be lost
 * with a rank or a leader. */
void eni_member_tell_score(eni_member *member, const eni_score *score);
bool eni_member_next_score(eni_member *member, eni_score *score_out);

/* The compute thread is about to wait for others: in operation `number` (1, 2, .. within the step, counted
 * alike by all ranks) of kind `what` (a literal: "all-reduce", "push-pull"; gathers and claims note it
 * themselves) on `bytes` bytes whose first tensor is `name` (valid until close). Relaxed stores. A wait of
 * over 5 s is explained once, and again every 30 s, by the member's thread:
 *     step 412 all-reduce #3 (fc2.weight, 4.0 MB): 3 of 4 ranks; waiting 5.0 s for rank 3 (host b, pid 4121):
 *     alive, in forward
 * When all living ranks wait in different operations, and nothing moves for the peer timeout (5 s at least),
 * the run ends with a sentence that names each rank's operation: an exchange was skipped. */
void eni_member_wait_begin(eni_member *member, const char *what, const char *name, uint64_t bytes,
                           uint32_t number);
void eni_member_wait_end(eni_member *member);
/* The note that those two write, for frequent waits: eni_wait_note_begin and _end do the same, except for a
 * wait that _device began. */
eni_wait_note *eni_member_wait_note(eni_member *member);
/* The same for a device, which keeps working while its process waits, however long: the wait is explained,
 * but never taken for a deadlock. */
void eni_member_wait_device(eni_member *member, const char *what, const char *name, uint64_t bytes,
                            uint32_t number);

/* ---- early end ---- */

/* Asks the leader to end the run early and in good order; `why` ("Ctrl-C", "entrain stop") is sent to all. A
 * rank that joined the running run asks to leave it instead, and the run goes on. Returns at once. Claims are
 * answered EN_ESTOP from then on, and eni_member_enter ends all ranks of a synchronous run before the same
 * step. Then results, checkpoint and BYE follow as at the end of a budget. */
void eni_member_stop(eni_member *member, const char *why);

/* A rank of a synchronous run calls this before every step (not in a run that claims: there the claims end).
 * EN_OK: take the step. EN_ESTOP: the run ends before it, on every rank before the same one. Two atomic
 * accesses; blocks, for a round trip, only while the leader is choosing that step. EN_EINTR, EN_EPEER and
 * others as for claims. */
en_status eni_member_enter(eni_member *member, uint64_t step);

/* Requests a checkpoint of the run, which goes on. Returns at once; requests of several ranks within a second
 * count as one. */
void eni_member_save(eni_member *member);

/* Whether all ranks save before this step, which eni_member_enter has allowed. In a run that claims: whether
 * a checkpoint was requested since the last call. */
bool eni_member_saves(eni_member *member, uint64_t step, bool is_claiming);

/* The step before which all ranks end; ENI_STEP_NEVER: no early end, or not chosen yet. */
uint64_t eni_member_stop_step(const eni_member *member);

/* ---- who is still there ---- */

/* EN_OK while the run goes on; EN_EPEER after a death or an abort; EN_EMISMATCH, EN_EPROTO. One atomic load. */
en_status eni_member_status(const eni_member *member);

/* An eventfd, readable forever from the moment the status is no longer EN_OK or abort_fd is readable (and its
 * grace is over). Borrowed: poll it with your own sockets; never read or close it. */
int eni_member_fd(const eni_member *member);

/* For a caller that lost a peer on another socket and waits for its name: blocks until the status is no
 * longer EN_OK and returns it; EN_EINTR when abort_fd is readable instead; EN_ETIMEOUT (not logged) at the
 * deadline. While psd is away the status stays EN_OK. */
en_status eni_member_verdict(eni_member *member, int64_t deadline_ns);

/* The present state; the reason, already logged once by this member, while the status is not EN_OK. */
eni_run_outcome eni_member_outcome(eni_member *member);

/* --on-worker-loss=continue: whether this rank was lost while the run went on (logged once as a warning); if
 * so, *death_out, unless NULL, has its death. */
bool eni_member_has_left(eni_member *member, int32_t rank, eni_death *death_out);

/* ---- ranks that come and go (leader_config.nplaces) ---- */

/* The events of other ranks that this member knows, in order of arrival: joined since it did, lost, left on
 * request. */
typedef enum eni_presence_kind { ENI_CAME, ENI_LOST, ENI_WENT } eni_presence_kind;
typedef struct eni_presence_event {
    eni_presence_kind kind;
    int32_t rank;
    int64_t at_ns; /* monotonic clock of this host */
} eni_presence_event;
/* Number `i`; false if there are fewer. */
bool eni_member_presence(eni_member *member, size_t i, eni_presence_event *presence_out);

/* How long the run had trained when this rank joined it; -1: it was there from the beginning. */
int64_t eni_member_came_after(const eni_member *member);

/* Whether this rank was asked to leave: its claims have ended, the run goes on. It takes part in no further
 * gather, and sends BYE. */
bool eni_member_is_leaving(const eni_member *member);

/* ---- rejoin: psd comes back ----
 *
 * When server_timeout_ns > 0 and the connection to psd breaks, the member logs it once, tries the same
 * address again and again, and joins anew with its rank, incarnation, claims and gathers. Open claims and
 * gathers stay open and are sent again. If psd is not back in time, the status becomes EN_EPEER and names it.
 * A restarted psd is another generation: other shards, another epoch. So is a server k >= 1 that came back
 * while psd 0 stayed: other shards under the same epoch. */

/* 0 for the first incarnation, then one more each time. One atomic load. */
uint64_t eni_member_generation(const eni_member *member);

/* The present leader and its epoch. Valid until close, also after the next generation. */
const eni_peer *eni_member_leader(eni_member *member, uint32_t *epoch_out);

/* When psd went away (monotonic clock); 0: it is there. One atomic load. */
int64_t eni_member_away_since(const eni_member *member);

/* ---- the end ---- */

/* Ends the run for everyone: the leader sends this rank's name and `reason` to all. Returns when it is sent,
 * at most 1 s later. Close afterwards. */
void eni_member_abort(eni_member *member, const char *reason);

/* Leaves in good order: from now on this rank's end and the others' deaths do not affect each other. Blocks
 * until the leader has confirmed it and every rank has all blobs of the gathers that this one took part in.
 * EN_EPEER if the run broke before; EN_EINTR when abort_fd is readable. */
en_status eni_member_bye(eni_member *member, int64_t deadline_ns);

/* Servers only: blocks until all ranks have sent BYE. EN_OK then; EN_EPEER and others if the run broke (see
 * reason); EN_EINTR when abort_fd is readable; EN_ETIMEOUT (not logged) at the deadline. */
en_status eni_member_await_end(eni_member *member, int64_t deadline_ns);

/* Joins the thread and frees. Without a bye the others see this as a death. NULL is fine. */
void eni_member_close(eni_member *member);

#endif
