/* processes.h - one function in n processes of this host, which share memory and divide the samples of a set
 * (eval.c).
 *
 * They are forked, so they have all that the caller has read without a copy; they die with the caller. The
 * caller must not have a thread that may hold a lock which they take. */
#ifndef CLI_PROCESSES_H
#define CLI_PROCESSES_H

#include <stddef.h>

#include "entrain/status.h"

enum { ENI_PROCESSES_MAX = 64 };

typedef struct eni_process {
    int n, rank;
    void *shared; /* zeroed at the start; all processes and the caller see it */
    void *user;
} eni_process;

typedef struct eni_processes {
    const char *who; /* the subsystem in messages */
    int n;           /* 1 .. ENI_PROCESSES_MAX */
    size_t shared_bytes;
    /* its exit code: 0: success; 2: wrong use, for a reason that it has logged */
    int (*main)(const eni_process *self);
    void *user;
    int signal_fd; /* SIGINT and SIGTERM, which end all processes; -1: none */
} eni_processes;

/* Blocks until all have ended. The first failure, or a signal, ends the others. Identical messages are
 * printed once. EN_EINVAL (one ended with 2), EN_EPEER (one ended with another code, or died: logged),
 * EN_EINTR (the signal stays in signal_fd), EN_ENOMEM. *shared_out is set only with EN_OK, and released by
 * eni_processes_release (NULL is fine). */
en_status eni_processes_run(const eni_processes *processes, void **shared_out);
void eni_processes_release(void *shared, size_t shared_bytes);

#endif
