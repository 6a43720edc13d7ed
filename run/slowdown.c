/* slowdown.c - stragglers in virtual time (slowdown.h). */
#include "run/slowdown.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "run/units.h"

static const char EXPECTED[] =
    "RANKS:FACTOR, transient:FACTOR:PROBABILITY:STEPS or rotating:FACTOR:STEPS, the last two also as "
    "RANKS=.., with a factor of 1 to 1000 and 1 to 1000 steps, such as 1:3, 0-9:3 or transient:4:0.05:20";

const char *eni_slowdown_read(const char *text, eni_slowdown *out)
{
    static const char *const names[] = {"", "transient", "rotating"};
    static const int nvalues[] = {1, 3, 2};
    char word[96], *rest = word;
    double value[3];
    int n = 0;
    eni_slowdown s = {.hi = ENI_SLOW_ALL};
    if (snprintf(word, sizeof word, "%s", text) >= (int)sizeof word) return EXPECTED;
    const char *ranks = strchr(word, '=') != NULL ? strsep(&rest, "=") : NULL, *name = strsep(&rest, ":");
    for (int kind = ENI_SLOW_TRANSIENT; kind <= ENI_SLOW_ROTATING; kind++)
        if (strcmp(name, names[kind]) == 0) s.kind = (eni_slowdown_kind)kind;
    if (s.kind == ENI_SLOW_ALWAYS && ranks != NULL) return EXPECTED;
    if (s.kind == ENI_SLOW_ALWAYS) ranks = name;
    if (ranks != NULL && !eni_parse_range(ranks, &s.lo, &s.hi)) return EXPECTED;
    for (const char *number; (number = strsep(&rest, ":")) != NULL; n++)
        if (n == 3 || !eni_parse_real(number, &value[n])) return EXPECTED;
    if (n != nvalues[s.kind] || !(value[0] >= 1 && value[0] <= 1000)) return EXPECTED;
    if (n == 3 && !(value[1] >= 0 && value[1] <= 1)) return EXPECTED;
    if (n > 1 && !(value[n - 1] >= 1 && value[n - 1] <= ENI_SLOW_STEPS && fmod(value[n - 1], 1) == 0))
        return EXPECTED;
    s.factor = value[0];
    s.chance = n == 3 ? value[1] : 0;
    s.steps = n > 1 ? (uint64_t)value[n - 1] : 0;
    *out = s;
    return NULL;
}

static bool is_slow(const eni_slowdown *s, const eni_rng_key *key, uint64_t *until)
{
    const uint64_t step = key->step;
    if (s->kind == ENI_SLOW_ROTATING)
        return step / s->steps % (uint64_t)(s->hi - s->lo + 1) == key->rank - (uint64_t)s->lo;
    if (s->kind == ENI_SLOW_ALWAYS) return true;
    if (step == 0) *until = 0;
    if (eni_rng_unit(key, 2) < s->chance) *until = step + s->steps;
    return step < *until;
}

double eni_slowdown_factor(const eni_slowdown *s, const eni_rng_key *key, uint64_t *until)
{
    const bool is_its = (int64_t)key->rank >= s->lo && (int64_t)key->rank <= s->hi;
    return is_its && is_slow(s, key, until) ? s->factor : 1;
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
