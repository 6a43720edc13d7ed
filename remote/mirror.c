/* mirror.c - uploads a run's files while it goes on (session.h). */
#include "remote/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "core/checkpoint_name.h"
#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { LOOK_MS = 500 };

/* A file as it was uploaded; a file renamed over it later has another inode or time. */
typedef struct uploaded {
    char name[256];
    ino_t inode;
    struct timespec time;
    bool is_up; /* else its upload failed */
} uploaded;

typedef struct mirror {
    const eni_transfer_options *o;
    int lock_fd;                      /* of FOLDER/.mirror: while it is held, retired files wait for us */
    bool is_over, is_given_up;        /* the run has ended; then the service failed, or we were stopped */
    eni_session *of_file, *of_folder; /* NULL if not requested */
    char prefix[ENI_REMOTE_KEY + 1];
    uploaded *done;
    uint32_t ndone, room;
    uploaded file; /* as it was at the beginning: an older run's .. */
    bool has_file; /* .. which is in the bucket, judging by its size */
} mirror;

static bool is_same(const uploaded *known, const struct stat *info)
{
    return known->inode == info->st_ino && known->time.tv_sec == info->st_mtim.tv_sec &&
           known->time.tv_nsec == info->st_mtim.tv_nsec;
}

/* Uploads a file, which may be retired meanwhile, or has been. */
static en_status upload(eni_session *s, const char *path, const char *key, struct stat *info_out)
{
    char retired[PATH_MAX + sizeof ENI_RETIRED];
    const int64_t begin = eni_now_ns();
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    snprintf(retired, sizeof retired, "%s" ENI_RETIRED, path);
    if (fd < 0 && errno == ENOENT) fd = open(retired, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return EN_ENOENT;
    if (fd < 0 || fstat(fd, info_out) != 0) {
        const int cause = errno;
        if (fd >= 0) close(fd);
        (void)lstat(path, info_out); /* to recognise it */
        return eni_fail(EN_EIO, "remote", "cannot read %s: %s", path, strerror(cause));
    }
    (void)flock(fd, LOCK_SH | LOCK_NB); /* when too many wait, a rank removes unlocked ones first */
    const en_status st = eni_upload(s->bucket, key, fd, (uint64_t)info_out->st_size, &s->sizes);
    close(fd);
    if (st == EN_OK)
        eni_info("remote", "uploaded %s to %s://%s: %.1f MB in %.1f s", path, eni_url_scheme(s->url.kind),
                 s->url.bucket, (double)info_out->st_size * 1e-6, (double)(eni_now_ns() - begin) * 1e-9);
    else
        eni_warn("remote", "could not upload %s%s", path,
                 access(path, F_OK) == 0 ? "; it stays here" : ", and newer ones have replaced it here");
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
    if (u == NULL && eni_grow((void **)&m->done, &m->room, m->ndone + 1, sizeof *m->done) != EN_OK) _exit(1);
    if (u == NULL) u = &m->done[m->ndone++];
    *u = (uploaded){.inode = info->st_ino, .time = info->st_mtim, .is_up = is_up};
    snprintf(u->name, sizeof u->name, "%.255s", name);
}

/* A checkpoint's name without the suffix of a retired one. */
static bool name_of(const char *entry, char name_out[256], bool *is_retired_out)
{
    const size_t length = strlen(entry), ends = sizeof ENI_RETIRED - 1;
    uint64_t samples;
    *is_retired_out = length > ends && length < 256 && strcmp(entry + length - ends, ENI_RETIRED) == 0;
    snprintf(name_out, 256, "%.*s", (int)(*is_retired_out ? length - ends : length), entry);
    return eni_checkpoint_is(name_out, &samples);
}

/* Finds the oldest that is not uploaded; false if all are. Removes retired ones that were tried. */
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

/* False: it could not be uploaded, and still exists. */
static bool upload_checkpoint(mirror *m, const char *name)
{
    char path[PATH_MAX], key[2 * ENI_REMOTE_KEY];
    struct stat info = {0};
    snprintf(path, sizeof path, "%.3000s/%s", m->o->folder, name);
    snprintf(key, sizeof key, "%s%s", m->prefix, name);
    const en_status st = upload(m->of_folder, path, key, &info);
    m->is_given_up = st == EN_EINTR || (m->is_over && st == EN_EIO);
    if (st != EN_ENOENT)
        note_done(m, name, &info, st == EN_OK); /* even if it failed: the next one is newer */
    return st == EN_OK || st == EN_ENOENT;      /* it was retired */
}

static void upload_folder(mirror *m)
{
    char name[256];
    while (m->of_folder != NULL && !m->is_given_up && find_next(m, name))
        upload_checkpoint(m, name);
}

/* Tries again, at the end, to upload files that failed and still exist. */
static bool upload_failed(mirror *m)
{
    bool is_all_up = true;
    for (size_t i = 0; i < m->ndone; i++)
        if (!m->done[i].is_up)
            is_all_up = !m->is_given_up && upload_checkpoint(m, m->done[i].name) && is_all_up;
    return is_all_up;
}

/* Notes files of an earlier run, which this one does not continue: it may be refused, or replace them. */
static void note_present(mirror *m)
{
    char name[256], path[PATH_MAX];
    struct stat info;
    while (find_next(m, name)) {
        snprintf(path, sizeof path, "%.3000s/%s", m->o->folder, name);
        if (lstat(path, &info) == 0) note_done(m, name, &info, true);
    }
}

/* Opens the bucket, and notes files that it has already. */
static en_status open_folder(mirror *m, eni_session *s)
{
    eni_listing listing;
    if (!m->o->resumes) note_present(m);
    EN_TRY(eni_session_open(m->o, "--checkpoint-dir", m->o->into, s));
    m->of_folder = s;
    eni_session_prefix(s, m->prefix);
    EN_TRY(eni_remote_list(s->bucket, m->prefix, ENI_LIST_FLAT, &listing));
    en_status st = EN_OK;
    if (!m->o->resumes && eni_session_newest(&listing, m->prefix, 0) != NULL)
        st = eni_fail(EN_EINVAL, "remote",
                      "%s has checkpoints of an earlier run: give --resume=auto to continue from the newest, "
                      "or another --checkpoint-dir",
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

/* Shows, before training starts, whether the keys and the name are right. */
static en_status open_file(mirror *m, eni_session *s)
{
    struct stat info;
    eni_object object = {.size = 0};
    EN_TRY(eni_session_open(m->o, "--save", m->o->as, s));
    m->of_file = s;
    en_status st = eni_remote_head(s->bucket, s->url.key, &object);
    if (st == EN_ENOENT || st == EN_EDENIED) { /* what is missing is denied too if they may not list */
        const en_status may = eni_remote_ask(s->bucket, s->url.key);
        if (may != EN_OK && may != EN_EDENIED) return may;
        if (may == EN_EDENIED)
            eni_warn("remote",
                     "--save=%s: these keys may not list the bucket, so only the end will show whether they "
                     "may write",
                     m->o->as);
    }
    const bool is_here = stat(m->o->file, &info) == 0;
    m->has_file = st == EN_OK && is_here && object.size == (uint64_t)info.st_size;
    if (is_here) m->file = (uploaded){.inode = info.st_ino, .time = info.st_mtim};
    return st == EN_ENOENT || st == EN_EDENIED ? EN_OK : st;
}

/* On a file system without locks, ranks remove files that they retire, and those that come and go between two
 * scans are lost. */
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

/* Also removes a folder that a refused run would leave empty. */
static void release_folder(mirror *m)
{
    char path[PATH_MAX], name[256];
    if (m->lock_fd < 0) return;
    snprintf(path, sizeof path, "%.3000s/" ENI_MIRROR_LOCK, m->o->folder);
    unlink(path);
    close(m->lock_fd);
    find_next(m, name); /* removes the last retired ones */
    rmdir(m->o->folder);
}

/* Waits until our parent says that the run has ended, well ('f') or not; exits if the parent is gone. */
static bool wait_for_end(char *order_out)
{
    char order = 0;
    struct pollfd watched = {STDIN_FILENO, POLLIN, 0};
    if (poll(&watched, 1, LOOK_MS) <= 0) return false;
    if (read(STDIN_FILENO, &order, 1) != 1) _exit(1);
    *order_out = order;
    return true;
}

en_status eni_mirror(const eni_transfer_options *o)
{
    eni_session file = {0}, folder = {0};
    mirror *m = eni_alloc(sizeof *m);
    if (m == NULL) return EN_ENOMEM;
    m->o = o;
    m->lock_fd = -1;
    signal(SIGTERM, SIG_IGN); /* Slurm and systemd send it to all: our parent says when the run is over */
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN); /* after our parent's death, incomplete uploads are removed first */
    en_status st = o->as != NULL ? open_file(m, &file) : EN_OK;
    if (st == EN_OK && o->into != NULL) st = open_folder(m, &folder);
    eni_env_forget_keys();
    if (st == EN_OK && o->into != NULL) st = hold_folder(m);
    if (st == EN_OK && write(ENI_ANSWER_FD, "", 1) != 1) st = EN_EIO;
    fcntl(ENI_ANSWER_FD, F_SETFL, O_NONBLOCK);
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
    if (m->of_file != NULL) eni_session_close(m->of_file);
    if (m->of_folder != NULL) eni_session_close(m->of_folder);
    eni_free(m->done);
    eni_free(m);
    return st;
}
