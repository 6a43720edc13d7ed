/* find_run.h - which run of this user on this host is meant (ps_stop.c). */
#ifndef CLI_FIND_RUN_H
#define CLI_FIND_RUN_H

#include "runtime/control/runs.h"

/* What the user calls the run: who started it, or who leads it where it was started by hand. */
int64_t eni_run_number(const eni_run_status *run);

/* By the number that `entrain ps` shows, or that of the leader. *run_out lies in *runs_out, which the caller frees.
 * EN_EINVAL, logged for `who`: there is no such run. */
en_status eni_run_find(const char *who, const char *word, eni_run_status **runs_out, size_t *n_out,
                       const eni_run_status **run_out);

#endif
