/* arm.c - one arm of a comparison: a strategy, its options, and keys of the run, in one text. */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/keys.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* Keys that an arm may set: what `entrain run` takes, less what the comparison itself decides. */
static int find_arm_key(const char *name, size_t length)
{
    static const char *const not_its_own[] = {
        "strategy", "out",       "overwrite",   "workers",     "seed",      "config",
        "help",     "version",   "quiet",       "save",        "trace",     "resume",
        "nnodes",   "node-rank", "master-addr", "master-port", "token-file"};
    int k = eni_key_find(name, length);
    if (k < 0 || !eni_key_applies(&eni_keys[k], ENI_RUN)) return -1;
    for (size_t i = 0; i < sizeof not_its_own / sizeof not_its_own[0]; i++)
        if (strcmp(not_its_own[i], eni_keys[k].name) == 0) return -1;
    return k;
}

/* Sets the keys of the run in "a=1,b=2" and appends all other parts to `spec`, which has room. */
static en_status split_options(eni_config *run, char *options, const char *place, char *spec)
{
    char mark = ':';
    for (char *part = options, *end; *part != '\0'; part = end) {
        end = part + strcspn(part, ",");
        if (*end != '\0') *end++ = '\0';
        char *equals = strchr(part, '=');
        int k = equals == NULL ? -1 : find_arm_key(part, (size_t)(equals - part));
        if (k < 0) {
            size_t length = strlen(spec);
            spec[length] = mark;
            strcpy(spec + length + 1, part);
            mark = ',';
            continue;
        }
        char key_place[512];
        snprintf(key_place, sizeof key_place, "%s: %s", place, eni_keys[k].name);
        EN_TRY(eni_key_set(run, k, equals + 1, key_place, ENI_FROM_FLAG));
    }
    return EN_OK;
}

en_status eni_config_arm(const eni_config *base, const char *arm, eni_config *run_out)
{
    en_status st;
    eni_config run = {0};
    const char *options;
    char place[300];
    char *spec = eni_alloc(strlen(arm) + 2), *copy = NULL;
    if (spec == NULL) return EN_ENOMEM;
    snprintf(place, sizeof place, "--arm=%.200s", arm);
    EN_TRY_GOTO(eni_strategy_split(arm, spec, strlen(arm) + 1, &options), free_spec);
    copy = eni_strdup(options);
    st = copy == NULL ? EN_ENOMEM : eni_config_copy(base, &run);
    if (st != EN_OK) goto free_spec;
    run.program = ENI_RUN;
    EN_TRY_GOTO(split_options(&run, copy, place, spec), fini_run);
    EN_TRY_GOTO(eni_key_set(&run, eni_key_find("strategy", 8), spec, place, ENI_FROM_FLAG), fini_run);
    EN_TRY_GOTO(eni_config_resolve(&run), fini_run);
    *run_out = run;
    goto free_spec;
fini_run:
    eni_config_fini(&run);
free_spec:
    eni_free(copy);
    eni_free(spec);
    return st;
}
