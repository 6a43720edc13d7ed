/* options.h - the named options of a strategy or a network: declared, given and resolved.
 *
 * "bound=3,round=on" is resolved once against the en_option table: unknown keys (the message suggests the nearest),
 * wrong types and values out of range are refused, and all other options take their defaults. Worker half and store
 * half then look values up by key. Two ranks' canonical texts are equal exactly if their options are, so rank 0's JOIN
 * carries its text and every other rank must match. */
#ifndef CORE_OPTIONS_H
#define CORE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "entrain/strategy.h"

typedef struct eni_options eni_options;

enum { ENI_OPTION_TEXT_MAX = 256 }; /* longest text value with its terminating 0 */

/* Resolves `given` ("key=value,key=value"; "key:value" too, as a YAML map arrives; a boolean's key alone is
 * on; NULL or "": all defaults) against `table`; messages name the owner by `kind` ("strategy", "model") and
 * `name`. Borrows all three. EN_EINVAL, logged: unknown or repeated key, value not of its type or out of range;
 * EN_ENOMEM. */
en_status eni_options_parse(const char *kind, const char *name, const en_option *table, const char *given,
                            eni_options **options_out);

/* The same for a strategy and its table. */
en_status eni_options_new(const en_strategy *strategy, const char *given, eni_options **options_out);

/* Whether eni_options_new would accept them. */
en_status eni_options_check(const en_strategy *strategy, const char *given);

/* Whether an update is one of the whole world: EN_SYNCHRONOUS, and no option withdraws it (EN_SYNCHRONOUS_BY_DEFAULT). NULL:
 * all options have their defaults. */
bool eni_options_are_synchronous(const en_strategy *strategy, const eni_options *options);

/* NULL is fine. */
void eni_options_free(eni_options *options);

/* The resolved value of a key: en_host.num/text and en_store.num/text; `nranks` is the W of values written by it ("2W").
 * Booleans are 0 or 1. 0 or "" if eni_options_has returns false. Any thread; the text lives as long as the options. */
double eni_options_num(const eni_options *options, const char *key, int32_t nranks);
const char *eni_options_text(const eni_options *options, const char *key);
/* Whether the key is declared as a text or as a number; asking for another key is a bug. NULL: no options. */
bool eni_options_has(const eni_options *options, const char *key, bool is_text);

/* Every option in the order of declaration, "bound=3,round=0": the shortest decimal that reads back as the
 * same number. "" if no options are declared. Lives as long as the options. */
const char *eni_options_canonical(const eni_options *options);

/* The next entry of an option list, by the entry's own size (a newer plugin's entries are longer). */
const en_option *eni_option_next(const en_option *option);

/* The entry of `key` (`length` characters), or NULL; a NULL table has none. */
const en_option *eni_option_find(const en_option *table, const char *key, size_t length);

/* ---- words typed by a user: pure functions ---- */

/* Edits (insert, remove, replace, swap neighbours) between two words, by their first 63 characters: to find
 * the nearest known one. Optimal string alignment (Damerau 1964, restricted). */
int eni_edit_distance(const char *a, const char *b);

/* Whether it is UTF-8 without control characters, as logs, YAML and JSON need. */
bool eni_is_text(const char *text);

/* Whether `known` is a better suggestion for `word` than `nearest` (NULL: none yet), and close enough: one is a prefix of
 * the other, or they begin alike and differ by edits of at most a third of the word's letters, or by one edit. A more
 * distant suggestion would puzzle more than help. */
bool eni_is_nearer(const char *word, const char *known, const char *nearest);

/* Length of the strategy's name in "ssp:bound=3" or "./mine.so:file=/a:b": up to the first ':' after the path's last
 * '/', or all of it. Values may contain a '/', so the path is searched before the first '='. */
size_t eni_spec_head(const char *spec);

/* The text after that ':', "bound=3"; "" if it has none. */
const char *eni_spec_options(const char *spec);

/* Whether it is a URL, SCHEME://.., not a path; false for NULL. */
bool eni_is_url(const char *text);

/* on off true false yes no 1 0. */
bool eni_parse_bool(const char *text, bool *value_out);

/* ---- */

/* The shortest text that reads back as the same value: "0.01", "70". */
void eni_format_real(double value, char *text_out, size_t bytes);

/* The declared range and default of one option, for people: "whole number 0 .. inf, default 3". */
void eni_option_describe(const en_option *option, char *text_out, size_t bytes);

#endif
