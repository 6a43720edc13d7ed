/* fuzz_event_log.c - any bytes as an event log. What is accepted is written again and must read the same. */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "tests/fuzz/memory.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/mutate.h"
#include "tests/store/event_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { HEADER = 16 };

/* One number of one record, or the length of the header's text, becomes one near a limit. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    unsigned state = seed;
    uint32_t text;
    if (bytes < HEADER || fuzz_random(&state) % 3 == 0) return LLVMFuzzerMutate(data, bytes, max_bytes);
    memcpy(&text, data + 12, sizeof text);
    const size_t records = text < bytes - HEADER ? HEADER + text : bytes;
    const uint64_t number = fuzz_number(&state);
    const size_t room = bytes - records, width = (size_t)1 << fuzz_random(&state) % 4;
    const size_t at = room < EVENT_LOG_RECORD ? 12 : records + fuzz_random(&state) % (room - 8);
    memcpy(data + at, &number, at == 12 ? 4 : width);
    return bytes;
}

/* A hash cannot be written from an event that has only it; contents must come back bit by bit. */
static void write_again(const eni_store_event *event, const uint8_t *record, size_t bytes)
{
    static memory to;
    const event_log log = {.write = keep, .user = &to, .payloads = EVENT_LOG_CONTENT};
    to.n = 0;
    if (record[1] == EVENT_LOG_HASH || event_log_event(&log, event) != EN_OK) return;
    must(to.n == bytes && memcmp(to.bytes + 4, record + 4, bytes - 4) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    event_reader reader;
    eni_store_event event;
    uint8_t digest[EVENT_LOG_DIGEST];
    char value[64];
    eni_log_set_level(-1);
    if (event_reader_open(data, bytes, &reader) != EN_OK) return 0;
    if (event_reader_find(&reader, "buckets", value, sizeof value) == EN_OK)
        must(memchr(value, 0, sizeof value) != NULL);
    for (;;) {
        const uint8_t *record = reader.at;
        const en_status st = event_reader_next(&reader, &event, digest);
        if (st != EN_OK) return 0;
        must(reader.at > record && reader.at <= data + bytes);
        write_again(&event, record, (size_t)(reader.at - record));
        if (event.payload.release != NULL) event.payload.release(event.payload.owner);
    }
}
