/* signals.c - signals as a descriptor, exit codes, and the watch for an exit that was not due. */
#include "core/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "core/memory.h"

/* nohup's ignoring is to last: a signal that is blocked would be kept for us all the same. */
static int is_ignored(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

int eni_signals_open(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (!is_ignored(SIGHUP)) sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static int take_signal(int signal_fd)
{
    struct signalfd_siginfo info;
    return signal_fd >= 0 && read(signal_fd, &info, sizeof info) == sizeof info ? (int)info.ssi_signo
                                                                                : SIGTERM;
}

int eni_signals_exit_code(en_status st, int signal_fd)
{
    switch (st) {
    case EN_OK: return 0;
    case EN_EINVAL:
    case EN_ENOENT:
    case EN_EFORMAT:
    case EN_EVERSION:
    case EN_EDENIED:
    case EN_EMISMATCH:
    case EN_ETIMEOUT:
    case EN_EUNSUPPORTED: return 2;
    case EN_EINTR: return 128 + take_signal(signal_fd);
    default: return 1;
    }
}

struct eni_exit_watch {
    void (*tell)(void *user, int code);
    void *user;
    pid_t pid; /* a child that was forked has handlers too, and they are not its own */
    atomic_int is_due;
};

static void at_exit(int code, void *argument)
{
    eni_exit_watch *watch = argument;
    if (atomic_load(&watch->is_due)) {
        eni_free(watch);
        return;
    }
    if (watch->pid == getpid()) watch->tell(watch->user, code);
    _exit(code != 0 ? code : 1);
}

eni_exit_watch *eni_exit_watch_begin(void (*tell)(void *user, int code), void *user)
{
    eni_exit_watch *watch = eni_alloc(sizeof *watch);
    if (watch == NULL) return NULL;
    watch->tell = tell;
    watch->user = user;
    watch->pid = getpid();
    if (on_exit(at_exit, watch) == 0) return watch;
    eni_free(watch);
    return NULL;
}

void eni_exit_is_due(eni_exit_watch *watch)
{
    if (watch != NULL) atomic_store(&watch->is_due, 1);
}
