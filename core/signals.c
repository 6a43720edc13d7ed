/* signals.c - signals as a descriptor, children, and exit codes. */
#include "core/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"

enum { LOOK_MS = 10 }; /* polling interval without a pidfd */

/* A blocked signal is delivered to a signalfd even if it is ignored. */
static bool is_ignored(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void fill_requests(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    sigaddset(set, SIGUSR2);
}

int eni_signals_open(void)
{
    static const int ends[] = {SIGINT, SIGHUP};
    int fd = 0;
    while (fd >= 0 && fd <= STDERR_FILENO) /* `<&-`: else a file of ours would get the number */
        fd = open("/dev/null", O_RDWR);    /* children need it, too */
    if (fd >= 0) close(fd);
    sigset_t set, blocked;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (!is_ignored(ends[i])) sigaddset(&set, ends[i]);
    fill_requests(&blocked);
    sigorset(&blocked, &blocked, &set);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    signal(SIGCHLD, SIG_DFL); /* if ignored, exit codes of children are lost */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* `ulimit -f`: write fails with EFBIG */
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

int eni_signals_wishes(void)
{
    sigset_t set;
    fill_requests(&set);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

pid_t eni_signals_fork(int at_our_end)
{
    const pid_t own = getpid(), pid = fork();
    if (pid != 0) return pid;
    sigset_t requests;
    fill_requests(&requests);
    sigprocmask(SIG_SETMASK, &requests, NULL);
    (void)prctl(PR_SET_PDEATHSIG, at_our_end);
    if (getppid() != own) raise(at_our_end); /* it has ended before the kernel knew */
    return 0;
}

en_status eni_signals_await_any(const pid_t *children, int n, int signal_fd, int64_t deadline_ns,
                                int *which_out, int *status_out)
{
    struct pollfd watched[ENI_AWAITED_MAX + 1] = {{signal_fd, POLLIN, 0}};
    int most_ms = 1000;
    pid_t taken = 0;
    en_status st = EN_OK;
    for (int i = 0; i < n; i++) {
        const int pidfd = children[i] > 0 ? (int)syscall(SYS_pidfd_open, children[i], 0) : -1;
        watched[i + 1] = (struct pollfd){pidfd, POLLIN, 0};
        if (children[i] > 0 && pidfd < 0) most_ms = LOOK_MS;
    }
    for (;;) {
        for (int i = 0; i < n && taken == 0; i++)
            if (children[i] > 0 && (taken = waitpid(children[i], status_out, WNOHANG)) != 0) *which_out = i;
        const int left = eni_ms_left(deadline_ns, most_ms);
        if (taken == 0) st = watched[0].revents != 0 ? EN_EINTR : left <= 0 ? EN_ETIMEOUT : EN_OK;
        if (taken != 0 || st != EN_OK) break;
        poll(watched, (nfds_t)n + 1, left);
    }
    for (int i = 1; i <= n; i++)
        if (watched[i].fd >= 0) close(watched[i].fd);
    return taken < 0 ? EN_EIO : st;
}

en_status eni_signals_await(pid_t child, int signal_fd, int64_t deadline_ns, int *status_out)
{
    int which;
    return eni_signals_await_any(&child, 1, signal_fd, deadline_ns, &which, status_out);
}

bool eni_signals_wait(int signal_fd, int wait_ms)
{
    struct pollfd p = {signal_fd, POLLIN, 0};
    const int64_t end_ns = eni_now_ns() + wait_ms * ENI_MILLI;
    int ready;
    do
        ready = poll(&p, 1, eni_ms_left(end_ns, wait_ms));
    while (ready < 0 && errno == EINTR);
    return ready > 0;
}

int eni_signals_take(int signal_fd)
{
    struct signalfd_siginfo info;
    return signal_fd >= 0 && read(signal_fd, &info, sizeof info) == sizeof info ? (int)info.ssi_signo : 0;
}

int eni_thread_start(pthread_t *thread_out, void *(*run)(void *argument), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a thread inherits its starter's mask */
    const int error = pthread_create(thread_out, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#if __GLIBC_PREREQ(2, 32)
const char *eni_signal_name(int number)
{
    return sigabbrev_np(number);
}

const char *eni_signal_words(int number)
{
    return sigdescr_np(number);
}
#else /* Debian 11 has the tables behind these two; no header declares that of the names */
extern const char *const sys_sigabbrev[];

const char *eni_signal_name(int number)
{
    return number > 0 && number < NSIG ? sys_sigabbrev[number] : NULL;
}

const char *eni_signal_words(int number)
{
    return number > 0 && number < NSIG ? sys_siglist[number] : NULL;
}
#endif

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
    case EN_EINTR: {
        const int number = eni_signals_take(signal_fd);
        return 128 + (number != 0 ? number : SIGTERM);
    }
    default: return 1;
    }
}
