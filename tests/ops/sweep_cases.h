/* sweep_cases.h - the operations that test_sweep.c goes through, by number: all combinations of the values below. */
#ifndef TESTS_OPS_SWEEP_CASES_H
#define TESTS_OPS_SWEEP_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/op.h"

/* Those that are always taken come first: shapes that once went wrong, and the set of trial.h. */
int64_t sweep_fixed(void);

/* How many numbers there are. */
int64_t sweep_cases(void);

/* False: number `i` makes no sense, as a window that is larger than its image. */
bool sweep_case(int64_t i, en_op *op_out);

#endif
