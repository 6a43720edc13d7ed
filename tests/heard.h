/* heard.h - what was logged: a sink of the log that counts the lines and keeps the last one; with NULL for a `heard`, nobody
 * listens. */
#ifndef TESTS_HEARD_H
#define TESTS_HEARD_H

#include <stdio.h>

typedef struct heard {
    int lines;
    char text[1024];
} heard;

static inline void hear(void *user, int level, const char *subsystem, const char *text)
{
    heard *h = user;
    (void)level;
    (void)subsystem;
    if (h == NULL) return;
    h->lines++;
    snprintf(h->text, sizeof h->text, "%s", text);
}

#endif
