/* nearest.c - which known word did the user mean? */
#include <string.h>

#include "config/keys.h"
#include "core/edit_distance.h"

enum { WORD_MAX = 63 };

/* A guess further away than this would puzzle more than help: a third of the word, at least 1. */
static int near_enough(const char *word)
{
    int length = (int)strnlen(word, WORD_MAX);
    return length < 6 ? 1 + (length > 3) : length / 3;
}

const char *eni_key_nearest(eni_program program, const char *word)
{
    const char *best = NULL;
    int best_distance = near_enough(word) + 1;
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        if (!eni_key_applies(key, program) || (key->flags & ENI_KEY_HIDDEN) != 0) continue;
        int distance = eni_edit_distance(word, key->name);
        if (distance < best_distance) {
            best = key->name;
            best_distance = distance;
        }
    }
    return best;
}

bool eni_word_nearest(const char *words, const char *word, char near_out[64])
{
    int best_distance = near_enough(word) + 1;
    bool found = false;
    while (*words != '\0') {
        char known[WORD_MAX + 1];
        size_t length = strcspn(words, "|");
        size_t kept = length < WORD_MAX ? length : WORD_MAX;
        memcpy(known, words, kept);
        known[kept] = '\0';
        int distance = eni_edit_distance(word, known);
        if (distance < best_distance) {
            memcpy(near_out, known, kept + 1);
            best_distance = distance;
            found = true;
        }
        words += length + (words[length] == '|');
    }
    return found;
}
