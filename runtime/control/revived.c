/* revived.c - what a leader has written down, folded into what the next one starts from; see leader.h. */
#include "runtime/control/leader.h"

en_status eni_revived_apply(eni_revived *revived, int32_t nranks, const eni_entry *entry)
{
    if (entry->kind == ENI_ENTRY_STOP) {
        revived->stop_step = entry->value;
        return EN_OK;
    }
    if (entry->rank < 0 || entry->rank >= nranks) return EN_EFORMAT;
    eni_revived_rank *rank = &revived->rank[entry->rank];
    switch (entry->kind) {
    case ENI_ENTRY_CLAIM:
        rank->claim_number = entry->number;
        rank->claim_index = entry->value;
        if (entry->value != UINT64_MAX && entry->value >= revived->claimed)
            revived->claimed = entry->value + 1;
        return EN_OK;
    case ENI_ENTRY_LEFT: rank->has_left = true; return EN_OK;
    case ENI_ENTRY_BYE: rank->has_said_bye = true; return EN_OK;
    default: return EN_EFORMAT;
    }
}
