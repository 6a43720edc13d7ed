/* fuzz_idx.c - any bytes as an IDX file: accepted only if the sizes add up, or as gzip. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/log.h"
#include "data/dataset_make.h"
#include "tests/heard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    eni_idx idx = {0};
    eni_log_set_sink(hear, NULL);
    char path[32];
    const int fd = memfd_create("input", 0);
    const bool is_gzip = bytes > 1 && data[0] == 0x1f && data[1] == 0x8b;
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (eni_idx_read(path, true, &idx) == EN_OK) {
        if (idx.bytes == 0 || idx.bytes != idx.dim[0] * idx.dim[1] * idx.dim[2]) abort();
        if (!is_gzip && idx.bytes + 4 + 4 * (uint64_t)idx.ndims != bytes) abort();
    }
    close(fd);
    eni_idx_fini(&idx);
    return 0;
}
