/* report_json.c - jansson, with the place in the file for every value that is missing or of another type. */
#include "report/report_json.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"

void eni_json_fail(eni_json *reader, const char *fmt, ...)
{
    if (reader->status != EN_OK) return;
    reader->status = EN_EFORMAT;
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    eni_error("report", "%s: %s", reader->path, text);
}

json_t *eni_json_load(eni_json *reader)
{
    if (reader->status != EN_OK) return NULL;
    FILE *file = fopen(reader->path, "re");
    if (file == NULL) {
        reader->status = errno == ENOENT ? EN_ENOENT : EN_EIO;
        eni_error("report", "cannot open %s: %s", reader->path, strerror(errno));
        return NULL;
    }
    json_error_t error;
    json_t *value = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    fclose(file);
    if (value == NULL) eni_json_fail(reader, "line %d is not JSON: %s", error.line, error.text);
    if (value != NULL && !json_is_object(value)) {
        eni_json_fail(reader, "there should be one JSON object {…}");
        json_decref(value);
        value = NULL;
    }
    return value;
}

json_t *eni_json_line(eni_json *reader, const char *text, size_t length, size_t line)
{
    if (reader->status != EN_OK) return NULL;
    json_error_t error;
    json_t *value = json_loadb(text, length, 0, &error);
    if (value != NULL && json_is_object(value)) return value;
    eni_json_fail(reader, "line %zu is not a JSON object%s%s", line, value == NULL ? ": " : "",
                  value == NULL ? error.text : "");
    json_decref(value);
    return NULL;
}

void eni_json_at(eni_json *reader, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(reader->where, sizeof reader->where, fmt, args);
    va_end(args);
}

/* The field, or NULL when it is absent, null or of another type than `is_type`. */
static json_t *field(eni_json *reader, const json_t *object, const char *key, bool needed, json_type type,
                     const char *what)
{
    if (reader->status != EN_OK) return NULL;
    json_t *value = json_object_get(object, key);
    if (json_is_null(value)) value = NULL;
    if (value == NULL && !needed) return NULL;
    if (value != NULL && (json_typeof(value) == type || (type == JSON_REAL && json_is_integer(value))))
        return value;
    eni_json_fail(reader, "%s%s%s should be %s", reader->where, reader->where[0] == 0 ? "" : ".", key, what);
    return NULL;
}

static double number(eni_json *reader, const json_t *object, const char *key, bool needed)
{
    const json_t *value = field(reader, object, key, needed, JSON_REAL, "a number");
    return value == NULL ? NAN : json_number_value(value);
}

double eni_json_number(eni_json *reader, const json_t *object, const char *key)
{
    return number(reader, object, key, false);
}

double eni_json_need_number(eni_json *reader, const json_t *object, const char *key)
{
    return number(reader, object, key, true);
}

const char *eni_json_text(eni_json *reader, const json_t *object, const char *key)
{
    return json_string_value(field(reader, object, key, false, JSON_STRING, "a text"));
}

json_t *eni_json_array(eni_json *reader, const json_t *object, const char *key)
{
    return field(reader, object, key, false, JSON_ARRAY, "a list");
}

int64_t eni_json_need_integer(eni_json *reader, const json_t *object, const char *key)
{
    return json_integer_value(field(reader, object, key, true, JSON_INTEGER, "an integer"));
}

const char *eni_json_need_text(eni_json *reader, const json_t *object, const char *key)
{
    const char *text = json_string_value(field(reader, object, key, true, JSON_STRING, "a text"));
    if (text == NULL || text[0] != 0) return text;
    const char *dot = reader->where[0] == 0 ? "" : ".";
    eni_json_fail(reader, "%s%s%s should be a text that is not empty", reader->where, dot, key);
    return NULL;
}

json_t *eni_json_need_array(eni_json *reader, const json_t *object, const char *key, size_t max)
{
    json_t *list = field(reader, object, key, true, JSON_ARRAY, "a list");
    if (list == NULL || (json_array_size(list) >= 1 && json_array_size(list) <= max)) return list;
    eni_json_fail(reader, "%s should have 1 to %zu entries, not %zu", key, max, json_array_size(list));
    return NULL;
}
