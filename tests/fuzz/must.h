/* must.h - how a fuzz target says that what it was given came out wrong. */
#ifndef FUZZ_MUST_H
#define FUZZ_MUST_H

#include <stdlib.h>

static inline void must(int claim)
{
    if (!claim) abort();
}

#endif
