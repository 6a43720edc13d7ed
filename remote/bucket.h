/* bucket.h - requests to a bucket, one after the other, over libcurl: list, read, write.
 *
 * Each is tried again where that can help (the connection, 429, 500, 502, 503, 504): at most ENI_BUCKET_TRIES times in a row
 * without a byte of progress, after 0.2, 0.4, .. 6.4 s, or what Retry-After says. Nothing waits longer than 10 s for a
 * connection or 30 s for the next kilobyte. No redirect is followed, so that no signature goes to another host.
 *
 * One thread. All errors but EN_EMISMATCH are logged, with what the service said of them. */
#ifndef REMOTE_BUCKET_H
#define REMOTE_BUCKET_H

#include <stdint.h>

#include "core/digest.h"
#include "remote/bucket_keys.h"
#include "remote/listing.h"
#include "remote/url.h"

enum { ENI_BUCKET_TRIES = 7 };
#define ENI_BUCKET_PUT_MAX (UINT64_C(5) << 30) /* of one request: "Amazon S3 limits", and OSS's */

typedef struct eni_bucket eni_bucket;

typedef struct eni_bucket_options { /* all is borrowed until close */
    const eni_bucket_url *url;
    const eni_bucket_place *place;
    const eni_keys *keys;
    const char *ca_file;                         /* of https; NULL: the system's */
    void (*on_bytes)(void *user, uint64_t more); /* of a body that came or went; or NULL */
    void *user;
} eni_bucket_options;

/* EN_ENOMEM. */
en_status eni_bucket_open(const eni_bucket_options *options, eni_bucket **bucket_out);
void eni_bucket_close(eni_bucket *bucket); /* NULL is fine */

/* All objects whose keys begin with `prefix`, page by page. The caller finis. EN_EINVAL: the service refuses (keys, bucket,
 * region, clock); EN_EIO: it cannot be reached, or fails; EN_EFORMAT: what it answers is no list. */
en_status eni_bucket_list(eni_bucket *bucket, const char *prefix, eni_listing *listing_out);

/* Appends what is missing of the object to a file with *have_inout bytes of it, and to their hash. EN_EMISMATCH, not logged:
 * it is not the object of that ETag and size any more. EN_EIO also for the local disk. On failure *have_inout says how
 * much is there. */
en_status eni_bucket_get(eni_bucket *bucket, const eni_object *object, int fd, uint64_t *have_inout,
                         eni_digest *digest);

/* Makes the first `bytes` of a file, of this hash, the object of that key. Reads from offset 0. */
en_status eni_bucket_put(eni_bucket *bucket, const char *key, int fd, uint64_t bytes,
                         const char sha256[ENI_DIGEST_HEX]);

/* "libcurl 7.88.1" */
const char *eni_bucket_library(void);

#endif
