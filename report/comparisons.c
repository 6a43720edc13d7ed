/* comparisons.c - exact signed ranks, Holm's correction over all comparisons, and how many seeds they need. */
#include "report/comparisons.h"

#include <math.h>

#include "core/memory.h"
#include "report/stats.h"

/* ---- the test ------------------------------------------------------------------------------------------ */

/* How much sooner a is: log(b / a). Infinite for a miss and a time of 0; 0 for two misses; NAN: no pair. */
static double lead(double a, double b)
{
    if (isnan(a) || isnan(b)) return NAN;
    return a < b || a > b ? log(b) - log(a) : 0;
}

/* The probability that a sum of ranks, each included or not by a coin toss, is at least `sum`. Ranks are
 * doubled, so that mean ranks of ties are whole. */
static double chance_of_sum(const size_t *ranks, size_t n, size_t sum)
{
    double chance[ENI_COMPARISONS_SEEDS * (ENI_COMPARISONS_SEEDS + 1) + 1];
    size_t most = 0;
    chance[0] = 1;
    for (size_t i = 0; i < n; i++) {
        for (size_t s = 0; s < ranks[i]; s++)
            chance[++most] = 0;
        for (size_t s = most + 1; s-- > ranks[i];)
            chance[s] = (chance[s] + chance[s - ranks[i]]) / 2;
        for (size_t s = 0; s < ranks[i]; s++)
            chance[s] /= 2;
    }
    double tail = 0;
    for (size_t s = most + 1; s-- > sum;)
        tail += chance[s];
    return tail;
}

/* The p value of n leads, without NAN. */
static double signed_ranks(const double *leads, size_t n, int *sign_out)
{
    size_t ranks[ENI_COMPARISONS_SEEDS], k = 0, for_a = 0, for_b = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(fabs(leads[i]) > 0)) continue;
        size_t below = 0, equal = 0;
        for (size_t j = 0; j < n; j++) {
            below += fabs(leads[j]) < fabs(leads[i]);
            equal += !(fabs(leads[j]) < fabs(leads[i])) && !(fabs(leads[j]) > fabs(leads[i]));
        }
        ranks[k] = 2 * below + equal + 1; /* twice the mean of below + 1 .. below + equal */
        *(leads[i] > 0 ? &for_a : &for_b) += ranks[k++];
    }
    if (sign_out != NULL) *sign_out = (for_a > for_b) - (for_a < for_b);
    if (for_a == for_b) return 1;
    return fmin(1, 2 * chance_of_sum(ranks, k, for_a > for_b ? for_a : for_b));
}

static size_t find_leads(const double *a, const double *b, size_t n, double leads_out[ENI_COMPARISONS_SEEDS])
{
    size_t used = 0;
    for (size_t i = 0; i < n && used < ENI_COMPARISONS_SEEDS; i++) {
        double value = lead(a[i], b[i]);
        if (!isnan(value)) leads_out[used++] = value;
    }
    return used;
}

double eni_comparisons_p(const double *a, const double *b, size_t n, int *sign_out)
{
    double leads[ENI_COMPARISONS_SEEDS];
    return signed_ranks(leads, find_leads(a, b, n, leads), sign_out);
}

double eni_comparisons_least(const double *a, const double *b, size_t n, double level)
{
    double leads[ENI_COMPARISONS_SEEDS], moved[ENI_COMPARISONS_SEEDS], widest = 0, least = 0;
    for (size_t i = 0; i < n; i++) /* two misses are a tie, but hide an effect all the same */
        if (isinf(a[i]) || isinf(b[i])) return NAN;
    n = find_leads(a, b, n, leads);
    if (2 * pow(0.5, (double)n) > level) return NAN;
    double median = eni_stats_median(leads, n);
    for (size_t i = 0; i < n; i++) {
        if (isinf(leads[i])) return NAN;
        leads[i] -= median;
        widest = fmax(widest, fabs(leads[i]));
    }
    for (int side = -1; side <= 1; side += 2) { /* the arm with the effect */
        double low = 0, high = widest + 1e-9;   /* at `high` all signs are equal */
        for (int step = 0; step < 40; step++) {
            const double middle = (low + high) / 2;
            int sign;
            for (size_t i = 0; i < n; i++)
                moved[i] = leads[i] + side * middle;
            *(signed_ranks(moved, n, &sign) <= level && sign == side ? &high : &low) = middle;
        }
        least = fmax(least, high);
    }
    return exp(least);
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

size_t eni_comparisons_seeds(size_t m)
{
    size_t n = m > 0;
    while (n > 0 && pow(0.5, (double)n - 1) * (double)m > ENI_COMPARISONS_ALPHA)
        n++;
    return n;
}

size_t eni_comparisons_count(size_t nsettings, size_t narms)
{
    return narms > 1 ? nsettings * (narms * (narms - 1) / 2) : 0;
}

size_t eni_comparisons_own_seeds(const eni_comparison *comparisons, size_t n, size_t setting)
{
    size_t own = 0;
    for (size_t i = 0; i < n; i++)
        own += comparisons[i].setting == setting && !comparisons[i].is_primary && !comparisons[i].is_apart;
    return eni_comparisons_seeds(own);
}

void eni_comparisons_plan(const size_t *seeds, size_t nsettings, size_t narms, size_t baseline,
                          const eni_primary *primary, eni_comparison *claims_out)
{
    const size_t each = eni_comparisons_count(1, narms);
    for (size_t setting = 0; setting < nsettings; setting++) {
        eni_comparison *comparison = claims_out + setting * each;
        for (size_t a = 0; a < narms; a++)
            for (size_t b = a + 1; b < narms; b++) {
                const bool is_primary = primary != NULL && primary->setting == setting &&
                                        primary->a + primary->b == a + b &&
                                        (primary->a == a || primary->b == a);
                const bool is_apart =
                    baseline != ENI_COMPARISONS_ALL && a != baseline && b != baseline && !is_primary;
                *comparison++ = (eni_comparison){.setting = setting,
                                                 .a = a,
                                                 .b = b,
                                                 .seeds = seeds[setting],
                                                 .is_primary = is_primary,
                                                 .is_apart = is_apart};
            }
        comparison -= each;
        const bool is_enough = seeds[setting] >= eni_comparisons_own_seeds(comparison, each, setting);
        for (size_t i = 0; i < each; i++)
            comparison[i].is_planned = comparison[i].is_primary || (!comparison[i].is_apart && is_enough);
    }
}

/* Whether it is one of Holm's m. */
static bool is_among(const eni_comparison *comparison)
{
    return comparison->is_planned && !comparison->is_primary;
}

size_t eni_comparisons_among(const eni_comparison *comparisons, size_t n)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        m += is_among(&comparisons[i]);
    return m;
}

size_t eni_comparisons_need(const eni_comparison *comparisons, size_t n)
{
    return eni_comparisons_seeds(eni_comparisons_among(comparisons, n));
}

/* "3 comparisons need 7 seeds" */
static void write_need(const eni_comparison *comparisons, size_t n, char *text, size_t size)
{
    const size_t m = eni_comparisons_among(comparisons, n), alone = eni_comparisons_seeds(1);
    bool has_primary = false;
    for (size_t i = 0; i < n; i++)
        has_primary = has_primary || comparisons[i].is_primary;
    if (m == 0 && !has_primary) eni_text_add(text, size, "Too few seeds to claim anything");
    if (has_primary) eni_text_add(text, size, "The primary comparison needs %zu seeds", alone);
    if (m > 0)
        eni_text_add(text, size, "%s%zu %scomparison%s need%s %zu seeds", has_primary ? ", then " : "", m,
                     has_primary ? "other " : "", m > 1 ? "s" : "", m > 1 ? "" : "s",
                     eni_comparisons_seeds(m));
}

/* "even has 7", or "slow has 3 of 7 (descriptive)": the setting of the first of n comparisons. */
static void write_setting(const eni_comparison *comparisons, size_t n, const char *name, char *text,
                          size_t size)
{
    const size_t among = eni_comparisons_among(comparisons, n),
                 own = eni_comparisons_own_seeds(comparisons, n, comparisons->setting);
    eni_text_add(text, size, "%s has %zu", name, comparisons->seeds);
    if (among == 0 && own > 0) eni_text_add(text, size, " of %zu (descriptive)", own);
}

void eni_comparisons_text(const eni_comparison *comparisons, size_t n, const char *const *settings,
                          char *text_out, size_t size)
{
    text_out[0] = 0;
    if (n == 0) return;
    write_need(comparisons, n, text_out, size);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && comparisons[end].setting == comparisons[i].setting;)
            end++;
        eni_text_add(text_out, size, i == 0 ? ": " : ", ");
        write_setting(&comparisons[i], end - i, settings[comparisons[i].setting], text_out, size);
    }
    eni_text_add(text_out, size, ".");
}

/* ---- the verdicts -------------------------------------------------------------------------------------- */

/* Holm's adjusted p values of the m: a p value times the number of those that are not smaller, and at least
 * the adjusted value of each smaller one. */
static void adjust(eni_comparison *comparisons, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        comparisons[i].adjusted = comparisons[i].is_primary ? comparisons[i].p : NAN;
        if (!is_among(&comparisons[i])) continue;
        size_t left = 0;
        for (size_t j = 0; j < n; j++)
            left += is_among(&comparisons[j]) && comparisons[j].p >= comparisons[i].p;
        comparisons[i].adjusted = fmin(1, (double)left * comparisons[i].p);
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (is_among(&comparisons[i]) && is_among(&comparisons[j]) && comparisons[j].p < comparisons[i].p)
                comparisons[i].adjusted = fmax(comparisons[i].adjusted, comparisons[j].adjusted);
}

/* The finding from the numbers alone, if nothing else prevents a claim. */
static int find(const eni_comparison *comparison, size_t most_seeds, size_t needed, bool is_gate_open)
{
    size_t own = comparison->is_primary ? comparison->seeds : most_seeds;
    if (comparison->is_apart) return comparison->bar != 0 ? comparison->bar : ENI_COMPARISON_EXPLORATORY;
    if (!comparison->is_planned || own < needed) return ENI_COMPARISON_FEW;
    if (comparison->bar != 0) return comparison->bar;
    if (!is_gate_open && !comparison->is_primary) return ENI_COMPARISON_EXPLORATORY;
    return comparison->adjusted <= ENI_COMPARISONS_ALPHA && comparison->sign != 0 ? ENI_COMPARISON_YES
                                                                                  : ENI_COMPARISON_NOT_SHOWN;
}

void eni_comparisons_judge(eni_comparison *comparisons, size_t n, const double *times, size_t narms,
                           size_t nseeds)
{
    size_t most = 0; /* seeds of a setting */
    for (size_t i = 0; i < n; i++) {
        eni_comparison *comparison = &comparisons[i];
        const double *a = &times[(comparison->setting * narms + comparison->a) * nseeds];
        const double *b = &times[(comparison->setting * narms + comparison->b) * nseeds];
        comparison->n = comparison->sooner = comparison->later = 0;
        for (size_t s = 0; s < nseeds; s++) {
            comparison->n += !isnan(lead(a[s], b[s]));
            comparison->sooner += a[s] < b[s];
            comparison->later += a[s] > b[s];
        }
        comparison->p = eni_comparisons_p(a, b, nseeds, &comparison->sign);
        if (is_among(comparison) && comparison->seeds > most) most = comparison->seeds;
    }
    adjust(comparisons, n);
    const size_t needed = eni_comparisons_need(comparisons, n);
    bool is_gate_open = true;
    for (size_t i = 0; i < n; i++) {
        if (!comparisons[i].is_primary) continue;
        comparisons[i].found = find(&comparisons[i], most, eni_comparisons_seeds(1), true);
        is_gate_open = comparisons[i].found == ENI_COMPARISON_YES;
    }
    for (size_t i = 0; i < n; i++)
        if (!comparisons[i].is_primary)
            comparisons[i].found = find(&comparisons[i], most, needed, is_gate_open);
}
