/* options.c - parses KEY=VALUE,.. against a strategy's table; look-ups and the canonical text follow. */
#include "core/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

typedef struct value {
    const en_option *option;
    bool is_given;
    double num;
    int power_of_w; /* 1: num is times W; -1: over W */
    char text[ENI_OPTION_TEXT_MAX];
} value;

struct eni_options {
    const char *kind, *name; /* "strategy", "ssp" */
    uint32_t n;
    value *values; /* in the order of declaration */
    char *canonical;
    bool are_default; /* all of them, given or not */
};

/* ---- words typed by a user --------------------------------------------------------------------------- */

enum { WORD_MAX = 63 };

/* Three rows of the usual matrix. */
int eni_edit_distance(const char *a, const char *b)
{
    int rows[3][WORD_MAX + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    int na = (int)strnlen(a, WORD_MAX), nb = (int)strnlen(b, WORD_MAX);
    for (int j = 0; j <= nb; j++)
        before[j] = last[j] = j;
    for (int i = 1; i <= na; i++) {
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            row[j] = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < row[j]) row[j] = last[j] + 1;
            if (row[j - 1] + 1 < row[j]) row[j] = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        int *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[nb];
}

static bool begins_alike(const char *a, const char *b)
{
    const size_t na = strnlen(a, WORD_MAX), nb = strnlen(b, WORD_MAX), shorter = na < nb ? na : nb;
    return shorter > 1 && strncmp(a, b, shorter) == 0;
}

/* A prefix or an extension counts half: "lrate" means lr, not leave. */
static int distance_of(const char *word, const char *known)
{
    const int distance = eni_edit_distance(word, known);
    return begins_alike(word, known) ? distance / 2 : distance;
}

bool eni_is_nearer(const char *word, const char *known, const char *nearest)
{
    const size_t length = strnlen(word, WORD_MAX);
    const int distance = distance_of(word, known), most = length < 6 ? 1 + (length > 3) : (int)length / 3;
    const bool is_near = begins_alike(word, known) || distance <= (word[0] == known[0] ? most : 1);
    return is_near && (nearest == NULL || distance < distance_of(word, nearest));
}

bool eni_is_text(const char *text)
{
    for (int length; *text != 0; text += length)
        if ((length = eni_letter_bytes(text)) == 0) return false;
    return true;
}

size_t eni_spec_head(const char *spec)
{
    size_t from = 0, path = strcspn(spec, "=");
    for (size_t i = 0; i < path; i++)
        if (spec[i] == '/') from = i;
    return from + strcspn(spec + from, ":");
}

const char *eni_spec_options(const char *spec)
{
    const char *head = spec + eni_spec_head(spec);
    return *head == ':' ? head + 1 : head;
}

bool eni_is_url(const char *text)
{
    if (text == NULL) return false;
    const size_t scheme = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
    return scheme > 0 && strncmp(text + scheme, "://", 3) == 0;
}

bool eni_parse_bool(const char *text, bool *value_out)
{
    static const char *const words[] = {"off", "on", "false", "true", "no", "yes", "0", "1"};
    for (int i = 0; i < 8; i++)
        if (strcasecmp(text, words[i]) == 0) {
            *value_out = i % 2 == 1;
            return true;
        }
    return false;
}

/* ---- tables ------------------------------------------------------------------------------------------ */

const en_option *eni_option_next(const en_option *option)
{
    return (const en_option *)(const void *)((const char *)option + option->size);
}

const en_option *eni_option_find(const en_option *table, const char *key, size_t length)
{
    for (const en_option *o = table; o != NULL && o->size != 0; o = eni_option_next(o))
        if (strlen(o->key) == length && memcmp(o->key, key, length) == 0) return o;
    return NULL;
}

/* How a default is written; NULL: as its value. Options other than texts may end before that field. */
static const char *default_text(const en_option *option)
{
    return option->size >= sizeof *option ? option->text : NULL;
}

void eni_format_real(double number, char *text_out, size_t bytes)
{
    snprintf(text_out, bytes, "%.0f", number); /* 70, where fewest digits would be 7e+01 */
    if (fabs(number) < 1e6 && strtod(text_out, NULL) == number) return;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text_out, bytes, "%.*g", digits, number);
        if (strtod(text_out, NULL) == number) return;
    }
}

void eni_option_describe(const en_option *option, char *text_out, size_t bytes)
{
    char value_text[32], min[32], max[32];
    eni_format_real(option->value, value_text, sizeof value_text);
    if (default_text(option) != NULL) snprintf(value_text, sizeof value_text, "%s", option->text);
    eni_format_real(option->min, min, sizeof min);
    eni_format_real(option->max, max, sizeof max);
    switch (option->type) {
    case EN_OPT_TEXT:
        snprintf(text_out, bytes, "text, default '%s'", default_text(option) != NULL ? option->text : "");
        break;
    case EN_OPT_BOOL:
        snprintf(text_out, bytes, "on or off, default %s", option->value != 0 ? "on" : "off");
        break;
    default:
        snprintf(text_out, bytes, "%s %s .. %s, default %s",
                 option->type == EN_OPT_INT ? "whole number" : "number", min, max, value_text);
    }
}

/* ---- parsing ----------------------------------------------------------------------------------------- */

static value *find_value(const eni_options *options, const char *key)
{
    for (uint32_t i = 0; i < options->n; i++)
        if (strcmp(options->values[i].option->key, key) == 0) return &options->values[i];
    return NULL;
}

static en_status refuse_key(const eni_options *options, const char *key)
{
    const en_option *nearest = NULL;
    for (uint32_t i = 0; i < options->n; i++)
        if (eni_is_nearer(key, options->values[i].option->key, nearest == NULL ? NULL : nearest->key))
            nearest = options->values[i].option;
    if (options->n == 0)
        eni_error("options", "%s %s has no option %s: it takes none", options->kind, options->name, key);
    else if (nearest != NULL)
        eni_error("options", "%s %s has no option %s; the nearest is %s: %s", options->kind, options->name,
                  key, nearest->key, nearest->help);
    else
        eni_error("options", "%s %s has no option %s; `entrain %s %s` lists its options", options->kind,
                  options->name, key, strcmp(options->kind, "model") == 0 ? "models" : "strategies",
                  options->name);
    return EN_EINVAL;
}

/* Reads `text` if the option's type and range allow it: "8"; or, if the default depends on W, "2W" for a whole number and
 * "0.9/W" for a real one. Both are in range for every W if they are for W = 1. */
static bool parse_number(value *v, const char *text)
{
    const en_option *option = v->option;
    if (option->type == EN_OPT_BOOL) {
        bool is_on;
        if (!eni_parse_bool(text, &is_on)) return false;
        v->num = is_on;
        return true;
    }
    char *end = NULL;
    errno = 0;
    double number = strtod(text, &end);
    const char *by_w = option->type == EN_OPT_INT ? "W" : "/W";
    v->power_of_w = default_text(option) == NULL || strcmp(end, by_w) != 0 ? 0 : by_w[0] == 'W' ? 1 : -1;
    if (v->power_of_w == 1 && end == text) number = 1; /* "W" */
    if (v->power_of_w == 0 ? end == text || *end : end == text && number != 1) return false;
    if (isnan(number) || errno == ERANGE || text[0] == '+' || strpbrk(text, "xX")) return false;
    if (option->type == EN_OPT_INT && isfinite(number) && number != floor(number)) return false;
    v->num = number + 0.0; /* -0 becomes 0, for one canonical text */
    return number >= option->min && number <= option->max;
}

static en_status set_value(eni_options *options, const char *key, const char *text)
{
    char range[128];
    value *v = find_value(options, key);
    if (v == NULL) return refuse_key(options, key);
    if (v->is_given)
        return eni_fail(EN_EINVAL, "options", "option %s of %s %s is given twice; give it once", key,
                        options->kind, options->name);
    v->is_given = true;
    if (v->option->type == EN_OPT_TEXT) {
        snprintf(v->text, sizeof v->text, "%s", text);
        return EN_OK;
    }
    if (parse_number(v, text)) return EN_OK;
    eni_option_describe(v->option, range, sizeof range);
    return eni_fail(EN_EINVAL, "options", "option %s of %s %s: invalid value '%s'; expected %s", key,
                    options->kind, options->name, text, range);
}

/* One "key=value" of `length` characters, or the key alone of a boolean that is on. */
static en_status parse_pair(eni_options *options, const char *pair, size_t length)
{
    char copy[ENI_OPTION_TEXT_MAX];
    if (length >= sizeof copy)
        return eni_fail(EN_EINVAL, "options",
                        "an option of %s %s has %zu characters; at most %zu are allowed", options->kind,
                        options->name, length, sizeof copy - 1);
    memcpy(copy, pair, length);
    copy[length] = 0;
    const size_t key = strcspn(copy, "=:");
    const value *v = find_value(options, copy);
    if (v != NULL && v->option->type == EN_OPT_BOOL) return set_value(options, copy, "on");
    if (key == 0 || key == length)
        return eni_fail(EN_EINVAL, "options", "'%s' is not an option of %s %s: expected key=value", copy,
                        options->kind, options->name);
    copy[key] = 0;
    const char *text = copy + key + 1;
    return set_value(options, copy, text + strspn(text, " "));
}

static en_status parse(eni_options *options, const char *given)
{
    while (*given) {
        given += strspn(given, " ");
        const size_t length = strcspn(given, ",");
        EN_TRY(parse_pair(options, given, length));
        given += length;
        if (*given == ',' && !given[1])
            return eni_fail(EN_EINVAL, "options", "the options of %s %s end with a comma; remove it",
                            options->kind, options->name);
        given += *given == ',';
    }
    return EN_OK;
}

/* ---- the object -------------------------------------------------------------------------------------- */

static en_status make_canonical(eni_options *options)
{
    size_t bytes = 1;
    for (uint32_t i = 0; i < options->n; i++)
        bytes += strlen(options->values[i].option->key) + ENI_OPTION_TEXT_MAX + 2;
    options->canonical = eni_alloc(bytes);
    if (options->canonical == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < options->n; i++) {
        const value *v = &options->values[i];
        char number[32];
        eni_format_real(v->num, number, sizeof number);
        const char *text = v->option->type == EN_OPT_TEXT      ? v->text
                           : v->power_of_w == 1 && v->num == 1 ? ""
                                                               : number;
        eni_text_add(options->canonical, bytes, "%s%s=%s%s", i ? "," : "", v->option->key, text,
                     v->power_of_w == 0  ? ""
                     : v->power_of_w > 0 ? "W"
                                         : "/W");
    }
    return EN_OK;
}

en_status eni_options_parse(const char *kind, const char *name, const en_option *table, const char *given,
                            eni_options **options_out)
{
    en_status st = EN_OK;
    eni_options *options = eni_alloc(sizeof *options);
    if (options == NULL) return EN_ENOMEM;
    options->kind = kind;
    options->name = name;
    for (const en_option *o = table; o != NULL && o->size != 0; o = eni_option_next(o))
        options->n++;
    options->values = eni_alloc_array(options->n, sizeof *options->values);
    EN_TRY_GOTO(options->values == NULL ? EN_ENOMEM : EN_OK, free_options);
    value *v = options->values;
    for (const en_option *o = table; o != NULL && o->size != 0; o = eni_option_next(o), v++) {
        v->option = o;
        v->num = o->value;
        const char *text = default_text(o);
        snprintf(v->text, sizeof v->text, "%s", o->type == EN_OPT_TEXT && text != NULL ? text : "");
        if (o->type == EN_OPT_TEXT || text == NULL || parse_number(v, text)) continue;
        EN_TRY_GOTO(eni_fail(EN_EINVAL, "options", "%s %s declares '%s' as the default of %s: expected %s",
                             kind, name, text, o->key,
                             "\"2W\" of a whole number or \"0.9/W\" of another, in its range"),
                    free_options);
    }
    EN_TRY_GOTO(make_canonical(options), free_options);
    char *defaults = options->canonical;
    options->canonical = NULL;
    st = parse(options, given != NULL ? given : "");
    if (st == EN_OK) st = make_canonical(options);
    options->are_default = st == EN_OK && strcmp(options->canonical, defaults) == 0;
    eni_free(defaults);
    EN_TRY_GOTO(st, free_options);
    *options_out = options;
    return EN_OK;
free_options:
    eni_options_free(options);
    return st;
}

en_status eni_options_new(const en_strategy *strategy, const char *given, eni_options **options_out)
{
    return eni_options_parse("strategy", strategy->name, strategy->options, given, options_out);
}

void eni_options_free(eni_options *options)
{
    if (options == NULL) return;
    eni_free(options->canonical);
    eni_free(options->values);
    eni_free(options);
}

en_status eni_options_check(const en_strategy *strategy, const char *given)
{
    eni_options *options;
    EN_TRY(eni_options_new(strategy, given, &options));
    eni_options_free(options);
    return EN_OK;
}

bool eni_options_are_synchronous(const en_strategy *strategy, const eni_options *options)
{
    const bool is_withdrawn =
        strategy->flags & EN_SYNCHRONOUS_BY_DEFAULT && options != NULL && !options->are_default;
    return strategy->flags & EN_SYNCHRONOUS && !is_withdrawn;
}

static const value *look_up(const eni_options *options, const char *key, bool is_text)
{
    const value *v = options != NULL ? find_value(options, key) : NULL;
    return v != NULL && (v->option->type == EN_OPT_TEXT) == is_text ? v : NULL;
}

bool eni_options_has(const eni_options *options, const char *key, bool is_text)
{
    return look_up(options, key, is_text) != NULL;
}

double eni_options_num(const eni_options *options, const char *key, int32_t nranks)
{
    const value *v = look_up(options, key, false);
    if (v == NULL) return 0;
    return v->power_of_w == 0 ? v->num : v->power_of_w > 0 ? v->num * nranks : v->num / nranks;
}

const char *eni_options_text(const eni_options *options, const char *key)
{
    const value *v = look_up(options, key, true);
    return v != NULL ? v->text : "";
}

const char *eni_options_canonical(const eni_options *options)
{
    return options->canonical;
}
