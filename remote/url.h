/* url.h - names of what lies in object storage, and where requests for it go.
 *
 *     s3://BUCKET/KEY             Amazon's S3, and by --data-endpoint whatever speaks its protocol (MinIO, Ceph)
 *     oss://BUCKET.HOST/KEY       Alibaba's OSS; HOST is the region's, oss-cn-hangzhou.aliyuncs.com
 *
 * KEY is taken as it stands, blanks, plus and percent signs and all letters of UTF-8 included: nothing in it is decoded.
 * Pure functions; any thread. */
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
    char host[ENI_REMOTE_HOST]; /* of oss; else "" */
    char key[ENI_REMOTE_KEY]; /* a whole key or the beginning of several, without a '/' in front; may be "" */
} eni_remote_url;

/* "s3", "oss" */
const char *eni_url_scheme(int kind);

/* EN_EINVAL, logged with `flag` ("--data"): another scheme, no bucket or a name that none can have, a key over 1,024
 * bytes or with control characters. */
en_status eni_remote_url_parse(const char *flag, const char *text, eni_remote_url *url_out);

/* Where requests for a bucket go. */
typedef struct eni_remote_endpoint {
    bool is_plain;              /* http:// */
    bool has_bucket_in_path;    /* /BUCKET/KEY; else the bucket is in front of the host's name */
    char host[ENI_REMOTE_HOST]; /* as in the URL and in Host: with its port, where it is not the usual one */
    char region[ENI_REGION];
} eni_remote_endpoint;

/* By an endpoint (NULL: the service's own), with whatever names it ("--data-endpoint") for messages, and the region that the environment names (NULL: of S3 us-east-1, of OSS what
 * its host says). EN_EINVAL, logged: an endpoint that is none, http:// beyond loopback, no region. */
en_status eni_remote_endpoint_find(const eni_remote_url *url, const char *by, const char *endpoint,
                                   const char *region, eni_remote_endpoint *place_out);

/* Appends `text` as it stands in a URL (RFC 3986: all but letters, digits and -._~ as %XX), '/' as it is with `keeps_slash`.
 * false: it does not fit. */
bool eni_url_add(char *out, size_t bytes, const char *text, bool keeps_slash);

/* Undoes that in place, and turns '+' into a blank, as keys in a listing are written (encoding-type=url). false: a '%'
 * without two hex digits, or one that stands for 0. */
bool eni_url_decode(char *text);

#endif
