/* plugin.h - loads foreign code into the process: strategies, networks and devices, from shared objects.
 *
 * A file has one symbol, its entry, which returns a table; tables of a kind with `next` form a chain. All tables begin
 * alike: ABI, size, name, help. Built-in strategies and devices are such files too, and use nothing that a file of yours
 * cannot use.
 *
 * A file is checked before any of its code is called: that it is a complete shared object for this machine with the
 * entry; then ABI, size, name and options of every table, and the kind's own checks. An invalid file is refused in one
 * logged sentence with value, place and remedy. A table of an older plugin of this ABI, which is shorter than this
 * program's, is completed with zeros, and each of its options is read up to its own size; another ABI is refused. A loaded
 * file stays mapped until the process ends, so tables may be kept.
 *
 * A path is code that will run: callers take it from the command line or the user's configuration file, never from the
 * network. Loading functions are for the main thread, except for devices, and may block on the file system. */
#ifndef PLUGIN_PLUGIN_H
#define PLUGIN_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "entrain/status.h"

enum { ENI_PLUGIN_WORD_MAX = 4096 }; /* longest name or path with its terminating 0 */

/* Describes one kind of plugin. ENI_PLUGIN_KIND fills in the first six fields. */
typedef struct eni_plugin_kind {
    const char *type, *entry; /* "en_strategy"; the symbol, const TYPE *ENTRY(uint32_t host_abi) */
    const void *(*call)(void *entry, uint32_t abi); /* calls the entry */
    uint32_t abi, size, least; /* of a table: ABI; bytes that this program knows; bytes required */
    const char *what, *plural; /* "strategy"; "strategies", the command that lists them */
    size_t options, next;      /* offsets in a table; 0: not in this kind */
    size_t name_max;           /* bytes of a name [a-z0-9-]+ with its 0; 0: the caller checks names */
    en_status (*check)(const char *path, const void *table); /* further checks, logged; or NULL */
    const char *remedy; /* if the file is missing or not a shared object for this machine */
    const char *(*missing)(const char *why); /* remedy for the loader's error; NULL: the usual one */
    bool is_slow;                            /* loading may take minutes: --hook-timeout does not apply */
} eni_plugin_kind;

/* Defines a file's `kind`: ENI_PLUGIN_KIND(en_strategy, EN_STRATEGY, LEAST, .what = ..). ISO C cannot convert an object
 * pointer to a function pointer, hence the copy. */
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

/* The first table of a file, after checking all of them. `path` has a slash. EN_ENOENT: no such file; EN_EINVAL: it
 * cannot be read, or a table breaks the contract; EN_EFORMAT: not a shared object, or no entry; EN_EVERSION: built for
 * another ABI or machine; EN_EUNSUPPORTED: the loader refuses it; EN_ENOMEM. */
en_status eni_plugin_load(const eni_plugin_kind *kind, const char *path, const void **first_out);

/* The next table of the chain; NULL after the last. */
const void *eni_plugin_next(const eni_plugin_kind *kind, const void *table);

/* ---- names given by a user ---- */

/* Splits the value of the flag `place`, "ssp:bound=3" or "./mine.so:period=8", at the ':' that eni_spec_head finds.
 * word_out gets the text before it; *options_out points into spec, after it ("" without options). EN_EINVAL,
 * logged: the word is missing or does not fit. */
en_status eni_plugin_split(const char *place, const char *spec, char word_out[ENI_PLUGIN_WORD_MAX],
                           const char **options_out);

/* Whether `word` is a path, not a built-in name: it contains '/', or ends in ".so" or ".so@NAME". */
bool eni_plugin_is_path(const char *word);

/* The first table of "FILE.so", or the named one of "FILE.so@NAME". A path without a slash is in the working folder. Errors
 * as of eni_plugin_load; EN_ENOENT: no such name (the message suggests the nearest). */
en_status eni_plugin_find(const eni_plugin_kind *kind, const char *word, const void **table_out);

/* A search for a name among built-in tables: look at each, then answer. */
typedef struct eni_plugin_search {
    const eni_plugin_kind *kind;
    const char *name, *place; /* a flag and its value, a folder; or, if is_file, a path */
    bool is_file;
    const void *found, *nearest;
} eni_plugin_search;

void eni_plugin_look(eni_plugin_search *search, const void *table);
/* The table found, or EN_ENOENT, logged with place and nearest name. */
en_status eni_plugin_answer(const eni_plugin_search *search, const void **table_out);

#endif
