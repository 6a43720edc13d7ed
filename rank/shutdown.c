/* shutdown.c - one thread watches signals and the member: why the run ends, and when time is up. */
#include "rank/shutdown.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "runtime/control/control.h"

static const int64_t grace_ns = 500 * ENI_MILLI;     /* asked -> over */
static const int64_t patient_ns = 60 * ENI_SECOND;   /* the same, for a request that waits */
static const int64_t last_stop_ns = 600 * ENI_MILLI; /* asked -> the last resort */
static const int64_t last_loss_ns = 1500 * ENI_MILLI;
enum { LOOK_MS = 100 }; /* delay of a request from elsewhere */

enum { END_OPEN, END_OWNER, END_LAST_RESORT };

struct eni_shutdown {
    eni_shutdown_config config;
    pthread_t thread;
    pthread_mutex_t lock; /* of member */
    eni_member *member;
    int wake_fd, over_fd, wish_fd;
    bool has_signal; /* the thread's: a second one means that the user is in a hurry */
    atomic_int is_over, signal_number, is_stopping;
    atomic_int end;                    /* END_*: the part that ends this process */
    _Atomic int64_t asked_ns, lost_ns; /* INT64_MAX: not yet */
    int64_t more_ns;                   /* the thread's: extra time for the end */
};

/* ---- what has happened ---- */

void eni_shutdown_now(eni_shutdown *e)
{
    const int was_over = atomic_exchange(&e->is_over, 1);
    if (e->config.ended != NULL) atomic_store(e->config.ended, EN_EINTR);
    if (!was_over) eventfd_write(e->over_fd, 1);
}

static void ask(eni_shutdown *e, int signal_number)
{
    if (atomic_load(&e->asked_ns) != INT64_MAX) return;
    atomic_store(&e->signal_number, signal_number); /* before asked_ns, so that its readers see the signal */
    atomic_store(&e->asked_ns, eni_now_ns());
}

static void heed_signal(eni_shutdown *e)
{
    struct signalfd_siginfo info;
    if (read(e->config.signal_fd, &info, sizeof info) != sizeof info) return;
    const int number = (int)info.ssi_signo;
    /* In a terminal all ranks get the signal at once: another's wish may have come before our own. */
    const bool is_second = e->has_signal;
    e->has_signal = true;
    if (e->more_ns > 0) atomic_store(&e->asked_ns, INT64_MAX); /* the user here is in a hurry */
    e->more_ns = 0;
    ask(e, number);
    if (!is_second) atomic_store(&e->signal_number, number);
    pthread_mutex_lock(&e->lock);
    if (e->member != NULL && !is_second)
        eni_member_stop(e->member, number == SIGINT   ? "Ctrl-C"
                                   : number == SIGHUP ? "its terminal was closed"
                                                      : "SIGTERM");
    else
        eni_shutdown_now(e); /* the ranks have not met, or the user is in a hurry */
    pthread_mutex_unlock(&e->lock);
}

/* SIGUSR1, SIGUSR2. Before the ranks have met there is nothing to save. */
static void heed_wish(eni_shutdown *e)
{
    while (eni_signals_take(e->wish_fd) != 0) {
        pthread_mutex_lock(&e->lock);
        if (e->member != NULL) eni_member_save(e->member);
        pthread_mutex_unlock(&e->lock);
    }
}

/* With the member's lock held. */
static void heed_member(eni_shutdown *e)
{
    const en_status st = eni_member_status(e->member); /* first: a status that has failed has its death */
    const eni_run_outcome outcome = eni_member_outcome(e->member);
    if (outcome.stop_why[0] != 0 && atomic_load(&e->asked_ns) == INT64_MAX) {
        e->more_ns = outcome.has_time || e->config.leave_at_once == NULL ? patient_ns : 0;
        ask(e, SIGTERM);
    }
    if (st == EN_OK || atomic_load(&e->lost_ns) != INT64_MAX) return;
    atomic_store(&e->lost_ns, eni_now_ns());
    if (e->config.report_fd >= 0 && outcome.has_death)
        eni_failure_write(e->config.report_fd, &outcome.death);
    else if (st == EN_EPEER &&
             e->config.leave_at_once == NULL) /* a rank gave up; our program may be in a long step */
        eni_end_write(e->config.report_fd, st);
}

/* ---- the thread ---- */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t last_ns(const eni_shutdown *e)
{
    const int64_t asked_ns = atomic_load(&e->asked_ns), lost_ns = atomic_load(&e->lost_ns);
    int64_t last = INT64_MAX;
    if (atomic_load(&e->end) != END_OPEN || e->config.leave_at_once == NULL) return last;
    if (asked_ns != INT64_MAX) last = earlier(last, asked_ns + e->more_ns + last_stop_ns);
    if (lost_ns != INT64_MAX) last = earlier(last, lost_ns + last_loss_ns);
    return last;
}

static void look(eni_shutdown *e)
{
    pthread_mutex_lock(&e->lock);
    if (e->member != NULL) heed_member(e);
    pthread_mutex_unlock(&e->lock);
    const int64_t now = eni_now_ns(), asked_ns = atomic_load(&e->asked_ns);
    if (asked_ns != INT64_MAX && now >= asked_ns + e->more_ns + grace_ns) eni_shutdown_now(e);
    int nobody = END_OPEN;
    if (now >= last_ns(e) && atomic_compare_exchange_strong(&e->end, &nobody, END_LAST_RESORT))
        e->config.leave_at_once(e->config.user,
                                atomic_load(&e->lost_ns) != INT64_MAX ? 1 : 128 + eni_shutdown_signal(e));
}

/* Readable once the run is broken; it stays so, so it is polled until then. */
static int member_fd(eni_shutdown *e)
{
    pthread_mutex_lock(&e->lock);
    const int fd = e->member == NULL || atomic_load(&e->lost_ns) != INT64_MAX || atomic_load(&e->is_over)
                       ? -1
                       : eni_member_fd(e->member);
    pthread_mutex_unlock(&e->lock);
    return fd;
}

static void *run_shutdown(void *argument)
{
    eni_shutdown *e = argument;
    eventfd_t ignored;
    while (!atomic_load(&e->is_stopping)) {
        struct pollfd set[4] = {{e->wake_fd, POLLIN, 0},
                                {e->config.signal_fd, POLLIN, 0},
                                {member_fd(e), POLLIN, 0},
                                {e->wish_fd, POLLIN, 0}};
        poll(set, 4, eni_ms_left(last_ns(e), LOOK_MS));
        if (set[0].revents != 0) eventfd_read(e->wake_fd, &ignored);
        if (set[1].revents != 0) heed_signal(e);
        if (set[3].revents != 0) heed_wish(e);
        look(e);
    }
    return NULL;
}

/* ---- start and stop ---- */

en_status eni_shutdown_start(const eni_shutdown_config *config, eni_shutdown **shutdown_out)
{
    eni_shutdown *e = eni_alloc(sizeof *e);
    if (e == NULL) return EN_ENOMEM;
    e->config = *config;
    atomic_store(&e->asked_ns, INT64_MAX);
    atomic_store(&e->lost_ns, INT64_MAX);
    atomic_store(&e->signal_number, SIGTERM);
    pthread_mutex_init(&e->lock, NULL);
    e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->over_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->wish_fd = config->signal_fd >= 0 || config->report_fd >= 0
                     ? eni_signals_wishes()
                     : -1; /* blocked by main or by our launcher; else the program's */
    if (e->wake_fd >= 0 && e->over_fd >= 0 && eni_thread_start(&e->thread, run_shutdown, e) == 0) {
        *shutdown_out = e;
        return EN_OK;
    }
    eni_error("shutdown", "cannot start the thread for signals: check the limits on threads and open files");
    if (e->wish_fd >= 0) close(e->wish_fd);
    if (e->wake_fd >= 0) close(e->wake_fd);
    if (e->over_fd >= 0) close(e->over_fd);
    pthread_mutex_destroy(&e->lock);
    eni_free(e);
    return EN_EIO;
}

void eni_shutdown_watch(eni_shutdown *e, eni_member *member)
{
    pthread_mutex_lock(&e->lock);
    if (e->member != NULL && member == NULL) heed_member(e); /* the owner may have been faster than we */
    e->member = member;
    pthread_mutex_unlock(&e->lock);
    eventfd_write(e->wake_fd, 1);
}

int eni_shutdown_fd(const eni_shutdown *e)
{
    return e->over_fd;
}

en_status eni_shutdown_status(const eni_shutdown *e)
{
    return atomic_load_explicit(&e->is_over, memory_order_relaxed) ? EN_EINTR : EN_OK;
}

bool eni_shutdown_is_asked(eni_shutdown *e)
{
    if (atomic_load(&e->asked_ns) != INT64_MAX) return true;
    pthread_mutex_lock(&e->lock);
    const bool is_stopping = e->member != NULL && eni_member_outcome(e->member).stop_why[0] != 0;
    pthread_mutex_unlock(&e->lock);
    return is_stopping;
}

int eni_shutdown_signal(const eni_shutdown *e)
{
    return atomic_load(&e->signal_number);
}

void eni_shutdown_heard(eni_shutdown *e)
{
    int nobody = END_OPEN;
    if (atomic_compare_exchange_strong(&e->end, &nobody, END_OWNER)) return;
    while (atomic_load(&e->end) == END_LAST_RESORT) /* it reads what the caller would close, and then exits */
        pause();
}

void eni_shutdown_stop(eni_shutdown *e)
{
    if (e == NULL) return;
    atomic_store(&e->is_stopping, 1);
    eventfd_write(e->wake_fd, 1);
    pthread_join(e->thread, NULL);
    close(e->wake_fd);
    close(e->over_fd);
    if (e->wish_fd >= 0) close(e->wish_fd);
    pthread_mutex_destroy(&e->lock);
    eni_free(e);
}
