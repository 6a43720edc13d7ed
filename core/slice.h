/* slice.h - the length of a thread's time slice: a thread with short ones gets a core back sooner after a sleep. */
#ifndef CORE_SLICE_H
#define CORE_SLICE_H

#include <stdbool.h>

/* Asks the scheduler for short time slices for the calling thread (is_short), or for default ones. Short slices are
 * scheduled sooner: for threads that move bytes, which work for some 10 us at a time and must not wait milliseconds for a
 * compute thread's slice to end. The share of the core stays the same. Threads started later by this one inherit it.
 * Linux 6.12 and later; elsewhere, or without permission, nothing changes. */
void eni_slice_ask(bool is_short);

#endif
