/* fuzz_idx.c - any bytes as an IDX file: accepted only if the sizes add up. */
#include <stdlib.h>

#include "core/log.h"
#include "data/idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore(void *user, int level, const char *subsystem, const char *text)
{
    (void)user;
    (void)level;
    (void)subsystem;
    (void)text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    eni_idx idx = {0};
    eni_log_set_sink(ignore, NULL);
    if (eni_idx_parse(data, bytes, "input", &idx) == EN_OK) {
        if (idx.bytes == 0 || idx.bytes != idx.dim[0] * idx.dim[1] * idx.dim[2]) abort();
        if (idx.bytes + 4 + 4 * (uint64_t)idx.ndims != bytes) abort();
    }
    eni_idx_fini(&idx);
    return 0;
}
