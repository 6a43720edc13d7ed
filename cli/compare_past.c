/* compare_past.c - whether a folder has runs of the same study, which of them count, and the keys that
 * identify a study. */
#include "cli/compare_past.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/json.h"
#include "core/log.h"
#include "report/may_differ.h"

/* ---- is it the same study? ----------------------------------------------------------------------------- */

typedef struct difference {
    char place[160]; /* "arms.1.own.lr" */
    const json_t *then, *now;
} difference;

static bool find_difference(const json_t *then, const json_t *now, difference *d);

static bool differs_below(const char *key, const json_t *then, const json_t *now, difference *d)
{
    const size_t at = strlen(d->place);
    snprintf(d->place + at, sizeof d->place - at, "%s%.60s", at > 0 ? "." : "", key);
    if (find_difference(then, now, d)) return true;
    d->place[at] = 0;
    return false;
}

/* The first value that differs. */
static bool find_difference(const json_t *then, const json_t *now, difference *d)
{
    const char *key;
    json_t *value;
    char index[24];
    if (json_equal(then, now)) return false;
    if (json_is_object(then) && json_is_object(now)) {
        json_object_foreach((json_t *)(uintptr_t)then, key,
                            value) if (differs_below(key, value, json_object_get(now, key), d)) return true;
        json_object_foreach((json_t *)(uintptr_t)now, key,
                            value) if (differs_below(key, json_object_get(then, key), value, d)) return true;
        return false;
    }
    if (json_is_array(then) && json_is_array(now) && json_array_size(then) == json_array_size(now)) {
        for (size_t i = 0; i < json_array_size(now); i++) {
            snprintf(index, sizeof index, "%zu", i + 1);
            if (differs_below(index, json_array_get(then, i), json_array_get(now, i), d)) return true;
        }
        return false;
    }
    d->then = then;
    d->now = now;
    return true;
}

static void write_value(const json_t *value, char *text, size_t bytes)
{
    char *dumped = value == NULL ? NULL : eni_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT);
    snprintf(text, bytes, "%.200s", dumped == NULL ? "not given" : dumped);
    free(dumped); /* jansson's */
}

static en_status refuse(const char *dir, const difference *d)
{
    char then[208], now[208];
    write_value(d->then, then, sizeof then);
    write_value(d->now, now, sizeof now);
    return eni_fail(
        EN_EINVAL, "compare",
        "--resume: --out=%s holds another study: %s is %s there and %s here; give the flags it was "
        "started with, or another --out",
        dir, d->place, then, now);
}

/* Runs by another program, or on other processors, do not belong in one comparison. */
static en_status check_machine(const char *dir, const json_t *past, const json_t *study)
{
    static const char *const keys[] = {"version", "cpu", "cores"};
    const json_t *then = json_object_get(past, "environment"), *now = json_object_get(study, "environment");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        difference d = {.place = "environment"};
        if (differs_below(keys[i], json_object_get(then, keys[i]), json_object_get(now, keys[i]), &d))
            return refuse(dir, &d);
    }
    return EN_OK;
}

static en_status check_same(const char *dir, const json_t *past, json_t *study)
{
    static const char *const apart[] = {"argv", "runs", "environment", NULL};
    const char *key;
    json_t *value;
    json_object_foreach(study, key, value)
    {
        difference d = {.place = ""};
        bool is_apart = false;
        for (size_t i = 0; apart[i] != NULL; i++)
            is_apart |= strcmp(key, apart[i]) == 0;
        if (!is_apart && differs_below(key, json_object_get(past, key), value, &d)) return refuse(dir, &d);
    }
    return check_machine(dir, past, study);
}

/* ---- its runs ------------------------------------------------------------------------------------------ */

static bool is_complete(const char *dir, const json_t *run)
{
    char path[1200];
    const char *relative = json_string_value(json_object_get(run, "dir"));
    const json_t *code = json_object_get(run, "exit");
    if (relative == NULL || !json_is_integer(code) || json_integer_value(code) != 0) return false;
    snprintf(path, sizeof path, "%s/%s/result.json", dir, relative);
    json_t *result = eni_json_file(path, NULL);
    const bool is_ok = eni_json_says(result, "exit", "ok");
    json_decref(result);
    return is_ok;
}

static void keep_runs(const char *dir, const json_t *past, json_t *study, int *order_out)
{
    json_t *run, *runs = json_object_get(study, "runs");
    size_t i;
    json_array_foreach(json_object_get(past, "runs"), i, run)
    {
        const json_int_t order = json_integer_value(json_object_get(run, "order"));
        if (order >= *order_out) *order_out = (int)order + 1;
        const bool is_replaced = json_is_true(json_object_get(run, "replaced"));
        const bool is_again = json_is_true(json_object_get(run, "again"));
        if (is_complete(dir, run) || (is_replaced && !is_again)) json_array_append(runs, run);
    }
    json_object_set(study, "argv", json_object_get(past, "argv"));
    json_object_set(study, "environment", json_object_get(past, "environment"));
}

en_status eni_compare_past(const char *dir, json_t *study, int *order_out)
{
    char path[1200];
    json_error_t error;
    snprintf(path, sizeof path, "%s/compare.json", dir);
    if (access(path, F_OK) != 0) return EN_OK;
    json_t *past = eni_json_file(path, &error);
    if (past == NULL)
        return eni_fail(EN_EINVAL, "compare",
                        "--resume: %s cannot be read: %s; --overwrite in place of --resume starts over", path,
                        error.text);
    const en_status st = check_same(dir, past, study);
    if (st == EN_OK) keep_runs(dir, past, study, order_out);
    json_decref(past);
    return st;
}

/* ---- the keys of the arms ------------------------------------------------------------------------------ */

/* The keys of one configuration, by kind, and those that any configuration sets. */
typedef struct keys {
    json_t *condition, *own, *set;
} keys;

static en_status keep(void *user, const char *key, const char *value, bool is_reported)
{
    const keys *k = user;
    const eni_who who = eni_who_may_differ(key);
    if (who == ENI_ANYBODY) return EN_OK;
    if (is_reported) json_object_set_new(k->set, key, json_true());
    json_t *kept = value == NULL ? json_null() : json_string(value);
    json_t *into = who == ENI_ARMS ? k->own : k->condition;
    return json_object_set_new(into, key, kept) == 0 ? EN_OK : EN_ENOMEM;
}

/* Selects from `all` what any configuration sets and `base` (NULL: an empty one) has otherwise. */
static json_t *select_set(json_t *all, const json_t *set, const json_t *base)
{
    const char *key;
    json_t *selected = json_object(), *value;
    json_object_foreach(all, key, value)
    {
        if (json_object_get(set, key) == NULL) continue;
        if (base == NULL || !json_equal(value, json_object_get(base, key)))
            json_object_set(selected, key, value);
    }
    return selected;
}

/* The keys that the text of --arm itself sets, without defaults and the study's keys. */
static json_t *given_by(const eni_config *arm, const json_t *own)
{
    const char *key;
    json_t *given = json_array(), *value;
    json_object_foreach((json_t *)(uintptr_t)own, key, value) if (eni_config_is_of_arm(arm, key))
        json_array_append_new(given, json_string(key));
    return given;
}

en_status eni_compare_keys(const eni_config *base, const eni_config *arm, int narms, json_t *conditions,
                           json_t *arms)
{
    json_t *set = json_object(), *lists = json_array(); /* the pairs of each arm and, last, of the base */
    en_status st = EN_OK;
    for (int i = 0; i <= narms && st == EN_OK; i++) {
        keys k = {json_object(), json_object(), set};
        json_array_append_new(lists, json_pack("[o, o]", k.condition, k.own));
        st = eni_config_each(i < narms ? &arm[i] : base, keep, &k);
    }
    json_t *of_base = json_array_get(json_array_get(lists, (size_t)narms), 0);
    json_t *common = select_set(of_base, set, NULL);
    json_object_update(conditions, common);
    for (size_t i = 0; st == EN_OK && i < (size_t)narms; i++) {
        json_t *entry = json_array_get(arms, i), *list = json_array_get(lists, i);
        json_t *own = select_set(json_array_get(list, 1), set, NULL);
        json_object_set_new(entry, "given", given_by(&arm[i], own));
        json_object_set_new(entry, "own", own);
        json_object_set_new(entry, "condition", select_set(json_array_get(list, 0), set, common));
    }
    json_decref(set);
    json_decref(lists);
    json_decref(common);
    return st;
}
