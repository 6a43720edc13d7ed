/* leader_gather.c - all-gather of small blobs. Every rank numbers its gathers 1, 2, ..; the open one is the
 * first that some rank has not received. After a rejoin a rank may be one ahead of another: it sends its last
 * blob again, for the one that missed the answer. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "runtime/control/leader_state.h"

const eni_kept *eni_leader_member_blob(const eni_leader_member *member, uint64_t number)
{
    const eni_kept *kept = &member->kept[number % 2];
    return kept->number == number && number != 0 ? kept : NULL;
}

static bool takes_part(const eni_leader_member *member)
{
    return member->stage == MEMBER_HERE || (member->stage == MEMBER_BYE && !member->is_leaving) ||
           member->stage == MEMBER_MISSING;
}

/* The number of the open gather; 0 without ranks. */
static uint64_t open_number(const eni_leader *leader)
{
    uint64_t least = UINT64_MAX;
    for (int32_t r = 0; r < leader->config.nranks; r++)
        if (takes_part(&leader->members[r]) && leader->members[r].told < least)
            least = leader->members[r].told;
    return least == UINT64_MAX ? 0 : least + 1;
}

/* The lowest rank that has sent its blob of this number; NULL if none has. */
static const eni_leader_member *first_in(const eni_leader *leader, uint64_t number)
{
    for (int32_t r = 0; r < leader->config.nranks; r++)
        if (takes_part(&leader->members[r]) && eni_leader_member_blob(&leader->members[r], number) != NULL)
            return &leader->members[r];
    return NULL;
}

bool eni_leader_is_between_gathers(const eni_leader *leader, uint64_t *done_out)
{
    const eni_leader_member *first = NULL;
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        const eni_leader_member *member = &leader->members[r];
        if (!takes_part(member) || member->stage == MEMBER_MISSING) continue;
        if (first == NULL) first = member;
        if (member->told != first->told || eni_leader_member_blob(member, member->told + 1) != NULL)
            return false;
    }
    if (first == NULL) return false;
    *done_out = first->told;
    return true;
}

/* ---- sending ---- */

static void send_blobs(eni_leader *leader, uint64_t number, const char *tag, const eni_blob *blobs,
                       uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        eni_message m = {.type = ENI_CTL_GATHERED, .number = number, .index = i, .count = count};
        memcpy(m.tag, tag, sizeof m.tag);
        m.blob = (eni_span){blobs[i].data, blobs[i].bytes};
        for (int32_t r = 0; r < leader->config.nranks; r++)
            if (leader->members[r].told < number && leader->members[r].stage == MEMBER_HERE)
                eni_leader_member_put(&leader->members[r], &m);
    }
}

static void forget(eni_leader *leader, uint64_t number)
{
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        eni_leader_member *member = &leader->members[r];
        if (member->kept[number % 2].number == number) eni_kept_fini(&member->kept[number % 2]);
        if (member->stage == MEMBER_HERE && member->told < number) member->told = number;
    }
    for (int32_t i = leader->config.nranks; i < leader->nmembers; i++)
        eni_kept_fini(&leader->members[i].added);
    leader->asked_gather = 0;
}

static eni_blob blob_of(const eni_kept *kept)
{
    static const uint8_t nothing[1];
    return kept == NULL || kept->data == NULL ? (eni_blob){nothing, 0} : (eni_blob){kept->data, kept->bytes};
}

/* All blobs are here: sends all, and last the leader's, to the ranks that have not received them. */
static void finish_gather(eni_leader *leader, uint64_t number, const eni_kept *opened)
{
    uint32_t nranks = (uint32_t)leader->config.nranks, nmembers = (uint32_t)leader->nmembers;
    eni_blob *blobs = eni_alloc_array(nmembers + 1, sizeof *blobs);
    if (blobs == NULL) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    char tag[ENI_TAG_MAX];
    bool is_asked = leader->asked_gather == number;
    const int64_t now_ns = eni_now_ns();
    memcpy(tag, opened->tag, sizeof tag);
    for (uint32_t i = 0; i < nmembers; i++) {
        const eni_leader_member *member = &leader->members[i];
        bool counts = i >= nranks || takes_part(member);
        blobs[i] = blob_of(!counts      ? NULL
                           : i < nranks ? eni_leader_member_blob(member, number)
                                        : &member->added);
    }
    eni_blob own = blob_of(NULL);
    if (leader->config.on_gather != NULL)
        leader->config.on_gather(leader->config.user, tag, blobs, is_asked ? nmembers : nranks, &own);
    if (own.bytes == 0 && strcmp(tag, ENI_GATHER_BEGIN) == 0)
        own = (eni_blob){(const uint8_t *)&now_ns, sizeof now_ns};
    blobs[nranks] = own; /* the leader folds the servers' blobs into its own */
    if (own.bytes > ENI_BLOB_MAX)
        eni_leader_finish(leader, EN_EINVAL, "the leader's own blob is over the limit");
    else
        send_blobs(leader, number, tag, blobs, nranks + 1);
    eni_free(blobs);
    forget(leader, number);
}

/* ---- completeness ---- */

/* Whether all servers have sent their part, which they add to "result"; asks them once. */
static bool servers_added(eni_leader *leader, uint64_t number, const char *tag)
{
    bool has_all = true;
    if (leader->nmembers == leader->config.nranks || strcmp(tag, "result") != 0) return true;
    if (leader->asked_gather != number) {
        eni_message ask = {.type = ENI_CTL_ASK, .number = number};
        memcpy(ask.tag, tag, sizeof ask.tag);
        for (int32_t i = leader->config.nranks; i < leader->nmembers; i++)
            eni_leader_member_put(&leader->members[i], &ask);
        leader->asked_gather = number;
    }
    for (int32_t i = leader->config.nranks; i < leader->nmembers; i++)
        has_all = has_all && leader->members[i].added.number == number;
    return has_all;
}

void eni_leader_try_gather(eni_leader *leader)
{
    char reason[ENI_REASON_MAX];
    for (;;) {
        uint64_t number = open_number(leader);
        const eni_leader_member *first = number == 0 ? NULL : first_in(leader, number);
        const eni_kept *kept = first == NULL ? NULL : eni_leader_member_blob(first, number);
        /* After an abort all are about to get that instead of an answer. */
        if (kept == NULL || leader->stage != LEADER_RUNNING || leader->abort.at_ns != 0) return;
        for (int32_t r = 0; r < leader->config.nranks; r++) {
            const eni_leader_member *member = &leader->members[r];
            bool is_here = eni_leader_member_blob(member, number) != NULL;
            bool can_not_come = (member->stage == MEMBER_GONE || member->stage == MEMBER_BYE) && !is_here &&
                                !member->is_leaving;
            if (can_not_come) { /* the run ends rather than hang */
                snprintf(reason, sizeof reason,
                         "rank %d waits in gather '%s', but another rank has already left the run",
                         eni_leader_member_number(leader, first), kept->tag);
                eni_leader_finish(leader, EN_EMISMATCH, reason);
            }
            if (can_not_come || (takes_part(member) && !is_here)) return;
        }
        if (!servers_added(leader, number, kept->tag)) return;
        finish_gather(leader, number, kept);
    }
}

/* ---- incoming blobs ---- */

/* Whether this is its next gather, or, after a rejoin, the one that it has already done. */
static bool is_due(const eni_leader_member *member, uint64_t number)
{
    bool is_next = number == member->told + 1;
    bool is_last =
        number == member->told && member->connection->incarnation != 0 && number == member->connection->done;
    return (is_next || is_last) && number != 0 && eni_leader_member_blob(member, number) == NULL;
}

const char *eni_leader_gather(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    if (!is_due(member, m->number)) return "it sent a gather out of order";
    const eni_leader_member *first = first_in(leader, m->number);
    const eni_kept *opened = first == NULL ? NULL : eni_leader_member_blob(first, m->number);
    if (opened != NULL && strcmp(opened->tag, m->tag) != 0) {
        char reason[ENI_REASON_MAX];
        snprintf(reason, sizeof reason,
                 "rank %d is at gather '%s', rank %d at '%s': ranks must gather in one order",
                 eni_leader_member_number(leader, member), m->tag, eni_leader_member_number(leader, first),
                 opened->tag);
        eni_leader_finish(leader, EN_EMISMATCH, reason);
        return NULL;
    }
    if (!eni_kept_fill(&member->kept[m->number % 2], m)) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return NULL;
    }
    if (member->done + 1 < m->number) member->done = m->number - 1; /* it would not gather again otherwise */
    eni_leader_try_gather(leader);
    return NULL;
}

const char *eni_leader_added(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    if (leader->asked_gather == 0 || m->number != leader->asked_gather || member->added.number == m->number)
        return "it sent a blob that was not requested";
    if (!eni_kept_fill(&member->added, m)) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return NULL;
    }
    eni_leader_try_gather(leader);
    return NULL;
}
