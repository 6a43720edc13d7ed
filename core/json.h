/* json.h - fields of a JSON object under construction (jansson), and its text. What memory was lacking for is left out:
 * whoever writes the text finds out. */
#ifndef CORE_JSON_H
#define CORE_JSON_H

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Writes the number of `n` bytes at `text` as short as it reads back, and never longer; the bytes that it takes. */
static inline size_t eni_json_shorten(const char *text, size_t n, char *out)
{
    char shorter[40];
    const double value = strtod(text, NULL);
    const bool is_real = memchr(text, '.', n) != NULL || memchr(text, 'e', n) != NULL;
    for (int digits = 15; is_real && n > 17 && digits < 17; digits++) {
        snprintf(shorter, sizeof shorter - 2, "%.*g", digits, value);
        if (strpbrk(shorter, ".e") == NULL) strcat(shorter, ".0"); /* or it would be a whole number */
        if (strtod(shorter, NULL) != value || strlen(shorter) >= n) continue;
        n = strlen(shorter);
        text = shorter;
        break;
    }
    memmove(out, text, n);
    return n;
}

/* As json_dumps, whose 17 digits make 0.69999999999999996 of 0.7, with the shortest numbers that read back as the same: for what
 * people read. The caller frees it (free). NULL: no memory, or no JSON. */
static inline char *eni_json_text(const json_t *value, size_t flags)
{
    char *text = json_dumps(value, flags), *to = text;
    bool is_in_string = false;
    for (const char *at = text; at != NULL && *at != '\0';) {
        const size_t n = is_in_string ? 0 : strspn(at, "-+.0123456789eE");
        if (n > 0 && *at != 'e') { /* "false" and "true" have one */
            to += eni_json_shorten(at, n, to);
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

#endif
