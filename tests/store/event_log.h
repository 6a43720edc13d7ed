/* event_log.h - every input of a store, in order, so that a run can be repeated without its workers.
 *
 * eni_store_step is a pure function of the store's configuration and its events. A log holds both, so whoever
 * feeds it into a new store gets the same actions and the same bytes: for replay, for comparing two hosts of
 * the store, for finding the event after which two runs differ.
 *
 *     [header] [record] [record] ...                                     all numbers little-endian
 *
 *     header    0  8  "ENSTORE\n"
 *               8  4  version, 2
 *              12  4  bytes of text that follow
 *              16     text: the configuration (eni_store_config_text)
 *
 *     record    0  1  type, ENI_STORE_*
 *               1  1  payload: 0 none, 1 content, 2 hash
 *               2  2  payload flags, ENI_PAYLOAD_*; bit 15: is_replay
 *               4  4  client
 *               8  8  now_ns
 *              16  8  incarnation
 *              24  8  ticket
 *              32  4  bucket
 *              36  4  member
 *              40  8  seq
 *              48  4  kind
 *              52  4  what
 *              56  8  base_version
 *              64  8  nsamples
 *              72  8  covered
 *              80  8  elements of the payload
 *              88     content: float32 each; hash: 32 bytes, SHA-256 of the content
 *
 * Contents make a log that can be replayed, as large as all gradients; hashes one that can be compared. */
#ifndef TESTS_STORE_EVENT_LOG_H
#define TESTS_STORE_EVENT_LOG_H

#include "runtime/store/store_save.h"

enum { EVENT_LOG_CONTENT = 1, EVENT_LOG_HASH = 2 };
enum { EVENT_LOG_VERSION = 2, EVENT_LOG_RECORD = 88, EVENT_LOG_DIGEST = 32 };

typedef struct event_log {
    eni_store_write write;
    void *user;
    int payloads; /* EVENT_LOG_CONTENT or EVENT_LOG_HASH */
} event_log;

/* Writes the header. Returns what write returns; EN_ENOMEM. */
en_status event_log_begin(const event_log *log, const eni_store_config *config);

/* Writes one event: before eni_store_step, which takes the payload away. */
en_status event_log_event(const event_log *log, const eni_store_event *event);

/* A log in memory. */
typedef struct event_reader {
    const uint8_t *at, *end;
    const char *text; /* of the header; not terminated */
    size_t text_bytes;
} event_reader;

/* Checks the header. The bytes are borrowed until the last call on the reader. EN_EFORMAT (no log, or cut
 * off), EN_EVERSION; both logged. */
en_status event_reader_open(const void *bytes, size_t length, event_reader *reader_out);

/* The value of a key of the header into text_out (`bytes` with the terminating 0). EN_ENOENT: no such key, or
 * no room. Not logged. */
en_status event_reader_find(const event_reader *reader, const char *key, char *text_out, size_t bytes);

/* The next event, ready for eni_store_step: a payload's content is a copy that the event owns. With hashes
 * payload.data is NULL, payload.count is set, and digest_out (may be NULL) has the hash. EN_ENOENT at the
 * end; EN_EFORMAT (logged with the offset's reason) for anything but a whole record; EN_ENOMEM. */
en_status event_reader_next(event_reader *reader, eni_store_event *event_out,
                            uint8_t digest_out[EVENT_LOG_DIGEST]);

#endif
