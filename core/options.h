/* options.h - the named options of a strategy or a network: what it declared, what the user gave, what holds.
 *
 * "bound=3,round=on" is resolved once against the en_option table: unknown keys (the nearest one
 * is named), wrong types and values out of range are refused, everything not given takes its default. Worker
 * half and store half then look values up by key. The canonical text is equal on two ranks exactly if their
 * options are, so rank 0's JOIN carries it and every other rank must match. */
#ifndef CORE_OPTIONS_H
#define CORE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "entrain/strategy.h"

typedef struct eni_options eni_options;

enum { ENI_OPTION_TEXT_MAX = 256 }; /* longest text value, the terminating 0 included */

/* Resolves `given` ("key=value,key=value"; "key:value" too, as a YAML map arrives; a boolean's key alone is
 * on; NULL or "": all defaults) against `table`; messages name the owner by `kind` ("strategy", "model") and
 * `name`. Borrows all three. EN_EINVAL, logged: unknown or repeated key, value not of its type or out of range;
 * EN_ENOMEM. */
en_status eni_options_parse(const char *kind, const char *name, const en_option *table, const char *given,
                            eni_options **options_out);

/* The same for a strategy and its table. */
en_status eni_options_new(const en_strategy *strategy, const char *given, eni_options **options_out);

/* Whether eni_options_new would take them. */
en_status eni_options_check(const en_strategy *strategy, const char *given);

/* NULL is fine. */
void eni_options_free(eni_options *options);

/* The resolved value of a key: en_host.num/text and en_store.num/text. Booleans are 0 or 1. 0 or "" where
 * eni_options_has says no. Any thread; the text lives as long as the options. */
double eni_options_num(const eni_options *options, const char *key);
const char *eni_options_text(const eni_options *options, const char *key);
/* Whether the key is declared, as a text or as a number: who asks for another has a bug. NULL: none is. */
bool eni_options_has(const eni_options *options, const char *key, bool is_text);

/* Every option in the order of declaration, "bound=3,round=0": the shortest decimal that reads back as the
 * same number. "" if there are none. Lives as long as the options. */
const char *eni_options_canonical(const eni_options *options);

/* The next entry of an option list, by the size that the entry states (a newer plugin's entries are longer). */
const en_option *eni_option_next(const en_option *option);

/* The entry of `key` (`length` characters), or NULL; a NULL table has none. */
const en_option *eni_option_find(const en_option *table, const char *key, size_t length);

/* ---- of a word that a user typed: pure functions ---- */

/* Edits (insert, remove, replace, swap neighbours) between two words, by their first 63 characters: to find
 * the nearest known one. Optimal string alignment (Damerau 1964, restricted). */
int eni_edit_distance(const char *a, const char *b);

/* Whether it is UTF-8 without control characters: what may stand in a log, in YAML and in JSON. */
bool eni_is_text(const char *text);

/* Whether `known` is the better guess of what was meant by `word` than `nearest` (NULL: there is none yet), and worth
 * telling: one begins with the other, or they begin alike and a third of the word's letters are edits at most,
 * or one edit. A guess further away would puzzle more than help. */
bool eni_is_nearer(const char *word, const char *known, const char *nearest);

/* How much of "ssp:bound=3" or "./mine.so:file=/a:b" names the strategy: up to the first ':' behind the last
 * '/' of the path, or all of it. Values may hold a '/', so the path is looked for before the first '='. */
size_t eni_spec_head(const char *spec);

/* What stands behind that ':', "bound=3"; "" where there is none. */
const char *eni_spec_options(const char *spec);

/* Whether it is a URL, SCHEME://.., and no path; false for NULL. */
bool eni_is_url(const char *text);

/* on off true false yes no 1 0. */
bool eni_parse_bool(const char *text, bool *value_out);

/* ---- */

/* The shortest text that reads back as the same value: "0.01", "70". */
void eni_format_real(double value, char *text_out, size_t bytes);

/* The declared range and default of one option as a person writes it: "whole number 0 .. inf, default 3". */
void eni_option_describe(const en_option *option, char *text_out, size_t bytes);

#endif
