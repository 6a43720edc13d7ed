/* report_json.h - reading JSON files whose writer may be a newer or older version, or an editor gone wrong.
 *
 * A reader remembers the first thing that is wrong and logs it once, in one sentence (file, place, what
 * should stand there); after that, further reads return "absent". So a loader reads all its fields in a row
 * and looks at `status` once, at the end. */
#ifndef REPORT_REPORT_JSON_H
#define REPORT_REPORT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"

typedef struct eni_json {
    const char *path; /* borrowed: the file's name in messages */
    en_status status; /* of the first failure */
    char where[96]; /* of the object that is read now, in messages: "runs[3]"; "" for the file's top level */
} eni_json;

/* Parses a whole file; NULL on failure, with reader->status set (EN_ENOENT, EN_EIO or EN_EFORMAT). The
 * caller owns the value (json_decref). */
json_t *eni_json_load(eni_json *reader);

/* Parses one line of a .jsonl file; `line` counts from 1. */
json_t *eni_json_line(eni_json *reader, const char *text, size_t length, size_t line);

/* Records a failure of the file: "PATH: <text>". Only the first is kept and logged. */
void eni_json_fail(eni_json *reader, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Says which object is read from now on: "" or "runs[3]". */
void eni_json_at(eni_json *reader, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Fields of an object. The first three return NAN, NULL and NULL when the field is absent or null; a field of
 * the wrong type is a failure. */
double eni_json_number(eni_json *reader, const json_t *object, const char *key);
const char *eni_json_text(eni_json *reader, const json_t *object, const char *key);
json_t *eni_json_array(eni_json *reader, const json_t *object, const char *key);

/* The same for fields that must be there. */
double eni_json_need_number(eni_json *reader, const json_t *object, const char *key);
int64_t eni_json_need_integer(eni_json *reader, const json_t *object, const char *key);
const char *eni_json_need_text(eni_json *reader, const json_t *object, const char *key);
json_t *eni_json_need_array(eni_json *reader, const json_t *object, const char *key, size_t max);

#endif
