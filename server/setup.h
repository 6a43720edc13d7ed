/* setup.h - psd's description of a run, read from rank 0's JOIN.
 *
 * psd's own command line has addresses, limits and the strategy's name. Buckets, optimizer, schedule and
 * options come as key-values of text with the first rank's JOIN, which every other rank's equal (leader.h).
 * They come from a socket, so every one is checked, and an error is refused in one sentence that all ranks
 * get. */
#ifndef SERVER_SETUP_H
#define SERVER_SETUP_H

#include "config/config.h"
#include "core/options.h"
#include "runtime/control/control.h"
#include "runtime/store/store.h"

typedef struct eni_setup {
    eni_store_config store;   /* for any shard, which adds its own number and its weights' memory */
    uint64_t *counts;         /* (store.nbuckets) elements; owned, as the next two */
    uint64_t *offsets;        /* (store.nbuckets) where each starts in the flat vector of a worker's arena */
    eni_options *options;     /* resolved */
    eni_param_groups *groups; /* store.hyper.groups; owned; NULL without groups */
    eni_rate_points *points;  /* store.schedule.points, likewise */
    uint64_t elements;        /* of that vector */
    uint64_t budget;          /* micro-batches to be claimed */
    uint64_t net_bytes_per_s; /* --net; 0, 0: the real wire */
    int64_t net_delay_ns;
} eni_setup;

/* Reads the key-values, for a run of `strategy` (borrowed by ->options). On failure only why_out is set, and
 * the status is EN_EPROTO (missing, malformed), EN_EMISMATCH (another strategy) or EN_ENOMEM. Any thread. */
en_status eni_setup_read(const en_strategy *strategy, const eni_key_value *key_values, size_t nkey_values,
                         eni_setup *setup_out, char why_out[ENI_REASON_MAX]);

/* Safe on zeroed memory. */
void eni_setup_fini(eni_setup *setup);

/* ---- psd's own command line ---------------------------------------------------------------------------- */

/* Does psd agree with its workers? The workers' key-values equal each other's already (leader.h); psd was
 * started by another command, perhaps from another build. */

/* `options` are those of psd's own command (NULL: none, the workers choose). Compares protocol, ABI, the
 * strategy's options, --sum-order, --transport and --net, the last three only if psd's command has them.
 * EN_EMISMATCH: why_out has psd's value and rank 0's. */
en_status eni_psd_agree(const eni_config *config, const eni_options *options, const eni_key_value *key_values,
                        size_t nkey_values, const eni_setup *setup, char why_out[ENI_REASON_MAX]);

#endif
