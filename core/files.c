/* files.c - see files.h. */
#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

en_status eni_files_need(size_t needed, const char *who)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return EN_OK;
    if (files.rlim_max >= needed) {
        files.rlim_cur = needed;
        if (setrlimit(RLIMIT_NOFILE, &files) == 0) return EN_OK;
    }
    eni_error("files", "%s needs %zu open files, and this process may have %llu: raise it with ulimit -n %zu",
              who, needed, (unsigned long long)files.rlim_cur, needed);
    return EN_EUNSUPPORTED;
}

/* ---- a file is replaced -------------------------------------------------------------------------------- */

enum { WHY = 512 };

en_status eni_file_failed(const char *doing, const char *path, char *why_out, size_t why_bytes)
{
    const int cause = errno;
    snprintf(why_out, why_bytes, "cannot %s %s: %s", doing, path, strerror(cause));
    return cause == ENOENT ? EN_ENOENT : EN_EIO;
}

en_status eni_file_put_all(const char *path, int fd, const void *data, size_t bytes, char *why_out,
                           size_t why_bytes)
{
    const unsigned char *at = data;
    while (bytes > 0) {
        const ssize_t put = write(fd, at, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return eni_file_failed("write", path, why_out, why_bytes);
        at += put;
        bytes -= (size_t)put;
    }
    return EN_OK;
}

/* Makes the rename itself durable. */
static en_status folder_sync(const char *path, char *why_out, size_t why_bytes)
{
    char *folder = eni_strdup(path);
    if (folder == NULL) return EN_ENOMEM;
    char *slash = strrchr(folder, '/');
    if (slash != NULL) slash[slash == folder] = '\0';
    const int fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    en_status st = EN_OK;
    if (fd < 0 || fsync(fd) != 0)
        st = eni_file_failed("bring to the disk the folder of", path, why_out, why_bytes);
    if (fd >= 0) close(fd);
    eni_free(folder);
    return st;
}

/* "PATH.0123456789abcdef.tmp": beside the target, so that rename works, and nobody else's. Freed with
 * eni_free. */
static char *temporary_name(const char *path)
{
    uint64_t tag;
    eni_random_bytes(&tag, sizeof tag);
    const size_t bytes = strlen(path) + sizeof ".0123456789abcdef.tmp";
    char *name = eni_alloc(bytes);
    if (name != NULL) snprintf(name, bytes, "%s.%016llx.tmp", path, (unsigned long long)tag);
    return name;
}

static en_status fill(const char *path, eni_file_put put, void *user, char *why_out, size_t why_bytes)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return eni_file_failed("create", path, why_out, why_bytes);
    en_status st = put(user, path, fd, why_out, why_bytes);
    if (st == EN_OK && fsync(fd) != 0) st = eni_file_failed("bring to the disk", path, why_out, why_bytes);
    if (close(fd) != 0 && st == EN_OK) st = eni_file_failed("write", path, why_out, why_bytes);
    return st;
}

en_status eni_file_replace(const char *path, eni_file_put put, void *user, char *why_out, size_t why_bytes)
{
    char *temporary = temporary_name(path);
    snprintf(why_out, why_bytes, "out of memory");
    if (temporary == NULL) return EN_ENOMEM;
    en_status st = fill(temporary, put, user, why_out, why_bytes);
    if (st == EN_OK && rename(temporary, path) != 0)
        st = eni_file_failed("put in place", path, why_out, why_bytes);
    if (st != EN_OK) unlink(temporary);
    if (st == EN_OK) st = folder_sync(path, why_out, why_bytes);
    eni_free(temporary);
    return st;
}

static en_status put_text(void *user, const char *path, int fd, char *why_out, size_t why_bytes)
{
    const char *const *text = user;
    return eni_file_put_all(path, fd, *text, strlen(*text), why_out, why_bytes);
}

en_status eni_file_replace_text(const char *who, const char *path, const char *text)
{
    char why[WHY];
    snprintf(why, sizeof why, "cannot write %s: out of memory", path);
    const en_status st = text == NULL ? EN_ENOMEM : eni_file_replace(path, put_text, &text, why, sizeof why);
    if (st != EN_OK) eni_error(who, "%s", why);
    return st;
}
