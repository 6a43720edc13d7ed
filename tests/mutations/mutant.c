/* mutant.c - linked into en_core with EN_MUTATIONS=ON only. */
#include <stdlib.h>
#include <string.h>

#include "core/mutation.h"

int eni_mutant(const char *name)
{
    const char *wanted = getenv("EN_MUTANT");
    return wanted && strcmp(wanted, name) == 0;
}
