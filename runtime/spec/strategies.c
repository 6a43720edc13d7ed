/* strategies.c - checks a strategy's table, finds the built-in ones in their folder, prints their help. */
#include "runtime/spec/strategies.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/options.h"
#include "core/try.h"
#include "plugin/plugin.h"

enum {
    KNOWN_FLAGS = EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS | EN_LEADERS_ARE_CLIENTS | EN_REPLICATED |
                  EN_STATIC | EN_SYNCHRONOUS | EN_PUSH_READ_ONLY | EN_SHARED_PARAMS | EN_ROUNDS | EN_ALONE |
                  EN_USES_GROUPS | EN_SYNCHRONOUS_BY_DEFAULT
};

/* ---- a table ------------------------------------------------------------------------------------------- */

/* Why a strategy with these flags cannot have groups; NULL: it can. */
static const char *ungrouped(uint32_t flags)
{
    return flags & EN_LEADERS_ARE_CLIENTS ? "its groups are the hosts (EN_LEADERS_ARE_CLIENTS)"
           : flags & EN_STORE_ON_SERVERS  ? "its ranks meet at servers (EN_STORE_ON_SERVERS)"
           : flags & EN_SHARED_PARAMS     ? "its ranks keep one copy of the weights (EN_SHARED_PARAMS)"
           : flags & EN_ALONE             ? "it has one rank (EN_ALONE)"
                                          : NULL;
}

static en_status check(const char *path, const void *table)
{
    const en_strategy *s = table;
    if (s->submit == NULL)
        return eni_fail(EN_EINVAL, "plugin",
                        "%s: strategy %s has no submit hook, the only one without a default", path, s->name);
    if (s->flags & ~(uint32_t)KNOWN_FLAGS)
        return eni_fail(EN_EVERSION, "plugin",
                        "%s: strategy %s sets flags 0x%x, of which 0x%x are unknown to this program", path,
                        s->name, s->flags, s->flags & ~(uint32_t)KNOWN_FLAGS);
    if (s->flags & EN_USES_GROUPS && ungrouped(s->flags) != NULL)
        return eni_fail(EN_EINVAL, "plugin",
                        "%s: strategy %s sets EN_USES_GROUPS, but %s; omit one of the two flags", path,
                        s->name, ungrouped(s->flags));
    return EN_OK;
}

ENI_PLUGIN_KIND(en_strategy, EN_STRATEGY, offsetof(en_strategy, submit) + sizeof(void *), .what = "strategy",
                .plural = "strategies", .options = offsetof(en_strategy, options),
                .next = offsetof(en_strategy, next), .name_max = ENI_STRATEGY_NAME_MAX, .check = check,
                .remedy = ENI_PLUGIN_REMEDY);

/* ---- finding ------------------------------------------------------------------------------------------- */

static int is_builtin(const struct dirent *entry)
{
    return fnmatch("strategy_?*.so", entry->d_name, 0) == 0;
}

en_status eni_strategy_list(const char *folder, eni_strategy_visit visit, void *user)
{
    char path[ENI_PLUGIN_WORD_MAX];
    struct dirent **entries = NULL;
    const int n = scandir(folder, &entries, is_builtin, alphasort);
    if (n <= 0) {
        eni_error("plugin", "no strategy_*.so in the plugin folder %s: %s", folder,
                  n < 0 ? strerror(errno) : "build the target all, or install again");
        free(entries);
        return EN_ENOENT;
    }
    en_status st = EN_OK;
    for (int i = 0; i < n; i++) {
        const void *t = NULL;
        if (st == EN_OK &&
            snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < (int)sizeof path)
            st = eni_plugin_load(&kind, path, &t);
        for (; st == EN_OK && t != NULL; t = eni_plugin_next(&kind, t))
            visit(user, t, path);
        free(entries[i]);
    }
    free(entries);
    return st;
}

/* An eni_strategy_visit. */
static void look(void *user, const en_strategy *s, const char *path)
{
    (void)path;
    eni_plugin_look(user, s);
}

en_status eni_strategy_find(const char *folder, const char *spec, const en_strategy **strategy_out)
{
    char word[ENI_PLUGIN_WORD_MAX];
    const char *options;
    const void *table;
    EN_TRY(eni_plugin_split("--strategy", spec, word, &options));
    if (eni_plugin_is_path(word)) {
        EN_TRY(eni_plugin_find(&kind, word, &table));
    } else {
        eni_plugin_search search = {.kind = &kind, .name = word, .place = folder};
        EN_TRY(eni_strategy_list(folder, look, &search));
        EN_TRY(eni_plugin_answer(&search, &table));
    }
    *strategy_out = table;
    return EN_OK;
}

en_status eni_strategy_groups(const en_strategy *strategy, const char *groups)
{
    const char *why = ungrouped(strategy->flags);
    if (groups == NULL || strategy->flags & EN_USES_GROUPS) return EN_OK;
    return eni_fail(
        EN_EINVAL, "plugin",
        "--groups: \"%.200s\" cannot be used with %s: %s; use --strategy=grouped, or omit --groups", groups,
        strategy->name, why != NULL ? why : "it does not set EN_USES_GROUPS");
}

void eni_strategy_show(FILE *out, const en_strategy *strategy)
{
    fprintf(out, "%-10s %s\n", strategy->name, strategy->help != NULL ? strategy->help : "");
    if (strategy->paper != NULL) fprintf(out, "%-10s %s\n", "", strategy->paper);
    for (const en_option *o = strategy->options; o != NULL && o->size != 0; o = eni_option_next(o)) {
        char range[128];
        eni_option_describe(o, range, sizeof range);
        fprintf(out, "%-10s   %-8s %s (%s)\n", "", o->key, o->help, range);
    }
}
