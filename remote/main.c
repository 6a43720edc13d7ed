/* main.c - the program `transfer`, which the others start (transfer.h) for what lies in buckets:
 *
 *     transfer fetch  -- URL NAME..       files of these names below the URL, into the cache
 *     transfer get    -- URL              one object, into the cache
 *     transfer newest -- URL FOLDER       the newest checkpoint below the URL, into FOLDER
 *     transfer list   -- URL              a table of what is there
 *     transfer mirror --file=F --as=URL --folder=DIR --into=URL      what is renamed there, up
 *     transfer clear                      the cache
 *
 * The path of what came goes to descriptor 3, with a 0 behind it. Nobody can attach to this process, or find its core. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "core/checkpoint_name.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/signals.h"
#include "core/try.h"
#include "remote/cache.h"
#include "remote/upload.h"

enum { ANSWER_FD = 3, ROUNDS = 3, FILES_MAX = 64, SHOWN = 3, TICK_MS = 100, LINE_MS = 5000, LOOK_MS = 500 };

typedef struct options {
    const char *cache, *endpoint, *keys, *flag;
    const char *file, *as, *folder, *into; /* of mirror */
    bool is_quiet, resumes;                /* what lies in the folder already is this run's */
    eni_upload_sizes sizes;
} options;

/* ---- how far it is ---- */

typedef struct fetching {
    char url[200];
    uint64_t total, done, done_before; /* before: it was there already */
    int64_t begin_ns, shown_ns, sign_ns;
    bool is_quiet, is_tty, has_signs; /* whoever started us looks for signs of life .. */
    bool has_orders;                  /* .. and gives orders: its end of them is open as long as it waits */
} fetching;

static void show(fetching *p, bool is_last)
{
    const double seconds = (double)(eni_now_ns() - p->begin_ns) * 1e-9;
    const double rate = seconds > 0 ? (double)(p->done - p->done_before) / seconds : 0;
    const double left = rate > 0 ? (double)(p->total - p->done) / rate : 0;
    char text[400];
    snprintf(text, sizeof text, "%s: %3.0f %% of %.1f MB, %.1f MB/s, %.0f s left", p->url,
             p->total > 0 ? 100 * (double)p->done / (double)p->total : 100.0, (double)p->total * 1e-6,
             rate * 1e-6, left);
    if (p->is_tty)
        fprintf(stderr, "\r%s\033[K%s", text, is_last ? "\n" : "");
    else if (!is_last)
        eni_info("remote", "%s", text);
    p->shown_ns = eni_now_ns();
}

/* Less than 0 where a service begins again. */
static void on_bytes(void *user, int64_t more)
{
    fetching *p = user;
    p->done += (uint64_t)more;
    const int64_t every = (p->is_tty ? TICK_MS : LINE_MS) * (ENI_SECOND / 1000);
    if (!p->is_quiet && p->total > 0 && eni_now_ns() - p->shown_ns > every) show(p, false);
}

static void on_sign(void *user)
{
    fetching *p = user;
    if (!p->has_signs || eni_now_ns() - p->sign_ns < TICK_MS * (ENI_SECOND / 1000)) return;
    p->sign_ns = eni_now_ns();
    if (write(ANSWER_FD, ".", 1) != 1) return; /* it is full of them, which is as good */
}

static bool is_stopped(void *user)
{
    const fetching *p = user;
    struct pollfd orders = {STDIN_FILENO, 0, 0};
    return p->has_orders && poll(&orders, 1, 0) == 1 && (orders.revents & POLLHUP) != 0;
}

/* ---- a bucket, with its keys ---- */

typedef struct session {
    eni_remote_url url;
    eni_remote_place place;
    eni_keys keys;
    const char *endpoint; /* NULL: the service's own */
    eni_remote *bucket;
    eni_upload_sizes sizes;
    fetching progress;
} session;

static en_status open_session(const options *o, const char *flag, const char *text, session *s)
{
    *s = (session){.sizes = o->sizes,
                   .progress = {.is_quiet = o->is_quiet,
                                .is_tty = isatty(STDERR_FILENO) != 0,
                                .has_orders = o->as != NULL || o->into != NULL}};
    snprintf(s->progress.url, sizeof s->progress.url, "%.199s", text);
    EN_TRY(eni_remote_url_parse(flag, text, &s->url));
    EN_TRY(eni_keys_find(s->url.kind, o->keys, eni_env, &s->keys));
    s->endpoint = o->endpoint != NULL ? o->endpoint : s->keys.endpoint[0] != '\0' ? s->keys.endpoint : NULL;
    EN_TRY(eni_remote_place_find(&s->url, o->endpoint != NULL ? "--data-endpoint" : s->keys.endpoint_by,
                                 s->endpoint, s->keys.region[0] != '\0' ? s->keys.region : NULL, &s->place));
    const eni_remote_options bucket = {.url = &s->url,
                                       .place = &s->place,
                                       .keys = &s->keys,
                                       .ca_file = eni_env("AWS_CA_BUNDLE"),
                                       .on_bytes = on_bytes,
                                       .on_sign = on_sign,
                                       .is_stopped = is_stopped,
                                       .user = &s->progress};
    return eni_remote_open(&bucket, &s->bucket);
}

static void close_session(session *s)
{
    eni_remote_close(s->bucket);
    eni_wipe(&s->keys, sizeof s->keys);
}

/* The key of the URL as a folder: "data" is "data/". */
static void prefix_of(const session *s, char prefix_out[ENI_REMOTE_KEY + 1])
{
    const size_t length = strlen(s->url.key);
    snprintf(prefix_out, ENI_REMOTE_KEY + 1, "%.*s%s", ENI_REMOTE_KEY - 1, s->url.key,
             length == 0 || s->url.key[length - 1] == '/' ? "" : "/");
}

static en_status answer(const char *path)
{
    const size_t bytes = strlen(path) + 1;
    return write(ANSWER_FD, path, bytes) == (ssize_t)bytes ? EN_OK : EN_EIO;
}

/* ---- down ---- */

static size_t choose(const eni_listing *listing, const char *prefix, char **names, int nnames,
                     eni_cache_file *files)
{
    size_t n = 0;
    for (int k = 0; k < nnames; k++) {
        const eni_object *found = NULL;
        for (size_t i = 0; i < listing->n && found == NULL; i++)
            if (strcmp(listing->object[i].key + strlen(prefix), names[k]) == 0) found = &listing->object[i];
        if (found != NULL && n < FILES_MAX) files[n++] = (eni_cache_file){.object = found, .name = names[k]};
    }
    return n;
}

/* A service that gives keys which do not begin as asked is wrong, and so would be what follows. */
static en_status check_prefix(const eni_listing *listing, const char *prefix, const char *url)
{
    for (size_t i = 0; i < listing->n; i++)
        if (strncmp(listing->object[i].key, prefix, strlen(prefix)) != 0 ||
            (listing->folder[0] != '\0' && strncmp(listing->folder, prefix, strlen(prefix)) != 0))
            return eni_fail(EN_EFORMAT, "remote", "%s: the service lists keys that do not begin so", url);
    return EN_OK;
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
    for (size_t i = 0; i < listing->n; i++)
        if (strcmp(listing->object[i].key + strlen(prefix), "training.pt") == 0)
            return eni_fail(
                EN_EINVAL, "remote",
                "%s=%s: there lies training.pt, a pickled file of PyTorch, which runs code when it is "
                "read, so Entrain does not: fetch it and test.pt, write the IDX files with "
                "tools/pt2idx.py training.pt test.pt FOLDER, and put those there",
                flag, url);
    if (some[0] == '\0')
        return eni_fail(EN_EINVAL, "remote",
                        "%s=%s: nothing lies there; `entrain data s3://BUCKET` lists a bucket", flag, url);
    return eni_fail(EN_EINVAL, "remote",
                    "%s=%s: no files of a data set lie right there (IDX as MNIST's, or the .bin files of "
                    "CIFAR), but %s%s",
                    flag, url, some, listing->n > SHOWN ? ", .." : "");
}

static en_status fetch_files(session *s, eni_cache *cache, eni_cache_file *files, size_t n)
{
    fetching *p = &s->progress;
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
    if (!p->is_quiet && p->is_tty && !is_complete) show(p, true);
    EN_TRY(st);
    const double seconds = (double)(eni_now_ns() - p->begin_ns) * 1e-9;
    if (is_complete)
        eni_debug("remote", "%s: all of it is in %s", p->url, cache->path);
    else if (!p->is_quiet)
        eni_info("remote", "%s: %.1f MB in %.1f s, now in %s", p->url,
                 (double)(p->total - p->done_before) * 1e-6, seconds, cache->path);
    eni_cache_tidy(cache, files, n);
    return EN_OK;
}

/* Where the bucket may not be listed, each name is asked for: as a listing, of what is there. */
static en_status find_by_names(session *s, const char *prefix, char **names, int nnames,
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
        eni_info("remote", "%s may not be listed: %zu files of a data set are there by their names",
                 s->progress.url, listing_out->n);
    return EN_OK;
}

/* "train.bin[.gz]" is two names. */
static en_status refuse_unlisted(const session *s, const char *flag, const char *url, char **names,
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
                    "%s=%s: %s may not list it (%s is missing), and found no file of a data set by its name: "
                    "there is none, "
                    "or %s is missing too. Check the prefix, or allow %s. Tried: %s",
                    flag, url, s->keys.is_none ? "who has no keys (--data-keys=none)" : "these keys",
                    is_s3 ? "s3:ListBucket" : "oss:ListObjects", is_s3 ? "s3:GetObject" : "oss:GetObject",
                    is_s3 ? "s3:ListBucket" : "oss:ListObjects", tried);
}

/* EN_EMISMATCH: it changed under way. */
static en_status fetch_once(session *s, eni_cache *cache, const char *flag, const char *url, char **names,
                            int nnames)
{
    char prefix[ENI_REMOTE_KEY + 1];
    eni_cache_file files[FILES_MAX];
    eni_listing listing;
    prefix_of(s, prefix);
    en_status st = eni_remote_list(s->bucket, prefix, ENI_LIST_FLAT | ENI_LIST_ASK, &listing);
    const bool is_listed = st != EN_EDENIED;
    if (!is_listed) st = find_by_names(s, prefix, names, nnames, &listing);
    if (st == EN_OK) st = check_prefix(&listing, prefix, url);
    const size_t n = st == EN_OK ? choose(&listing, prefix, names, nnames, files) : 0;
    if (st == EN_OK && n == 0)
        st = is_listed ? refuse_empty(flag, url, prefix, &listing)
                       : refuse_unlisted(s, flag, url, names, nnames);
    if (st == EN_OK) st = fetch_files(s, cache, files, n);
    eni_listing_fini(&listing);
    return st;
}

/* The object of exactly this key. Where it cannot be asked for, the list says why. */
static en_status get_once(session *s, eni_cache *cache, const char *flag, const char *url, const char *name)
{
    eni_object object;
    eni_cache_file file = {.object = &object, .name = name};
    eni_listing listing;
    en_status st = eni_remote_head(s->bucket, s->url.key, &object);
    if (st == EN_OK) return fetch_files(s, cache, &file, 1);
    if (st != EN_ENOENT && st != EN_EDENIED) return st;
    EN_TRY(eni_remote_list(s->bucket, s->url.key, ENI_LIST_FLAT, &listing));
    bool is_listed = false;
    for (size_t i = 0; i < listing.n; i++)
        is_listed = is_listed || strcmp(listing.object[i].key, s->url.key) == 0;
    eni_listing_fini(&listing);
    return eni_fail(EN_EINVAL, "remote", "%s=%s %s", flag, url,
                    is_listed && st == EN_EDENIED ? "is listed, but these keys may not read it"
                                                  : "is not there: there is no such object");
}

/* For its copy, with room for what lies beside it. */
static bool is_file_name(const char *name)
{
    const size_t length = strlen(name);
    return length > 0 && length <= 200 && name[0] != '.' &&
           (length < 8 || strcmp(name + length - 8, ".entrain") != 0);
}

static en_status bring(const options *o, const char *url, char **names, int nnames)
{
    session s;
    eni_cache cache = {.fd = -1, .lock_fd = -1};
    char path[PATH_MAX];
    const char *flag = o->flag != NULL ? o->flag : "--data", *slash = strrchr(url, '/');
    en_status st = open_session(o, flag, url, &s);
    if (st == EN_OK && names == NULL && !is_file_name(s.url.key[0] == '\0' ? "" : slash + 1))
        st = eni_fail(
            EN_EINVAL, "remote",
            "%s=%s: the last part of the key must be a name for a file: of 1 to 200 bytes, not with a '.' in "
            "front, and no .entrain",
            flag, url);
    eni_env_forget_keys();
    if (st == EN_OK) st = eni_cache_open(o->cache, url, s.endpoint, &cache);
    for (int round = 0; st == EN_OK || st == EN_EMISMATCH; round++) {
        st = names != NULL ? fetch_once(&s, &cache, flag, url, names, nnames)
                           : get_once(&s, &cache, flag, url, slash + 1);
        if (st != EN_EMISMATCH) break;
        if (round == ROUNDS - 1)
            st = eni_fail(EN_EIO, "remote",
                          "%s changes while it is fetched (another ETag or size each of %d times): try again "
                          "when it rests",
                          url, ROUNDS);
        else
            eni_info("remote", "%s has changed while it was fetched: from its list again", url);
    }
    if (st == EN_OK) {
        snprintf(path, sizeof path, "%.3000s%s%.255s", cache.path, names == NULL ? "/" : "",
                 names == NULL ? slash + 1 : "");
        st = answer(path);
    }
    eni_cache_close(&cache);
    close_session(&s);
    return st;
}

/* ---- the newest checkpoint ---- */

/* Of `least` samples or more; NULL: there is none. */
static const eni_object *find_newest(const eni_listing *listing, const char *prefix, uint64_t least)
{
    const eni_object *newest = NULL;
    uint64_t samples;
    for (size_t i = 0; i < listing->n; i++)
        if (eni_checkpoint_is(listing->object[i].key + strlen(prefix), &samples) && samples >= least)
            newest = &listing->object[i], least = samples;
    return newest;
}

/* With a name of its own until it is whole, which a run would sweep: another launcher may do the same. */
static en_status get_into(session *s, const eni_object *object, const char *path)
{
    char part[PATH_MAX + 32];
    uint64_t have = 0;
    snprintf(part, sizeof part, "%s.%d.tmp", path, (int)getpid());
    const int fd = open(part, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return eni_fail(EN_EIO, "remote", "cannot write %s: %s", part, strerror(errno));
    en_status st = eni_remote_get(s->bucket, object, fd, &have, NULL, NULL);
    if (st == EN_EMISMATCH) st = eni_fail(EN_EIO, "remote", "%s changes while it is fetched", object->key);
    const bool is_whole = st == EN_OK && fsync(fd) == 0;
    const bool is_closed = close(fd) == 0;
    if (st == EN_OK && !(is_whole && is_closed && rename(part, path) == 0))
        st = eni_fail(EN_EIO, "remote", "cannot write %s: %s", path, strerror(errno));
    if (st != EN_OK) unlink(part);
    return st;
}

static en_status bring_newest(const options *o, const char *url, const char *folder)
{
    session s;
    eni_listing listing = {0};
    char prefix[ENI_REMOTE_KEY + 1] = "", path[PATH_MAX] = "";
    uint64_t here;
    const uint64_t least = eni_checkpoint_list(folder, "", &here, 1) > 0 ? here + 1 : 0;
    en_status st = open_session(o, "--checkpoint-dir", url, &s);
    if (st == EN_OK) prefix_of(&s, prefix);
    if (st == EN_OK) st = eni_remote_list(s.bucket, prefix, ENI_LIST_FLAT, &listing);
    if (st == EN_OK) st = check_prefix(&listing, prefix, url);
    const eni_object *newest = st == EN_OK ? find_newest(&listing, prefix, least) : NULL;
    if (newest != NULL) {
        snprintf(path, sizeof path, "%.3000s/%.255s", folder, newest->key + strlen(prefix));
        st = get_into(&s, newest, path);
        if (st == EN_OK) eni_info("remote", "the newest checkpoint of %s is here: %s", url, path);
    }
    if (st == EN_OK) st = answer(path);
    eni_listing_fini(&listing);
    close_session(&s);
    return st;
}

/* ---- a table ---- */

static void print_object(const eni_object *object, double *bytes)
{
    char size[32];
    eni_text_grouped((double)object->size, ",", size, sizeof size);
    printf("%16s  %s\n", size, eni_is_text(object->key) ? object->key : "(a key that is no text)");
    *bytes += (double)object->size;
}

/* "data" names the object of that key and the folder "data/", and not "data-old/", which only begins so. */
static en_status print_list(const options *o, const char *url)
{
    session s;
    eni_listing listing = {0};
    eni_object single;
    char prefix[ENI_REMOTE_KEY + 1] = "";
    double bytes = 0;
    en_status st = open_session(o, "entrain data", url, &s), asked = EN_ENOENT;
    if (st == EN_OK) prefix_of(&s, prefix);
    if (st == EN_OK && strcmp(prefix, s.url.key) != 0) asked = eni_remote_head(s.bucket, s.url.key, &single);
    if (st == EN_OK && asked != EN_ENOENT && asked != EN_EDENIED) st = asked;
    if (st == EN_OK) st = eni_remote_list(s.bucket, prefix, asked == EN_OK ? ENI_LIST_ASK : 0, &listing);
    if (st == EN_EDENIED)
        eni_warn("remote", "%s: these keys may not list the bucket, so only this object is shown", url);
    if (st == EN_EDENIED) st = EN_OK;
    if (st == EN_OK && asked == EN_OK) print_object(&single, &bytes);
    for (size_t i = 0; st == EN_OK && i < listing.n; i++)
        print_object(&listing.object[i], &bytes);
    const size_t n = listing.n + (asked == EN_OK ? 1 : 0);
    if (st == EN_OK) printf("%zu object%s, %.1f MB\n", n, n == 1 ? "" : "s", bytes * 1e-6);
    if (st == EN_OK && n == 0 && asked == EN_EDENIED)
        eni_warn("remote",
                 "%s: these keys may not read an object of this name, so it may be there all the same", url);
    eni_listing_fini(&listing);
    close_session(&s);
    return st;
}

/* ---- up ---- */

/* One file of this host as it was when it went up: who has been renamed over it is another. */
typedef struct uploaded {
    char name[256];
    ino_t inode;
    struct timespec time;
    bool is_up; /* else it could not be taken up */
} uploaded;

typedef struct mirror {
    const options *o;
    int lock_fd;                  /* of FOLDER/.mirror: as long as it is held, what is retired waits for us */
    bool is_over, is_given_up;    /* the run has ended; then the service did not answer, or we were stopped */
    session *of_file, *of_folder; /* NULL: not asked for */
    char prefix[ENI_REMOTE_KEY + 1];
    uploaded *done;
    size_t ndone, room;
    uploaded file; /* as it was at the beginning: an older run's .. */
    bool has_file; /* .. which is in the bucket, by its size */
} mirror;

static bool is_same(const uploaded *known, const struct stat *info)
{
    return known->inode == info->st_ino && known->time.tv_sec == info->st_mtim.tv_sec &&
           known->time.tv_nsec == info->st_mtim.tv_nsec;
}

/* It may be retired meanwhile, or has been. */
static en_status upload(session *s, const char *path, const char *key, struct stat *info_out)
{
    char retired[PATH_MAX + sizeof ENI_RETIRED];
    const int64_t begin = eni_now_ns();
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    snprintf(retired, sizeof retired, "%s" ENI_RETIRED, path);
    if (fd < 0 && errno == ENOENT) fd = open(retired, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return EN_ENOENT;
    if ((fd < 0 && lstat(path, info_out) != 0) || (fd >= 0 && fstat(fd, info_out) != 0) || fd < 0) {
        if (fd >= 0) close(fd);
        return eni_fail(EN_EIO, "remote", "cannot read %s: %s", path, strerror(errno));
    }
    (void)flock(fd, LOCK_SH | LOCK_NB); /* a rank removes others first, when too many wait */
    const en_status st = eni_upload(s->bucket, key, fd, (uint64_t)info_out->st_size, &s->sizes);
    close(fd);
    if (st == EN_OK)
        eni_info("remote", "%s is saved in %s://%s too: %.1f MB in %.1f s", path,
                 s->url.kind == ENI_S3 ? "s3" : "oss", s->url.bucket, (double)info_out->st_size * 1e-6,
                 (double)(eni_now_ns() - begin) * 1e-9);
    else
        eni_warn("remote", "%s is not in the bucket%s", path,
                 access(path, F_OK) == 0 ? "; it stays here" : ", and newer ones have taken its place here");
    return st;
}

static uploaded *find_done(mirror *m, const char *name)
{
    for (size_t i = 0; i < m->ndone; i++)
        if (strcmp(m->done[i].name, name) == 0) return &m->done[i];
    return NULL;
}

static void note_done(mirror *m, const char *name, const struct stat *info, bool is_up)
{
    uploaded *u = find_done(m, name);
    if (u == NULL && m->ndone == m->room) {
        m->room = m->room == 0 ? 64 : 2 * m->room;
        uploaded *more = realloc(m->done, m->room * sizeof *more);
        if (more == NULL) {
            eni_error("remote", "there is no memory for the names of %zu checkpoints", m->room);
            _exit(1);
        }
        m->done = more;
    }
    if (u == NULL) u = &m->done[m->ndone++];
    *u = (uploaded){.inode = info->st_ino, .time = info->st_mtim, .is_up = is_up};
    snprintf(u->name, sizeof u->name, "%.255s", name);
}

/* Its name without what says that it is retired. */
static bool name_of(const char *entry, char name_out[256], bool *is_retired_out)
{
    const size_t length = strlen(entry), ends = sizeof ENI_RETIRED - 1;
    uint64_t samples;
    *is_retired_out = length > ends && length < 256 && strcmp(entry + length - ends, ENI_RETIRED) == 0;
    snprintf(name_out, 256, "%.*s", (int)(*is_retired_out ? length - ends : length), entry);
    return eni_checkpoint_is(name_out, &samples);
}

/* The oldest first that is not up yet; false: there is none. What is retired and was tried goes. */
static bool find_next(mirror *m, char name_out[256])
{
    DIR *dir = opendir(m->o->folder);
    name_out[0] = '\0';
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        struct stat info;
        char name[256];
        bool is_retired;
        if (!name_of(e->d_name, name, &is_retired) ||
            fstatat(dirfd(dir), e->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
            continue;
        const uploaded *known = find_done(m, name);
        if (known != NULL && is_same(known, &info)) {
            if (is_retired) unlinkat(dirfd(dir), e->d_name, 0);
            continue;
        }
        if (name_out[0] == '\0' || strcmp(name, name_out) < 0) memcpy(name_out, name, sizeof name);
    }
    if (dir != NULL) closedir(dir);
    return name_out[0] != '\0';
}

/* false: it could not be taken up, and is still there. */
static bool upload_checkpoint(mirror *m, const char *name)
{
    char path[PATH_MAX], key[2 * ENI_REMOTE_KEY];
    struct stat info = {0};
    snprintf(path, sizeof path, "%.3000s/%s", m->o->folder, name);
    snprintf(key, sizeof key, "%s%s", m->prefix, name);
    const en_status st = upload(m->of_folder, path, key, &info);
    m->is_given_up = st == EN_EINTR || (m->is_over && st == EN_EIO);
    if (st != EN_ENOENT)
        note_done(m, name, &info, st == EN_OK); /* one that failed too: the next one is newer */
    return st == EN_OK || st == EN_ENOENT;      /* it was retired */
}

static void upload_folder(mirror *m)
{
    char name[256];
    while (m->of_folder != NULL && !m->is_given_up && find_next(m, name))
        upload_checkpoint(m, name);
}

/* Once more at the end, what could not be taken up and is still there. */
static bool upload_failed(mirror *m)
{
    bool is_all_up = true;
    for (size_t i = 0; i < m->ndone; i++)
        if (!m->done[i].is_up)
            is_all_up = !m->is_given_up && upload_checkpoint(m, m->done[i].name) && is_all_up;
    return is_all_up;
}

/* Of an earlier run, which this one does not go on with: it may be refused, or replace them. */
static void note_present(mirror *m)
{
    char name[256], path[PATH_MAX];
    struct stat info;
    while (find_next(m, name)) {
        snprintf(path, sizeof path, "%.3000s/%s", m->o->folder, name);
        if (lstat(path, &info) == 0) note_done(m, name, &info, true);
    }
}

/* What the bucket has already need not go there again. */
static en_status open_folder(mirror *m, session *s)
{
    eni_listing listing;
    if (!m->o->resumes) note_present(m);
    EN_TRY(open_session(m->o, "--checkpoint-dir", m->o->into, s));
    m->of_folder = s;
    prefix_of(s, m->prefix);
    EN_TRY(eni_remote_list(s->bucket, m->prefix, ENI_LIST_FLAT, &listing));
    en_status st = check_prefix(&listing, m->prefix, m->o->into);
    if (st == EN_OK && !m->o->resumes && find_newest(&listing, m->prefix, 0) != NULL)
        st = eni_fail(
            EN_EINVAL, "remote",
            "%s holds checkpoints of an earlier run: give --resume=auto to go on from the newest, or another "
            "--checkpoint-dir",
            m->o->into);
    for (size_t i = 0; st == EN_OK && i < listing.n; i++) {
        char path[PATH_MAX];
        struct stat info;
        uint64_t samples;
        const char *name = listing.object[i].key + strlen(m->prefix);
        snprintf(path, sizeof path, "%.3000s/%.255s", m->o->folder, name);
        if (eni_checkpoint_is(name, &samples) && stat(path, &info) == 0 &&
            (uint64_t)info.st_size == listing.object[i].size)
            note_done(m, name, &info, true);
    }
    eni_listing_fini(&listing);
    return st;
}

/* It shows, before anybody trains, whether the keys and the name are right. */
static en_status open_file(mirror *m, session *s)
{
    struct stat info;
    eni_object object = {.size = 0};
    EN_TRY(open_session(m->o, "--save", m->o->as, s));
    m->of_file = s;
    en_status st = eni_remote_head(s->bucket, s->url.key, &object);
    if (st == EN_ENOENT || st == EN_EDENIED) { /* where they may not list, what is not there is denied too */
        const en_status may = eni_remote_ask(s->bucket, s->url.key);
        if (may != EN_OK && may != EN_EDENIED) return may;
        if (may == EN_EDENIED)
            eni_warn(
                "remote",
                "--save=%s: these keys may not list the bucket, so whether they may write shows at the end",
                m->o->as);
    }
    const bool is_here = stat(m->o->file, &info) == 0;
    m->has_file = st == EN_OK && is_here && object.size == (uint64_t)info.st_size;
    if (is_here) m->file = (uploaded){.inode = info.st_ino, .time = info.st_mtim};
    return st == EN_ENOENT || st == EN_EDENIED ? EN_OK : st;
}

/* Where a file system knows no locks, ranks remove what they retire, and what came and went between two looks is lost. */
static en_status hold_folder(mirror *m)
{
    char path[PATH_MAX];
    EN_TRY(eni_folder_check("--out", m->o->folder));
    snprintf(path, sizeof path, "%.3000s/" ENI_MIRROR_LOCK, m->o->folder);
    m->lock_fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (m->lock_fd < 0) return eni_fail(EN_EIO, "remote", "cannot write %s: %s", path, strerror(errno));
    if (flock(m->lock_fd, LOCK_EX | LOCK_NB) == 0) return EN_OK;
    eni_debug("remote", "cannot lock %s: %s", path, strerror(errno));
    close(m->lock_fd);
    m->lock_fd = -1;
    return EN_OK;
}

/* And what a refused run would leave empty. */
static void release_folder(mirror *m)
{
    char path[PATH_MAX], name[256];
    if (m->lock_fd < 0) return;
    snprintf(path, sizeof path, "%.3000s/" ENI_MIRROR_LOCK, m->o->folder);
    unlink(path);
    close(m->lock_fd);
    find_next(m, name); /* the last that were retired */
    rmdir(m->o->folder);
}

/* Until the one who started us says that the run has ended, well ('f') or not; or is gone, and with it what we were for. */
static bool wait_for_end(char *order_out)
{
    char order = 0;
    struct pollfd watched = {STDIN_FILENO, POLLIN, 0};
    if (poll(&watched, 1, LOOK_MS) <= 0) return false;
    if (read(STDIN_FILENO, &order, 1) != 1) _exit(1);
    *order_out = order;
    return true;
}

static en_status run_mirror(const options *o)
{
    session file = {0}, folder = {0};
    mirror *m = eni_alloc(sizeof *m);
    if (m == NULL) return EN_ENOMEM;
    m->o = o;
    m->lock_fd = -1;
    signal(SIGTERM, SIG_IGN); /* Slurm and systemd send it to all: whoever started us says when it is over */
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN); /* who is gone hears nothing, and what is half in the bucket goes first */
    en_status st = o->as != NULL ? open_file(m, &file) : EN_OK;
    if (st == EN_OK && o->into != NULL) st = open_folder(m, &folder);
    eni_env_forget_keys();
    if (st == EN_OK && o->into != NULL) st = hold_folder(m);
    if (st == EN_OK && write(ANSWER_FD, "", 1) != 1) st = EN_EIO;
    fcntl(ANSWER_FD, F_SETFL, O_NONBLOCK);
    file.progress.has_signs = folder.progress.has_signs = true;
    char order = 0;
    while (st == EN_OK && !m->is_over) {
        m->is_over = wait_for_end(&order);
        upload_folder(m);
    }
    bool is_all_up = st != EN_OK || (upload_failed(m) && !m->is_given_up);
    struct stat info;
    const bool is_unsaved = order == 'f' && !m->has_file;
    if (st == EN_OK && o->as != NULL && stat(o->file, &info) == 0 &&
        (!is_same(&m->file, &info) || is_unsaved) &&
        (m->is_given_up || upload(&file, o->file, file.url.key, &info) != EN_OK))
        is_all_up = false;
    if (st == EN_OK && !is_all_up) st = EN_EIO;
    release_folder(m);
    if (m->of_file != NULL) close_session(m->of_file);
    if (m->of_folder != NULL) close_session(m->of_folder);
    free(m->done);
    eni_free(m);
    return st;
}

static en_status clear(const options *o)
{
    uint64_t bytes;
    EN_TRY(eni_cache_clear(o->cache, &bytes));
    printf("%s: %.1f MB removed\n", o->cache, (double)bytes * 1e-6);
    return EN_OK;
}

/* ---- */

static en_status dispatch(const options *o, const char *verb, int n, char **rest)
{
    if (strcmp(verb, "fetch") == 0 && n > 1) return bring(o, rest[0], rest + 1, n - 1);
    if (strcmp(verb, "get") == 0 && n == 1) return bring(o, rest[0], NULL, 0);
    if (strcmp(verb, "newest") == 0 && n == 2) return bring_newest(o, rest[0], rest[1]);
    if (strcmp(verb, "list") == 0 && n == 1) return print_list(o, rest[0]);
    if (strcmp(verb, "mirror") == 0 && n == 0) return run_mirror(o);
    if (strcmp(verb, "clear") == 0 && n == 0) return clear(o);
    return eni_fail(EN_EINVAL, "remote",
                    "transfer is started by entrain and worker: entrain run --data=s3://BUCKET/PREFIX");
}

int main(int argc, char **argv)
{
    static const struct option known[] = {
        {"cache", required_argument, NULL, 'c'}, {"endpoint", required_argument, NULL, 'e'},
        {"keys", required_argument, NULL, 'k'},  {"log-level", required_argument, NULL, 'l'},
        {"flag", required_argument, NULL, 'g'},  {"file", required_argument, NULL, 'f'},
        {"as", required_argument, NULL, 'a'},    {"folder", required_argument, NULL, 'd'},
        {"into", required_argument, NULL, 'i'},  {"put-max", required_argument, NULL, 'm'},
        {"part", required_argument, NULL, 'p'},  {"quiet", no_argument, NULL, 'q'},
        {"resumes", no_argument, NULL, 'r'},     {NULL, 0, NULL, 0}};
    options o = {.cache = "", .sizes = {ENI_PUT_MAX, ENI_PART_BYTES}};
    prctl(PR_SET_DUMPABLE, 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 'c') o.cache = optarg;
        if (c == 'e') o.endpoint = optarg;
        if (c == 'k') o.keys = optarg;
        if (c == 'l') eni_log_set_level(atoi(optarg));
        if (c == 'g') o.flag = optarg;
        if (c == 'f') o.file = optarg;
        if (c == 'a') o.as = optarg;
        if (c == 'd') o.folder = optarg;
        if (c == 'i') o.into = optarg;
        if (c == 'q') o.is_quiet = true;
        if (c == 'r') o.resumes = true;
        if (c == 'm') o.sizes.put_max = strtoull(optarg, NULL, 10); /* of tests */
        if (c == 'p') o.sizes.part = strtoull(optarg, NULL, 10);
        if (c == '?') return 2;
    }
    if (optind >= argc) return dispatch(&o, "", 0, argv) == EN_OK ? 0 : 2;
    const int code =
        eni_signals_exit_code(dispatch(&o, argv[optind], argc - optind - 1, argv + optind + 1), -1);
    return fflush(stdout) == 0 ? code : 1;
}
