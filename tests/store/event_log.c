/* event_log.c - a header of text, then records of bytes; the reader checks all that it reads. */
#include "tests/store/event_log.h"

#include <stdio.h>
#include <string.h>

#include "core/digest.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

static const char magic[8] = {'E', 'N', 'S', 'T', 'O', 'R', 'E', '\n'};
enum { HEADER = 16, TEXT_MAX = 1 << 26, IS_REPLAY = 1 << 15 };

/* ---- numbers ------------------------------------------------------------------------------------------- */

static void put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

en_status event_log_begin(const event_log *log, const eni_store_config *config)
{
    uint8_t header[HEADER];
    size_t n;
    char *text = eni_store_config_text(config, &n);
    if (!text) return EN_ENOMEM;
    memcpy(header, magic, sizeof magic);
    put(header + 8, EVENT_LOG_VERSION, 4);
    put(header + 12, n, 4);
    en_status st = log->write(log->user, header, HEADER);
    if (st == EN_OK) st = log->write(log->user, text, n);
    eni_free(text);
    return st;
}

/* SHA-256 as bytes. */
static void hash_payload(const eni_payload *payload, uint8_t digest_out[EVENT_LOG_DIGEST])
{
    char hex[ENI_DIGEST_HEX];
    eni_digest_of(payload->data, payload->count * sizeof(float), hex);
    for (int i = 0; i < EVENT_LOG_DIGEST; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        digest_out[i] = (uint8_t)byte;
    }
}

en_status event_log_event(const event_log *log, const eni_store_event *event)
{
    uint8_t record[EVENT_LOG_RECORD + EVENT_LOG_DIGEST];
    const eni_payload *payload = &event->payload;
    const int mode = payload->data ? log->payloads : 0;
    put(record, event->type, 1);
    put(record + 1, (uint64_t)mode, 1);
    put(record + 2, payload->flags | (event->is_replay ? IS_REPLAY : 0), 2);
    put(record + 4, (uint32_t)event->client, 4);
    put(record + 8, (uint64_t)event->now_ns, 8);
    put(record + 16, event->incarnation, 8);
    put(record + 24, event->ticket, 8);
    put(record + 32, event->bucket, 4);
    put(record + 36, event->member, 4);
    put(record + 40, event->seq, 8);
    put(record + 48, event->kind, 4);
    put(record + 52, event->what, 4);
    put(record + 56, event->base_version, 8);
    put(record + 64, event->nsamples, 8);
    put(record + 72, event->covered, 8);
    put(record + 80, payload->count, 8);
    if (mode == EVENT_LOG_HASH) hash_payload(payload, record + EVENT_LOG_RECORD);
    EN_TRY(log->write(log->user, record, EVENT_LOG_RECORD + (mode == EVENT_LOG_HASH ? EVENT_LOG_DIGEST : 0)));
    /* Little-endian machines only, as on the wire. */
    if (mode != EVENT_LOG_CONTENT) return EN_OK;
    return log->write(log->user, payload->data, payload->count * sizeof(float));
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static en_status refuse(const char *why)
{
    return eni_fail(EN_EFORMAT, "event_log", "not a whole event log: %s", why);
}

en_status event_reader_open(const void *bytes, size_t length, event_reader *reader_out)
{
    const uint8_t *at = bytes;
    if (length < HEADER || memcmp(at, magic, sizeof magic) != 0) return refuse("it does not begin as one");
    if (get(at + 8, 4) != EVENT_LOG_VERSION)
        return eni_fail(EN_EVERSION, "event_log", "this event log has version %u, this build reads %d",
                        (unsigned)get(at + 8, 4), EVENT_LOG_VERSION);
    const size_t text_bytes = (size_t)get(at + 12, 4);
    if (text_bytes > length - HEADER || text_bytes > TEXT_MAX) return refuse("its header is cut off");
    *reader_out = (event_reader){
        .at = at + HEADER + text_bytes,
        .end = at + length,
        .text = (const char *)at + HEADER,
        .text_bytes = text_bytes,
    };
    return EN_OK;
}

en_status event_reader_find(const event_reader *reader, const char *key, char *text_out, size_t bytes)
{
    const size_t key_bytes = strlen(key);
    const char *line = reader->text, *end = reader->text + reader->text_bytes;
    while (line < end) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        const size_t length = (size_t)(stop - line);
        if (length > key_bytes && memcmp(line, key, key_bytes) == 0 && line[key_bytes] == '=') {
            const size_t value_bytes = length - key_bytes - 1;
            if (value_bytes >= bytes) return EN_ENOENT;
            memcpy(text_out, line + key_bytes + 1, value_bytes);
            text_out[value_bytes] = 0;
            return EN_OK;
        }
        line = stop + 1;
    }
    return EN_ENOENT;
}

static void release(void *data)
{
    eni_free(data);
}

/* The payload behind a record. */
static en_status read_payload(event_reader *reader, int mode, eni_payload *payload, uint8_t *digest_out)
{
    const uint64_t left = (uint64_t)(reader->end - reader->at);
    if (mode == 0) return payload->count == 0 ? EN_OK : refuse("elements without a payload");
    if (mode == EVENT_LOG_HASH) {
        if (left < EVENT_LOG_DIGEST) return refuse("a hash is cut off");
        if (digest_out) memcpy(digest_out, reader->at, EVENT_LOG_DIGEST);
        reader->at += EVENT_LOG_DIGEST;
        return EN_OK;
    }
    if (mode != EVENT_LOG_CONTENT) return refuse("a payload is of unknown kind");
    if (payload->count > left / sizeof(float)) return refuse("a payload is cut off");
    payload->data = eni_alloc_array(payload->count, sizeof(float));
    if (!payload->data) return EN_ENOMEM;
    memcpy(payload->data, reader->at, payload->count * sizeof(float));
    payload->release = release;
    payload->owner = payload->data;
    reader->at += payload->count * sizeof(float);
    return EN_OK;
}

en_status event_reader_next(event_reader *reader, eni_store_event *event_out,
                            uint8_t digest_out[EVENT_LOG_DIGEST])
{
    const uint8_t *at = reader->at;
    if (at == reader->end) return EN_ENOENT;
    if (reader->end - at < EVENT_LOG_RECORD) return refuse("a record is cut off");
    if (at[0] < ENI_STORE_INIT || at[0] > ENI_STORE_TIMER) return refuse("an event is of unknown type");
    eni_store_event event = {
        .type = (eni_store_event_type)at[0],
        .client = (int32_t)(uint32_t)get(at + 4, 4),
        .now_ns = (int64_t)get(at + 8, 8),
        .incarnation = get(at + 16, 8),
        .ticket = get(at + 24, 8),
        .bucket = (uint32_t)get(at + 32, 4),
        .member = (uint32_t)get(at + 36, 4),
        .seq = get(at + 40, 8),
        .kind = (uint32_t)get(at + 48, 4),
        .what = (uint32_t)get(at + 52, 4),
        .base_version = get(at + 56, 8),
        .nsamples = get(at + 64, 8),
        .covered = get(at + 72, 8),
        .payload = {.count = get(at + 80, 8)},
        .is_replay = (get(at + 2, 2) & IS_REPLAY) != 0,
    };
    reader->at += EVENT_LOG_RECORD;
    EN_TRY(read_payload(reader, at[1], &event.payload, digest_out));
    event.payload.flags = 0; /* a copy is neither borrowed nor read-only: the sums are the same */
    *event_out = event;
    return EN_OK;
}
