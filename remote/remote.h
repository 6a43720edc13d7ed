/* remote.h - requests to object storage, one after the other, over libcurl: list and read (upload.h writes).
 *
 * Each is tried again where that can help (the connection, 429, 500, 502, 503, 504): at most ENI_REMOTE_TRIES
 * times in a row without a byte of progress, after 0.2, 0.4, .. 6.4 s, or after Retry-After. A request waits
 * at most 10 s for a connection, 30 s for the next kilobyte, and 5 min for parts to be joined. A wait of more
 * than 5 s is explained, then every 10 s. No redirect is followed, so that no signature goes to another host.
 *
 * One thread. All errors but EN_EMISMATCH and EN_EINTR are logged, with the service's own message. */
#ifndef REMOTE_REMOTE_H
#define REMOTE_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "remote/bucket_keys.h"
#include "remote/listing.h"
#include "remote/url.h"

enum { ENI_REMOTE_TRIES = 7 };

typedef struct eni_remote eni_remote;

typedef struct eni_remote_options { /* all borrowed until close */
    const eni_remote_url *url;
    const eni_remote_endpoint *place;
    const eni_keys *keys;
    const char *ca_file; /* for https; NULL: the system's */
    /* Bytes of a body received or sent, negative where it begins anew; or NULL. */
    void (*on_bytes)(void *user, int64_t more);
    /* A sign of life: an answer, data, or progress; or NULL. */
    void (*on_sign)(void *user);
    bool (*is_stopped)(void *user); /* at least every second: true ends a request with EN_EINTR; or NULL */
    void *user;
} eni_remote_options;

/* EN_ENOMEM. */
en_status eni_remote_open(const eni_remote_options *options, eni_remote **bucket_out);
void eni_remote_close(eni_remote *bucket); /* NULL is fine */

/* ENI_LIST_FLAT: without objects whose keys have a '/' after the prefix. ENI_LIST_ASK: the caller reports a
 * refusal. */
enum { ENI_LIST_FLAT = 1, ENI_LIST_ASK = 2 };

/* Lists all objects whose keys begin with `prefix`, page by page. The caller finis. EN_EINVAL: the service
 * refuses (keys, bucket, region, clock); EN_EIO: it cannot be reached, or fails; EN_EFORMAT: its answer is
 * not a list; EN_EDENIED, not logged, with ENI_LIST_ASK: listing is denied to these keys, or without keys. */
en_status eni_remote_list(eni_remote *bucket, const char *prefix, unsigned how, eni_listing *listing_out);

/* Checks that the bucket exists and the keys are right: as above, for a page that is dropped. EN_EDENIED, not
 * logged: they are right, but may not list it. */
en_status eni_remote_ask(eni_remote *bucket, const char *prefix);

/* Asks for the object with exactly this key, which needs no permission to list. Not logged: EN_ENOENT;
 * EN_EDENIED: it does not exist, or we may not read it. Else as above. */
en_status eni_remote_head(eni_remote *bucket, const char *key, eni_object *object_out);

/* Appends the missing part of the object to a file that has *have_inout bytes of it. Calls on_have (or NULL)
 * after each piece with the number of bytes, which is less than before where a service sends all of it again.
 * EN_EMISMATCH, not logged: the object no longer has that ETag and size. EN_EIO also for the local disk. On
 * failure *have_inout is the number of bytes in the file. */
en_status eni_remote_get(eni_remote *bucket, const eni_object *object, int fd, uint64_t *have_inout,
                         void (*on_have)(void *user, uint64_t have), void *user);

#endif
