/* fuzz_wire.c - bytes of any kind as a message header. What is accepted must encode and decode to itself. */
#include <stdlib.h>
#include <string.h>

#include "runtime/net/wire.h"
#include "tests/fuzz/mutate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    return fuzz_mutate_array(data, bytes, max_bytes, seed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    eni_header header, again;
    uint8_t first[ENI_HEADER_MAX], second[ENI_HEADER_MAX];
    const char *why = NULL;
    if (eni_header_decode(data, bytes, &header, &why) != EN_OK) {
        if (why == NULL) abort();
        return 0;
    }
    size_t n = eni_header_encode(&header, first);
    if (eni_header_decode(first, n, &again, NULL) != EN_OK) abort();
    if (eni_header_encode(&again, second) != n || memcmp(first, second, n) != 0) abort();
    return 0;
}
