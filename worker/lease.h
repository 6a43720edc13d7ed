/* lease.h - a queue for a GPU that several runs want for themselves (--gpu-lease): who came first has it until
 * he ends, however he ends.
 *
 *     DIR/entrain-UUID.lease   | next | ticket 1 | ticket 2 | ticket 3 |
 *                                       locked by  locked by  locked by
 *                                       the holder the next   the one after
 *
 * A file of 16-byte tickets. Whoever comes appends one and locks its bytes (fcntl); it is his turn when nobody
 * locks bytes before his. The kernel unlocks what a dead process had, and says who locks. What the file holds is
 * believed by nobody: only the time of day that a holder wrote is shown.
 *
 * The order is that of arrival, to within the time of appending. Nobody is kept out who does not ask, and every
 * user of the host can lock bytes for ever: it is a queue among people who want one. Containers that do not share
 * DIR have a queue each. One lease per GPU and process; owned by one thread. */
#ifndef WORKER_LEASE_H
#define WORKER_LEASE_H

#include <stdint.h>

#include "entrain/status.h"
#include "runtime/collective/sync.h"

typedef struct eni_lease eni_lease;

/* Who has it. */
typedef struct eni_lease_holder {
    int64_t pid;     /* 0: out of sight, in another container */
    char user[40];   /* "" : not known */
    int64_t since_s; /* since 1970; 0: not known */
    int ahead;       /* who will have it before us, the holder included */
} eni_lease_holder;

/* Before anybody is met, so that all ranks refuse alike: there is such a folder, and a queue can be made there
 * or is there already. EN_EINVAL, logged. */
en_status eni_lease_check(const char *dir);

/* Opens the queue of a GPU in a folder that others may write, too. EN_EDENIED, EN_EINVAL (something else lies
 * there), EN_EIO; logged with path and remedy. */
en_status eni_lease_open(const char *dir, const char *uuid, eni_lease **lease_out);

/* EN_OK: it is ours; EN_ETIMEOUT: not yet, *holder_out is who has it; EN_EIO, logged. */
en_status eni_lease_poll(eni_lease *lease, eni_lease_holder *holder_out);

/* Polls until it is ours, saying at once and from time to time for whom we wait ("waiting for cuda:0 (GPU-5f1c):
 * held by pid 4121 of ann since 14:03; 2 before you"). EN_OK, or what alive says, within a few milliseconds of
 * its fd. `what`: "cuda:0 (GPU-5f1c)". */
en_status eni_lease_wait(eni_lease *lease, const char *what, const eni_alive *alive);

/* Gives it back, or leaves the queue. NULL is fine. */
void eni_lease_close(eni_lease *lease);

#endif
