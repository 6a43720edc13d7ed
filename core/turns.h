/* turns.h - how soon a thread that has been asleep gets a core back from one that computes. */
#ifndef CORE_TURNS_H
#define CORE_TURNS_H

/* Asks the scheduler for short turns for the calling thread (is_short 1), or for usual ones (0). Short turns
 * come sooner: for threads that move bytes, which work for some 10 us at a time and must not wait for
 * milliseconds until somebody who computes has had his turn. The share of the core stays the same. Threads
 * started later by this one inherit it. Linux 6.12 and later; elsewhere, or where it is not allowed, nothing
 * changes. */
void eni_turns_ask(int is_short);

#endif
