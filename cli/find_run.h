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

#endif
