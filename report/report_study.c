/* report_study.c - reads compare.json into a study (report_run.c reads the runs), and answers questions. */
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
#include "report/report_study.h"

/* ---- questions ---------------------------------------------------------------------------------------- */

bool eni_study_bracket_is_wide(const eni_run *run)
{
    return isfinite(run->reach.t) && run->reach.high - run->reach.low > 0.1 * run->reach.t;
}

bool eni_study_bracket_is_of_grid(const eni_run *run, const eni_target *target)
{
    return isfinite(run->reach.t) && isfinite(run->evaluated_for.value) &&
           !eni_target_is_same(&run->evaluated_for, target);
}

const eni_run *eni_study_next(const eni_study *study, size_t setting, size_t arm, const eni_run *before)
{
    const eni_run *run = before == NULL ? study->runs : before + 1;
    for (; run < study->runs + study->nruns; run++)
        if ((setting == ENI_ANY || run->setting == setting) && (arm == ENI_ANY || run->arm == arm))
            return run;
    return NULL;
}

const eni_run *eni_study_find(const eni_study *study, size_t setting, size_t arm, int64_t seed)
{
    const eni_run *run = NULL;
    while ((run = eni_study_next(study, setting, arm, run)) != NULL && run->seed != seed) {
    }
    return run;
}

const eni_run *eni_study_example(const eni_study *study, size_t setting, size_t arm)
{
    const eni_run *run = NULL;
    while ((run = eni_study_next(study, setting, arm, run)) != NULL && !run->is_complete) {
    }
    return run;
}

#define METRIC_DEFINED(name, value)                                                                          \
    double eni_metric_##name(const eni_run *run)                                                             \
    {                                                                                                        \
        return value;                                                                                        \
    }
ENI_METRICS(METRIC_DEFINED)

double eni_metric_samples_per_s(const eni_run *run)
{
    if (!isnan(run->samples_per_s)) return run->samples_per_s;
    return run->train_seconds > 0 ? run->samples_computed / run->train_seconds : NAN;
}

double eni_metric_cpu_seconds(const eni_run *run)
{
    double sum = run->nroles > 0 ? 0 : NAN;
    for (size_t i = 0; i < run->nroles; i++)
        sum += run->roles[i].cpu_seconds;
    return sum;
}

/* The waiting share of one rank, or of all workers (rank -1). */
static double wait_share(const eni_run *run, int rank)
{
    double waited = 0, all = 0;
    for (size_t i = 0; i < run->nroles; i++) {
        if (run->roles[i].rank < 0 || (rank >= 0 && run->roles[i].rank != rank)) continue;
        waited += run->roles[i].ns[ENI_PHASE_WAIT];
        for (int p = 0; p < ENI_PHASES; p++)
            all += run->roles[i].ns[p];
    }
    return all > 0 ? waited / all : NAN;
}

double eni_metric_wait(const eni_run *run)
{
    return wait_share(run, -1);
}

double eni_study_wait_of_rank(const eni_study *study, size_t setting, size_t arm, int rank)
{
    double values[ENI_MAX_RUNS];
    size_t n = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;)
        if (!isnan(wait_share(run, rank))) values[n++] = wait_share(run, rank);
    return eni_stats_median(values, n);
}

size_t eni_study_values(const eni_study *study, size_t setting, size_t arm, eni_metric metric,
                        double values_out[ENI_MAX_RUNS])
{
    size_t n = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;)
        if (!isnan(metric(run))) values_out[n++] = metric(run);
    return n;
}

eni_summary eni_study_summary(const eni_study *study, size_t setting, size_t arm, eni_metric metric)
{
    double values[ENI_MAX_RUNS];
    return eni_stats_summary(values, eni_study_values(study, setting, arm, metric, values));
}

size_t eni_study_count(const eni_study *study, size_t setting, size_t arm)
{
    size_t n = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;)
        n++;
    return n;
}

size_t eni_study_missed(const eni_study *study, size_t setting, size_t arm, double *least_t_out)
{
    size_t n = 0;
    *least_t_out = NAN;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
        if (!isinf(eni_metric_reach_t(run))) continue;
        *least_t_out = fmin(*least_t_out, run->last_t);
        n++;
    }
    return n;
}

bool eni_study_has_arm(const eni_study *study, size_t setting, size_t arm)
{
    return study->ndirs < 2 || (study->arms[arm].studies >> study->settings[setting].study & 1) != 0;
}

bool eni_study_is_real(const eni_study *study, size_t setting)
{
    return strcmp(eni_study_word(study, setting), "real") == 0;
}

const char *eni_study_word(const eni_study *study, size_t setting)
{
    const eni_setting_spec *spec = &study->settings[setting];
    return spec->simulated != NULL                             ? "simulated"
           : spec->emulated != NULL || spec->straggler != NULL ? "emulated"
                                                               : "real";
}

size_t eni_study_simulated(const eni_study *study)
{
    size_t n = 0;
    for (size_t c = 0; c < study->nsettings; c++)
        n += study->settings[c].simulated != NULL;
    return n;
}

void eni_study_kind(const eni_study *study, size_t setting, char *text_out, size_t size)
{
    const eni_setting_spec *spec = &study->settings[setting];
    const char *word = eni_study_word(study, setting), *more = spec->emulated;
    char straggler[128] = "";
    if (more == NULL && spec->straggler != NULL) {
        snprintf(straggler, sizeof straggler, "straggler %s", spec->straggler);
        more = straggler;
    }
    if (spec->simulated != NULL)
        snprintf(text_out, size, "%s: %s%s%s", word, spec->simulated, more != NULL ? ", " : "",
                 more != NULL ? more : "");
    else
        snprintf(text_out, size, more != NULL ? "%s: %s" : "%s", word, more);
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static size_t find_setting(const eni_study *study, const char *name)
{
    size_t i = 0;
    while (i < study->nsettings && strcmp(study->settings[i].name, name) != 0)
        i++;
    return i;
}

static void load_settings(eni_json *reader, eni_study *study)
{
    json_t *list = eni_json_need_array(reader, study->index, "settings", ENI_MAX_SETTINGS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        eni_json_at(reader, "settings[%zu]", i);
        json_t *entry = json_array_get(list, i);
        eni_setting_spec *setting = &study->settings[i];
        setting->name = eni_json_need_text(reader, entry, "name");
        setting->straggler = eni_json_text(reader, entry, "straggler");
        setting->study = (size_t)json_integer_value(json_object_get(entry, "study"));
        if (reader->status == EN_OK && find_setting(study, setting->name) < i)
            eni_json_fail(reader, "%s repeats the name %s", reader->where, setting->name);
        study->nsettings = i + 1;
    }
    reader->where[0] = 0;
}

static void load_arms(eni_json *reader, eni_study *study)
{
    json_t *list = eni_json_need_array(reader, study->index, "arms", ENI_MAX_ARMS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        eni_json_at(reader, "arms[%zu]", i);
        json_t *entry = json_array_get(list, i);
        eni_arm *arm = &study->arms[i];
        arm->name = eni_json_need_text(reader, entry, "name");
        arm->strategy = eni_json_need_text(reader, entry, "strategy");
        arm->lr = eni_json_number(reader, entry, "lr");
        arm->entry = entry;
        arm->studies = (unsigned)json_integer_value(json_object_get(entry, "studies"));
        arm->is_alone = json_is_true(json_object_get(entry, "alone"));
        for (size_t j = 0; j < i && reader->status == EN_OK; j++) {
            if (strcmp(arm->name, study->arms[j].name) == 0)
                eni_json_fail(reader, "%s repeats the name %s", reader->where, arm->name);
            else if (strcmp(arm->strategy, study->arms[j].strategy) == 0)
                arm->variant++;
        }
    }
    study->narms = json_array_size(list);
    reader->where[0] = 0;
}

/* A strategy that the documentation uses has its colour in every report; others take the remaining ones. */
static void choose_colours(eni_study *study)
{
    static const char *const known[] = {"ring", "ps-sync", "ps-async", "ssp", "solo"};
    enum { KNOWN = sizeof known / sizeof known[0] };
    int next = KNOWN;
    for (size_t i = 0; i < study->narms; i++) {
        eni_arm *arm = &study->arms[i];
        arm->colour = -1;
        for (int k = 0; k < KNOWN; k++)
            if (strcmp(arm->strategy, known[k]) == 0) arm->colour = k;
        for (size_t j = 0; j < i && arm->colour < 0; j++)
            if (strcmp(arm->strategy, study->arms[j].strategy) == 0) arm->colour = study->arms[j].colour;
        if (arm->colour < 0) arm->colour = next++;
    }
}

static void take_seed(eni_json *reader, const json_t *entry, void *into)
{
    *(int64_t *)into = eni_json_need_integer(reader, entry, NULL);
}

static size_t find_arm(const eni_study *study, const char *name)
{
    size_t i = 0;
    while (i < study->narms && strcmp(study->arms[i].name, name) != 0)
        i++;
    return i;
}

/* A run folder must be inside the study's: a foreign compare.json cannot make us read other files. */
static bool is_inside(const char *dir)
{
    if (dir[0] == '/') return false;
    for (const char *part = dir; part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == 0)) return false;
    }
    return true;
}

/* The entry of one run in the index; its folder is read later. */
static void load_entry(eni_json *reader, eni_study *study, const json_t *entry, size_t i)
{
    eni_json_at(reader, "runs[%zu]", i);
    eni_run *run = &study->runs[i];
    const char *setting = eni_json_need_text(reader, entry, "setting");
    const char *arm = eni_json_need_text(reader, entry, "arm");
    run->seed = eni_json_need_integer(reader, entry, "seed");
    run->dir = eni_json_need_text(reader, entry, "dir");
    run->root = study->dir[json_integer_value(json_object_get(entry, "study"))];
    run->started = eni_json_text(reader, entry, "started");
    run->exit = (int)eni_json_need_integer(reader, entry, "exit");
    run->outside = eni_json_number(reader, entry, "outside");
    run->cause = eni_json_text(reader, entry, "cause");
    run->is_replaced = json_is_true(json_object_get(entry, "replaced"));
    double order = eni_json_number(reader, entry, "order");
    run->order = order >= 0 && order < INT_MAX ? (int)order : (int)i;
    if (reader->status != EN_OK) return;

    run->setting = find_setting(study, setting);
    run->arm = find_arm(study, arm);
    if (run->setting == study->nsettings)
        eni_json_fail(reader, "%s names the setting %s, which is not in settings", reader->where, setting);
    if (run->arm == study->narms)
        eni_json_fail(reader, "%s names the arm %s, which is not in arms", reader->where, arm);
    if (!is_inside(run->dir))
        eni_json_fail(reader, "%s.dir %s should lie inside the folder", reader->where, run->dir);
    for (size_t j = 0; j < i && reader->status == EN_OK && !run->is_replaced; j++) {
        const eni_run *other = &study->runs[j];
        if (!other->is_replaced && other->setting == run->setting && other->arm == run->arm &&
            other->seed == run->seed)
            eni_json_fail(reader, "%s repeats setting %s, arm %s, seed %lld", reader->where, setting, arm,
                          (long long)run->seed);
    }
}

static int by_order(const void *a, const void *b)
{
    const eni_run *x = a, *y = b;
    if (x->is_replaced != y->is_replaced) return x->is_replaced - y->is_replaced;
    return (x->order > y->order) - (x->order < y->order);
}

static en_status load_runs(eni_json *reader, eni_study *study)
{
    json_t *list = eni_json_need_array(reader, study->index, "runs", ENI_MAX_RUNS);
    if (list == NULL) return reader->status;
    study->runs = eni_alloc_array(json_array_size(list), sizeof *study->runs);
    if (study->runs == NULL) return EN_ENOMEM;
    const size_t n = study->nruns = json_array_size(list);
    for (size_t i = 0; i < n && reader->status == EN_OK; i++)
        load_entry(reader, study, json_array_get(list, i), i);
    EN_TRY(reader->status);
    qsort(study->runs, n, sizeof *study->runs, by_order);
    for (size_t i = 0; i < n; i++)
        study->nreplaced += study->runs[i].is_replaced;
    study->nruns -= study->nreplaced;
    for (size_t i = 0; i < n; i++)
        EN_TRY(eni_study_load_run(study->runs[i].root, &study->target, &study->runs[i]));
    return EN_OK;
}

/* The planned comparisons, as compare wrote it before the first run. */
static void load_claims(eni_json *reader, eni_study *study)
{
    const json_t *comparisons = json_object_get(study->index, "plan");
    const json_t *seeds = json_object_get(comparisons, "seeds"),
                 *primary = json_object_get(comparisons, "primary");
    eni_json_at(reader, "plan.seeds");
    for (size_t c = 0; c < study->nsettings; c++) {
        const double given = eni_json_need_number(reader, seeds, study->settings[c].name);
        if (given >= 0 && given <= ENI_MAX_RUNS) study->settings[c].seeds = (size_t)given;
    }
    const char *baseline = eni_json_text(reader, comparisons, "baseline");
    study->baseline = baseline == NULL ? ENI_COMPARISONS_ALL : find_arm(study, baseline);
    if (baseline != NULL && study->baseline == study->narms)
        eni_json_fail(reader, "plan.baseline should name an arm of this study, not %s", baseline);
    if (!json_is_object(primary)) return;
    eni_json_at(reader, "plan.primary");
    const json_t *arms = eni_json_need_array(reader, primary, "arms", 2);
    const char *setting = eni_json_need_text(reader, primary, "setting");
    const char *a = json_string_value(json_array_get(arms, 0)),
               *b = json_string_value(json_array_get(arms, 1));
    if (reader->status != EN_OK) return;
    study->primary =
        (eni_primary){find_setting(study, setting), a == NULL ? study->narms : find_arm(study, a),
                      b == NULL ? study->narms : find_arm(study, b)};
    study->has_primary = study->primary.setting < study->nsettings && study->primary.a < study->narms &&
                         study->primary.b < study->narms && study->primary.a != study->primary.b;
    if (!study->has_primary)
        eni_json_fail(reader, "plan.primary should name a setting and two arms of this study");
}

/* A setting emulates what its runs record; the straggler of the index counts even if all of them failed. The
 * runs also record whether there are classes and a holdout. */
static void ask_runs(eni_study *study)
{
    bool has_loss = false;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        if (run->emulated != NULL) study->settings[run->setting].emulated = run->emulated;
        if (run->simulated != NULL) study->settings[run->setting].simulated = run->simulated;
        study->has_holdout |= json_integer_value(json_object_get(run->result, "holdout")) > 0;
        study->has_classes |= !isnan(eni_metric_accuracy(run));
        has_loss |= !isnan(eni_metric_loss(run));
    }
    study->has_classes = (study->has_classes || !has_loss) && !study->target.is_loss;
}

void eni_study_put_target(json_t *object, const eni_target *target)
{
    json_object_set_new(object, "target", target->is_loss ? json_null() : json_real(target->value));
    if (target->is_loss) eni_json_set_number(object, "target_loss", target->value);
}

static eni_target target_of(eni_json *reader, const json_t *index)
{
    eni_target target = {.value = eni_json_number(reader, index, "target_loss")};
    target.is_loss = !isnan(target.value);
    if (!target.is_loss) target.value = eni_json_need_number(reader, index, "target");
    if (reader->status == EN_OK && !target.is_loss && !(target.value > 0 && target.value <= 1))
        eni_json_fail(reader, "target %g should be a fraction above 0 and up to 1, such as 0.75",
                      target.value);
    return target;
}

static en_status fill_study(eni_json *reader, eni_target target, eni_study *study)
{
    eni_study_check_schema(reader, study->index, ENI_STUDY_SCHEMA);
    study->target = eni_target_is_set(&target) ? target : target_of(reader, study->index);
    study->lr_scale = eni_json_text(reader, study->index, "lr_scale");
    load_settings(reader, study);
    load_arms(reader, study);
    EN_TRY(reader->status);
    choose_colours(study);
    if (eni_json_need_array(reader, study->index, "seeds", ENI_MAX_RUNS) == NULL) return reader->status;
    EN_TRY(eni_json_list(reader, study->index, "seeds", ENI_MAX_RUNS, sizeof *study->seeds, take_seed,
                         &study->seeds, &study->nseeds));
    EN_TRY(load_runs(reader, study));
    ask_runs(study);
    load_claims(reader, study);
    return reader->status;
}

/* A folder of `entrain run --out` is treated as a comparison of one arm: the same page, without pairs. */
static json_t *index_of_single_run(const char *dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/result.json", dir);
    if (access(path, R_OK) != 0) return NULL;
    json_t *result = eni_json_file(path, NULL);
    const char *strategy = json_string_value(json_object_get(result, "strategy"));
    json_int_t seed = json_integer_value(json_object_get(result, "seed"));
    const double target = json_number_value(json_object_get(result, "target"));
    json_t *loss = json_object_get(result, "target_loss");
    const bool has_failed =
        result != NULL && !eni_json_says(result, "exit", "ok"); /* an unreadable file is refused later */
    json_t *index = json_pack(
        "{s:i, s:f, s:[{s:s}], s:[{s:s, s:s}], s:[I], s:[{s:s, s:s, s:I, s:s, s:i, s:i}], s:{s:{s:i}}}",
        "schema", ENI_STUDY_SCHEMA, "target", target > 0 ? target : 0.75, "settings", "name", "run", "arms",
        "name", strategy ? strategy : "run", "strategy", strategy ? strategy : "run", "seeds", seed, "runs",
        "setting", "run", "arm", strategy ? strategy : "run", "seed", seed, "dir", ".", "order", 0, "exit",
        has_failed, "plan", "seeds", "run", 1);
    if (index != NULL) {
        if (loss != NULL) json_object_set(index, "target_loss", loss);
        if (json_object_get(result, "program") == NULL) /* whose arguments do not say how it was started */
            json_object_set(index, "argv", json_object_get(result, "argv"));
        json_object_set(index, "environment", json_object_get(result, "environment"));
        if (json_object_get(result, "simulated") != NULL)
            json_object_set_new(index, "simulated", json_true());
    }
    json_decref(result);
    return index;
}

/* A study's index, marked; NULL: there is none, logged. */
static json_t *load_index(const char *dir, char path[PATH_MAX], eni_json *reader)
{
    snprintf(path, PATH_MAX, "%s/compare.json", dir);
    const bool is_study = access(path, F_OK) == 0;
    json_t *index = is_study ? eni_json_load(reader) : index_of_single_run(dir);
    if (index == NULL && !is_study) {
        eni_error("report",
                  "%s has no compare.json and no result.json: give the --out folder of a comparison", dir);
        reader->status = EN_ENOENT;
    }
    return index;
}

en_status eni_study_load(const char *const *dirs, size_t n, eni_target target, eni_study **study_out)
{
    eni_study *study = eni_alloc(sizeof *study);
    char path[PATH_MAX];
    eni_json reader = {.who = "report", .path = path};
    if (study == NULL) return EN_ENOMEM;
    for (; study->ndirs < n && reader.status == EN_OK; study->ndirs++) {
        json_t *index = load_index(dirs[study->ndirs], path, &reader);
        study->dir[study->ndirs] = eni_strdup(dirs[study->ndirs]);
        if (study->dir[study->ndirs] == NULL) reader.status = EN_ENOMEM;
        eni_merge_mark(index, (int)study->ndirs);
        if (study->index == NULL) {
            study->index = index;
            continue;
        }
        eni_study_check_schema(&reader, index, ENI_STUDY_SCHEMA);
        eni_merge_add(study->index, index);
        json_decref(index);
    }
    if (reader.status == EN_OK) reader.status = fill_study(&reader, target, study);
    if (reader.status == EN_OK)
        *study_out = study;
    else
        eni_study_free(study);
    return reader.status;
}

void eni_study_free(eni_study *study)
{
    if (study == NULL) return;
    for (size_t i = 0; i < study->nruns + study->nreplaced; i++)
        eni_study_drop_run(&study->runs[i]);
    eni_free(study->runs);
    eni_free(study->seeds);
    json_decref(study->index);
    for (size_t i = 0; i < study->ndirs; i++)
        eni_free(study->dir[i]);
    eni_free(study);
}
