/* law.h - how long a gradient or a server's answer takes: a distribution of times, and its text. Pure functions, apart from
 * logging.
 *
 *     fixed:10ms                  always 10 ms
 *     exp:10ms                    exponential: memoryless workers
 *     lognormal:10ms,0.5          its logarithm is normal with sigma 0.5
 *     pareto:10ms,2.5             heavy tail: P(t > x) falls as x^-2.5
 *     shifted-exp:10ms,6ms        at least 6 ms, the rest exponential (Lee et al. 2018)
 *     0-3=exp:10ms;4=fixed:40ms   by rank; the last one holds for the ranks that are not named
 *
 * The first number is always the mean. */
#ifndef RUN_LAW_H
#define RUN_LAW_H

#include <stddef.h>
#include <stdint.h>

#include "core/rng.h"
#include "entrain/status.h"

typedef enum eni_law_kind {
    ENI_LAW_FIXED,
    ENI_LAW_EXPONENTIAL,
    ENI_LAW_LOGNORMAL,
    ENI_LAW_PARETO,
    ENI_LAW_SHIFTED_EXPONENTIAL,
    ENI_LAW_SAMPLES, /* one of the given times, uniformly */
    ENI_LAW_TRACE    /* the given times in order, again from the first after the last */
} eni_law_kind;

typedef struct eni_law {
    eni_law_kind kind;
    double mean_ns; /* SAMPLES, TRACE: for eni_law_text only */
    double
        spread; /* LOGNORMAL: sigma; PARETO: the exponent, > 1; SHIFTED_EXPONENTIAL: the least time in ns */
    const double *samples; /* SAMPLES, TRACE: (nsamples) ns, borrowed */
    uint64_t nsamples;
} eni_law;

/* NULL if `text` has one of the forms above, else the expected form: of the law that it names, or whose name is nearest. */
const char *eni_law_check(const char *text);

/* The law of each of n ranks or servers (`owner`), as `flag` gives it. EN_EINVAL, logged: a form (eni_law_check), a number beyond
 * n or given twice. */
en_status eni_law_read(const char *flag, const char *owner, const char *text, int32_t n, eni_law *laws_out);

/* A time in ns, the same for the same key: takes indices 0 and 1 of the stream. TRACE: that of the key's step. */
double eni_law_draw(const eni_law *law, const eni_rng_key *key);

/* "lognormal:10ms,0.5", or a description of samples. */
void eni_law_text(const eni_law *law, char *text_out, size_t bytes);

/* The service time of a server, --server-time: "LAW", "TIME" (fixed), "TIME/MB", or "LAW+TIME/MB". Writes the law, ""
 * without one. NULL, or the expected form. */
enum { ENI_LAW_TEXT = 1024 };
const char *eni_service_split(const char *text, char law_out[ENI_LAW_TEXT], double *ns_per_byte_out);

#endif
