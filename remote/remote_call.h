/* remote_call.h - one request to object storage and its tries (remote.h says how often, and what is logged).
 * For the files that know requests: remote.c, upload.c.
 *
 *     eni_remote_call_begin, eni_remote_call_query .., set the body, eni_remote_call_perform,
 *     read the answer, eni_remote_call_end
 *
 * One thread. */
#ifndef REMOTE_REMOTE_CALL_H
#define REMOTE_REMOTE_CALL_H

#include <curl/curl.h>

#include "remote/remote.h"
#include "remote/sign.h"

struct eni_remote {
    eni_remote_options o;
    CURL *curl;
    char error[CURL_ERROR_SIZE];
};

/* The request, and its answer. */
typedef struct eni_remote_call {
    eni_remote *b;
    eni_remote_request request;
    const char *key; /* "" for a list */
    bool is_head;    /* HEAD: the caller reports 403 and 404 */
    bool is_ask;     /* the caller also reports AccessDenied */
    bool is_join;    /* completes an upload in parts: 200 alone is not success, and the caller handles 404 */
    bool is_hurry;   /* ignores is_stopped */
    uint64_t length_told;

    /* a body that is kept as text: a page, an error */
    char *text;
    size_t length;

    /* the body of an object, on its way to a file */
    const eni_object *object;
    int fd;
    uint64_t have;
    void (*on_have)(void *user, uint64_t have);
    void *user;
    bool is_other, is_flood; /* another object, or another size; more text than is allowed */
    int disk;                /* errno */

    /* a file to be sent, from an offset; or a text */
    uint64_t at, bytes, sent;
    const char *body;

    /* of the try */
    long code;
    char etag[ENI_ETAG], date[40], region[ENI_REGION], location[256];
    uint64_t range_begin, range_total;
    long retry_after_s;

    /* of all tries */
    int tries;
    uint64_t most;             /* bytes of a body transferred in the best of them */
    int64_t moved_ns, told_ns; /* the last progress; the last message about the wait, 0: none */
} eni_remote_call;

/* The caller ends it. EN_ENOMEM; EN_EINVAL, logged: the key is too long. */
en_status eni_remote_call_begin(eni_remote *b, const char *method, const char *key,
                                eni_remote_call **call_out);

/* Frees it; returns `st`. */
en_status eni_remote_call_end(eni_remote_call *c, en_status st);

/* Adds "name=value" to the query, in order of names, as it is signed; omits it if the value is "". False: it
 * does not fit. */
bool eni_remote_call_query(eni_remote_call *c, const char *name, const char *value);

/* Performs the request until it is answered, refused, or not worth another try. Errors: those of remote.h. */
en_status eni_remote_call_perform(eni_remote_call *c);

/* The same for at most a few seconds, whatever is_stopped says: for a DELETE (404 is success). Not logged:
 * EN_EDENIED; EN_EIO. */
en_status eni_remote_call_hurry(eni_remote_call *c);

#endif
