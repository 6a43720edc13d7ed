/* processes.h - one function in n processes of this host, which share memory: to measure what n ranks do at
 * once (microbenchmark.h), or to share the samples of a set (eval.c).
 *
 * They are forked, so all that the caller has read is theirs without a copy; they die with the caller. The caller
 * has no thread that may hold a lock which they take. */
#ifndef CLI_PROCESSES_H
#define CLI_PROCESSES_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

enum { ENI_PROCESSES_MAX = 64 };

typedef struct eni_process {
    int n, rank;
    void *shared; /* zeroed at the start; all of them and the caller see it */
    void *user;
} eni_process;

typedef struct eni_processes {
    const char *who; /* the subsystem in messages */
    int n;           /* 1 .. ENI_PROCESSES_MAX */
    size_t shared_bytes;
    int (*main)(const eni_process *self); /* its exit code: 0 is success, 2 wrong use, and it has said why */
    void *user;
    int64_t deadline_ns; /* INT64_MAX: none */
    int signal_fd;       /* SIGINT and SIGTERM, which end all of them; -1: none */
} eni_processes;

/* Blocks until all have ended; the first that fails, the deadline and a signal end the others. What they say is
 * said once. EN_EINVAL (one ended with 2), EN_EPEER (one ended with another code, or died: logged), EN_ETIMEOUT,
 * EN_EINTR (the signal stays in signal_fd), EN_ENOMEM. *shared_out is set with EN_OK only, and released by
 * eni_processes_release (NULL is fine). */
en_status eni_processes_run(const eni_processes *processes, void **shared_out);
void eni_processes_release(void *shared, size_t shared_bytes);

/* Waits until all n processes have come here as often as this one. 0, or 1 when one of them is dead. */
int eni_processes_meet(const eni_process *self, int *times);

/* EN_OK while all of them live: eni_alive's status, with their shared memory. */
en_status eni_processes_alive(void *shared);

#endif
