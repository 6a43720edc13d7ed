/* json.c - JSON on jansson: errors locate a value that is missing or has the wrong type, and numbers are written with
 * the fewest digits that read back the same (json.h). */
#include "core/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"

/* ---- reading ------------------------------------------------------------------------------------------- */

void eni_json_fail(eni_json *reader, const char *fmt, ...)
{
    if (reader->status != EN_OK) return;
    reader->status = EN_EFORMAT;
    va_list args;
    va_start(args, fmt);
    vsnprintf(reader->why, sizeof reader->why, fmt, args);
    va_end(args);
    if (reader->who != NULL) eni_error(reader->who, "%s: %s", reader->path, reader->why);
}

/* Reads a regular file only, and takes over the descriptor: a pipe would wait for its writer. By blocks, since
 * json_loadfd() makes a call for each byte. */
static json_t *load(int fd, size_t flags, json_error_t *error_out)
{
    struct stat is;
    json_error_t error = {.text = "it is not a regular file"};
    if (fd < 0) snprintf(error.text, sizeof error.text, "%s", strerror(errno));
    FILE *file = fd >= 0 && fstat(fd, &is) == 0 && S_ISREG(is.st_mode) ? fdopen(fd, "r") : NULL;
    json_t *value = file != NULL ? json_loadf(file, flags, &error) : NULL;
    if (fd >= 0) (void)(file != NULL ? fclose(file) : close(fd));
    if (error_out != NULL) *error_out = error;
    return value;
}

/* O_NONBLOCK: opening a pipe must not wait for its writer. */
static const int open_flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;

json_t *eni_json_file(const char *path, json_error_t *error_out)
{
    return load(open(path, open_flags), 0, error_out);
}

json_t *eni_json_load(eni_json *reader)
{
    if (reader->status != EN_OK) return NULL;
    const int fd = open(reader->path, open_flags);
    if (fd < 0) {
        reader->status = errno == ENOENT ? EN_ENOENT : EN_EIO;
        eni_error(reader->who, "cannot open %s: %s", reader->path, strerror(errno));
        return NULL;
    }
    json_error_t error;
    json_t *value = load(fd, JSON_REJECT_DUPLICATES, &error);
    if (json_is_object(value)) return value;
    if (value == NULL && error.line == 0)
        eni_json_fail(reader, "%s", error.text);
    else if (value == NULL)
        eni_json_fail(reader, "line %d is not JSON: %s", error.line, error.text);
    else
        eni_json_fail(reader, "expected one JSON object {…}");
    json_decref(value);
    return NULL;
}

json_t *eni_json_parse(eni_json *reader, const char *text, size_t length)
{
    if (reader->status != EN_OK) return NULL;
    json_error_t error;
    json_t *value = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (json_is_object(value)) return value;
    eni_json_fail(reader, "%s is not a JSON object%s%s", reader->where[0] == 0 ? "the text" : reader->where,
                  value == NULL ? ": " : "", value == NULL ? error.text : "");
    json_decref(value);
    return NULL;
}

json_t *eni_json_load_at(int folder, const char *name)
{
    return load(openat(folder, name, open_flags | O_NOFOLLOW), 0, NULL);
}

void eni_json_at(eni_json *reader, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(reader->where, sizeof reader->where, fmt, args);
    va_end(args);
}

/* "runs[3].seed should be an integer"; without a key, about the object itself. */
static void refuse(eni_json *reader, const char *key, const char *what)
{
    const char *dot = reader->where[0] == 0 || key == NULL ? "" : ".";
    eni_json_fail(reader, "%s%s%s should be %s", reader->where, dot, key == NULL ? "" : key, what);
}

/* The field, or NULL if it is absent, null or not of `type`. */
static json_t *field(eni_json *reader, const json_t *object, const char *key, bool needed, json_type type,
                     const char *what)
{
    if (reader->status != EN_OK) return NULL;
    json_t *value = key == NULL ? (json_t *)(uintptr_t)object : json_object_get(object, key);
    if (json_is_null(value)) value = NULL;
    if (value == NULL && !needed) return NULL;
    if (value != NULL && (json_typeof(value) == type || (type == JSON_REAL && json_is_integer(value))))
        return value;
    refuse(reader, key, what);
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

uint64_t eni_json_need_whole(eni_json *reader, const json_t *object, const char *key)
{
    static const char what[] = "a whole number of at least 0";
    const json_int_t value = json_integer_value(field(reader, object, key, true, JSON_INTEGER, what));
    if (value < 0) refuse(reader, key, what);
    return value < 0 ? 0 : (uint64_t)value;
}

const char *eni_json_need_text(eni_json *reader, const json_t *object, const char *key)
{
    const char *text = json_string_value(field(reader, object, key, true, JSON_STRING, "a text"));
    if (text == NULL || text[0] != 0) return text;
    refuse(reader, key, "a text that is not empty");
    return NULL;
}

void eni_json_copy_text(eni_json *reader, const json_t *object, const char *key, char *text_out, size_t bytes)
{
    const char *text = json_string_value(field(reader, object, key, true, JSON_STRING, "a text"));
    char what[48];
    snprintf(what, sizeof what, "a text of at most %zu bytes", bytes - 1);
    if (text != NULL && strlen(text) >= bytes)
        refuse(reader, key, what);
    else if (text != NULL)
        memcpy(text_out, text, strlen(text) + 1);
}

json_t *eni_json_need_array(eni_json *reader, const json_t *object, const char *key, size_t max)
{
    json_t *list = field(reader, object, key, true, JSON_ARRAY, "a list");
    if (list == NULL || (json_array_size(list) >= 1 && json_array_size(list) <= max)) return list;
    eni_json_fail(reader, "%s should have 1 to %zu entries, not %zu", key, max, json_array_size(list));
    return NULL;
}

en_status eni_json_list(eni_json *reader, const json_t *object, const char *key, size_t max, size_t size,
                        eni_json_take *take, void *items_out, size_t *n_out)
{
    const json_t *list = eni_json_array(reader, object, key);
    char outer[sizeof reader->where], *items;
    *n_out = json_array_size(list);
    if (*n_out > max) {
        eni_json_fail(reader, "%s should have at most %zu entries, not %zu", key, max, *n_out);
        *n_out = 0;
    }
    items = eni_alloc_array(*n_out, size);
    memcpy(items_out, &items, sizeof items);
    if (items == NULL) *n_out = 0;
    if (items == NULL) reader->status = EN_ENOMEM;
    memcpy(outer, reader->where, sizeof outer);
    for (size_t i = 0; i < *n_out && reader->status == EN_OK; i++) {
        eni_json_at(reader, "%.60s%s%.20s[%zu]", outer, outer[0] == 0 ? "" : ".", key, i);
        take(reader, json_array_get(list, i), items + i * size);
    }
    memcpy(reader->where, outer, sizeof outer);
    return reader->status;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

/* Rewrites the number of `n` bytes at `text` with the fewest digits that read back the same; returns the bytes written. */
static size_t shorten(const char *text, size_t n, char *out)
{
    char shorter[40];
    const double value = strtod(text, NULL);
    const bool is_real = memchr(text, '.', n) != NULL || memchr(text, 'e', n) != NULL;
    for (int digits = 15; is_real && n > 17 && digits < 17; digits++) {
        snprintf(shorter, sizeof shorter - 2, "%.*g", digits, value);
        if (strpbrk(shorter, ".e") == NULL) strcat(shorter, ".0"); /* stays a real number */
        if (strtod(shorter, NULL) != value || strlen(shorter) >= n) continue;
        n = strlen(shorter);
        text = shorter;
        break;
    }
    memmove(out, text, n);
    return n;
}

char *eni_json_dump(const json_t *value, size_t flags)
{
    char *text = json_dumps(value, flags), *to = text;
    bool is_in_string = false;
    for (const char *at = text; at != NULL && *at != '\0';) {
        const size_t n = is_in_string ? 0 : strspn(at, "-+.0123456789eE");
        if (n > 0 && *at != 'e') { /* the 'e' of "false" and "true" */
            to += shorten(at, n, to);
            at += n;
            continue;
        }
        if (*at == '"') is_in_string = !is_in_string;
        if (is_in_string && *at == '\\') *to++ = *at++;
        *to++ = *at++;
    }
    if (text != NULL) *to = '\0';
    return text;
}

en_status eni_json_print(json_t *value)
{
    if (value == NULL) return EN_ENOMEM;
    if (json_dumpf(value, stdout, JSON_INDENT(1)) == 0) putchar('\n');
    json_decref(value);
    return EN_OK;
}
