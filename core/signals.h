/* signals.h - SIGINT, SIGTERM and SIGHUP as a descriptor (no handler, no global), the end of a child, and exit codes. */
#ifndef CORE_SIGNALS_H
#define CORE_SIGNALS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "entrain/status.h"

/* Puts in order what this process inherited, and returns a signalfd; -1 if the system has none. SIGTERM, SIGINT and
 * SIGHUP are blocked for this thread and those it starts, and nothing else is: but for SIGINT and SIGHUP where they are
 * ignored, as in a shell's background job and under nohup, which stay ignored. SIGCHLD gets its default, SIGPIPE and
 * SIGXFSZ are ignored. Main thread, before any other starts. */
int eni_signals_open(void);

/* A signalfd of SIGUSR1 and SIGUSR2, which eni_signals_open has blocked for all (they end nobody who opens none): a wish
 * for a checkpoint, as Slurm's --signal sends it. -1: there is none. */
int eni_signals_wishes(void);

/* Whether a signal is there within `wait_ms`; it stays there. -1: none will be. */
bool eni_signals_wait(int signal_fd, int wait_ms);

/* The number of one that waits there, which is taken; 0: none does. */
int eni_signals_take(int signal_fd);

/* Waits until this child has ended, and takes it: EN_OK, and *status_out is waitpid's. EN_EINTR: signal_fd (-1: none) has
 * a signal, which stays there. EN_ETIMEOUT: deadline_ns has passed (INT64_MAX: none). In both the child goes on. EN_EIO: it
 * is no child of ours, or somebody else has taken it. Where pidfd_open(2) is refused it looks every few milliseconds. Any
 * thread. */
en_status eni_signals_await(pid_t child, int signal_fd, int64_t deadline_ns, int *status_out);

/* pthread_create(3) of a thread that takes no signals: they are for main. 0, or an errno. Any thread. */
int eni_thread_start(pthread_t *thread_out, void *(*run)(void *argument), void *argument);

/* The exit code of a program that ended with `st`: 0; 2 where another command or file is needed (EN_EINVAL,
 * EN_ENOENT, EN_EFORMAT, EN_EVERSION, EN_EDENIED, EN_EMISMATCH, EN_ETIMEOUT, EN_EUNSUPPORTED); 128 + the
 * signal that waits in signal_fd, which is taken (none: SIGTERM, it was sent elsewhere), for EN_EINTR; 1 for
 * a run that failed. */
int eni_signals_exit_code(en_status st, int signal_fd);

#endif
