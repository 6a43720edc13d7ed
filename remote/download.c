/* download.c - downloads: files of a data set, one object, the newest checkpoint (session.h). */
#include "remote/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "core/checkpoint_name.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "remote/cache.h"

enum { ROUNDS = 3, FILES_MAX = 64, SHOWN = 3 };

/* The object of this name below the prefix; NULL if absent. */
static const eni_object *find(const eni_listing *listing, const char *prefix, const char *name)
{
    for (size_t i = 0; i < listing->n; i++)
        if (strcmp(listing->object[i].key + strlen(prefix), name) == 0) return &listing->object[i];
    return NULL;
}

static size_t choose(const eni_listing *listing, const char *prefix, char **names, int nnames,
                     eni_cache_file *files)
{
    size_t n = 0;
    for (int k = 0; k < nnames; k++) {
        const eni_object *found = find(listing, prefix, names[k]);
        if (found != NULL && n < FILES_MAX) files[n++] = (eni_cache_file){.object = found, .name = names[k]};
    }
    return n;
}

static en_status refuse_empty(const char *flag, const char *url, const char *prefix,
                              const eni_listing *listing)
{
    char some[400] = "";
    if (listing->folder[0] != '\0')
        eni_text_add(some, sizeof some, "%.100s", listing->folder + strlen(prefix));
    for (size_t i = 0; i < listing->n && i < SHOWN; i++)
        eni_text_add(some, sizeof some, "%s%.100s", some[0] != '\0' ? ", " : "",
                     listing->object[i].key + strlen(prefix));
    if (find(listing, prefix, "training.pt") != NULL)
        return eni_fail(EN_EINVAL, "remote",
                        "%s=%s: it contains training.pt, a pickled file of PyTorch, which runs code when it "
                        "is read and which Entrain therefore does not read: download it and test.pt, write "
                        "the IDX files with tools/pt2idx.py training.pt test.pt FOLDER, and upload those",
                        flag, url);
    if (some[0] == '\0')
        return eni_fail(EN_EINVAL, "remote",
                        "%s=%s: nothing found; `entrain data s3://BUCKET` lists a bucket", flag, url);
    return eni_fail(EN_EINVAL, "remote",
                    "%s=%s: no files of a data set directly below it (IDX as MNIST's, or the .bin files of "
                    "CIFAR), but %s%s",
                    flag, url, some, listing->n > SHOWN ? ", .." : "");
}

static en_status fetch_files(eni_session *s, eni_cache *cache, eni_cache_file *files, size_t n)
{
    eni_progress *p = &s->progress;
    EN_TRY(eni_cache_look(cache, files, n));
    p->total = p->done = 0;
    for (size_t i = 0; i < n; i++)
        p->total += files[i].object->size, p->done += files[i].have;
    p->done_before = p->done;
    p->begin_ns = p->shown_ns = eni_now_ns();
    const bool is_complete = p->done == p->total;
    en_status st = EN_OK;
    for (size_t i = 0; st == EN_OK && i < n; i++)
        if (!files[i].is_here) st = eni_cache_fetch(cache, s->bucket, &files[i]);
    if (!p->is_quiet && p->is_tty && !is_complete) eni_session_show(p, true);
    EN_TRY(st);
    const double seconds = (double)(eni_now_ns() - p->begin_ns) * 1e-9;
    if (is_complete)
        eni_debug("remote", "%s: all files are already in %s", p->url, cache->path);
    else if (!p->is_quiet)
        eni_info("remote", "%s: %.1f MB in %.1f s, now in %s", p->url,
                 (double)(p->total - p->done_before) * 1e-6, seconds, cache->path);
    eni_cache_tidy(cache, files, n);
    return EN_OK;
}

/* Makes a listing by asking for each name, when listing the bucket is not allowed. */
static en_status find_by_names(eni_session *s, const char *prefix, char **names, int nnames,
                               eni_listing *listing_out)
{
    char key[2 * ENI_REMOTE_KEY];
    *listing_out = (eni_listing){.object = eni_alloc_array((size_t)nnames, sizeof(eni_object))};
    if (listing_out->object == NULL) return EN_ENOMEM;
    for (int k = 0; k < nnames; k++) {
        snprintf(key, sizeof key, "%s%s", prefix, names[k]);
        const en_status st = eni_remote_head(s->bucket, key, &listing_out->object[listing_out->n]);
        if (st != EN_OK && st != EN_ENOENT && st != EN_EDENIED) return st;
        if (st == EN_OK) listing_out->n++;
    }
    if (listing_out->n > 0 && !s->progress.is_quiet)
        eni_info("remote", "cannot list %s: %u files of a data set were found by their names",
                 s->progress.url, listing_out->n);
    return EN_OK;
}

/* "train.bin[.gz]" is two names. */
static en_status refuse_unlisted(const eni_session *s, const char *flag, const char *url, char **names,
                                 int nnames)
{
    char tried[1000] = "";
    const bool is_s3 = s->url.kind == ENI_S3;
    for (int k = 0; k < nnames; k++) {
        const size_t length = k > 0 ? strlen(names[k - 1]) : 0;
        const bool is_packed =
            k > 0 && strncmp(names[k], names[k - 1], length) == 0 && strcmp(names[k] + length, ".gz") == 0;
        eni_text_add(tried, sizeof tried, "%s%s", k > 0 && !is_packed ? ", " : "",
                     is_packed ? "[.gz]" : names[k]);
    }
    return eni_fail(EN_EINVAL, "remote",
                    "%s=%s: %s cannot list it (%s is missing), and no file of a data set was found by its "
                    "name: none exists, or %s is missing too. Check the prefix, or allow %s. Tried: %s",
                    flag, url, s->keys.is_none ? "a request without keys (--data-keys=none)" : "these keys",
                    is_s3 ? "s3:ListBucket" : "oss:ListObjects", is_s3 ? "s3:GetObject" : "oss:GetObject",
                    is_s3 ? "s3:ListBucket" : "oss:ListObjects", tried);
}

/* EN_EMISMATCH: it changed during the download. */
static en_status fetch_once(eni_session *s, eni_cache *cache, const char *flag, const char *url, char **names,
                            int nnames)
{
    char prefix[ENI_REMOTE_KEY + 1];
    eni_cache_file files[FILES_MAX];
    eni_listing listing;
    eni_session_prefix(s, prefix);
    en_status st = eni_remote_list(s->bucket, prefix, ENI_LIST_FLAT | ENI_LIST_ASK, &listing);
    const bool is_listed = st != EN_EDENIED;
    if (!is_listed) st = find_by_names(s, prefix, names, nnames, &listing);
    const size_t n = st == EN_OK ? choose(&listing, prefix, names, nnames, files) : 0;
    if (st == EN_OK && n == 0)
        st = is_listed ? refuse_empty(flag, url, prefix, &listing)
                       : refuse_unlisted(s, flag, url, names, nnames);
    if (st == EN_OK) st = fetch_files(s, cache, files, n);
    eni_listing_fini(&listing);
    return st;
}

/* Fetches the object with exactly this key. If that is denied, the list shows why. */
static en_status get_once(eni_session *s, eni_cache *cache, const char *flag, const char *url,
                          const char *name)
{
    eni_object object;
    eni_cache_file file = {.object = &object, .name = name};
    eni_listing listing;
    en_status st = eni_remote_head(s->bucket, s->url.key, &object);
    if (st == EN_OK) return fetch_files(s, cache, &file, 1);
    if (st != EN_ENOENT && st != EN_EDENIED) return st;
    EN_TRY(eni_remote_list(s->bucket, s->url.key, ENI_LIST_FLAT, &listing));
    const bool is_listed = find(&listing, "", s->url.key) != NULL;
    eni_listing_fini(&listing);
    return eni_fail(EN_EINVAL, "remote", "%s=%s %s", flag, url,
                    is_listed && st == EN_EDENIED ? "is listed, but these keys may not read it"
                                                  : "does not exist");
}

/* For its copy, with room for the names of its companions. */
static bool is_file_name(const char *name)
{
    const size_t length = strlen(name);
    return length > 0 && length <= 200 && name[0] != '.' &&
           (length < 8 || strcmp(name + length - 8, ".entrain") != 0);
}

en_status eni_download(const eni_transfer_options *o, const char *url, char **names, int nnames)
{
    eni_session s;
    eni_cache cache = {.fd = -1, .lock_fd = -1};
    char path[PATH_MAX];
    const char *flag = o->flag != NULL ? o->flag : "--data", *slash = strrchr(url, '/');
    en_status st = eni_session_open(o, flag, url, &s);
    if (st == EN_OK && names == NULL && !is_file_name(s.url.key[0] == '\0' ? "" : slash + 1))
        st = eni_fail(EN_EINVAL, "remote",
                      "%s=%s: the last part of the key must be a file name: 1 to 200 bytes, without a '.' in "
                      "front, and not ending in .entrain",
                      flag, url);
    eni_env_forget_keys();
    if (st == EN_OK) st = eni_cache_open(o->cache, url, s.endpoint, &cache);
    for (int round = 0; st == EN_OK || st == EN_EMISMATCH; round++) {
        st = names != NULL ? fetch_once(&s, &cache, flag, url, names, nnames)
                           : get_once(&s, &cache, flag, url, slash + 1);
        if (st != EN_EMISMATCH) break;
        if (round == ROUNDS - 1)
            st = eni_fail(EN_EIO, "remote",
                          "%s keeps changing during the download (another ETag or size each of %d times): "
                          "try again later",
                          url, ROUNDS);
        else
            eni_info("remote", "%s changed during the download: starting again from its list", url);
    }
    if (st == EN_OK) {
        snprintf(path, sizeof path, "%.3000s%s%.255s", cache.path, names == NULL ? "/" : "",
                 names == NULL ? slash + 1 : "");
        st = eni_session_answer(path);
    }
    eni_cache_close(&cache);
    eni_session_close(&s);
    return st;
}

/* ---- the newest checkpoint ---- */

/* Under a temporary name, which a run would sweep, until it is complete: another launcher may do the same. */
static en_status get_into(eni_session *s, const eni_object *object, const char *path)
{
    char part[PATH_MAX + 32];
    uint64_t have = 0;
    snprintf(part, sizeof part, "%s.%d.tmp", path, (int)getpid());
    const int fd = open(part, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return eni_fail(EN_EIO, "remote", "cannot write %s: %s", part, strerror(errno));
    en_status st = eni_remote_get(s->bucket, object, fd, &have, NULL, NULL);
    if (st == EN_EMISMATCH) st = eni_fail(EN_EIO, "remote", "%s changes during the download", object->key);
    const bool is_whole = st == EN_OK && fsync(fd) == 0;
    const bool is_closed = close(fd) == 0;
    if (st == EN_OK && !(is_whole && is_closed && rename(part, path) == 0))
        st = eni_fail(EN_EIO, "remote", "cannot write %s: %s", path, strerror(errno));
    if (st != EN_OK) unlink(part);
    return st;
}

en_status eni_download_newest(const eni_transfer_options *o, const char *url, const char *folder)
{
    eni_session s;
    eni_listing listing = {0};
    char prefix[ENI_REMOTE_KEY + 1] = "", path[PATH_MAX] = "";
    uint64_t here;
    const uint64_t least = eni_checkpoint_list(folder, "", &here, 1) > 0 ? here + 1 : 0;
    en_status st = eni_session_open(o, "--checkpoint-dir", url, &s);
    if (st == EN_OK) eni_session_prefix(&s, prefix);
    if (st == EN_OK) st = eni_remote_list(s.bucket, prefix, ENI_LIST_FLAT, &listing);
    const eni_object *newest = st == EN_OK ? eni_session_newest(&listing, prefix, least) : NULL;
    if (newest != NULL) {
        snprintf(path, sizeof path, "%.3000s/%.255s", folder, newest->key + strlen(prefix));
        st = get_into(&s, newest, path);
        if (st == EN_OK) eni_info("remote", "the newest checkpoint of %s was downloaded: %s", url, path);
    }
    if (st == EN_OK) st = eni_session_answer(path);
    eni_listing_fini(&listing);
    eni_session_close(&s);
    return st;
}
