/* compare.c - `entrain compare`: the same job with several strategies, in several cells, over several seeds.
 *
 * Runs are interleaved: for each seed, in each cell, one run of every arm, and the arm that goes first
 * rotates; so a machine that slows down over time slows all arms alike. compare.json says which runs there
 * are and is rewritten after each, so that an interrupted comparison can still be reported. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/gpu_here.h"
#include "cli/launch.h"
#include "cli/live.h"
#include "cli/merge_trace.h"
#include "cli/report.h"
#include "config/folders.h"
#include "runtime/comm/options.h"
#include "runtime/comm/plugin.h"
#include "runtime/core/files.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "runtime/net/place.h"

enum { MAX_ARMS = 16, MAX_CELLS = 4, CURVE_POINTS = 12, FULL_SET = 60000, LABEL_BYTES = 64 };
enum { DEFAULT_TARGET = 75 }; /* percent; the report compares times to a target, so it needs one */

typedef struct comparison {
    const eni_command_context *context;
    const char *dir;
    int narms, ncells, nseeds;
    eni_config arm[MAX_ARMS]; /* as runs, with the first seed */
    const char *label[MAX_ARMS];
    char cell[MAX_CELLS][16];
    int cell_seeds[MAX_CELLS];     /* how many of the seeds run in it */
    int line[MAX_CELLS][MAX_ARMS]; /* of the live display */
    eni_live live;
    json_t *json, *runs;
    int order;
} comparison;

/* ---- what is compared ---- */

/* A curve of about CURVE_POINTS points, unless the user said otherwise. */
static void choose_eval_every(eni_config *run)
{
    if (eni_config_is_given(run, "eval-every")) return;
    int64_t set = run->limit_train_samples > 0 ? run->limit_train_samples : FULL_SET;
    int64_t total = run->max_samples > 0 ? run->max_samples
                    : run->steps > 0     ? run->steps * run->batch_size * run->workers
                                         : run->epochs * set;
    run->eval_every = total / CURVE_POINTS > 0 ? total / CURVE_POINTS : 1;
}

/* Names of files: letters, digits, '.', '-'. */
static void file_name(const char *text, char *name, size_t bytes)
{
    snprintf(name, bytes, "%s", text);
    for (char *p = name; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') || *p == '.'))
            *p = '-';
}

/* Two arms in one folder would overwrite each other's records. */
static en_status check_folder_is_new(const comparison *c, const char *text)
{
    char name[LABEL_BYTES], other[LABEL_BYTES];
    file_name(text, name, sizeof name);
    for (int i = 0; i < c->narms; i++) {
        file_name(c->label[i], other, sizeof other);
        if (strcmp(name, other) != 0) continue;
        eni_error("compare", "--arm=%s and --arm=%s would share the folders *-%s-*: give each arm once",
                  c->label[i], text, name);
        return EN_EINVAL;
    }
    return EN_OK;
}

/* `solo` beside W workers is one process that takes the micro-batches of all W and averages them, with the
 * threads of one worker: then its bytes are theirs. */
static void make_baseline(eni_config *run)
{
    char word[ENI_STRATEGY_WORD_MAX];
    const char *options;
    if (eni_plugin_split(run->strategy, word, &options) != EN_OK || strcmp(word, "solo") != 0) return;
    int64_t share = eni_place_cores() / run->workers;
    if (run->threads == 0) run->threads = share > 0 ? share : 1;
    if (run->accumulate == 1) run->accumulate = run->workers;
    run->workers = 1;
}

/* Before the first arm trains, for all. */
static en_status check_strategy(const comparison *c, const eni_config *run)
{
    char word[ENI_STRATEGY_WORD_MAX];
    const char *given;
    const en_strategy *strategy;
    eni_options *options;
    EN_TRY(eni_plugin_split(run->strategy, word, &given));
    EN_TRY(eni_plugin_find(c->context->plugin_dir, word, &strategy));
    EN_TRY(eni_options_new(strategy, given, &options));
    eni_options_free(options);
    return EN_OK;
}

/* The same; each device is asked for once. */
static en_status check_gpu(const comparison *c, const eni_config *run)
{
    for (const eni_config *other = c->arm; other < run; other++)
        if (strcmp(other->device, run->device) == 0) return EN_OK;
    return eni_gpu_here(run->device, c->context->plugin_dir, c->context->signal_fd);
}

static en_status add_arm(comparison *c, const char *text)
{
    if (c->narms == MAX_ARMS) {
        eni_error("compare", "--arm=%s: at most %d arms", text, MAX_ARMS);
        return EN_EINVAL;
    }
    EN_TRY(check_folder_is_new(c, text));
    EN_TRY(eni_config_arm(c->context->config, text, &c->arm[c->narms]));
    make_baseline(&c->arm[c->narms]);
    choose_eval_every(&c->arm[c->narms]);
    c->arm[c->narms].quiet = true; /* the live lines speak */
    if (!eni_config_is_given(c->context->config, "log-level")) c->arm[c->narms].log_level = ENI_LEVEL_WARN;
    c->label[c->narms++] = text;
    EN_TRY(check_strategy(c, &c->arm[c->narms - 1]));
    return check_gpu(c, &c->arm[c->narms - 1]);
}

/* "slow", or "slow@1": with the first seed only. */
static en_status add_cell(comparison *c, const char *text)
{
    const char *seeds = strchr(text, '@');
    int n = seeds == NULL ? c->nseeds : atoi(seeds + 1);
    size_t length = seeds == NULL ? strlen(text) : (size_t)(seeds - text);
    snprintf(c->cell[c->ncells], sizeof c->cell[0], "%.*s", (int)length, text);
    for (int i = 0; i < c->ncells; i++)
        if (strcmp(c->cell[i], c->cell[c->ncells]) == 0) {
            eni_error("compare", "--cells: \"%s\" is there twice", c->cell[i]);
            return EN_EINVAL;
        }
    c->cell_seeds[c->ncells++] = n < c->nseeds ? n : c->nseeds;
    return EN_OK;
}

static en_status collect(comparison *c)
{
    const eni_config *config = c->context->config;
    for (int i = 0; i < config->arm.count; i++)
        EN_TRY(add_arm(c, config->arm.item[i]));
    for (int i = 0; i < config->strategies.count; i++)
        EN_TRY(add_arm(c, config->strategies.item[i]));
    if (c->narms == 0) {
        eni_error("compare",
                  "nothing to compare: give --arm=ring --arm=ps-async, or --strategies=ring,ps-async");
        return EN_EINVAL;
    }
    c->nseeds = config->seeds.count > 0 ? config->seeds.count : 1;
    for (int i = 0; i < config->cells.count && c->ncells < MAX_CELLS; i++)
        EN_TRY(add_cell(c, config->cells.item[i]));
    if (c->ncells == 0) EN_TRY(add_cell(c, "even"));
    for (int cell = 0; cell < c->ncells; cell++)
        for (int arm = 0; arm < c->narms; arm++)
            c->line[cell][arm] = eni_live_add(&c->live, c->cell[cell], c->label[arm], c->cell_seeds[cell]);
    return EN_OK;
}

/* "slow" slows rank 1 by 3, or as --straggler says; "even" slows nobody. */
static const char *straggler_of(const comparison *c, const char *cell)
{
    if (strcmp(cell, "slow") != 0) return NULL;
    return c->context->config->straggler.count > 0 ? c->context->config->straggler.item[0] : "1:3";
}

/* ---- compare.json ---- */

static void read_line(const char *path, const char *key, char *text, size_t bytes)
{
    char line[512];
    FILE *file = fopen(path, "re");
    text[0] = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || colon == NULL) continue;
        snprintf(text, bytes, "%s", colon + 2);
        text[strcspn(text, "\n")] = 0;
        break;
    }
    if (file != NULL) fclose(file);
}

static json_t *environment(void)
{
    struct utsname name;
    char cpu[256];
    double load = 0;
    FILE *file = fopen("/proc/loadavg", "re");
    if (file != NULL) {
        if (fscanf(file, "%lf", &load) != 1) load = 0;
        fclose(file);
    }
    uname(&name);
    read_line("/proc/cpuinfo", "model name", cpu, sizeof cpu);
    return json_pack("{s:s, s:i, s:s, s:s, s:f}", "cpu", cpu, "cores", eni_place_cores(), "kernel",
                     name.release, "version", EN_VERSION, "load", load);
}

static void describe(comparison *c)
{
    const eni_config *config = c->context->config;
    static const char *const scales[] = {"none", "linear", "sqrt"};
    double target = (config->target > 0 ? config->target : DEFAULT_TARGET) / 100;
    json_t *argv = json_array(), *cells = json_array(), *arms = json_array(), *seeds = json_array();
    for (int i = 0; i < c->context->argc; i++)
        json_array_append_new(argv, json_string(c->context->argv[i]));
    for (int i = 0; i < c->ncells; i++) {
        const char *straggler = straggler_of(c, c->cell[i]);
        json_array_append_new(cells, json_pack("{s:s, s:o}", "name", c->cell[i], "straggler",
                                               straggler == NULL ? json_null() : json_string(straggler)));
    }
    for (int i = 0; i < c->narms; i++) {
        char word[ENI_STRATEGY_WORD_MAX];
        const char *options = "";
        if (eni_plugin_split(c->arm[i].strategy, word, &options) != EN_OK) word[0] = 0;
        json_array_append_new(arms, json_pack("{s:s, s:s, s:s, s:f}", "name", c->label[i], "strategy", word,
                                              "options", options, "lr", c->arm[i].lr));
    }
    for (int i = 0; i < c->nseeds; i++)
        json_array_append_new(seeds, json_integer(eni_config_seed(config, i)));
    c->runs = json_array();
    c->json = json_pack("{s:i, s:o, s:f, s:s, s:o, s:o, s:o, s:o, s:o}", "schema", 1, "argv", argv, "target",
                        target, "lr_scale", scales[config->lr_scale], "cells", cells, "arms", arms, "seeds",
                        seeds, "runs", c->runs, "environment", environment());
}

static en_status write_index(const comparison *c)
{
    char path[1024], *text = json_dumps(c->json, JSON_INDENT(1));
    snprintf(path, sizeof path, "%s/compare.json", c->dir);
    const en_status st = eni_file_replace_text("compare", path, text);
    free(text); /* jansson's */
    return st;
}

/* ---- one run ---- */

static void on_progress(void *user, const eni_launch_progress *progress)
{
    eni_live_progress(user, progress);
}

static void show_outcome(comparison *c, const char *dir)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/result.json", dir);
    json_t *result = json_load_file(path, 0, NULL);
    eni_live_end(&c->live, json_number_value(json_object_get(result, "samples_per_s")),
                 json_number_value(json_object_get(result, "test_accuracy")));
    json_decref(result);
}

/* Every run its own folder of event files: FOLDER/RUN, or its --out. */
static en_status set_tensorboard(eni_config *run, const char *dir)
{
    char text[1200];
    if (run->tensorboard == NULL || strcmp(run->tensorboard, "auto") == 0) return EN_OK;
    EN_TRY(eni_folder_check("--tensorboard", run->tensorboard));
    snprintf(text, sizeof text, "%s/%s", run->tensorboard, strrchr(dir, '/') + 1);
    return eni_config_set(run, "tensorboard", text, "--tensorboard");
}

static en_status set_run(comparison *c, eni_config *run, int cell, int seed, const char *dir, int with_trace)
{
    char text[1200];
    snprintf(text, sizeof text, "%lld", (long long)eni_config_seed(c->context->config, seed));
    EN_TRY(eni_config_set(run, "seed", text, "--seeds"));
    EN_TRY(eni_config_set(run, "out", dir, "--out"));
    EN_TRY(set_tensorboard(run, dir));
    const char *straggler = straggler_of(c, c->cell[cell]);
    if (straggler != NULL && run->straggler.count == 0)
        EN_TRY(eni_config_set(run, "straggler", straggler, "--cells"));
    while (straggler == NULL && run->straggler.count > 0)
        eni_free(run->straggler.item[--run->straggler.count]);
    if (!with_trace) return EN_OK;
    snprintf(text, sizeof text, "%s/trace.json", dir);
    return eni_config_set(run, "trace", text, "--out");
}

static en_status run_one(comparison *c, int cell, int arm, int seed)
{
    char name[128], relative[160], dir[1024], label[LABEL_BYTES], started[32];
    int64_t seed_value = eni_config_seed(c->context->config, seed);
    file_name(c->label[arm], label, sizeof label);
    snprintf(name, sizeof name, "%s-%s-s%lld", c->cell[cell], label, (long long)seed_value);
    snprintf(relative, sizeof relative, "runs/%s", name);
    snprintf(dir, sizeof dir, "%s/%s", c->dir, relative);
    time_t now = time(NULL);
    struct tm utc;
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    eni_config run;
    int with_trace = seed == 0;
    EN_TRY(eni_config_copy(&c->arm[arm], &run));
    en_status st = set_run(c, &run, cell, seed, dir, with_trace);
    eni_launch launch = {.config = &run,
                         .plugin_dir = c->context->plugin_dir,
                         .signal_fd = c->context->signal_fd,
                         .has_gpus = true,
                         .on_progress = on_progress,
                         .user = &c->live};
    eni_live_begin(&c->live, c->line[cell][arm]);
    if (st == EN_OK) st = eni_launch_run(&launch);
    if (st == EN_OK && with_trace) st = eni_merge_trace(run.trace, (int)run.workers);
    eni_config_fini(&run);
    json_array_append_new(c->runs,
                          json_pack("{s:s, s:s, s:I, s:s, s:i, s:s, s:i}", "cell", c->cell[cell], "arm",
                                    c->label[arm], "seed", (json_int_t)seed_value, "dir", relative, "order",
                                    c->order++, "started", started, "exit", st == EN_OK ? 0 : 1));
    EN_TRY(write_index(c));
    if (st == EN_OK) show_outcome(c, dir);
    return st;
}

static en_status run_all(comparison *c)
{
    for (int seed = 0; seed < c->nseeds; seed++)
        for (int cell = 0; cell < c->ncells; cell++)
            for (int i = 0; seed < c->cell_seeds[cell] && i < c->narms; i++)
                EN_TRY(run_one(c, cell, (i + seed + cell) % c->narms, seed));
    return EN_OK;
}

static en_status make_folders(const comparison *c)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/runs", c->dir);
    EN_TRY(eni_folder_check("--out", c->dir));
    return eni_folder_check("--out", path);
}

en_status eni_command_compare(const eni_command_context *context)
{
    comparison *c = eni_alloc(sizeof *c);
    if (c == NULL) return EN_ENOMEM;
    c->context = context;
    c->dir = context->config->out != NULL ? context->config->out : "compare";
    eni_live_init(&c->live, context->config->quiet);
    en_status st = collect(c);
    if (st == EN_OK) st = make_folders(c);
    if (st == EN_OK) describe(c);
    if (st == EN_OK) st = run_all(c);
    if (st == EN_OK) st = eni_report(c->dir, stdout, 0);
    if (st == EN_OK) printf("\nThe report: %s/report.html\n", c->dir);
    json_decref(c->json);
    for (int i = 0; i < c->narms; i++)
        eni_config_fini(&c->arm[i]);
    eni_free(c);
    return st;
}
