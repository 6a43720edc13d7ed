/* side_by_side.h - cases that start a process and wait for it: eight at a time, each in a child of the test
 * with its own folder (system_folder(), below the test's) and its own orphans. The output of a case is shown
 * if it fails, and its PROMISE lines always. */
#ifndef TESTS_SYSTEM_SIDE_BY_SIDE_H
#define TESTS_SYSTEM_SIDE_BY_SIDE_H

#include "tests/system/process.h"

/* Calls run(cases, i) for each i below n; fails the test if one of them fails. The seconds of the slowest. */
double side_by_side(size_t n, void (*run)(const void *cases, size_t i), const void *cases);

/* As system_main(), with whole tests as cases. */
#define side_by_side_main(tests) side_by_side_run(tests, sizeof(tests) / sizeof *(tests))
int side_by_side_run(const struct CMUnitTest *tests, size_t n);

#endif
