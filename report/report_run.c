/* report_run.c - one run folder: result.json, eval.jsonl, metrics-RANK.jsonl. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "report/report_study.h"

/* The parsed lines of a file: numbers, or evaluations. */
typedef struct growing {
    void *at;
    uint32_t n, room;
    size_t size; /* of one */
} growing;

/* Appends a copy of an item, unless the line was invalid. */
static void add(eni_json *reader, growing *list, const void *item)
{
    if (reader->status != EN_OK) return;
    reader->status = eni_grow(&list->at, &list->room, list->n + 1, list->size);
    if (reader->status == EN_OK) memcpy((char *)list->at + list->n++ * list->size, item, list->size);
}

/* The last line of a rank that was killed while writing it. */
static bool is_cut(const char *text, size_t length)
{
    if (length > 0 && text[length - 1] == '\n') return false;
    json_t *whole = json_loadb(text, length, 0, NULL);
    json_decref(whole);
    return whole == NULL;
}

/* Calls `take` for each line of a .jsonl file. EN_ENOENT, not logged, if there is no such file. */
static en_status each_line(const char *path, void (*take)(eni_json *, const json_t *, growing *),
                           growing *into)
{
    FILE *file = eni_file_open(path, "r");
    if (file == NULL) {
        if (errno == ENOENT) return EN_ENOENT;
        return eni_fail(EN_EIO, "report", "cannot open %s: %s", path, strerror(errno));
    }
    eni_json reader = {.who = "report", .path = path};
    char *text = NULL;
    size_t size = 0, line = 0;
    ssize_t length;
    while (reader.status == EN_OK && (length = getline(&text, &size, file)) >= 0) {
        if (is_cut(text, (size_t)length)) break;
        eni_json_at(&reader, "line %zu", ++line);
        json_t *object = eni_json_parse(&reader, text, (size_t)length);
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
        eni_json_fail(reader, "%s is before the previous line: samples and t should never decrease",
                      reader->where);
    add(reader, list, &eval);
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
    const double ms = eni_json_number(reader, object, "step_ns") / 1e6;
    if (!isnan(ms)) add(reader, list, &ms);
}

static en_status load_steps(const char *folder, eni_run *run)
{
    static const double quantiles[] = {0.50, 0.95, 0.99};
    growing list = {.size = sizeof(double)};
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/metrics-all.jsonl", folder); /* of many simulated ranks */
    en_status st = each_line(path, take_step, &list);
    const bool is_by_rank = st == EN_ENOENT;
    for (int rank = 0; is_by_rank && (rank == 0 || st == EN_OK); rank++) {
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

static double at_least_0(double value)
{
    return value > 0 ? value : 0;
}

static void take_role(eni_json *reader, const json_t *entry, void *into)
{
    static const char *const keys[ENI_PHASES] = {"data_ns", "compute_ns", "straggler_slept_ns",
                                                 "send_ns", "wait_ns",    "update_ns"};
    eni_role *role = into;
    role->rank = -1;
    role->name = eni_json_need_text(reader, entry, "role");
    role->cores = eni_json_text(reader, entry, "cores");
    role->cpu_seconds = eni_json_number(reader, entry, "cpu_seconds");
    role->steps = eni_json_number(reader, entry, "steps");
    role->hidden_ns = at_least_0(eni_json_number(reader, entry, "hidden_ns"));
    for (int p = 0; p < ENI_PHASES; p++)
        role->ns[p] = at_least_0(eni_json_number(reader, entry, keys[p]));
    role->ns[ENI_PHASE_COMPUTE] = fmax(role->ns[ENI_PHASE_COMPUTE] - role->ns[ENI_PHASE_SLEEP], 0);
    if (role->name != NULL && strncmp(role->name, "rank ", 5) == 0) role->rank = atoi(role->name + 5);
}

static void take_straggler(eni_json *reader, const json_t *entry, void *into)
{
    eni_slow *slow = into;
    slow->rank = (int)eni_json_need_integer(reader, entry, "rank");
    slow->asked = eni_json_number(reader, entry, "factor");
    slow->measured = eni_json_number(reader, entry, "factor_measured");
}

static void take_share(eni_json *reader, const json_t *entry, void *into)
{
    eni_rank_share *share = into;
    share->rank = (int)eni_json_need_integer(reader, entry, "rank");
    share->computed = eni_json_number(reader, entry, "samples_computed");
    share->applied = eni_json_number(reader, entry, "samples_applied");
    share->steps = eni_json_number(reader, entry, "steps");
}

static void take_present(eni_json *reader, const json_t *entry, void *into)
{
    static const char *const words[] = {
        [ENI_STAYED] = "stayed", [ENI_LEFT] = "left", [ENI_WAS_LOST] = "lost"};
    const char *end = eni_json_text(reader, entry, "end");
    eni_present *p = into;
    p->rank = (int)eni_json_need_integer(reader, entry, "rank");
    p->from = eni_json_need_number(reader, entry, "from_s");
    p->to = eni_json_need_number(reader, entry, "to_s");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (end != NULL && strcmp(end, words[i]) == 0) p->end = (int)i;
    if (reader->status == EN_OK && !(p->from >= 0 && p->to >= p->from))
        eni_json_fail(reader, "%s: to_s should not be before from_s", reader->where);
}

static en_status load_lists(eni_json *reader, eni_run *run)
{
    EN_TRY(eni_json_list(reader, run->result, "roles", ENI_MAX_ROLES, sizeof *run->roles, take_role,
                         &run->roles, &run->nroles));
    EN_TRY(eni_json_list(reader, run->result, "presence", SIZE_MAX, sizeof *run->present, take_present,
                         &run->present, &run->npresent));
    EN_TRY(eni_json_list(reader, run->result, "stragglers", SIZE_MAX, sizeof *run->slow, take_straggler,
                         &run->slow, &run->nslow));
    return eni_json_list(reader, run->result, "per_worker", SIZE_MAX, sizeof *run->shares, take_share,
                         &run->shares, &run->nshares);
}

static void take_bin(eni_json *reader, const json_t *pair, void *into)
{
    const json_t *value = json_array_get(pair, 0), *count = json_array_get(pair, 1);
    *(eni_bin *)into = (eni_bin){json_number_value(value), json_number_value(count)};
    if (!json_is_number(value) || !json_is_number(count) || json_number_value(value) < 0 ||
        json_number_value(count) < 0)
        eni_json_fail(reader, "%s should be [staleness, pushes]", reader->where);
}

static en_status load_histogram(eni_json *reader, const json_t *object, eni_staleness *into)
{
    into->mean = eni_json_number(reader, object, "mean");
    into->p50 = eni_json_number(reader, object, "p50");
    into->p95 = eni_json_number(reader, object, "p95");
    into->max = eni_json_number(reader, object, "max");
    return eni_json_list(reader, object, "histogram", SIZE_MAX, sizeof *into->bins, take_bin, &into->bins,
                         &into->nbins);
}

static void take_worker_stale(eni_json *reader, const json_t *entry, void *into)
{
    eni_staleness *worker = into;
    worker->rank = (int)eni_json_need_integer(reader, entry, "rank");
    load_histogram(reader, json_object_get(entry, "staleness"), worker);
}

/* Staleness of all workers, and of each, in the report of the role psd, which measures it. */
static en_status load_staleness(eni_json *reader, eni_run *run)
{
    const json_t *object = json_object_get(run->result, "staleness"), *psd = NULL;
    json_t *role;
    size_t i;
    run->staleness = (eni_staleness){-1, NAN, NAN, NAN, NAN, 0, NULL};
    if (!json_is_object(object)) return EN_OK; /* a run without pushes may say null */
    eni_json_at(reader, "staleness");
    EN_TRY(load_histogram(reader, object, &run->staleness));
    json_array_foreach(json_object_get(run->result, "roles"), i, role)
    {
        if (psd == NULL && eni_json_says(role, "role", "psd")) psd = role;
    }
    eni_json_at(reader, "psd");
    return eni_json_list(reader, psd, "per_worker", SIZE_MAX, sizeof *run->worker_stale, take_worker_stale,
                         &run->worker_stale, &run->nworkers_stale);
}

/* [stage, 0 forward or 1 backward, chunk, begin, end], microseconds. */
static void take_turn(eni_json *reader, const json_t *entry, void *into)
{
    enum { STAGE, IS_BACKWARD, CHUNK, BEGIN, END, N };
    double v[N] = {-1};
    for (size_t i = 0; i < N; i++)
        v[i] = json_is_number(json_array_get(entry, i)) ? json_number_value(json_array_get(entry, i)) : -1;
    *(eni_strip_turn *)into =
        (eni_strip_turn){(int)v[STAGE], (int)v[CHUNK], v[IS_BACKWARD] > 0, v[BEGIN] / 1e3, v[END] / 1e3};
    if (!(v[STAGE] >= 0 && v[STAGE] < ENI_MAX_STAGES && v[CHUNK] >= 0 && v[CHUNK] < ENI_MAX_CHUNKS &&
          v[BEGIN] >= 0 && v[END] >= v[BEGIN]))
        eni_json_fail(reader, "%s should be [stage, backward, chunk, begin, end]", reader->where);
}

/* A run with one device per rank has no pipeline, or its number of chunks; with --micro-batches on one device
 * nothing waits for another device. */
static en_status load_pipeline(eni_json *reader, eni_run *run)
{
    const json_t *object = json_object_get(run->result, "pipeline");
    eni_strip *strip = &run->pipeline;
    if (!json_is_object(object)) return EN_OK;
    eni_json_at(reader, "pipeline");
    const double stages = eni_json_need_number(reader, object, "stages");
    const char *parallel = eni_json_text(reader, object, "parallel");
    if (!(stages >= 1 && stages <= ENI_MAX_STAGES))
        eni_json_fail(reader, "pipeline.stages should be 1 to %d", ENI_MAX_STAGES);
    strip->micro_batches = eni_json_number(reader, object, "micro_batches");
    if (reader->status != EN_OK || stages < 2) return reader->status;
    strip->stages = (int)stages;
    strip->is_of_replicas = parallel != NULL && strcmp(parallel, "data") == 0;
    strip->schedule = eni_json_text(reader, object, "schedule");
    strip->cuts = eni_json_array(reader, object, "cuts");
    strip->bubble = eni_json_need_number(reader, object, "bubble");
    strip->bubble_predicted = eni_json_number(reader, object, "bubble_predicted");
    strip->bubble_ideal = eni_json_number(reader, object, "bubble_ideal");
    EN_TRY(eni_json_list(reader, object, "strip", SIZE_MAX, sizeof *strip->turns, take_turn, &strip->turns,
                         &strip->nturns));
    for (size_t i = 0; i < strip->nturns; i++)
        if (strip->turns[i].stage >= strip->stages)
            eni_json_fail(reader, "pipeline.strip[%zu] is of stage %d, and there are %d", i,
                          strip->turns[i].stage, strip->stages);
    return reader->status;
}

void eni_study_check_schema(eni_json *reader, const json_t *file, int schema)
{
    const int64_t its = eni_json_need_integer(reader, file, "schema");
    if (reader->status == EN_OK && its != schema)
        eni_json_fail(reader, "schema %lld is not %d, the only one that this version reads", (long long)its,
                      schema);
}

/* clang-format off */
/* The member for a number or a text of result.json; most keys have its name. */
#define PLACE(name) {#name, &run->name}

static void load_numbers(eni_json *reader, eni_run *run)
{
    const struct {
        const char *key;
        double *at;
    } numbers[] = {
        PLACE(workers), PLACE(updates), PLACE(steps), PLACE(samples_computed), PLACE(samples_applied),
        PLACE(samples_dropped), PLACE(samples_per_s), PLACE(train_seconds), PLACE(test_accuracy), PLACE(test_loss),
        PLACE(lr), PLACE(global_batch_size), PLACE(payload_bytes), PLACE(wire_bytes), PLACE(shm_bytes),
        PLACE(theory_bytes), PLACE(max_rss), {"target", &run->evaluated_for.value}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        *numbers[i].at = eni_json_number(reader, run->result, numbers[i].key);
    const double loss = eni_json_number(reader, run->result, "target_loss");
    if (!isnan(loss)) run->evaluated_for = (eni_target){loss, true};
    if (run->test_accuracy < 0 || run->test_accuracy > 1)
        eni_json_fail(reader, "test_accuracy %g should be a fraction from 0 to 1", run->test_accuracy);
}

static en_status load_texts(eni_json *reader, eni_run *run)
{
    const struct {
        const char *key, **at;
    } texts[] = {
        PLACE(model), PLACE(data), PLACE(device), PLACE(transport),
        PLACE(init_sha256), PLACE(order_sha256), PLACE(params_sha256), PLACE(bn_stats)};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        *texts[i].at = eni_json_text(reader, run->result, texts[i].key);

    const json_t *collective = json_object_get(run->result, "collective");
    eni_json_at(reader, "collective");
    if (json_is_object(collective)) run->algorithm = eni_json_text(reader, collective, "algorithm");
    if (run->transport != NULL && strcmp(run->transport, "nccl") == 0)
        run->wire_bytes = run->shm_bytes = NAN; /* the bytes and the transport of NCCL are unknown */
    return reader->status;
}
/* clang-format on */

/* environment.emulated is a list of texts; joined, it labels the run. */
static en_status load_emulated(eni_json *reader, eni_run *run)
{
    const json_t *environment = json_object_get(run->result, "environment");
    if (!json_is_object(environment)) return EN_OK;
    eni_json_at(reader, "environment");
    json_t *list = eni_json_array(reader, environment, "emulated");
    size_t bytes = 0;
    FILE *notes = json_array_size(list) == 0 ? NULL : open_memstream(&run->emulated, &bytes);
    if (notes == NULL) return json_array_size(list) == 0 ? reader->status : EN_ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text == NULL) eni_json_fail(reader, "environment.emulated[%zu] should be a text", i);
        fprintf(notes, "%s%s", i > 0 ? ", " : "", text == NULL ? "" : text);
    }
    return fclose(notes) != 0 ? EN_ENOMEM : reader->status;
}

/* The member that runs in virtual time have; as a text, it labels the run. */
static en_status load_simulated(eni_json *reader, eni_run *run)
{
    const json_t *simulated = json_object_get(run->result, "simulated");
    if (!json_is_object(simulated)) return EN_OK;
    eni_json_at(reader, "simulated");
    const char *compute = eni_json_need_text(reader, simulated, "compute"),
               *net = eni_json_need_text(reader, simulated, "net"),
               *server = eni_json_text(reader, simulated, "server_time");
    size_t bytes;
    EN_TRY(reader->status);
    FILE *text = open_memstream(&run->simulated, &bytes);
    if (text == NULL) return EN_ENOMEM;
    fprintf(text, "compute %s, net %s%s%s", compute, net, server != NULL ? ", server " : "",
            server != NULL ? server : "");
    return fclose(text) != 0 ? EN_ENOMEM : EN_OK;
}

void eni_study_find_target(eni_run *run, const eni_target *target)
{
    bool has_any = false;
    for (size_t i = 0; i < run->nevals; i++)
        has_any = has_any || !isnan(target->is_loss ? run->evals[i].loss : run->evals[i].accuracy);
    run->reach = eni_reach_find(run->evals, run->nevals, target);
    if (run->is_complete && !has_any)
        run->reach = (eni_reach){.t = NAN, .samples = NAN, .low = NAN, .high = NAN};
    run->last_t = run->nevals > 0 ? run->evals[run->nevals - 1].t : 0;
}

en_status eni_study_load_run(const char *dir, const eni_target *target, eni_run *run)
{
    static en_status (*const parts[])(eni_json *, eni_run *) = {load_texts,    load_lists,     load_staleness,
                                                                load_emulated, load_simulated, load_pipeline};
    char folder[PATH_MAX - 32], path[PATH_MAX];
    eni_json reader = {.who = "report", .path = path};
    snprintf(folder, sizeof folder, "%s/%s", dir, run->dir);
    snprintf(path, sizeof path, "%s/result.json", folder);

    run->step_ms[0] = run->step_ms[1] = run->step_ms[2] = NAN;
    run->is_complete = run->exit == 0;
    if (run->is_complete) {
        run->result = eni_json_load(&reader);
        eni_study_check_schema(&reader, run->result, ENI_RESULT_SCHEMA);
    }
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
    eni_free(run->present);
    eni_free(run->pipeline.turns);
    free(run->emulated);
    free(run->simulated);
    json_decref(run->result);
}
