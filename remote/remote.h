/* remote.h - requests to a bucket, one after the other, over libcurl: list and read (upload.h writes).
 *
 * Each is tried again where that can help (the connection, 429, 500, 502, 503, 504): at most ENI_REMOTE_TRIES times in a row
 * without a byte of progress, after 0.2, 0.4, .. 6.4 s, or what Retry-After says. Nothing waits longer than 10 s for a
 * connection or 30 s for the next kilobyte, and 5 min for parts to be joined. A wait of more than 5 s is explained, then every 10 s. No redirect is followed, so that no signature goes to another host.
 *
 * One thread. All errors but EN_EMISMATCH and EN_EINTR are logged, with what the service said of them. */
#ifndef REMOTE_REMOTE_H
#define REMOTE_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/digest.h"
#include "remote/bucket_keys.h"
#include "remote/listing.h"
#include "remote/url.h"

enum { ENI_REMOTE_TRIES = 7 };

typedef struct eni_remote eni_remote;

typedef struct eni_remote_options { /* all is borrowed until close */
    const eni_remote_url *url;
    const eni_remote_endpoint *place;
    const eni_keys *keys;
    const char *ca_file; /* of https; NULL: the system's */
    /* Of a body that came or went, less where it begins anew; or NULL. */
    void (*on_bytes)(void *user, int64_t more);
    /* Of life: something answered, or came, or went further than before; or NULL. */
    void (*on_sign)(void *user);
    bool (*is_stopped)(void *user); /* every second at least: true ends a request, EN_EINTR; or NULL */
    void *user;
} eni_remote_options;

/* EN_ENOMEM. */
en_status eni_remote_open(const eni_remote_options *options, eni_remote **bucket_out);
void eni_remote_close(eni_remote *bucket); /* NULL is fine */

/* ENI_LIST_FLAT: without objects whose keys have a '/' behind the prefix. ENI_LIST_ASK: a refusal is the caller's to tell. */
enum { ENI_LIST_FLAT = 1, ENI_LIST_ASK = 2 };

/* All objects whose keys begin with `prefix`, page by page. The caller finis. EN_EINVAL: the service refuses (keys, bucket,
 * region, clock); EN_EIO: it cannot be reached, or fails; EN_EFORMAT: what it answers is no list; EN_EDENIED, not logged, with
 * ENI_LIST_ASK: these keys, or who has none, may not list it. */
en_status eni_remote_list(eni_remote *bucket, const char *prefix, unsigned how, eni_listing *listing_out);

/* Whether the bucket is there and the keys are right: as above, for a page that nobody keeps. EN_EDENIED, not logged: they
 * are, and may not list it. */
en_status eni_remote_ask(eni_remote *bucket, const char *prefix);

/* What the bucket has under exactly this key, for which nobody need be allowed to list it. Not logged: EN_ENOENT; EN_EDENIED:
 * it is not there, or not ours to read. Else as above. */
en_status eni_remote_head(eni_remote *bucket, const char *key, eni_object *object_out);

/* Appends what is missing of the object to a file with *have_inout bytes of it. on_have says, after each piece, how many
 * there are; less than before where a service sends all of it again; NULL: nobody is told. EN_EMISMATCH, not logged: it is not the object of that
 * ETag and size any more. EN_EIO also for the local disk. On failure *have_inout says how much is there. */
en_status eni_remote_get(eni_remote *bucket, const eni_object *object, int fd, uint64_t *have_inout,
                         void (*on_have)(void *user, uint64_t have), void *user);

#endif
