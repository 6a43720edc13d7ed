/* leader.h - the one process that everybody knows: it lets ranks in, hands out the budget, and tells the
 * survivors who died.
 *
 * One thread serves all connections with poll(2). Calls are for any thread. A member whose connection closes
 * before its BYE, or that is silent for peer_timeout_ns, is dead; the leader sends DEAD {rank, pid, host,
 * step, phase, cause} to all survivors before it closes any connection, so that all name the same first
 * victim. */
#ifndef NET_LEADER_H
#define NET_LEADER_H

#include <stdbool.h>

#include "runtime/net/control.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

typedef struct eni_leader eni_leader;

/* What on_world decides before anyone is let in. The pointers must stay valid until eni_leader_stop. */
typedef struct eni_terms {
    uint64_t budget;          /* micro-batches that claims hand out: 0 .. budget-1, then EN_ESTOP */
    const eni_pair *privates; /* the leader's word to all: lane endpoints, .. */
    size_t nprivates;
    char reason[ENI_REASON_MAX]; /* why not, when on_world fails: every rank logs it */
} eni_terms;

typedef struct eni_leader_config {
    eni_address listen; /* port 0: the kernel chooses */
    int listen_fd;      /* an inherited listening socket, taken over on success; -1: listen on `listen` */
    bool is_insecure;   /* may listen beyond loopback */
    int32_t nranks;     /* 1 .. ENI_RANKS_MAX */
    int32_t rank;       /* -1: psd; 0: a thread inside rank 0. How members name the leader's death */
    const char *host, *host_id; /* borrowed during start */
    eni_token token;
    uint32_t epoch;
    int64_t join_ns;         /* all ranks must be there this long after start */
    int64_t peer_timeout_ns; /* 0: 5 s */
    uint64_t budget;         /* terms.budget before on_world: enough where on_world is NULL */

    /* All callbacks run on the leader's thread, with no lock held; NULL: none. */

    /* All ranks are there and agree; none has been let in. `world` is valid until stop. Fill *terms; anything
     * but EN_OK refuses everybody with terms->reason. May take a second, not ten: nobody's death is noticed
     * meanwhile. */
    en_status (*on_world)(void *user, const eni_world_info *world, eni_terms *terms);
    /* All ranks have sent their blob: the leader may add its own. `own_out` is copied at once. */
    void (*on_gather)(void *user, const char *tag, const eni_blob *blobs, size_t count, eni_blob *own_out);
    void *user;
} eni_leader_config;

/* Listens and starts the thread. */
en_status eni_leader_start(const eni_leader_config *config, eni_leader **leader_out);

/* Where members connect: host as configured, real port. Valid until stop. */
const eni_address *eni_leader_address(const eni_leader *leader);

/* Waits until the run is over: EN_OK all ranks said BYE; EN_EPEER a death or an ABORT, see reason;
 * EN_ETIMEOUT not all ranks came in time; EN_EMISMATCH they disagree; what on_world returned; or, with the
 * leader still running, EN_EINTR when interrupt_fd (-1: none) becomes readable and EN_ETIMEOUT at the
 * deadline (tell them apart by eni_leader_is_over). Any number of times. */
en_status eni_leader_wait(eni_leader *leader, int64_t deadline_ns, int interrupt_fd);

bool eni_leader_is_over(const eni_leader *leader);

/* An eventfd, readable once the run is over. Borrowed: never read or closed. */
int eni_leader_fd(const eni_leader *leader);

/* How it ended, as one sentence; "" while it has not ended or when all said BYE. Copied. */
void eni_leader_reason(eni_leader *leader, char reason_out[ENI_REASON_MAX]);

/* EN_OK and the first victim, or EN_ENOENT. */
en_status eni_leader_death(eni_leader *leader, eni_death *death_out);

/* Micro-batches handed out so far; samples applied as last noted, over all ranks. Cheap. */
uint64_t eni_leader_claimed(const eni_leader *leader);
uint64_t eni_leader_samples(const eni_leader *leader);

/* Ends the run: every member hears `reason` and gets EN_EPEER. Returns at once; wait or stop afterwards. */
void eni_leader_abort(eni_leader *leader, const char *reason);

/* Joins the thread and frees. A run that still goes on is aborted first. NULL is fine. */
void eni_leader_stop(eni_leader *leader);

#endif
