/* hook.h - tracks which plugin hook each thread is in, and reports one sentence if a hook ends the process or does not
 * return.
 *
 *     submit of mine (rank 1, step 3, bucket 2) crashed: Segmentation fault (SIGSEGV)
 *     submit of mine (rank 1, step 3, bucket 2) called exit(0)
 *     on_push of mine (shard 0, bucket 2, version 7, rank 1) has not returned for 30 s (--hook-timeout)
 *
 * Callers of a hook call enter before it and leave after it. While the hook waits for others in a host call, it is
 * left, since that time is not its own.
 *
 * A process has one guard. It reports crashes (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT; on a separate stack, so that
 * overflows are caught), exit, quick_exit, _exit and _Exit of threads that are in a hook. It does not see the plugin's
 * own threads, direct system calls, and SIGKILL. */
#ifndef PLUGIN_HOOK_H
#define PLUGIN_HOOK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A site in a plugin. All texts are literals, or live as long as the plugin. */
enum { ENI_HOOK_NUMBERS = 4, ENI_HOOK_NAME = 192 };
typedef struct eni_hook_site {
    const char *hook, *plugin; /* "submit", "ssp" */
    struct {
        const char *what; /* "rank", "step", "bucket", ..; NULL: no more */
        int64_t value;
    } number[ENI_HOOK_NUMBERS];
} eni_hook_site;

/* "submit of ssp (rank 1, step 3, bucket 2)". */
void eni_hook_site_text(const eni_hook_site *place, char *text_out, size_t bytes);

/* Tracks a mapped file until it is unmapped. If it is truncated meanwhile, readers get SIGBUS, and the guard reports
 * "FOLDER/train.bin was truncated, or could not be read, while it was mapped (SIGBUS)", in a hook or not. Any thread, does
 * not wait; copies the path. Tracks 16 files at most. */
void eni_hook_mapped(const void *base, size_t bytes, const char *path);
void eni_hook_unmapped(const void *base);

typedef struct eni_hook_guard eni_hook_guard;

typedef struct eni_hook_guard_config {
    int64_t timeout_ns; /* of a hook; 0: none. Excludes time in which the whole process was stopped */
    /* Called right before the process ends. `sentence` as above; on the hook's thread, in a signal handler or an
     * exit handler, or for a timeout on the guard's. May format and write, must not wait. */
    void (*tell)(void *user, const char *sentence);
    void *user;
} eni_hook_guard_config;

/* From now on every exit before eni_hook_guard_end is reported, wherever it is called ("a plugin called exit(0)"), and
 * keeps its code, except that 0 becomes 1; a hook that runs for 5 s is logged, and one that runs for timeout_ns ends the
 * process with 1. Main thread, one guard at a time. NULL: no memory, threads or handlers (logged), and nothing is
 * watched. */
eni_hook_guard *eni_hook_guard_begin(const eni_hook_guard_config *config);

/* The guard of this process, or NULL. */
eni_hook_guard *eni_hook_guard_now(void);

/* Ends the guard once the program is done and no thread is in a hook. NULL is fine. */
void eni_hook_guard_end(eni_hook_guard *guard);

/* A thread's current site: written by the thread, read by its signal handlers and by the guard's thread. `turns` is odd
 * while it is in a hook; a site read between two equal values of `turns` is consistent. */
typedef struct eni_hook_note {
    eni_hook_guard *guard;
    atomic_uint_fast64_t turns;
    _Atomic(const char *) hook, plugin, what[ENI_HOOK_NUMBERS]; /* plugin NULL: see `named` */
    atomic_int_fast64_t value[ENI_HOOK_NUMBERS];
    atomic_uint_fast64_t named[ENI_HOOK_NAME / sizeof(uint64_t)];
} eni_hook_note;

/* This thread's note; NULL until it calls its first hook. Thread-local because a signal handler gets no argument and may
 * not search; the only thread-local of the tree. */
extern _Thread_local eni_hook_note *eni_hook_own;

/* Gives this thread its note and its signal stack; otherwise its first hook does. False: out of memory (or no guard), and
 * its hooks are not watched. */
bool eni_hook_thread_begin(eni_hook_guard *guard);
/* Call it before a thread that has called hooks ends, while the guard lives. NULL is fine. */
void eni_hook_thread_end(eni_hook_guard *guard);

/* Around each hook of this thread. The site is copied. A NULL guard is fine, and costs nothing. */
static inline void eni_hook_enter(eni_hook_guard *guard, const eni_hook_site *place)
{
    if (guard == NULL || (eni_hook_own == NULL && !eni_hook_thread_begin(guard))) return;
    eni_hook_note *n = eni_hook_own;
    atomic_store_explicit(&n->hook, place->hook, memory_order_relaxed);
    atomic_store_explicit(&n->plugin, place->plugin, memory_order_relaxed);
    for (int i = 0; i < ENI_HOOK_NUMBERS; i++) {
        atomic_store_explicit(&n->what[i], place->number[i].what, memory_order_relaxed);
        atomic_store_explicit(&n->value[i], place->number[i].value, memory_order_relaxed);
    }
    const uint_fast64_t turn = atomic_load_explicit(&n->turns, memory_order_relaxed);
    atomic_store_explicit(&n->turns, turn + 1 + turn % 2, memory_order_release);
}

/* For plugin functions called outside of a run, "build of mine": with the process's guard. Copies the last 191 bytes of
 * `plugin`. */
void eni_hook_enter_named(const char *hook, const char *plugin);

static inline void eni_hook_leave(eni_hook_guard *guard)
{
    if (guard == NULL || eni_hook_own == NULL) return;
    const uint_fast64_t turn = atomic_load_explicit(&eni_hook_own->turns, memory_order_relaxed);
    atomic_store_explicit(&eni_hook_own->turns, turn + turn % 2, memory_order_release);
    atomic_thread_fence(memory_order_release); /* the next site is not seen before it */
}

static inline void eni_hook_leave_named(void)
{
    eni_hook_leave(eni_hook_guard_now());
}

#endif
