/* simulations.h - runs in virtual time as child processes: a crash ends one, and several at once end as one after the other
 * would, since nothing of a run depends on the time that it takes. */
#ifndef CLI_SIMULATIONS_H
#define CLI_SIMULATIONS_H

#include <sys/types.h>

#include "config/config.h"

enum { ENI_SIMULATIONS_MAX = 16, ENI_SIMULATION_CAUSE = 512 };

/* Those that run, by their place; zeroed: none. They die with this process, and with it on Ctrl-C. */
typedef struct eni_simulations {
    int n;                              /* places */
    pid_t pid[ENI_SIMULATIONS_MAX];     /* 0: it is free */
    int report_fd[ENI_SIMULATIONS_MAX]; /* a file of its reports (core/log.h, runtime/control/control.h) */
} eni_simulations;

/* Starts `entrain sim` with the flags of `run`, on the place's share of the cores. EN_EIO, EN_ENOMEM, logged. */
en_status eni_simulation_start(eni_simulations *simulations, int place, const eni_config *run);

/* Waits until one has ended, prints its errors and warnings, and frees its place, *which_out. EN_EINTR: a signal is pending in
 * signal_fd (-1: none), and they go on. *ended_out: its status, EN_EPEER if it has none; cause_out: its first error, or what
 * killed it; "" if it ended well. */
en_status eni_simulations_wait(eni_simulations *simulations, int signal_fd, int *which_out,
                               en_status *ended_out, char cause_out[ENI_SIMULATION_CAUSE]);

/* Ends all that are left, without their messages. */
void eni_simulations_end(eni_simulations *simulations);

#endif
