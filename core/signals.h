/* signals.h - SIGINT, SIGTERM and SIGHUP as a descriptor (no handler, no global), children, and exit codes. */
#ifndef CORE_SIGNALS_H
#define CORE_SIGNALS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "entrain/status.h"

/* Cleans up inherited state and returns a signalfd; -1 if the system has none. Blocks SIGTERM, SIGINT and SIGHUP, and no
 * others, for this thread and those it starts; SIGINT and SIGHUP stay ignored if they were, as in a shell's background
 * job and under nohup. SIGCHLD gets its default; SIGPIPE and SIGXFSZ are ignored. Main thread, before any other starts. */
int eni_signals_open(void);

/* A signalfd of SIGUSR1 and SIGUSR2, which eni_signals_open has blocked (so they kill no process without this fd): requests
 * for a checkpoint, as Slurm's --signal sends them. -1: failed. */
int eni_signals_wishes(void);

/* Whether a signal arrives within `wait_ms`; it stays pending. -1: there will be none. */
bool eni_signals_wait(int signal_fd, int wait_ms);

/* Takes a pending signal and returns its number; 0 if nothing is pending. */
int eni_signals_take(int signal_fd);

/* fork(2): the child gets `at_our_end` when this process ends (SIGKILL, SIGTERM; 0: nothing), and has no blocked signals but
 * SIGUSR1 and SIGUSR2, which would kill it before it can handle them. -1, with errno. Main thread: the kernel means the
 * thread that forks. */
pid_t eni_signals_fork(int at_our_end);

/* Waits until this child has ended, and reaps it: EN_OK, and *status_out is waitpid's. EN_EINTR: signal_fd (-1: none) has
 * a signal, which stays pending. EN_ETIMEOUT: deadline_ns has passed (INT64_MAX: none). In both cases the child goes on.
 * EN_EIO: it is not our child, or was reaped elsewhere. Polls every few milliseconds if pidfd_open(2) is refused. Any
 * thread. */
en_status eni_signals_await(pid_t child, int signal_fd, int64_t deadline_ns, int *status_out);

/* The same for the first of n children that ends: *which_out, with EN_OK and EN_EIO. Those that are not above 0 are left out. */
enum { ENI_AWAITED_MAX = 64 };
en_status eni_signals_await_any(const pid_t *children, int n, int signal_fd, int64_t deadline_ns,
                                int *which_out, int *status_out);

/* pthread_create(3) of a thread with all signals blocked: main handles them. 0, or an errno. Any thread. */
int eni_thread_start(pthread_t *thread_out, void *(*run)(void *argument), void *argument);

/* "SEGV" and "Segmentation fault"; NULL if no signal has the number. Async-signal-safe; any thread. */
const char *eni_signal_name(int number);
const char *eni_signal_words(int number);

/* The exit code of a program that ended with `st`: 0; 2 if another command or file is needed (EN_EINVAL,
 * EN_ENOENT, EN_EFORMAT, EN_EVERSION, EN_EDENIED, EN_EMISMATCH, EN_ETIMEOUT, EN_EUNSUPPORTED); for EN_EINTR 128 + the
 * pending signal of signal_fd, which is taken (SIGTERM if none is pending); 1 for a run that failed. */
int eni_signals_exit_code(en_status st, int signal_fd);

#endif
