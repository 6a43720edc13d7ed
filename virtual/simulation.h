/* simulation.h - a run in virtual time as a configuration describes it: for `entrain sim` and for entrain/sim.h. */
#ifndef VIRTUAL_SIMULATION_H
#define VIRTUAL_SIMULATION_H

#include <jansson.h>

#include "config/config.h"
#include "runtime/sim/sim.h"

typedef struct eni_virtual {
    eni_sim_config sim; /* all but problem, hooks, trace, eval and weights_out, which are the caller's */
    eni_options *options;
    eni_law *laws;               /* (workers) --compute */
    double *times;               /* what laws of kinds SAMPLES and TRACE draw from */
    eni_slowdown *slow;          /* --straggler */
    eni_net_links links;         /* --net: in one array, of ranks, servers, machines */
    int32_t *shared;             /* (workers + servers) eni_sim_network */
    eni_law *service;            /* (servers) --server-time */
    int64_t *join_ns, *leave_ns; /* (workers) */
    int32_t *groups;             /* (workers) */
    eni_sim_order order;         /* --replay-order: these three */
    int32_t nshards;
    eni_arrivals *arrivals; /* (nshards) */
    double *batches;
    size_t *first; /* (workers + 1) */
} eni_virtual;

/* Finds the strategy in `plugins` and turns the flags of `entrain sim` into a configuration of runtime/sim; `config` is
 * resolved. Reads the file or the run that --compute or --replay-order names. On failure there is nothing to close. EN_EINVAL, EN_ENOENT,
 * logged; EN_ENOMEM. */
en_status eni_virtual_open(const eni_config *config, const char *plugins, eni_virtual *virtual_out);

/* How long things take, as it was understood: {"compute": [["ranks 0-3", "exp:10ms"], ..], "stragglers", "network",
 * "server_time"}, each a list of pairs. The caller's; NULL when out of memory. */
json_t *eni_virtual_timing(const eni_virtual *v);

/* Safe on zeroed memory. */
void eni_virtual_close(eni_virtual *v);

#endif
