/* hook.h - which hook of a plugin each thread is in, and one sentence when a hook ends the process or does
 * not return.
 *
 *     submit of mine (rank 1, step 3, bucket 2) crashed: Segmentation fault (SIGSEGV)
 *     submit of mine (rank 1, step 3, bucket 2) called exit(0)
 *     on_push of mine (shard 0, bucket 2, version 7, rank 1) has not returned for 30 s (--hook-timeout)
 *
 * Whoever calls a hook says so before and after: enter, leave. While the hook waits for others in a call of
 * the host it is left, for that time is not its own.
 *
 * A guard is a process's. It names crashes (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT; on a stack of their own,
 * so that an overflow is one of them), exit, _exit and _Exit of the threads that are in a hook. What a thread
 * of the plugin's own does, a system call made by hand, and SIGKILL it does not see. */
#ifndef CORE_HOOK_H
#define CORE_HOOK_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

/* Where a plugin is. All texts are literals, or live as long as the plugin. */
enum { ENI_HOOK_NUMBERS = 4 };
typedef struct eni_hook_place {
    const char *hook, *plugin; /* "submit", "ssp" */
    struct {
        const char *what; /* "rank", "step", "bucket", ..; NULL: no more */
        int64_t value;
    } number[ENI_HOOK_NUMBERS];
} eni_hook_place;

/* "submit of ssp (rank 1, step 3, bucket 2)". */
void eni_hook_place_text(const eni_hook_place *place, char *text_out, size_t bytes);

typedef struct eni_hook_guard eni_hook_guard;

typedef struct eni_hook_guard_config {
    int64_t timeout_ns; /* of a hook; 0: none. Time in which the whole process was stopped does not count */
    /* The process ends right after it. `sentence` as above; on the thread of the hook, in a signal handler or
     * an exit handler, or for a timeout on the guard's. May format and write, must not wait. */
    void (*tell)(void *user, const char *sentence);
    void *user;
} eni_hook_guard_config;

/* From now on an exit before eni_hook_guard_end is told too, wherever it is called ("a plugin called
 * exit(0)"), and ends with its code, or with 1 in place of 0; a hook that runs for 5 s is logged, one that
 * runs for timeout_ns ends the process with 1. Main thread, one guard at a time. NULL: no memory, threads or
 * handlers (logged), and nothing is watched. */
eni_hook_guard *eni_hook_guard_begin(const eni_hook_guard_config *config);

/* The program has done what it was started for. No thread is in a hook. NULL is fine. */
void eni_hook_guard_end(eni_hook_guard *guard);

/* This thread calls a hook; it has returned. The place is copied. The first call of a thread gives it the
 * stack for its signal handlers; where there is no memory for it the hook is not watched. A NULL guard is
 * fine, and costs nothing. */
void eni_hook_enter(eni_hook_guard *guard, const eni_hook_place *place);
void eni_hook_leave(eni_hook_guard *guard);

/* Before a thread that has called hooks ends while the guard lives. */
void eni_hook_thread_end(eni_hook_guard *guard);

#endif
