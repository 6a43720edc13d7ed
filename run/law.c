/* law.c - distributions of compute times (law.h). */
#include "run/law.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "run/units.h"

static const char EXPECTED[] =
    "fixed:10ms, exp:10ms, lognormal:10ms,0.5, pareto:10ms,2.5 or shifted-exp:10ms,6ms, by ranks as "
    "0-3=exp:10ms;4=fixed:40ms";

static const struct {
    const char *name;
    eni_law_kind kind;
    const char *form;
} laws[] = {
    {"fixed", ENI_LAW_FIXED, "fixed:TIME with a time of 0 or more, such as fixed:10ms"},
    {"exp", ENI_LAW_EXPONENTIAL, "exp:MEAN with a mean of 0 or more, such as exp:10ms"},
    {"lognormal", ENI_LAW_LOGNORMAL,
     "lognormal:MEAN,SIGMA with a mean of 0 or more and a sigma of 0 to 10, such as lognormal:10ms,0.5"},
    {"pareto", ENI_LAW_PARETO,
     "pareto:MEAN,EXPONENT with a mean of 0 or more and an exponent above 1, such as pareto:10ms,2.5"},
    {"shifted-exp", ENI_LAW_SHIFTED_EXPONENTIAL,
     "shifted-exp:MEAN,LEAST with a least time from 0 to the mean, such as shifted-exp:10ms,6ms"}};
enum { LAWS = sizeof laws / sizeof *laws };

static bool read_spread(const char *text, eni_law *law)
{
    int64_t least;
    switch (law->kind) {
    case ENI_LAW_FIXED:
    case ENI_LAW_EXPONENTIAL: return text == NULL;
    case ENI_LAW_SHIFTED_EXPONENTIAL:
        if (text == NULL || !eni_parse_duration(text, &least) || (double)least > law->mean_ns) return false;
        law->spread = (double)least;
        return true;
    default:
        if (text == NULL || !eni_parse_real(text, &law->spread)) return false;
        return law->kind == ENI_LAW_PARETO ? law->spread > 1 : law->spread >= 0 && law->spread <= 10;
    }
}

/* "lognormal:10ms,0.5". NULL, or the expected form. */
static const char *read_law(const char *text, eni_law *law_out)
{
    char word[64];
    int64_t mean;
    int near = -1;
    if (snprintf(word, sizeof word, "%s", text) >= (int)sizeof word) return EXPECTED;
    char *colon = word + strcspn(word, ":"), *comma = NULL;
    const bool has_mean = *colon != '\0';
    *colon = '\0';
    if (has_mean && (comma = strchr(colon + 1, ',')) != NULL) *comma++ = '\0';
    for (int i = 0; i < LAWS; i++) {
        if (eni_is_nearer(word, laws[i].name, near < 0 ? NULL : laws[near].name)) near = i;
        if (strcmp(word, laws[i].name) != 0) continue;
        *law_out = (eni_law){.kind = laws[i].kind};
        if (!has_mean || !eni_parse_duration(colon + 1, &mean)) return laws[i].form;
        law_out->mean_ns = (double)mean;
        return read_spread(comma, law_out) ? NULL : laws[i].form;
    }
    return near < 0 ? EXPECTED : laws[near].form;
}

/* Reads each part; without laws, checks only. */
typedef struct law_reader {
    const char *text;
    eni_law *laws, last;
    bool *is_set;
    int32_t n, twice; /* the first that is given twice, or -1 */
    bool is_beyond;   /* one of n and above */
} law_reader;

static const char *take(void *user, char *who, const char *what)
{
    law_reader *r = user;
    int32_t lo = 0, hi = r->n - 1;
    if (who == NULL ? strchr(r->text, ';') != NULL : !eni_parse_range(who, &lo, &hi)) return EXPECTED;
    const char *why = read_law(what, &r->last);
    if (why != NULL || r->laws == NULL) return why;
    r->is_beyond = hi >= r->n;
    for (int32_t i = lo; i <= hi && !r->is_beyond; i++) {
        if (r->is_set[i]) r->twice = i;
        r->laws[i] = r->last;
        r->is_set[i] = true;
    }
    return r->is_beyond || r->twice >= 0 ? "" : NULL;
}

const char *eni_law_check(const char *text)
{
    return eni_each_part(text, take, &(law_reader){.text = text}, EXPECTED);
}

en_status eni_law_read(const char *flag, const char *owner, const char *text, int32_t n, eni_law *laws_out)
{
    law_reader r = {
        .text = text, .laws = laws_out, .is_set = calloc((size_t)n, sizeof(bool)), .n = n, .twice = -1};
    if (r.is_set == NULL) return eni_fail(EN_ENOMEM, "law", "out of memory");
    const char *why = eni_each_part(text, take, &r, EXPECTED);
    for (int32_t i = 0; i < n; i++)
        if (!r.is_set[i]) laws_out[i] = r.last;
    free(r.is_set);
    if (r.is_beyond)
        return eni_fail(EN_EINVAL, "law", "%s=%s: there are %ss 0 to %d; give those, or more of them (%s)",
                        flag, text, owner, n - 1, strcmp(owner, "rank") == 0 ? "-n" : "--shards");
    if (r.twice >= 0)
        return eni_fail(EN_EINVAL, "law", "%s=%s: %s %d has two laws; give it one", flag, text, owner,
                        r.twice);
    return why == NULL ? EN_OK : eni_fail(EN_EINVAL, "law", "%s=%s: give %s", flag, text, why);
}

/* A time that ends in a unit: 20 would mean seconds, a likely mistake. */
static bool read_service(const char *text, int64_t *ns_out)
{
    const size_t length = strlen(text);
    return length > 0 && !isdigit((unsigned char)text[length - 1]) && eni_parse_duration(text, ns_out);
}

const char *eni_service_split(const char *text, char law_out[ENI_LAW_TEXT], double *ns_per_byte_out)
{
    static const char expected[] =
        "a law, a time, a time per MB, or a sum of both, such as exp:200us, 200us, "
        "1ms/MB or 200us+1ms/MB";
    char head[ENI_LAW_TEXT - 8];
    int64_t ns;
    if (snprintf(head, sizeof head, "%s", text) >= (int)sizeof head) return expected;
    char *plus = strchr(head, '+'), *unit = strstr(head, "/MB");
    *ns_per_byte_out = 0;
    law_out[0] = '\0';
    if (unit != NULL) {
        if (unit[3] != '\0') return expected;
        *unit = '\0';
        if (!read_service(plus != NULL ? plus + 1 : head, &ns)) return expected;
        *ns_per_byte_out = (double)ns / 1e6;
        if (plus == NULL) return NULL;
    }
    if (plus != NULL && unit == NULL) return expected;
    if (plus != NULL) *plus = '\0';
    const bool is_law = strchr(head, ':') != NULL;
    if (!is_law && !read_service(head, &ns)) return expected;
    snprintf(law_out, ENI_LAW_TEXT, "%s%s", is_law ? "" : "fixed:", head);
    return NULL;
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
    case ENI_LAW_TRACE: return law->samples[key->step % law->nsamples];
    case ENI_LAW_SHIFTED_EXPONENTIAL:
        return law->spread - (law->mean_ns - law->spread) * log(1 - eni_rng_unit(key, 0));
    default: return law->mean_ns * noise(law, key);
    }
}

void eni_law_text(const eni_law *law, char *text_out, size_t bytes)
{
    char time[32];
    if (law->nsamples > 0) {
        snprintf(text_out, bytes, "%llu times of %g ms on average, %s", (unsigned long long)law->nsamples,
                 law->mean_ns / 1e6, law->kind == ENI_LAW_TRACE ? "in order" : "at random");
        return;
    }
    eni_format_duration((int64_t)law->mean_ns, time, sizeof time);
    for (int i = 0; i < LAWS; i++)
        if (laws[i].kind == law->kind) snprintf(text_out, bytes, "%s:%s", laws[i].name, time);
    eni_format_duration((int64_t)law->spread, time, sizeof time);
    if (law->kind == ENI_LAW_SHIFTED_EXPONENTIAL) eni_text_add(text_out, bytes, ",%s", time);
    if (law->kind == ENI_LAW_LOGNORMAL || law->kind == ENI_LAW_PARETO)
        eni_text_add(text_out, bytes, ",%g", law->spread);
}
