/* report_run.c - one run folder: result.json, eval.jsonl, metrics-RANK.jsonl. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "report/report_json.h"
#include "report/report_study.h"

/* What the lines of a file become: numbers, or evaluations. */
typedef struct growing {
    void *at;
    size_t n, room, size; /* size: bytes of one */
} growing;

/* Room for one more; NULL when out of memory. */
static void *add_one(growing *list)
{
    if (list->n == list->room) {
        size_t wanted = list->room == 0 ? 64 : 2 * list->room;
        void *grown = eni_alloc_array(wanted, list->size);
        if (grown == NULL) return NULL;
        if (list->n > 0) memcpy(grown, list->at, list->n * list->size);
        eni_free(list->at);
        list->at = grown;
        list->room = wanted;
    }
    return (char *)list->at + list->n++ * list->size;
}

/* Calls `take` for each line of a .jsonl file. EN_ENOENT, not logged, when there is no such file. */
static en_status each_line(const char *path, void (*take)(eni_json *, const json_t *, growing *),
                           growing *into)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        if (errno == ENOENT) return EN_ENOENT;
        return eni_fail(EN_EIO, "report", "cannot open %s: %s", path, strerror(errno));
    }
    eni_json reader = {.path = path};
    char *text = NULL;
    size_t size = 0, line = 0;
    ssize_t length;
    while (reader.status == EN_OK && (length = getline(&text, &size, file)) >= 0) {
        eni_json_at(&reader, "line %zu", ++line);
        json_t *object = eni_json_line(&reader, text, (size_t)length, line);
        if (object != NULL) take(&reader, object, into);
        json_decref(object);
    }
    if (reader.status == EN_OK && ferror(file)) {
        eni_error("report", "cannot read %s: %s", path, strerror(errno));
        reader.status = EN_EIO;
    }
    free(text);
    fclose(file);
    return reader.status;
}

/* ---- eval.jsonl ---------------------------------------------------------------------------------------- */

static void take_eval(eni_json *reader, const json_t *object, growing *list)
{
    const bool is_held_out = json_object_get(object, "holdout_accuracy") != NULL;
    const char *accuracy = is_held_out ? "holdout_accuracy" : "test_accuracy";
    const eni_eval *last = list->n == 0 ? NULL : (const eni_eval *)list->at + list->n - 1;
    const eni_eval eval = {.samples = eni_json_need_number(reader, object, "samples"),
                           .t = eni_json_need_number(reader, object, "t"),
                           .is_bracket = json_is_true(json_object_get(object, "bracket")),
                           .loss =
                               eni_json_number(reader, object, is_held_out ? "holdout_loss" : "test_loss"),
                           .accuracy = eni_json_number(reader, object, accuracy)};
    if (eval.accuracy < 0 || eval.accuracy > 1)
        eni_json_fail(reader, "%s.%s %g should be a fraction from 0 to 1", reader->where, accuracy,
                      eval.accuracy);
    if (last != NULL && (eval.samples < last->samples || eval.t < last->t))
        eni_json_fail(reader, "%s goes back: samples and t should never fall", reader->where);
    if (reader->status != EN_OK) return;
    eni_eval *room = add_one(list);
    if (room == NULL)
        reader->status = EN_ENOMEM;
    else
        *room = eval;
}

static en_status load_evals(const char *folder, eni_run *run)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/eval.jsonl", folder);
    growing list = {.size = sizeof *run->evals};
    en_status st = each_line(path, take_eval, &list);
    run->evals = list.at;
    run->nevals = list.n;
    if (st == EN_ENOENT) eni_error("report", "%s is missing, though the run ended well", path);
    return st;
}

/* ---- metrics-RANK.jsonl -------------------------------------------------------------------------------- */

static void take_step(eni_json *reader, const json_t *object, growing *list)
{
    double ns = eni_json_number(reader, object, "step_ns");
    if (isnan(ns) || reader->status != EN_OK) return;
    double *room = add_one(list);
    if (room == NULL)
        reader->status = EN_ENOMEM;
    else
        *room = ns / 1e6;
}

static en_status load_steps(const char *folder, eni_run *run)
{
    static const double quantiles[] = {0.50, 0.95, 0.99};
    growing list = {.size = sizeof(double)};
    en_status st = EN_OK;
    for (int rank = 0; st == EN_OK; rank++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/metrics-%d.jsonl", folder, rank);
        st = each_line(path, take_step, &list);
    }
    eni_stats_sort(list.at, list.n);
    for (int q = 0; q < 3; q++)
        run->step_ms[q] = eni_stats_quantile(list.at, list.n, quantiles[q]);
    eni_free(list.at);
    return st == EN_ENOENT ? EN_OK : st;
}

/* ---- result.json --------------------------------------------------------------------------------------- */

/* The list `key` of an object, and zeroed room for what its entries become, `size` bytes each:
 * eni_study_drop_run has it freed. */
static en_status take_list(eni_json *reader, const json_t *object, const char *key, size_t size,
                           json_t **list_out, void *room_out)
{
    *list_out = eni_json_array(reader, object, key);
    EN_TRY(reader->status);
    void *room = eni_alloc_array(json_array_size(*list_out), size);
    memcpy(room_out, &room, sizeof room);
    return room == NULL ? EN_ENOMEM : EN_OK;
}

static double at_least_0(double value)
{
    return value > 0 ? value : 0;
}

static en_status load_roles(eni_json *reader, eni_run *run)
{
    static const char *const keys[ENI_PHASES] = {"data_ns", "compute_ns", "straggler_slept_ns",
                                                 "send_ns", "wait_ns",    "update_ns"};
    json_t *list, *entry;
    size_t i;
    EN_TRY(take_list(reader, run->result, "roles", sizeof *run->roles, &list, &run->roles));
    const size_t n = json_array_size(list);
    if (n > ENI_MAX_ROLES) eni_json_fail(reader, "roles has %zu entries, more than %d", n, ENI_MAX_ROLES);
    EN_TRY(reader->status);
    json_array_foreach(list, i, entry)
    {
        eni_role *role = &run->roles[i];
        eni_json_at(reader, "roles[%zu]", i);
        *role = (eni_role){.name = eni_json_need_text(reader, entry, "role"),
                           .cores = eni_json_text(reader, entry, "cores"),
                           .cpu_seconds = eni_json_number(reader, entry, "cpu_seconds"),
                           .steps = eni_json_number(reader, entry, "steps"),
                           .hidden_ns = at_least_0(eni_json_number(reader, entry, "hidden_ns")),
                           .rank = -1};
        for (int p = 0; p < ENI_PHASES; p++)
            role->ns[p] = at_least_0(eni_json_number(reader, entry, keys[p]));
        role->ns[ENI_PHASE_COMPUTE] = fmax(role->ns[ENI_PHASE_COMPUTE] - role->ns[ENI_PHASE_SLEEP], 0);
        if (role->name != NULL && strncmp(role->name, "rank ", 5) == 0) role->rank = atoi(role->name + 5);
    }
    run->nroles = n;
    return reader->status;
}

static en_status load_stragglers(eni_json *reader, eni_run *run)
{
    json_t *list, *entry;
    size_t i;
    EN_TRY(take_list(reader, run->result, "stragglers", sizeof *run->slow, &list, &run->slow));
    json_array_foreach(list, i, entry)
    {
        eni_json_at(reader, "stragglers[%zu]", i);
        run->slow[run->nslow++] = (eni_slow){.rank = (int)eni_json_need_integer(reader, entry, "rank"),
                                             .asked = eni_json_number(reader, entry, "factor"),
                                             .measured = eni_json_number(reader, entry, "factor_measured")};
    }
    return reader->status;
}

static en_status load_histogram(eni_json *reader, const json_t *object, eni_staleness *into)
{
    json_t *list, *pair;
    size_t i;
    into->mean = eni_json_number(reader, object, "mean");
    into->p50 = eni_json_number(reader, object, "p50");
    into->p95 = eni_json_number(reader, object, "p95");
    into->p99 = eni_json_number(reader, object, "p99");
    into->max = eni_json_number(reader, object, "max");
    EN_TRY(take_list(reader, object, "histogram", sizeof *into->bins, &list, &into->bins));
    json_array_foreach(list, i, pair)
    {
        const json_t *value = json_array_get(pair, 0), *count = json_array_get(pair, 1);
        if (json_is_number(value) && json_is_number(count) && json_number_value(value) >= 0 &&
            json_number_value(count) >= 0)
            into->bins[into->nbins++] = (eni_bin){json_number_value(value), json_number_value(count)};
        else
            eni_json_fail(reader, "%s.histogram[%zu] should be [staleness, pushes]", reader->where, i);
    }
    return reader->status;
}

/* A list of {"rank", and in it or in its "staleness" the histogram}. */
static en_status load_worker_stale(eni_json *reader, const json_t *object, const char *place, eni_run *run)
{
    json_t *list, *entry;
    size_t i;
    EN_TRY(take_list(reader, object, "per_worker", sizeof *run->worker_stale, &list, &run->worker_stale));
    json_array_foreach(list, i, entry)
    {
        const json_t *inner = json_object_get(entry, "staleness");
        eni_staleness *worker = &run->worker_stale[run->nworkers_stale++];
        eni_json_at(reader, "%s[%zu]", place, i);
        worker->rank = (int)eni_json_need_integer(reader, entry, "rank");
        EN_TRY(load_histogram(reader, json_is_object(inner) ? inner : entry, worker));
    }
    return reader->status;
}

/* Per worker: in the run's staleness, or in the report of the role psd, which measures it. */
static en_status load_staleness(eni_json *reader, eni_run *run)
{
    json_t *roles = json_object_get(run->result, "roles"), *role;
    const json_t *object = json_object_get(run->result, "staleness");
    size_t i;
    run->staleness = (eni_staleness){-1, NAN, NAN, NAN, NAN, NAN, 0, NULL};
    if (!json_is_object(object)) return EN_OK; /* a run without pushes may say null */
    eni_json_at(reader, "staleness");
    EN_TRY(load_histogram(reader, object, &run->staleness));
    if (eni_json_array(reader, object, "per_worker") != NULL)
        return load_worker_stale(reader, object, "staleness.per_worker", run);
    json_array_foreach(roles, i, role)
    {
        const char *name = json_string_value(json_object_get(role, "role"));
        if (name != NULL && strcmp(name, "psd") == 0 && json_is_array(json_object_get(role, "per_worker")))
            return load_worker_stale(reader, role, "per_worker of psd", run);
    }
    return reader->status;
}

static en_status load_shares(eni_json *reader, eni_run *run)
{
    json_t *list, *entry;
    size_t i;
    EN_TRY(take_list(reader, run->result, "per_worker", sizeof *run->shares, &list, &run->shares));
    json_array_foreach(list, i, entry)
    {
        eni_json_at(reader, "per_worker[%zu]", i);
        run->shares[run->nshares++] =
            (eni_rank_share){.rank = (int)eni_json_need_integer(reader, entry, "rank"),
                             .computed = eni_json_number(reader, entry, "samples_computed"),
                             .applied = eni_json_number(reader, entry, "samples_applied"),
                             .steps = eni_json_number(reader, entry, "steps")};
    }
    return reader->status;
}

#define FIELD(name)                                                                                          \
    {                                                                                                        \
#name, offsetof(eni_run, name)                                                                       \
    } /* the key has the member's name */

static void load_numbers(eni_json *reader, eni_run *run)
{
    static const struct {
        const char *key;
        size_t at;
    } numbers[] = {FIELD(workers),
                   FIELD(updates),
                   FIELD(steps),
                   FIELD(samples_computed),
                   FIELD(samples_applied),
                   FIELD(samples_dropped),
                   FIELD(samples_per_s),
                   FIELD(train_seconds),
                   FIELD(test_accuracy),
                   FIELD(test_loss),
                   FIELD(lr),
                   FIELD(global_batch_size),
                   FIELD(payload_bytes),
                   FIELD(wire_bytes),
                   FIELD(shm_bytes),
                   FIELD(theory_bytes),
                   FIELD(max_rss),
                   {"target", offsetof(eni_run, evaluated_for)}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        *(double *)(void *)((char *)run + numbers[i].at) =
            run->result == NULL ? NAN : eni_json_number(reader, run->result, numbers[i].key);
    if (run->test_accuracy < 0 || run->test_accuracy > 1)
        eni_json_fail(reader, "test_accuracy %g should be a fraction from 0 to 1", run->test_accuracy);
}

static en_status load_texts(eni_json *reader, eni_run *run)
{
    static const struct {
        const char *key;
        size_t at;
    } texts[] = {FIELD(model),   FIELD(data),        FIELD(device),       FIELD(transport),
                 FIELD(version), FIELD(init_sha256), FIELD(order_sha256), FIELD(params_sha256)};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        *(const char **)(void *)((char *)run + texts[i].at) =
            eni_json_text(reader, run->result, texts[i].key);

    const json_t *collective = json_object_get(run->result, "collective");
    eni_json_at(reader, "collective");
    if (json_is_object(collective)) {
        run->algorithm = eni_json_text(reader, collective, "algorithm");
        if (run->transport == NULL) run->transport = eni_json_text(reader, collective, "transport");
    }
    if (run->transport != NULL && strcmp(run->transport, "nccl") == 0)
        run->wire_bytes = run->shm_bytes = NAN; /* what NCCL sends, and over what, cannot be seen */
    return reader->status;
}

/* environment.emulated is a list of texts; joined, it labels the run. */
static en_status load_emulated(eni_json *reader, eni_run *run)
{
    const json_t *environment = json_object_get(run->result, "environment");
    if (!json_is_object(environment)) return EN_OK;
    eni_json_at(reader, "environment");
    json_t *list = eni_json_array(reader, environment, "emulated");
    size_t bytes = 0;
    FILE *notes = json_array_size(list) == 0 ? NULL : open_memstream(&run->notes, &bytes);
    if (notes == NULL) return json_array_size(list) == 0 ? reader->status : EN_ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text == NULL) eni_json_fail(reader, "environment.emulated[%zu] should be a text", i);
        fprintf(notes, "%s%s", i > 0 ? ", " : "", text == NULL ? "" : text);
    }
    fclose(notes);
    run->emulated = run->notes;
    return reader->status;
}

void eni_study_find_target(eni_run *run, double target)
{
    eni_reach reach = eni_reach_find(run->evals, run->nevals, target);
    bool has_accuracy = false;
    for (size_t i = 0; i < run->nevals; i++)
        has_accuracy = has_accuracy || !isnan(run->evals[i].accuracy);
    if (run->is_complete && !has_accuracy)
        reach = (eni_reach){.t = NAN, .samples = NAN, .low = NAN, .high = NAN};
    run->reach_t = reach.t;
    run->reach_samples = reach.samples;
    run->reach_low = reach.low;
    run->reach_high = reach.high;
    run->last_t = run->nevals > 0 ? run->evals[run->nevals - 1].t : 0;
}

en_status eni_study_load_run(const char *dir, double target, eni_run *run)
{
    static en_status (*const parts[])(eni_json *, eni_run *) = {load_texts,     load_roles,  load_stragglers,
                                                                load_staleness, load_shares, load_emulated};
    char folder[PATH_MAX - 32], path[PATH_MAX];
    eni_json reader = {.path = path};
    snprintf(folder, sizeof folder, "%s/%s", dir, run->dir);
    snprintf(path, sizeof path, "%s/result.json", folder);

    run->step_ms[0] = run->step_ms[1] = run->step_ms[2] = NAN;
    run->is_complete = run->exit == 0;
    if (run->is_complete) run->result = eni_json_load(&reader);
    load_numbers(&reader, run);
    if (run->is_complete) {
        EN_TRY(reader.status);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            reader.where[0] = 0;
            EN_TRY(parts[i](&reader, run));
        }
        EN_TRY(load_evals(folder, run));
        EN_TRY(load_steps(folder, run));
    }
    eni_study_find_target(run, target);
    return EN_OK;
}

void eni_study_drop_run(eni_run *run)
{
    for (size_t i = 0; i < run->nworkers_stale; i++)
        eni_free(run->worker_stale[i].bins);
    eni_free(run->worker_stale);
    eni_free(run->staleness.bins);
    eni_free(run->evals);
    eni_free(run->roles);
    eni_free(run->shares);
    eni_free(run->slow);
    free(run->notes);
    json_decref(run->result);
}
