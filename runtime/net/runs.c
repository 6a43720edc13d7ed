/* runs.c - see runs.h. */
#include "runtime/net/runs.h"

#include "runtime/core/memory.h"

en_status eni_runs_list(int64_t deadline_ns, eni_run **runs_out, size_t *n_out)
{
    (void)deadline_ns;
    *runs_out = NULL;
    *n_out = 0;
    return EN_OK;
}

void eni_runs_free(eni_run *runs, size_t n)
{
    (void)n;
    eni_free(runs);
}

en_status eni_runs_stop(const eni_run *run, const char *why, int64_t deadline_ns)
{
    (void)run, (void)why, (void)deadline_ns;
    return EN_ENOENT;
}
