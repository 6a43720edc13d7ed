/* plugin.h - how foreign code comes into the process: strategies, networks and devices, from shared objects.
 *
 * A file has one symbol, its entry, which returns a table; tables of a kind that has `next` are a chain. All tables begin
 * alike: ABI, size, name, help. Built-in strategies and devices are such files too, and use nothing that a file of yours
 * cannot use.
 *
 * A file is checked before anything of it is called: that it is a complete shared object for this machine, and its
 * entry; then ABI, size, name and options of every table, and what the kind asks for. What is refused is refused in one
 * logged sentence with value, place and remedy. A table of an older plugin of this ABI, which ends before this program's
 * does, is completed with zeros, and each of its options is read as far as it goes; one of another ABI is refused. A
 * file that was loaded stays mapped until the process ends, so a table may be kept for as long.
 *
 * A path is code that will run: callers take it from the command line or the user's configuration file, never from the
 * network. What loads is for the main thread, but for devices, and may block on the file system. */
#ifndef PLUGIN_PLUGIN_H
#define PLUGIN_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "entrain/status.h"

enum { ENI_PLUGIN_WORD_MAX = 4096 }; /* longest name or path, the terminating 0 included */

/* What sets one kind of plugin apart. ENI_PLUGIN_KIND fills in the first six. */
typedef struct eni_plugin_kind {
    const char *type, *entry; /* "en_strategy"; the symbol, const TYPE *ENTRY(uint32_t host_abi), */
    const void *(*call)(void *entry, uint32_t abi); /* and its call */
    uint32_t abi, size, least; /* of a table: its ABI; bytes that this program knows; that it must have */
    const char *what, *plural; /* "strategy"; "strategies", which `entrain` lists */
    size_t options, next;      /* where a table has them; 0: this kind has none */
    size_t name_max;           /* bytes of a name [a-z0-9-]+ with its 0; 0: the caller looks at names */
    en_status (*check)(const char *path, const void *table); /* the rest of a table, logged; NULL: nothing */
    const char *remedy; /* for a file that is none, or no shared object for this machine */
    const char *(*missing)(const char *why); /* for what the system's loader said; NULL: the usual one */
    bool is_slow; /* it may take the system's loader minutes: no hook that --hook-timeout counts */
} eni_plugin_kind;

/* Defines a file's `kind`: ENI_PLUGIN_KIND(en_strategy, EN_STRATEGY, LEAST, .what = ..). ISO C has no conversion from an
 * object to a function pointer, hence the copy. */
#define ENI_PLUGIN_KIND(table, prefix, least, ...)                                                           \
    static const void *call(void *symbol, uint32_t abi)                                                      \
    {                                                                                                        \
        table##_entry_fn entry;                                                                              \
        memcpy(&entry, &symbol, sizeof entry);                                                               \
        return entry(abi);                                                                                   \
    }                                                                                                        \
    static const eni_plugin_kind kind = {#table,        prefix##_ENTRY, call,       prefix##_ABI,            \
                                         sizeof(table), (least),        __VA_ARGS__}
#define ENI_PLUGIN_REMEDY "give the path of a shared object: cc -shared -fPIC -I<include> mine.c -o mine.so"

/* The first table of a file, all of them checked. `path` has a slash. EN_ENOENT: no such file; EN_EINVAL: it cannot be
 * read, or a table breaks the contract; EN_EFORMAT: no shared object, or one without the entry; EN_EVERSION: built for
 * another ABI or machine; EN_EUNSUPPORTED: the system's loader refuses it; EN_ENOMEM. */
en_status eni_plugin_load(const eni_plugin_kind *kind, const char *path, const void **first_out);

/* The table behind one; NULL: it is the last. */
const void *eni_plugin_next(const eni_plugin_kind *kind, const void *table);

/* ---- what a user named ---- */

/* Splits the value of the flag `place`, "ssp:bound=3" or "./mine.so:period=8", at the ':' that eni_spec_head finds.
 * word_out gets what stands before it; *options_out points into spec, at the text behind it ("" if there is none).
 * EN_EINVAL, logged: no word, or one that does not fit. */
en_status eni_plugin_split(const char *place, const char *spec, char word_out[ENI_PLUGIN_WORD_MAX],
                           const char **options_out);

/* Whether `word` is a path, not the name of a built-in one: it contains '/', or ends in ".so" or ".so@NAME". */
bool eni_plugin_is_path(const char *word);

/* The first table of "FILE.so", or that of "FILE.so@NAME". A path without a slash is one in the working folder. As
 * eni_plugin_load; EN_ENOENT: no such name (the nearest one is told). */
en_status eni_plugin_find(const eni_plugin_kind *kind, const char *word, const void **table_out);

/* A name that is looked for among built-in tables: look at each, then answer. */
typedef struct eni_plugin_search {
    const eni_plugin_kind *kind;
    const char *name, *place; /* a flag and its value, a folder; or, if is_file, a path */
    bool is_file;
    const void *found, *nearest;
} eni_plugin_search;

void eni_plugin_look(eni_plugin_search *search, const void *table);
/* EN_ENOENT, logged with place and nearest name. */
en_status eni_plugin_answer(const eni_plugin_search *search, const void **table_out);

#endif
