/* simulations.h - runs in virtual time as child processes: a crash ends one, and several at once end as one after the other
 * would, since nothing of a run depends on the time that it takes. */
#ifndef CLI_SIMULATIONS_H
#define CLI_SIMULATIONS_H

#include <sys/types.h>

#include "config/config.h"

enum { ENI_SIMULATIONS_MAX = 16, ENI_SIMULATION_CAUSE = 512 };

/* An `entrain sim`; zeroed: none. It dies with this process, and with it on Ctrl-C. */
typedef struct eni_simulation {
    pid_t pid;
    int log_fd; /* a file of its messages */
} eni_simulation;

/* Starts one with the flags of `run` (of `entrain sim`), on its share of the cores: the place-th of n. EN_EIO, EN_ENOMEM,
 * logged. */
en_status eni_simulation_start(const eni_config *run, int place, int n, eni_simulation *simulation_out);

/* Waits until one of n has ended, prints its messages and zeroes it. EN_OK: *which_out is its place, and its first error, or what
 * killed it, is in cause_out ("": it ended well). EN_EINTR: a signal is pending in signal_fd (-1: none), and they go on. */
en_status eni_simulations_wait(eni_simulation *simulations, int n, int signal_fd, int *which_out,
                               char cause_out[ENI_SIMULATION_CAUSE]);

/* Ends all that are left, without their messages. */
void eni_simulations_end(eni_simulation *simulations, int n);

#endif
