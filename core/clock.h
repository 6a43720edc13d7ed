/* clock.h - monotonic time in nanoseconds, and deadlines as points of it. */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define ENI_SECOND INT64_C(1000000000)
#define ENI_MILLI  INT64_C(1000000)
#define ENI_MICRO  INT64_C(1000)

/* Nanoseconds on CLOCK_MONOTONIC: comparable between processes of one machine, never across machines. */
static inline int64_t eni_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * ENI_SECOND + t.tv_nsec;
}

/* CPU time of the calling thread in nanoseconds. */
static inline int64_t eni_thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * ENI_SECOND + t.tv_nsec;
}

/* Milliseconds left until `deadline_ns`, for poll(2): 0 when it has passed, at most `cap_ms`. */
static inline int eni_ms_left(int64_t deadline_ns, int cap_ms)
{
    int64_t left = deadline_ns - eni_now_ns();
    if (left <= 0) return 0;
    left = (left + ENI_MILLI - 1) / ENI_MILLI;
    return left < cap_ms ? (int)left : cap_ms;
}

/* For system calls: a moment, or a time that is not negative. */
static inline struct timespec eni_timespec(int64_t ns)
{
    return (struct timespec){(time_t)(ns / ENI_SECOND), (long)(ns % ENI_SECOND)};
}

/* Sleeps until `when_ns` on the monotonic clock; returns at once if it has passed. */
static inline void eni_sleep_until(int64_t when_ns)
{
    const struct timespec t = eni_timespec(when_ns);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
    }
}

#endif
