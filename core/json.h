/* json.h - JSON (jansson): fields of an object under construction, its text, and fields that are read. When memory runs
 * out a field is left out of the object; whoever writes the text finds out. */
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

/* A text of the object, or of its member `group` (NULL: none): an eni_host_info_tell. */
static inline void eni_json_tell(void *object, const char *group, const char *key, const char *text)
{
    json_t *into = group == NULL ? object : json_object_get(object, group);
    if (into == NULL && json_object_set_new(object, group, json_object()) == 0)
        into = json_object_get(object, group);
    eni_json_set_text(into, key, text);
}

/* JSON has no NaN: null. */
static inline void eni_json_set_number(json_t *object, const char *key, double number)
{
    json_object_set_new(object, key, isfinite(number) ? json_real(number) : json_null());
}

static inline void eni_json_set_int(json_t *object, const char *key, uint64_t whole)
{
    json_object_set_new(object, key, json_integer((json_int_t)whole));
}

/* Several whole numbers: ENI_JSON_SET_INTS(o, {"steps", 7}, {"samples", 9}). */
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

/* A field of one that was read; 0 where it is not there, negative, or no whole number. */
static inline uint64_t eni_json_int_of(const json_t *object, const char *key)
{
    const json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (uint64_t)value : 0;
}

/* Whether the field is that text. */
static inline bool eni_json_says(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value != NULL && strcmp(value, text) == 0;
}

/* As json_dumps, whose 17 digits make 0.69999999999999996 of 0.7, with the shortest numbers that read back as the same: for what
 * people read. The caller frees it (free). NULL: no memory, or no JSON. */
char *eni_json_dump(const json_t *value, size_t flags);

/* ---- reading: the writer may be of another version, or an editor gone wrong ----
 *
 * A reader remembers the first thing that is wrong and logs it once, in one sentence (file, place, what should stand
 * there); after that, further reads return "absent". So who loads reads all fields in a row and looks at `status` once,
 * at the end. */

typedef struct eni_json {
    const char *who;  /* logs what is wrong: "report"; NULL: nobody does, and `why` says it */
    const char *path; /* borrowed: the file's name in messages */
    en_status status; /* of the first failure */
    char where[96]; /* of the object that is read now, in messages: "runs[3]"; "" for the file's top level */
    char why[480];  /* the first failure, without the path */
} eni_json;

/* Parses a whole file; NULL on failure, with reader->status set (EN_ENOENT, EN_EIO or EN_EFORMAT). The
 * caller owns the value (json_decref). */
json_t *eni_json_load(eni_json *reader);

/* Parses an object out of memory: a line of a .jsonl file, metadata. */
json_t *eni_json_parse(eni_json *reader, const char *text, size_t length);

/* A file in an open folder, for who can do without: NULL where it is not there, a link, or no JSON. */
json_t *eni_json_load_at(int folder, const char *name);

/* Records a failure of the file: "PATH: <text>". Only the first is kept and logged. */
void eni_json_fail(eni_json *reader, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Says which object is read from now on: "" or "runs[3]". */
void eni_json_at(eni_json *reader, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Fields of an object, or with key NULL the value itself. The first three return NAN, NULL and NULL when the field is
 * absent or null; a field of the wrong type is a failure. */
double eni_json_number(eni_json *reader, const json_t *object, const char *key);
const char *eni_json_text(eni_json *reader, const json_t *object, const char *key);
json_t *eni_json_array(eni_json *reader, const json_t *object, const char *key);

/* The same for fields that must be there. A text is not empty, but for one that is copied to `bytes` bytes. */
double eni_json_need_number(eni_json *reader, const json_t *object, const char *key);
int64_t eni_json_need_integer(eni_json *reader, const json_t *object, const char *key);
uint64_t eni_json_need_whole(eni_json *reader, const json_t *object, const char *key); /* 0 or more */
const char *eni_json_need_text(eni_json *reader, const json_t *object, const char *key);
void eni_json_copy_text(eni_json *reader, const json_t *object, const char *key, char *text_out,
                        size_t bytes);
/* Of 1 to `max` entries. */
json_t *eni_json_need_array(eni_json *reader, const json_t *object, const char *key, size_t max);

/* A list of at most `max`, or absent, and what its entries become: `size` bytes each, zeroed before `take` fills them, in
 * memory that the caller frees (eni_free), whatever is returned: reader->status. */
typedef void eni_json_take(eni_json *reader, const json_t *entry, void *item);
en_status eni_json_list(eni_json *reader, const json_t *object, const char *key, size_t max, size_t size,
                        eni_json_take *take, void *items_out, size_t *n_out);

#endif
