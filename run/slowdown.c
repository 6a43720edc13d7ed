/* slowdown.c - stragglers in virtual time (slowdown.h). */
#include "run/slowdown.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "run/units.h"

static const char EXPECTED[] =
    "RANKS:FACTOR, transient:FACTOR:PROBABILITY:STEPS or rotating:FACTOR:STEPS, the last two also as "
    "RANKS=.., "
    "with a factor of 1 to 1000 and 1 to 1000 steps, such as 1:3, 0-9:3 or transient:4:0.05:20";

/* "4:0.05:20": numbers separated by colons; their count, at most 3, or 0. */
static int numbers(const char *text, double value_out[3])
{
    char one[32];
    int n = 0;
    for (bool is_more = true; is_more; n++) {
        const size_t length = strcspn(text, ":");
        if (n == 3 || length >= sizeof one) return 0;
        snprintf(one, sizeof one, "%.*s", (int)length, text);
        if (!eni_parse_real(one, &value_out[n])) return 0;
        is_more = text[length] == ':';
        text += length + is_more;
    }
    return n;
}

/* The kind that `text` begins with, and where its numbers begin. */
static eni_slowdown_kind kind_of(const char *text, const char **numbers_out)
{
    static const char *const kinds[] = {"", "transient:", "rotating:"};
    int kind = ENI_SLOW_ROTATING;
    while (kind > 0 && strncmp(text, kinds[kind], strlen(kinds[kind])) != 0)
        kind--;
    *numbers_out = text + strlen(kinds[kind]);
    return (eni_slowdown_kind)kind;
}

const char *eni_slowdown_read(const char *text, eni_slowdown *out)
{
    static const int most[] = {1, 3, 2};
    char ranks[32];
    double value[3];
    const char *equals = strchr(text, '='), *rest = equals != NULL ? equals + 1 : text;
    eni_slowdown s = {.kind = kind_of(rest, &rest), .hi = ENI_SLOW_ALL};
    if (equals != NULL && s.kind == ENI_SLOW_ALWAYS) return EXPECTED;
    if (equals != NULL || s.kind == ENI_SLOW_ALWAYS) {
        const size_t length = strcspn(text, equals != NULL ? "=" : ":");
        if (length >= sizeof ranks || text[length] == '\0') return EXPECTED;
        snprintf(ranks, sizeof ranks, "%.*s", (int)length, text);
        if (!eni_parse_range(ranks, &s.lo, &s.hi)) return EXPECTED;
        if (equals == NULL) rest = text + length + 1;
    }
    const int n = numbers(rest, value);
    if (n != most[s.kind] || !(value[0] >= 1 && value[0] <= 1000)) return EXPECTED;
    if (n == 3 && !(value[1] >= 0 && value[1] <= 1)) return EXPECTED;
    if (n > 1 && !(value[n - 1] >= 1 && value[n - 1] <= ENI_SLOW_STEPS && fmod(value[n - 1], 1) == 0))
        return EXPECTED;
    s.factor = value[0];
    s.chance = n == 3 ? value[1] : 0;
    s.steps = n > 1 ? (uint64_t)value[n - 1] : 0;
    *out = s;
    return NULL;
}

static bool is_slow(const eni_slowdown *s, const eni_rng_key *key)
{
    const uint64_t step = key->step;
    if (s->kind == ENI_SLOW_ROTATING)
        return step / s->steps % (uint64_t)(s->hi - s->lo + 1) == key->rank - (uint64_t)s->lo;
    for (uint64_t ago = 0; s->kind == ENI_SLOW_TRANSIENT && ago < s->steps && ago <= step; ago++) {
        const eni_rng_key then = {key->seed, key->purpose, key->rank, step - ago};
        if (eni_rng_unit(&then, 2) < s->chance) return true;
    }
    return s->kind == ENI_SLOW_ALWAYS;
}

double eni_slowdown_factor(const eni_slowdown *s, const eni_rng_key *key)
{
    const bool is_its = (int64_t)key->rank >= s->lo && (int64_t)key->rank <= s->hi;
    return is_its && is_slow(s, key) ? s->factor : 1;
}

void eni_slowdown_text(const eni_slowdown *s, char *text_out, size_t bytes)
{
    const unsigned long long steps = s->steps;
    if (s->kind == ENI_SLOW_TRANSIENT)
        snprintf(text_out, bytes, "%g times as slow for %llu steps, begun with probability %g in each",
                 s->factor, steps, s->chance);
    else if (s->kind == ENI_SLOW_ROTATING)
        snprintf(text_out, bytes, "%g times as slow in turn, each for %llu steps", s->factor, steps);
    else
        snprintf(text_out, bytes, "%g times as slow", s->factor);
}
