/* remote_call.h - one request to a bucket and its tries (remote.h says how often, and what is logged): what is asked, and what
 * came. For the files that know requests: remote.c, upload.c.
 *
 *     eni_remote_call_begin, eni_remote_call_query .., set what it carries, eni_remote_call_perform, look at what came,
 *     eni_remote_call_end
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

/* What is asked, and what came. */
typedef struct eni_remote_call {
    eni_remote *b;
    eni_remote_request request;
    const char *key; /* "" of a list */
    bool is_head;    /* HEAD: 403 and 404 are the caller's to tell */
    bool is_ask;     /* so is AccessDenied */
    bool is_join;    /* the end of parts: 200 alone says nothing, and 404 is the caller's */
    bool is_hurry;   /* nothing stops it */
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
    bool is_other, is_flood; /* another object, or another size; more text than there can be */
    int disk;                /* errno */

    /* a file on its way out, from an offset; or a text */
    uint64_t at, bytes, sent;
    const char *body;

    /* of the try */
    long code;
    char etag[ENI_ETAG], date[40], region[ENI_REGION], location[256];
    uint64_t range_begin, range_total;
    long retry_after_s;

    /* of all tries */
    int tries;
    uint64_t most;             /* bytes of a body that came or went in one of them */
    int64_t moved_ns, told_ns; /* the last time that there were more; that the wait was told, 0: never */
} eni_remote_call;

/* The caller ends it. NULL: *st_out says why, EN_ENOMEM or, logged, EN_EINVAL: the key is too long. */
eni_remote_call *eni_remote_call_begin(eni_remote *b, const char *method, const char *key, en_status *st_out);

/* Frees it; `st` comes back. */
en_status eni_remote_call_end(eni_remote_call *c, en_status st);

/* Adds "name=value", by name, as it is signed; nothing where the value is "". false: it does not fit. */
bool eni_remote_call_query(eni_remote_call *c, const char *name, const char *value);

/* The request, until it is answered, refused, or not worth another try. Errors: those of remote.h. */
en_status eni_remote_call_perform(eni_remote_call *c);

/* The same in a few seconds or not at all, whatever is_stopped says: for what is removed (404 is good). Not logged: EN_EDENIED;
 * EN_EIO. */
en_status eni_remote_call_hurry(eni_remote_call *c);

#endif
