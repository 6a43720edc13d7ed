/* hook.c - signal handlers that name the hook a thread is in, and the thread that watches how long hooks take. A handler
 * reads its own thread's note, the watching thread reads all. */
#include "plugin/hook.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"

enum {
    STACK_BYTES = 128 << 10, /* for a signal handler: AVX-512 registers, and `tell` */
    NSIGNALS = 5,
    PLACE_MAX = 220,
    SENTENCE_MAX = 320
};
static const int signals[NSIGNALS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static const int64_t look_ns = 250 * ENI_MILLI, long_ns = 5 * ENI_SECOND;

/* A thread's note, and its private fields. */
typedef struct thread {
    eni_hook_note note; /* first: eni_hook_own points to it */
    struct thread *next;
    stack_t before;     /* the previous signal stack */
    uint_fast64_t seen; /* the watching thread's: the last turn seen */
    int64_t lasts_ns;   /* for how long it has seen it */
    _Alignas(64) char stack[STACK_BYTES];
} thread;

struct eni_hook_guard {
    eni_hook_guard_config config;
    pid_t pid;                  /* forked children inherit the handlers, which must not act there */
    atomic_int is_over, teller; /* teller: the reporting thread; 0: none yet */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t ended;
    thread *threads;
};

_Thread_local eni_hook_note *eni_hook_own;

/* The previous signal actions, for a handler on a thread without a note. */
static struct sigaction before[NSIGNALS];

/* The process's guard and the mapped files are global because a signal handler gets no argument. */
enum { FILES = 16, TAKEN = 1 };
typedef struct mapped_file {
    _Atomic(uintptr_t) base; /* 0: unused; TAKEN: being written */
    size_t bytes;
    char path[PLACE_MAX]; /* the end of the path */
} mapped_file;
static mapped_file mapped_files[FILES];
static _Atomic(eni_hook_guard *) guard_now;

/* ---- mapped files ---- */

void eni_hook_mapped(const void *base, size_t bytes, const char *path)
{
    const size_t length = strlen(path), most = sizeof mapped_files[0].path - 1;
    for (mapped_file *f = mapped_files; f < mapped_files + FILES; f++) {
        uintptr_t nothing = 0;
        if (!atomic_compare_exchange_strong(&f->base, &nothing, TAKEN)) continue;
        f->bytes = bytes;
        snprintf(f->path, sizeof f->path, "%s", length > most ? path + length - most : path);
        atomic_store(&f->base, (uintptr_t)base);
        return;
    }
}

void eni_hook_unmapped(const void *base)
{
    for (mapped_file *f = mapped_files; f < mapped_files + FILES; f++)
        if (atomic_load(&f->base) == (uintptr_t)base) atomic_store(&f->base, 0);
}

/* The mapped file at the address; NULL if not found. */
static const char *file_at(const void *address)
{
    for (const mapped_file *f = mapped_files; f < mapped_files + FILES; f++) {
        const uintptr_t base = atomic_load(&f->base), at = (uintptr_t)address;
        if (base > TAKEN && at >= base && at - base < f->bytes) return f->path;
    }
    return NULL;
}

/* ---- sites ---- */

void eni_hook_site_text(const eni_hook_site *place, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s of %s", place->hook, place->plugin);
    for (int i = 0; i < ENI_HOOK_NUMBERS && place->number[i].what != NULL; i++)
        eni_text_add(text, bytes, "%s%s %lld", i == 0 ? " (" : ", ", place->number[i].what,
                     (long long)place->number[i].value);
    if (place->number[0].what != NULL) eni_text_add(text, bytes, ")");
}

/* Copies the last bytes of the name that fit into the note. */
static void write_name(eni_hook_note *n, const char *name)
{
    uint64_t words[ENI_HOOK_NAME / sizeof(uint64_t)] = {0};
    const size_t length = strlen(name), most = sizeof words - 1, kept = length < most ? length : most;
    memcpy(words, name + length - kept, kept);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        atomic_store_explicit(&n->named[i], words[i], memory_order_relaxed);
}

static const char *read_name(eni_hook_note *n, char name_out[ENI_HOOK_NAME])
{
    for (size_t i = 0; i < ENI_HOOK_NAME / sizeof(uint64_t); i++) {
        const uint64_t word = atomic_load(&n->named[i]);
        memcpy(name_out + i * sizeof word, &word, sizeof word);
    }
    name_out[ENI_HOOK_NAME - 1] = 0; /* it may mix two names */
    return name_out;
}

void eni_hook_enter_named(const char *hook, const char *plugin)
{
    eni_hook_guard *guard = eni_hook_guard_now();
    if (guard == NULL || (eni_hook_own == NULL && !eni_hook_thread_begin(guard))) return;
    write_name(eni_hook_own, plugin);
    eni_hook_enter(guard, &(eni_hook_site){.hook = hook});
}

/* True if the thread of `n` is in a hook: its site, whose name points to name_out, and its turn. */
static bool read_place(eni_hook_note *n, eni_hook_site *place_out, char name_out[ENI_HOOK_NAME],
                       uint_fast64_t *turn_out)
{
    *turn_out = atomic_load(&n->turns);
    if (*turn_out % 2 == 0) return false;
    place_out->hook = atomic_load(&n->hook);
    place_out->plugin = atomic_load(&n->plugin);
    if (place_out->plugin == NULL) place_out->plugin = read_name(n, name_out);
    for (int i = 0; i < ENI_HOOK_NUMBERS; i++) {
        place_out->number[i].what = atomic_load(&n->what[i]);
        place_out->number[i].value = atomic_load(&n->value[i]);
    }
    return atomic_load(&n->turns) == *turn_out;
}

/* ---- the end of the process ---- */

/* Runs once: failures of `tell` itself are not reported, and another failing thread waits for the process to end. */
static void tell(eni_hook_guard *guard, const char *place, const char *what)
{
    char sentence[SENTENCE_MAX];
    int nobody = 0;
    const int self = (int)gettid();
    if (!atomic_compare_exchange_strong(&guard->teller, &nobody, self)) {
        while (nobody != self)
            pause();
        return;
    }
    snprintf(sentence, sizeof sentence, "%s %s", place, what);
    guard->config.tell(guard->config.user, sentence);
}

/* This thread's site, if it is in a hook of this process. */
static bool own_place(char *text_out, size_t bytes)
{
    eni_hook_site place;
    char name[ENI_HOOK_NAME];
    uint_fast64_t turn;
    eni_hook_note *own = eni_hook_own;
    if (own == NULL || own->guard->pid != getpid() || !read_place(own, &place, name, &turn)) return false;
    eni_hook_site_text(&place, text_out, bytes);
    return true;
}

/* An overflowing stack runs into its guard page: the address lies just below or just above the stack pointer. */
static bool is_overflow(const siginfo_t *info, const void *context)
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

/* Restores the previous action, and the signal comes again: a core, or a sanitizer's report. A corrupted heap may be
 * what crashed the hook, so nothing here allocates: snprintf of numbers and short texts does not, nor does the log
 * once the time zone is known (eni_hook_guard_begin). */
static void on_crash(int number, siginfo_t *info, void *context)
{
    char place[PLACE_MAX], what[100];
    const int cause = errno;
    eni_hook_guard *guard = atomic_load(&guard_now);
    const char *file = number == SIGBUS && info->si_code == BUS_ADRERR ? file_at(info->si_addr) : NULL;
    if (file != NULL && guard != NULL && guard->pid == getpid())
        tell(guard, file, "was truncated, or could not be read, while it was mapped (SIGBUS)");
    else if (info->si_code != SI_USER && own_place(place, sizeof place)) { /* not sent by `kill` */
        const char *name = eni_signal_name(number), *words = eni_signal_words(number);
        snprintf(what, sizeof what, "crashed: %s (SIG%s)%s", words, name,
                 number == SIGSEGV && is_overflow(info, context) ? ", its stack overflowed" : "");
        tell(eni_hook_own->guard, place, what);
    }
    for (int i = 0; i < NSIGNALS; i++)
        if (signals[i] == number) sigaction(number, &before[i], NULL);
    if (info->si_code <= 0) raise(number); /* a sent signal does not come again by itself */
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

static void end_if_in_hook(const char *call, int code)
{
    char place[PLACE_MAX], what[40];
    if (!own_place(place, sizeof place)) return;
    snprintf(what, sizeof what, "called %s(%d)", call, code);
    tell(eni_hook_own->guard, place, what);
    syscall(SYS_exit_group, code != 0 ? code : 1);
}

/* quick_exit does not pass on its code. */
static void at_quick(void)
{
    end_if_in_hook("quick_exit", 0);
}

/* Replaces the C library's for every plugin, since an executable's symbols come first. */
__attribute__((noreturn, visibility("default"))) void _exit(int code)
{
    end_if_in_hook("_exit", code);
    for (;;)
        syscall(SYS_exit_group, code);
}

__attribute__((noreturn, visibility("default"))) void _Exit(int code)
{
    _exit(code);
}

/* ---- time in hooks ---- */

static double in_seconds(int64_t ns)
{
    return (double)ns / (double)ENI_SECOND;
}

/* `passed_ns`: time since the last look, without time in which the process was stopped. */
static void look_at(eni_hook_guard *guard, thread *t, int64_t passed_ns)
{
    char place[PLACE_MAX], what[100], name[ENI_HOOK_NAME];
    eni_hook_site found;
    uint_fast64_t turn;
    const int64_t timeout_ns = guard->config.timeout_ns, before_ns = t->lasts_ns;
    if (!read_place(&t->note, &found, name, &turn)) return;
    t->lasts_ns = turn == t->seen ? before_ns + passed_ns : 0;
    t->seen = turn;
    eni_hook_site_text(&found, place, sizeof place);
    if (timeout_ns > 0 && t->lasts_ns >= timeout_ns) {
        snprintf(what, sizeof what, "has not returned for %.3g s (--hook-timeout)", in_seconds(timeout_ns));
        tell(guard, place, what);
        syscall(SYS_exit_group, 1);
    }
    if (before_ns < long_ns && t->lasts_ns >= long_ns)
        eni_warn("hook", "%s has been running for %.3g s", place, in_seconds(long_ns));
}

static void *watch(void *guard_)
{
    eni_hook_guard *guard = guard_;
    int64_t looked_ns = eni_now_ns();
    pthread_mutex_lock(&guard->lock);
    while (!atomic_load(&guard->is_over)) {
        const struct timespec until = eni_timespec(looked_ns + look_ns);
        pthread_cond_clockwait(&guard->ended, &guard->lock, CLOCK_MONOTONIC, &until);
        const int64_t now_ns = eni_now_ns(), passed_ns = now_ns - looked_ns;
        for (thread *t = guard->threads; t != NULL; t = t->next)
            look_at(guard, t, passed_ns < 2 * look_ns ? passed_ns : 2 * look_ns);
        looked_ns = now_ns;
    }
    pthread_mutex_unlock(&guard->lock);
    return NULL;
}

/* ---- threads ---- */

bool eni_hook_thread_begin(eni_hook_guard *guard)
{
    if (guard == NULL) return false;
    thread *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) return false;
    t->note.guard = guard;
    const stack_t stack = {.ss_sp = t->stack, .ss_size = sizeof t->stack};
    if (sigaltstack(&stack, &t->before) != 0) {
        munmap(t, sizeof *t);
        return false;
    }
    sigset_t ours;
    sigemptyset(&ours);
    for (int i = 0; i < NSIGNALS; i++)
        sigaddset(&ours, signals[i]);
    pthread_sigmask(SIG_UNBLOCK, &ours, NULL); /* a blocked one would end the process without a call */
    pthread_mutex_lock(&guard->lock);
    t->next = guard->threads;
    guard->threads = t;
    pthread_mutex_unlock(&guard->lock);
    eni_hook_own = &t->note;
    return true;
}

void eni_hook_thread_end(eni_hook_guard *guard)
{
    thread *self = (thread *)(void *)eni_hook_own;
    if (guard == NULL || self == NULL) return;
    pthread_mutex_lock(&guard->lock);
    thread **at = &guard->threads;
    while (*at != self)
        at = &(*at)->next;
    *at = self->next;
    pthread_mutex_unlock(&guard->lock);
    eni_hook_own = NULL;
    sigaltstack(&self->before, NULL);
    munmap(self, sizeof *self);
}

/* ---- lifetime ---- */

eni_hook_guard *eni_hook_guard_begin(const eni_hook_guard_config *config)
{
    eni_hook_guard *guard = eni_alloc(sizeof *guard);
    if (guard == NULL) return NULL;
    guard->config = *config;
    guard->pid = getpid();
    pthread_mutex_init(&guard->lock, NULL);
    pthread_cond_init(&guard->ended, NULL);
    const int error = eni_thread_start(&guard->thread, watch, guard);
    const bool is_freed_at_exit = error == 0 && at_quick_exit(at_quick) == 0 && on_exit(at_exit, guard) == 0;
    if (!is_freed_at_exit) {
        eni_warn("hook", "crashes of plugins cannot be attributed: %s",
                 strerror(error != 0 ? error : ENOMEM));
        atomic_store(&guard->is_over, 1);
        if (error == 0) pthread_join(guard->thread, NULL);
        eni_free(guard);
        return NULL;
    }
    atomic_store(&guard_now, guard);
    tzset(); /* now, since the log's first line would allocate for it */
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NSIGNALS; i++)
        sigaction(signals[i], &action, &before[i]);
    return guard;
}

eni_hook_guard *eni_hook_guard_now(void)
{
    return atomic_load(&guard_now);
}

void eni_hook_guard_end(eni_hook_guard *guard)
{
    if (guard == NULL) return;
    for (int i = 0; i < NSIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
    atomic_store(&guard_now, NULL);
    eni_hook_thread_end(guard);
    pthread_mutex_lock(&guard->lock);
    atomic_store(&guard->is_over, 1); /* freed by at_exit */
    pthread_cond_signal(&guard->ended);
    pthread_mutex_unlock(&guard->lock);
    pthread_join(guard->thread, NULL);
}
