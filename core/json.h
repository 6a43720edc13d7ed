/* json.h - JSON (jansson): building objects, writing them as text, and reading fields. If memory runs out, a field is
 * missing from the object; the function that writes the text reports it. */
#ifndef CORE_JSON_H
#define CORE_JSON_H

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "entrain/status.h"

static inline void eni_json_set_text(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, json_string(text));
}

/* Sets a text of the object, or of its member `group` (NULL: none): an eni_host_info_tell. */
static inline void eni_json_tell(void *object, const char *group, const char *key, const char *text)
{
    json_t *into = group == NULL ? object : json_object_get(object, group);
    if (into == NULL && json_object_set_new(object, group, json_object()) == 0)
        into = json_object_get(object, group);
    eni_json_set_text(into, key, text);
}

/* JSON has no NaN: it becomes null. */
static inline void eni_json_set_number(json_t *object, const char *key, double number)
{
    json_object_set_new(object, key, isfinite(number) ? json_real(number) : json_null());
}

static inline void eni_json_set_int(json_t *object, const char *key, uint64_t whole)
{
    json_object_set_new(object, key, json_integer((json_int_t)whole));
}

/* An array of n texts. The caller's. */
static inline json_t *eni_json_texts(char *const *texts, int n)
{
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(array, json_string(texts[i]));
    return array;
}

/* Several integers: ENI_JSON_SET_INTS(o, {"steps", 7}, {"samples", 9}). */
typedef struct eni_json_int {
    const char *key;
    uint64_t whole;
} eni_json_int;

static inline void eni_json_set_ints(json_t *object, const eni_json_int *ints, size_t n)
{
    for (size_t i = 0; i < n; i++)
        eni_json_set_int(object, ints[i].key, ints[i].whole);
}
#define ENI_JSON_SET_INTS(object, ...)                                                                       \
    eni_json_set_ints(object, (const eni_json_int[]){__VA_ARGS__},                                           \
                      sizeof((const eni_json_int[]){__VA_ARGS__}) / sizeof(eni_json_int))

/* An integer field of a parsed object; 0 if it is absent, negative or not an integer. */
static inline uint64_t eni_json_int_of(const json_t *object, const char *key)
{
    const json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (uint64_t)value : 0;
}

/* Whether the field equals `text`. */
static inline bool eni_json_says(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value != NULL && strcmp(value, text) == 0;
}

/* As json_dumps, but with the shortest numbers that read back the same, for human readers: json_dumps turns 0.7 into
 * 0.69999999999999996. The caller frees it (free). NULL: no memory, or not JSON. */
char *eni_json_dump(const json_t *value, size_t flags);

/* Prints it on stdout, whose errors main shows, and drops it. EN_ENOMEM: it is NULL. */
en_status eni_json_print(json_t *value);

/* ---- reading: the file may come from another version, or have been edited by hand ----
 *
 * A reader remembers the first error and logs it once, in one sentence (file, place, what was expected); further reads
 * then return "absent". So a caller reads all fields in a row and checks `status` once, at the end. */

typedef struct eni_json {
    const char *who;  /* subsystem that logs errors: "report"; NULL: not logged, see `why` */
    const char *path; /* borrowed: the file's name in messages */
    en_status status; /* of the first failure */
    char where[96];   /* of the current object, for messages: "runs[3]"; "" at the top level */
    char why[480];    /* the first failure, without the path */
} eni_json;

/* Parses a whole file; NULL on failure, with reader->status set (EN_ENOENT, EN_EIO or EN_EFORMAT). The
 * caller owns the value (json_decref). */
json_t *eni_json_load(eni_json *reader);

/* Parses an optional file: NULL if it is absent or not JSON. No call of this header reads other files than regular ones, from
 * which it might have to wait. *error_out (may be NULL) has the cause. */
json_t *eni_json_file(const char *path, json_error_t *error_out);

/* The same for a file in an open folder, and NULL for a symbolic link. */
json_t *eni_json_load_at(int folder, const char *name);

/* Parses an object from memory: a line of a .jsonl file, metadata. */
json_t *eni_json_parse(eni_json *reader, const char *text, size_t length);

/* Records a failure of the file: "PATH: <text>". Only the first is kept and logged. */
void eni_json_fail(eni_json *reader, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sets the object that messages name from now on: "" or "runs[3]". */
void eni_json_at(eni_json *reader, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Fields of an object, or with key NULL the value itself. The first three return NAN, NULL and NULL if the field is
 * absent or null; a field of the wrong type is an error. */
double eni_json_number(eni_json *reader, const json_t *object, const char *key);
const char *eni_json_text(eni_json *reader, const json_t *object, const char *key);
json_t *eni_json_array(eni_json *reader, const json_t *object, const char *key);

/* The same for required fields. A text must not be empty, except one copied to `bytes` bytes. */
double eni_json_need_number(eni_json *reader, const json_t *object, const char *key);
int64_t eni_json_need_integer(eni_json *reader, const json_t *object, const char *key);
uint64_t eni_json_need_whole(eni_json *reader, const json_t *object, const char *key); /* 0 or more */
const char *eni_json_need_text(eni_json *reader, const json_t *object, const char *key);
void eni_json_copy_text(eni_json *reader, const json_t *object, const char *key, char *text_out,
                        size_t bytes);
/* Has 1 to `max` entries. */
json_t *eni_json_need_array(eni_json *reader, const json_t *object, const char *key, size_t max);

/* Converts a list of at most `max` entries (or absent): `size` bytes each, zeroed before `take` fills them, in memory
 * that the caller frees (eni_free) even on failure. Returns reader->status. */
typedef void eni_json_take(eni_json *reader, const json_t *entry, void *item);
en_status eni_json_list(eni_json *reader, const json_t *object, const char *key, size_t max, size_t size,
                        eni_json_take *take, void *items_out, size_t *n_out);

#endif
