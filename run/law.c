/* law.c - distributions of compute times (law.h). */
#include "run/law.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "run/units.h"

static const char EXPECTED[] =
    "fixed:10ms, exp:10ms, lognormal:10ms,0.5, pareto:10ms,2.5 or shifted-exp:10ms,6ms, by ranks as "
    "0-3=exp:10ms;4=fixed:40ms";

static const struct {
    const char *name;
    eni_law_kind kind;
} laws[] = {{"fixed", ENI_LAW_FIXED},
            {"exp", ENI_LAW_EXPONENTIAL},
            {"lognormal", ENI_LAW_LOGNORMAL},
            {"pareto", ENI_LAW_PARETO},
            {"shifted-exp", ENI_LAW_SHIFTED_EXPONENTIAL}};

static bool read_spread(const char *text, eni_law *law)
{
    char *end;
    int64_t least;
    switch (law->kind) {
    case ENI_LAW_FIXED:
    case ENI_LAW_EXPONENTIAL: return text == NULL;
    case ENI_LAW_SHIFTED_EXPONENTIAL:
        if (text == NULL || !eni_parse_duration(text, &least) || (double)least > law->mean_ns) return false;
        law->spread = (double)least;
        return true;
    default:
        if (text == NULL) return false;
        law->spread = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(law->spread)) return false;
        return law->kind == ENI_LAW_PARETO ? law->spread > 1 : law->spread >= 0 && law->spread <= 10;
    }
}

/* "lognormal:10ms,0.5". */
static bool read_law(const char *text, eni_law *law_out)
{
    char word[64];
    int64_t mean;
    if (snprintf(word, sizeof word, "%s", text) >= (int)sizeof word) return false;
    char *colon = strchr(word, ':');
    if (colon == NULL) return false;
    *colon = '\0';
    char *comma = strchr(colon + 1, ',');
    if (comma != NULL) *comma++ = '\0';
    if (!eni_parse_duration(colon + 1, &mean) || mean < 0) return false;
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++) {
        if (strcmp(word, laws[i].name) != 0) continue;
        *law_out = (eni_law){.kind = laws[i].kind, .mean_ns = (double)mean};
        return read_spread(comma, law_out);
    }
    return false;
}

/* "0-3" or "4", which is cut up. */
static bool read_ranks(char *text, int32_t *lo_out, int32_t *hi_out)
{
    int64_t lo, hi;
    char *dash = strchr(text, '-');
    if (dash != NULL) *dash++ = '\0';
    if (!eni_parse_i64(text, &lo) || !eni_parse_i64(dash != NULL ? dash : text, &hi)) return false;
    if (lo < 0 || hi < lo || hi > INT32_MAX) return false;
    *lo_out = (int32_t)lo;
    *hi_out = (int32_t)hi;
    return true;
}

/* Calls take(user, lo, hi, law) for each part; lo -1: all ranks. NULL, or the expected form. */
typedef const char *(*take_part)(void *user, int32_t lo, int32_t hi, const eni_law *law);

static const char *each_part(const char *text, take_part take, void *user)
{
    char part[96];
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ";");
        int32_t lo = -1, hi = -1;
        eni_law law;
        if (n >= sizeof part) return EXPECTED;
        snprintf(part, sizeof part, "%.*s", (int)n, at);
        char *equals = strchr(part, '=');
        if (equals != NULL) *equals++ = '\0';
        if ((equals != NULL && !read_ranks(part, &lo, &hi)) ||
            !read_law(equals != NULL ? equals : part, &law))
            return EXPECTED;
        if (equals == NULL && at != text) return EXPECTED; /* a law without ranks must be the only one */
        const char *why = take != NULL ? take(user, lo, hi, &law) : NULL;
        if (why != NULL) return why;
        at += n;
        if (*at == '\0') return NULL;
        if (equals == NULL) return EXPECTED;
    }
}

const char *eni_law_check(const char *text)
{
    return each_part(text, NULL, NULL);
}

typedef struct law_reader {
    eni_law *laws;
    bool *is_set;
    int32_t nranks;
    eni_law last;
} law_reader;

static const char *take(void *user, int32_t lo, int32_t hi, const eni_law *law)
{
    law_reader *r = user;
    r->last = *law;
    if (lo >= 0 && hi >= r->nranks) return "ranks below the number of workers (-n)";
    for (int32_t i = lo; lo >= 0 && i <= hi; i++) {
        if (r->is_set[i]) return "each rank at most once";
        r->laws[i] = *law;
        r->is_set[i] = true;
    }
    return NULL;
}

en_status eni_law_read(const char *text, int32_t nranks, eni_law *laws_out)
{
    law_reader r = {.laws = laws_out, .is_set = calloc((size_t)nranks, sizeof(bool)), .nranks = nranks};
    if (r.is_set == NULL) return eni_fail(EN_ENOMEM, "law", "out of memory");
    const char *why = each_part(text, take, &r);
    for (int32_t i = 0; i < nranks; i++)
        if (!r.is_set[i]) laws_out[i] = r.last;
    free(r.is_set);
    return why == NULL ? EN_OK : eni_fail(EN_EINVAL, "law", "--compute=%s: give %s", text, why);
}

/* Draws a time with mean 1. */
static double noise(const eni_law *law, const eni_rng_key *key)
{
    const double u = 1 - eni_rng_unit(key, 0); /* in (0, 1] */
    switch (law->kind) {
    case ENI_LAW_EXPONENTIAL: return -log(u);
    case ENI_LAW_LOGNORMAL: { /* Box & Muller'58 */
        const double normal = sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * eni_rng_unit(key, 1));
        return exp(law->spread * normal - law->spread * law->spread / 2);
    }
    case ENI_LAW_PARETO: return (law->spread - 1) / law->spread / pow(u, 1 / law->spread);
    default: return 1;
    }
}

double eni_law_draw(const eni_law *law, const eni_rng_key *key)
{
    switch (law->kind) {
    case ENI_LAW_SAMPLES: return law->samples[eni_rng_below(key, 0, law->nsamples)];
    case ENI_LAW_SHIFTED_EXPONENTIAL:
        return law->spread - (law->mean_ns - law->spread) * log(1 - eni_rng_unit(key, 0));
    default: return law->mean_ns * noise(law, key);
    }
}
