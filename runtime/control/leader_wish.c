/* leader_wish.c - a request from outside the run (ask.h): other workers of an elastic run, a rank to leave one
 * whose ranks come and go, or its end. The sender shows the token, gets one answer and disconnects. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/control/ask.h"
#include "runtime/control/leader_state.h"

/* ---- a rank that is to leave ---- */

static const char *cannot_leave(const eni_leader *leader, int64_t rank)
{
    if (leader->config.nplaces == 0) return "its ranks are fixed: it was started without --max-workers=N";
    if (rank == 0) return "rank 0 keeps the curve and the result; use `entrain stop` to end the run";
    if (rank < 0 || rank >= leader->ncame) return "it has no such rank";
    if (leader->members[rank].stage != MEMBER_HERE) return "that rank has already left";
    return leader->members[rank].is_leaving ? "it was already asked to leave" : NULL;
}

void eni_leader_ask_to_leave(eni_leader *leader, int32_t rank)
{
    if (cannot_leave(leader, rank) != NULL) return;
    if (eni_leader_write(leader, ENI_ENTRY_LEAVE, rank, 0, 0) != EN_OK) return;
    leader->members[rank].is_leaving = true;
    eni_leader_member_put(&leader->members[rank], &(eni_message){.type = ENI_CTL_LEAVE});
}

/* ---- another number of workers ---- */

/* The new number of workers of an elastic run; 0 if it is not possible, and why. */
static int32_t resized(const eni_leader *leader, int64_t change, char why_out[ENI_REASON_MAX])
{
    const eni_worker_range *e = &leader->config.elastic;
    const int64_t now = leader->config.nranks, wanted = now + change;
    const int32_t fit =
        wanted < 1 ? 0 : eni_worker_range_fit(e, (int32_t)(wanted < e->max ? wanted : e->max));
    char fitting[160];
    eni_worker_range_list(e, fitting, sizeof fitting);
    if (change > 0 && wanted > e->max)
        snprintf(why_out, ENI_REASON_MAX,
                 "it has %d worker%s, and --elastic=%d..%d allows %d at most: ask for fewer, or none",
                 (int)now, now == 1 ? "" : "s", e->min, e->max, e->max);
    else if (change > 0 && fit != wanted)
        snprintf(why_out, ENI_REASON_MAX,
                 "%d workers cannot share the %" PRId64
                 " samples of a step (--global-batch-size) evenly: %s can",
                 (int)wanted, e->batch, fitting);
    else if (fit == 0)
        snprintf(why_out, ENI_REASON_MAX,
                 "it has %d worker%s, and with --elastic=%d..%d and %" PRId64
                 " samples a step it cannot have fewer: %s can share them",
                 (int)now, now == 1 ? "" : "s", e->min, e->max, e->batch, fitting);
    else
        return fit;
    return 0;
}

/* ---- one request ---- */

static const char *not_now(const eni_leader *leader)
{
    if (leader->stage == LEADER_ENDING || eni_leader_is_stopping(leader)) return "it is ending";
    return leader->stage != LEADER_RUNNING ? "not all of its workers have joined yet: ask again later" : NULL;
}

/* NULL if the request is possible; else why not. */
static const char *why_not(const eni_leader *leader, const eni_message *wish)
{
    const char *no = not_now(leader);
    if (wish->kind == ENI_ASK_STOP) return no;
    if (no != NULL || wish->kind == ENI_ASK_LEAVE)
        return no != NULL ? no : cannot_leave(leader, wish->amount);
    if (wish->kind != ENI_ASK_RESIZE)
        return "it does not know this kind of request: is `entrain` of another version?";
    if (leader->config.elastic.max > 0) return NULL;
    return leader->config.nplaces > 0 ? "its ranks come and go one by one: `entrain join` starts another one"
                                      : "its number of workers is fixed: it was started without "
                                        "--elastic=MIN..MAX, or its ranks have state of their own";
}

/* `said` is the answer: "2 workers; 3 workers cannot share out .." */
static void resize(eni_leader *leader, int32_t workers, int64_t change, const char *said)
{
    char why[ENI_REASON_MAX];
    const int wanted = (int)(leader->config.nranks + change);
    snprintf(why, sizeof why, "%d worker%s asked for (entrain %s)%.160s", wanted,
             wanted == 1 ? " was" : "s were", change > 0 ? "join" : "leave", strchrnul(said, ';'));
    if (leader->config.on_resize != NULL) leader->config.on_resize(leader->config.user, workers, why);
    eni_leader_begin_stop(leader, why, true);
}

void eni_leader_wish(eni_leader *leader, eni_connection *connection, const eni_message *wish)
{
    char why[ENI_REASON_MAX];
    int32_t workers = 0;
    eni_message answer = {.type = ENI_CTL_BYE};
    if (!eni_leader_knows(leader, connection, &wish->token)) return;
    const char *no = why_not(leader, wish);
    if (no == NULL && wish->kind == ENI_ASK_RESIZE && (workers = resized(leader, wish->amount, why)) == 0)
        no = why;
    if (no != NULL) {
        answer = (eni_message){.type = ENI_CTL_REFUSED, .status = EN_EINVAL};
        snprintf(answer.reason, sizeof answer.reason, "%s", no);
    } else if (workers > 0) {
        char uneven[160];
        eni_worker_range_why(&leader->config.elastic, (int32_t)(leader->config.nranks + wish->amount),
                             workers, uneven, sizeof uneven);
        answer.type = ENI_CTL_NOTICE;
        snprintf(answer.reason, sizeof answer.reason, "%d worker%s%s", workers, workers == 1 ? "" : "s",
                 uneven);
    } else if (wish->kind == ENI_ASK_LEAVE) {
        eni_leader_ask_to_leave(leader, (int32_t)wish->amount); /* recorded before it is answered */
    }
    eni_connection_put(connection, &answer);
    eni_connection_leave(connection);
    if (workers > 0) resize(leader, workers, wish->amount, answer.reason);
    if (no == NULL && wish->kind == ENI_ASK_STOP) eni_leader_begin_stop(leader, "Ctrl-C", false);
}
