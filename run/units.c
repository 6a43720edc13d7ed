/* units.c - a number and its unit: one parser for all, after the tables of units. */
#include "run/units.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit sizes[] = {{"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                             {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {NULL, 0}};
static const unit bits[] = {
    {"bit", 1.0 / 8}, {"kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {NULL, 0}};
static const unit times[] = {{"", 1e9},  {"ns", 1},     {"us", 1e3},   {"ms", 1e6},
                             {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}, {NULL, 0}};

bool eni_parse_i64(const char *text, int64_t *value_out)
{
    size_t digits = strspn(text + (text[0] == '-'), "0123456789");
    if (digits == 0 || text[digits + (text[0] == '-')] != '\0') return false;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno != 0) return false;
    *value_out = value;
    return true;
}

/* Copies the first `length` letters into a text of their own; false if they do not fit. */
static bool cut(const char *text, size_t length, char *text_out, size_t bytes)
{
    if (length >= bytes) return false;
    memcpy(text_out, text, length);
    text_out[length] = '\0';
    return true;
}

/* Parses the first `length` letters as an integer. */
static bool whole(const char *text, size_t length, int64_t *value_out)
{
    char digits[24];
    return cut(text, length, digits, sizeof digits) && eni_parse_i64(digits, value_out);
}

/* A decimal number at the start of `text`; *rest_out is the rest. */
static bool number(const char *text, double *value_out, const char **rest_out)
{
    size_t plain = strspn(text, "+-.0123456789");
    if (plain == 0) return false; /* "nan", "inf", blanks */
    size_t digits = strcspn(text, "0123456789");
    if (digits >= plain || (text[digits] == '0' && (text[digits + 1] | 32) == 'x')) return false;
    char *rest;
    errno = 0;
    double value = strtod(text, &rest);
    if (rest == text || !isfinite(value) || text[0] == '+') return false;
    if (errno == ERANGE && value == 0) return false; /* 1e-400 was meant to be more than 0 */
    *value_out = value;
    *rest_out = rest;
    return true;
}

bool eni_parse_real(const char *text, double *value_out)
{
    const char *rest;
    double value;
    if (!number(text, &value, &rest) || *rest != '\0') return false;
    *value_out = value;
    return true;
}

/* A non-negative number with one of the units, in the base unit. */
static bool with_unit(const char *text, const unit *units, double *value_out)
{
    const char *rest;
    double value;
    if (!number(text, &value, &rest) || value < 0 || text[0] == '-' || text[0] == '+') return false;
    for (; units->name != NULL; units++)
        if (strcasecmp(rest, units->name) == 0) {
            *value_out = value * units->factor;
            return *value_out <= 9e18;
        }
    return false;
}

bool eni_parse_rate(const char *text, uint64_t *bytes_per_s_out)
{
    char plain[64];
    double bytes;
    size_t length = strlen(text);
    if (length > 2 && strcasecmp(text + length - 2, "/s") == 0) length -= 2;
    if (length == 0 || !cut(text, length, plain, sizeof plain)) return false;
    const bool is_bits = with_unit(plain, bits, &bytes);
    if (!is_bits && (plain[length - 1] != 'B' || !with_unit(plain, sizes, &bytes))) return false;
    if (bytes < 1) return false;
    *bytes_per_s_out = (uint64_t)llround(bytes);
    return true;
}

bool eni_parse_duration(const char *text, int64_t *ns_out)
{
    double ns;
    if (!with_unit(text, times, &ns)) return false;
    *ns_out = llround(ns);
    return true;
}

bool eni_parse_range(const char *text, int32_t *lo_out, int32_t *hi_out)
{
    int64_t lo, hi;
    const size_t length = strcspn(text, "-");
    if (!whole(text, length, &lo) || lo < 0) return false;
    if (text[length] == '\0')
        hi = lo;
    else if (!eni_parse_i64(text + length + 1, &hi) || hi < lo)
        return false;
    if (hi > INT32_MAX) return false;
    *lo_out = (int32_t)lo;
    *hi_out = (int32_t)hi;
    return true;
}

const char *eni_each_part(const char *text, const char *(*take)(void *user, char *who, const char *what),
                          void *user, const char *expected)
{
    char part[96];
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ";");
        if (!cut(at, length, part, sizeof part)) return expected;
        char *equals = strchr(part, '=');
        if (equals != NULL) *equals++ = '\0';
        const char *why = take(user, equals != NULL ? part : NULL, equals != NULL ? equals : part);
        at += length;
        if (why != NULL || *at == '\0') return why;
    }
}

bool eni_parse_amount(const char *text, int64_t *amount_out)
{
    enum { MOST_EPOCHS = 1000000000 };
    int64_t n;
    const size_t length = strspn(text, "0123456789");
    const char *rest = text + length;
    const bool is_epochs = strcasecmp(rest, "epochs") == 0 || strcasecmp(rest, "epoch") == 0;
    if ((*rest != '\0' && !is_epochs) || !whole(text, length, &n)) return false;
    if (is_epochs && n > MOST_EPOCHS) return false;
    *amount_out = is_epochs ? -n : n;
    return true;
}

int eni_parse_amounts(const char *text, int64_t amounts_out[ENI_AMOUNTS_MAX])
{
    char part[32];
    int n = 0;
    for (bool more = true; more; n++) {
        const size_t length = strcspn(text, ",+");
        if (n == ENI_AMOUNTS_MAX || !cut(text, length, part, sizeof part)) return 0;
        if (!eni_parse_amount(part, &amounts_out[n]) || amounts_out[n] == 0) return 0;
        const int64_t last = n > 0 ? amounts_out[n - 1] : 0, now = amounts_out[n];
        if (n > 0 && (last > 0) == (now > 0) && llabs(last) >= llabs(now)) return 0;
        more = text[length] != '\0';
        text += length + more;
    }
    return n;
}

uint64_t eni_amount_samples(int64_t amount, uint64_t epoch_samples)
{
    return amount >= 0 ? (uint64_t)amount : (uint64_t)-amount * epoch_samples;
}

void eni_format_amount(int64_t amount, char *text_out, size_t bytes)
{
    snprintf(text_out, bytes, "%lld%s", (long long)llabs(amount),
             amount == -1 ? "epoch"
             : amount < 0 ? "epochs"
                          : "");
}

void eni_format_duration(int64_t ns, char *text_out, size_t bytes)
{
    static const struct {
        int64_t ns;
        const char *name;
    } whole[] = {{1000000000, "s"}, {1000000, "ms"}, {1000, "us"}, {1, "ns"}};
    int i = 0;
    while (ns % whole[i].ns != 0)
        i++;
    snprintf(text_out, bytes, "%lld%s", (long long)(ns / whole[i].ns), whole[i].name);
}

/* One part of --net, "rate:.." or "delay:..", `length` characters; each may come once. */
static bool net_part(const char *part, size_t length, uint64_t *rate, int64_t *delay)
{
    char text[64];
    if (!cut(part, length, text, sizeof text)) return false;
    if (strncmp(text, "rate:", 5) == 0) return *rate == 0 && eni_parse_rate(text + 5, rate);
    if (strncmp(text, "delay:", 6) != 0 || *delay >= 0 || !eni_parse_duration(text + 6, delay)) return false;
    return *delay == 0 ||
           !isdigit((unsigned char)text[length - 1]); /* 5 would mean seconds, a likely mistake */
}

bool eni_net_parse(const char *text, uint64_t *bytes_per_s_out, int64_t *delay_ns_out)
{
    uint64_t rate = 0;
    int64_t delay = -1;
    bool more = strcmp(text, "none") != 0;
    for (const char *part = text; more;) {
        size_t length = strcspn(part, ",");
        if (!net_part(part, length, &rate, &delay)) return false;
        more = part[length] == ',';
        part += length + 1;
    }
    *bytes_per_s_out = rate;
    *delay_ns_out = delay < 0 ? 0 : delay;
    return true;
}

bool eni_visit_parse(const char *text, int64_t *rank_out, int64_t *at_ns_out)
{
    const size_t length = strcspn(text, "@");
    return text[length] != '\0' && whole(text, length, rank_out) && *rank_out >= 1 &&
           eni_parse_duration(text + length + 1, at_ns_out) && *at_ns_out > 0;
}

bool eni_straggler_parse(const char *text, int64_t *rank_out, double *factor_out)
{
    int64_t rank;
    double factor;
    const char *colon = strchr(text, ':');
    if (colon == NULL || !whole(text, (size_t)(colon - text), &rank) || rank < 0 || rank > 65535)
        return false;
    if (!eni_parse_real(colon + 1, &factor) || !(factor >= 1 && factor <= 1000)) return false;
    *rank_out = rank;
    *factor_out = factor;
    return true;
}

bool eni_bn_stats_parse(const char *text, bool *is_mean_out, uint64_t *recompute_out)
{
    static const char again[] = "recompute:";
    int64_t n = 0;
    *is_mean_out = strcmp(text, "mean") == 0;
    const bool is_again = strncmp(text, again, sizeof again - 1) == 0;
    if (is_again && (!eni_parse_i64(text + sizeof again - 1, &n) || n < 1 || n > INT64_C(1) << 32))
        return false;
    *recompute_out = (uint64_t)n;
    return is_again || *is_mean_out || strcmp(text, "rank0") == 0;
}

/* An integer in [least, ENI_SIDE_MAX] at the start of the text; NULL if malformed. */
static const char *side(const char *text, int least, int *side_out)
{
    int64_t value;
    const size_t length = strspn(text, "0123456789");
    if (!whole(text, length, &value) || value < least || value > ENI_SIDE_MAX) return NULL;
    *side_out = (int)value;
    return text + length;
}

bool eni_augment_parse(const char *text, eni_transform *t)
{
    t->crop = t->pad = 0;
    t->has_flip = false;
    if (strcmp(text, "none") == 0) return true;
    for (bool is_more = true; is_more; text++) {
        if (strncmp(text, "crop:", 5) == 0 && t->crop == 0) {
            text = side(text + 5, 1, &t->crop);
            if (text != NULL && *text == ':') text = side(text + 1, 0, &t->pad);
        } else if (strncmp(text, "flip", 4) == 0 && !t->has_flip) {
            t->has_flip = true;
            text += 4;
        } else {
            return false;
        }
        if (text == NULL || (*text != ',' && *text != '\0')) return false;
        is_more = *text == ',';
    }
    return true;
}

/* Parses comma-separated numbers in text[0 .. length) and returns their count; 0 if malformed. */
static int numbers(const char *text, size_t length, float *values_out)
{
    char one[32];
    double value;
    for (int n = 0; n < ENI_CHANNELS; n++) {
        const char *comma = memchr(text, ',', length);
        const size_t bytes = comma == NULL ? length : (size_t)(comma - text);
        if (!cut(text, bytes, one, sizeof one) || !eni_parse_real(one, &value)) return 0;
        values_out[n] = (float)value;
        if (comma == NULL) return n + 1;
        text += bytes + 1, length -= bytes + 1;
    }
    return 0;
}

bool eni_normalize_parse(const char *text, eni_transform *t)
{
    const char *colon = strchr(text, ':');
    if (colon == NULL) return false;
    t->nchannels = numbers(text, (size_t)(colon - text), t->mean);
    if (t->nchannels == 0 || numbers(colon + 1, strlen(colon + 1), t->deviation) != t->nchannels)
        return false;
    for (int c = 0; c < t->nchannels; c++)
        if (!(t->deviation[c] > 0) || !isfinite(t->deviation[c]) || !isfinite(t->mean[c])) return false;
    return true;
}

bool eni_primary_parse(const char *text, char setting_out[32], int64_t *a_out, int64_t *b_out)
{
    const char *colon = strchr(text, ':'), *last = strrchr(text, ':');
    if (colon == NULL || last == colon || colon == text) return false;
    if (!whole(colon + 1, (size_t)(last - colon - 1), a_out) || !eni_parse_i64(last + 1, b_out)) return false;
    if (*a_out < 1 || *b_out < 1 || *a_out == *b_out) return false;
    if (!cut(text, (size_t)(colon - text), setting_out, 32)) return false;
    --*a_out, --*b_out;
    return true;
}

int eni_tune_parse(const char *text, double values_out[ENI_TUNE_MAX])
{
    char part[32];
    int n = 0;
    if (strncmp(text, ENI_TUNED "=", sizeof ENI_TUNED) != 0) return 0;
    text += sizeof ENI_TUNED;
    for (bool more = true; more; n++) {
        const size_t length = strcspn(text, ",");
        if (n == ENI_TUNE_MAX || !cut(text, length, part, sizeof part)) return 0;
        if (!eni_parse_real(part, &values_out[n]) || values_out[n] <= (n > 0 ? values_out[n - 1] : 0))
            return 0;
        more = text[length] != '\0';
        text += length + more;
    }
    return n > 1 ? n : 0;
}

size_t eni_arm_name(const char *text)
{
    const size_t length = strcspn(text, "=:,/");
    return text[length] == '=' ? length : 0;
}
