/* ps_stop.c - `entrain ps` and `entrain stop`: this user's runs on this host, from outside. */
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/find_run.h"
#include "config/env.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "report/table.h"
#include "runtime/net/process.h"

enum { END_S = 10, LOOK_MS = 10 };

const char *eni_run_attribute(const eni_run_status *run, const char *key)
{
    const char *value = eni_key_value_find(run->attributes, run->nattributes, key);
    return value == NULL ? "" : value;
}

static const char *fact(const eni_run_status *run, const char *key)
{
    const char *value = eni_run_attribute(run, key);
    return value[0] == 0 ? "-" : value;
}

int64_t eni_run_number(const eni_run_status *run)
{
    const int64_t pid = atoll(eni_run_attribute(run, "launcher"));
    return pid > 0 ? pid : run->pid;
}

/* ---- ps ---- */

static int64_t furthest_step(const eni_run_status *run)
{
    int64_t step = -1;
    for (size_t i = 0; i < run->nrank; i++)
        if (run->rank[i].step > step) step = run->rank[i].step;
    return step;
}

static double share_done(const eni_run_status *run)
{
    const double budget = (double)run->budget;
    if (budget <= 0) return 0;
    /* otherwise each rank has its own share */
    if (run->claimed > 0) return 100 * (double)run->claimed / budget;
    const double share = 100 * (double)(furthest_step(run) + 1) * run->nranks / budget;
    return share < 100 ? share : 100;
}

static void format_time(int64_t elapsed_ns, char *text, size_t bytes)
{
    const int64_t s = elapsed_ns / ENI_SECOND;
    if (s < 3600)
        snprintf(text, bytes, "%" PRId64 ":%02" PRId64, s / 60, s % 60);
    else
        snprintf(text, bytes, "%" PRId64 ":%02" PRId64 ":%02" PRId64, s / 3600, s / 60 % 60, s % 60);
}

static const char *stage_of(const eni_run_status *run)
{
    static const char *const stages[] = {[ENI_RUN_JOINING] = "joining",
                                         [ENI_RUN_RUNNING] = "running",
                                         [ENI_RUN_STOPPING] = "stopping",
                                         [ENI_RUN_ENDING] = "ending"};
    if (run->is_stopped) return "stopped"; /* SIGSTOP, Ctrl-Z: the other fields are older */
    return eni_run_silent_ns(run, eni_now_ns()) > 0 ? "no answer" : stages[run->stage];
}

/* Why a run is not training, or its step. */
static void format_step(const eni_run_status *run, char *text, size_t bytes)
{
    const int64_t step = furthest_step(run);
    const char *stage = stage_of(run);
    if (strcmp(stage, "running") != 0)
        snprintf(text, bytes, "%s", stage);
    else if (step < 0)
        snprintf(text, bytes, "-");
    else
        eni_text_grouped((double)step, ",", text, bytes);
}

static void put_row(const eni_run_status *run, eni_table *table)
{
    char step[32], samples[32], time[32];
    format_step(run, step, sizeof step);
    eni_text_grouped((double)run->samples, ",", samples, sizeof samples);
    format_time(eni_now_ns() - run->started_ns, time, sizeof time);
    eni_table_put(table, "%" PRId64 "|%s|%s|%d|%s|%s|%.0f %%|%s|%s", eni_run_number(run),
                  fact(run, "strategy"), fact(run, "model"), (int)run->nranks, step, samples, share_done(run),
                  time, fact(run, "out"));
}

/* The same for programs: plain numbers; step is null before the first. */
static json_t *json_of_run(const eni_run_status *run)
{
    const int64_t step = furthest_step(run);
    const char *out = eni_run_attribute(run, "out");
    return json_pack("{s:I, s:s, s:s, s:i, s:s, s:o, s:I, s:f, s:f, s:s?}", "run",
                     (json_int_t)eni_run_number(run), "strategy", fact(run, "strategy"), "model",
                     fact(run, "model"), "workers", (int)run->nranks, "stage", stage_of(run), "step",
                     step < 0 ? json_null() : json_integer(step), "samples", (json_int_t)run->samples,
                     "percent", share_done(run), "seconds", (double)(eni_now_ns() - run->started_ns) * 1e-9,
                     "out", out[0] == 0 ? NULL : out);
}

static en_status print_json(const eni_run_status *runs, size_t n)
{
    json_t *all = json_pack("{s:i, s:[]}", "schema", 1, "runs"), *list = json_object_get(all, "runs");
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_of_run(&runs[i]));
    return eni_json_print(all);
}

static en_status list(eni_run_status **runs_out, size_t *n_out)
{
    char folder[256];
    EN_TRY(eni_env_runtime_dir(folder, sizeof folder));
    return eni_runs_list(folder, runs_out, n_out);
}

en_status eni_command_ps(const eni_command_context *context)
{
    eni_run_status *runs;
    eni_table table;
    size_t n;
    EN_TRY(list(&runs, &n));
    if (context->config->json) {
        const en_status st = print_json(runs, n);
        eni_runs_free(runs, n);
        return st;
    }
    eni_table_begin(&table, ">RUN|STRATEGY|MODEL|>WORKERS|>STEP|>SAMPLES|>%|>TIME|OUT");
    for (size_t i = 0; i < n; i++)
        put_row(&runs[i], &table);
    eni_runs_free(runs, n);
    return eni_table_print(&table, stdout);
}

en_status eni_run_with(const eni_command_context *context, const char *who, eni_run_do act)
{
    eni_run_status *runs;
    const eni_run_status *run = NULL;
    size_t n;
    char *end;
    const char *word = context->config->args.item[0];
    const long long number = strtoll(word, &end, 10);
    EN_TRY(list(&runs, &n));
    for (size_t i = 0; i < n && end != word && *end == 0 && run == NULL; i++)
        if (eni_run_number(&runs[i]) == number || runs[i].pid == number) run = &runs[i];
    const en_status st =
        run != NULL ? act(context, run)
                    : eni_fail(EN_EINVAL, who,
                               "you have no run \"%.32s\" on this host; `entrain ps` lists your runs", word);
    eni_runs_free(runs, n);
    return st;
}

/* ---- stop ---- */

/* Waits until the leader, and the launcher if there is one, have ended. */
static bool wait_for_end(const eni_run_status *run, int64_t launcher, uint64_t launcher_born,
                         int64_t deadline_ns)
{
    while (eni_process_look(run->pid, run->born) != ENI_PROCESS_ENDED ||
           (launcher_born != 0 && eni_process_look(launcher, launcher_born) != ENI_PROCESS_ENDED)) {
        if (eni_now_ns() >= deadline_ns) return false;
        poll(NULL, 0, LOOK_MS);
    }
    return true;
}

static en_status stop_run(const eni_command_context *context, const eni_run_status *run)
{
    (void)context;
    const int64_t begin = eni_now_ns(), number = eni_run_number(run);
    const uint64_t born = eni_process_born(number); /* 0: it has ended already */
    en_status st = eni_runs_stop(run);
    if (st == EN_ENOENT) st = EN_OK; /* it has ended meanwhile */
    if (st == EN_OK && !wait_for_end(run, number, born, begin + END_S * ENI_SECOND)) {
        if (run->is_stopped)
            st = eni_fail(EN_ETIMEOUT, "stop",
                          "run %" PRId64 ": its leader, pid %" PRId64
                          ", is stopped (SIGSTOP or Ctrl-Z): kill -CONT %" PRId64 " lets it finish",
                          number, run->pid, run->pid);
        else
            st =
                eni_fail(EN_ETIMEOUT, "stop",
                         "run %" PRId64 " has not ended %d s after it was asked; kill -9 %" PRId64 " ends it",
                         number, END_S, number);
    }
    if (st == EN_OK)
        printf("run %" PRId64 " (%s, %d worker%s) has ended, %.1f s after it was asked\n", number,
               fact(run, "strategy"), (int)run->nranks, run->nranks == 1 ? "" : "s",
               (double)(eni_now_ns() - begin) * 1e-9);
    return st;
}

en_status eni_command_stop(const eni_command_context *context)
{
    return eni_run_with(context, "stop", stop_run);
}
