/* choose.c - which all-reduce, over what, and why. */
#include <stdio.h>

#include "core/log.h"
#include "runtime/collective/coll.h"

static const char *const names[] = {"auto", "direct", "ring", "naive"};
enum { NNAMES = sizeof names / sizeof *names };

const char *eni_coll_algorithm_name(int algorithm)
{
    return algorithm >= 0 && algorithm < NNAMES ? names[algorithm] : "unknown";
}

en_status eni_coll_choose(const eni_coll_facts *facts, eni_coll_choice *choice_out)
{
    const bool is_auto = facts->asked == ENI_COLL_AUTO;
    const char *obstacle = facts->nhosts > 1  ? "the ranks are on several hosts"
                           : facts->is_shaped ? "--net emulates a network, and shared memory has none"
                                              : facts->no_shm;
    eni_coll_choice choice = {facts->asked, ENI_OVER_TCP, "asked for"};
    if (facts->nranks == 1) {
        choice = (eni_coll_choice){ENI_COLL_DIRECT, ENI_OVER_SHM, "one rank: nothing to exchange"};
    } else if (facts->asked == ENI_COLL_DIRECT && obstacle != NULL) {
        return eni_fail(EN_EINVAL, "coll",
                        "--allreduce=direct needs shared memory, but %s; use --allreduce=ring or auto",
                        obstacle);
    } else if (is_auto && obstacle != NULL) {
        choice.algorithm = ENI_COLL_RING;
        if (facts->nhosts > 1)
            snprintf(choice.why, sizeof choice.why, "%d ranks on %d hosts", facts->nranks, facts->nhosts);
        else if (facts->is_shaped)
            snprintf(choice.why, sizeof choice.why, "--net emulates a network");
        else
            snprintf(choice.why, sizeof choice.why, "memory cannot be shared: %s", obstacle);
    } else if (is_auto || facts->asked == ENI_COLL_DIRECT ||
               (facts->asked == ENI_COLL_NAIVE && facts->naive_in_shm && obstacle == NULL)) {
        if (is_auto) choice.algorithm = ENI_COLL_DIRECT;
        choice.transport = ENI_OVER_SHM;
        if (is_auto)
            snprintf(choice.why, sizeof choice.why, "%d ranks on one host share memory", facts->nranks);
    }
    *choice_out = choice;
    return EN_OK;
}

double eni_coll_bytes(int algorithm, int op, int nranks)
{
    const double n = nranks, others = n - 1;
    if (nranks <= 1) return 0;
    if (op == ENI_COLL_SENDRECV) return 1;
    if (op == ENI_COLL_BARRIER) return 0;
    if (op == EN_ALLREDUCE) return algorithm == ENI_COLL_NAIVE ? others : 2 * others / n;
    /* naive: each rank sends its whole vector to every other, because it does not know their ranges */
    if (op == EN_REDUCE_SCATTER && algorithm == ENI_COLL_NAIVE) return others;
    /* the owners' means go to rank 0 */
    if (op == EN_REDUCE && algorithm == ENI_COLL_DIRECT) return others / n * (1 + 1 / n);
    return others / n;
}
