/* recorder.h - stands between a host and a strategy, and between a store and its hooks: notes what each rank
 * asks and is told, and in which order calls reach the store; holds the ranks of another run to that order.
 */
#ifndef TESTS_HOST_RECORDER_H
#define TESTS_HOST_RECORDER_H

#include "entrain/strategy.h"

enum { RECORDER_RANKS = 3 };

/* `strategy` with the recorder around it; one at a time, until recorder_close. */
const en_strategy *recorder_open(const en_strategy *strategy);
void recorder_close(void);

/* What a rank has asked and was told since the last take; the caller frees it. */
char *recorder_take(int rank);

/* The script of arrivals: a first run writes down in which order calls, timers and the ends of ranks reach
 * the store, a second is held to it: a rank waits at a gate until its call is the next. */
typedef enum { SCRIPT_NONE, SCRIPT_WRITE, SCRIPT_FOLLOW } script_mode;
void script_set(script_mode mode);

/* Waits until it is this rank's turn to end; until all has arrived: how many arrivals that were. */
void script_await_turn(int rank);
int script_await_end(void);

#endif
