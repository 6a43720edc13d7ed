/* sign.h - proves that a request comes from a holder of the key: version 4 signatures of AWS and of OSS.
 *
 * Both hash a canonical text of the request, and sign that with a key made of the secret, the day, the region
 * and the service by HMAC-SHA256; they differ in a few words, in the headers that are signed, and in the hash
 * of the body. Sources: "Create a signed AWS API request" (AWS, General Reference), "Include a V4 signature
 * in the Authorization header" (Alibaba Cloud, OSS developer reference). */
#ifndef REMOTE_SIGN_H
#define REMOTE_SIGN_H

#include <time.h>

#include "core/digest.h"
#include "remote/bucket_keys.h"
#include "remote/url.h"

enum {
    ENI_SIGNED_HEADERS = 5,
    ENI_SIGNED_TEXT = 8448,
    ENI_SIGNED_PATH = 3 * ENI_REMOTE_KEY + ENI_REMOTE_NAME + 2
};

typedef struct eni_remote_request {
    const char *method;               /* "GET", "PUT" */
    char path[ENI_SIGNED_PATH];       /* of the URL, as it is sent */
    char query[ENI_SIGNED_TEXT];      /* as it is sent: "a=b&c=d", by name, nothing empty */
    char body_sha256[ENI_DIGEST_HEX]; /* of the body, which S3 checks; "": no body */
} eni_remote_request;

/* Lines "name: value" to send with it, Authorization among them. */
typedef struct eni_signed {
    char header[ENI_SIGNED_HEADERS][ENI_SIGNED_TEXT];
    int n;
} eni_signed;

/* Signs for the moment `now`. Headers contain a session token: eni_wipe them after use. EN_EINVAL, logged: a
 * text does not fit. Pure function; any thread. */
en_status eni_sign(const eni_remote_url *url, const eni_remote_endpoint *place, const eni_keys *keys,
                   const eni_remote_request *request, time_t now, eni_signed *signed_out);

#endif
