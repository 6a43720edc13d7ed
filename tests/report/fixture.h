/* fixture.h - a synthetic finished comparison: the files of `entrain compare`, with plausible numbers
 * that are a pure function of the seed. For tests, and (make_study.c) for looking at the page. */
#ifndef TEST_CLI_FIXTURE_H
#define TEST_CLI_FIXTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* An arm's made-up behaviour. */
typedef struct fixture_arm {
    const char *name, *strategy, *algorithm;
    double lr, batch; /* batch: samples behind one update */
    double speed[2];  /* samples/s in the settings even and slow */
    double accuracy;  /* final, before the seed's noise */
    int has_server, is_synchronous;
    double staleness[2]; /* mean of rank 0 and of rank 1 in the even setting */
    int has_no_classes;  /* a regression: its accuracy is null everywhere */
} fixture_arm;

typedef struct fixture {
    size_t narms;
    fixture_arm arms[6];
    size_t nseeds[2]; /* of the settings even and slow; 0: the setting is absent */
    int has_trace;
} fixture;

/* ring, ps-sync and ps-async in even (three seeds) and slow (one), as `make demo` runs them. */
fixture fixture_demo(void);

/* Writes the folder, which must exist. Exits on failure. */
void fixture_write(const char *dir, const fixture *spec);

/* A fresh folder below the system's temporary one. fixture_remove deletes it with all it holds. */
void fixture_folder(char path_out[64]);
void fixture_remove(const char *dir);

/* Sets `key` of the object in dir/file to value (stolen; NULL: removes the key). */
void fixture_set(const char *dir, const char *file, const char *key, json_t *value);

/* Replaces or creates dir/file. */
void fixture_text(const char *dir, const char *file, const char *text);

/* The content of dir/file, to be freed; NULL if absent. */
char *fixture_read(const char *dir, const char *file);

/* Whether `text` has all of the parts in "one|another". */
bool fixture_has(const char *text, const char *parts);

#endif
