/* choose.c - which all-reduce, over what, and why. */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/collective/coll.h"

static const char *const names[] = {"auto", "direct", "ring", "naive"};
enum { NNAMES = sizeof names / sizeof *names };

const char *eni_coll_algorithm_name(int algorithm)
{
    return algorithm >= 0 && algorithm < NNAMES ? names[algorithm] : "unknown";
}

int eni_coll_algorithm_parse(const char *name)
{
    for (int i = 0; i < NNAMES; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

static en_status choose_direct(const eni_coll_facts *facts, eni_coll_choice *choice)
{
    const char *obstacle = facts->nhosts > 1  ? "the ranks are on several hosts"
                           : facts->is_shaped ? "--net emulates a network, and shared memory has none"
                           : facts->no_shm    ? facts->no_shm
                                              : NULL;
    if (obstacle)
        return eni_fail(EN_EINVAL, "coll",
                        "--allreduce=direct needs shared memory, but %s; use --allreduce=ring or auto",
                        obstacle);
    *choice = (eni_coll_choice){.algorithm = ENI_COLL_DIRECT, .transport = ENI_OVER_SHM, .why = "asked for"};
    return EN_OK;
}

static void choose_auto(const eni_coll_facts *facts, eni_coll_choice *choice)
{
    choice->algorithm = ENI_COLL_RING;
    choice->transport = ENI_OVER_TCP;
    if (facts->nhosts > 1) {
        snprintf(choice->why, sizeof choice->why, "%d ranks on %d hosts", facts->nranks, facts->nhosts);
    } else if (facts->is_shaped) {
        snprintf(choice->why, sizeof choice->why, "--net emulates a network");
    } else if (facts->no_shm) {
        snprintf(choice->why, sizeof choice->why, "memory cannot be shared: %s", facts->no_shm);
    } else {
        choice->algorithm = ENI_COLL_DIRECT;
        choice->transport = ENI_OVER_SHM;
        snprintf(choice->why, sizeof choice->why, "%d ranks on one host share memory", facts->nranks);
    }
}

en_status eni_coll_choose(const eni_coll_facts *facts, eni_coll_choice *choice_out)
{
    eni_coll_choice choice = {.transport = ENI_OVER_TCP, .why = "asked for"};
    if (facts->nranks == 1) {
        choice = (eni_coll_choice){ENI_COLL_DIRECT, ENI_OVER_SHM, "one rank: nothing to exchange"};
    } else if (facts->asked == ENI_COLL_AUTO) {
        choose_auto(facts, &choice);
    } else if (facts->asked == ENI_COLL_DIRECT) {
        EN_TRY(choose_direct(facts, &choice));
    } else {
        const int can_share = facts->nhosts == 1 && !facts->is_shaped && !facts->no_shm;
        choice.algorithm = facts->asked;
        if (facts->asked == ENI_COLL_NAIVE && facts->naive_in_shm && can_share)
            choice.transport = ENI_OVER_SHM;
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
    /* naive: everybody sends its whole vector to every owner, because nobody knows who owns what */
    if (op == EN_REDUCE_SCATTER && algorithm == ENI_COLL_NAIVE) return others;
    /* the owners' means go to rank 0 */
    if (op == EN_REDUCE && algorithm == ENI_COLL_DIRECT) return others / n * (1 + 1 / n);
    return others / n;
}
