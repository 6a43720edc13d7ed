/* report_verdict.c - times to the target of each arm, their claims, their order, and the sentences. */
#include "report/report_verdict.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "report/table.h"

/* ---- what is claimed ----------------------------------------------------------------------------------- */

/* A target that is named when the times are known (`report --target`) can be chosen for what it shows. */
static bool has_planned_target(const eni_study *study)
{
    const json_t *planned = json_object_get(study->index, "target");
    return planned == NULL || fabs(json_number_value(planned) - study->target) < 1e-9;
}

/* What stands in the way of a claim about an arm, whatever its times are. */
static int bar_of(const eni_study *study, const eni_fairness *fairness, size_t setting, size_t arm)
{
    size_t complete = 0;
    bool is_busy = false;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
        complete += run->is_complete;
        is_busy = is_busy || run->outside > ENI_BUSY_SHARE;
    }
    if (complete < study->settings[setting].seeds) return ENI_CLAIM_FAILED;
    if (!fairness->is_time_comparable) return ENI_CLAIM_UNFAIR;
    if (is_busy) return ENI_CLAIM_BUSY;
    return has_planned_target(study) ? 0 : ENI_CLAIM_EXPLORATORY;
}

/* Of the first n seeds. */
static void fill_times(const eni_study *study, size_t setting, size_t arm, size_t n, double *times_out)
{
    for (size_t s = 0; s < n; s++) {
        const eni_run *run = eni_study_find(study, setting, arm, study->seeds[s]);
        times_out[s] = run == NULL ? NAN : eni_metric_reach_t(run);
    }
}

en_status eni_verdict_judge(const eni_study *study, const eni_fairness *fairness, eni_verdict *verdict_out)
{
    const size_t n = eni_claims_count(study->nsettings, study->narms);
    size_t seeds[ENI_MAX_SETTINGS];
    *verdict_out = (eni_verdict){.study = study, .n = n};
    verdict_out->claims = eni_alloc_array(n + 1, sizeof *verdict_out->claims);
    double *times = eni_alloc_array(study->nsettings * study->narms * study->nseeds + 1, sizeof *times);
    if (verdict_out->claims == NULL || times == NULL) {
        eni_free(times);
        eni_verdict_free(verdict_out);
        return EN_ENOMEM;
    }
    for (size_t c = 0; c < study->nsettings; c++) {
        seeds[c] = study->settings[c].seeds;
        for (size_t a = 0; a < study->narms; a++)
            fill_times(study, c, a, study->nseeds, &times[(c * study->narms + a) * study->nseeds]);
    }
    eni_claims_plan(seeds, study->nsettings, study->narms, study->has_primary ? &study->primary : NULL,
                    verdict_out->claims);
    for (size_t i = 0; i < n; i++) {
        eni_claim *claim = &verdict_out->claims[i];
        int a = bar_of(study, fairness, claim->setting, claim->a);
        int b = bar_of(study, fairness, claim->setting, claim->b);
        claim->bar = a == 0 || (b != 0 && b < a) ? b : a;
    }
    eni_claims_judge(verdict_out->claims, n, times, study->narms, study->nseeds);
    eni_free(times);
    return EN_OK;
}

void eni_verdict_free(eni_verdict *verdict)
{
    eni_free(verdict->claims);
    verdict->claims = NULL;
}

/* The comparison of two arms of a setting; NULL: a and b are the same. */
static const eni_claim *claim_between(const eni_verdict *verdict, size_t setting, size_t a, size_t b)
{
    for (size_t i = 0; i < verdict->n; i++) {
        const eni_claim *claim = &verdict->claims[i];
        if (claim->setting == setting && claim->a == (a < b ? a : b) && claim->b == (a < b ? b : a))
            return claim;
    }
    return NULL;
}

const char *eni_verdict_found(const eni_claim *claim)
{
    static const char *const names[] = {[ENI_CLAIM_FEW] = "too few seeds",
                                        [ENI_CLAIM_FAILED] = "not shown: runs failed",
                                        [ENI_CLAIM_UNFAIR] = "not shown: FAIL",
                                        [ENI_CLAIM_BUSY] = "not shown: busy",
                                        [ENI_CLAIM_EXPLORATORY] = "exploratory",
                                        [ENI_CLAIM_NOT_SHOWN] = "not shown",
                                        [ENI_CLAIM_YES] = "yes"};
    if (claim->n == 0) return claim->bar == ENI_CLAIM_FAILED ? names[ENI_CLAIM_FAILED] : "-";
    return names[claim->found];
}

double eni_verdict_least(const eni_verdict *verdict, const eni_claim *claim)
{
    const eni_study *study = verdict->study;
    double a[ENI_CLAIMS_SEEDS], b[ENI_CLAIMS_SEEDS];
    const size_t m = claim->is_primary ? 1 : eni_claims_among(verdict->claims, verdict->n);
    const size_t n = study->nseeds < ENI_CLAIMS_SEEDS ? study->nseeds : ENI_CLAIMS_SEEDS;
    if (!claim->is_planned) return NAN;
    fill_times(study, claim->setting, claim->a, n, a);
    fill_times(study, claim->setting, claim->b, n, b);
    return eni_claims_least(a, b, n, ENI_CLAIMS_ALPHA / (double)m);
}

/* ---- times as text ------------------------------------------------------------------------------------- */

void eni_verdict_seconds(double seconds, double last_t, char *text_out, size_t size)
{
    if (isnan(seconds))
        snprintf(text_out, size, "-");
    else if (isinf(seconds) && !(last_t > 0))
        snprintf(text_out, size, "never");
    else if (isinf(seconds))
        snprintf(text_out, size, last_t < 9.995 ? "> %.2g s" : "> %.0f s", last_t);
    else
        snprintf(text_out, size, seconds < 0.995 ? "%.2f s" : seconds < 99.95 ? "%.1f s" : "%.0f s", seconds);
}

static double censored_at(const eni_study *study, size_t setting, size_t arm)
{
    double least_t;
    eni_study_missed(study, setting, arm, &least_t);
    return least_t;
}

static bool has_wide_bracket(const eni_study *study, size_t setting, size_t arm)
{
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;)
        if (eni_study_bracket_is_wide(run)) return true;
    return false;
}

static double median_time(const eni_study *study, size_t setting, size_t arm)
{
    return eni_study_summary(study, setting, arm, eni_metric_reach_t).median;
}

void eni_verdict_time(const eni_study *study, size_t setting, size_t arm, char *text_out, size_t size)
{
    double median = median_time(study, setting, arm);
    bool is_about = isfinite(median) && has_wide_bracket(study, setting, arm);
    int used = snprintf(text_out, size, "%s", is_about ? "≈ " : "");
    if ((size_t)used < size)
        eni_verdict_seconds(median, censored_at(study, setting, arm), text_out + used, size - (size_t)used);
}

/* ---- the ranking --------------------------------------------------------------------------------------- */

typedef struct standing {
    size_t arm, misses;
    double time, accuracy;
} standing;

/* NAN: nothing is known, so last. */
static int by_number(double x, double y)
{
    if (isnan(x) || isnan(y)) return isnan(x) - isnan(y);
    return (x > y) - (x < y);
}

static int by_standing(const void *a, const void *b)
{
    const standing *x = a, *y = b;
    int order = by_number(x->time, y->time);
    if (order == 0) order = (x->misses > y->misses) - (x->misses < y->misses);
    if (order == 0) order = by_number(-x->accuracy, -y->accuracy);
    return order != 0 ? order : (x->arm > y->arm) - (x->arm < y->arm);
}

static size_t rank_arms(const eni_study *study, size_t setting, size_t arms_out[ENI_MAX_ARMS])
{
    standing all[ENI_MAX_ARMS];
    size_t n = 0;
    for (size_t a = 0; a < study->narms; a++) {
        if (eni_study_count(study, setting, a) == 0) continue;
        double least_t;
        all[n++] = (standing){.arm = a,
                              .misses = eni_study_missed(study, setting, a, &least_t),
                              .time = median_time(study, setting, a),
                              .accuracy = eni_study_summary(study, setting, a, eni_metric_accuracy).median};
    }
    qsort(all, n, sizeof *all, by_standing);
    for (size_t i = 0; i < n; i++)
        arms_out[i] = all[i].arm;
    return n;
}

static void put_percent(double value, char *text_out)
{
    snprintf(text_out, ENI_RANK_TEXT, "%.1f", 100 * value);
}

static void put_speed(double value, char *text_out)
{
    eni_table_grouped(eni_table_significant(value, 3), ",", text_out, ENI_RANK_TEXT);
}

/* Median and exact interval of a metric, in the letters of `put`. */
static void put_metric(const eni_study *study, size_t setting, size_t arm, eni_metric metric,
                       void (*put)(double, char *), char *text_out, char *range_out)
{
    double values[ENI_MAX_RUNS];
    char low[ENI_RANK_TEXT], high[ENI_RANK_TEXT];
    size_t n = eni_study_values(study, setting, arm, metric, values);
    snprintf(text_out, ENI_RANK_TEXT, "-");
    range_out[0] = 0;
    if (n > 0) put(eni_stats_median(values, n), text_out);
    if (n < 2) return;
    eni_interval interval = eni_stats_interval(values, n);
    put(interval.low, low);
    put(interval.high, high);
    snprintf(range_out, ENI_RANK_TEXT, "%.28s to %.28s", low, high);
}

static void put_time(const eni_study *study, size_t setting, eni_rank_row *row)
{
    double values[ENI_MAX_RUNS], last = censored_at(study, setting, row->arm);
    char low[ENI_RANK_TEXT], high[ENI_RANK_TEXT];
    size_t n = eni_study_values(study, setting, row->arm, eni_metric_reach_t, values);
    eni_verdict_time(study, setting, row->arm, row->time, sizeof row->time);
    if (n < 2) return;
    eni_interval interval = eni_stats_interval(values, n);
    eni_verdict_seconds(interval.low, last, low, sizeof low);
    eni_verdict_seconds(interval.high, last, high, sizeof high);
    if (isfinite(interval.low)) low[strcspn(low, " ")] = 0;
    if (isfinite(interval.low)) snprintf(row->time_range, ENI_RANK_TEXT, "%.28s to %.28s", low, high);
}

size_t eni_verdict_rank(const eni_verdict *verdict, size_t setting, eni_rank_row rows_out[ENI_MAX_ARMS])
{
    const eni_study *study = verdict->study;
    size_t arms[ENI_MAX_ARMS], n = rank_arms(study, setting, arms);
    for (size_t i = 0; i < n; i++) {
        eni_rank_row *row = &rows_out[i];
        const eni_claim *claim = claim_between(verdict, setting, arms[0], arms[i]);
        *row = (eni_rank_row){.arm = arms[i],
                              .differs = i == 0 || claim == NULL ? "-" : eni_verdict_found(claim)};
        put_time(study, setting, row);
        put_metric(study, setting, arms[i], eni_metric_accuracy, put_percent, row->accuracy,
                   row->accuracy_range);
        put_metric(study, setting, arms[i], eni_metric_samples_per_s, put_speed, row->speed,
                   row->speed_range);
    }
    return n;
}

/* ---- the sentence -------------------------------------------------------------------------------------- */

typedef struct sentence {
    char *text;
    size_t size, used;
    const eni_verdict *verdict;
    const eni_study *study;
    size_t setting, n, rank[ENI_MAX_ARMS]; /* arms of the setting, the first first */
} sentence;

static void say(sentence *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void say(sentence *s, const char *fmt, ...)
{
    if (s->used >= s->size) return;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(s->text + s->used, s->size - s->used, fmt, args);
    va_end(args);
    if (n > 0) s->used += (size_t)n;
}

static const char *name_of(const sentence *s, size_t arm)
{
    return s->study->arms[arm].name;
}

static void say_percent(sentence *s, double fraction)
{
    say(s, "%.*f %%", fabs(fraction * 100 - round(fraction * 100)) < 1e-9 ? 0 : 1, fraction * 100);
}

/* Two different times in as many letters as tell them apart. */
static void put_times(double a, double b, char a_out[32], char b_out[32])
{
    eni_verdict_seconds(a, 0, a_out, 32);
    eni_verdict_seconds(b, 0, b_out, 32);
    for (int digits = 1; strcmp(a_out, b_out) == 0 && digits < 5; digits++) {
        snprintf(a_out, 32, "%.*f s", digits, a);
        snprintf(b_out, 32, "%.*f s", digits, b);
    }
}

/* " (1.3x)", of the numbers as they are shown. */
static void say_ratio(sentence *s, const char *less, const char *more)
{
    double below = strtod(less, NULL), ratio = below > 0 ? strtod(more, NULL) / below : NAN;
    if (ratio >= 1.005) say(s, " (%.*fx)", ratio < 1.095 ? 2 : ratio < 9.95 ? 1 : 0, ratio);
}

static bool beats(const sentence *s, size_t arm, size_t other)
{
    const eni_claim *claim = claim_between(s->verdict, s->setting, arm, other);
    return claim != NULL && claim->found == ENI_CLAIM_YES && (claim->sign > 0) == (claim->a == arm);
}

/* Whom the sentence is about, and against whom: the primary comparison if it is clear, else the best pair by
 * rank. */
static bool find_claim(const sentence *s, size_t *winner_out, size_t *loser_out)
{
    bool has_found = false;
    for (size_t i = 0; i < s->n; i++)
        for (size_t j = 0; j < s->n; j++) {
            size_t a = s->rank[i], b = s->rank[j];
            if (a == b || !beats(s, a, b)) continue;
            if (has_found && !claim_between(s->verdict, s->setting, a, b)->is_primary) continue;
            *winner_out = a;
            *loser_out = b;
            has_found = true;
        }
    return has_found;
}

/* "ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x)" */
static void say_sooner(sentence *s, size_t winner, size_t loser)
{
    const eni_claim *claim = claim_between(s->verdict, s->setting, winner, loser);
    double mine = median_time(s->study, s->setting, winner),
           theirs = median_time(s->study, s->setting, loser);
    char a[32], b[32];
    say(s, "%s reached ", name_of(s, winner));
    say_percent(s, s->study->target);
    if (isfinite(mine) && isinf(theirs)) {
        eni_verdict_seconds(mine, 0, a, sizeof a);
        eni_verdict_seconds(censored_at(s->study, s->setting, loser), 0, b, sizeof b);
        say(s, " in %s, %s not within its %s", a, name_of(s, loser), b);
        return;
    }
    if (isfinite(theirs)) put_times(mine, theirs, a, b);
    if (isfinite(theirs) && strtod(a, NULL) < strtod(b, NULL)) {
        say(s, " in %s instead of %s for %s", a, b, name_of(s, loser));
        say_ratio(s, a, b);
        return;
    }
    /* The medians over seeds do not show what the pairs do. */
    say(s, " sooner than %s in %zu of %zu seeds", name_of(s, loser),
        claim->a == winner ? claim->sooner : claim->later, claim->n);
}

static void say_claims(sentence *s, size_t winner, size_t loser)
{
    size_t nsooner = 0, nopen = 0, sooner = 0, open = 0;
    for (size_t i = 0; i < s->n; i++) {
        size_t arm = s->rank[i];
        if (arm == winner || arm == loser) continue;
        if (beats(s, winner, arm)) {
            sooner = arm;
            nsooner++;
        } else if (!beats(s, arm, winner)) {
            open = arm;
            nopen++;
        }
    }
    say_sooner(s, winner, loser);
    if (nsooner == 1) say(s, ", sooner than %s too", name_of(s, sooner));
    if (nsooner > 1) say(s, ", sooner than %zu others too", nsooner);
    if (nopen == 1) say(s, "; %s not shown to differ", name_of(s, open));
    if (nopen > 1) say(s, "; %zu others not shown to differ", nopen);
}

/* "ring reached 75 % in 3.1 s, ps-async in 4.1 s" */
static void say_times(sentence *s)
{
    char text[32];
    eni_verdict_seconds(median_time(s->study, s->setting, s->rank[0]), 0, text, sizeof text);
    say(s, "%s reached ", name_of(s, s->rank[0]));
    say_percent(s, s->study->target);
    say(s, " in %s", text);
    if (s->n < 2) return;
    size_t second = s->rank[1];
    double time = median_time(s->study, s->setting, second);
    eni_verdict_seconds(isinf(time) ? censored_at(s->study, s->setting, second) : time, 0, text, sizeof text);
    if (isnan(time))
        say(s, ", %s %s", name_of(s, second),
            eni_study_example(s->study, s->setting, second) == NULL ? "failed" : "has no accuracy");
    else
        say(s, isinf(time) ? ", %s not within its %s" : ", %s in %s", name_of(s, second), text);
}

/* Why nothing is claimed of the first two. */
static void say_why(sentence *s)
{
    const eni_claim *claim = claim_between(s->verdict, s->setting, s->rank[0], s->rank[1]);
    size_t own = eni_claims_seeds(claim->is_primary ? 1 : eni_claims_count(1, s->study->narms));
    size_t all = claim->is_primary ? 0 : eni_claims_need(s->verdict->claims, s->verdict->n);
    switch (claim->found) {
    case ENI_CLAIM_FEW:
        say(s, "; too few seeds to say (%zu of %zu)", claim->seeds,
            claim->is_planned && all > own ? all : own);
        break;
    case ENI_CLAIM_FAILED: say(s, "; not shown: runs failed or are missing"); break;
    case ENI_CLAIM_UNFAIR: say(s, "; not shown: the fairness box has a FAIL"); break;
    case ENI_CLAIM_BUSY: say(s, "; not shown: the machine was busy"); break;
    case ENI_CLAIM_EXPLORATORY:
        say(s, claim->bar != 0 ? "; exploratory, as the study planned another target"
                               : "; exploratory, as the primary comparison is not clear");
        break;
    default: say(s, "; no difference shown");
    }
}

static void say_alone(sentence *s)
{
    double time = median_time(s->study, s->setting, s->rank[0]);
    char text[32];
    if (isfinite(time)) {
        say_times(s);
    } else if (isnan(time)) {
        say(s, "%s ran without an accuracy", name_of(s, s->rank[0]));
    } else {
        eni_verdict_seconds(censored_at(s->study, s->setting, s->rank[0]), 0, text, sizeof text);
        say(s, "%s did not reach ", name_of(s, s->rank[0]));
        say_percent(s, s->study->target);
        say(s, " within its %s", text);
    }
    say(s, "; nothing to compare with");
}

static bool somebody_finished(const sentence *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (eni_study_example(s->study, s->setting, s->rank[i]) != NULL) return true;
    return false;
}

/* No arm's median is a time. */
static void say_nobody(sentence *s)
{
    bool has_some = false;
    for (size_t i = 0; i < s->n; i++)
        has_some =
            has_some || isfinite(eni_study_summary(s->study, s->setting, s->rank[i], eni_metric_reach_t).min);
    say(s, "no arm reached ");
    say_percent(s, s->study->target);
    say(s, has_some ? " in most of its runs" : " within its budget");
}

void eni_verdict_sentence(const eni_verdict *verdict, size_t setting, char *text_out, size_t size)
{
    sentence s = {
        .text = text_out, .size = size, .verdict = verdict, .study = verdict->study, .setting = setting};
    size_t winner = 0, loser = 0;
    s.n = rank_arms(s.study, setting, s.rank);
    text_out[0] = 0;
    if (!somebody_finished(&s)) {
        say(&s, "no run ended well: nothing to say");
    } else if (s.n == 1) {
        say_alone(&s);
    } else if (find_claim(&s, &winner, &loser)) {
        say_claims(&s, winner, loser);
    } else if (isnan(median_time(s.study, setting, s.rank[0]))) {
        say(&s, "no run has an accuracy, so no time to compare");
    } else if (isinf(median_time(s.study, setting, s.rank[0]))) {
        say_nobody(&s);
    } else {
        say_times(&s);
        say_why(&s);
    }
    say(&s, ".");
}

/* ---- below the sentences ------------------------------------------------------------------------------- */

/* The widest over the planned comparisons of a setting, rounded up; NAN: not known. */
static double least_of_setting(const eni_verdict *verdict, size_t setting)
{
    double most = NAN;
    for (size_t i = 0; i < verdict->n; i++) {
        const eni_claim *claim = &verdict->claims[i];
        if (claim->setting != setting || claim->found == ENI_CLAIM_FEW) continue;
        most = fmax(most, eni_verdict_least(verdict, claim));
    }
    return ceil(100 * most) / 100;
}

void eni_verdict_caveat(const eni_verdict *verdict, const eni_fairness *fairness, char *text_out, size_t size)
{
    const eni_study *study = verdict->study;
    sentence s = {.text = text_out, .size = size, .verdict = verdict, .study = study};
    const char *names[ENI_MAX_SETTINGS];
    bool is_first = true;
    text_out[0] = 0;
    if (!fairness->is_time_comparable)
        say(&s, "The fairness box has a FAIL: until that is mended, the numbers are no comparison. ");
    if (study->narms < 2) return;
    for (size_t c = 0; c < study->nsettings; c++)
        names[c] = study->settings[c].name;
    if (s.used < size) eni_claims_text(verdict->claims, verdict->n, names, text_out + s.used, size - s.used);
    s.used = strlen(text_out);
    for (size_t c = 0; c < study->nsettings; c++) {
        double least = least_of_setting(verdict, c);
        if (isnan(least)) continue;
        say(&s, is_first ? " Least effect that could have been seen: %s %.2fx" : ", %s %.2fx", names[c],
            least);
        is_first = false;
    }
    if (!is_first) say(&s, ".");
    is_first = true;
    for (size_t c = 0; c < study->nsettings; c++) {
        double ranks[ENI_CLAIMS_SEEDS] = {0};
        size_t n = study->settings[c].seeds < ENI_CLAIMS_SEEDS ? study->settings[c].seeds : ENI_CLAIMS_SEEDS;
        if (n < 2) continue;
        say(&s, is_first ? " Ranges hold the true median with %.0f %% (%s)" : ", %.0f %% (%s)",
            100 * eni_stats_interval(ranks, n).confidence, names[c]);
        is_first = false;
    }
    if (!is_first) say(&s, ".");
}
