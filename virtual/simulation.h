/* simulation.h - a run in virtual time as a configuration describes it: for `entrain sim` and for entrain/sim.h. */
#ifndef VIRTUAL_SIMULATION_H
#define VIRTUAL_SIMULATION_H

#include "config/config.h"
#include "runtime/sim/sim.h"

typedef struct eni_virtual {
    eni_sim_config sim; /* all but problem, hooks, trace, eval and weights_out, which are the caller's */
    eni_options *options;
    double *factor;              /* (workers) */
    eni_law *laws;               /* (workers) --compute */
    double *times;               /* what laws of kind SAMPLES draw from */
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

/* Safe on zeroed memory. */
void eni_virtual_close(eni_virtual *v);

#endif
