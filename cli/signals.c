/* signals.c - see signals.h. */
#include "cli/signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

int eni_signals_open(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

int eni_signals_take(int signal_fd)
{
    struct signalfd_siginfo info;
    return signal_fd >= 0 && read(signal_fd, &info, sizeof info) == sizeof info ? (int)info.ssi_signo : 0;
}
