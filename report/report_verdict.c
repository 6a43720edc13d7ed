/* report_verdict.c - times to the target of each arm, their comparisons, their order, and the sentences. */
#include "report/report_verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "report/table.h"

/* ---- what is claimed ----------------------------------------------------------------------------------- */

/* A target that is set when the times are known (`report --target`) can be chosen for its result. */
static bool has_planned_target(const eni_study *study)
{
    const json_t *loss = json_object_get(study->index, "target_loss"),
                 *planned = loss != NULL ? loss : json_object_get(study->index, "target");
    const eni_target target = {json_number_value(planned), loss != NULL};
    return planned == NULL || eni_target_is_same(&target, &study->target);
}

/* The reason not to claim anything about an arm, whatever its times are. */
static int bar_of(const eni_study *study, const eni_fairness *fairness, size_t setting, size_t arm)
{
    size_t complete = 0;
    bool is_busy = false;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;) {
        complete += run->is_complete;
        is_busy = is_busy || run->outside > ENI_BUSY_SHARE;
    }
    if (complete < study->settings[setting].seeds) return ENI_COMPARISON_FAILED;
    if (!fairness->is_time_comparable) return ENI_COMPARISON_UNFAIR;
    if (is_busy) return ENI_COMPARISON_BUSY;
    return has_planned_target(study) ? 0 : ENI_COMPARISON_EXPLORATORY;
}

/* The times of the first n seeds. */
static void fill_times(const eni_study *study, size_t setting, size_t arm, size_t n, double *times_out)
{
    for (size_t s = 0; s < n; s++) {
        const eni_run *run = eni_study_find(study, setting, arm, study->seeds[s]);
        times_out[s] = run == NULL ? NAN : eni_metric_reach_t(run);
    }
}

/* Plans and judges the comparisons of one study on the page, from its first setting on. Returns the number of its settings. */
static size_t judge_study(const eni_study *study, const eni_fairness *fairness, size_t first,
                          const double *times, eni_verdict *verdict)
{
    size_t seeds[ENI_MAX_SETTINGS], arms[ENI_MAX_ARMS], narms = 0, nsettings = 0,
                                                        baseline = ENI_COMPARISONS_ALL;
    eni_primary primary = study->primary;
    bool has_primary = study->has_primary;
    while (first + nsettings < study->nsettings &&
           study->settings[first + nsettings].study == study->settings[first].study) {
        seeds[nsettings] = study->settings[first + nsettings].seeds;
        nsettings++;
    }
    for (size_t a = 0; a < study->narms; a++) {
        if (!eni_study_has_arm(study, first, a)) continue;
        if (a == study->baseline) baseline = narms;
        if (a == study->primary.a) primary.a = narms;
        if (a == study->primary.b) primary.b = narms;
        arms[narms++] = a;
    }
    has_primary = has_primary && primary.setting >= first && primary.setting < first + nsettings;
    primary.setting -= first;
    eni_comparison *own = verdict->comparisons + verdict->n;
    const size_t n = eni_comparisons_count(nsettings, narms);
    eni_comparisons_plan(seeds, nsettings, narms, baseline, has_primary ? &primary : NULL, own);
    for (size_t i = 0; i < n; i++) {
        own[i].setting += first;
        own[i].a = arms[own[i].a];
        own[i].b = arms[own[i].b];
        int a = bar_of(study, fairness, own[i].setting, own[i].a);
        int b = bar_of(study, fairness, own[i].setting, own[i].b);
        own[i].bar = a == 0 || (b != 0 && b < a) ? b : a;
    }
    eni_comparisons_judge(own, n, times, study->narms, study->nseeds);
    verdict->n += n;
    return nsettings;
}

en_status eni_verdict_judge(const eni_study *study, const eni_fairness *fairness, eni_verdict *verdict_out)
{
    *verdict_out = (eni_verdict){.study = study};
    verdict_out->comparisons = eni_alloc_array(eni_comparisons_count(study->nsettings, study->narms) + 1,
                                               sizeof *verdict_out->comparisons);
    double *times = eni_alloc_array(study->nsettings * study->narms * study->nseeds + 1, sizeof *times);
    if (verdict_out->comparisons == NULL || times == NULL) {
        eni_free(times);
        eni_verdict_free(verdict_out);
        return EN_ENOMEM;
    }
    for (size_t c = 0; c < study->nsettings; c++)
        for (size_t a = 0; a < study->narms; a++)
            fill_times(study, c, a, study->nseeds, &times[(c * study->narms + a) * study->nseeds]);
    for (size_t c = 0; c < study->nsettings;)
        c += judge_study(study, fairness, c, times, verdict_out);
    eni_free(times);
    return EN_OK;
}

/* The comparisons that are judged together with those of a setting. */
static const eni_comparison *comparisons_with(const eni_verdict *verdict, size_t setting, size_t *n_out)
{
    const eni_study *study = verdict->study;
    size_t first = 0, n = 0;
    for (size_t i = 0; i < verdict->n; i++) {
        if (study->settings[verdict->comparisons[i].setting].study != study->settings[setting].study)
            continue;
        if (n++ == 0) first = i;
    }
    *n_out = n;
    return verdict->comparisons + first;
}

void eni_verdict_free(eni_verdict *verdict)
{
    eni_free(verdict->comparisons);
    verdict->comparisons = NULL;
}

/* The comparison of two arms of a setting; NULL: a and b are the same. */
static const eni_comparison *claim_between(const eni_verdict *verdict, size_t setting, size_t a, size_t b)
{
    for (size_t i = 0; i < verdict->n; i++) {
        const eni_comparison *comparison = &verdict->comparisons[i];
        if (comparison->setting == setting && comparison->a == (a < b ? a : b) &&
            comparison->b == (a < b ? b : a))
            return comparison;
    }
    return NULL;
}

const char *eni_verdict_found(const eni_comparison *comparison)
{
    static const char *const names[] = {[ENI_COMPARISON_FEW] = "too few seeds",
                                        [ENI_COMPARISON_FAILED] = "not shown: runs failed",
                                        [ENI_COMPARISON_UNFAIR] = "not shown: the fairness box has a FAIL",
                                        [ENI_COMPARISON_BUSY] = "not shown: other processes used the machine",
                                        [ENI_COMPARISON_EXPLORATORY] = "exploratory",
                                        [ENI_COMPARISON_NOT_SHOWN] = "not shown",
                                        [ENI_COMPARISON_YES] = "yes"};
    if (comparison->n == 0)
        return comparison->bar == ENI_COMPARISON_FAILED ? names[ENI_COMPARISON_FAILED] : "-";
    return names[comparison->found];
}

double eni_verdict_least(const eni_verdict *verdict, const eni_comparison *comparison)
{
    const eni_study *study = verdict->study;
    double a[ENI_COMPARISONS_SEEDS], b[ENI_COMPARISONS_SEEDS];
    size_t among;
    const eni_comparison *own = comparisons_with(verdict, comparison->setting, &among);
    const size_t m = comparison->is_primary ? 1 : eni_comparisons_among(own, among);
    const size_t n = study->nseeds < ENI_COMPARISONS_SEEDS ? study->nseeds : ENI_COMPARISONS_SEEDS;
    if (!comparison->is_planned) return NAN;
    fill_times(study, comparison->setting, comparison->a, n, a);
    fill_times(study, comparison->setting, comparison->b, n, b);
    return eni_comparisons_least(a, b, n, ENI_COMPARISONS_ALPHA / (double)m);
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

static bool has_wide_bracket(const eni_study *study, size_t setting, size_t arm)
{
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;)
        if (eni_study_bracket_is_wide(run)) return true;
    return false;
}

void eni_verdict_time(const eni_study *study, size_t setting, size_t arm, char *text_out, size_t size)
{
    const double median = eni_study_summary(study, setting, arm, eni_metric_reach_t).median;
    const bool is_about = isfinite(median) && has_wide_bracket(study, setting, arm);
    double censored_t;
    char text[ENI_RANK_TEXT];
    eni_study_missed(study, setting, arm, &censored_t);
    eni_verdict_seconds(median, censored_t, text, sizeof text);
    snprintf(text_out, size, "%s%s", is_about ? "≈ " : "", text);
}

/* ---- the ranking --------------------------------------------------------------------------------------- */

/* An arm's results in a setting. */
typedef struct standing {
    size_t arm, misses;
    const char *name;
    double time, quality; /* medians; the time INFINITY if the target was missed; quality: more is better */
    double censored_t;    /* of a missed time: the least clock that all runs passed */
} standing;

/* NAN is unknown, and sorts last. */
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
    if (order == 0) order = by_number(-x->quality, -y->quality);
    return order != 0 ? order : (x->arm > y->arm) - (x->arm < y->arm);
}

static size_t rank_arms(const eni_study *study, size_t setting, standing rank_out[ENI_MAX_ARMS])
{
    size_t n = 0;
    for (size_t a = 0; a < study->narms; a++) {
        if (eni_study_count(study, setting, a) == 0) continue;
        standing *s = &rank_out[n++];
        *s = (standing){.arm = a,
                        .name = study->arms[a].name,
                        .time = eni_study_summary(study, setting, a, eni_metric_reach_t).median,
                        .quality = eni_study_summary(study, setting, a, eni_metric_accuracy).median};
        if (!study->has_classes) s->quality = -eni_study_summary(study, setting, a, eni_metric_loss).median;
        s->misses = eni_study_missed(study, setting, a, &s->censored_t);
    }
    qsort(rank_out, n, sizeof *rank_out, by_standing);
    return n;
}

/* The columns of a ranking; without classes the last takes the accuracy's place. */
typedef struct rank_column {
    eni_metric metric;
    double unit;
    const char *format; /* NULL: a time or a speed, which have functions of their own */
} rank_column;
static const rank_column columns[ENI_RANK_COLUMNS] = {{eni_metric_reach_t, 1, NULL},
                                                      {eni_metric_accuracy, 100, "%.1f"},
                                                      {eni_metric_samples_per_s, 1, NULL}},
                         column_of_loss = {eni_metric_loss, 1, "%.3g"};

static void put_value(const rank_column *column, double value, double censored_t,
                      char text_out[ENI_RANK_TEXT])
{
    if (column->format != NULL)
        snprintf(text_out, ENI_RANK_TEXT, column->format, column->unit * value);
    else if (column->metric == eni_metric_reach_t)
        eni_verdict_seconds(value, censored_t, text_out, ENI_RANK_TEXT);
    else
        eni_text_grouped(eni_table_significant(value, 3), ",", text_out, ENI_RANK_TEXT);
}

/* Median and exact interval of a column. */
static void put_cell(const eni_study *study, size_t setting, const standing *s, const rank_column *column,
                     eni_rank_cell *cell)
{
    double values[ENI_MAX_RUNS];
    char low[ENI_RANK_TEXT], high[ENI_RANK_TEXT];
    const size_t n = eni_study_values(study, setting, s->arm, column->metric, values);
    const eni_interval interval = eni_stats_interval(values, n);
    snprintf(cell->text, sizeof cell->text, "-");
    cell->range[0] = 0;
    if (n > 0) put_value(column, eni_stats_median(values, n), s->censored_t, cell->text);
    if (n < 2 || !isfinite(interval.low)) return;
    put_value(column, interval.low, s->censored_t, low);
    put_value(column, interval.high, s->censored_t, high);
    low[strcspn(low, " ")] = 0; /* the unit follows the second */
    snprintf(cell->range, sizeof cell->range, "%.28s to %.28s", low, high);
}

const char *eni_verdict_from(const eni_verdict *verdict)
{
    return verdict->study->baseline == ENI_COMPARISONS_ALL ? "the first" : "the baseline";
}

size_t eni_verdict_rank(const eni_verdict *verdict, size_t setting, eni_rank_row rows_out[ENI_MAX_ARMS])
{
    const eni_study *study = verdict->study;
    standing rank[ENI_MAX_ARMS];
    const size_t n = rank_arms(study, setting, rank);
    for (size_t i = 0; i < n; i++) {
        eni_rank_row *row = &rows_out[i];
        const bool has_baseline = study->baseline != ENI_COMPARISONS_ALL;
        const eni_comparison *comparison =
            claim_between(verdict, setting, has_baseline ? study->baseline : rank[0].arm, rank[i].arm);
        row->arm = rank[i].arm;
        row->differs = comparison != NULL ? eni_verdict_found(comparison) : has_baseline ? "baseline" : "-";
        for (int k = 0; k < ENI_RANK_COLUMNS; k++)
            put_cell(study, setting, &rank[i], k == 1 && !study->has_classes ? &column_of_loss : &columns[k],
                     &row->cells[k]);
        eni_verdict_time(study, setting, row->arm, row->cells[0].text, ENI_RANK_TEXT);
    }
    return n;
}

/* ---- the sentence -------------------------------------------------------------------------------------- */

typedef struct sentence {
    char *text;
    size_t size;
    const eni_verdict *verdict;
    size_t setting, n, baseline; /* the arm that all are compared with; ENI_COMPARISONS_ALL */
    standing rank[ENI_MAX_ARMS]; /* arms of the setting, best first */
} sentence;

#define say(s, ...) eni_text_add((s)->text, (s)->size, __VA_ARGS__)

/* "ring reached 75 %" */
static void say_of_target(sentence *s, const char *who, const char *verb)
{
    const eni_target *target = &s->verdict->study->target;
    const double percent = 100 * target->value;
    if (target->is_loss)
        say(s, "%s %s a loss of %g", who, verb, target->value);
    else
        say(s, "%s %s %.*f %%", who, verb, fabs(percent - round(percent)) < 1e-9 ? 0 : 1, percent);
}

/* Two different times with as many digits as it takes to tell them apart. */
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

static const eni_comparison *claim_of(const sentence *s, const standing *a, const standing *b)
{
    return claim_between(s->verdict, s->setting, a->arm, b->arm);
}

static bool beats(const sentence *s, const standing *one, const standing *other)
{
    const eni_comparison *comparison = claim_of(s, one, other);
    return comparison != NULL && comparison->found == ENI_COMPARISON_YES &&
           (comparison->sign > 0) == (comparison->a == one->arm);
}

/* Finds the subject and the object of the sentence: the primary comparison if it is clear, else the best pair
 * by rank. With a baseline, a pair that includes it: the others are compared with nothing else, and the
 * primary comparison has a sentence of its own. */
static bool find_claim(const sentence *s, const standing **winner_out, const standing **loser_out)
{
    bool has_found = false;
    for (size_t i = 0; i < s->n; i++)
        for (size_t j = 0; j < s->n; j++) {
            const standing *a = &s->rank[i], *b = &s->rank[j];
            if (i == j || !beats(s, a, b)) continue;
            if (s->baseline != ENI_COMPARISONS_ALL && a->arm != s->baseline && b->arm != s->baseline)
                continue;
            if (has_found && !claim_of(s, a, b)->is_primary) continue;
            *winner_out = a;
            *loser_out = b;
            has_found = true;
        }
    return has_found;
}

/* "ring reached 75 % in 3.1 s instead of 4.1 s for ps-async (1.3x)" */
static void say_sooner(sentence *s, const standing *winner, const standing *loser)
{
    const eni_comparison *comparison = claim_of(s, winner, loser);
    char a[32], b[32];
    say_of_target(s, winner->name, "reached");
    if (isfinite(winner->time) && isinf(loser->time)) {
        eni_verdict_seconds(winner->time, 0, a, sizeof a);
        eni_verdict_seconds(loser->censored_t, 0, b, sizeof b);
        say(s, " in %s, %s not within its %s", a, loser->name, b);
        return;
    }
    if (isfinite(loser->time)) put_times(winner->time, loser->time, a, b);
    if (isfinite(loser->time) && strtod(a, NULL) < strtod(b, NULL)) {
        say(s, " in %s instead of %s for %s", a, b, loser->name);
        say_ratio(s, a, b);
        return;
    }
    /* The medians over seeds contradict the pairs. */
    say(s, " sooner than %s in %zu of %zu seeds", loser->name,
        comparison->a == winner->arm ? comparison->sooner : comparison->later, comparison->n);
}

typedef struct others {
    size_t n;
    const standing *last;
} others;

/* "; ps-sync later", "; 2 others not shown to differ" */
static void say_others(sentence *s, const others *who, const char *before, const char *what)
{
    if (who->n == 1) say(s, "%s%s %s", before, who->last->name, what);
    if (who->n > 1) say(s, "%s%zu others %s", before, who->n, what);
}

/* Relates the other arms to the winner, or to a baseline that lost. */
static void say_claims(sentence *s, const standing *winner, const standing *loser)
{
    others sooner = {0}, later = {0}, open = {0};
    const bool is_of_loser = loser->arm == s->baseline;
    const standing *of = is_of_loser ? loser : winner;
    for (const standing *one = s->rank; one < s->rank + s->n; one++) {
        if (one == winner || one == loser) continue;
        others *its = beats(s, one, of) ? &sooner : beats(s, of, one) ? &later : &open;
        its->last = one;
        its->n++;
    }
    say_sooner(s, winner, loser);
    if (is_of_loser) {
        say_others(s, &sooner, ", ", "sooner too");
        say_others(s, &later, "; ", "later");
    } else {
        say_others(s, &later, ", sooner than ", "too");
        say_others(s, &sooner, "; ", "sooner still");
    }
    say_others(s, &open, "; ", "not shown to differ");
    if (open.n + later.n > 0 && is_of_loser) say(s, open.n > 0 ? " from %s" : " than %s", loser->name);
}

/* "ring reached 75 % in 3.1 s, ps-async in 4.1 s" */
static void say_times(sentence *s)
{
    const standing *first = &s->rank[0], *second = &s->rank[1];
    char text[32];
    eni_verdict_seconds(first->time, 0, text, sizeof text);
    say_of_target(s, first->name, "reached");
    say(s, " in %s", text);
    if (s->n < 2) return;
    eni_verdict_seconds(isinf(second->time) ? second->censored_t : second->time, 0, text, sizeof text);
    if (isnan(second->time))
        say(s, ", %s %s", second->name,
            eni_study_example(s->verdict->study, s->setting, second->arm) == NULL ? "failed"
            : s->verdict->study->target.is_loss                                   ? "has no loss"
                                                                                  : "has no accuracy");
    else
        say(s, isinf(second->time) ? ", %s not within its %s" : ", %s in %s", second->name, text);
}

/* The reason why nothing is claimed about the first two. */
static void say_why(sentence *s)
{
    const eni_comparison *comparison = claim_of(s, &s->rank[0], &s->rank[1]);
    const eni_verdict *verdict = s->verdict;
    size_t own = comparison->is_primary
                     ? eni_comparisons_seeds(1)
                     : eni_comparisons_own_seeds(verdict->comparisons, verdict->n, s->setting);
    size_t among;
    const eni_comparison *with = comparisons_with(verdict, s->setting, &among);
    size_t all = comparison->is_primary ? 0 : eni_comparisons_need(with, among);
    switch (comparison->found) {
    case ENI_COMPARISON_FEW:
        say(s, "; too few seeds to say (%zu of %zu)", comparison->seeds,
            comparison->is_planned && all > own ? all : own);
        break;
    case ENI_COMPARISON_FAILED: say(s, "; not shown: runs failed or are missing"); break;
    case ENI_COMPARISON_UNFAIR: say(s, "; not shown: the fairness box has a FAIL"); break;
    case ENI_COMPARISON_BUSY: say(s, "; not shown: other processes used the machine"); break;
    case ENI_COMPARISON_EXPLORATORY:
        say(s, comparison->bar != 0   ? "; exploratory, as the study planned another target"
               : comparison->is_apart ? "; exploratory, as the study compares with its baseline"
                                      : "; exploratory, as the primary comparison is not clear");
        break;
    default: say(s, "; no difference shown");
    }
}

/* "ring ended with a test loss of 0.0041, ps-async with 0.0043" */
static void say_losses(sentence *s)
{
    if (s->verdict->study->has_classes || isnan(s->rank[0].quality)) {
        say(s, "%s ran without an accuracy", s->rank[0].name);
        return;
    }
    say(s, "%s ended with a test loss of %.3g", s->rank[0].name, -s->rank[0].quality);
    if (s->n < 2) return;
    if (isnan(s->rank[1].quality))
        say(s, ", %s failed", s->rank[1].name);
    else
        say(s, ", %s with %.3g", s->rank[1].name, -s->rank[1].quality);
}

static void say_alone(sentence *s)
{
    const standing *one = &s->rank[0];
    char text[32];
    if (isfinite(one->time)) {
        say_times(s);
    } else if (isnan(one->time)) {
        say_losses(s);
    } else {
        eni_verdict_seconds(one->censored_t, 0, text, sizeof text);
        say_of_target(s, one->name, "did not reach");
        say(s, " within its %s", text);
    }
    say(s, "; nothing to compare with");
}

/* Describes the arms of s->rank. */
static void say_standings(sentence *s)
{
    const eni_study *study = s->verdict->study;
    const standing *winner = NULL, *loser = NULL, *first = &s->rank[0];
    bool has_finished = false, has_reached = false;
    for (size_t i = 0; i < s->n; i++) {
        const size_t arm = s->rank[i].arm;
        has_finished = has_finished || eni_study_example(study, s->setting, arm) != NULL;
        has_reached =
            has_reached || isfinite(eni_study_summary(study, s->setting, arm, eni_metric_reach_t).min);
    }
    if (!has_finished) {
        say(s, "no run ended well, so there is nothing to compare");
    } else if (s->n == 1) {
        say_alone(s);
    } else if (find_claim(s, &winner, &loser)) {
        say_claims(s, winner, loser);
    } else if (isnan(first->time)) {
        if (study->has_classes) {
            say(s, "no run has an accuracy, so times cannot be compared");
        } else {
            say_losses(s);
            say(s, "; without classes, only a target of the loss (--target=loss:VALUE) would be tested");
        }
    } else if (isinf(first->time)) {
        say_of_target(s, "no arm", "reached");
        say(s, has_reached ? " in most of its runs" : " within its budget");
    } else {
        say_times(s);
        say_why(s);
    }
}

/* Puts the baseline after the first, or first if it is: the others are compared with it. */
static void move_baseline(sentence *s)
{
    for (size_t i = 2; i < s->n; i++) {
        if (s->rank[i].arm != s->baseline) continue;
        const standing baseline = s->rank[i];
        memmove(&s->rank[2], &s->rank[1], (i - 1) * sizeof baseline);
        s->rank[1] = baseline;
    }
}

void eni_verdict_sentence(const eni_verdict *verdict, size_t setting, char *text_out, size_t size)
{
    sentence s = {.text = text_out,
                  .size = size,
                  .verdict = verdict,
                  .setting = setting,
                  .baseline = verdict->study->baseline};
    s.n = rank_arms(verdict->study, setting, s.rank);
    text_out[0] = 0;
    move_baseline(&s);
    say_standings(&s);
    say(&s, ".");
}

void eni_verdict_primary(const eni_verdict *verdict, char *text_out, size_t size)
{
    const eni_study *study = verdict->study;
    const eni_primary *primary = &study->primary;
    sentence s = {.text = text_out,
                  .size = size,
                  .verdict = verdict,
                  .setting = primary->setting,
                  .baseline = ENI_COMPARISONS_ALL};
    text_out[0] = 0;
    if (!study->has_primary) return;
    const eni_comparison *comparison = claim_between(verdict, primary->setting, primary->a, primary->b);
    const size_t n = rank_arms(study, primary->setting, s.rank);
    for (size_t i = 0; i < n; i++)
        if (s.rank[i].arm == primary->a || s.rank[i].arm == primary->b) s.rank[s.n++] = s.rank[i];
    say_standings(&s);
    if (comparison->n > 0) say(&s, ", p = %.2g", comparison->p);
    say(&s, ".");
}

/* ---- below the sentences ------------------------------------------------------------------------------- */

/* The widest over the planned comparisons of a setting, rounded up; NAN: unknown. */
static double least_of_setting(const eni_verdict *verdict, size_t setting)
{
    double most = NAN;
    for (size_t i = 0; i < verdict->n; i++) {
        const eni_comparison *comparison = &verdict->comparisons[i];
        if (comparison->setting != setting || comparison->found == ENI_COMPARISON_FEW) continue;
        most = fmax(most, eni_verdict_least(verdict, comparison));
    }
    return ceil(100 * most) / 100;
}

void eni_verdict_caveat(const eni_verdict *verdict, const eni_fairness *fairness, char *text_out, size_t size)
{
    const eni_study *study = verdict->study;
    sentence s = {.text = text_out, .size = size};
    const char *names[ENI_MAX_SETTINGS];
    bool is_first = true;
    text_out[0] = 0;
    if (!fairness->is_time_comparable)
        say(&s, "The fairness box has a FAIL: until it is fixed, the numbers are not comparable. ");
    if (study->narms < 2) return;
    for (size_t c = 0; c < study->nsettings; c++)
        names[c] = study->settings[c].name;
    for (size_t c = 0; c < study->nsettings; c++) {
        size_t among, used = strlen(text_out);
        if (c > 0 && study->settings[c].study == study->settings[c - 1].study) continue;
        const eni_comparison *own = comparisons_with(verdict, c, &among);
        if (c > 0 && among > 0) say(&s, " ");
        used = strlen(text_out);
        eni_comparisons_text(own, among, names, text_out + used, size - used);
    }
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
        double ranks[ENI_COMPARISONS_SEEDS] = {0};
        size_t n = study->settings[c].seeds < ENI_COMPARISONS_SEEDS ? study->settings[c].seeds
                                                                    : ENI_COMPARISONS_SEEDS;
        if (n < 2) continue;
        say(&s,
            is_first ? " Ranges contain the true median with a confidence of %.0f %% (%s)" : ", %.0f %% (%s)",
            100 * eni_stats_interval(ranks, n).confidence, names[c]);
        is_first = false;
    }
    if (!is_first) say(&s, ".");
}
