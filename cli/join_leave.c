/* join_leave.c - `entrain join` and `entrain leave`: change the number of workers of a run of this user on
 * this host. The leader of an elastic run is asked to (control/ask.h); if its ranks come and go, newcomers
 * are started here, and the leader is asked to release one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/find_run.h"
#include "config/env.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "run/units.h"
#include "runtime/control/ask.h"

enum { ANSWER_S = 10 };

/* Asks the leader, which has left its token under its port. */
static en_status ask(const eni_run_status *run, eni_ask_kind kind, int64_t number,
                     char why_out[ENI_REASON_MAX])
{
    char folder[256], path[512];
    eni_address leader;
    eni_token token;
    EN_TRY(eni_env_runtime_dir(folder, sizeof folder));
    EN_TRY(eni_address_parse(eni_run_attribute(run, "leader"), &leader));
    EN_TRY(eni_token_path(folder, leader.port, path, sizeof path));
    EN_TRY(eni_token_read(path, &token));
    return eni_ask(&leader, &token, kind, number, eni_now_ns() + ANSWER_S * ENI_SECOND, why_out);
}

/* Its ranks may join and leave during the run. */
static bool has_seats(const eni_run_status *run)
{
    return eni_run_attribute(run, "max-workers")[0] != '\0';
}

/* Checks what is known without asking the leader. */
static en_status check(const eni_run_status *run, const char *who)
{
    if (eni_run_attribute(run, "elastic")[0] != '\0' || has_seats(run)) return EN_OK;
    return eni_fail(EN_EINVAL, who,
                    "run %" PRId64 " (%s): the number of workers cannot change: the run was not started with "
                    "--elastic=MIN..MAX or --max-workers=N, or its ranks have state of their own",
                    eni_run_number(run), eni_run_attribute(run, "strategy"));
}

static en_status change(const eni_run_status *run, const char *who, eni_ask_kind kind, int64_t number)
{
    char why[ENI_REASON_MAX] = "";
    const en_status st = ask(run, kind, number, why);
    if (st == EN_OK && kind == ENI_ASK_LEAVE)
        printf("run %" PRId64 " (%s): rank %" PRId64
               " leaves once it has finished the micro-batches it has claimed\n",
               eni_run_number(run), eni_run_attribute(run, "strategy"), number);
    else if (st == EN_OK)
        printf("run %" PRId64 " (%s, %d worker%s): saving, then continuing with %s\n", eni_run_number(run),
               eni_run_attribute(run, "strategy"), (int)run->nranks, run->nranks == 1 ? "" : "s", why);
    else if (why[0] != '\0')
        eni_error(who, "run %" PRId64 " (%s): %s", eni_run_number(run), eni_run_attribute(run, "strategy"),
                  why);
    return st;
}

static en_status join_run(const eni_command_context *context, const eni_run_status *run)
{
    const int64_t n = context->config->workers;
    EN_TRY(check(run, "join"));
    if (has_seats(run)) return eni_newcomers_start(run, (int)n, context->signal_fd);
    return change(run, "join", ENI_ASK_RESIZE, n);
}

static en_status leave_run(const eni_command_context *context, const eni_run_status *run)
{
    const char *word = context->config->args.item[1];
    /* with seats, any rank number may be in use: the leader knows which */
    const int32_t limit = has_seats(run) ? ENI_RANKS_MAX : run->nranks;
    int64_t rank;
    EN_TRY(check(run, "leave"));
    if (!eni_parse_i64(word, &rank) || rank < 0 || rank >= limit)
        return eni_fail(EN_EINVAL, "leave",
                        "\"%.32s\" is not a rank of run %" PRId64 ": give a number from 0 to %d", word,
                        eni_run_number(run), (int)limit - 1);
    return has_seats(run) ? change(run, "leave", ENI_ASK_LEAVE, rank)
                          : change(run, "leave", ENI_ASK_RESIZE, -1);
}

en_status eni_command_join(const eni_command_context *context)
{
    return eni_run_with(context, "join", join_run);
}

en_status eni_command_leave(const eni_command_context *context)
{
    return eni_run_with(context, "leave", leave_run);
}
