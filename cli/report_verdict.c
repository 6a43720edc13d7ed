/* report_verdict.c - see report_verdict.h. */
#include "cli/report_verdict.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- pairs
 * -------------------------------------------------------------------------------------------------- */

/* Adds one seed's times. A miss counts as infinitely late; two misses say nothing about who is sooner. */
static void pair_times(eni_pairs *pairs, const eni_run *a, const eni_run *b, double *ratios, size_t *nratios)
{
    if (isnan(a->reach_t) || isnan(b->reach_t)) return;
    pairs->sooner += a->reach_t < b->reach_t;
    pairs->later += a->reach_t > b->reach_t;
    if (isfinite(a->reach_t) && isinf(b->reach_t)) {
        pairs->b_missed++;
        pairs->is_bound = true;
    }
    if (isfinite(a->reach_t) && a->reach_t > 0) {
        double other = isfinite(b->reach_t) ? b->reach_t : b->last_t;
        /* A run that failed at once bounds nothing: its ratio is at least that of a dead heat. */
        ratios[(*nratios)++] = isfinite(b->reach_t) ? other / a->reach_t : fmax(other / a->reach_t, 1);
    }
}

void eni_verdict_pairs(const eni_study *study, size_t cell, size_t a, size_t b, eni_pairs *pairs_out)
{
    *pairs_out = (eni_pairs){.has_same_weights = true};
    double ratios[ENI_MAX_RUNS], speeds[ENI_MAX_RUNS], points[ENI_MAX_RUNS];
    size_t nratios = 0;
    for (size_t i = 0; i < study->nruns; i++) {
        const eni_run *x = &study->runs[i];
        if (x->cell != cell || x->arm != a) continue;
        const eni_run *y = eni_study_find(study, cell, b, x->seed);
        if (y == NULL) continue;
        pairs_out->n++;
        pair_times(pairs_out, x, y, ratios, &nratios);
        double speed = eni_metric_samples_per_s(x) / eni_metric_samples_per_s(y);
        if (isfinite(speed)) {
            speeds[pairs_out->nspeed++] = speed;
            pairs_out->faster += speed > 1;
        }
        double difference = 100 * (x->test_accuracy - y->test_accuracy);
        if (!isnan(difference)) {
            points[pairs_out->nacc++] = difference;
            pairs_out->higher += difference > 0;
            pairs_out->lower += difference < 0;
        }
        if (x->params_sha256 == NULL || y->params_sha256 == NULL ||
            strcmp(x->params_sha256, y->params_sha256) != 0)
            pairs_out->has_same_weights = false;
    }
    if (pairs_out->n == 0) pairs_out->has_same_weights = false;
    pairs_out->ratio_range = eni_stats_interval(ratios, nratios);
    pairs_out->ratio = eni_stats_median(ratios, nratios);
    pairs_out->speed_ratio = eni_stats_median(speeds, pairs_out->nspeed);
    pairs_out->points_range = eni_stats_interval(points, pairs_out->nacc);
    pairs_out->points = eni_stats_median(points, pairs_out->nacc);
}

size_t eni_verdict_leader(const eni_study *study, size_t cell)
{
    size_t leader = 0;
    double best_t = INFINITY, best_speed = -1;
    for (size_t a = 0; a < study->narms; a++) {
        eni_summary time = eni_study_summary(study, cell, a, eni_metric_reach_t);
        eni_summary speed = eni_study_summary(study, cell, a, eni_metric_samples_per_s);
        double t = time.n > 0 ? time.median : INFINITY, s = speed.n > 0 ? speed.median : 0;
        if (t > best_t || (!(t < best_t) && s <= best_speed)) continue;
        leader = a;
        best_t = t;
        best_speed = s;
    }
    return leader;
}

/* ---- times as text
 * ------------------------------------------------------------------------------------------ */

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

void eni_verdict_time(const eni_study *study, size_t cell, size_t arm, char *text_out, size_t size)
{
    double least = INFINITY;
    for (size_t i = 0; i < study->nruns; i++) {
        const eni_run *run = &study->runs[i];
        if (run->cell == cell && run->arm == arm && isinf(run->reach_t) && run->last_t < least)
            least = run->last_t;
    }
    eni_summary time = eni_study_summary(study, cell, arm, eni_metric_reach_t);
    eni_verdict_seconds(time.median, isinf(least) ? 0 : least, text_out, size);
}

/* ---- the sentence
 * ------------------------------------------------------------------------------------------- */

/* A sentence about more arms than this cannot be read; the table has them all. */
enum { MAX_RIVALS = 3 };

typedef struct sentence {
    char *text;
    size_t size, used;
    const eni_study *study;
    size_t cell, leader, nrivals;
    size_t rivals[MAX_RIVALS]; /* the arms that the leader is compared with */
    bool has_one_seed;
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

static void say_percent(sentence *s, double fraction)
{
    say(s, "%.*f %%", fabs(fraction * 100 - round(fraction * 100)) < 1e-9 ? 0 : 1, fraction * 100);
}

/* What a pairing shows about time. */
enum { CLEARLY_SOONER, ABOUT_EQUAL, NOT_CLEAR };

static int time_class(const eni_pairs *pairs)
{
    if (pairs->n > 0 && pairs->sooner == pairs->n)
        return pairs->ratio < 1.01 && !pairs->is_bound ? ABOUT_EQUAL : CLEARLY_SOONER;
    bool is_near = pairs->ratio_range.low > 0.99 && pairs->ratio_range.high < 1.01 && !pairs->is_bound;
    return is_near ? ABOUT_EQUAL : NOT_CLEAR;
}

/* "1.4 times sooner than ps-async (3 of 3 seeds; 2.1 s against 2.9 s)" */
static void say_sooner(sentence *s, const eni_pairs *pairs, size_t other)
{
    char mine[32], theirs[32];
    eni_verdict_time(s->study, s->cell, s->leader, mine, sizeof mine);
    eni_verdict_time(s->study, s->cell, other, theirs, sizeof theirs);
    if (pairs->is_bound) say(s, "at least ");
    say(s, pairs->ratio < 1.095 ? "%.2f" : "%.1f", pairs->ratio);
    say(s, " times sooner than %s (", s->study->arms[other].name);
    if (!s->has_one_seed) say(s, "%zu of %zu seeds; medians ", pairs->sooner, pairs->n);
    say(s, "%s against %s", mine, theirs);
    if (pairs->b_missed > 0 && !s->has_one_seed) say(s, ", which missed it in %zu", pairs->b_missed);
    say(s, ")");
}

/* "no clear difference from ps-sync (sooner in 2 of 3 seeds; 2.1 s against 2.2 s)" */
static void say_not_sooner(sentence *s, const eni_pairs *pairs, size_t other)
{
    const char *name = s->study->arms[other].name;
    char mine[32], theirs[32];
    eni_verdict_time(s->study, s->cell, s->leader, mine, sizeof mine);
    eni_verdict_time(s->study, s->cell, other, theirs, sizeof theirs);
    if (pairs->n == 0)
        say(s, "no seed in common with %s", name);
    else if (time_class(pairs) == ABOUT_EQUAL)
        say(s, "the same time as %s within 1 %% (%s against %s)", name, mine, theirs);
    else
        say(s, "no clear difference from %s (sooner in %zu of %zu seeds; medians %s against %s)", name,
            pairs->sooner, pairs->n, mine, theirs);
}

static void say_times(sentence *s, const eni_pairs pairs[])
{
    size_t nclear = 0, said = 0;
    for (size_t i = 0; i < s->nrivals; i++)
        nclear += time_class(&pairs[s->rivals[i]]) == CLEARLY_SOONER;
    say(s, "%s reached ", s->study->arms[s->leader].name);
    say_percent(s, s->study->target);
    for (size_t i = 0; i < s->nrivals; i++) {
        size_t b = s->rivals[i];
        if (time_class(&pairs[b]) != CLEARLY_SOONER) continue;
        say(s, said == 0 ? " " : said + 1 == nclear ? " and " : ", ");
        say_sooner(s, &pairs[b], b);
        said++;
    }
    if (said == 0) {
        char mine[32];
        eni_verdict_time(s->study, s->cell, s->leader, mine, sizeof mine);
        say(s, " in %s", mine);
    }
    bool is_first = true;
    for (size_t i = 0; i < s->nrivals; i++) {
        size_t b = s->rivals[i];
        if (time_class(&pairs[b]) == CLEARLY_SOONER) continue;
        say(s, is_first ? ", with " : " and ");
        say_not_sooner(s, &pairs[b], b);
        is_first = false;
    }
}

/* What the pairs say about accuracy, in two parts around the other arms' names: "0.6 points higher than" …
 * " (paired: +0.3 to +0.9)". */
typedef struct phrase {
    char head[64], tail[64];
} phrase;

static phrase points_phrase(const eni_pairs *pairs, bool has_one_seed)
{
    bool is_clear = pairs->nacc > 0 && (pairs->higher == pairs->nacc || pairs->lower == pairs->nacc) &&
                    fabs(pairs->points) >= 0.05;
    phrase p = {"", ""};
    if (pairs->has_same_weights) {
        snprintf(p.head, sizeof p.head, "with the same weights as");
        return p;
    }
    if (pairs->nacc == 0) {
        snprintf(p.head, sizeof p.head, "without a paired accuracy of");
        return p;
    }
    if (is_clear)
        snprintf(p.head, sizeof p.head, "%.1f points %s than", fabs(pairs->points),
                 pairs->points > 0 ? "higher" : "lower");
    else
        snprintf(p.head, sizeof p.head,
                 has_one_seed ? "as accurate as" : "with no clear difference in accuracy from");
    if (!has_one_seed)
        snprintf(p.tail, sizeof p.tail, " (paired: %+.1f to %+.1f)", pairs->points_range.low,
                 pairs->points_range.high);
    return p;
}

/* Arms with the same phrase share it: "0.7 points lower than ring and ps-sync". */
static void say_accuracies(sentence *s, const eni_pairs pairs[])
{
    phrase phrases[MAX_RIVALS];
    bool is_said[MAX_RIVALS] = {false};
    for (size_t i = 0; i < s->nrivals; i++)
        phrases[i] = points_phrase(&pairs[s->rivals[i]], s->has_one_seed);
    for (size_t i = 0; i < s->nrivals; i++) {
        if (is_said[i]) continue;
        say(s, i == 0 ? ", and ended %s" : " and %s", phrases[i].head);
        for (size_t j = i, named = 0; j < s->nrivals; j++) {
            bool is_same = strcmp(phrases[j].head, phrases[i].head) == 0 &&
                           strcmp(phrases[j].tail, phrases[i].tail) == 0;
            if (is_said[j] || !is_same) continue;
            say(s, named++ == 0 ? " %s" : " and %s", s->study->arms[s->rivals[j]].name);
            is_said[j] = true;
        }
        say(s, "%s", phrases[i].tail);
    }
}

/* Nobody reached the target, or the rates do not allow to compare accuracy: speed is what is left. */
static void say_speeds(sentence *s, const eni_pairs pairs[])
{
    size_t said = 0;
    say(s, "%s trained ", s->study->arms[s->leader].name);
    for (size_t i = 0; i < s->nrivals; i++) {
        size_t b = s->rivals[i];
        if (pairs[b].nspeed == 0) continue;
        say(s, "%s%.*f times as fast as %s", said++ == 0 ? "" : " and ",
            fabs(pairs[b].speed_ratio - 1) < 0.095 ? 2 : 1, pairs[b].speed_ratio, s->study->arms[b].name);
        if (!s->has_one_seed) say(s, " (faster in %zu of %zu seeds)", pairs[b].faster, pairs[b].nspeed);
    }
    if (said == 0) say(s, "alone");
}

static size_t fastest(const eni_study *study, size_t cell)
{
    size_t best = 0;
    double speed = -1;
    for (size_t a = 0; a < study->narms; a++) {
        eni_summary s = eni_study_summary(study, cell, a, eni_metric_samples_per_s);
        if (s.n == 0 || s.median <= speed) continue;
        best = a;
        speed = s.median;
    }
    return best;
}

static void say_alone(sentence *s)
{
    char time[32];
    eni_verdict_time(s->study, s->cell, s->leader, time, sizeof time);
    eni_summary reach = eni_study_summary(s->study, s->cell, s->leader, eni_metric_reach_t);
    eni_summary accuracy = eni_study_summary(s->study, s->cell, s->leader, eni_metric_accuracy);
    say(s, "%s ", s->study->arms[s->leader].name);
    if (reach.n == 0) {
        say(s, "ran alone, without an accuracy");
        return;
    }
    say(s, isinf(reach.median) ? "did not reach " : "reached ");
    say_percent(s, s->study->target);
    if (isfinite(reach.median)) say(s, " in %s", time);
    if (accuracy.n > 0) say(s, " and ended at %.1f %%", 100 * accuracy.median);
    say(s, "; nothing to compare with");
}

/* True when some arm has a finite median time: then the sentence is about time. */
static bool somebody_reached(const eni_study *study, size_t cell)
{
    for (size_t a = 0; a < study->narms; a++) {
        eni_summary time = eni_study_summary(study, cell, a, eni_metric_reach_t);
        if (time.n > 0 && isfinite(time.median)) return true;
    }
    return false;
}

static bool somebody_finished(const eni_study *study, size_t cell)
{
    for (size_t a = 0; a < study->narms; a++)
        if (eni_study_example(study, cell, a) != NULL) return true;
    return false;
}

static bool has_accuracy(const eni_study *study, size_t cell)
{
    for (size_t a = 0; a < study->narms; a++)
        if (eni_study_summary(study, cell, a, eni_metric_reach_t).n > 0) return true;
    return false;
}

/* The arms next to the leader, by the median time (or the speed), in the order of the arms. */
static void choose_rivals(sentence *s, bool is_about_time)
{
    double rank[ENI_MAX_ARMS];
    for (size_t a = 0; a < s->study->narms; a++) {
        eni_summary time = eni_study_summary(s->study, s->cell, a, eni_metric_reach_t);
        eni_summary speed = eni_study_summary(s->study, s->cell, a, eni_metric_samples_per_s);
        rank[a] = is_about_time ? time.n > 0 ? time.median : INFINITY
                  : speed.n > 0 ? -speed.median
                                : INFINITY;
    }
    for (size_t a = 0; a < s->study->narms && s->nrivals < MAX_RIVALS; a++) {
        size_t better = 0; /* other arms before this one */
        for (size_t b = 0; b < s->study->narms; b++)
            better += b != s->leader && (rank[b] < rank[a] || (b < a && !(rank[b] > rank[a])));
        if (a != s->leader && better < MAX_RIVALS) s->rivals[s->nrivals++] = a;
    }
}

void eni_verdict_sentence(const eni_study *study, const eni_fairness *fairness, size_t cell, char *text_out,
                          size_t size)
{
    bool is_about_time = fairness->is_accuracy_comparable && somebody_reached(study, cell);
    size_t leader = is_about_time ? eni_verdict_leader(study, cell) : fastest(study, cell);
    sentence s = {.text = text_out,
                  .size = size,
                  .study = study,
                  .cell = cell,
                  .leader = leader,
                  .has_one_seed = eni_study_count(study, cell, leader) == 1};
    eni_pairs pairs[ENI_MAX_ARMS];
    text_out[0] = 0;
    if (!somebody_finished(study, cell)) {
        say(&s, "no run ended well: nothing to say.");
        return;
    }
    if (study->narms == 1) {
        say_alone(&s);
        say(&s, ".");
        return;
    }
    for (size_t b = 0; b < study->narms; b++)
        eni_verdict_pairs(study, cell, leader, b, &pairs[b]);
    choose_rivals(&s, is_about_time);
    if (is_about_time) {
        say_times(&s, pairs);
        say_accuracies(&s, pairs);
    } else {
        if (fairness->is_accuracy_comparable && has_accuracy(study, cell)) {
            say(&s, "no arm reached ");
            say_percent(&s, study->target);
            say(&s, " within the budget; ");
        }
        say_speeds(&s, pairs);
    }
    size_t nleft = study->narms - 1 - s.nrivals;
    if (nleft > 0) say(&s, "; the table has %zu more arm%s", nleft, nleft == 1 ? "" : "s");
    if (!fairness->is_accuracy_comparable) say(&s, "; accuracy not comparable (rates not scaled)");
    if (s.has_one_seed) say(&s, "; one seed cannot tell chance from effect");
    say(&s, ".");
}

void eni_verdict_caveat(const eni_study *study, const eni_fairness *fairness, char *text_out, size_t size)
{
    size_t used = 0;
    if (fairness->nfail > 0)
        used = (size_t)snprintf(
            text_out, size,
            "The fairness box has a FAIL: until that is mended, the numbers are no comparison. ");
    if (used >= size || study->nseeds < 2 || study->narms < 2) {
        if (used == 0 && size > 0) text_out[0] = 0;
        return;
    }
    size_t n = study->nseeds;
    if (n < 6)
        snprintf(text_out + used, size - used,
                 "With %zu seeds, all pairs agree by chance alone in 1 of %.0f comparisons, and a paired "
                 "range covers "
                 "the true median with %.0f %%; six seeds make it 1 of 32 and 97 %%.",
                 n, 1 / eni_stats_chance(n), 100 * (1 - eni_stats_chance(n)));
    else
        snprintf(text_out + used, size - used,
                 "Paired ranges over %zu seeds cover the true median with at least 95 %% (order statistics).",
                 n);
}
