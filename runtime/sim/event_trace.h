/* event_trace.h - the event log of a run: hashed always, shown to the caller if wanted. Two runs with one hash
 * did the same things at the same times in the same order. */
#ifndef SIM_EVENT_TRACE_H
#define SIM_EVENT_TRACE_H

#include "runtime/sim/sim.h"

typedef struct eni_event_trace {
    eni_digest *digest;
    void (*trace)(void *user, const eni_sim_event *event);
    void *trace_user;
} eni_event_trace;

en_status eni_event_trace_init(eni_event_trace *events, const eni_sim_config *config);
void eni_event_trace_add(eni_event_trace *events, const eni_sim_event *event);

/* Writes the hash and ends the trace. */
void eni_event_trace_take(eni_event_trace *events, char hex_out[ENI_DIGEST_HEX]);

#endif
