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
 * so that an overflow is one of them), exit, quick_exit, _exit and _Exit of the threads that are in a hook. What
 * a thread of the plugin's own does, a system call made by hand, and SIGKILL it does not see. */
#ifndef PLUGIN_HOOK_H
#define PLUGIN_HOOK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a plugin is. All texts are literals, or live as long as the plugin. */
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

/* A file is mapped, and not any more. Who cuts it meanwhile ends whoever reads there by SIGBUS, and the guard then says
 * "FOLDER/train.bin was cut, or cannot be read, while it was mapped (SIGBUS)", in a hook or not. Any thread, no waiting; the
 * path is copied. Of more than 16 files the others are not named. */
void eni_hook_mapped(const void *base, size_t bytes, const char *path);
void eni_hook_unmapped(const void *base);

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

/* The guard of this process; NULL: none. */
eni_hook_guard *eni_hook_guard_now(void);

/* The program has done what it was started for. No thread is in a hook. NULL is fine. */
void eni_hook_guard_end(eni_hook_guard *guard);

/* What one thread is in: written by it, read by its signal handlers and by the guard's thread. `turns` is odd
 * while it is in a hook; a place belongs to it if the turn is the same before and after. */
typedef struct eni_hook_note {
    eni_hook_guard *guard;
    atomic_uint_fast64_t turns;
    _Atomic(const char *) hook, plugin, what[ENI_HOOK_NUMBERS]; /* plugin NULL: named has its name */
    atomic_int_fast64_t value[ENI_HOOK_NUMBERS];
    atomic_uint_fast64_t named[ENI_HOOK_NAME / sizeof(uint64_t)];
} eni_hook_note;

/* This thread's; NULL until it calls its first hook. A signal handler gets no argument and may not search:
 * that is why this is thread-local, and nothing else in the tree is. */
extern _Thread_local eni_hook_note *eni_hook_own;

/* Gives this thread its note, and the stack for its signal handlers; else its first hook does. False: there is no
 * memory for them (or no guard), and its hooks are not watched. */
bool eni_hook_thread_begin(eni_hook_guard *guard);
/* Before a thread that has called hooks ends while the guard lives. NULL is fine. */
void eni_hook_thread_end(eni_hook_guard *guard);

/* This thread calls a hook; it has returned. The place is copied. A NULL guard is fine, and costs nothing. */
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

/* For functions of a plugin that are called outside of a run, "build of mine": with the process's guard. `plugin` is
 * copied, the last 191 bytes of it. */
void eni_hook_enter_named(const char *hook, const char *plugin);

static inline void eni_hook_leave(eni_hook_guard *guard)
{
    if (guard == NULL || eni_hook_own == NULL) return;
    const uint_fast64_t turn = atomic_load_explicit(&eni_hook_own->turns, memory_order_relaxed);
    atomic_store_explicit(&eni_hook_own->turns, turn + turn % 2, memory_order_release);
    atomic_thread_fence(memory_order_release); /* the next place is not seen before it */
}

static inline void eni_hook_leave_named(void)
{
    eni_hook_leave(eni_hook_guard_now());
}

#endif
