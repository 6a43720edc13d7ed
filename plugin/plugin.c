/* plugin.c - checks and loads a plugin's file, gets its tables, and checks and completes them. */
#include "plugin/plugin.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "plugin/elf_file.h"
#include "plugin/hook.h"

/* The common head of all tables. */
typedef struct table_head {
    uint32_t abi, size;
    const char *name, *help;
} table_head;

enum { TABLES_MAX = 256 }; /* a chain of `next` longer than this is a loop */

/* The pointer at an offset; NULL if the table ends before it, or the offset is 0. */
static const void *pointer_at(const table_head *table, size_t offset)
{
    const void *found = NULL;
    if (offset != 0 && offset + sizeof found <= table->size)
        memcpy(&found, (const char *)table + offset, sizeof found);
    return found;
}

const void *eni_plugin_next(const eni_plugin_kind *kind, const void *table)
{
    return pointer_at(table, kind->next);
}

/* ---- checks ------------------------------------------------------------------------------------------ */

static en_status check_option(const eni_plugin_kind *kind, const char *path, const table_head *table,
                              const en_option *o)
{
    const uint32_t least = offsetof(en_option, text); /* only text options have it */
    const char *why = NULL;
    if (o->size < least || (o->type == EN_OPT_TEXT && o->size < sizeof *o))
        why = "is too short to have a default; set .size = sizeof(en_option)";
    else if (o->key == NULL || *o->key == '\0' || strpbrk(o->key, "=:, ") != NULL)
        why = "has no key, or a key with '=', ':', ',' or a space";
    else if (o->help == NULL)
        why = "has no help";
    else if (o->type > EN_OPT_TEXT)
        why = "has an unknown type";
    else if (o->type != EN_OPT_TEXT && o->type != EN_OPT_BOOL && !(o->min <= o->value && o->value <= o->max))
        why = "has a default outside its range";
    else if (eni_option_find(pointer_at(table, kind->options), o->key, strlen(o->key)) != o)
        why = "is declared twice";
    if (why == NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "plugin", "%s: option %s of %s %s %s; correct its entry in the option table",
                    path, o->size >= least && o->key != NULL ? o->key : "(first bytes)", kind->what,
                    table->name, why);
}

/* Checks ABI and size before reading anything else. */
static en_status check_table(const eni_plugin_kind *kind, const char *path, const table_head *table)
{
    if (table->abi != kind->abi)
        return eni_fail(EN_EVERSION, "plugin",
                        "%s has %s ABI %u, but this program has %u; rebuild it with this program's headers",
                        path, kind->what, table->abi, kind->abi);
    if (table->size < kind->least)
        return eni_fail(EN_EVERSION, "plugin",
                        "%s has a table of %u bytes, but this program needs %u; set .size = sizeof(%s) and "
                        "rebuild it with this program's headers",
                        path, table->size, kind->least, kind->type);
    const char *name = table->name != NULL ? table->name : "";
    const size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");
    if (kind->name_max > 0 && (length == 0 || length >= kind->name_max || name[length] != '\0'))
        return eni_fail(
            EN_EINVAL, "plugin",
            "%s has a %s with the invalid name '%.40s'; expected 1 to %zu characters of a-z, 0-9 and '-'",
            path, kind->what, name, kind->name_max - 1);
    for (const en_option *o = pointer_at(table, kind->options); o && o->size; o = eni_option_next(o))
        EN_TRY(check_option(kind, path, table, o));
    return kind->check != NULL ? kind->check(path, table) : EN_OK;
}

static en_status check_chain(const eni_plugin_kind *kind, const char *path, const table_head *first)
{
    int n = 0;
    for (const table_head *t = first; t != NULL; t = eni_plugin_next(kind, t)) {
        if (++n > TABLES_MAX)
            return eni_fail(EN_EINVAL, "plugin", "%s chains more than %d %s: does `next` form a loop?", path,
                            TABLES_MAX, kind->plural);
        EN_TRY(check_table(kind, path, t));
        for (const table_head *before = first; before != t; before = eni_plugin_next(kind, before))
            if (strcmp(before->name, t->name) == 0)
                return eni_fail(EN_EINVAL, "plugin", "%s has two %s called %s; rename one", path,
                                kind->plural, t->name);
    }
    return EN_OK;
}

/* ---- loading ----------------------------------------------------------------------------------------- */

/* Returns the table itself, or a copy of this program's size with zeros in the fields that the plugin's header lacks; a
 * table whose `next` points to such a copy is copied too. Copies live until the process ends, as the file does. NULL: out
 * of memory. */
static const void *complete(const eni_plugin_kind *kind, const table_head *table)
{
    typedef struct completed {
        struct completed *before; /* keeps all copies reachable */
        table_head table;         /* and the rest of the table */
    } completed;
    static _Atomic(completed *) last; /* runs of entrain/sim.h may open in several threads */
    const void *next = eni_plugin_next(kind, table), *after = next != NULL ? complete(kind, next) : NULL;
    if (table->size >= kind->size && after == next) return table;
    completed *c = next == NULL || after != NULL ? eni_alloc(sizeof *c + kind->size) : NULL;
    if (c == NULL) return NULL;
    memcpy(&c->table, table, table->size < kind->size ? table->size : kind->size);
    if (next != NULL) memcpy((char *)&c->table + kind->next, &after, sizeof after);
    c->table.size = kind->size;
    c->before = atomic_exchange(&last, c);
    return &c->table;
}

static en_status open_file(const eni_plugin_kind *kind, const char *path, void **entry_out)
{
    EN_TRY(eni_elf_check(kind, path));
    if (!kind->is_slow) eni_hook_enter_named("the loading", path); /* runs constructors */
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    eni_hook_leave_named();
    if (file == NULL) {
        const char *why = dlerror();
        return eni_fail(EN_EUNSUPPORTED, "plugin", "cannot load %s %s: %s; %s", kind->what, path, why,
                        kind->missing != NULL ? kind->missing(why)
                                              : "link its dependencies into it, or rebuild it");
    }
    *entry_out = dlsym(file, kind->entry);
    if (*entry_out != NULL) return EN_OK;
    return eni_fail(EN_EFORMAT, "plugin",
                    "%s has no symbol %s; add: EN_EXPORT const %s *%s(uint32_t host_abi)", path, kind->entry,
                    kind->type, kind->entry);
}

en_status eni_plugin_load(const eni_plugin_kind *kind, const char *path, const void **first_out)
{
    void *entry;
    EN_TRY(open_file(kind, path, &entry));
    if (!kind->is_slow) eni_hook_enter_named(kind->entry, path);
    const void *first = kind->call(entry, kind->abi);
    for (uint32_t abi = kind->abi; first == NULL && abi > 1;)
        first = kind->call(entry, --abi); /* only to report its version */
    eni_hook_leave_named();
    if (first == NULL)
        return eni_fail(EN_EVERSION, "plugin",
                        "%s does not support %s ABI %u; rebuild it with this program's headers", path,
                        kind->what, kind->abi);
    EN_TRY(check_chain(kind, path, first));
    *first_out = complete(kind, first);
    return *first_out != NULL ? EN_OK : EN_ENOMEM;
}

/* ---- names and paths --------------------------------------------------------------------------------- */

en_status eni_plugin_split(const char *place, const char *spec, char word_out[ENI_PLUGIN_WORD_MAX],
                           const char **options_out)
{
    const size_t length = eni_spec_head(spec);
    if (length == 0 || length >= ENI_PLUGIN_WORD_MAX)
        return eni_fail(EN_EINVAL, "plugin",
                        "%s=%.80s has no name: give a name (`entrain strategies` and `entrain models` list "
                        "them), or a path such as ./mine.so",
                        place, spec);
    memcpy(word_out, spec, length);
    word_out[length] = 0;
    *options_out = eni_spec_options(spec);
    return EN_OK;
}

/* The length of the path in "./mine.so@name", and the name or NULL. */
static size_t path_length(const char *word, const char **name_out)
{
    const char *at = strstr(word, ".so@");
    *name_out = at != NULL ? at + 4 : NULL;
    return at != NULL ? (size_t)(at - word) + 3 : strlen(word);
}

bool eni_plugin_is_path(const char *word)
{
    const char *name;
    const size_t length = path_length(word, &name);
    return strchr(word, '/') != NULL || (length > 3 && memcmp(word + length - 3, ".so", 3) == 0);
}

void eni_plugin_look(eni_plugin_search *search, const void *table)
{
    const table_head *head = table, *nearest = search->nearest;
    if (strcmp(head->name, search->name) == 0) search->found = table;
    if (eni_is_nearer(search->name, head->name, nearest == NULL ? NULL : nearest->name))
        search->nearest = table;
}

en_status eni_plugin_answer(const eni_plugin_search *search, const void **table_out)
{
    const eni_plugin_kind *kind = search->kind;
    const table_head *nearest = search->nearest;
    *table_out = search->found;
    if (search->found != NULL) return EN_OK;
    if (nearest != NULL)
        return eni_fail(EN_ENOENT, "plugin", "%s: there is no %s %s; the nearest is %s: %s", search->place,
                        kind->what, search->name, nearest->name, nearest->help != NULL ? nearest->help : "");
    return eni_fail(EN_ENOENT, "plugin", "%s: there is no %s %s; `entrain %s%s%s` lists them", search->place,
                    kind->what, search->name, kind->plural, search->is_file ? " " : "",
                    search->is_file ? search->place : "");
}

en_status eni_plugin_find(const eni_plugin_kind *kind, const char *word, const void **table_out)
{
    char path[ENI_PLUGIN_WORD_MAX + 2];
    eni_plugin_search search = {.kind = kind, .place = path, .is_file = true};
    const void *first;
    const size_t length = path_length(word, &search.name);
    /* without a slash dlopen would search the library path */
    snprintf(path, sizeof path, "%s%.*s", strchr(word, '/') != NULL ? "" : "./", (int)length, word);
    EN_TRY(eni_plugin_load(kind, path, &first));
    *table_out = first;
    if (search.name == NULL) return EN_OK;
    for (const void *t = first; t != NULL; t = eni_plugin_next(kind, t))
        eni_plugin_look(&search, t);
    return eni_plugin_answer(&search, table_out);
}
