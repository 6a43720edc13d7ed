/* journal.h - the event log of a run: hashed always, shown to the caller if wanted. Two runs with one hash
 * did the same things at the same times in the same order. */
#ifndef SIM_JOURNAL_H
#define SIM_JOURNAL_H

#include "runtime/sim/sim.h"

typedef struct eni_journal {
    eni_digest *digest;
    void (*trace)(void *user, const eni_sim_event *event);
    void *trace_user;
} eni_journal;

en_status eni_journal_init(eni_journal *journal, const eni_sim_config *config);
void eni_journal_add(eni_journal *journal, const eni_sim_event *event);

/* Writes the hash and ends the journal. */
void eni_journal_take(eni_journal *journal, char hex_out[ENI_DIGEST_HEX]);

#endif
