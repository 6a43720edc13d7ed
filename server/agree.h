/* agree.h - does psd agree with its workers? The workers' key-values equal each other's already (leader.h);
 * psd was started by another command, perhaps from another build. */
#ifndef SERVER_AGREE_H
#define SERVER_AGREE_H

#include "config/config.h"
#include "runtime/control/control.h"
#include "server/setup.h"

typedef struct eni_psd_terms {
    const eni_config *config;
    const char *version; /* of this program; NULL: not compared */
    const en_strategy *strategy;
    const eni_options *options; /* as given to psd itself; NULL: none were, the workers choose */
} eni_psd_terms;

/* Version, ABI, the strategy's options, --sum-order, --transport and --net, the last three only if psd was
 * given them. EN_EMISMATCH: why_out has psd's value and rank 0's. */
en_status eni_psd_agree(const eni_psd_terms *terms, const eni_key_value *key_values, size_t nkey_values,
                        const eni_setup *setup, char why_out[ENI_REASON_MAX]);

#endif
