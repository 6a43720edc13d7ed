/* group.c - common to all parts of a group: its first failure, and the comparison of two ranks' positions.
 * It calls neither an engine nor the public calls. */
#include "runtime/collective/group.h"

#include <stdio.h>

#include "core/log.h"

en_status eni_group_fail(eni_coll *coll, en_status st)
{
    int none = EN_OK;
    atomic_compare_exchange_strong(&coll->status, &none, st);
    return atomic_load(&coll->status);
}

static void place_text(char *text, size_t size, const eni_call_position *place)
{
    const char *what = place->what == EN_GRAD ? "gradient" : place->what == EN_WEIGHTS ? "weights" : "delta";
    char type[16] = "float32";
    if (place->dtype != ENI_COLL_F32) snprintf(type, sizeof type, "type %d", place->dtype);
    const int n = snprintf(text, size, "#%llu %s of bucket %u (%s, %llu elements of %s) in step %u, epoch %u",
                           (unsigned long long)place->seq, eni_coll_op_name(place->op), place->bucket, what,
                           (unsigned long long)place->count, type, place->step, place->epoch);
    if (place->op == ENI_COLL_SENDRECV && n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, ", after %llu collectives", (unsigned long long)place->after);
}

en_status eni_group_disagree(int rank, const eni_call_position *ours, int peer,
                             const eni_call_position *theirs)
{
    char us[192], them[192];
    place_text(us, sizeof us, ours);
    place_text(them, sizeof them, theirs);
    return eni_fail(EN_EMISMATCH, "coll",
                    "rank %d is at %s, rank %d at %s: the ranks did not make the same calls", rank, us, peer,
                    them);
}
