/* elastic.c - `entrain run`. With --elastic it is a sequence of attempts, each of which continues from the
 * last checkpoint of the previous one, with as many workers as are left or were asked for, and the same
 * global batch. This file decides whether that is possible, each attempt's command, why it ended and what
 * follows. launcher/launch.c runs one attempt; the losses, and the time each took, are in result.json
 * ("restarts"). */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/launcher/launch.h"
#include "cli/launcher/machine.h"
#include "config/outputs.h"
#include "core/clock.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "report/report_study.h"
#include "run/units.h"
#include "run/worker_range.h"
#include "runtime/spec/strategies.h"

enum { FIRST_WAIT_MS = 100, WAIT_MS = 1000, MOST_WAIT_MS = 30000 };

typedef struct elastic {
    const eni_command_context *context;
    const eni_config *config; /* as given */
    eni_worker_range range;
    bool can_change; /* ranks keep no state of their own, so another number of them can continue */
    int out_fd;
    int data_fd;     /* memory in which the first attempt leaves the data set for the others; -1: none */
    int32_t workers; /* of the attempt */
    bool has_begun;  /* an attempt has trained: the content of --out is this run's */
    int64_t losses;
    json_t *restarts;
    size_t nknown;                           /* restarts after which it is known where the run continued */
    uint64_t at_steps, at_samples, repeated; /* how far the run had come; samples computed again */
} elastic;

/* ---- may the run be elastic? ----------------------------------------------------------------------------- */

static en_status check_strategy(const eni_config *c, const en_strategy *strategy)
{
    const uint32_t stores = EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS;
    if (strategy->flags & EN_ALONE)
        return eni_fail(EN_EINVAL, "launch",
                        "--elastic=%s: %s is a single process, and its number of workers cannot change; "
                        "omit the flag, or give another strategy, such as --strategy=ring",
                        c->elastic, strategy->name);
    if ((strategy->flags & stores) != 0 && !(strategy->flags & EN_SYNCHRONOUS))
        return eni_fail(
            EN_EINVAL, "launch",
            "--elastic=%s: the workers of %s do not wait for each other, so the run need not restart "
            "when one is lost or joins; give --on-worker-loss=continue, and --max-workers=N for more seats",
            c->elastic, strategy->name);
    if (c->groups != NULL && strspn(c->groups, "0123456789") != strlen(c->groups))
        return eni_fail(
            EN_EINVAL, "launch",
            "--groups=%s names ranks, whose number --elastic=%s changes; give a number of groups, "
            "--groups=N",
            c->groups, c->elastic);
    return EN_OK;
}

static en_status check(const eni_config *c, const char *plugin_dir, elastic *e)
{
    const en_strategy *strategy;
    (void)eni_worker_range_read(c->elastic, &e->range); /* checked with the key */
    e->range.batch = c->global_batch_size > 0 ? c->global_batch_size : c->batch_size * c->workers;
    EN_TRY(eni_strategy_find(plugin_dir, c->strategy, &strategy));
    EN_TRY(check_strategy(c, strategy));
    if (c->nnodes > 1)
        return eni_fail(EN_EINVAL, "launch",
                        "--elastic=%s with --nnodes=%lld: the launcher restarts a run on one host only; "
                        "use torchrun for several (docs/elastic.md)",
                        c->elastic, (long long)c->nnodes);
    if (c->workers < e->range.min || c->workers > e->range.max)
        return eni_fail(EN_EINVAL, "launch", "-n %lld is outside --elastic=%s: start with %d to %d workers",
                        (long long)c->workers, c->elastic, e->range.min, e->range.max);
    if (c->checkpoint_every == 0)
        return eni_fail(
            EN_EINVAL, "launch",
            "--elastic=%s continues from checkpoints: give --checkpoint-every=SAMPLES, or for example 1epoch",
            c->elastic);
    if (c->out == NULL)
        return eni_fail(EN_EINVAL, "launch", "--elastic=%s needs --out=FOLDER for its checkpoints",
                        c->elastic);
    e->can_change = strategy->state == 0 && !(strategy->flags & EN_USES_GROUPS) &&
                    (strategy->flags & EN_SYNCHRONOUS) != 0;
    return EN_OK;
}

/* ---- one attempt --------------------------------------------------------------------------------------- */

/* Drops stragglers that name ranks which this attempt does not have. */
static void drop_stragglers(eni_config *config)
{
    eni_list *list = &config->straggler;
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        int64_t rank = 0;
        double factor;
        (void)eni_straggler_parse(list->item[i], &rank, &factor);
        if (rank < config->workers)
            list->item[kept++] = list->item[i];
        else
            eni_free(list->item[i]);
    }
    list->count = kept;
}

/* The user's command with another number of workers; it resumes once there is a checkpoint. */
static en_status make_config(const elastic *e, eni_config *config_out)
{
    char newest[1200];
    EN_TRY(eni_config_copy(e->config, config_out));
    config_out->workers = e->workers;
    config_out->batch_size = e->range.batch / e->workers;
    drop_stragglers(config_out);
    if (!e->has_begun) return EN_OK;
    config_out->overwrite = false;
    if (config_out->resume != NULL && eni_out_newest(e->config, newest, sizeof newest) != EN_OK) return EN_OK;
    const en_status st = eni_config_put(&config_out->resume, "auto");
    if (st != EN_OK) eni_config_fini(config_out);
    return st;
}

static en_status attempt(const elastic *e, eni_launch_outcome *outcome)
{
    char takes[ENI_WORKER_RANGE_TEXT];
    eni_config config;
    eni_worker_range_text(&e->range, takes);
    EN_TRY(make_config(e, &config));
    const eni_launch launch = {.config = &config,
                               .plugin_dir = e->context->plugin_dir,
                               .signal_fd = e->context->signal_fd,
                               .has_gpus = e->has_begun,
                               .out_fd = e->out_fd,
                               .data_fd = e->data_fd,
                               .may_go_on = true,
                               .takes = e->can_change ? takes : NULL,
                               .outcome = outcome};
    en_status st = eni_launch_run(&launch);
    if (config.trace != NULL && (st == EN_OK || outcome->course.asked > 0)) {
        const en_status merged = eni_merge_trace(config.trace, e->workers, (int)config.servers);
        if (st == EN_OK) st = merged;
    }
    eni_config_fini(&config);
    return st;
}

/* ---- its result ----------------------------------------------------------------------------------------- */

/* Records where this attempt continued, for the restarts that led to it. */
static void note_begun(elastic *e, const eni_launch_course *course)
{
    size_t i;
    json_t *restart;
    if (course->begun_ns == 0) return;
    e->has_begun = true;
    json_array_foreach(e->restarts, i, restart)
    {
        if (i < e->nknown) continue;
        const json_int_t broken_ns = json_integer_value(json_object_get(restart, "broken_ns"));
        eni_json_set_int(restart, "resumed_from_step", course->begun_steps);
        eni_json_set_number(restart, "seconds", (double)(course->begun_ns - broken_ns) * 1e-9);
        json_object_del(restart, "broken_ns");
    }
    if (json_array_size(e->restarts) > e->nknown && e->at_samples > course->begun_samples)
        e->repeated += e->at_samples - course->begun_samples;
    e->nknown = json_array_size(e->restarts);
    e->at_steps = course->steps;
    e->at_samples = course->samples;
}

/* It holds broken_ns until the next attempt trains; if none does, it has no seconds. */
static void note_restart(elastic *e, const eni_launch_outcome *outcome, int32_t workers)
{
    const eni_launch_course *course = &outcome->course;
    json_t *o = json_object();
    eni_json_set_int(o, "at_step", e->at_steps);
    json_object_set_new(o, "resumed_from_step", json_null());
    ENI_JSON_SET_INTS(o, {"workers_before", (uint64_t)e->workers}, {"workers", (uint64_t)workers});
    eni_json_set_text(o, "reason", course->is_loss ? outcome->cause : course->why);
    json_object_set_new(o, "seconds", json_null());
    eni_json_set_int(o, "broken_ns", (uint64_t)course->broken_ns);
    json_array_append_new(e->restarts, o);
}

/* Adds the restarts to the result that rank 0 has left, if any. */
static en_status write_restarts(const elastic *e)
{
    char path[1200];
    size_t i;
    json_t *restart;
    snprintf(path, sizeof path, "%.1000s/result.json", e->config->out);
    json_t *result = eni_json_file(path, NULL);
    if (result == NULL) return EN_OK;
    json_array_foreach(e->restarts, i, restart) json_object_del(restart, "broken_ns");
    json_object_set(result, "restarts", e->restarts);
    eni_json_set_int(result, "repeated_samples", e->repeated);
    char *text = eni_json_dump(result, JSON_INDENT(2));
    json_decref(result);
    if (text == NULL) return EN_ENOMEM;
    const en_status st = eni_file_replace_text("launch", path, text);
    free(text); /* jansson's */
    return st;
}

/* ---- from one attempt to the next ----------------------------------------------------------------------- */

static int32_t left_after(const elastic *e, const eni_launch_course *course)
{
    return (course->asked > 0 ? course->asked : e->workers) - course->lost;
}

/* The number of workers left, or fewer to divide the batch; at least the smallest number that does. */
static int32_t workers_after(const elastic *e, const eni_launch_course *course)
{
    int32_t workers = eni_worker_range_fit(&e->range, left_after(e, course));
    if (!e->can_change) return e->workers;
    for (int32_t n = e->range.min; workers == 0; n++)
        if (e->range.batch % n == 0) workers = n;
    return workers;
}

/* Handles a loss: after a pause, EN_OK if the run continues. */
static en_status handle_loss(elastic *e, const eni_launch_outcome *outcome, int32_t workers)
{
    char place[1200], uneven[160];
    const int64_t most = e->config->max_restarts;
    const int shift = e->losses < 8 ? (int)e->losses - 1 : 6;
    if (eni_out_newest(e->config, place, sizeof place) != EN_OK)
        snprintf(place, sizeof place, "none: the run starts over");
    if (++e->losses > most)
        return eni_fail(EN_EPEER, "launch",
                        "the run ends: worker loss %lld exceeds --max-restarts=%lld: %s; the last "
                        "checkpoint, from which --resume=auto continues, is %s",
                        (long long)e->losses, (long long)most, outcome->cause, place);
    const int wait_ms = e->losses == 1                    ? FIRST_WAIT_MS
                        : WAIT_MS << shift > MOST_WAIT_MS ? MOST_WAIT_MS
                                                          : WAIT_MS << shift;
    eni_worker_range_why(&e->range, left_after(e, &outcome->course), workers, uneven, sizeof uneven);
    eni_warn("launch",
             "resuming in %.1f s with %d worker%s (worker loss %lld of %lld%s) from the last checkpoint: %s",
             wait_ms * 1e-3, workers, workers == 1 ? "" : "s", (long long)e->losses, (long long)most,
             e->can_change ? uneven : "", place);
    return eni_signals_wait(e->context->signal_fd, wait_ms) ? EN_EINTR : EN_OK;
}

/* EN_OK: another attempt follows. */
static en_status follow(elastic *e, en_status st, const eni_launch_outcome *outcome)
{
    const eni_launch_course *course = &outcome->course;
    const bool is_asked = course->asked > 0 && st == EN_EINTR && !course->is_loss;
    if (eni_signals_wait(e->context->signal_fd, 0)) return EN_EINTR;
    if (!is_asked && (!course->is_loss || st == EN_EINVAL)) return st;
    const int32_t workers = is_asked ? course->asked : workers_after(e, course);
    if (!is_asked) EN_TRY(handle_loss(e, outcome, workers));
    note_restart(e, outcome, workers);
    e->workers = workers;
    return EN_OK;
}

static en_status run(elastic *e)
{
    for (;;) {
        eni_launch_outcome outcome = {0}; /* for an attempt that fails before it starts */
        const en_status st = attempt(e, &outcome);
        note_begun(e, &outcome.course);
        if (st == EN_OK || st == EN_ESTOP) return st;
        EN_TRY(follow(e, st, &outcome));
    }
}

static en_status run_elastic(const eni_command_context *context)
{
    const eni_config *c = context->config;
    elastic e = {.context = context, .config = c, .workers = (int32_t)c->workers, .restarts = json_array()};
    en_status st = check(c, context->plugin_dir, &e);
    if (st == EN_OK) st = eni_out_take(c, c->out, ENI_OUT_RUN, &e.out_fd);
    if (st == EN_OK) {
        /* freed with its last holder */
        e.data_fd = memfd_create("entrain-data", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        st = run(&e);
        const en_status written = write_restarts(&e);
        if (st == EN_OK) st = written;
        close(e.out_fd);
        if (e.data_fd >= 0) close(e.data_fd);
    }
    json_decref(e.restarts);
    return st;
}

en_status eni_command_run(const eni_command_context *context)
{
    int64_t begin = eni_now_ns();
    const eni_machine before = eni_machine_now();
    const eni_config *c = context->config;
    const bool is_elastic = c->elastic != NULL;
    eni_launch launch = {.config = c, .plugin_dir = context->plugin_dir, .signal_fd = context->signal_fd};
    const en_status st = is_elastic ? run_elastic(context) : eni_launch_run(&launch);
    if (st == EN_ESTOP) return EN_OK; /* it was finished before */
    EN_TRY(st);
    if (c->trace != NULL && !is_elastic && c->node_rank == 0) /* its own ranks; other hosts keep theirs */
        EN_TRY(eni_merge_trace(c->trace, eni_config_ranks(c), (int)c->servers));
    if (c->quiet || c->mute) return EN_OK;
    printf("Time elapsed: %.2f s\n", (double)(eni_now_ns() - begin) * 1e-9);
    const eni_machine after = eni_machine_now();
    const double outside = eni_machine_outside(&before, &after);
    if (outside > ENI_BUSY_SHARE)
        printf("Other processes took %.0f %% of the cores meanwhile: the figures above were measured on a "
               "busy machine\n",
               100 * outside);
    return EN_OK;
}
