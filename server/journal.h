/* journal.h - what the leader has said and must not unsay, in a file that is mapped: so it survives psd's
 * death (not the machine's), at the price of two stores to memory an entry.
 *
 * A rank numbers its claims 1, 2, .. and may ask again for the last one only. Its claims alternate between
 * two slots; the number is stored behind the answer, so whatever instruction psd dies at, the slot with the
 * higher number is whole. */
#ifndef SERVER_JOURNAL_H
#define SERVER_JOURNAL_H

#include "runtime/control/leader.h"
#include "server/state.h"

typedef struct eni_journal eni_journal;

/* A new file (is_new: whatever was there goes) or the one of this run. EN_ENOENT, EN_EFORMAT (another run,
 * another number of ranks, cut off), EN_EIO; logged. */
en_status eni_journal_open(const eni_state *state, uint64_t run, int32_t nranks, int is_new,
                           eni_journal **journal_out);

/* Before it is said. Leader's thread. */
void eni_journal_write(eni_journal *journal, const eni_entry *entry);

/* Folds everything that was written into what a leader starts from. */
en_status eni_journal_fold(const eni_journal *journal, eni_revived *revived);

void eni_journal_close(eni_journal *journal); /* NULL is fine */

#endif
