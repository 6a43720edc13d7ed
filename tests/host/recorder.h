/* recorder.h - stands between a host and a strategy, and between a store and its hooks: notes what each rank asks and is
 * told, and what reaches the store. */
#ifndef TESTS_HOST_RECORDER_H
#define TESTS_HOST_RECORDER_H

#include "entrain/strategy.h"

enum { RECORDER_RANKS = 3 };

/* `strategy` with the recorder around it; one at a time, until recorder_close. */
const en_strategy *recorder_open(const en_strategy *strategy);
void recorder_close(void);

/* What a rank has asked and was told since the last take, or (RECORDER_RANKS) what the store saw; the caller frees it. */
char *recorder_take(int rank);

#endif
