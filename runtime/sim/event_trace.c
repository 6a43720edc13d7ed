#include "runtime/sim/event_trace.h"

en_status eni_event_trace_init(eni_event_trace *events, const eni_sim_config *config)
{
    events->digest = eni_digest_new();
    events->trace = config->trace;
    events->trace_user = config->trace_user;
    return events->digest ? EN_OK : EN_ENOMEM;
}

void eni_event_trace_add(eni_event_trace *events, const eni_sim_event *event)
{
    /* Field by field: a struct may have padding. */
    const uint64_t words[] = {(uint64_t)event->at_ns,
                              event->type,
                              (uint64_t)(int64_t)event->rank,
                              (uint64_t)(int64_t)event->peer,
                              event->bucket,
                              event->clock,
                              event->version,
                              event->base};
    eni_digest_add(events->digest, words, sizeof words);
    if (events->trace) events->trace(events->trace_user, event);
}

void eni_event_trace_take(eni_event_trace *events, char hex_out[ENI_DIGEST_HEX])
{
    if (events->digest) eni_digest_take(events->digest, hex_out);
    events->digest = NULL;
}
