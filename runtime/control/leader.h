/* leader.h - the process that all others connect to: it admits ranks, hands out the budget, explains waits,
 * and announces deaths to the survivors.
 *
 * One thread serves all connections with poll(2). Calls are for any thread. A member is lost, even before
 * WELCOME, when its connection closes before its BYE, when its process ends (same host), or when it is silent
 * for peer_timeout_ns; the leader sends DEAD {rank, pid, host, step, phase, cause} to all survivors before it
 * closes any connection, so that all name the same first failed rank. A process logs a death once: a leader
 * inside rank 0 leaves that to its own member once that has joined. */
#ifndef CONTROL_LEADER_H
#define CONTROL_LEADER_H

#include <stdbool.h>

#include "runtime/control/control.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

typedef struct eni_leader eni_leader;

/* on_world's decisions before any rank is admitted. The pointers must stay valid until eni_leader_stop. */
typedef struct eni_terms {
    uint64_t budget;                  /* micro-batches that claims hand out: 0 .. budget-1, then EN_ESTOP */
    const eni_key_value *member_data; /* the leader's member data for all: shard endpoints, .. */
    size_t nmember_data;
    /* --on-worker-loss=continue: a rank's death after its first step is sent as LEFT, and the run goes on
     * while another rank lives; but the death of rank 0, which keeps the curve and the result, ends it. */
    bool goes_on;
    char reason[ENI_REASON_MAX]; /* the reason when on_world fails: every rank logs it */
} eni_terms;

/* ---- the journal of a leader that may be killed; its next incarnation starts from it ---- */

typedef enum eni_entry_kind {
    ENI_ENTRY_CLAIM = 1, /* rank's claim `number` was answered `value` (UINT64_MAX: used up) */
    ENI_ENTRY_LEFT = 2,  /* rank was lost and the run goes on */
    ENI_ENTRY_BYE = 3,   /* rank left in good order */
    ENI_ENTRY_STOP = 4,  /* the run ends before step `value` */
    ENI_ENTRY_CAME = 5,  /* process `value`, started at `number` (0: on another host), joined as rank */
    ENI_ENTRY_LEAVE = 6, /* rank was asked to leave: when it leaves in good order, the run goes on */
    ENI_ENTRY_TRAIN = 7  /* at `value` on the monotonic clock all had begun to train; in runs with seats */
} eni_entry_kind;

typedef struct eni_entry {
    uint32_t kind;
    int32_t rank;
    uint64_t number, value;
} eni_entry;

typedef struct eni_revived_rank {
    uint64_t claim_number, claim_index; /* of the last answered claim; 0: none. UINT64_MAX: used up */
    bool has_left, is_leaving, has_said_bye;
    int64_t came; /* the pid of one that joined the running run; 0: it did not */
    uint64_t born;
} eni_revived_rank;

/* The previous incarnation. All of it is borrowed and stays valid until eni_leader_stop. */
typedef struct eni_revived {
    const eni_key_value *key_values; /* rank 0's, as on_world got them */
    size_t nkey_values;
    const eni_peer *peers;  /* (nranks), as on_world got them; member data too */
    eni_revived_rank *rank; /* (nranks) */
    uint32_t epoch;         /* of the previous incarnation; this one is one more */
    uint64_t incarnation;
    uint64_t claimed;    /* the next index to hand out */
    uint64_t stop_step;  /* ENI_STEP_NEVER: not chosen */
    int64_t training_ns; /* 0: not all ranks had begun to train */
} eni_revived;

typedef struct eni_leader_config {
    eni_address listen; /* port 0: the kernel chooses */
    int listen_fd;      /* an inherited listening socket, taken over on success; -1: listen on `listen` */
    bool is_insecure;   /* may listen beyond loopback */
    int32_t nranks;     /* 1 .. ENI_RANKS_MAX: all that may ever join */
    int32_t nfirst;     /* the run begins when ranks 0 .. nfirst-1 are there; 0: all */
    /* > 0: seats: how many may live at one time; a newcomer gets the next rank, and no rank is given twice.
     * 0: no newcomers */
    int32_t nplaces;
    int32_t nservers; /* 0, 1: no other servers; S: servers 1 .. S-1 must join too */
    int32_t rank;     /* -1: psd 0; 0: a thread inside rank 0. How members name the leader's death */
    const char *host, *host_id; /* borrowed during start */
    eni_token token;
    int64_t join_ns;         /* all ranks must be there this long after start */
    int64_t peer_timeout_ns; /* 0: 5 s */
    uint64_t budget;         /* terms.budget before on_world: enough where on_world is NULL */

    /* > 0: how long a broken server k >= 1 is waited for (each worker sees a new generation when it is back),
     * and how long a revived leader waits for rejoins. 0: the server's death ends the run, and a revived
     * leader waits join_ns */
    int64_t server_timeout_ns;
    int64_t deadlock_ns; /* 0: the peer timeout, at least 5 s; see eni_member_wait_begin */
    /* NULL: a first incarnation. Else only rejoins are accepted, each at once (after all other servers);
     * on_world is called at the start, with epoch + 1. */
    const eni_revived *revived;

    /* For `entrain ps`: the folder of its files (runs.h; borrowed during start; NULL: none), and, copied,
     * attributes that the leader does not know: "strategy", "out", "launcher" (pid), "model", .. It adds
     * "leader": tcp://.. */
    const char *status_folder;
    const eni_key_value *attributes;
    size_t nattributes;

    eni_worker_range elastic; /* how many workers may be requested (ask.h); max 0: their number is fixed */

    /* All callbacks run on the leader's thread, with no lock held; NULL if absent. */

    /* All ranks are there and agree; none is admitted yet. `world` is valid until stop. Fill *terms; anything
     * but EN_OK refuses all with terms->reason. May take a second, not ten: meanwhile no death is noticed.
     * With several servers the others' READY member data are appended to terms->member_data afterwards. */
    en_status (*on_world)(void *user, const eni_world_info *world, eni_terms *terms);
    /* All ranks have sent their blob; the leader may add its own. blobs[0 .. nranks-1] are the ranks' (empty
     * for a lost one); in gather "result", blobs[nranks ..] are those of servers 1, 2, ..; `count` is the
     * number of all. `own_out` is copied at once. May be called again for the same gather in another
     * incarnation. */
    void (*on_gather)(void *user, const char *tag, const eni_blob *blobs, size_t count, eni_blob *own_out);
    /* goes_on: this rank will not push any more. Called before LEFT is sent to the others. */
    void (*on_left)(void *user, int32_t rank);
    /* elastic: the run has begun to end early, so that it can go on with this many workers. */
    void (*on_resize)(void *user, int32_t workers, const char *why);
    /* Called before the answer is sent: EN_OK means that the entry is stored safely. Anything else ends the
     * run. */
    en_status (*journal)(void *user, const eni_entry *entry);
    void *user;
} eni_leader_config;

/* Listens and starts the thread. */
en_status eni_leader_start(const eni_leader_config *config, eni_leader **leader_out);

/* Where members connect: host as configured, real port. Valid until stop. */
const eni_address *eni_leader_address(const eni_leader *leader);

/* Waits until the run is over: EN_OK all ranks said BYE; EN_EPEER a death or an ABORT, see reason;
 * EN_ETIMEOUT not all ranks came in time; EN_EMISMATCH they disagree or wait for each other; what on_world
 * returned; or, with the leader still running, EN_EINTR when interrupt_fd (-1: none) becomes readable and
 * EN_ETIMEOUT at the deadline (tell them apart by eni_leader_is_over). Any number of times. */
en_status eni_leader_wait(eni_leader *leader, int64_t deadline_ns, int interrupt_fd);

bool eni_leader_is_over(const eni_leader *leader);

/* The present state; the reason once the run has ended. */
eni_run_outcome eni_leader_outcome(eni_leader *leader);

/* Samples computed, over all ranks, as last reported. Cheap. */
uint64_t eni_leader_samples(const eni_leader *leader);

/* The early end in good order of member.h, requested by the leader's process, to which `entrain stop` sends a
 * SIGTERM. Before all ranks have joined it ends the run at once. Returns at once. */
void eni_leader_stop_run(eni_leader *leader, const char *why);

/* Ends the run: every member gets EN_EPEER and `reason`. Returns at once; wait or stop afterwards. */
void eni_leader_abort(eni_leader *leader, const char *reason);

/* Joins the thread and frees. A run that has not ended is aborted first. NULL is fine. */
void eni_leader_stop(eni_leader *leader);

#endif
