/* straggler.c - see straggler.h. */
#include "worker/straggler.h"

#include "runtime/core/clock.h"
#include "runtime/core/rng.h"

enum { SHORTEST_SLEEP_NS = 200000 }; /* shorter ones are owed: a timer overshoots by some 50 us */

void eni_straggler_begin_step(eni_straggler *straggler, uint64_t step)
{
    straggler->step = step;
    straggler->calls = 0;
}

void eni_straggler_after(eni_straggler *straggler, int64_t took_ns)
{
    if (straggler->factor <= 1) return;
    eni_rng_key key = {straggler->seed, ENI_RNG_STRAGGLER, (uint32_t)straggler->rank, straggler->step};
    double noise = 0.9 + 0.2 * eni_rng_unit(&key, straggler->calls++);
    straggler->owed_ns += (int64_t)((straggler->factor - 1) * noise * (double)took_ns);
    if (straggler->owed_ns < SHORTEST_SLEEP_NS) return;
    int64_t begin = eni_now_ns();
    eni_sleep_until(begin + straggler->owed_ns);
    int64_t slept = eni_now_ns() - begin;
    straggler->slept_ns += slept;
    straggler->owed_ns -= slept; /* an overshoot is taken back from the next */
}
