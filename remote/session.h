/* session.h - what the parts of the program `transfer` share: what it was told, a bucket with its keys, and how far it is.
 *
 *     main.c      the program: its words, a table of what is there
 *     download.c  files of a data set, an object, the newest checkpoint: down, into the cache or a folder
 *     mirror.c    what a run writes: up, as long as it lives
 *     session.c   a bucket with its keys; the bar; signs of life and the answer to whoever started it
 *
 * One thread. Errors are logged. */
#ifndef REMOTE_SESSION_H
#define REMOTE_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "remote/bucket_keys.h"
#include "remote/listing.h"
#include "remote/upload.h"

enum { ENI_ANSWER_FD = 3 };

typedef struct eni_transfer_options {
    const char *cache, *endpoint, *keys, *flag;
    const char *file, *as, *folder, *into; /* of mirror */
    bool is_quiet, resumes;                /* what lies in the folder already is this run's */
    eni_upload_sizes sizes;
} eni_transfer_options;

typedef struct eni_progress {
    char url[200];
    uint64_t total, done, done_before; /* before: it was there already */
    int64_t begin_ns, shown_ns, sign_ns;
    bool is_quiet, is_tty, has_signs; /* whoever started us looks for signs of life .. */
    bool has_orders;                  /* .. and gives orders: its end of them is open as long as it waits */
} eni_progress;

typedef struct eni_session {
    eni_remote_url url;
    eni_remote_endpoint place;
    eni_keys keys;
    const char *endpoint; /* NULL: the service's own */
    eni_remote *bucket;
    eni_upload_sizes sizes;
    eni_progress progress;
} eni_session;

/* The bucket of the URL `text`, which `flag` gave. The caller closes the session, after a failure too. */
en_status eni_session_open(const eni_transfer_options *o, const char *flag, const char *text, eni_session *s);
void eni_session_close(eni_session *s);

/* The key of the URL as a folder: "data" is "data/". */
void eni_session_prefix(const eni_session *s, char prefix_out[ENI_REMOTE_KEY + 1]);

/* EN_EPROTO where the service gave keys that do not begin with `prefix`: what follows would be as wrong. */
en_status eni_session_check_prefix(const eni_listing *listing, const char *prefix, const char *url);

/* The newest checkpoint in the listing of `least` samples or more. NULL: there is none. Into the listing. */
const eni_object *eni_session_newest(const eni_listing *listing, const char *prefix, uint64_t least);

/* The path of what came, to whoever started us. */
en_status eni_session_answer(const char *path);

/* The bar at its end, or nothing. */
void eni_session_show(eni_progress *p, bool is_last);

/* Files of these names below the URL, or (none) the object itself, into the cache; their folder or path is the answer. */
en_status eni_download(const eni_transfer_options *o, const char *url, char **names, int nnames);

/* The newest checkpoint below the URL into the folder, unless it has a newer one; its path is the answer. */
en_status eni_download_newest(const eni_transfer_options *o, const char *url, const char *folder);

/* Until the run ends: checkpoints of o->folder to o->into, and then o->file to o->as. */
en_status eni_mirror(const eni_transfer_options *o);

#endif
