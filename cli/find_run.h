/* find_run.h - which run of this user on this host is meant (ps_stop.c). */
#ifndef CLI_FIND_RUN_H
#define CLI_FIND_RUN_H

#include "cli/commands.h"
#include "runtime/control/runs.h"

/* An attribute of a run, such as "strategy" or "out"; "" if the run does not say. */
const char *eni_run_attribute(const eni_run_status *run, const char *key);

/* What the user calls the run: who started it, or who leads it where it was started by hand. */
int64_t eni_run_number(const eni_run_status *run);

/* Does it with the run that the first argument of command `who` means: by the number that `entrain ps` shows, or that of the
 * leader. EN_EINVAL, logged: there is no such run. */
typedef en_status (*eni_run_do)(const eni_command_context *context, const eni_run_status *run);
en_status eni_run_with(const eni_command_context *context, const char *who, eni_run_do act);

#endif
