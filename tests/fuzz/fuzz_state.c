/* fuzz_state.c - any bytes as the state of a store. The first byte chooses the strategy. What is loaded must
 * save to a state that loads again to the same bytes, take calls, and give all memory back. */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/options.h"
#include "ops/optimizer.h"
#include "runtime/store/store_save.h"
#include "tests/fuzz/memory.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/mutate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { CLIENTS = 2, BUCKETS = 2, HEADER = 16 };
static const uint64_t counts[BUCKETS] = {5, 3};

/* A number behind the configuration becomes one near a limit: a length, a count, a reference. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    unsigned state = seed;
    uint32_t text;
    if (bytes < 1 + HEADER + 16 || fuzz_random(&state) % 4 == 0)
        return LLVMFuzzerMutate(data, bytes, max_bytes);
    memcpy(&text, data + 1 + 12, sizeof text);
    const size_t begin = 1 + HEADER + (text < bytes - 1 - HEADER - 16 ? text : 0);
    const uint64_t number = fuzz_random(&state) % 2 ? fuzz_number(&state) : fuzz_random(&state) % 4;
    const size_t width = (size_t)1 << fuzz_random(&state) % 4;
    memcpy(data + begin + fuzz_random(&state) % (bytes - begin - 8), &number, width);
    return bytes;
}

static eni_store *store_of(unsigned choice, eni_options **options_out)
{
    const en_strategy *strategy = en_strategy_entry(EN_STRATEGY_ABI);
    for (unsigned i = choice % 3; i > 0 && strategy->next != NULL; i--)
        strategy = strategy->next;
    must(eni_options_new(strategy, "", options_out) == EN_OK);
    const eni_store_config config = {.strategy = strategy,
                                     .options = *options_out,
                                     .optimizer = eni_optimizer_find("sgd"),
                                     .hyper = {.momentum = 0.9f},
                                     .schedule = {.kind = ENI_LR_CONSTANT, .base = 0.1},
                                     .nbuckets = BUCKETS,
                                     .bucket_counts = counts,
                                     .nshards = 1,
                                     .world = CLIENTS,
                                     .seed = 7};
    eni_store *store;
    must(eni_store_new(&config, &store) == EN_OK);
    return store;
}

static void call(eni_store *store, eni_store_actions *actions)
{
    float gradient[5] = {1, 2, 3, 4, 5};
    for (int32_t c = 0; c < CLIENTS; c++)
        for (uint32_t b = 0; b < BUCKETS; b++) {
            const eni_store_event event = {
                .type = ENI_STORE_CALL,
                .now_ns = 1000,
                .client = c,
                .incarnation = eni_store_incarnation(store, c),
                .ticket = 1,
                .bucket = b,
                .seq = eni_store_seq(store, c, b) + 1,
                .what = EN_GRAD,
                .nsamples = 1,
                .covered = 3,
                .payload = {.data = gradient,
                            .count = counts[b],
                            .flags = ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY}};
            must(eni_store_step(store, &event, actions) == EN_OK);
        }
    const eni_store_event timer = {.type = ENI_STORE_TIMER, .now_ns = 2000};
    must(eni_store_step(store, &timer, actions) == EN_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static memory first, second;
    eni_options *options[2] = {NULL, NULL};
    eni_store_actions actions = {0};
    if (bytes == 0) return 0;
    eni_log_set_level(-1);
    eni_store *store = store_of(data[0], &options[0]), *again = NULL;
    if (eni_store_load(store, data + 1, bytes - 1, 500) == EN_OK) {
        first.n = second.n = 0;
        must(eni_store_save(store, keep, &first) == EN_OK);
        again = store_of(data[0], &options[1]);
        must(eni_store_load(again, first.bytes, first.n, 500) == EN_OK);
        must(eni_store_save(again, keep, &second) == EN_OK);
        must(first.n == second.n && memcmp(first.bytes, second.bytes, first.n) == 0);
        call(store, &actions);
    }
    eni_store_free(store);
    eni_store_free(again);
    eni_store_actions_fini(&actions);
    eni_options_free(options[0]);
    eni_options_free(options[1]);
    return 0;
}
