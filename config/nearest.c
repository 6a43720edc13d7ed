/* nearest.c - which known word did the user mean? */
#include <string.h>

#include "config/keys.h"

enum { WORD_MAX = 63 };

static int min3(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Optimal string alignment (Damerau 1964, restricted): three rows of the usual table. */
int eni_word_distance(const char *a, const char *b)
{
    int rows[3][WORD_MAX + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    int na = (int)strnlen(a, WORD_MAX), nb = (int)strnlen(b, WORD_MAX);
    for (int j = 0; j <= nb; j++)
        before[j] = last[j] = j;
    for (int i = 1; i <= na; i++) {
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            row[j] = min3(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        int *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[nb];
}

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
        int distance = eni_word_distance(word, key->name);
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
        int distance = eni_word_distance(word, known);
        if (distance < best_distance) {
            memcpy(near_out, known, kept + 1);
            best_distance = distance;
            found = true;
        }
        words += length + (words[length] == '|');
    }
    return found;
}
