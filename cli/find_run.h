/* find_run.h - finds the run of this user on this host that a command means (ps_stop.c). */
#ifndef CLI_FIND_RUN_H
#define CLI_FIND_RUN_H

#include "cli/commands.h"
#include "runtime/control/runs.h"

/* An attribute of a run, such as "strategy" or "out"; "" if the run does not say. */
const char *eni_run_attribute(const eni_run_status *run, const char *key);

/* The number by which users know the run: its launcher's pid, or its leader's if it was started by hand. */
int64_t eni_run_number(const eni_run_status *run);

/* Calls `act` with the run that the first argument of command `who` names: by the number that `entrain ps`
 * shows, or by its leader's. EN_EINVAL, logged: no such run. */
typedef en_status (*eni_run_do)(const eni_command_context *context, const eni_run_status *run);
en_status eni_run_with(const eni_command_context *context, const char *who, eni_run_do act);

/* newcomers.c, for a run whose ranks come and go (--max-workers). Starts n workers like those of the run on this host and waits until all have ended. A signal (readable
 * signal_fd, which is left so) asks them to leave: EN_EINTR then. EN_EINVAL: one was refused and has logged
 * why, or no worker of the run is on this host (logged); EN_EPEER: one has failed. */
en_status eni_newcomers_start(const eni_run_status *run, int n, int signal_fd);

#endif
