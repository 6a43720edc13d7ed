/* newcomers.h - workers that join a running run (--max-workers), started from outside it. */
#ifndef CLI_NEWCOMERS_H
#define CLI_NEWCOMERS_H

#include "runtime/control/runs.h"

/* Starts n workers like those of the run on this host and waits until all have ended. A signal (readable
 * signal_fd, which is left so) asks them to leave: EN_EINTR then. EN_EINVAL: one was refused and has logged
 * why, or no worker of the run is on this host (logged); EN_EPEER: one has failed. */
en_status eni_newcomers_start(const eni_run_status *run, int n, int signal_fd);

#endif
