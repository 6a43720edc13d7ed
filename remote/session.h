/* session.h - shared by the parts of the program `transfer`: its options, a bucket with its keys, and its
 * progress.
 *
 *     main.c      the program: its commands, a table of objects
 *     download.c  files of a data set, an object, the newest checkpoint: into the cache or a folder
 *     mirror.c    uploads a run's files while it goes on
 *     session.c   a bucket with its keys; the progress bar; signs of life and the answer to our parent
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
    const char *file, *as, *folder, *into; /* for mirror */
    bool is_quiet, resumes;                /* files that are already in the folder belong to this run */
    eni_upload_sizes sizes;
} eni_transfer_options;

typedef struct eni_progress {
    char url[200];
    uint64_t total, done, done_before; /* before: present at the start */
    int64_t begin_ns, shown_ns, sign_ns;
    bool is_quiet, is_tty, has_signs; /* our parent expects signs of life .. */
    bool has_orders;                  /* .. and gives orders: its end of their pipe is open while it waits */
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

/* Opens the bucket of the URL `text`, which `flag` gave. The caller closes the session, after a failure
 * too. */
en_status eni_session_open(const eni_transfer_options *o, const char *flag, const char *text, eni_session *s);
void eni_session_close(eni_session *s);

/* The key of the URL as a folder: "data" is "data/". */
void eni_session_prefix(const eni_session *s, char prefix_out[ENI_REMOTE_KEY + 1]);

/* The newest checkpoint in the listing of `least` samples or more, borrowed from it; or NULL. */
const eni_object *eni_session_newest(const eni_listing *listing, const char *prefix, uint64_t least);

/* Sends the path of a download to our parent. */
en_status eni_session_answer(const char *path);

/* Shows the progress bar; `is_last`: its final state. */
void eni_session_show(eni_progress *p, bool is_last);

/* Downloads files of these names below the URL, or (no names) the object itself, into the cache; answers with
 * their folder or path. */
en_status eni_download(const eni_transfer_options *o, const char *url, char **names, int nnames);

/* Downloads the newest checkpoint below the URL into the folder, unless it has a newer one; answers with its
 * path. */
en_status eni_download_newest(const eni_transfer_options *o, const char *url, const char *folder);

/* Until the run ends: uploads checkpoints of o->folder to o->into, and then o->file to o->as. */
en_status eni_mirror(const eni_transfer_options *o);

#endif
