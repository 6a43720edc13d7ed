/* allocations.h - counts what a program allocates: link allocations.c and its malloc takes the place of the C
 * library's, for this program and the libraries it loads. Not with a sanitizer, which has a malloc of its
 * own. */
#ifndef TESTS_ALLOCATIONS_H
#define TESTS_ALLOCATIONS_H

typedef struct allocations {
    long own;     /* asked for by code of the program itself, or of a plugin of this build */
    long foreign; /* by a library: ZeroMQ, oneDNN */
    long freed;   /* blocks given back, by whomever */
    long largest; /* bytes */
} allocations;

/* Counts from now on, from zero, all threads. */
void allocations_begin(void);
/* Stops counting. */
allocations allocations_end(void);

#endif
