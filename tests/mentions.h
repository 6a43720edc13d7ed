/* mentions.h - whether a message names what it must: its wording may change, its flags, values and names may not. */
#ifndef TESTS_MENTIONS_H
#define TESTS_MENTIONS_H

#include <stdbool.h>
#include <string.h>

/* Whether `text` has each of the `words`, which are separated by '|', in any order. */
static inline bool mentions(const char *text, const char *words)
{
    for (const char *next = words;; next++) {
        const size_t length = strcspn(next, "|");
        if (memmem(text, strlen(text), next, length) == NULL) return false;
        next += length;
        if (*next == '\0') return true;
    }
}

#endif
