/* edit_distance.h - what several folders ask of a word that a user typed. Pure functions. */
#ifndef CORE_EDIT_DISTANCE_H
#define CORE_EDIT_DISTANCE_H

#include <stddef.h>

/* Edits (insert, remove, replace, swap neighbours) between two words, by their first 63 characters: to find
 * the nearest known one. Optimal string alignment (Damerau 1964, restricted). */
int eni_edit_distance(const char *a, const char *b);

/* How much of "ssp:bound=3" or "./mine.so:file=/a:b" names the strategy: up to the first ':' behind the last
 * '/' of the path, or all of it. Values may hold a '/', so the path is looked for before the first '='. */
size_t eni_spec_head(const char *spec);

#endif
