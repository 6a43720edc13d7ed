/* journal.h - which rank was given which micro-batch, in a file that is mapped: so it survives psd's death
 * (not the machine's), at the price of two stores to memory an answer.
 *
 * A rank numbers its claims 1, 2, .. and may ask again for the last one only. Its entries alternate between
 * two slots; the number is stored behind the index, so whatever instruction psd dies at, the slot with the
 * higher number is whole. */
#ifndef SERVER_JOURNAL_H
#define SERVER_JOURNAL_H

#include "server/state.h"

typedef struct eni_journal eni_journal;

/* The last answer to a rank; number 0: it has not asked yet. */
typedef struct eni_journal_claim {
    uint64_t number, index;
} eni_journal_claim;

/* A new file (is_new: whatever was there goes) or the one of this run. EN_ENOENT, EN_EFORMAT (another run,
 * another number of ranks, cut off), EN_EIO; logged. */
en_status eni_journal_open(const eni_state *state, uint64_t run, int32_t nranks, int is_new,
                           eni_journal **journal_out);

/* Before the answer is sent. Leader's thread. */
void eni_journal_write(eni_journal *journal, int32_t rank, uint64_t number, uint64_t index);

eni_journal_claim eni_journal_last(const eni_journal *journal, int32_t rank);

/* Indices are handed out in order, so the first that nobody has is one more than the greatest. */
uint64_t eni_journal_handed_out(const eni_journal *journal);

void eni_journal_close(eni_journal *journal); /* NULL is fine */

#endif
