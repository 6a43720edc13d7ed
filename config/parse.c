/* parse.c - the command line: GNU long options, dashes or underscores, in any order. */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/env.h"
#include "config/keys.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/nvml.h"
#include "core/try.h"
#include "run/device_list.h"

/* One flag as written. */
typedef struct given {
    int key;
    const char *text;  /* the whole word, for messages */
    const char *value; /* borrowed from argv or the table */
} given;

typedef struct scanner {
    eni_config *config; /* gets the positional arguments */
    eni_program program;
    int argc;
    char *const *argv;
    int next; /* the next word */
    given *flags;
    int count;
} scanner;

static en_status refuse_unknown(const scanner *line, const char *word, size_t name_length, const char *name)
{
    char plain[64];
    snprintf(plain, sizeof plain, "%.*s", (int)(name_length < 63 ? name_length : 63), name);
    for (char *c = plain; *c != '\0'; c++)
        if (*c == '_') *c = '-';
    const char *near = eni_key_nearest(line->program, plain);
    return eni_config_refuse("%.200s: unknown flag of %s; %s%s%s", word, eni_program_name(line->program),
                             near != NULL ? "the nearest is --" : "see ", near != NULL ? near : "--help",
                             near != NULL ? ", or see --help" : "");
}

/* Refuses a key of other programs. */
static en_status refuse_foreign(const scanner *line, const char *word, const eni_key *key)
{
    char where[200] = "";
    if (line->program == ENI_SIM && eni_key_applies(key, ENI_RUN))
        return eni_config_refuse(
            "%.200s: entrain sim has no use for --%s, a flag of entrain run, since virtual "
            "time has no processes, sockets or checkpoints; omit it",
            word, key->name);
    for (int p = 0; p < ENI_PROGRAMS; p++)
        if (eni_key_applies(key, (eni_program)p))
            eni_text_add(where, sizeof where, "%s%s", where[0] != 0 ? ", " : "",
                         eni_program_name((eni_program)p));
    return eni_config_refuse("%.200s: --%s is not a flag of %s, but of %s", word, key->name,
                             eni_program_name(line->program), where);
}

/* Finds the key of a flag's name, with "no-" before a boolean. */
static en_status find_flag(const scanner *line, const char *word, const char *name, size_t length,
                           int *key_out, bool *is_negated_out)
{
    int key = eni_key_find_for(line->program, name, length);
    *is_negated_out = false;
    if (key < 0 && length > 3 && strncmp(name, "no", 2) == 0 && (name[2] == '-' || name[2] == '_')) {
        key = eni_key_find(name + 3, length - 3);
        if (key >= 0 && eni_keys[key].type != ENI_KEY_BOOL) key = -1;
        *is_negated_out = key >= 0;
    }
    if (key < 0) return refuse_unknown(line, word, length, name);
    if (!eni_key_applies(&eni_keys[key], line->program)) return refuse_foreign(line, word, &eni_keys[key]);
    *key_out = key;
    return EN_OK;
}

/* The value of a flag without '=': its bare value, or the next word. */
static en_status take_value(scanner *line, const char *word, const eni_key *key, const char **value_out)
{
    *value_out = key->bare;
    if (key->bare != NULL) return EN_OK;
    const char *next = line->next < line->argc ? line->argv[line->next] : NULL;
    if (next == NULL || strncmp(next, "--", 2) == 0)
        return eni_config_refuse("%.200s needs a value; give --%s=%s", word, key->name, key->words);
    line->next++;
    *value_out = next;
    return EN_OK;
}

static en_status read_flag(scanner *line, const char *word)
{
    bool is_long = word[1] == '-';
    const char *name = word + (is_long ? 2 : 1);
    size_t length = is_long ? strcspn(name, "=") : 1;
    const char *value = NULL;
    bool is_negated;
    given *flag = &line->flags[line->count];
    if (is_long && length == 1)
        return refuse_unknown(line, word, length, name); /* --n: single letters take one dash */
    EN_TRY(find_flag(line, word, name, length, &flag->key, &is_negated));
    if (is_long)
        value = eni_key_value_in(&eni_keys[flag->key], name);
    else if (!is_long && name[1] != '\0')
        value = name + 1 + (name[1] == '=');
    if (is_negated && value != NULL)
        return eni_config_refuse("%.200s: unexpected value \"%s\"; give --no-%s or --%s=off", word, value,
                                 eni_keys[flag->key].name, eni_keys[flag->key].name);
    if (is_negated)
        value = "off";
    else if (value == NULL)
        EN_TRY(take_value(line, word, &eni_keys[flag->key], &value));
    flag->text = word;
    flag->value = value;
    line->count++;
    return EN_OK;
}

/* Behind `--`: the program of each rank. */
static bool takes_command(eni_program program)
{
    return program == ENI_RUN || program == ENI_COMPARE || program == ENI_SCALE;
}

/* Behind `--` also a script for `python -c` or `sh -c`. */
static bool is_word(const char *word, bool may_have_lines)
{
    for (int length; *word != 0; word += length) {
        length = eni_letter_bytes(word);
        if (length == 0 && may_have_lines && strchr("\n\r\t", *word) != NULL) length = 1;
        if (length == 0) return false;
    }
    return true;
}

/* Splits the line into flags; sets only the positional arguments yet. */
static en_status read_line(scanner *line)
{
    bool only_args = false;
    while (line->next < line->argc) {
        const char *word = line->argv[line->next++];
        if (!only_args && strcmp(word, "--") == 0) {
            only_args = true;
            if (takes_command(line->program) &&
                (line->next == line->argc || line->argv[line->next][0] == '\0'))
                return eni_config_refuse("there is no program behind --; name one, or omit --");
        } else if (!only_args && word[0] == '-' && word[1] != '\0')
            EN_TRY(read_flag(line, word));
        else if (!is_word(word, only_args && takes_command(line->program)))
            return eni_config_refuse("\"%.200s\" is not UTF-8, or has a control character; give a plain name",
                                     word);
        else
            EN_TRY(eni_list_add(only_args && takes_command(line->program) ? &line->config->command
                                                                          : &line->config->args,
                                word));
    }
    return EN_OK;
}

/* Sets the flags that `only` names, or all if it is negative. */
static en_status set_flags(scanner *line, int only)
{
    for (int i = 0; i < line->count; i++) {
        const given *flag = &line->flags[i];
        char place[64];
        if (only >= 0 && flag->key != only) continue;
        snprintf(place, sizeof place, "--%s", eni_keys[flag->key].name);
        EN_TRY(eni_key_set(line->config, flag->key, flag->value, place, ENI_FROM_FLAG));
    }
    return EN_OK;
}

static en_status check_args(const eni_config *config)
{
    const eni_program_info *info = &eni_programs[config->program];
    int count = config->args.count;
    if (count >= info->min_args && count <= info->max_args) return EN_OK;
    if (count > info->max_args)
        eni_error("config", "unexpected argument \"%.200s\": %s takes %s; write values as --key=value",
                  config->args.item[info->max_args], info->name,
                  info->max_args == 0 ? "only flags" : "no more");
    else
        eni_error("config", "%s needs an argument; give %s %s", info->name, info->name, info->usage);
    return EN_EINVAL;
}

/* Without a given number of workers, and on GPUs: as many as CUDA_VISIBLE_DEVICES and --stages leave GPUs for, at least one. If
 * the driver does not report GPUs, the default stays. */
static void count_workers(eni_config *c)
{
    eni_device_list list = {0};
    const bool starts_them = c->program == ENI_RUN || c->program == ENI_COMPARE || c->program == ENI_CHECK;
    if (!starts_them || (c->program == ENI_RUN && eni_config_is_solo(c)) ||
        eni_config_is_given(c, "workers") || eni_device_list_read(c->device, &list) != NULL ||
        !eni_device_list_is_gpu(&list))
        return;
    const int each = list.n > 0 ? 0 : eni_config_ndevices(c),
              n = each > 0 ? eni_nvml_count(eni_env_visible_gpus()) : 0;
    if (list.n > 0)
        c->workers = 1; /* one worker uses them all */
    else if (n > 0)     /* each 0: the workers share all GPUs, however many */
        c->workers = n >= each ? n / each : 1;
}

/* The last of two strategies would be simulated without a word about the first. */
static en_status check_once(const scanner *line)
{
    const given *first = NULL;
    const int key = eni_key_named("strategy");
    for (int i = 0; i < line->count && line->program == ENI_SIM; i++) {
        if (line->flags[i].key != key) continue;
        if (first != NULL)
            return eni_config_refuse(
                "--strategy is given twice, %.100s and %.100s; compare them with `entrain "
                "compare --virtual --arm=%.100s --arm=%.100s`",
                first->value, line->flags[i].value, first->value, line->flags[i].value);
        first = &line->flags[i];
    }
    return EN_OK;
}

/* Weakest first: after the defaults the environment, the file, the flags. */
static en_status apply(scanner *line)
{
    eni_config *config = line->config;
    EN_TRY(set_flags(line, eni_key_named("help")));
    EN_TRY(set_flags(line, eni_key_named("version")));
    if (config->help != NULL || config->version) return set_flags(line, -1);
    EN_TRY(check_args(config));
    EN_TRY(check_once(line));
    EN_TRY(set_flags(line, eni_key_named("result-fd")));
    bool is_launched = config->result_fd >= 0; /* by us, with all flags: stale variables must not leak in */
    if (!is_launched) {
        static const char *const decided[] = {"rank", "world-size", "local-rank", "local-size", "rendezvous"};
        for (size_t i = 0; i < sizeof decided / sizeof *decided; i++) /* launchers need not agree on these */
            EN_TRY(set_flags(line, eni_key_named(decided[i])));
        EN_TRY(eni_config_env(config));
    }
    EN_TRY(set_flags(line, eni_key_named("config")));
    if (config->config != NULL) EN_TRY(eni_config_file(config, config->config));
    EN_TRY(set_flags(line, -1));
    if (!is_launched) EN_TRY(eni_env_check_tasks(config));
    count_workers(config);
    return eni_config_resolve(config);
}

en_status eni_config_parse(eni_program program, int argc, char *const *argv, eni_config *config_out)
{
    en_status st;
    eni_config config;
    EN_TRY(eni_config_init(program, &config));
    scanner line = {.config = &config, .program = program, .argc = argc, .argv = argv, .next = 1};
    line.flags = eni_alloc_array(argc > 0 ? (size_t)argc : 1, sizeof *line.flags);
    st = line.flags == NULL ? EN_ENOMEM : read_line(&line);
    if (st == EN_OK) st = apply(&line);
    eni_free(line.flags);
    if (st == EN_OK)
        *config_out = config;
    else
        eni_config_fini(&config);
    return st;
}
