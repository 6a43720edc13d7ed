/* hook.c - the place of each thread's hook, the handlers that name it, and the thread that looks how long it
 * takes.
 *
 * A signal handler gets no argument and may not search: the thread's own place is thread-local. The watching
 * thread reads places of other threads: `turns` is odd while a thread is in a hook, and a place belongs to it
 * if the turn is the same before and after. */
#include "core/hook.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"

enum {
    STACK_BYTES = 128 << 10, /* of a signal handler: the registers of AVX-512, and what `tell` needs */
    NSIGNALS = 5,
    PLACE_MAX = 220,
    SENTENCE_MAX = 320
};
static const int signals[NSIGNALS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static const int64_t look_ns = 250 * ENI_MILLI, long_ns = 5 * ENI_SECOND;

/* What one thread is in. */
typedef struct note {
    eni_hook_guard *guard;
    struct note *next;
    atomic_uint_fast64_t turns;
    _Atomic(const char *) hook, plugin, what[ENI_HOOK_NUMBERS];
    atomic_int_fast64_t value[ENI_HOOK_NUMBERS];
    stack_t before;     /* the thread's own stack for handlers */
    uint_fast64_t seen; /* the watching thread's: the turn that it has seen */
    int64_t lasts_ns;   /* for how long */
    _Alignas(64) char stack[STACK_BYTES];
} note;

struct eni_hook_guard {
    eni_hook_guard_config config;
    pid_t pid; /* a child that was forked has our handlers too, and they are not its own */
    atomic_int is_over, has_told;
    struct sigaction before[NSIGNALS];
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t ended;
    note *notes;
};

/* The only thread-local of the tree: see the head. */
static _Thread_local note *own;

/* ---- places ---- */

void eni_hook_place_text(const eni_hook_place *place, char *text, size_t bytes)
{
    size_t n = (size_t)snprintf(text, bytes, "%s of %s", place->hook, place->plugin);
    for (int i = 0; i < ENI_HOOK_NUMBERS && place->number[i].what != NULL && n < bytes; i++)
        n += (size_t)snprintf(text + n, bytes - n, "%s%s %lld", i == 0 ? " (" : ", ", place->number[i].what,
                              (long long)place->number[i].value);
    if (place->number[0].what != NULL && n < bytes) snprintf(text + n, bytes - n, ")");
}

/* 1: the thread of `n` is in a hook, which `place_out` names, in its turn *turn_out. */
static int read_place(note *n, eni_hook_place *place_out, uint_fast64_t *turn_out)
{
    *turn_out = atomic_load(&n->turns);
    if (*turn_out % 2 == 0) return 0;
    place_out->hook = atomic_load(&n->hook);
    place_out->plugin = atomic_load(&n->plugin);
    for (int i = 0; i < ENI_HOOK_NUMBERS; i++) {
        place_out->number[i].what = atomic_load(&n->what[i]);
        place_out->number[i].value = atomic_load(&n->value[i]);
    }
    return atomic_load(&n->turns) == *turn_out;
}

/* ---- the end of the process ---- */

/* Once: two threads may fail together, and `tell` itself may. */
static void tell(eni_hook_guard *guard, const char *place, const char *what)
{
    char sentence[SENTENCE_MAX];
    if (atomic_exchange(&guard->has_told, 1)) return;
    snprintf(sentence, sizeof sentence, "%s %s", place, what);
    guard->config.tell(guard->config.user, sentence);
}

/* Where this thread is, if it is in a hook of this process. */
static int own_place(char *text_out, size_t bytes)
{
    eni_hook_place place;
    uint_fast64_t turn;
    if (own == NULL || own->guard->pid != getpid() || !read_place(own, &place, &turn)) return 0;
    eni_hook_place_text(&place, text_out, bytes);
    return 1;
}

/* A stack grows into its guard page: the address lies just below the stack's pointer, or just above it. */
static int is_overflow(const siginfo_t *info, const void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr, stack = 0;
#if defined(__x86_64__)
    stack = (uintptr_t)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    stack = (uintptr_t)((const ucontext_t *)context)->uc_mcontext.sp;
#endif
    (void)context;
    return stack != 0 && at + (64 << 10) > stack && at < stack + (64 << 10);
}

/* The signal then comes again, with what it did before us: a core, or a sanitizer's report. snprintf of
 * numbers and short texts neither allocates nor locks. */
static void on_crash(int number, siginfo_t *info, void *context)
{
    char place[PLACE_MAX], what[100];
    const int cause = errno;
    if (info->si_code != SI_USER && own_place(place, sizeof place)) { /* not what `kill` sends */
        const char *name = sigabbrev_np(number), *words = sigdescr_np(number);
        snprintf(what, sizeof what, "crashed: %s (SIG%s)%s", words, name,
                 number == SIGSEGV && is_overflow(info, context) ? ", its stack overflowed" : "");
        tell(own->guard, place, what);
    }
    if (own != NULL) {
        for (int i = 0; i < NSIGNALS; i++)
            if (signals[i] == number) sigaction(number, &own->guard->before[i], NULL);
    } else {
        signal(number, SIG_DFL);
    }
    if (info->si_code <= 0) raise(number); /* it was sent, and nothing will make it come again */
    errno = cause;
}

static void at_exit(int code, void *guard_)
{
    eni_hook_guard *guard = guard_;
    char place[PLACE_MAX], what[40];
    if (atomic_load(&guard->is_over)) {
        eni_free(guard);
        return;
    }
    if (guard->pid != getpid()) return;
    snprintf(what, sizeof what, "called exit(%d)", code);
    tell(guard, own_place(place, sizeof place) ? place : "a plugin", what);
    syscall(SYS_exit_group, code != 0 ? code : 1);
}

/* In place of the C library's, for every plugin: an executable's symbol comes first. */
__attribute__((noreturn, visibility("default"))) void _exit(int code)
{
    char place[PLACE_MAX], what[40];
    if (own_place(place, sizeof place)) {
        snprintf(what, sizeof what, "called _exit(%d)", code);
        tell(own->guard, place, what);
        if (code == 0) code = 1;
    }
    for (;;)
        syscall(SYS_exit_group, code);
}

__attribute__((noreturn, visibility("default"))) void _Exit(int code)
{
    _exit(code);
}

/* ---- how long a hook takes ---- */

static double in_seconds(int64_t ns)
{
    return (double)ns / (double)ENI_SECOND;
}

/* `passed_ns` since the last look, as far as this process was not stopped meanwhile. */
static void look_at(eni_hook_guard *guard, note *n, int64_t passed_ns)
{
    char place[PLACE_MAX], what[100];
    eni_hook_place found;
    uint_fast64_t turn;
    const int64_t timeout_ns = guard->config.timeout_ns, before_ns = n->lasts_ns;
    if (!read_place(n, &found, &turn)) return;
    n->lasts_ns = turn == n->seen ? before_ns + passed_ns : 0;
    n->seen = turn;
    eni_hook_place_text(&found, place, sizeof place);
    if (timeout_ns > 0 && n->lasts_ns >= timeout_ns) {
        snprintf(what, sizeof what, "has not returned for %.3g s (--hook-timeout)", in_seconds(timeout_ns));
        tell(guard, place, what);
        syscall(SYS_exit_group, 1);
    }
    if (before_ns < long_ns && n->lasts_ns >= long_ns)
        eni_warn("hook", "%s has been running for %.3g s", place, in_seconds(long_ns));
}

static void *watch(void *guard_)
{
    eni_hook_guard *guard = guard_;
    int64_t looked_ns = eni_now_ns();
    pthread_mutex_lock(&guard->lock);
    while (!atomic_load(&guard->is_over)) {
        const int64_t until_ns = looked_ns + look_ns;
        const struct timespec until = {until_ns / ENI_SECOND, until_ns % ENI_SECOND};
        pthread_cond_timedwait(&guard->ended, &guard->lock, &until);
        const int64_t now_ns = eni_now_ns(), passed_ns = now_ns - looked_ns;
        for (note *n = guard->notes; n != NULL; n = n->next)
            look_at(guard, n, passed_ns < 2 * look_ns ? passed_ns : 2 * look_ns);
        looked_ns = now_ns;
    }
    pthread_mutex_unlock(&guard->lock);
    return NULL;
}

/* ---- threads ---- */

static note *begin_thread(eni_hook_guard *guard)
{
    note *n = mmap(NULL, sizeof *n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (n == MAP_FAILED) return NULL;
    n->guard = guard;
    const stack_t stack = {.ss_sp = n->stack, .ss_size = sizeof n->stack};
    if (sigaltstack(&stack, &n->before) != 0) {
        munmap(n, sizeof *n);
        return NULL;
    }
    sigset_t ours;
    sigemptyset(&ours);
    for (int i = 0; i < NSIGNALS; i++)
        sigaddset(&ours, signals[i]);
    pthread_sigmask(SIG_UNBLOCK, &ours,
                    NULL); /* of a blocked one the kernel tells nobody: it ends the process */
    pthread_mutex_lock(&guard->lock);
    n->next = guard->notes;
    guard->notes = n;
    pthread_mutex_unlock(&guard->lock);
    own = n;
    return n;
}

void eni_hook_thread_end(eni_hook_guard *guard)
{
    if (guard == NULL || own == NULL) return;
    pthread_mutex_lock(&guard->lock);
    for (note **at = &guard->notes; *at != NULL; at = &(*at)->next)
        if (*at == own) {
            *at = own->next;
            break;
        }
    pthread_mutex_unlock(&guard->lock);
    sigaltstack(&own->before, NULL);
    munmap(own, sizeof *own);
    own = NULL;
}

void eni_hook_enter(eni_hook_guard *guard, const eni_hook_place *place)
{
    if (guard == NULL || (own == NULL && begin_thread(guard) == NULL)) return;
    atomic_store_explicit(&own->hook, place->hook, memory_order_relaxed);
    atomic_store_explicit(&own->plugin, place->plugin, memory_order_relaxed);
    for (int i = 0; i < ENI_HOOK_NUMBERS; i++) {
        atomic_store_explicit(&own->what[i], place->number[i].what, memory_order_relaxed);
        atomic_store_explicit(&own->value[i], place->number[i].value, memory_order_relaxed);
    }
    const uint_fast64_t turn = atomic_load_explicit(&own->turns, memory_order_relaxed);
    atomic_store_explicit(&own->turns, turn + 1 + turn % 2, memory_order_release);
}

void eni_hook_leave(eni_hook_guard *guard)
{
    if (guard == NULL || own == NULL) return;
    const uint_fast64_t turn = atomic_load_explicit(&own->turns, memory_order_relaxed);
    atomic_store_explicit(&own->turns, turn + turn % 2, memory_order_release);
    atomic_thread_fence(memory_order_release); /* the next place is not seen before it */
}

/* ---- life ---- */

/* With all signals blocked: they are for the threads that were there before. */
static int start_thread(eni_hook_guard *guard)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&guard->thread, NULL, watch, guard);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

eni_hook_guard *eni_hook_guard_begin(const eni_hook_guard_config *config)
{
    pthread_condattr_t clock;
    eni_hook_guard *guard = eni_alloc(sizeof *guard);
    if (guard == NULL) return NULL;
    guard->config = *config;
    guard->pid = getpid();
    pthread_mutex_init(&guard->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&guard->ended, &clock);
    pthread_condattr_destroy(&clock);
    const int error = start_thread(guard);
    if (error != 0 || on_exit(at_exit, guard) != 0) {
        eni_warn("hook", "a plugin that crashes will not be named: %s",
                 strerror(error != 0 ? error : ENOMEM));
        atomic_store(&guard->is_over, 1);
        if (error == 0) pthread_join(guard->thread, NULL);
        eni_free(guard);
        return NULL;
    }
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NSIGNALS; i++)
        sigaction(signals[i], &action, &guard->before[i]);
    return guard;
}

void eni_hook_guard_end(eni_hook_guard *guard)
{
    if (guard == NULL) return;
    for (int i = 0; i < NSIGNALS; i++)
        sigaction(signals[i], &guard->before[i], NULL);
    eni_hook_thread_end(guard);
    pthread_mutex_lock(&guard->lock);
    atomic_store(&guard->is_over, 1); /* at_exit frees it */
    pthread_cond_signal(&guard->ended);
    pthread_mutex_unlock(&guard->lock);
    pthread_join(guard->thread, NULL);
}
