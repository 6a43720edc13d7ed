/* url.h - names of objects in object storage, and the hosts for requests.
 *
 *     s3://BUCKET/KEY             Amazon's S3, and by --data-endpoint others of its protocol (MinIO, Ceph)
 *     oss://BUCKET.HOST/KEY       Alibaba's OSS; HOST is the region's, oss-cn-hangzhou.aliyuncs.com
 *
 * KEY is used verbatim, with blanks, plus and percent signs and all letters of UTF-8: nothing in it is
 * decoded. Pure functions; any thread. */
#ifndef REMOTE_URL_H
#define REMOTE_URL_H

#include <stdbool.h>
#include <stddef.h>

#include "entrain/status.h"

enum { ENI_S3, ENI_OSS };
enum { ENI_REMOTE_NAME = 64, ENI_REMOTE_KEY = 1025, ENI_REMOTE_HOST = 256, ENI_REGION = 64 };

typedef struct eni_remote_url {
    int kind; /* ENI_S3, ENI_OSS */
    char bucket[ENI_REMOTE_NAME];
    char host[ENI_REMOTE_HOST]; /* for oss; else "" */
    char key[ENI_REMOTE_KEY]; /* a whole key or the beginning of several, without a '/' in front; may be "" */
} eni_remote_url;

/* "s3", "oss" */
const char *eni_url_scheme(int kind);

/* EN_EINVAL, logged with `flag` ("--data"): another scheme, no bucket or an invalid name, a key over 1,024
 * bytes or with control characters. */
en_status eni_remote_url_parse(const char *flag, const char *text, eni_remote_url *url_out);

/* The destination of a bucket's requests. */
typedef struct eni_remote_endpoint {
    bool is_plain;              /* http:// */
    bool has_bucket_in_path;    /* /BUCKET/KEY; else the bucket precedes the host's name */
    char host[ENI_REMOTE_HOST]; /* as in the URL and in Host: with its port, unless that is the default */
    char region[ENI_REGION];
} eni_remote_endpoint;

/* Uses `endpoint` (NULL: the service's own), named in messages by `by` ("--data-endpoint"), and the
 * environment's `region` (NULL: us-east-1 for S3, the host's for OSS). EN_EINVAL, logged: an invalid
 * endpoint, http:// beyond loopback, no region. */
en_status eni_remote_endpoint_find(const eni_remote_url *url, const char *by, const char *endpoint,
                                   const char *region, eni_remote_endpoint *place_out);

/* Appends `text` encoded for a URL (RFC 3986: all but letters, digits and -._~ as %XX); `keeps_slash` leaves
 * '/'. False: it does not fit. */
bool eni_url_add(char *out, size_t bytes, const char *text, bool keeps_slash);

/* Undoes that in place, and turns '+' into a blank, as in the keys of a listing (encoding-type=url). False: a
 * '%' without two hex digits, or one for a 0. */
bool eni_url_decode(char *text);

#endif
