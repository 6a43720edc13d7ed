/* report_run.c - one run folder: result.json, eval.jsonl, metrics-RANK.jsonl. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "report/report_json.h"
#include "report/report_study.h"

/* Calls `take` for each line of a .jsonl file. EN_ENOENT, not logged, when there is no such file. */
static en_status each_line(const char *path,
                           void (*take)(eni_json *, const json_t *, const char *where, void *), void *user)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        if (errno == ENOENT) return EN_ENOENT;
        eni_error("report", "cannot open %s: %s", path, strerror(errno));
        return EN_EIO;
    }
    eni_json reader = {path, EN_OK};
    char *text = NULL;
    size_t size = 0, line = 0;
    ssize_t length;
    while (reader.status == EN_OK && (length = getline(&text, &size, file)) >= 0) {
        char where[32];
        snprintf(where, sizeof where, "line %zu", ++line);
        json_t *object = eni_json_line(&reader, text, (size_t)length, line);
        if (object != NULL) take(&reader, object, where, user);
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

typedef struct eval_list {
    eni_eval *at;
    size_t n, room;
} eval_list;

/* Room for one more entry of `size` bytes; false when out of memory. `at` moves. */
static bool has_room(void **at, size_t n, size_t *room, size_t size)
{
    if (n < *room) return true;
    size_t wanted = *room == 0 ? 64 : 2 * *room;
    void *grown = eni_alloc_array(wanted, size);
    if (grown == NULL) return false;
    if (n > 0) memcpy(grown, *at, n * size);
    eni_free(*at);
    *at = grown;
    *room = wanted;
    return true;
}

static void take_eval(eni_json *reader, const json_t *object, const char *where, void *user)
{
    eval_list *list = user;
    eni_eval eval = {.samples = eni_json_need_number(reader, object, where, "samples"),
                     .t = eni_json_need_number(reader, object, where, "t"),
                     .is_bracket = json_is_true(json_object_get(object, "bracket"))};
    const bool is_held_out = json_object_get(object, "holdout_accuracy") != NULL;
    const char *accuracy = is_held_out ? "holdout_accuracy" : "test_accuracy";
    eval.loss = eni_json_number(reader, object, where, is_held_out ? "holdout_loss" : "test_loss");
    eval.accuracy = eni_json_number(reader, object, where, accuracy);
    if (eval.accuracy < 0 || eval.accuracy > 1)
        eni_json_fail(reader, "%s.%s %g should be a fraction from 0 to 1", where, accuracy, eval.accuracy);
    if (list->n > 0 && (eval.samples < list->at[list->n - 1].samples || eval.t < list->at[list->n - 1].t))
        eni_json_fail(reader, "%s goes back: samples and t should never fall", where);
    if (reader->status != EN_OK) return;
    void *at = list->at;
    if (!has_room(&at, list->n, &list->room, sizeof *list->at)) {
        reader->status = EN_ENOMEM;
        return;
    }
    list->at = at;
    list->at[list->n++] = eval;
}

static en_status load_evals(const char *folder, eni_run *run)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/eval.jsonl", folder);
    eval_list list = {0};
    en_status st = each_line(path, take_eval, &list);
    run->evals = list.at;
    run->nevals = list.n;
    if (st == EN_ENOENT) eni_error("report", "%s is missing, though the run ended well", path);
    return st;
}

/* ---- metrics-RANK.jsonl -------------------------------------------------------------------------------- */

typedef struct step_list {
    double *at;
    size_t n, room;
} step_list;

static void take_step(eni_json *reader, const json_t *object, const char *where, void *user)
{
    step_list *list = user;
    double ns = eni_json_number(reader, object, where, "step_ns");
    if (isnan(ns) || reader->status != EN_OK) return;
    void *at = list->at;
    if (!has_room(&at, list->n, &list->room, sizeof *list->at)) {
        reader->status = EN_ENOMEM;
        return;
    }
    list->at = at;
    list->at[list->n++] = ns / 1e6;
}

static en_status load_steps(const char *folder, eni_run *run)
{
    step_list list = {0};
    en_status st = EN_OK;
    for (int rank = 0; st == EN_OK; rank++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/metrics-%d.jsonl", folder, rank);
        st = each_line(path, take_step, &list);
    }
    eni_stats_sort(list.at, list.n);
    run->step_ms[0] = eni_stats_quantile(list.at, list.n, 0.50);
    run->step_ms[1] = eni_stats_quantile(list.at, list.n, 0.95);
    run->step_ms[2] = eni_stats_quantile(list.at, list.n, 0.99);
    eni_free(list.at);
    return st == EN_ENOENT ? EN_OK : st;
}

/* ---- result.json --------------------------------------------------------------------------------------- */

static en_status load_roles(eni_json *reader, eni_run *run)
{
    static const char *const keys[ENI_PHASES] = {"data_ns", "compute_ns", "straggler_slept_ns",
                                                 "send_ns", "wait_ns",    "update_ns"};
    json_t *list = eni_json_array(reader, run->result, "", "roles");
    size_t n = json_array_size(list);
    if (n > ENI_MAX_ROLES) eni_json_fail(reader, "roles has %zu entries, more than %d", n, ENI_MAX_ROLES);
    EN_TRY(reader->status);
    run->roles = eni_alloc_array(n, sizeof *run->roles);
    if (run->roles == NULL) return EN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        char where[32];
        snprintf(where, sizeof where, "roles[%zu]", i);
        const json_t *entry = json_array_get(list, i);
        eni_role *role = &run->roles[i];
        role->name = eni_json_need_text(reader, entry, where, "role");
        role->cores = eni_json_text(reader, entry, where, "cores");
        role->cpu_seconds = eni_json_number(reader, entry, where, "cpu_seconds");
        role->steps = eni_json_number(reader, entry, where, "steps");
        for (int p = 0; p < ENI_PHASES; p++) {
            double ns = eni_json_number(reader, entry, where, keys[p]);
            role->ns[p] = ns > 0 ? ns : 0;
        }
        role->ns[ENI_PHASE_COMPUTE] = fmax(role->ns[ENI_PHASE_COMPUTE] - role->ns[ENI_PHASE_SLEEP], 0);
        const double hidden = eni_json_number(reader, entry, where, "hidden_ns");
        role->hidden_ns = hidden > 0 ? hidden : 0;
        role->rank = -1;
        if (role->name != NULL && strncmp(role->name, "rank ", 5) == 0) role->rank = atoi(role->name + 5);
    }
    run->nroles = n;
    return reader->status;
}

static en_status load_stragglers(eni_json *reader, eni_run *run)
{
    const json_t *list = eni_json_array(reader, run->result, "", "stragglers");
    EN_TRY(reader->status);
    run->slow = eni_alloc_array(json_array_size(list), sizeof *run->slow);
    if (run->slow == NULL) return EN_ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[48];
        snprintf(where, sizeof where, "stragglers[%zu]", i);
        const json_t *entry = json_array_get(list, i);
        run->slow[run->nslow++] =
            (eni_slow){.rank = (int)eni_json_need_integer(reader, entry, where, "rank"),
                       .asked = eni_json_number(reader, entry, where, "factor"),
                       .measured = eni_json_number(reader, entry, where, "factor_measured")};
    }
    return reader->status;
}

static en_status load_histogram(eni_json *reader, const json_t *object, const char *where,
                                eni_staleness *into)
{
    into->mean = eni_json_number(reader, object, where, "mean");
    into->p50 = eni_json_number(reader, object, where, "p50");
    into->p95 = eni_json_number(reader, object, where, "p95");
    into->p99 = eni_json_number(reader, object, where, "p99");
    into->max = eni_json_number(reader, object, where, "max");
    json_t *list = eni_json_array(reader, object, where, "histogram");
    EN_TRY(reader->status);
    into->bins = eni_alloc_array(json_array_size(list), sizeof *into->bins);
    if (into->bins == NULL) return EN_ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *value = json_array_get(pair, 0), *count = json_array_get(pair, 1);
        if (!json_is_number(value) || !json_is_number(count) || json_number_value(value) < 0 ||
            json_number_value(count) < 0) {
            eni_json_fail(reader, "%s.histogram[%zu] should be [staleness, pushes]", where, i);
            return reader->status;
        }
        into->bins[into->nbins++] = (eni_bin){json_number_value(value), json_number_value(count)};
    }
    return EN_OK;
}

/* A list of {"rank", and in it or in its "staleness" the histogram}. */
static en_status load_worker_stale(eni_json *reader, const json_t *list, const char *where, eni_run *run)
{
    run->worker_stale = eni_alloc_array(json_array_size(list), sizeof *run->worker_stale);
    if (run->worker_stale == NULL) return EN_ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        char place[96];
        snprintf(place, sizeof place, "%s[%zu]", where, i);
        const json_t *entry = json_array_get(list, i), *inner = json_object_get(entry, "staleness");
        eni_staleness *worker = &run->worker_stale[run->nworkers_stale++];
        worker->rank = (int)eni_json_need_integer(reader, entry, place, "rank");
        EN_TRY(load_histogram(reader, json_is_object(inner) ? inner : entry, place, worker));
    }
    return reader->status;
}

/* Per worker: in the run's staleness, or in the report of the role psd, which measures it. */
static en_status load_staleness(eni_json *reader, eni_run *run)
{
    run->staleness = (eni_staleness){-1, NAN, NAN, NAN, NAN, NAN, 0, NULL};
    const json_t *object = json_object_get(run->result, "staleness");
    if (!json_is_object(object)) return EN_OK; /* a run without pushes may say null */
    EN_TRY(load_histogram(reader, object, "staleness", &run->staleness));

    json_t *list = eni_json_array(reader, object, "staleness", "per_worker");
    if (list != NULL) return load_worker_stale(reader, list, "staleness.per_worker", run);
    json_t *roles = json_object_get(run->result, "roles"), *role;
    size_t i;
    json_array_foreach(roles, i, role)
    {
        const char *name = json_string_value(json_object_get(role, "role"));
        list = json_object_get(role, "per_worker");
        if (name != NULL && strcmp(name, "psd") == 0 && json_is_array(list))
            return load_worker_stale(reader, list, "per_worker of psd", run);
    }
    return reader->status;
}

static en_status load_shares(eni_json *reader, eni_run *run)
{
    json_t *list = eni_json_array(reader, run->result, "", "per_worker");
    EN_TRY(reader->status);
    run->shares = eni_alloc_array(json_array_size(list), sizeof *run->shares);
    if (run->shares == NULL) return EN_ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[64];
        snprintf(where, sizeof where, "per_worker[%zu]", i);
        const json_t *entry = json_array_get(list, i);
        run->shares[run->nshares++] =
            (eni_rank_share){.rank = (int)eni_json_need_integer(reader, entry, where, "rank"),
                             .computed = eni_json_number(reader, entry, where, "samples_computed"),
                             .applied = eni_json_number(reader, entry, where, "samples_applied"),
                             .steps = eni_json_number(reader, entry, where, "steps")};
    }
    return reader->status;
}

static void load_numbers(eni_json *reader, eni_run *run)
{
    const struct {
        const char *key;
        double *into;
    } numbers[] = {{"workers", &run->workers},
                   {"updates", &run->updates},
                   {"steps", &run->steps},
                   {"samples_computed", &run->samples_computed},
                   {"samples_applied", &run->samples_applied},
                   {"samples_dropped", &run->samples_dropped},
                   {"samples_per_s", &run->samples_per_s},
                   {"train_seconds", &run->train_seconds},
                   {"test_accuracy", &run->test_accuracy},
                   {"test_loss", &run->test_loss},
                   {"lr", &run->lr},
                   {"global_batch_size", &run->global_batch_size},
                   {"payload_bytes", &run->payload_bytes},
                   {"wire_bytes", &run->wire_bytes},
                   {"shm_bytes", &run->shm_bytes},
                   {"theory_bytes", &run->theory_bytes},
                   {"max_rss", &run->max_rss},
                   {"target", &run->evaluated_for}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        *numbers[i].into =
            run->result == NULL ? NAN : eni_json_number(reader, run->result, "", numbers[i].key);
    if (run->test_accuracy < 0 || run->test_accuracy > 1)
        eni_json_fail(reader, "test_accuracy %g should be a fraction from 0 to 1", run->test_accuracy);
}

static void load_texts(eni_json *reader, eni_run *run)
{
    const struct {
        const char *key, **into;
    } texts[] = {{"model", &run->model},
                 {"data", &run->data},
                 {"device", &run->device},
                 {"transport", &run->transport},
                 {"version", &run->version},
                 {"init_sha256", &run->init_sha256},
                 {"order_sha256", &run->order_sha256},
                 {"params_sha256", &run->params_sha256}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        *texts[i].into = eni_json_text(reader, run->result, "", texts[i].key);

    const json_t *collective = json_object_get(run->result, "collective");
    if (!json_is_object(collective)) return;
    run->algorithm = eni_json_text(reader, collective, "collective", "algorithm");
    run->algorithm_why = eni_json_text(reader, collective, "collective", "why");
    if (run->transport == NULL) run->transport = eni_json_text(reader, collective, "collective", "transport");
}

/* environment.emulated is a list of texts; joined, it labels the run. */
static en_status load_emulated(eni_json *reader, eni_run *run)
{
    const json_t *environment = json_object_get(run->result, "environment");
    if (!json_is_object(environment)) return EN_OK;
    json_t *list = eni_json_array(reader, environment, "environment", "emulated");
    size_t bytes = 1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text == NULL) eni_json_fail(reader, "environment.emulated[%zu] should be a text", i);
        EN_TRY(reader->status);
        bytes += strlen(text) + 2;
    }
    if (bytes == 1) return EN_OK;
    run->notes = eni_alloc(bytes);
    if (run->notes == NULL) return EN_ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (i > 0) strcat(run->notes, ", ");
        strcat(run->notes, json_string_value(json_array_get(list, i)));
    }
    run->emulated = run->notes;
    return EN_OK;
}

en_status eni_study_load_run(const char *dir, double target, eni_run *run)
{
    char folder[PATH_MAX - 32], path[PATH_MAX];
    eni_json reader = {path, EN_OK};
    snprintf(folder, sizeof folder, "%s/%s", dir, run->dir);
    snprintf(path, sizeof path, "%s/result.json", folder);

    run->step_ms[0] = run->step_ms[1] = run->step_ms[2] = NAN;
    run->is_complete = run->exit == 0;
    if (run->is_complete) run->result = eni_json_load(&reader);
    load_numbers(&reader, run);
    if (run->is_complete) {
        EN_TRY(reader.status);
        load_texts(&reader, run);
        if (run->transport != NULL && strcmp(run->transport, "nccl") == 0)
            run->wire_bytes = run->shm_bytes = NAN; /* what NCCL sends, and over what, cannot be seen */
        EN_TRY(load_roles(&reader, run));
        EN_TRY(load_stragglers(&reader, run));
        EN_TRY(load_staleness(&reader, run));
        EN_TRY(load_shares(&reader, run));
        EN_TRY(load_emulated(&reader, run));
        EN_TRY(reader.status);
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
    eni_free(run->notes);
    json_decref(run->result);
}
