/* lease.c - see lease.h.
 *
 * Locks are fcntl's, of the process: they end with it, or with the first close of the file in it, so nothing
 * else here opens that file. F_GETLK names the pid that holds one. */
#include "worker/lease.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { TICKET = 16, TICKETS_MAX = 1 << 16, LOOK_MS = 100 };

struct eni_lease {
    int fd;
    int64_t ticket; /* 0: none yet */
    int is_ours;
    char path[512];
};

/* ---- the file ---- */

static en_status fail(const eni_lease *l, const char *doing)
{
    const int why = errno;
    eni_error("lease",
              "--gpu-lease: cannot %s %s: %s; every user who takes part must be able to write it "
              "(ENTRAIN_LEASE_DIR names another folder)",
              doing, l->path, strerror(why));
    return why == EACCES || why == EPERM || why == EROFS ? EN_EDENIED : EN_EIO;
}

/* Not with O_CREAT at first: in /tmp that is refused for a file of somebody else (fs.protected_regular). */
static en_status open_file(eni_lease *l)
{
    const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    for (int i = 0; i < 3 && l->fd < 0; i++) {
        l->fd = open(l->path, flags);
        if (l->fd >= 0 || errno != ENOENT) break;
        l->fd = open(l->path, flags | O_CREAT | O_EXCL, 0666);
        if (l->fd >= 0) (void)fchmod(l->fd, 0666); /* whatever our umask */
        if (l->fd < 0 && errno != EEXIST) break;
    }
    if (l->fd < 0) return fail(l, "open");
    struct stat s;
    if (fstat(l->fd, &s) != 0) return fail(l, "look at");
    if (S_ISREG(s.st_mode) && s.st_nlink <= 1) return EN_OK;
    eni_error("lease",
              "--gpu-lease: %s is no plain file of its own: remove it, or name another folder with "
              "ENTRAIN_LEASE_DIR",
              l->path);
    return EN_EINVAL;
}

/* 1 if the file is still the one that others find. */
static int is_current(const eni_lease *l)
{
    struct stat ours, theirs;
    return fstat(l->fd, &ours) == 0 && lstat(l->path, &theirs) == 0 && ours.st_ino == theirs.st_ino &&
           ours.st_dev == theirs.st_dev;
}

/* 1: done; 0: somebody else has locked there. */
static int set_lock(const eni_lease *l, short type, int64_t from, int64_t length)
{
    struct flock f = {.l_type = type, .l_whence = SEEK_SET, .l_start = from, .l_len = length};
    return fcntl(l->fd, F_SETLK, &f) == 0;
}

/* 1 and some lock of another process in [from, to), to 0: the end of all; or 0. */
static int find_lock(const eni_lease *l, int64_t from, int64_t to, struct flock *found)
{
    *found = (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = to == 0 ? 0 : to - from};
    return (to == 0 || from < to) && fcntl(l->fd, F_GETLK, found) == 0 && found->l_type != F_UNLCK;
}

/* ---- tickets ---- */

static en_status start_over(eni_lease *l)
{
    close(l->fd);
    l->fd = -1;
    l->ticket = 0;
    return open_file(l);
}

/* Under the lock of the header: nobody else appends. */
static en_status append(eni_lease *l)
{
    struct stat s;
    struct flock any;
    if (!find_lock(l, TICKET, 0, &any) && ftruncate(l->fd, TICKET) != 0) return fail(l, "write");
    if (fstat(l->fd, &s) != 0) return fail(l, "look at");
    const int64_t n = (s.st_size + TICKET - 1) / TICKET;
    if (n < 1 || n > TICKETS_MAX) {
        eni_error("lease",
                  "--gpu-lease: %s is no queue of ours, by its size: remove it when nobody waits there",
                  l->path);
        return EN_EINVAL;
    }
    if (!set_lock(l, F_WRLCK, n * TICKET, TICKET)) return EN_OK; /* somebody plays with it: once more */
    const int64_t record[2] = {0, 0};
    if (pwrite(l->fd, record, sizeof record, n * TICKET) != sizeof record) return fail(l, "write");
    l->ticket = n;
    return EN_OK;
}

static en_status take_ticket(eni_lease *l)
{
    if (!set_lock(l, F_WRLCK, 0, TICKET)) return EN_OK;
    const en_status st = append(l);
    set_lock(l, F_UNLCK, 0, TICKET);
    EN_TRY(st);
    return is_current(l) ? EN_OK : start_over(l);
}

/* ---- who is before us ---- */

static void describe(const eni_lease *l, const struct flock *lock, eni_lease_holder *holder)
{
    int64_t record[2] = {0, 0};
    char path[64], text[1024];
    struct stat s;
    struct passwd entry, *found = NULL;
    const int64_t now = (int64_t)time(NULL);
    holder->pid = lock->l_pid > 0 ? lock->l_pid : 0;
    if (pread(l->fd, record, sizeof record, lock->l_start) == sizeof record &&
        record[0] > now - 86400 * 366 && record[0] <= now)
        holder->since_s = record[0];
    snprintf(path, sizeof path, "/proc/%lld", (long long)holder->pid);
    if (holder->pid == 0 || stat(path, &s) != 0) return;
    if (getpwuid_r(s.st_uid, &entry, text, sizeof text, &found) == 0 && found != NULL)
        snprintf(holder->user, sizeof holder->user, "%s", entry.pw_name);
    else
        snprintf(holder->user, sizeof holder->user, "uid %lu", (unsigned long)s.st_uid);
}

/* Locks in [from, to); the lowest of them. fcntl tells one of them at a time, in any order. */
static int count_locks(const eni_lease *l, int64_t from, int64_t to, struct flock *lowest, int depth)
{
    struct flock f;
    if (depth > 64 || !find_lock(l, from, to, &f)) return 0;
    const int64_t end = f.l_len == 0 ? to : f.l_start + f.l_len;
    const int after = count_locks(l, end, to, lowest, depth + 1);
    *lowest = f;
    return 1 + after + count_locks(l, from, f.l_start, lowest, depth + 1);
}

en_status eni_lease_poll(eni_lease *l, eni_lease_holder *holder_out)
{
    struct flock lowest;
    *holder_out = (eni_lease_holder){0};
    if (l->is_ours) return EN_OK;
    if (l->ticket == 0) EN_TRY(take_ticket(l));
    const int64_t end = l->ticket == 0 ? INT64_MAX : l->ticket * TICKET;
    holder_out->ahead = count_locks(l, TICKET, end, &lowest, 0);
    if (holder_out->ahead > 0) describe(l, &lowest, holder_out);
    if (holder_out->ahead > 0 || l->ticket == 0) return EN_ETIMEOUT;
    const int64_t record[2] = {(int64_t)time(NULL), 0};
    if (pwrite(l->fd, record, sizeof record, l->ticket * TICKET) != sizeof record) return fail(l, "write");
    l->is_ours = 1;
    return EN_OK;
}

/* ---- life ---- */

/* 1 if a queue lies there that we can take part in: somebody may have made those of all GPUs beforehand. */
static int has_queue(const char *dir)
{
    int found = 0;
    DIR *folder = opendir(dir);
    if (folder == NULL) return 0;
    for (const struct dirent *e; !found && (e = readdir(folder)) != NULL;)
        found = fnmatch("entrain-*.lease", e->d_name, 0) == 0 &&
                faccessat(dirfd(folder), e->d_name, R_OK | W_OK, 0) == 0;
    closedir(folder);
    return found;
}

en_status eni_lease_check(const char *dir)
{
    struct stat s;
    if (stat(dir, &s) != 0 || !S_ISDIR(s.st_mode)) {
        eni_error("lease",
                  "--gpu-lease: %.200s is no folder for the queue (ENTRAIN_LEASE_DIR names it; else /tmp)",
                  dir);
        return EN_EINVAL;
    }
    if (access(dir, W_OK | X_OK) == 0 || has_queue(dir)) return EN_OK;
    eni_error("lease",
              "--gpu-lease: the folder %.200s for the queue cannot be written: name another one, that all "
              "users can write, with ENTRAIN_LEASE_DIR",
              dir);
    return EN_EINVAL;
}

en_status eni_lease_open(const char *dir, const char *uuid, eni_lease **lease_out)
{
    eni_lease *l = eni_alloc(sizeof *l);
    if (l == NULL) return EN_ENOMEM;
    l->fd = -1;
    const int length = snprintf(l->path, sizeof l->path, "%s/entrain-%s.lease", dir, uuid);
    en_status st = EN_EINVAL;
    if (strchr(uuid, '/') != NULL || uuid[0] == 0 || length < 0 || (size_t)length >= sizeof l->path)
        eni_error("lease", "--gpu-lease: the folder %.200s does not fit", dir);
    else
        st = open_file(l);
    if (st == EN_OK)
        *lease_out = l;
    else
        eni_lease_close(l);
    return st;
}

void eni_lease_close(eni_lease *l)
{
    if (l == NULL) return;
    if (l->fd >= 0) close(l->fd);
    eni_free(l);
}

static void tell(const char *what, const eni_lease_holder *h)
{
    char who[96] = "a process of another container", since[32] = "", more[48] = "";
    struct tm at;
    const time_t begin = (time_t)h->since_s;
    if (h->pid > 0)
        snprintf(who, sizeof who, "pid %lld of %s", (long long)h->pid, h->user[0] ? h->user : "somebody");
    if (h->since_s > 0 && localtime_r(&begin, &at) != NULL)
        strftime(since, sizeof since, " since %H:%M", &at);
    if (h->ahead > 1) snprintf(more, sizeof more, "; %d before you", h->ahead);
    eni_info("lease", "waiting for %s: held by %s%s%s", what, who, since, more);
}

en_status eni_lease_wait(eni_lease *l, const char *what, const eni_alive *alive)
{
    eni_lease_holder now, told = {0};
    const int64_t begin = eni_now_ns();
    int64_t told_ns = 0;
    for (;;) {
        const en_status st = eni_lease_poll(l, &now);
        if (st == EN_OK && told_ns != 0)
            eni_info("lease", "%s is ours after %.0f s", what, (double)(eni_now_ns() - begin) * 1e-9);
        if (st != EN_ETIMEOUT) return st;
        const int is_news = now.pid != told.pid || now.since_s != told.since_s || now.ahead != told.ahead;
        if (now.ahead > 0 && (told_ns == 0 || is_news || eni_now_ns() - told_ns > 300 * ENI_SECOND)) {
            tell(what, &now);
            told = now;
            told_ns = eni_now_ns();
        }
        struct pollfd end = {.fd = alive->fd, .events = POLLIN};
        poll(&end, 1, LOOK_MS);
        EN_TRY(eni_alive_status(alive));
    }
}
