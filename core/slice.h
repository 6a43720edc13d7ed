/* slice.h - how long a slice of time a thread gets: who asks for short ones gets a core back sooner after a
 * sleep. */
#ifndef CORE_SLICE_H
#define CORE_SLICE_H

#include <stdbool.h>

/* Asks the scheduler for short slices of time for the calling thread (is_short), or for usual ones.
 * Short slices come sooner: for threads that move bytes, which work for some 10 us at a time and must not
 * wait for milliseconds until a thread that computes has had its slice. The share of the core stays the same.
 * Threads started later by this one inherit it. Linux 6.12 and later; elsewhere, or where it is not allowed,
 * nothing changes. */
void eni_slice_ask(bool is_short);

#endif
