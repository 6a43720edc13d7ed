/* straggler.c - measures what a piece of compute takes awake, and sleeps for the rest of its factor. */
#include "worker/straggler.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/rng.h"

/* A sleep of Linux lasts 50 us more than was asked, unless its thread says otherwise. */
static const unsigned long timer_slack_ns = 1000;

static const int64_t shortest_sleep_ns = 50 * ENI_MICRO; /* shorter ones are owed */
static const int64_t most_taken_back_ns = 100 * ENI_MILLI;

void eni_straggler_open(eni_straggler *s)
{
    if (s->factor > 1) (void)prctl(PR_SET_TIMERSLACK, timer_slack_ns);
}

void eni_straggler_begin_step(eni_straggler *s, uint64_t step)
{
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

/* ---- what a piece takes awake ---- */

/* Two steps in a row without a sleep: the second finds its caches as it left them. */
static bool is_awake(const eni_straggler *s)
{
    return s->step % ENI_STRAGGLER_EVERY < 2;
}

static int by_time(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The median of the piece's last samples; `own_ns`, what it took now, where that is less (a ragged batch) or
 * nothing is known yet. */
static int64_t awake_ns(eni_straggler *s, int64_t own_ns)
{
    const int at = s->piece++;
    if (at >= ENI_STRAGGLER_PIECES) return own_ns;
    eni_straggler_samples *samples = &s->samples[at];
    if (s->step % ENI_STRAGGLER_EVERY == 1) samples->ns[samples->n++ % ENI_STRAGGLER_KEPT] = own_ns;
    if (samples->n == 0) return own_ns;
    int64_t ordered[ENI_STRAGGLER_KEPT];
    const size_t n = samples->n < ENI_STRAGGLER_KEPT ? samples->n : ENI_STRAGGLER_KEPT;
    memcpy(ordered, samples->ns, n * sizeof *ordered);
    qsort(ordered, n, sizeof *ordered, by_time);
    return own_ns < ordered[n / 2] ? own_ns : ordered[n / 2];
}

/* ---- the sleep ---- */

static void settle(eni_straggler *s, int64_t begin_ns, int64_t took_ns, bool may_sleep)
{
    const int64_t end = eni_now_ns(),
                  rest = (int64_t)(s->factor * draw(s) * (double)took_ns) - (end - begin_ns);
    s->npieces++;
    s->nlate += rest < -shortest_sleep_ns;
    s->took_ns += took_ns;
    s->wall_ns += end - begin_ns;
    s->owed_ns += rest;
    if (s->owed_ns < -most_taken_back_ns) s->owed_ns = -most_taken_back_ns;
    if (s->owed_ns < shortest_sleep_ns || !may_sleep) return;
    eni_sleep_until(end + s->owed_ns);
    const int64_t slept = eni_now_ns() - end;
    s->slept_ns += slept;
    s->wall_ns += slept;
    s->owed_ns -= slept;
}

void eni_straggler_took(eni_straggler *s, int64_t begin_ns, int64_t took_ns)
{
    if (s->factor > 1) settle(s, begin_ns, took_ns, true);
}

void eni_straggler_ends(eni_straggler *s, int64_t begin_ns)
{
    if (s->factor <= 1) return;
    const int64_t took = awake_ns(s, eni_thread_ns() - s->cpu_mark_ns);
    settle(s, begin_ns, took, !is_awake(s));
    eni_straggler_begins(s);
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
