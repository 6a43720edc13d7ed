/* shutdown.h - how a rank is ended from outside: by a signal, by `entrain stop`, by the death of another process.
 *
 * - asked: the user wants the run to end. It ends before one of the next steps, on all ranks alike, and the
 * rest (results, checkpoint, goodbye) follows as at the end of a budget.
 * - over: 0.5 s later (a minute, if the request waits for the checkpoint: control/ask.h), or at once while the
 * ranks have not met, every wait ends with EN_EINTR, and rank 0 writes what it knows.
 * - last: if the compute thread has not reacted 0.6 s after the request, or 1.5 s after a death, it is inside a long
 * kernel. The process ends without it.
 *
 * SIGUSR1 and SIGUSR2 ask for a checkpoint (eni_member_save), and the run goes on.
 *
 * One thread watches; it also reports to the launcher at once that a rank died, or gave up. */
#ifndef RANK_SHUTDOWN_H
#define RANK_SHUTDOWN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/control/member.h"

typedef struct eni_shutdown eni_shutdown;

typedef struct eni_shutdown_config {
    int signal_fd;     /* SIGINT and SIGTERM, from here on this thread's to read; -1: none */
    int report_fd;     /* to the launcher; -1: none */
    atomic_int *ended; /* NULL, or set to EN_EINTR once it is over */
    /* The last resort, on the watching thread; must not return: ends the process with `code`. NULL: the process is not ours
     * to end, nor to hurry: there is no last resort, and all requests wait for the steps of the program. */
    void (*leave_at_once)(void *user, int code);
    void *user;
} eni_shutdown_config;

en_status eni_shutdown_start(const eni_shutdown_config *config, eni_shutdown **shutdown_out);

/* The member has joined: it passes on signals as requests from now on. NULL: it is about to be closed. */
void eni_shutdown_watch(eni_shutdown *shutdown, eni_member *member);

/* It is over, now. Any thread. */
void eni_shutdown_now(eni_shutdown *shutdown);

/* Readable once it is over, and stays so. Borrowed: poll it only. */
int eni_shutdown_fd(const eni_shutdown *shutdown);

/* EN_EINTR once it is over. One atomic load; any thread. */
en_status eni_shutdown_status(const eni_shutdown *shutdown);

/* Whether the user wants the run to end, here or anywhere. Any thread. */
bool eni_shutdown_is_asked(eni_shutdown *shutdown);

/* SIGINT or SIGTERM: the first one sent here; SIGTERM for a request from elsewhere. */
int eni_shutdown_signal(const eni_shutdown *shutdown);

/* The compute thread has reacted and is leaving: the last resort is no longer needed. If that has already
 * begun, this call does not return: the process ends while everything that the last resort reads is still valid. */
void eni_shutdown_heard(eni_shutdown *shutdown);

/* Joins the thread and frees; NULL is fine. */
void eni_shutdown_stop(eni_shutdown *shutdown);

#endif
