/* check_ranks.h - the smallest job that uses everything, and what it measures when asked. */
#ifndef CLI_CHECK_RANKS_H
#define CLI_CHECK_RANKS_H

#include "cli/commands.h"
#include "runtime/host/costs.h"

typedef struct eni_check_job {
    int64_t workers, shards;
    const char *strategy, *device; /* NULL: ps-sync, ref */
    int64_t backend;               /* ENI_BACKEND_* */
    const char *model;             /* whose buckets are exchanged */
    const char *transport;         /* "auto", "tcp" */
    const char *net;               /* NULL: as it is */
    eni_costs *costs;              /* what the exchange of a bucket takes; NULL: not asked */
} eni_check_job;

/* The workers join, add known numbers up over the all-reduce and in a step of the strategy, print a line each
 * unless `costs` is asked for, and leave. As eni_launch_run. */
en_status eni_check_run(const eni_command_context *context, const eni_check_job *job);

#endif
