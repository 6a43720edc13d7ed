/* fuzz_checkpoint.c - any bytes as a checkpoint of the toy network. Its seal is set right first, or nothing
 * but the seal would ever be tested. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/log.h"
#include "rank/checkpoint.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/mutate.h"
#include "tests/network.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char head[] = "{\"__metadata__\":{\"digest\":\"";
enum { LENGTH = 8, SEAL = LENGTH + sizeof head - 1, HEX = ENI_DIGEST_HEX - 1 };

/* A number somewhere in the text of the header becomes one near a limit; the header's length stays. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    unsigned state = seed;
    if (bytes < SEAL + HEX + 16 || fuzz_random(&state) % 3 == 0)
        return LLVMFuzzerMutate(data, bytes, max_bytes);
    const size_t begin = SEAL + HEX;
    for (int tries = 0; tries < 64; tries++) {
        size_t at = begin + fuzz_random(&state) % (bytes - begin);
        if (data[at] < '0' || data[at] > '9') continue;
        for (; at < bytes && data[at] >= '0' && data[at] <= '9'; at++)
            data[at] = (uint8_t)('0' + fuzz_random(&state) % 10);
        break;
    }
    return bytes;
}

static uint8_t *sealed(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    char hex[ENI_DIGEST_HEX];
    must(copy != NULL);
    if (bytes > 0) memcpy(copy, data, bytes);
    if (bytes < SEAL + HEX || memcmp(copy + LENGTH, head, sizeof head - 1) != 0) return copy;
    memset(copy + SEAL, '0', HEX);
    eni_digest_of(copy, bytes, hex);
    memcpy(copy + SEAL, hex, HEX);
    return copy;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char why[ENI_ST_WHY] = "";
    en_schema schema;
    eni_checkpoint checkpoint = {0};
    eni_log_set_level(-1);
    must(en_schema_init(network_named("toy"), &schema) == EN_OK);
    uint8_t *copy = sealed(data, bytes);
    if (eni_checkpoint_parse("input", copy, bytes, &schema, &checkpoint, why) == EN_OK) {
        for (uint32_t i = 0; i < checkpoint.nvectors; i++)
            for (uint64_t k = 0; k < schema.count; k++)
                must(isfinite(checkpoint.vectors[i].flat[k]));
        for (uint32_t i = 0; i < checkpoint.nspans; i++)
            must(checkpoint.spans[i].lo <= checkpoint.spans[i].hi && checkpoint.spans[i].hi <= schema.count);
        char *facts = eni_checkpoint_facts(&checkpoint);
        must(facts != NULL);
        free(facts);
    } else {
        must(why[0] != 0);
    }
    eni_checkpoint_fini(&checkpoint);
    free(copy);
    en_schema_fini(&schema);
    return 0;
}
