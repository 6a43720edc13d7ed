/* value.c - converts text to fields and back, for every type of key. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/keys.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "run/units.h"

static void *field(eni_config *config, const eni_key *key)
{
    return (char *)config + key->offset;
}

static const void *field_of(const eni_config *config, const eni_key *key)
{
    return (const char *)config + key->offset;
}

/* The sentence about a bad value: place, value, problem, remedy. */
static en_status refuse(const char *place, const char *value, const char *problem, const char *remedy)
{
    return eni_config_refuse("%s: \"%.200s\" %s; give %s", place, value, problem, remedy);
}

void eni_key_range(const eni_key *key, const char *unit, char *text_out, size_t bytes)
{
    char low[32], high[32];
    bool is_whole = key->max == floor(key->max);
    eni_format_real(key->min, low, sizeof low);
    eni_format_real(key->max, high, sizeof high);
    if (is_whole) snprintf(high, sizeof high, "%.0f", key->max);
    snprintf(text_out, bytes, "from %s%s to %s%s", low, unit, high, unit);
}

/* The word that stands for a number: of "N|new" (ENI_RANK_NEW), "REAL|auto" (0). Or NULL. */
static const char *word_of(const eni_key *key)
{
    const char *bar = key->words == NULL ? NULL : strchr(key->words, '|');
    return bar != NULL && (key->type == ENI_KEY_INT || key->type == ENI_KEY_REAL) ? bar + 1 : NULL;
}

static en_status set_number(const eni_key *key, const char *value, const char *place, void *out)
{
    static const struct {
        const char *what, *unit, *problem;
        double of_unit;
    } kinds[] = {[ENI_KEY_INT] = {"a whole number", "", "is not a whole number", 1},
                 [ENI_KEY_REAL] = {"a number", "", "is not a finite number", 1},
                 [ENI_KEY_TIME] = {"a time", "s", "is not a time such as 500ms or 5s", 1e9},
                 [ENI_KEY_AMOUNT] = {"samples", "", "is not an amount such as 20000 or 10epochs", 1}};
    const char *word = word_of(key);
    char range[96], remedy[128];
    double real = 0;
    int64_t whole = 0;
    const bool is_read = key->type == ENI_KEY_INT      ? eni_parse_i64(value, &whole)
                         : key->type == ENI_KEY_REAL   ? eni_parse_real(value, &real)
                         : key->type == ENI_KEY_AMOUNT ? eni_parse_amount(value, &whole)
                                                       : eni_parse_duration(value, &whole);
    const double number = (key->type == ENI_KEY_REAL     ? real
                           : key->type == ENI_KEY_AMOUNT ? fabs((double)whole)
                                                         : (double)whole) /
                          kinds[key->type].of_unit;
    eni_key_range(key, kinds[key->type].unit, range, sizeof range);
    snprintf(remedy, sizeof remedy, "%s %s%s%s", kinds[key->type].what, range,
             key->type == ENI_KEY_AMOUNT ? ", or epochs as 10epochs"
             : word != NULL              ? ", or "
                                         : "",
             word != NULL ? word : "");
    if (*value == '\0') return refuse(place, value, "is empty", remedy);
    if (word != NULL && strcmp(value, word) == 0) {
        if (key->type == ENI_KEY_INT)
            *(int64_t *)out = ENI_RANK_NEW;
        else
            *(double *)out = 0;
        return EN_OK;
    }
    const bool is_too_long = key->type == ENI_KEY_INT && eni_parse_real(value, &real) &&
                             strspn(value, "-0123456789") == strlen(value);
    if (!is_read && !is_too_long) return refuse(place, value, kinds[key->type].problem, remedy);
    if (!is_read || number < key->min || number > key->max)
        return refuse(place, value, "is out of range", remedy);
    if (key->type == ENI_KEY_REAL)
        *(double *)out = number + 0.0; /* no negative zero */
    else
        *(int64_t *)out = whole;
    return EN_OK;
}

/* The answer to a word of another tool, or NULL. */
static const char *foreign_answer(const eni_key *key, const char *value)
{
    for (const eni_foreign *f = eni_foreigns; f->key != NULL; f++)
        if (strcmp(f->key, key->name) == 0 && strcmp(f->word, value) == 0) return f->answer;
    return NULL;
}

static en_status set_choice(const eni_key *key, const char *value, const char *place, int64_t *out)
{
    const char *word = key->words;
    for (int64_t i = 0; *word != '\0'; i++) {
        size_t length = strcspn(word, "|");
        if (strlen(value) == length && strncmp(word, value, length) == 0) {
            *out = i;
            return EN_OK;
        }
        word += length + (word[length] == '|');
    }
    char near[64], problem[128];
    bool has_near = eni_word_nearest(key->words, value, near);
    snprintf(problem, sizeof problem, "is not a valid choice%s%s", has_near ? "; the nearest is " : "",
             has_near ? near : "");
    return refuse(place, value, problem, key->words);
}

en_status eni_config_put(char **field, const char *text)
{
    char *copy = eni_strdup(text);
    if (copy == NULL) return EN_ENOMEM;
    eni_free(*field);
    *field = copy;
    return EN_OK;
}

static en_status set_text(const eni_key *key, const char *value, const char *place, char **out)
{
    const char *expected = key->check != NULL ? key->check(value) : NULL;
    return expected != NULL ? refuse(place, value, "is invalid", expected) : eni_config_put(out, value);
}

en_status eni_list_add(eni_list *list, const char *item)
{
    char **grown = eni_alloc_array((size_t)list->count + 1, sizeof *grown);
    char *copy = eni_strdup(item);
    if (grown == NULL || copy == NULL) {
        eni_free(grown);
        eni_free(copy);
        return EN_ENOMEM;
    }
    if (list->count > 0) memcpy(grown, list->item, (size_t)list->count * sizeof *grown);
    grown[list->count++] = copy;
    eni_free(list->item);
    list->item = grown;
    return EN_OK;
}

void eni_list_fini(eni_list *list)
{
    for (int i = 0; i < list->count; i++)
        eni_free(list->item[i]);
    eni_free(list->item);
    *list = (eni_list){0};
}

static en_status add_item(const eni_key *key, const char *item, const char *place, eni_list *list)
{
    const char *expected = *item == '\0' ? "at least one item" : key->check != NULL ? key->check(item) : NULL;
    if (expected != NULL) return refuse(place, item, "is invalid", expected);
    const size_t name = (key->flags & ENI_KEY_NAMED) != 0 ? strcspn(item, "=") + 1 : 0;
    for (int i = 0; name > 0 && i < list->count; i++)
        if (strncmp(list->item[i], item, name) == 0) return set_text(key, item, place, &list->item[i]);
    if (list->count >= 1024) return refuse(place, item, "is one item too many", "at most 1024");
    return eni_list_add(list, item);
}

/* "1..7" as 1, 2, .. 7, if it is a range. */
static en_status add_items(const eni_key *key, const char *item, const char *place, eni_list *list)
{
    const char *dots = (key->flags & ENI_KEY_RANGES) != 0 ? strstr(item, "..") : NULL;
    int64_t low, high;
    char number[24];
    snprintf(number, sizeof number, "%.*s", dots == NULL ? 0 : (int)(dots - item), item);
    if (dots == NULL || !eni_parse_i64(number, &low) || !eni_parse_i64(dots + 2, &high) || low > high)
        return add_item(key, item, place, list);
    for (int64_t value = low; value <= high; value++) {
        snprintf(number, sizeof number, "%" PRId64, value);
        EN_TRY(add_item(key, number, place, list));
    }
    return EN_OK;
}

static en_status set_list(const eni_key *key, const char *value, const char *place, eni_list *list)
{
    if ((key->flags & ENI_KEY_COMMAS) == 0) return add_item(key, value, place, list);
    char *copy = eni_strdup(value);
    if (copy == NULL) return EN_ENOMEM;
    en_status st = EN_OK;
    for (char *item = copy, *end; st == EN_OK; item = end + 1) {
        end = item + strcspn(item, ",");
        bool is_last = *end == '\0';
        *end = '\0';
        st = add_items(key, item, place, list);
        if (is_last) break;
    }
    eni_free(copy);
    return st;
}

en_status eni_key_recheck(const eni_config *config, int index)
{
    const eni_key *key = &eni_keys[index];
    char place[64];
    const void *value = field_of(config, key);
    const eni_list *list = key->type == ENI_KEY_LIST ? value : &(eni_list){(char **)(uintptr_t)value, 1};
    if (key->check == NULL || !eni_key_has_value(config, key)) return EN_OK;
    snprintf(place, sizeof place, "--%s", key->name);
    for (int i = 0; i < list->count; i++)
        if (key->check(list->item[i]) != NULL)
            return refuse(place, list->item[i], "is invalid", key->check(list->item[i]));
    return EN_OK;
}

/* Whether a value of 0 means unset, if the range begins with 1: a file may have `steps: 0`, as config.yaml does; a flag may
 * not. */
static bool is_unset(const eni_key *key, const char *value, int origin)
{
    return key->type == ENI_KEY_INT && key->min > 0 && origin < ENI_FROM_FLAG && key->fallback != NULL &&
           strcmp(key->fallback, "0") == 0 && strcmp(value, "0") == 0;
}

en_status eni_key_set(eni_config *config, int index, const char *value, const char *place, int origin)
{
    const eni_key *key = &eni_keys[index];
    void *out = field(config, key);
    const char *answer = foreign_answer(key, value);
    if (answer != NULL) return eni_config_refuse("%s: \"%s\" is not supported; %s", place, value, answer);
    bool is_number = key->type == ENI_KEY_INT || key->type == ENI_KEY_REAL || key->type == ENI_KEY_TIME ||
                     key->type == ENI_KEY_AMOUNT;
    if (*value == '\0' && !is_number) /* for numbers the message gives the range */
        return refuse(place, value, "is empty", key->words != NULL ? key->words : "on or off");
    if (!eni_is_text(value)) /* neither config.yaml nor result.json could hold it */
        return refuse(place, value, "is not UTF-8, or has a control character", "a plain name");
    if (is_unset(key, value, origin)) {
        *(int64_t *)out = 0;
        config->origin[index] = ENI_FROM_DEFAULT;
        return EN_OK;
    }
    switch (key->type) {
    case ENI_KEY_BOOL:
        if (!eni_parse_bool(value, out)) return refuse(place, value, "is neither on nor off", "on or off");
        break;
    case ENI_KEY_INT:
    case ENI_KEY_REAL:
    case ENI_KEY_AMOUNT:
    case ENI_KEY_TIME: EN_TRY(set_number(key, value, place, out)); break;
    case ENI_KEY_CHOICE: EN_TRY(set_choice(key, value, place, out)); break;
    case ENI_KEY_TARGET:
        if (!eni_target_parse(value, out))
            return refuse(place, value, "is not a target",
                          "an accuracy in percent from 0 to 100, or loss:VALUE");
        break;
    case ENI_KEY_TEXT: EN_TRY(set_text(key, value, place, out)); break;
    case ENI_KEY_LIST:
        if (config->origin[index] != origin && (key->flags & ENI_KEY_NAMED) == 0) eni_key_clear(config, key);
        EN_TRY(set_list(key, value, place, out));
        break;
    }
    config->origin[index] = (uint8_t)origin;
    return EN_OK;
}

const char *eni_key_value_in(const eni_key *key, const char *text)
{
    const size_t own = strlen(key->name);
    if ((key->flags & ENI_KEY_NAMED) != 0 && text[strcspn(text, "=.")] == '.') return text + own + 1;
    text = strchr(text, '=');
    return text != NULL ? text + 1 : NULL;
}

static const char *word_at(const char *words, int64_t index, char room[64])
{
    for (; index > 0; index--)
        words += strcspn(words, "|") + 1;
    snprintf(room, 64, "%.*s", (int)strcspn(words, "|"), words);
    return room;
}

const char *eni_key_text(const eni_config *config, const eni_key *key, char room[64])
{
    const void *from = field_of(config, key);
    if (!eni_key_has_value(config, key)) return "";
    switch (key->type) {
    case ENI_KEY_BOOL: return *(const bool *)from ? "on" : "off";
    case ENI_KEY_INT:
        if (word_of(key) != NULL && *(const int64_t *)from == ENI_RANK_NEW) return word_of(key);
        snprintf(room, 64, "%" PRId64, *(const int64_t *)from);
        return room;
    case ENI_KEY_REAL:
        if (word_of(key) != NULL && *(const double *)from == 0) return word_of(key);
        eni_format_real(*(const double *)from, room, 64);
        return room;
    case ENI_KEY_CHOICE: return word_at(key->words, *(const int64_t *)from, room);
    case ENI_KEY_AMOUNT: eni_format_amount(*(const int64_t *)from, room, 64); return room;
    case ENI_KEY_TIME: eni_format_duration(*(const int64_t *)from, room, 64); return room;
    case ENI_KEY_TARGET: return eni_target_text(from, "", ':', room);
    case ENI_KEY_TEXT: return *(char *const *)from;
    case ENI_KEY_LIST: break;
    }
    return "";
}

bool eni_key_has_value(const eni_config *config, const eni_key *key)
{
    const void *from = field_of(config, key);
    if (key->type == ENI_KEY_TEXT) return *(char *const *)from != NULL;
    if (key->type == ENI_KEY_LIST) return ((const eni_list *)from)->count > 0;
    return key->type != ENI_KEY_INT || key->fallback != NULL || *(const int64_t *)from != -1;
}

void eni_key_clear(eni_config *config, const eni_key *key)
{
    void *out = field(config, key);
    if (key->type == ENI_KEY_TEXT) {
        eni_free(*(char **)out);
        *(char **)out = NULL;
    } else if (key->type == ENI_KEY_LIST) {
        eni_list_fini(out);
    }
}
