/* agree.c - see agree.h. */
#include "server/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "config/units.h"
#include "core/try.h"

static en_status compare(const char *key, const char *ours, const char *theirs, char *why)
{
    if (strcmp(ours, theirs) == 0) return EN_OK;
    snprintf(why, ENI_REASON_MAX, "%s differs: psd has %.150s, rank 0 has %.150s", key, ours, theirs);
    return EN_EMISMATCH;
}

/* A key that rank 0 does not tell (libentrain tells few) is not compared. */
static en_status compare_key(const eni_key_value *key_values, size_t nkey_values, const char *key,
                             const char *ours, char *why)
{
    const char *theirs = eni_key_value_find(key_values, nkey_values, key);
    return theirs == NULL ? EN_OK : compare(key, ours, theirs, why);
}

static en_status compare_net(const char *net, const eni_setup *setup, char *why)
{
    char ours[80], theirs[80];
    uint64_t rate;
    int64_t delay;
    const char *wrong;
    if (!eni_net_parse(net, &rate, &delay, &wrong)) return EN_EINVAL; /* config/ has checked it */
    snprintf(ours, sizeof ours, "rate:%" PRIu64 "B,delay:%" PRId64 "ns", rate, delay);
    snprintf(theirs, sizeof theirs, "rate:%" PRIu64 "B,delay:%" PRId64 "ns", setup->net_bytes_per_s,
             setup->net_delay_ns);
    return compare("net", ours, theirs, why);
}

en_status eni_psd_agree(const eni_psd_terms *terms, const eni_key_value *key_values, size_t nkey_values,
                        const eni_setup *setup, char why_out[ENI_REASON_MAX])
{
    static const char *const orders[] = {"rank", "ring"};           /* ENI_ORDER_* */
    static const char *const transports[] = {"auto", "shm", "tcp"}; /* ENI_TRANSPORT_* */
    const eni_config *c = terms->config;
    char abi[16];
    snprintf(abi, sizeof abi, "%u", EN_STRATEGY_ABI);
    if (terms->version != NULL)
        EN_TRY(compare_key(key_values, nkey_values, "version", terms->version, why_out));
    EN_TRY(compare_key(key_values, nkey_values, "strategy-abi", abi, why_out));
    if (terms->options != NULL)
        EN_TRY(compare("strategy-options", eni_options_canonical(terms->options),
                       eni_options_canonical(setup->options), why_out));
    if (eni_config_is_given(c, "sum-order"))
        EN_TRY(compare("sum-order", orders[c->sum_order], orders[setup->sum_order], why_out));
    if (eni_config_is_given(c, "transport"))
        EN_TRY(compare_key(key_values, nkey_values, "transport", transports[c->transport], why_out));
    if (c->net != NULL) EN_TRY(compare_net(c->net, setup, why_out));
    return EN_OK;
}
