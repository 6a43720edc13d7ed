/* compare_keys.c - see compare_keys.h. */
#include "cli/compare_keys.h"

#include "core/try.h"

/* The keys of one kind: all of one configuration, and those that any of them was told. */
typedef struct keys {
    json_t *all, *told;
} keys;

static en_status keep(void *user, const char *key, const char *value, bool is_told)
{
    const keys *k = user;
    if (json_object_set_new(k->all, key, value == NULL ? json_null() : json_string(value)) != 0)
        return EN_ENOMEM;
    if (is_told) json_object_set_new(k->told, key, json_true());
    return EN_OK;
}

/* What any of them was told, of `all`, where it is not the same in `base` (NULL: everything). */
static json_t *select_told(json_t *all, const json_t *told, const json_t *base)
{
    const char *key;
    json_t *selected = json_object(), *value;
    json_object_foreach(all, key, value)
    {
        if (json_object_get(told, key) == NULL) continue;
        if (base == NULL || !json_equal(value, json_object_get(base, key)))
            json_object_set(selected, key, value);
    }
    return selected;
}

/* The keys of one kind of each arm and, last, of the base. */
static en_status collect(const eni_config *base, const eni_config *arm, int narms, int kind, json_t *lists,
                         json_t *told)
{
    for (int i = 0; i <= narms; i++) {
        keys k = {json_object(), told};
        json_array_append_new(lists, k.all);
        EN_TRY(eni_config_of_kind(i < narms ? &arm[i] : base, kind, keep, &k));
    }
    return EN_OK;
}

en_status eni_compare_keys(const eni_config *base, const eni_config *arm, int narms, json_t *conditions,
                           json_t *arms)
{
    json_t *shared = json_array(), *own = json_array(), *shared_told = json_object(),
           *own_told = json_object();
    en_status st = collect(base, arm, narms, ENI_KIND_CONDITION, shared, shared_told);
    if (st == EN_OK) st = collect(base, arm, narms, ENI_KIND_OWN, own, own_told);
    json_t *common = select_told(json_array_get(shared, (size_t)narms), shared_told, NULL);
    json_object_update(conditions, common);
    for (size_t i = 0; st == EN_OK && i < (size_t)narms; i++) {
        json_t *entry = json_array_get(arms, i);
        json_object_set_new(entry, "own", select_told(json_array_get(own, i), own_told, NULL));
        json_object_set_new(entry, "condition", select_told(json_array_get(shared, i), shared_told, common));
    }
    json_decref(shared);
    json_decref(own);
    json_decref(shared_told);
    json_decref(own_told);
    json_decref(common);
    return st;
}
