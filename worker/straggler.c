/* straggler.c - see straggler.h. */
#include "worker/straggler.h"

#include <sys/prctl.h>

#include "runtime/core/clock.h"
#include "runtime/core/rng.h"

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

void eni_straggler_took(eni_straggler *s, int64_t begin_ns, int64_t took_ns)
{
    if (s->factor <= 1) return;
    const int64_t end = eni_now_ns(),
                  rest = (int64_t)(s->factor * draw(s) * (double)took_ns) - (end - begin_ns);
    s->npieces++;
    s->nlate += rest < -shortest_sleep_ns;
    s->took_ns += took_ns;
    s->wall_ns += end - begin_ns;
    s->owed_ns += rest;
    if (s->owed_ns < -most_taken_back_ns) s->owed_ns = -most_taken_back_ns;
    if (s->owed_ns < shortest_sleep_ns) return;
    eni_sleep_until(end + s->owed_ns);
    const int64_t slept = eni_now_ns() - end;
    s->slept_ns += slept;
    s->wall_ns += slept;
    s->owed_ns -= slept;
}

void eni_straggler_ends(eni_straggler *s, int64_t begin_ns)
{
    if (s->factor <= 1) return;
    eni_straggler_took(s, begin_ns, eni_thread_ns() - s->cpu_mark_ns);
    eni_straggler_begins(s);
}

double eni_straggler_factor(const eni_straggler *s)
{
    return s->took_ns > 0 ? (double)s->wall_ns / (double)s->took_ns : 0;
}
