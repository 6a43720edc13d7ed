/* report_merge.c - joins the JSON of compare.json files; report_study.c reads the result as one study. */
#include "report/report_study.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"

void eni_merge_mark(json_t *index, int study)
{
    static const char *const marked[] = {"settings", "runs"};
    size_t i;
    json_t *entry;
    for (size_t k = 0; k < 2; k++)
        json_array_foreach(json_object_get(index, marked[k]), i, entry)
            json_object_set_new(entry, "study", json_integer(study));
    json_array_foreach(json_object_get(index, "arms"), i, entry)
        json_object_set_new(entry, "studies", json_integer(1 << study));
}

static json_t *find(json_t *list, const char *name)
{
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry) if (name != NULL && eni_json_says(entry, "name", name)) return entry;
    return NULL;
}

static const char *name_of(const json_t *entry)
{
    return json_string_value(json_object_get(entry, "name"));
}

/* Gives an entry a name that the list does not have, and renames what refers to it in the runs. */
static void rename_in(json_t *index, json_t *list, json_t *entry, const char *key)
{
    char old[160], name[200];
    const char *word = json_is_true(json_object_get(index, "simulated")) ? "simulated" : "again";
    size_t i;
    json_t *run;
    snprintf(old, sizeof old, "%s", name_of(entry) == NULL ? "" : name_of(entry));
    snprintf(name, sizeof name, "%s, %s", old, word);
    for (int n = 2; find(list, name) != NULL; n++)
        snprintf(name, sizeof name, "%s, %s %d", old, word, n);
    json_object_set_new(entry, "name", json_string(name));
    json_array_foreach(json_object_get(index, "runs"), i, run) if (eni_json_says(run, key, old))
        json_object_set_new(run, key, json_string(name));
    json_t *seeds = json_object_get(json_object_get(index, "plan"), "seeds"),
           *n = json_object_get(seeds, old);
    if (strcmp(key, "setting") == 0 && n != NULL) json_object_set(seeds, name, n);
}

static void add_settings(json_t *all, json_t *index)
{
    json_t *into = json_object_get(all, "settings"), *setting;
    size_t i;
    json_array_foreach(json_object_get(index, "settings"), i, setting)
    {
        if (find(into, name_of(setting)) != NULL) rename_in(index, into, setting, "setting");
        json_array_append(into, setting);
    }
    json_object_update_missing(json_object_get(json_object_get(all, "plan"), "seeds"),
                               json_object_get(json_object_get(index, "plan"), "seeds"));
}

static bool is_same_arm(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"strategy", "options", "lr", "condition"};
    bool is_same = true;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *one = json_object_get(a, keys[i]), *other = json_object_get(b, keys[i]);
        is_same = is_same && (one == NULL || other == NULL || json_equal(one, other));
    }
    return is_same;
}

static void add_arms(json_t *all, json_t *index)
{
    json_t *into = json_object_get(all, "arms"), *arm;
    size_t i;
    json_array_foreach(json_object_get(index, "arms"), i, arm)
    {
        json_t *known = find(into, name_of(arm));
        if (known != NULL && is_same_arm(known, arm)) {
            const json_int_t studies = json_integer_value(json_object_get(known, "studies")) |
                                       json_integer_value(json_object_get(arm, "studies"));
            json_object_set_new(known, "studies", json_integer(studies));
            continue;
        }
        if (known != NULL) rename_in(index, into, arm, "arm");
        json_array_append(into, arm);
    }
}

/* Appends what the list does not have. */
static void add_seeds(json_t *all, json_t *index)
{
    json_t *into = json_object_get(all, "seeds"), *seed, *known;
    size_t i, k;
    json_array_foreach(json_object_get(index, "seeds"), i, seed)
    {
        bool has = false;
        json_array_foreach(into, k, known) has = has || json_equal(known, seed);
        if (!has) json_array_append(into, seed);
    }
}

void eni_merge_add(json_t *all, json_t *index)
{
    json_t *runs = json_object_get(all, "runs"), *plan = json_object_get(all, "plan"), *run;
    const json_int_t first = (json_int_t)json_array_size(runs);
    size_t i;
    add_settings(all, index);
    add_arms(all, index);
    add_seeds(all, index);
    json_array_foreach(json_object_get(index, "runs"), i, run)
    {
        const json_int_t order = json_integer_value(json_object_get(run, "order"));
        json_object_set_new(run, "order", json_integer(first + order));
        json_array_append(runs, run);
    }
    if (!json_equal(json_object_get(plan, "baseline"),
                    json_object_get(json_object_get(index, "plan"), "baseline")))
        json_object_set_new(plan, "baseline", json_null());
    json_t *more = json_object_get(all, "more");
    if (more == NULL) json_object_set_new(all, "more", more = json_array());
    json_array_append_new(more, json_pack("{s:O?, s:O?}", "argv", json_object_get(index, "argv"),
                                          "conditions", json_object_get(index, "conditions")));
}
