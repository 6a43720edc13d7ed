/* compare.c - `entrain compare`: the same job with several strategies, in several settings, over several
 * seeds.
 *
 * Runs are interleaved: for each seed, in each setting, one run of every arm, and the arm that goes first
 * rotates; so a machine that slows down over time slows all arms alike. compare.json lists the runs and is
 * rewritten after each, so that an interrupted comparison can still be reported. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/compare_past.h"
#include "cli/compare_tune.h"
#include "cli/launcher/launch.h"
#include "cli/launcher/live.h"
#include "cli/simulations.h"
#include "config/folders.h"
#include "config/outputs.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/signals.h"
#include "core/try.h"
#include "data/dataset.h"
#include "ops/device.h"
#include "report/comparisons.h"
#include "report/report.h"
#include "report/report_study.h"
#include "run/slowdown.h"
#include "run/units.h"
#include "runtime/net/host_info.h"
#include "runtime/spec/strategies.h"

enum {
    REAL_WORKERS = 1024,
    MAX_ARMS = 16,
    MAX_SETTINGS = 4,
    HOLDOUT = 5000,
    LABEL_BYTES = 64,
    LIST_BYTES = 1024
};

typedef struct comparison {
    const eni_command_context *context;
    const char *dir;
    int narms, nsettings, nseeds;
    bool is_virtual;       /* --virtual */
    eni_config base;       /* the configuration that all arms begin with: as given, without the stragglers */
    char slow[LIST_BYTES]; /* the stragglers of the setting "slow", with commas */
    eni_config arm[MAX_ARMS]; /* of their runs, with the first seed */
    char *label[MAX_ARMS];    /* its name, or its text; owned */
    bool is_alone[MAX_ARMS];  /* the strategy is EN_ALONE */
    char setting[MAX_SETTINGS][16];
    double values[ENI_TUNE_MAX]; /* --tune */
    int nvalues, tune_line[MAX_ARMS];
    json_t *sweep[MAX_ARMS];          /* compare_tune.h; owned */
    int setting_seeds[MAX_SETTINGS];  /* how many of the seeds run in it */
    int line[MAX_SETTINGS][MAX_ARMS]; /* of the live display */
    eni_live live;
    json_t *json, *runs;
    int order, nruns, nagain; /* nruns: planned; nagain: to be repeated on a quieter machine, so far */
    size_t npairs, baseline;  /* an arm, or ENI_COMPARISONS_ALL */
    eni_comparison pairs[MAX_SETTINGS * MAX_ARMS * (MAX_ARMS - 1) / 2]; /* the plan, before the first run */
    char plan[512];                                                     /* the same as text */
    int out_fd;                                                         /* dir, locked; -1 */
} comparison;

/* ---- what is compared ---- */

/* The test set chooses nothing: HOLDOUT training samples, or a tenth of a smaller set, are kept for the
 * curves. Refuses, before the first run, a set too small to train on. */
static en_status choose_holdout(eni_config *run)
{
    uint64_t size;
    if (run->command.count > 0) return EN_OK; /* a program judges itself by a set of its own */
    eni_data_options data = {
        .name = run->data, .folder = run->data_dir, .limit_train = (uint64_t)run->limit_train_samples};
    if (!eni_config_is_given(run, "holdout")) {
        EN_TRY(eni_dataset_train_size(&data, &size));
        const uint64_t most = eni_dataset_most_held_out(size);
        run->holdout = most < HOLDOUT ? (int64_t)most : HOLDOUT;
    }
    data.holdout = (uint64_t)run->holdout;
    return eni_dataset_check(&data);
}

/* Makes a file name: letters, digits, '.', '-'. */
static void file_name(const char *text, char *name, size_t bytes)
{
    snprintf(name, bytes, "%s", text);
    for (char *p = name; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') || *p == '.'))
            *p = '-';
}

/* Two arms in one folder would overwrite each other's records. */
static en_status check_folder_is_new(const comparison *c, const char *text, const char *label)
{
    char name[LABEL_BYTES], other[LABEL_BYTES];
    file_name(label, name, sizeof name);
    for (int i = 0; i < c->narms; i++) {
        file_name(c->label[i], other, sizeof other);
        if (strcmp(name, other) != 0) continue;
        return eni_fail(EN_EINVAL, "compare",
                        "--arm=%s and %s would share the folders *-%s-*: give each arm once, or a distinct "
                        "name, such as --arm=b=ring",
                        text, c->label[i], name);
    }
    return EN_OK;
}

/* `solo` beside W workers is one process that takes the micro-batches of all W and averages them, with the
 * threads of one worker: so its bytes equal theirs. */
static en_status make_baseline(int64_t workers, eni_config *run)
{
    char text[24];
    int64_t share = eni_host_info_cores() / workers;
    if (run->threads == 0) run->threads = share > 0 ? share : 1;
    run->workers = 1;
    snprintf(text, sizeof text, "%lld", (long long)workers);
    return eni_config_is_given(run, "accumulate") ? EN_OK : eni_config_set(run, "accumulate", text, "--arm");
}

/* Checks all arms before the first one trains. */
static en_status check_strategy(comparison *c, int arm)
{
    const en_strategy *strategy;
    EN_TRY(eni_strategy_find(c->context->plugin_dir, c->arm[arm].strategy, &strategy));
    c->is_alone[arm] = (strategy->flags & EN_ALONE) != 0;
    if (c->is_alone[arm]) EN_TRY(make_baseline(c->base.workers, &c->arm[arm]));
    EN_TRY(eni_options_check(strategy, eni_spec_options(c->arm[arm].strategy)));
    return c->is_virtual ? EN_OK : eni_servers_check(&c->arm[arm], strategy);
}

/* The same for devices; each is checked once. */
static en_status check_gpu(const comparison *c, const eni_config *run)
{
    if (c->is_virtual && eni_device_is_gpu(run->device))
        return eni_fail(EN_EINVAL, "compare",
                        "--device=%s: virtual time computes on the processor; give cpu or ref", run->device);
    for (const eni_config *other = c->arm; other < run; other++)
        if (strcmp(other->device, run->device) == 0 && other->workers == run->workers &&
            eni_config_ndevices(other) == eni_config_ndevices(run) && other->gpu_sharing == run->gpu_sharing)
            return EN_OK;
    return eni_gpu_here(run, c->context->plugin_dir, c->context->signal_fd);
}

static en_status add_arm(comparison *c, const char *text)
{
    if (c->narms == MAX_ARMS)
        return eni_fail(EN_EINVAL, "compare", "--arm=%s: at most %d arms", text, MAX_ARMS);
    const size_t name = eni_arm_name(text);
    char *label = eni_strdup(text);
    if (label == NULL) return EN_ENOMEM;
    if (name > 0) label[name] = 0;
    en_status st = check_folder_is_new(c, text, label);
    if (st == EN_OK) st = eni_config_arm(&c->base, text, &c->arm[c->narms]);
    if (st != EN_OK) {
        eni_free(label);
        return st;
    }
    c->arm[c->narms].mute = true; /* the live lines report */
    const bool has_level = eni_config_is_given(&c->arm[c->narms], "log-level");
    c->label[c->narms++] = label;
    if (!has_level) EN_TRY(eni_config_set(&c->arm[c->narms - 1], "log-level", "warn", "--log-level"));
    EN_TRY(check_strategy(c, c->narms - 1));
    EN_TRY(choose_holdout(&c->arm[c->narms - 1]));
    return check_gpu(c, &c->arm[c->narms - 1]);
}

/* The index of a setting; c->nsettings if it is not compared. */
static int find_setting(const comparison *c, const char *name)
{
    int i = 0;
    while (i < c->nsettings && strcmp(c->setting[i], name) != 0)
        i++;
    return i;
}

/* "slow", or "slow@1": with the first seed only. */
static en_status add_setting(comparison *c, const char *text)
{
    const char *seeds = strchr(text, '@');
    int n = seeds == NULL ? c->nseeds : atoi(seeds + 1);
    size_t length = seeds == NULL ? strlen(text) : (size_t)(seeds - text);
    snprintf(c->setting[c->nsettings], sizeof c->setting[0], "%.*s", (int)length, text);
    if (find_setting(c, c->setting[c->nsettings]) < c->nsettings)
        return eni_fail(EN_EINVAL, "compare", "--settings: \"%s\" is given twice", c->setting[c->nsettings]);
    c->setting_seeds[c->nsettings++] = n < c->nseeds ? n : c->nseeds;
    return EN_OK;
}

/* Stragglers belong to the setting "slow", and an arm's own to that arm; so the base has none. The workers
 * are set there, or `solo` would be taken for a run of one. */
static en_status make_base(comparison *c)
{
    char workers[24];
    EN_TRY(eni_config_copy(c->context->config, &c->base));
    snprintf(workers, sizeof workers, "%lld", (long long)c->base.workers);
    EN_TRY(eni_config_set(&c->base, "workers", workers, "-n"));
    EN_TRY(eni_config_become(&c->base, c->is_virtual ? ENI_SIM : ENI_RUN));
    if (c->is_virtual) {
        EN_TRY(eni_config_set(&c->base, "model", c->context->config->model, "--model"));
        EN_TRY(eni_config_resolve(&c->base)); /* a network has defaults of its own */
    }
    c->base.overwrite = true; /* the lock on the study's folder covers those of its runs */
    eni_free(c->base.resume);
    c->base.resume = NULL;
    EN_TRY(choose_holdout(&c->base));
    eni_list *given = &c->base.straggler;
    size_t used = 0;
    for (int i = 0; i < given->count && used < sizeof c->slow; i++)
        used +=
            (size_t)snprintf(c->slow + used, sizeof c->slow - used, "%s%s", i > 0 ? "," : "", given->item[i]);
    if (used >= sizeof c->slow)
        return eni_fail(EN_EINVAL, "compare", "--straggler: %d are too many to record; give fewer",
                        given->count);
    if (given->count == 0) snprintf(c->slow, sizeof c->slow, "1:3");
    while (given->count > 0)
        eni_free(given->item[--given->count]);
    return EN_OK;
}

/* In the setting "slow", every arm without stragglers of its own must have the ranks that are slowed. */
static en_status check_slow(const comparison *c)
{
    for (int i = 0; i < c->narms; i++) {
        eni_config run;
        eni_slowdown slow;
        if (c->arm[i].straggler.count > 0) continue;
        EN_TRY(eni_config_copy(&c->arm[i], &run));
        en_status st = eni_config_set(&run, "straggler", c->slow, "--straggler");
        for (int k = 0; st == EN_OK && k < run.straggler.count; k++) {
            (void)eni_slowdown_read(run.straggler.item[k], &slow); /* checked with the key */
            if ((slow.hi == ENI_SLOW_ALL ? slow.lo : slow.hi) < run.workers) continue;
            st = eni_fail(
                EN_EINVAL, "compare",
                "--settings=slow: \"%s\" slows a rank that the arm %s with %lld worker%s does not have; "
                "name a rank that it has, or omit the arm",
                run.straggler.item[k], c->label[i], (long long)run.workers, run.workers == 1 ? "" : "s");
        }
        eni_config_fini(&run);
        EN_TRY(st);
    }
    return EN_OK;
}

/* Adds --settings, or else "even", or else "slow" if --straggler is given. */
static en_status add_settings(comparison *c)
{
    const eni_config *config = c->context->config;
    const bool is_slowed = config->straggler.count > 0;
    if (is_slowed && !eni_config_is_given(config, "settings"))
        EN_TRY(add_setting(c, "slow"));
    else
        for (int i = 0; i < config->settings.count && c->nsettings < MAX_SETTINGS; i++)
            EN_TRY(add_setting(c, config->settings.item[i]));
    if (find_setting(c, "slow") < c->nsettings) return check_slow(c);
    if (!is_slowed) return EN_OK;
    return eni_fail(EN_EINVAL, "compare",
                    "--straggler: \"%s\" slows no rank in --settings=%s; give --settings=even,slow, or "
                    "omit --settings for slow alone",
                    c->slow, c->setting[0]);
}

/* --primary: an existing setting and two existing arms. */
static en_status find_primary(const comparison *c, const char *text, eni_primary *primary_out)
{
    char name[32];
    int64_t a = 0, b = 0;
    if (!eni_primary_parse(text, name, &a, &b)) return EN_EINVAL; /* logged by the key's check */
    const int setting = find_setting(c, name);
    if (setting == c->nsettings)
        return eni_fail(
            EN_EINVAL, "compare",
            "--primary: \"%s\" names the setting %s, which is not compared: give one of --settings", text,
            name);
    if (a >= c->narms || b >= c->narms)
        return eni_fail(EN_EINVAL, "compare",
                        "--primary: \"%s\" names arm %lld, and there are %d: give two from 1 to %d", text,
                        (long long)(a > b ? a : b) + 1, c->narms, c->narms);
    *primary_out = (eni_primary){(size_t)setting, (size_t)a, (size_t)b};
    return EN_OK;
}

/* --baseline: an arm by its name, or by its text. */
static en_status find_baseline(comparison *c)
{
    const char *text = c->context->config->baseline;
    c->baseline = ENI_COMPARISONS_ALL;
    for (int i = 0; i < c->narms && text != NULL; i++)
        if (strcmp(c->label[i], text) == 0) c->baseline = (size_t)i;
    if (text == NULL || c->baseline != ENI_COMPARISONS_ALL) return EN_OK;
    return eni_fail(EN_EINVAL, "compare",
                    "--baseline: \"%s\" is not an arm: give the name of one, such as %s", text, c->label[0]);
}

/* --tune chooses the rate of every arm, or of none: arms that are not tuned alike make no comparison. */
static en_status add_sweeps(comparison *c)
{
    const char *text = c->context->config->tune;
    if (text == NULL) return EN_OK;
    c->nvalues = eni_tune_parse(text, c->values);
    if (eni_config_is_given(c->context->config, ENI_TUNED))
        return eni_fail(EN_EINVAL, "compare", "--tune: \"%s\" conflicts with --lr=%g; give one of the two",
                        text, c->context->config->lr);
    for (int arm = 0; arm < c->narms; arm++) {
        if (eni_config_is_of_arm(&c->arm[arm], ENI_TUNED))
            return eni_fail(
                EN_EINVAL, "compare",
                "--tune: \"%s\" sets the rate of every arm, but %s has lr=%g of its own; omit one of the two",
                text, c->label[arm], c->arm[arm].lr);
        if (c->arm[arm].holdout == 0)
            return eni_fail(EN_EINVAL, "compare",
                            "--holdout=0: --tune chooses by the loss on held-out samples; give --holdout "
                            "above 0, or omit it");
        c->tune_line[arm] = eni_live_add(&c->live, "tune", c->label[arm], c->nvalues);
    }
    return EN_OK;
}

/* Fixes and logs, before any result is known, which differences may be claimed. */
static en_status plan_comparisons(comparison *c)
{
    const char *text = c->context->config->primary, *names[MAX_SETTINGS];
    size_t seeds[MAX_SETTINGS];
    eni_primary primary;
    if (c->nseeds > ENI_COMPARISONS_SEEDS)
        return eni_fail(EN_EINVAL, "compare",
                        "--seeds: %d seeds exceed the %d that can be tested exactly: give fewer", c->nseeds,
                        ENI_COMPARISONS_SEEDS);
    if (text != NULL) EN_TRY(find_primary(c, text, &primary));
    EN_TRY(find_baseline(c));
    for (int setting = 0; setting < c->nsettings; setting++) {
        seeds[setting] = (size_t)c->setting_seeds[setting];
        names[setting] = c->setting[setting];
    }
    c->npairs = eni_comparisons_count((size_t)c->nsettings, (size_t)c->narms);
    eni_comparisons_plan(seeds, (size_t)c->nsettings, (size_t)c->narms, c->baseline,
                         text == NULL ? NULL : &primary, c->pairs);
    eni_comparisons_text(c->pairs, c->npairs, names, c->plan, sizeof c->plan);
    return EN_OK;
}

/* The plan for compare.json. */
static json_t *describe_plan(const comparison *c)
{
    json_t *comparisons = json_array(), *seeds = json_object(), *primary = json_null();
    size_t needed = eni_comparisons_need(c->pairs, c->npairs);
    for (size_t i = 0; i < c->npairs; i++) {
        const eni_comparison *pair = &c->pairs[i];
        if (!pair->is_planned) continue;
        json_t *entry = json_pack("{s:s, s:[s, s]}", "setting", c->setting[pair->setting], "arms",
                                  c->label[pair->a], c->label[pair->b]);
        if (pair->is_primary) primary = json_incref(entry);
        if (pair->is_primary && needed == 0) needed = eni_comparisons_seeds(1);
        json_array_append_new(comparisons, entry);
    }
    for (int setting = 0; setting < c->nsettings; setting++)
        json_object_set_new(seeds, c->setting[setting], json_integer(c->setting_seeds[setting]));
    const char *baseline = c->baseline == ENI_COMPARISONS_ALL ? NULL : c->label[c->baseline];
    return json_pack("{s:f, s:o, s:i, s:o, s:o, s:s?}", "alpha", ENI_COMPARISONS_ALPHA, "seeds", seeds,
                     "seeds_needed", (int)needed, "primary", primary, "comparisons", comparisons, "baseline",
                     baseline);
}

/* Flags that need --virtual. */
static en_status check_real(const eni_config *config)
{
    const char *what = eni_config_is_given(config, "compute")       ? "--compute"
                       : eni_config_is_given(config, "server-time") ? "--server-time"
                       : config->workers > REAL_WORKERS             ? "-n above 1024"
                                                                    : NULL;
    if (what == NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "compare", "%s is for runs in virtual time; give --virtual too, or omit it",
                    what);
}

/* Flags that the ranks of a program cannot follow. */
static en_status check_program(const eni_config *config)
{
    const char *why = config->is_virtual ? "--virtual is for Entrain's own networks, or entrain.simulate"
                      : config->tune     ? "--tune chooses by held-out samples, which no program has"
                                         : NULL;
    if (config->command.count == 0 || why == NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "compare", "%s: omit it, or %s", why, config->command.item[0]);
}

static en_status collect(comparison *c)
{
    const eni_config *config = c->context->config;
    if (config->seeds.count > 0 && eni_config_is_given(config, "seed"))
        return eni_fail(EN_EINVAL, "compare", "--seed: \"%lld\" conflicts with --seeds; give one of the two",
                        (long long)config->seed);
    if (!eni_target_is_set(&config->target))
        return eni_fail(
            EN_EINVAL, "compare",
            "--target=0: arms are compared by the time to a target; give a percentage above 0, or "
            "loss:VALUE");
    if (!c->is_virtual) EN_TRY(check_real(config));
    EN_TRY(check_program(config));
    EN_TRY(make_base(c));
    for (int i = 0; i < config->arm.count; i++)
        EN_TRY(add_arm(c, config->arm.item[i]));
    for (int i = 0; i < config->strategies.count; i++)
        EN_TRY(add_arm(c, config->strategies.item[i]));
    if (c->narms == 0)
        return eni_fail(EN_EINVAL, "compare",
                        "nothing to compare: give --arm=ring --arm=ps-async, or --strategies=ring,ps-async");
    c->nseeds = config->seeds.count > 0 ? config->seeds.count : 1;
    EN_TRY(add_settings(c));
    EN_TRY(add_sweeps(c));
    for (int setting = 0; setting < c->nsettings; setting++)
        for (int arm = 0; arm < c->narms; arm++, c->nruns += c->setting_seeds[setting])
            c->line[setting][arm] =
                eni_live_add(&c->live, c->setting[setting], c->label[arm], c->setting_seeds[setting]);
    return plan_comparisons(c);
}

/* "slow" slows rank 1 by 3, or as --straggler says; "even" slows no rank. */
static const char *straggler_of(const comparison *c, const char *setting)
{
    return strcmp(setting, "slow") == 0 ? c->slow : NULL;
}

/* ---- compare.json ---- */

static json_t *environment(const comparison *c)
{
    json_t *env = json_object();
    eni_host_info_facts(c->context->version == NULL ? EN_VERSION : c->context->version, eni_json_tell, env);
    json_object_set_new(env, "cores", json_integer(eni_host_info_cores()));
    json_object_set_new(env, "memory", json_integer((json_int_t)eni_host_info_memory()));
    return env;
}

/* Describes the arms with what their sweeps have found so far. */
static en_status describe_arms(comparison *c)
{
    json_t *conditions = json_object(), *arms = json_array();
    for (int i = 0; i < c->narms; i++) {
        const char *strategy = c->arm[i].strategy;
        json_t *arm = json_pack("{s:s, s:s#, s:s, s:f}", "name", c->label[i], "strategy", strategy,
                                (int)eni_spec_head(strategy), "options", eni_spec_options(strategy), "lr",
                                c->arm[i].lr);
        if (c->is_alone[i]) json_object_set_new(arm, "alone", json_true());
        if (c->sweep[i] != NULL) json_object_set(arm, "sweep", c->sweep[i]);
        json_array_append_new(arms, arm);
    }
    json_object_set_new(c->json, "conditions", conditions);
    json_object_set_new(c->json, "arms", arms);
    return eni_compare_keys(&c->base, c->arm, c->narms, conditions, arms);
}

static en_status describe(comparison *c)
{
    const eni_config *config = c->context->config;
    static const char *const scales[] = {"none", "linear", "sqrt"};
    json_t *argv = eni_json_texts(c->context->argv, c->context->argc), *settings = json_array(),
           *seeds = json_array(), *values = json_array();
    for (int i = 0; i < c->nsettings; i++) {
        const char *straggler = straggler_of(c, c->setting[i]);
        json_array_append_new(settings, json_pack("{s:s, s:o}", "name", c->setting[i], "straggler",
                                                  straggler == NULL ? json_null() : json_string(straggler)));
    }
    for (int i = 0; i < c->nseeds; i++)
        json_array_append_new(seeds, json_integer(eni_config_seed(config, i)));
    for (int i = 0; i < c->nvalues; i++)
        json_array_append_new(values, json_real(c->values[i]));
    json_t *tune = json_pack("{s:s, s:o, s:I, s:s}", "key", ENI_TUNED, "values", values, "seed",
                             (json_int_t)eni_tune_seed(config), "setting", c->setting[0]);
    c->runs = json_array();
    c->json = json_pack("{s:i, s:o, s:n, s:s, s:O*, s:n, s:o, s:n, s:o, s:o, s:o}", "schema",
                        ENI_STUDY_SCHEMA, "argv", argv, "target", "lr_scale", scales[config->lr_scale],
                        "tune", c->nvalues > 0 ? tune : NULL, "conditions", "settings", settings, "arms",
                        "seeds", seeds, "runs", c->runs, "environment", environment(c));
    json_decref(tune);
    eni_study_put_target(c->json, &config->target);
    json_object_set_new(c->json, "plan", describe_plan(c));
    json_object_set_new(c->json, "planned", json_integer(c->nruns));
    json_object_set_new(c->json, "retry_busy", json_boolean(config->retry_busy));
    if (c->is_virtual) json_object_set_new(c->json, "simulated", json_true());
    if (config->command.count > 0)
        json_object_set_new(c->json, "command", eni_json_texts(config->command.item, config->command.count));
    return describe_arms(c);
}

static en_status write_index(const comparison *c)
{
    char path[1024], *text = eni_json_dump(c->json, JSON_INDENT(1));
    snprintf(path, sizeof path, "%s/compare.json", c->dir);
    const en_status st = eni_file_replace_text("compare", path, text);
    free(text); /* jansson's */
    return st;
}

/* ---- one run ---- */

/* The study's device is that of its first run that ended well: opening it here would fix this process's
 * threads, and its children's. */
static void show_outcome(comparison *c, const char *dir)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/result.json", dir);
    json_t *result = eni_json_file(path, NULL), *env = json_object_get(c->json, "environment");
    json_t *device = json_object_get(json_object_get(result, "environment"), "device");
    const json_t *accuracy = json_object_get(result, "test_accuracy"); /* null for a regression */
    const json_t *loss = json_object_get(result, "test_loss");
    if (device != NULL && json_object_get(env, "device") == NULL) json_object_set(env, "device", device);
    eni_live_end(&c->live, json_number_value(json_object_get(result, "samples_per_s")),
                 json_is_number(accuracy) ? json_number_value(accuracy) : -1,
                 json_is_number(loss) ? json_number_value(loss) : NAN);
    json_decref(result);
}

/* A folder of event files per run: FOLDER/RUN, or its --out. */
static en_status set_tensorboard(eni_config *run, const char *dir)
{
    char text[1200];
    if (run->tensorboard == NULL || strcmp(run->tensorboard, "auto") == 0) return EN_OK;
    EN_TRY(eni_folder_check("--tensorboard", run->tensorboard));
    snprintf(text, sizeof text, "%s/%s", run->tensorboard, strrchr(dir, '/') + 1);
    return eni_config_set(run, "tensorboard", text, "--tensorboard");
}

/* A run of the study, or of a sweep. */
typedef struct planned {
    int setting, arm, seed, order;
    int value; /* of the sweep; -1: a run of the study */
    bool is_again;
    char dir[1024], relative[160], started[32];
} planned;

static en_status set_value(eni_config *run, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.12g", value);
    return eni_config_set(run, ENI_TUNED, text, "--tune");
}

/* One look, at the end, in place of a curve. */
static en_status set_sweep(eni_config *run, double value)
{
    EN_TRY(set_value(run, value));
    EN_TRY(eni_config_set(run, "target", "0", "--tune"));
    return eni_config_set(run, "eval-points", "1", "--tune");
}

static en_status set_run(comparison *c, eni_config *run, const planned *t, int with_trace)
{
    char text[1200];
    const eni_config *study = c->context->config;
    snprintf(text, sizeof text, "%lld",
             (long long)(t->value < 0 ? eni_config_seed(study, t->seed) : eni_tune_seed(study)));
    EN_TRY(eni_config_set(run, "seed", text, "--seeds"));
    EN_TRY(eni_config_set(run, "out", t->dir, "--out"));
    if (t->value >= 0) EN_TRY(set_sweep(run, c->values[t->value]));
    EN_TRY(set_tensorboard(run, t->dir));
    const char *straggler = straggler_of(c, c->setting[t->setting]);
    if (straggler != NULL && run->straggler.count == 0) /* otherwise the arm has its own */
        EN_TRY(eni_config_set(run, "straggler", straggler, "--straggler"));
    if (!with_trace) return EN_OK;
    snprintf(text, sizeof text, "%s/trace.json", t->dir);
    return eni_config_set(run, "trace", text, "--out");
}

static en_status train(comparison *c, const planned *t, eni_launch_outcome *outcome)
{
    eni_config run;
    const bool with_trace = t->value < 0 && t->seed == 0;
    EN_TRY(eni_config_copy(&c->arm[t->arm], &run));
    en_status st = set_run(c, &run, t, with_trace);
    eni_launch launch = {.config = &run,
                         .plugin_dir = c->context->plugin_dir,
                         .signal_fd = c->context->signal_fd,
                         .has_gpus = true,
                         .on_progress = eni_live_progress,
                         .user = &c->live,
                         .outcome = outcome};
    if (st == EN_OK) st = eni_launch_run(&launch);
    if (st == EN_OK && with_trace) st = eni_merge_trace(run.trace, (int)run.workers, (int)run.servers);
    eni_config_fini(&run);
    return st;
}

static planned make_run_of(comparison *c, int setting, int arm, int seed, bool is_again)
{
    planned t = {
        .setting = setting, .arm = arm, .seed = seed, .order = c->order++, .value = -1, .is_again = is_again};
    char label[LABEL_BYTES];
    time_t now = time(NULL);
    struct tm utc;
    file_name(c->label[arm], label, sizeof label);
    snprintf(t.relative, sizeof t.relative, "runs/%s-%s-s%lld%s", c->setting[setting], label,
             (long long)eni_config_seed(c->context->config, seed), is_again ? "-again" : "");
    snprintf(t.dir, sizeof t.dir, "%.800s/%s", c->dir, t.relative);
    strftime(t.started, sizeof t.started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    return t;
}

/* In the first setting. */
static planned make_sweep_run(const comparison *c, int arm, int value)
{
    planned t = {.arm = arm, .value = value};
    char label[LABEL_BYTES];
    file_name(c->label[arm], label, sizeof label);
    snprintf(t.relative, sizeof t.relative, "runs/tune-%s-%.12g", label, c->values[value]);
    snprintf(t.dir, sizeof t.dir, "%.800s/%s", c->dir, t.relative);
    return t;
}

/* Once the sweep of an arm is whole, its choice becomes the arm's. */
static en_status tune_arm(comparison *c, int arm)
{
    double value = 0;
    if (json_array_size(c->sweep[arm]) < (size_t)c->nvalues) return EN_OK;
    if (eni_tune_choose(c->sweep[arm], &value)) return set_value(&c->arm[arm], value);
    return eni_fail(EN_EPEER, "compare",
                    "--tune: \"%s\" has no rate for the arm %s: all its runs failed or diverged; give lower "
                    "rates, with --overwrite",
                    c->context->config->tune, c->label[arm]);
}

static en_status record_sweep(comparison *c, const planned *t, en_status st, const char *cause)
{
    eni_live_end(&c->live, 0, -1, NAN);
    eni_tune_add(c->sweep[t->arm], c->values[t->value], c->dir, t->relative, st, cause);
    st = tune_arm(c, t->arm);
    EN_TRY(describe_arms(c));
    EN_TRY(write_index(c));
    return st;
}

/* A failed run is recorded and costs no other run. A repeated one counts once all arms have been repeated. */
static en_status record(comparison *c, const planned *t, en_status st, eni_launch_outcome *outcome)
{
    /* the user's signal, which ends the comparison; not a run that was ended alone */
    const bool has_to_end = st != EN_OK && eni_signals_wait(c->context->signal_fd, 0);
    if (has_to_end) snprintf(outcome->cause, sizeof outcome->cause, "interrupted");
    if (st != EN_OK && !has_to_end)
        eni_warn("compare", "%s failed%s; the comparison goes on", t->relative,
                 outcome->cause[0] != 0 ? "" : ", cause unknown");
    if (t->value >= 0) return has_to_end ? EN_EINTR : record_sweep(c, t, st, outcome->cause);
    json_t *entry =
        json_pack("{s:s, s:s, s:I, s:s, s:i, s:s, s:i}", "setting", c->setting[t->setting], "arm",
                  c->label[t->arm], "seed", (json_int_t)eni_config_seed(c->context->config, t->seed), "dir",
                  t->relative, "order", t->order, "started", t->started, "exit", st == EN_OK ? 0 : 1);
    if (!c->is_virtual) {
        eni_json_set_number(entry, "outside", outcome->outside);
        eni_json_set_number(entry, "load", outcome->load >= 0 ? outcome->load : NAN);
    }
    if (outcome->cause[0] != 0) json_object_set_new(entry, "cause", json_string(outcome->cause));
    if (t->is_again) json_object_update_new(entry, json_pack("{s:b, s:b}", "again", 1, "replaced", 1));
    json_array_append_new(c->runs, entry);
    if (st == EN_OK) show_outcome(c, t->dir);
    EN_TRY(write_index(c));
    return has_to_end ? EN_EINTR : EN_OK;
}

static void begin_line(comparison *c, const planned *t)
{
    eni_live_begin(&c->live, t->value < 0 ? c->line[t->setting][t->arm] : c->tune_line[t->arm]);
}

/* ---- on real ranks one at a time, in virtual time several at once ---- */

typedef struct pool {
    eni_simulations simulations;
    planned runs[ENI_SIMULATIONS_MAX];
    int nrunning;
} pool;

static en_status start(comparison *c, pool *p, const planned *t)
{
    int place = 0;
    eni_config run;
    while (p->simulations.pid[place] != 0)
        place++;
    EN_TRY(eni_config_copy(&c->arm[t->arm], &run));
    en_status st = set_run(c, &run, t, 0);
    if (st == EN_OK) st = eni_simulation_start(&p->simulations, place, &run);
    eni_config_fini(&run);
    p->runs[place] = *t;
    p->nrunning += st == EN_OK;
    return st;
}

static en_status finish_one(comparison *c, pool *p)
{
    eni_launch_outcome outcome = {NAN, -1, ""};
    en_status ended;
    int place = 0;
    EN_TRY(eni_simulations_wait(&p->simulations, c->context->signal_fd, &place, &ended, outcome.cause));
    const planned *t = &p->runs[place];
    p->nrunning--;
    begin_line(c, t);
    c->live.line[c->live.active].now.loss = NAN; /* not followed */
    return record(c, t, ended, &outcome);
}

static en_status run_one(comparison *c, pool *p, const planned *t)
{
    eni_launch_outcome outcome = {NAN, -1, ""};
    if (c->is_virtual) {
        if (p->nrunning == p->simulations.n) EN_TRY(finish_one(c, p));
        return start(c, p, t);
    }
    begin_line(c, t);
    const en_status st = train(c, t, &outcome);
    return record(c, t, st, &outcome);
}

static en_status finish_all(comparison *c, pool *p)
{
    while (p->nrunning > 0)
        EN_TRY(finish_one(c, p));
    return EN_OK;
}

/* The run that is recorded; NULL: not yet. */
static json_t *find_run(const comparison *c, int setting, int arm, int seed, bool is_again)
{
    const json_int_t value = eni_config_seed(c->context->config, seed);
    json_t *run;
    for (size_t i = 0; (run = json_array_get(c->runs, i)) != NULL; i++)
        if (eni_json_says(run, "setting", c->setting[setting]) && eni_json_says(run, "arm", c->label[arm]) &&
            json_integer_value(json_object_get(run, "seed")) == value &&
            json_is_true(json_object_get(run, "again")) == is_again)
            return run;
    return NULL;
}

/* Runs all arms of a seed in a setting that are not recorded yet; the first one rotates. */
static en_status run_seed(comparison *c, pool *p, int setting, int seed, bool is_again)
{
    for (int i = 0; i < c->narms; i++) {
        const int arm = (i + seed + setting) % c->narms;
        if (find_run(c, setting, arm, seed, is_again) != NULL) continue;
        c->live.line[c->line[setting][arm]].runs += is_again;
        const planned t = make_run_of(c, setting, arm, seed, is_again);
        EN_TRY(run_one(c, p, &t));
    }
    return EN_OK;
}

/* Judged by the machine alone, whatever the runs' results. */
static bool was_busy(const comparison *c, int setting, int seed)
{
    bool is_busy = false;
    for (int arm = 0; arm < c->narms; arm++) {
        const json_t *run = find_run(c, setting, arm, seed, false);
        is_busy = is_busy || json_number_value(json_object_get(run, "outside")) > ENI_BUSY_SHARE;
    }
    return is_busy;
}

static bool lacks_some(const comparison *c, int setting, int seed, bool is_again)
{
    bool lacks = false;
    for (int arm = 0; arm < c->narms; arm++)
        lacks = lacks || find_run(c, setting, arm, seed, is_again) == NULL;
    return lacks;
}

/* --retry-busy. The repeated runs of a seed replace the first ones once every arm has one, busy or not, good
 * or failed: the results cannot influence the choice. */
static en_status run_again(comparison *c, pool *p, int setting, int seed)
{
    if (lacks_some(c, setting, seed, true))
        eni_info("compare", "other processes used the machine during seed %lld in %s: its runs are repeated",
                 (long long)eni_config_seed(c->context->config, seed), c->setting[setting]);
    c->nagain += c->narms;
    EN_TRY(run_seed(c, p, setting, seed, true));
    for (int arm = 0; arm < c->narms; arm++) {
        json_object_set_new(find_run(c, setting, arm, seed, false), "replaced", json_true());
        json_object_del(find_run(c, setting, arm, seed, true), "replaced");
    }
    return write_index(c);
}

/* The order of the runs: each seed in turn, in every setting that has it. */
typedef struct turn {
    int seed, setting;
} turn;
static const turn before_all = {0, -1};

static bool next_turn(const comparison *c, turn *at)
{
    do {
        at->seed += ++at->setting == c->nsettings;
        at->setting %= c->nsettings;
    } while (at->seed < c->nseeds && at->seed >= c->setting_seeds[at->setting]);
    return at->seed < c->nseeds;
}

/* The runs of --tune that are not recorded yet; the first arm rotates. */
static en_status sweep(comparison *c, pool *p)
{
    for (int value = 0; value < c->nvalues; value++)
        for (int i = 0; i < c->narms; i++) {
            const planned t = make_sweep_run(c, (i + value) % c->narms, value);
            if (!eni_tune_has(c->sweep[t.arm], c->values[value])) EN_TRY(run_one(c, p, &t));
        }
    return finish_all(c, p);
}

static bool may_repeat(const comparison *c)
{
    return c->context->config->retry_busy && !c->is_virtual;
}

static en_status run_each(comparison *c, pool *p)
{
    EN_TRY(sweep(c, p));
    for (turn at = before_all; next_turn(c, &at);)
        EN_TRY(run_seed(c, p, at.setting, at.seed, false));
    for (turn at = before_all; may_repeat(c) && next_turn(c, &at);)
        if (was_busy(c, at.setting, at.seed)) EN_TRY(run_again(c, p, at.setting, at.seed));
    return finish_all(c, p);
}

/* In virtual time as many at once as there are cores for their threads. */
static en_status run_all(comparison *c)
{
    const int64_t threads = c->base.threads > 0 ? c->base.threads : 1, most = eni_host_info_cores() / threads;
    pool p = {0};
    p.simulations.n = (int)(most < 1 ? 1 : most < ENI_SIMULATIONS_MAX ? most : ENI_SIMULATIONS_MAX);
    const en_status st = run_each(c, &p);
    eni_simulations_end(&p.simulations);
    return st;
}

/* Counts the failed runs among those that count, and names the first: "even-ring-s1". */
static int count_failed(const comparison *c, const char **first_out)
{
    const json_t *run;
    int n = 0;
    for (size_t i = 0; (run = json_array_get(c->runs, i)) != NULL; i++) {
        if (json_integer_value(json_object_get(run, "exit")) == 0 ||
            json_is_true(json_object_get(run, "replaced")))
            continue;
        if (n++ == 0) *first_out = json_string_value(json_object_get(run, "dir")) + strlen("runs/");
    }
    return n;
}

/* Logs how the study ended. An interrupted study keeps its runs. EN_EPEER: a run failed. */
static en_status report_end(const comparison *c, en_status st)
{
    const char *first = "";
    const int nfailed = count_failed(c, &first);
    if (st == EN_EINTR)
        eni_warn("compare", "interrupted after %d of %d runs; `entrain report %s` shows the runs so far",
                 (int)json_array_size(c->runs), c->nruns + c->nagain, c->dir);
    if (st != EN_OK || nfailed == 0) return st;
    return eni_fail(EN_EPEER, "compare",
                    "%d of %d runs failed, %s first; the report has the others, and the causes are in "
                    "%s/compare.json",
                    nfailed, c->nruns, first, c->dir);
}

/* Whether runs are missing or to be repeated. */
static bool lacks_runs(const comparison *c)
{
    for (turn at = before_all; next_turn(c, &at);)
        if (lacks_some(c, at.setting, at.seed, false) ||
            (may_repeat(c) && was_busy(c, at.setting, at.seed) && lacks_some(c, at.setting, at.seed, true)))
            return true;
    return false;
}

/* The folder is ours: clears it, or resumes the study in it. EN_ESTOP, logged: nothing is left to do. */
static en_status begin(comparison *c)
{
    char path[1100];
    const eni_config *config = c->context->config;
    if (config->resume != NULL && strcmp(config->resume, "auto") != 0)
        return eni_fail(EN_EINVAL, "compare",
                        "--resume=%s: a comparison resumes from its own --out: give --resume without a value",
                        config->resume);
    EN_TRY(eni_out_take(config, c->dir, ENI_OUT_STUDY, &c->out_fd));
    for (int arm = 0; arm < c->narms && c->nvalues > 0; arm++) {
        c->sweep[arm] = config->resume == NULL ? json_array() : eni_tune_past(c->dir, c->label[arm]);
        EN_TRY(tune_arm(c, arm));
    }
    EN_TRY(describe(c));
    if (config->resume == NULL) EN_TRY(eni_out_clear(c->out_fd, c->dir));
    if (config->resume != NULL) EN_TRY(eni_compare_past(c->dir, c->json, &c->order));
    snprintf(path, sizeof path, "%s/report.html", c->dir);
    if (!lacks_runs(c) && access(path, F_OK) == 0) {
        eni_info("compare", "--resume: the study in %s is finished, nothing is left to do", c->dir);
        return EN_ESTOP;
    }
    snprintf(path, sizeof path, "%s/runs", c->dir);
    EN_TRY(eni_folder_check("--out", c->dir));
    EN_TRY(eni_folder_check("--out", path));
    return write_index(c); /* from now on it can be resumed */
}

en_status eni_command_compare(const eni_command_context *context)
{
    comparison *c = eni_alloc(sizeof *c);
    if (c == NULL) return EN_ENOMEM;
    c->context = context;
    c->is_virtual = context->config->is_virtual;
    c->dir = context->config->out != NULL ? context->config->out : "compare";
    c->out_fd = -1;
    eni_live_init(&c->live, context->config->quiet);
    en_status st = collect(c);
    if (st == EN_OK) st = begin(c);
    if (st == EN_OK && c->plan[0] != 0) printf("%s\n", c->plan);
    if (st == EN_OK && !c->is_virtual) eni_live_network(context->config, "");
    fflush(stdout);
    if (st == EN_OK) st = run_all(c);
    if (st == EN_OK) st = eni_report(&c->dir, 1, c->dir, (eni_target){0}, stdout, 0);
    if (st == EN_OK) printf("\nThe report: %s/report.html\n", c->dir);
    st = report_end(c, st);
    if (st == EN_ESTOP) st = EN_OK; /* it was finished before */
    json_decref(c->json);
    if (c->out_fd >= 0) close(c->out_fd);
    for (int i = 0; i < c->narms; i++) {
        eni_config_fini(&c->arm[i]);
        json_decref(c->sweep[i]);
        eni_free(c->label[i]);
    }
    eni_config_fini(&c->base);
    eni_free(c);
    return st;
}
