#include "runtime/sim/journal.h"

en_status eni_journal_init(eni_journal *journal, const eni_sim_config *config)
{
    journal->digest = eni_digest_new();
    journal->trace = config->trace;
    journal->trace_user = config->trace_user;
    return journal->digest ? EN_OK : EN_ENOMEM;
}

void eni_journal_add(eni_journal *journal, const eni_sim_event *event)
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
    eni_digest_add(journal->digest, words, sizeof words);
    if (journal->trace) journal->trace(journal->trace_user, event);
}

void eni_journal_take(eni_journal *journal, char hex_out[ENI_DIGEST_HEX])
{
    if (journal->digest) eni_digest_take(journal->digest, hex_out);
    journal->digest = NULL;
}
