/* config.c - the lifetime of a configuration: defaults, copies, and checks and defaults across keys. */
#include "config/config.h"

#include <string.h>

#include "config/env.h"
#include "config/keys.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "run/rank_groups.h"
#include "run/slowdown.h"
#include "run/units.h"

enum { CURVE_POINTS = 48 };

static en_status set_default(eni_config *config, int k)
{
    char word[64];
    const eni_key *key = &eni_keys[k];
    const char *text = eni_key_fallback(key, config->program, word);
    if (text != NULL) return eni_key_set(config, k, text, key->name, ENI_FROM_DEFAULT);
    if (key->type == ENI_KEY_INT) memcpy((char *)config + key->offset, &(int64_t){-1}, sizeof(int64_t));
    return EN_OK;
}

en_status eni_config_init(eni_program program, eni_config *config_out)
{
    eni_config config = {.program = program};
    for (int k = 0; k < eni_key_count; k++) {
        if (eni_key_find_for(program, eni_keys[k].name, strlen(eni_keys[k].name)) != k)
            continue; /* another program's */
        en_status st = set_default(&config, k);
        if (st != EN_OK) {
            eni_config_fini(&config);
            return st;
        }
    }
    *config_out = config;
    return EN_OK;
}

void eni_config_fini(eni_config *config)
{
    for (int k = 0; k < eni_key_count; k++)
        eni_key_clear(config, &eni_keys[k]);
    eni_list_fini(&config->args);
    eni_list_fini(&config->command);
}

static en_status copy_list(const eni_list *from, eni_list *list)
{
    for (int i = 0; i < from->count; i++)
        EN_TRY(eni_list_add(list, from->item[i]));
    return EN_OK;
}

/* Whether an earlier key, of other programs, has the same field. */
static bool shares_field(int k)
{
    for (int j = 0; j < k; j++)
        if (eni_keys[j].offset == eni_keys[k].offset) return true;
    return false;
}

en_status eni_config_copy(const eni_config *from, eni_config *config_out)
{
    eni_config config = *from;
    en_status st = EN_OK;
    config.args = config.command = (eni_list){0};
    /* to the end, even on failure: no field may still point to `from` */
    for (int k = 0; k < eni_key_count; k++) {
        if (shares_field(k)) continue;
        const void *source = (const char *)from + eni_keys[k].offset;
        void *field = (char *)&config + eni_keys[k].offset;
        if (eni_keys[k].type == ENI_KEY_LIST) {
            *(eni_list *)field = (eni_list){0};
            if (st == EN_OK) st = copy_list(source, field);
        } else if (eni_keys[k].type == ENI_KEY_TEXT && *(char *const *)source != NULL) {
            *(char **)field = st == EN_OK ? eni_strdup(*(char *const *)source) : NULL;
            if (*(char **)field == NULL) st = EN_ENOMEM;
        }
    }
    if (st == EN_OK) st = copy_list(&from->args, &config.args);
    if (st == EN_OK) st = copy_list(&from->command, &config.command);
    if (st == EN_OK)
        *config_out = config;
    else
        eni_config_fini(&config);
    return st;
}

en_status eni_config_set(eni_config *config, const char *key, const char *value, const char *place)
{
    const int k = eni_key_find_for(config->program, key, strlen(key));
    if (k < 0 || !eni_key_applies(&eni_keys[k], config->program)) {
        const char *nearest = eni_key_nearest(config->program, key);
        return eni_config_refuse(
            "%s: unknown key of %s: \"%s\"%s%s; `%s --help=all` lists them", place,
            eni_program_name(config->program), key, nearest != NULL ? ", the nearest is " : "",
            nearest != NULL ? nearest : "",
            eni_program_name(config->program == ENI_RANK ? ENI_WORKER : config->program));
    }
    if (value == NULL) value = eni_keys[k].bare;
    return eni_key_set(config, k, value != NULL ? value : "", place, ENI_FROM_FLAG);
}

eni_transform eni_config_transform(const eni_config *config)
{
    eni_transform t = {.resize = (int)config->resize, .is_test_drawn = config->augment_test};
    (void)eni_augment_parse(config->augment, &t); /* checked with the key */
    if (config->normalize != NULL) (void)eni_normalize_parse(config->normalize, &t);
    return t;
}

int64_t eni_config_seed(const eni_config *config, int i)
{
    int64_t seed = config->seed;
    if (i >= 0 && i < config->seeds.count) eni_parse_i64(config->seeds.item[i], &seed);
    return seed;
}

/* All workers of the run; below 1 if not known. */
static int64_t world_of(const eni_config *config)
{
    const eni_program p = config->program;
    const bool is_started = p == ENI_RUN || p == ENI_COMPARE || p == ENI_ADVISE || p == ENI_SIM;
    return is_started ? config->nnodes * config->workers : config->world_size;
}

int32_t eni_config_ranks(const eni_config *config)
{
    return (int32_t)(config->max_workers > 0 ? config->max_workers * ENI_RANKS_PER_PLACE : world_of(config));
}

static en_status resolve_batch(eni_config *config)
{
    const int64_t global = config->global_batch_size, world = world_of(config);
    const int64_t n = (world > 0 ? world : 1) * config->accumulate; /* micro-batches, which share it */
    if (global == 0 || config->program == ENI_SCALE || /* each of its rows splits it separately */
        !eni_config_takes(config, "batch-size"))
        return EN_OK;
    if (global % n != 0)
        return eni_config_refuse(
            "--global-batch-size: \"%lld\" is not a multiple of the %lld batches of a step, one per "
            "worker or --accumulate; give a multiple, or --batch-size",
            (long long)global, (long long)n);
    if (eni_config_is_given(config, "batch-size") && config->batch_size * n != global)
        return eni_config_refuse(
            "--global-batch-size: \"%lld\" contradicts --batch-size %lld times %lld; give only one of them",
            (long long)global, (long long)config->batch_size, (long long)n);
    config->batch_size = global / n;
    return EN_OK;
}

/* Sets PyTorch's default for the optimizer, unless the user gave the key. */
static en_status set_rate(eni_config *config, const char *key, const char *value)
{
    const int k = eni_key_named(key);
    if (config->origin[k] != ENI_FROM_DEFAULT || !eni_key_applies(&eni_keys[k], config->program))
        return EN_OK;
    return eni_key_set(config, k, value, key, ENI_FROM_DEFAULT);
}

/* Refuses options that the optimizer lacks, except in a config file of an earlier run, which has all keys. */
static en_status resolve_optimizer(eni_config *config)
{
    static const char *const of_sgd[] = {"momentum", "nesterov"}, *const of_adam[] = {"beta1", "beta2",
                                                                                      "eps"};
    const bool is_adamw = strcmp(config->optimizer, "adamw") == 0;
    const bool is_adam = is_adamw || strcmp(config->optimizer, "adam") == 0;
    const char *const *others = is_adam ? of_sgd : of_adam;
    char room[64], word[64];
    for (int i = 0; i < (is_adam ? 2 : 3); i++) {
        const int k = eni_key_named(others[i]);
        const char *text = eni_key_text(config, &eni_keys[k], room);
        if (config->origin[k] == ENI_FROM_DEFAULT ||
            strcmp(text, eni_key_fallback(&eni_keys[k], config->program, word)) == 0)
            continue;
        return eni_config_refuse("--%s: \"%s\" does not apply to --optimizer=%s; omit it%s", others[i], text,
                                 config->optimizer,
                                 is_adam ? ", or give --beta1" : ", or give --optimizer=adamw");
    }
    if (!eni_config_takes(config, "optimizer")) return EN_OK;
    EN_TRY(set_rate(config, "lr", is_adam ? "0.001" : "0.01"));
    return set_rate(config, "weight-decay", is_adamw ? "0.01" : "0");
}

/* A network in virtual time has the defaults of `entrain run`. */
static void default_as_run(eni_config *config)
{
    if (!eni_config_is_given(config, "steps")) config->steps = 0;
    if (!eni_config_is_given(config, "momentum") && strcmp(config->optimizer, "sgd") == 0)
        config->momentum = 0.5;
}

/* Defaults that follow from other keys. */
static en_status resolve_defaults(eni_config *config)
{
    if (config->program == ENI_SIM && eni_config_is_given(config, "model")) default_as_run(config);
    if (config->epochs == 0 && config->steps == 0 && config->max_samples == 0) config->epochs = 1;
    if (eni_target_is_set(&config->target) && config->eval_every == 0 &&
        !eni_config_is_given(config, "eval-points"))
        config->eval_points = CURVE_POINTS; /* the time to target comes from a curve */
    if (strcmp(config->model, "toy") == 0 && !eni_config_is_given(config, "data"))
        EN_TRY(eni_key_set(config, eni_key_named("data"), "synthetic", "data", ENI_FROM_DEFAULT));
    if (config->program == ENI_RUN && eni_config_is_solo(config) && !eni_config_is_given(config, "workers"))
        config->workers = 1;
    return EN_OK;
}

static en_status resolve_ranks(const eni_config *config)
{
    const int64_t world = world_of(config), ranks = eni_config_ranks(config);
    if (config->max_workers > 0 && config->max_workers < world)
        return eni_config_refuse(
            "--max-workers: \"%lld\" is below the %lld workers that the run starts with; give %lld or more",
            (long long)config->max_workers, (long long)world, (long long)world);
    if (config->rank == ENI_RANK_NEW && config->max_workers == 0)
        return eni_config_refuse("--rank: \"new\" joins a running run; give its --max-workers=N too, "
                                 "and all its other flags");
    if (world > 0 && config->rank >= world)
        return eni_config_refuse("--rank: \"%lld\" must be below --world-size %lld; ranks count from 0",
                                 (long long)config->rank, (long long)world);
    if (config->local_size > 0 && config->local_rank >= config->local_size)
        return eni_config_refuse("--local-rank: \"%lld\" must be below --local-size %lld; ranks count from 0",
                                 (long long)config->local_rank, (long long)config->local_size);
    for (int i = 0; i < config->seeds.count; i++)
        for (int j = 0; j < i; j++) {
            if (eni_config_seed(config, i) != eni_config_seed(config, j)) continue;
            return eni_config_refuse("--seeds: \"%s\" is a duplicate; give each seed once",
                                     config->seeds.item[i]);
        }
    for (int i = 0; i < config->straggler.count; i++) {
        eni_slowdown slow, other;
        (void)eni_slowdown_read(config->straggler.item[i], &slow);
        for (int j = 0; j < i; j++) {
            (void)eni_slowdown_read(config->straggler.item[j], &other);
            if (slow.kind != other.kind || slow.lo > other.hi || other.lo > slow.hi) continue;
            return eni_config_refuse(
                "--straggler: \"%s\" names rank %d again after \"%s\"; give each rank once",
                config->straggler.item[i], slow.lo > other.lo ? slow.lo : other.lo,
                config->straggler.item[j]);
        }
        if (ranks <= 0 || (slow.hi == ENI_SLOW_ALL ? slow.lo : slow.hi) < ranks) continue;
        return eni_config_refuse("--straggler: \"%s\" names a rank outside this run of %lld worker%s; "
                                 "give a rank from 0 to %lld",
                                 config->straggler.item[i], (long long)world, world == 1 ? "" : "s",
                                 (long long)ranks - 1);
    }
    return EN_OK;
}

static en_status check_own(const eni_config *config)
{
    if (config->command.count > 0 || config->program == ENI_RANK) return EN_OK;
    if (config->clip_norm > 0)
        return eni_config_refuse(
            "--clip-norm: \"%g\" is for a program of your own: give it behind --, or omit --clip-norm",
            config->clip_norm);
    if (config->set.count == 0) return EN_OK;
    return eni_config_refuse(
        "--set: \"%.200s\" is for a program of your own: give it behind --, or omit --set",
        config->set.item[0]);
}

/* The defaults of a study are as good as given: otherwise those of the program that it starts would win. */
static void give_defaults(eni_config *config)
{
    char word[64];
    for (int k = 0; k < eni_key_count; k++)
        if (config->origin[k] == ENI_FROM_DEFAULT && eni_key_applies(&eni_keys[k], ENI_RANK) &&
            eni_key_fallback(&eni_keys[k], config->program, word) == word)
            config->origin[k] = ENI_FROM_FLAG;
}

/* A program of the user's has networks, data sets and devices of its own. */
static en_status check_command(const eni_config *config)
{
    for (int k = 0; k < eni_key_count; k++)
        if (config->origin[k] >= ENI_FROM_FLAG && eni_key_applies(&eni_keys[k], ENI_WORKER) &&
            !eni_key_applies(&eni_keys[k], ENI_RANK))
            return eni_config_refuse(
                "--%s is for the ranks of Entrain's own program, but they run %s: omit it", eni_keys[k].name,
                config->command.item[0]);
    return EN_OK;
}

/* Checks this rank's view; whether all ranks agree shows when they meet. */
static en_status resolve_groups(const eni_config *config)
{
    const int64_t world = world_of(config);
    if (config->groups == NULL || world <= 0) return EN_OK;
    int32_t *first = eni_alloc_array((size_t)world, sizeof *first);
    if (first == NULL) return EN_ENOMEM;
    const en_status st = eni_rank_groups_read(config->groups, (int32_t)world, first);
    eni_free(first);
    return st;
}

static en_status resolve_nodes(const eni_config *config)
{
    static const char *const only[] = {"node-rank", "master-addr", "master-port"};
    const bool may_be_many = config->program == ENI_RUN || config->program == ENI_CHECK;
    if (config->nnodes > 1 && eni_config_takes(config, "nnodes") && !may_be_many)
        return eni_config_refuse(
            "--nnodes: \"%lld\" is not supported: %s starts its processes on one host; omit it, or "
            "run `entrain run` with it on each host",
            (long long)config->nnodes, eni_program_name(config->program));
    if (config->init_method != NULL &&
        (eni_config_is_given(config, "master-addr") || eni_config_is_given(config, "master-port")))
        return eni_config_refuse(
            "--init-method: \"%s\" conflicts with --master-addr and --master-port; give one or the other",
            config->init_method);
    for (size_t i = 0; i < sizeof only / sizeof only[0]; i++)
        if (eni_config_is_given(config, only[i]) && !eni_config_is_given(config, "nnodes"))
            return eni_config_refuse("--%s is for a run on several hosts; give --nnodes=N too", only[i]);
    if (config->node_rank < config->nnodes) return EN_OK;
    return eni_config_refuse("--node-rank: \"%lld\" must be below --nnodes %lld; hosts count from 0",
                             (long long)config->node_rank, (long long)config->nnodes);
}

/* Refuses the flag only: the config file of an earlier run has the key, too. */
static en_status resolve_restarts(const eni_config *config)
{
    const bool is_asked = eni_config_origin(config, "max-restarts") == ENI_FROM_FLAG;
    if (config->program != ENI_RUN || config->elastic != NULL || !is_asked) return EN_OK;
    return eni_config_refuse("--max-restarts: \"%lld\" is for elastic runs; give --elastic=MIN..MAX too",
                             (long long)config->max_restarts);
}

static bool has_gamma(const eni_config *config)
{
    return config->lr_schedule == ENI_SCHEDULE_STEP || config->lr_schedule == ENI_SCHEDULE_MULTISTEP;
}

/* If arms of a comparison set their own schedules, each arm is checked instead of the study. */
static en_status resolve_schedule(const eni_config *config)
{
    for (int i = 0; i < config->arm.count && config->program == ENI_COMPARE; i++)
        if (strstr(config->arm.item[i], "schedule=") != NULL) return EN_OK;
    if (config->lr_schedule == ENI_SCHEDULE_STEP && config->lr_step == 0)
        return eni_config_refuse(
            "--lr-schedule: \"step\" needs --lr-step, the samples between two steps; give both");
    if (config->lr_schedule != ENI_SCHEDULE_STEP && config->lr_step > 0)
        return eni_config_refuse("--lr-step: \"%lld\" is only for --lr-schedule=step; give that "
                                 "too, or omit --lr-step",
                                 (long long)config->lr_step);
    if (!has_gamma(config) && config->lr_gamma != 0.1 &&
        eni_config_origin(config, "lr-gamma") >= ENI_FROM_FLAG)
        return eni_config_refuse("--lr-gamma: \"%g\" is only for --lr-schedule=step and multistep; "
                                 "give one of them too, or omit --lr-gamma",
                                 config->lr_gamma);
    if ((config->lr_schedule == ENI_SCHEDULE_MULTISTEP) != (config->lr_milestones != NULL))
        return eni_config_refuse("%s; give --lr-schedule=multistep --lr-milestones=60epochs,80epochs",
                                 config->lr_milestones == NULL
                                     ? "--lr-schedule: \"multistep\" needs --lr-milestones"
                                     : "--lr-milestones is only for --lr-schedule=multistep");
    return EN_OK;
}

en_status eni_config_resolve(eni_config *config)
{
    if ((config->program == ENI_EVAL || config->program == ENI_PREDICT) && config->init == NULL)
        return eni_config_refuse("%s needs weights; give --init=FILE, as written by --save",
                                 eni_program_name(config->program));
    EN_TRY(resolve_defaults(config));
    EN_TRY(resolve_optimizer(config));
    EN_TRY(resolve_batch(config));
    EN_TRY(eni_config_check_devices(config));
    EN_TRY(resolve_nodes(config));
    EN_TRY(resolve_ranks(config));
    EN_TRY(resolve_groups(config));
    EN_TRY(resolve_schedule(config));
    if (config->nesterov && config->momentum == 0)
        return eni_config_refuse(
            "--nesterov: \"on\" needs a momentum; give --momentum above 0, or --no-nesterov");
    EN_TRY(resolve_restarts(config));
    EN_TRY(check_own(config));
    if (config->command.count > 0) {
        give_defaults(config);
        EN_TRY(check_command(config));
    }
    if (strcmp(config->rendezvous, "env://") == 0) EN_TRY(eni_env_rendezvous(config));
    return EN_OK;
}

/* ---- an arm of a comparison: a strategy, its options, and keys of the run in one text ------------------ */

en_status eni_config_become(eni_config *config, eni_program program)
{
    char word[64];
    const eni_program study = config->program;
    config->program = program;
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        const int own_row = eni_key_find_for(study, key->name, strlen(key->name));
        if (eni_key_applies(key, program) && eni_keys[own_row].offset == key->offset) {
            config->origin[k] = config->origin[own_row]; /* a key may have a row for each program */
            if (own_row != k) EN_TRY(eni_key_recheck(config, k));
        }
        const bool is_of_runs = eni_key_applies(key, ENI_RUN) && !(key->flags & ENI_KEY_STUDY);
        if (is_of_runs && config->origin[k] == ENI_FROM_FLAG && !eni_key_applies(key, program))
            return eni_config_refuse(
                "--%s: with --virtual the runs have no processes, sockets or checkpoints; omit it",
                key->name);
        const char *own = eni_key_fallback(key, program, word);
        if (own == word && config->origin[k] == ENI_FROM_DEFAULT && eni_key_applies(key, program))
            EN_TRY(eni_key_set(config, k, own, key->name, ENI_FROM_DEFAULT));
    }
    return EN_OK;
}

/* Sets the run's keys in "a=1,b=2", except those that the comparison itself sets, and appends all other parts to `spec`, which
 * is large enough. */
static en_status split_options(eni_config *run, char *options, const char *place, char *spec)
{
    char mark = ':';
    for (char *part = options, *end; *part != '\0'; part = end) {
        end = part + strcspn(part, ",");
        if (*end != '\0') *end++ = '\0';
        char *equals = strchr(part, '=');
        const int k = equals == NULL ? -1 : eni_key_find_for(run->program, part, (size_t)(equals - part));
        if (k < 0 || !eni_key_applies(&eni_keys[k], run->program) ||
            (eni_keys[k].flags & ENI_KEY_STUDY) != 0) {
            size_t length = strlen(spec);
            spec[length] = mark;
            strcpy(spec + length + 1, part);
            mark = ',';
            continue;
        }
        char key_place[512];
        snprintf(key_place, sizeof key_place, "%s: %s", place, eni_keys[k].name);
        EN_TRY(eni_key_set(run, k, eni_key_value_in(&eni_keys[k], part), key_place, ENI_FROM_ARM));
    }
    return EN_OK;
}

/* Resets the study's schedule keys, which only other arms use. */
static en_status forget_schedule(eni_config *run)
{
    const bool is_step = run->lr_schedule == ENI_SCHEDULE_STEP;
    const struct {
        const char *key;
        bool is_meant;
    } of_schedule[] = {
        {"lr-step", is_step}, {"lr-milestones", has_gamma(run) && !is_step}, {"lr-gamma", has_gamma(run)}};
    for (size_t i = 0; i < sizeof of_schedule / sizeof *of_schedule; i++) {
        const int k = eni_key_named(of_schedule[i].key);
        if (of_schedule[i].is_meant || run->origin[k] == ENI_FROM_ARM) continue;
        eni_key_clear(run, &eni_keys[k]);
        run->origin[k] = ENI_FROM_DEFAULT; /* so it is not passed to the workers */
        EN_TRY(set_default(run, k));
    }
    return EN_OK;
}

bool eni_config_is_of_arm(const eni_config *run, const char *key)
{
    return eni_config_origin(run, key) == ENI_FROM_ARM;
}

en_status eni_config_arm(const eni_config *base, const char *text, eni_config *run_out)
{
    eni_config run = {0};
    char place[300];
    const size_t name = eni_arm_name(text);
    const char *arm = name > 0 ? text + name + 1 : text;
    char *spec = eni_alloc(strlen(arm) + 2), *options = eni_strdup(eni_spec_options(arm));
    en_status st = spec == NULL || options == NULL ? EN_ENOMEM : eni_config_copy(base, &run);
    if (st != EN_OK) goto free_spec;
    if (base->program != ENI_SIM) run.program = ENI_RUN;
    snprintf(place, sizeof place, "--arm=%.200s", text);
    memcpy(spec, arm, eni_spec_head(arm));
    EN_TRY_GOTO(split_options(&run, options, place, spec), fini_run);
    EN_TRY_GOTO(eni_key_set(&run, eni_key_named("strategy"), spec, place, ENI_FROM_FLAG), fini_run);
    EN_TRY_GOTO(forget_schedule(&run), fini_run);
    EN_TRY_GOTO(eni_config_resolve(&run), fini_run);
    *run_out = run;
    goto free_spec;
fini_run:
    eni_config_fini(&run);
free_spec:
    eni_free(options);
    eni_free(spec);
    return st;
}
