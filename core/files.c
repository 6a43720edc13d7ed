/* files.c - limits of descriptors and threads; replacing a file: write a temporary, sync it, rename it, sync its folder. */
#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/digest.h"
#include "core/log.h"
#include "core/memory.h"

static const int64_t say_again_ns = 10 * ENI_SECOND;

en_status eni_files_need(size_t needed, const char *who)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return EN_OK;
    if (files.rlim_max >= needed) {
        files.rlim_cur = needed;
        if (setrlimit(RLIMIT_NOFILE, &files) == 0) return EN_OK;
    }
    return eni_fail(
        EN_EUNSUPPORTED, "files",
        "%s needs %zu open files, and this process may open %llu: raise the limit with ulimit -n %zu", who,
        needed, (unsigned long long)files.rlim_cur, needed);
}

static void *wait_at(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

en_status eni_threads_need(int needed, const char *who)
{
    if (needed <= 0) return EN_OK;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *threads = eni_alloc_array((size_t)needed, sizeof *threads);
    int n = 0, error = 0;
    if (threads == NULL) return EN_ENOMEM;
    pthread_mutex_lock(&gate);
    while (n < needed && (error = pthread_create(&threads[n], NULL, wait_at, &gate)) == 0)
        n++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    eni_free(threads);
    if (error == 0) return EN_OK;
    return eni_fail(
        EN_EUNSUPPORTED, "files",
        "%s needs %d more threads, and this process can start %d (%s): raise ulimit -u, or ulimit -v", who,
        needed, n, strerror(error));
}

bool eni_files_are_short(int error, const char *who, int64_t *next_ns)
{
    struct rlimit files = {0};
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return false;
    const int64_t now_ns = eni_now_ns();
    if (now_ns < *next_ns) return true;
    *next_ns = now_ns + say_again_ns;
    getrlimit(RLIMIT_NOFILE, &files);
    if (error == EMFILE)
        eni_warn("files",
                 "%s cannot accept connections: all %llu file descriptors of this process are in use; new "
                 "connections wait until one is closed. Raise ulimit -n",
                 who, (unsigned long long)files.rlim_cur);
    else if (error == ENFILE)
        eni_warn("files",
                 "%s cannot accept connections: all file descriptors of this machine are in use; new "
                 "connections wait until one is closed. Raise sysctl fs.file-max",
                 who);
    else
        eni_warn("files", "%s cannot accept connections for now: the kernel is out of memory", who);
    return true;
}

/* ---- replacing a file ---------------------------------------------------------------------------------- */

enum { WHY = 512, PARTS_AT_ONCE = 64 };

/* Writes everything, however much writev(2) accepts at a time. */
static bool write_parts(int fd, struct iovec *part, size_t n)
{
    while (n > 0) {
        const ssize_t done = writev(fd, part, n < PARTS_AT_ONCE ? (int)n : PARTS_AT_ONCE);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        size_t left = (size_t)done;
        for (; n > 0 && left >= part->iov_len; part++, n--)
            left -= part->iov_len;
        if (n > 0) {
            part->iov_base = (char *)part->iov_base + left;
            part->iov_len -= left;
        }
    }
    return true;
}

/* Not every file system supports it; then a full disk shows later. */
static bool take_room(int fd, const struct iovec *part, size_t n)
{
    off_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += (off_t)part[i].iov_len;
    return bytes == 0 || fallocate(fd, 0, 0, bytes) == 0 ||
           (errno != ENOSPC && errno != EDQUOT && errno != EFBIG);
}

FILE *eni_file_open(const char *path, const char *mode)
{
    const int how = mode[0] == 'w'            ? O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW
                    : mode[0] == 'a'          ? O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW
                    : strcmp(mode, "r+") == 0 ? O_RDWR | O_NOFOLLOW
                                              : O_RDONLY;
    const int fd = open(path, how | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd >= 0) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); /* only the open must not block */
    FILE *file = fd < 0 ? NULL : fdopen(fd, mode);
    if (fd >= 0 && file == NULL) close(fd);
    return file;
}

bool eni_file_line(const char *path, char *line_out, size_t bytes)
{
    FILE *file = fopen(path, "re");
    const bool has_line = file != NULL && fgets(line_out, (int)bytes, file) != NULL;
    if (file != NULL) fclose(file);
    if (has_line) line_out[strcspn(line_out, "\n")] = '\0';
    return has_line;
}

bool eni_file_read_at(int fd, void *data, size_t bytes, off_t at)
{
    for (char *to = data; bytes > 0;) {
        const ssize_t n = pread(fd, to, bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO;
        if (n <= 0) return false;
        to += n, at += n, bytes -= (size_t)n;
    }
    return true;
}

bool eni_file_write_at(int fd, const void *data, size_t bytes, off_t at)
{
    for (const char *from = data; bytes > 0;) {
        const ssize_t n = pwrite(fd, from, bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        from += n, at += n, bytes -= (size_t)n;
    }
    return true;
}

/* Linux reports a disk's error to a descriptor once (errseq_t). A second EIO therefore means that this file system cannot
 * sync folders at all; syncfs then writes everything out, and fails where the disk does. */
int eni_folder_sync(int folder)
{
    if (fsync(folder) == 0) return 0;
    const int error = errno;
    if (error == EINVAL || error == ENOTSUP || error == ENOSYS) return 0;
    if (error == EIO && fsync(folder) != 0 && syncfs(folder) == 0) return 0;
    errno = error;
    return -1;
}

int eni_file_put(const eni_file_plan *plan, struct iovec *parts, size_t n, const char **doing_out)
{
    unlinkat(plan->folder, plan->temporary, 0); /* left by a process that was killed */
    const int fd =
        openat(plan->folder, plan->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, plan->mode);
    *doing_out = "create";
    if (fd < 0) return -1;
    *doing_out = "write";
    bool is_put = plan->lock_out == NULL || flock(fd, LOCK_EX | LOCK_NB) == 0 ||
                  (!plan->is_volatile && errno != EWOULDBLOCK); /* a shared folder may not support locks */
    is_put = is_put && (!plan->takes_room || take_room(fd, parts, n)) && write_parts(fd, parts, n);
    if (is_put && !plan->is_volatile) {
        *doing_out = "sync";
        is_put = fsync(fd) == 0;
    }
    int error = errno;
    bool is_open = is_put && plan->lock_out != NULL;
    if (!is_open && close(fd) != 0 && is_put) { /* NFS may report a full disk only here */
        is_put = false;
        error = errno;
    }
    errno = error;
    if (is_put) {
        *doing_out = "rename";
        is_put = renameat(plan->folder, plan->temporary, plan->folder, plan->name) == 0;
    }
    if (is_put && !plan->is_volatile && !is_open) { /* make the rename durable */
        *doing_out = "sync the folder of";
        is_put = eni_folder_sync(plan->folder) == 0;
    }
    error = errno;
    if (is_open && is_put)
        *plan->lock_out = fd;
    else if (is_open)
        close(fd);
    if (!is_put) unlinkat(plan->folder, plan->temporary, 0);
    errno = error;
    return is_put ? 0 : -1;
}

static en_status put_at(const char *path, eni_file_plan *plan, struct iovec *parts, size_t n, char *why_out,
                        size_t why_bytes)
{
    uint64_t tag;
    const char *doing = "create", *slash = strrchr(path, '/');
    const size_t bytes = strlen(path) + sizeof ".0123456789abcdef.tmp";
    char *copy = eni_strdup(path), *temporary = eni_alloc(bytes);
    en_status st = copy == NULL || temporary == NULL ? EN_ENOMEM : EN_OK;
    snprintf(why_out, why_bytes, "out of memory");
    if (st == EN_OK) {
        plan->name = slash == NULL ? path : slash + 1;
        plan->temporary = temporary;
        eni_random_bytes(&tag, sizeof tag);
        snprintf(temporary, bytes, "%s.%016llx.tmp", plan->name, (unsigned long long)tag);
        plan->folder =
            open(dirname(copy), (plan->lock_out != NULL ? O_PATH : O_RDONLY) | O_DIRECTORY | O_CLOEXEC);
        if (plan->folder < 0 || eni_file_put(plan, parts, n, &doing) != 0) {
            const int cause = errno;
            snprintf(why_out, why_bytes, "cannot %s %s: %s", doing, path, strerror(cause));
            st = cause == ENOENT ? EN_ENOENT : EN_EIO;
        }
        if (plan->folder >= 0) close(plan->folder);
    }
    eni_free(temporary);
    eni_free(copy);
    return st;
}

en_status eni_file_replace(const char *path, struct iovec *parts, size_t n, char *why_out, size_t why_bytes)
{
    eni_file_plan plan = {.mode = 0666, .takes_room = true};
    return put_at(path, &plan, parts, n, why_out, why_bytes);
}

en_status eni_file_hold(const char *path, const char *text, size_t bytes, bool is_volatile, int *lock_out,
                        char *why_out, size_t why_bytes)
{
    eni_file_plan plan = {.mode = 0600, .is_volatile = is_volatile, .lock_out = lock_out};
    struct iovec part = {(void *)(uintptr_t)text, bytes};
    return put_at(path, &plan, &part, 1, why_out, why_bytes);
}

en_status eni_file_replace_text(const char *who, const char *path, const char *text)
{
    char why[WHY];
    snprintf(why, sizeof why, "cannot write %s: out of memory", path);
    struct iovec part = {(void *)(uintptr_t)text, text == NULL ? 0 : strlen(text)};
    eni_file_plan plan = {.mode = 0666};
    const en_status st = text == NULL ? EN_ENOMEM : put_at(path, &plan, &part, 1, why, sizeof why);
    if (st != EN_OK)
        eni_log(who != NULL ? ENI_LOG_ERROR : ENI_LOG_DEBUG, who != NULL ? who : "files", "%s", why);
    return st;
}
