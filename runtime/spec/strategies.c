/* strategies.c - a strategy file is checked (its magic, its entry, each table of its chain), completed where it
 * was built with a header that knew fewer fields, and then found by name or path. */
#include "runtime/spec/strategies.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "plugin/elf_file.h"
#include "plugin/hook.h"

enum {
    TABLE_LEAST = offsetof(en_strategy, submit) + sizeof(((en_strategy *)NULL)->submit),
    TABLES_MAX = 256, /* a chain of `next` longer than this is a loop */
    KNOWN_FLAGS = EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS | EN_LEADERS_ARE_CLIENTS | EN_REPLICATED |
                  EN_STATIC | EN_SYNCHRONOUS | EN_PUSH_READ_ONLY | EN_SHARED_PARAMS | EN_ROUNDS | EN_ALONE |
                  EN_USES_GROUPS
};

/* ---- words ------------------------------------------------------------------------------------------- */

en_status eni_plugin_split(const char *spec, char word_out[ENI_STRATEGY_WORD_MAX], const char **options_out)
{
    const size_t length = eni_spec_head(spec);
    if (length == 0 || length >= ENI_STRATEGY_WORD_MAX)
        return eni_fail(EN_EINVAL, "plugin",
                        "'%.80s' names no strategy: write a name such as ring, or a path such as ./mine.so",
                        spec);
    memcpy(word_out, spec, length);
    word_out[length] = 0;
    *options_out = eni_spec_options(spec);
    return EN_OK;
}

/* "./mine.so@name": the length of the path, and the name or NULL. */
static size_t path_length(const char *word, const char **table_out)
{
    const size_t length = strlen(word);
    const char *at = strstr(word, ".so@");
    *table_out = at ? at + 4 : NULL;
    return at ? (size_t)(at - word) + 3 : length;
}

int eni_plugin_is_path(const char *word)
{
    const char *table;
    const size_t length = path_length(word, &table);
    return strchr(word, '/') != NULL || (length > 3 && memcmp(word + length - 3, ".so", 3) == 0);
}

/* ---- checks ------------------------------------------------------------------------------------------ */

static int is_name(const char *name)
{
    const size_t length = name ? strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") : 0;
    return length > 0 && length < ENI_STRATEGY_NAME_MAX && name[length] == 0;
}

/* Why a strategy of these flags can have no groups; NULL: it can. */
static const char *ungrouped(uint32_t flags)
{
    return flags & EN_LEADERS_ARE_CLIENTS ? "its groups are the hosts (EN_LEADERS_ARE_CLIENTS)"
           : flags & EN_STORE_ON_SERVERS  ? "its ranks meet at servers (EN_STORE_ON_SERVERS)"
           : flags & EN_SHARED_PARAMS     ? "its ranks keep one copy of the weights (EN_SHARED_PARAMS)"
           : flags & EN_ALONE             ? "it has one rank (EN_ALONE)"
                                          : NULL;
}

/* Nothing beyond abi and size is read before both are found good. */
static en_status check_table(const char *path, const en_strategy *s)
{
    if (s->abi != EN_STRATEGY_ABI)
        return eni_fail(
            EN_EVERSION, "plugin",
            "%s has strategy ABI %u, this host %u; build it again with this host's include folder", path,
            s->abi, EN_STRATEGY_ABI);
    if (s->size < TABLE_LEAST)
        return eni_fail(
            EN_EVERSION, "plugin",
            "%s has a table of %u bytes, which end before its submit hook; set .size = sizeof(en_strategy) "
            "and build it again with this host's include folder",
            path, s->size);
    if (!is_name(s->name))
        return eni_fail(EN_EINVAL, "plugin",
                        "%s calls a strategy '%.40s'; a name is 1 to %d characters of a-z, 0-9 and '-'", path,
                        s->name ? s->name : "", ENI_STRATEGY_NAME_MAX - 1);
    if (!s->submit)
        return eni_fail(EN_EINVAL, "plugin",
                        "%s: strategy %s has no submit hook, the only one without a default", path, s->name);
    if (s->flags & ~(uint32_t)KNOWN_FLAGS)
        return eni_fail(EN_EVERSION, "plugin",
                        "%s: strategy %s sets flags 0x%x, of which this host does not know 0x%x", path,
                        s->name, s->flags, s->flags & ~(uint32_t)KNOWN_FLAGS);
    if (s->flags & EN_USES_GROUPS && ungrouped(s->flags) != NULL)
        return eni_fail(EN_EINVAL, "plugin",
                        "%s: strategy %s says EN_USES_GROUPS, but %s; leave one of the two flags away", path,
                        s->name, ungrouped(s->flags));
    for (const en_option *o = s->options; o && o->size; o = eni_option_next(o))
        EN_TRY(eni_option_check(path, "strategy", s->name, s->options, o));
    return EN_OK;
}

static en_status check_chain(const char *path, const en_strategy *first)
{
    int n = 0;
    for (const en_strategy *s = first; s; s = s->next) {
        if (++n > TABLES_MAX)
            return eni_fail(EN_EINVAL, "plugin",
                            "%s chains more than %d strategies: does `next` form a loop?", path, TABLES_MAX);
        EN_TRY(check_table(path, s));
        for (const en_strategy *t = first; t != s; t = t->next) {
            if (strcmp(t->name, s->name) != 0) continue;
            return eni_fail(EN_EINVAL, "plugin", "%s has two strategies called %s", path, s->name);
        }
    }
    return EN_OK;
}

/* ---- tables of older plugins ------------------------------------------------------------------------- */

/* A table as this host knows it, made of one that ends earlier: what that lacks is 0. Kept until the process
 * ends, as the file is. */
typedef struct completed {
    struct completed *before; /* so that all can be reached */
    en_strategy table;
    en_option options[];
} completed;

static bool is_short(const en_strategy *s)
{
    if (s->size < sizeof(en_strategy)) return true;
    for (const en_option *o = s->options; o != NULL && o->size != 0; o = eni_option_next(o))
        if (o->size < sizeof(en_option)) return true;
    return false;
}

static completed *complete(const en_strategy *s)
{
    static completed *last;
    size_t n = 0;
    for (const en_option *o = s->options; o != NULL && o->size != 0; o = eni_option_next(o))
        n++;
    completed *c = eni_alloc(sizeof *c + (n + 1) * sizeof(en_option));
    if (c == NULL) return NULL;
    memcpy(&c->table, s, s->size < sizeof c->table ? s->size : sizeof c->table);
    c->table.size = sizeof c->table;
    c->table.options = s->options != NULL ? c->options : NULL;
    n = 0;
    for (const en_option *o = s->options; o != NULL && o->size != 0; o = eni_option_next(o), n++) {
        memcpy(&c->options[n], o, o->size < sizeof *o ? o->size : sizeof *o);
        c->options[n].size = sizeof *o;
    }
    c->before = last;
    last = c;
    return c;
}

/* The chain itself, or complete tables in its order. EN_ENOMEM. */
static en_status complete_chain(const en_strategy *first, const en_strategy **first_out)
{
    const en_strategy *s = first, **end = first_out;
    while (s != NULL && !is_short(s))
        s = s->next;
    *first_out = first;
    if (s == NULL) return EN_OK;
    for (s = first; s != NULL; s = s->next) {
        completed *c = complete(s);
        if (c == NULL) return EN_ENOMEM;
        *end = &c->table;
        end = &c->table.next;
    }
    *end = NULL;
    return EN_OK;
}

/* ---- loading ----------------------------------------------------------------------------------------- */

/* The first table of one file, all tables of it checked; errors as of eni_strategy_find. */
static en_status load(const char *path, const en_strategy **first_out)
{
    static const eni_elf_words words = {.subsystem = "plugin",
                                        .what = "strategy",
                                        .place = "give the path of a shared object",
                                        .build = "build one: cc -shared -fPIC -I<include> mine.c -o mine.so"};
    en_strategy_entry_fn entry;
    void *symbol;
    EN_TRY(eni_elf_open(path, &words, EN_STRATEGY_ENTRY,
                        "const en_strategy *" EN_STRATEGY_ENTRY "(uint32_t host_abi)", &symbol));
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no conversion from an object to a function pointer */
    eni_hook_enter_named(EN_STRATEGY_ENTRY, path);
    const en_strategy *first = entry(EN_STRATEGY_ABI);
    for (uint32_t abi = EN_STRATEGY_ABI; first == NULL && abi > 1;)
        first = entry(--abi); /* only to say which version it is of */
    eni_hook_leave_named();
    if (first == NULL)
        return eni_fail(EN_EVERSION, "plugin",
                        "%s does not serve strategy ABI %u; build it again with this host's include folder",
                        path, EN_STRATEGY_ABI);
    EN_TRY(check_chain(path, first));
    return complete_chain(first, first_out);
}

static int is_builtin(const struct dirent *entry)
{
    static const char prefix[] = "strategy_", suffix[] = ".so";
    const size_t length = strlen(entry->d_name);
    return length > sizeof prefix + sizeof suffix - 2 &&
           memcmp(entry->d_name, prefix, sizeof prefix - 1) == 0 &&
           strcmp(entry->d_name + length - (sizeof suffix - 1), suffix) == 0;
}

en_status eni_strategy_list(const char *folder, eni_strategy_visit visit, void *user)
{
    char path[ENI_STRATEGY_WORD_MAX];
    struct dirent **entries = NULL;
    const int n = scandir(folder, &entries, is_builtin, alphasort);
    if (n <= 0) {
        eni_error("plugin", "no strategy_*.so in the plugin folder %s: %s", folder,
                  n < 0 ? strerror(errno) : "it has none; build the target all, or install again");
        free(entries);
        return EN_ENOENT;
    }
    en_status st = EN_OK;
    for (int i = 0; i < n; i++) {
        const en_strategy *first = NULL;
        if (st == EN_OK &&
            snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < (int)sizeof path)
            st = load(path, &first);
        for (const en_strategy *s = first; st == EN_OK && s; s = s->next)
            visit(user, s, path);
        free(entries[i]);
    }
    free(entries);
    return st;
}

typedef struct search {
    const char *name;
    const en_strategy *found, *nearest;
} search;

/* An eni_strategy_visit. */
static void consider(void *user, const en_strategy *s, const char *path)
{
    search *found = user;
    (void)path;
    if (strcmp(s->name, found->name) == 0) found->found = s;
    if (eni_is_nearer(found->name, s->name, found->nearest == NULL ? NULL : found->nearest->name))
        found->nearest = s;
}

en_status eni_strategy_find(const char *folder, const char *spec, const en_strategy **strategy_out)
{
    char word[ENI_STRATEGY_WORD_MAX], path[ENI_STRATEGY_WORD_MAX];
    const char *options;
    EN_TRY(eni_plugin_split(spec, word, &options));
    search found = {.name = word};
    if (eni_plugin_is_path(word)) {
        const en_strategy *first = NULL;
        const size_t length = path_length(word, &found.name);
        snprintf(path, sizeof path, "%.*s", (int)length, word);
        EN_TRY(load(path, &first));
        if (!found.name) found.name = first->name;
        for (const en_strategy *s = first; s; s = s->next)
            consider(&found, s, path);
    } else {
        snprintf(path, sizeof path, "%s", folder);
        EN_TRY(eni_strategy_list(folder, consider, &found));
    }
    if (found.found == NULL && found.nearest != NULL)
        return eni_fail(EN_ENOENT, "plugin", "there is no strategy %s in %s; the nearest is %s: %s",
                        found.name, path, found.nearest->name,
                        found.nearest->help ? found.nearest->help : "");
    if (!found.found)
        return eni_fail(EN_ENOENT, "plugin",
                        "there is no strategy %s in %s; `entrain strategies%s%s` lists them", found.name,
                        path, eni_plugin_is_path(word) ? " " : "", eni_plugin_is_path(word) ? path : "");
    *strategy_out = found.found;
    return EN_OK;
}

en_status eni_strategy_groups(const en_strategy *strategy, const char *groups)
{
    const char *why = ungrouped(strategy->flags);
    if (groups == NULL || strategy->flags & EN_USES_GROUPS) return EN_OK;
    return eni_fail(
        EN_EINVAL, "plugin",
        "--groups: \"%.200s\" cannot be with %s: %s; give --strategy=grouped, or leave --groups away", groups,
        strategy->name, why != NULL ? why : "it uses none (EN_USES_GROUPS)");
}

void eni_strategy_show(FILE *out, const en_strategy *strategy)
{
    fprintf(out, "%-10s %s\n", strategy->name, strategy->help ? strategy->help : "");
    if (strategy->paper) fprintf(out, "%-10s %s\n", "", strategy->paper);
    for (const en_option *o = strategy->options; o && o->size; o = eni_option_next(o)) {
        char range[128];
        eni_option_describe(o, range, sizeof range);
        fprintf(out, "%-10s   %-8s %s (%s)\n", "", o->key, o->help, range);
    }
}
