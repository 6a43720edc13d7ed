/* straggler.c - measures how long a piece of compute takes awake, and sleeps for the rest of its factor. */
#include "rank/straggler.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/rng.h"
#include "rank/rank.h"
#include "run/units.h"

/* A sleep of Linux lasts 50 us longer than requested, unless its thread asks for less. */
static const unsigned long timer_slack_ns = 1000;

static const int64_t shortest_sleep_ns = 50 * ENI_MICRO; /* shorter ones are carried over */
static const int64_t most_taken_back_ns = 100 * ENI_MILLI;

eni_straggler eni_straggler_of(const eni_rank *rank)
{
    const eni_record_options *asked = &rank->records.asked;
    eni_straggler s = {.factor = 1, .seed = rank->job.seed, .rank = rank->world.rank};
    for (int i = 0; i < asked->nstragglers; i++) {
        int64_t number;
        double factor;
        if (eni_straggler_parse(asked->stragglers[i], &number, &factor) && number == s.rank)
            s.factor = factor;
    }
    if (s.factor > 1)
        eni_info("rank", "emulated straggler: rank %d takes %.3g times as long to compute", s.rank, s.factor);
    return s;
}

void eni_straggler_open(eni_straggler *s)
{
    if (s->factor > 1) (void)prctl(PR_SET_TIMERSLACK, timer_slack_ns);
}

void eni_straggler_begin_step(eni_straggler *s, uint64_t step)
{
    if (s->piece > 0 && s->npieces_of_step == 0) { /* the first step did not sleep */
        s->carried_ns += s->owed_ns;
        s->owed_ns = 0;
    }
    if (s->piece > 0) s->npieces_of_step = s->piece;
    s->step = step;
    s->draws = 0;
    s->piece = 0;
}

void eni_straggler_begins(eni_straggler *s)
{
    if (s->factor > 1) s->cpu_mark_ns = eni_thread_ns();
}

static double draw(eni_straggler *s)
{
    const eni_rng_key key = {s->seed, ENI_RNG_STRAGGLER, (uint32_t)s->rank, s->step};
    return 0.9 + 0.2 * eni_rng_unit(&key, s->draws++);
}

/* ---- the time a piece takes awake ---- */

/* Nothing sleeps between the first piece of the previous step and the last piece of this one. */
static bool is_measured(const eni_straggler *s)
{
    return s->step % ENI_STRAGGLER_EVERY == 0 || s->npieces_of_step == 0;
}

static bool sleeps_ahead(const eni_straggler *s)
{
    return s->step % ENI_STRAGGLER_EVERY == ENI_STRAGGLER_EVERY - 1 && s->npieces_of_step > 0;
}

static int by_time(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The median of the last samples of a piece; `otherwise` without samples. */
static int64_t median_of(const eni_straggler *s, int piece, int64_t otherwise)
{
    int64_t ordered[ENI_STRAGGLER_KEPT];
    if (piece >= ENI_STRAGGLER_PIECES || s->samples[piece].n == 0) return otherwise;
    const eni_straggler_samples *samples = &s->samples[piece];
    const size_t n = samples->n < ENI_STRAGGLER_KEPT ? samples->n : ENI_STRAGGLER_KEPT;
    memcpy(ordered, samples->ns, n * sizeof *ordered);
    qsort(ordered, n, sizeof *ordered, by_time);
    return ordered[n / 2];
}

/* The time a piece takes awake. It took `own_ns` now, which counts if it is less: a ragged batch. */
static int64_t awake_ns(eni_straggler *s, int64_t own_ns)
{
    if (is_measured(s) && s->piece < ENI_STRAGGLER_PIECES) {
        eni_straggler_samples *samples = &s->samples[s->piece];
        samples->ns[samples->n++ % ENI_STRAGGLER_KEPT] = own_ns;
    }
    const int64_t median = median_of(s, s->piece, own_ns);
    return own_ns < median ? own_ns : median;
}

/* The expected sleep of the remaining pieces of this step. */
static int64_t rest_of_step(const eni_straggler *s)
{
    double sum = 0;
    for (int piece = s->piece; piece < s->npieces_of_step; piece++)
        sum += (s->factor - 1) * (double)median_of(s, piece, 0);
    return (int64_t)sum;
}

/* ---- the sleep ---- */

/* Sleeps for the time owed and soon owed (`ahead_ns`), less earlier excess or plus part of the carried
 * time. */
static int64_t sleep_now(eni_straggler *s, int64_t ahead_ns)
{
    const int64_t begin = eni_now_ns(), due = s->owed_ns + ahead_ns;
    const int64_t wanted = due + (s->carried_ns < due / 8 ? s->carried_ns : due / 8);
    if (due >= 0 && due < shortest_sleep_ns) return 0; /* it adds up */
    if (wanted >= shortest_sleep_ns) eni_sleep_until(begin + wanted);
    const int64_t slept = wanted >= shortest_sleep_ns ? eni_now_ns() - begin : 0;
    s->slept_ns += slept;
    s->wall_ns += slept;
    s->owed_ns = -ahead_ns;
    s->carried_ns += due - slept;
    if (s->carried_ns < -most_taken_back_ns) s->carried_ns = -most_taken_back_ns;
    return slept;
}

static void count_piece(eni_straggler *s, int64_t begin_ns, int64_t took_ns)
{
    const int64_t wall = eni_now_ns() - begin_ns,
                  rest = (int64_t)(s->factor * draw(s) * (double)took_ns) - wall;
    s->npieces++;
    s->nlate += rest < -shortest_sleep_ns;
    s->took_ns += took_ns;
    s->wall_ns += wall;
    s->owed_ns += rest;
}

int64_t eni_straggler_took(eni_straggler *s, int64_t begin_ns, int64_t took_ns)
{
    if (s->factor <= 1) return 0;
    count_piece(s, begin_ns, took_ns);
    return sleep_now(s, 0);
}

int64_t eni_straggler_ends(eni_straggler *s, int64_t begin_ns)
{
    int64_t slept = 0;
    if (s->factor <= 1) return 0;
    count_piece(s, begin_ns, awake_ns(s, eni_thread_ns() - s->cpu_mark_ns));
    s->piece++;
    if (is_measured(s) ? s->npieces_of_step > 0 && s->piece >= s->npieces_of_step
                       : !sleeps_ahead(s) || s->piece == 1 || s->piece > s->npieces_of_step)
        slept = sleep_now(s, sleeps_ahead(s) ? rest_of_step(s) : 0);
    eni_straggler_begins(s);
    return slept;
}

double eni_straggler_factor(const eni_straggler *s)
{
    return s->took_ns > 0 ? (double)s->wall_ns / (double)s->took_ns : 0;
}

void eni_straggler_report(const eni_straggler *s, json_t *report)
{
    ENI_JSON_SET_INTS(report, {"straggler_slept_ns", (uint64_t)s->slept_ns},
                      {"straggler_pieces", (uint64_t)s->npieces}, {"straggler_late", (uint64_t)s->nlate});
    if (s->factor <= 1) return;
    const double factor = eni_straggler_factor(s);
    eni_json_set_number(report, "straggler_asked", s->factor);
    json_object_set_new(report, "straggler_factor", factor > 0 ? json_real(factor) : json_null());
}
