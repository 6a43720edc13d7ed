/* cache.c - see cache.h. */
#include "remote/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/try.h"

enum { LOOK_MS = 100, NAME_BYTES = 512, CHUNK = 8 << 20 };

static const char beside[] = ".entrain"; /* the suffix of a file's metadata */

/* ---- the folder ---- */

/* Makes it and its parents, for this user only. */
static en_status make_private(const char *path)
{
    char part[PATH_MAX];
    struct stat info;
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')) != NULL; *slash++ = '/') {
        *slash = '\0';
        mkdir(part, 0700);
    }
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return eni_fail(EN_EIO, "remote", "cannot create the cache %s: %s", path, strerror(errno));
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    en_status st = EN_OK;
    if (fd < 0 || fstat(fd, &info) != 0)
        st = eni_fail(EN_EINVAL, "remote", "cannot use the cache %s: %s; remove it, or set XDG_CACHE_HOME",
                      path, strerror(errno));
    else if (info.st_uid != geteuid() || (info.st_mode & 022) != 0)
        st = eni_fail(EN_EINVAL, "remote",
                      "the cache %s belongs to another user, or others may write to it (mode %04o), so its "
                      "files cannot be trusted: remove it, or set XDG_CACHE_HOME",
                      path, (unsigned)info.st_mode & 07777);
    else if ((info.st_mode & 077) != 0 && fchmod(fd, 0700) != 0)
        st = eni_fail(EN_EIO, "remote", "cannot make the cache %s private (chmod 700): %s", path,
                      strerror(errno));
    if (fd >= 0) close(fd);
    return st;
}

static void name_folder(const char *root, const char *url, const char *endpoint, char path_out[PATH_MAX])
{
    char hex[ENI_DIGEST_HEX], kind[4] = "", bucket[80] = "";
    eni_digest digest;
    eni_digest_begin(&digest);
    eni_digest_add(&digest, url, strlen(url) + 1);
    if (endpoint != NULL) eni_digest_add(&digest, endpoint, strlen(endpoint));
    eni_digest_end(&digest, hex);
    sscanf(url, "%3[a-z0-9]://%63[^/]", kind, bucket);
    snprintf(path_out, PATH_MAX, "%.3000s/%s-%s-%.16s", root, kind, bucket, hex);
}

/* Waits without a deadline: the holder releases the lock, or ends. */
static en_status wait_for_lock(const eni_cache *cache)
{
    bool is_reported = false;
    while (flock(cache->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return eni_fail(EN_EIO, "remote", "cannot lock %s: %s", cache->path, strerror(errno));
        if (!is_reported) eni_info("remote", "another process is fetching %s: waiting for it", cache->url);
        is_reported = true;
        poll(NULL, 0, LOOK_MS);
    }
    return EN_OK;
}

static en_status open_and_lock(eni_cache *cache)
{
    EN_TRY(make_private(cache->path));
    cache->fd = open(cache->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cache->fd >= 0)
        cache->lock_fd = openat(cache->fd, ".lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (cache->lock_fd >= 0) return wait_for_lock(cache);
    return eni_fail(EN_EIO, "remote", "cannot open %s: %s", cache->path, strerror(errno));
}

/* `entrain data --clear-cache` may have removed it while we waited. */
static bool is_still_there(const eni_cache *cache)
{
    struct stat info;
    return fstat(cache->lock_fd, &info) == 0 && info.st_nlink > 0;
}

en_status eni_cache_open(const char *root, const char *url, const char *endpoint, eni_cache *cache_out)
{
    *cache_out = (eni_cache){.fd = -1, .lock_fd = -1};
    snprintf(cache_out->url, sizeof cache_out->url, "%s", url);
    name_folder(root, url, endpoint, cache_out->path);
    EN_TRY(make_private(root));
    en_status st = open_and_lock(cache_out);
    while (st == EN_OK && !is_still_there(cache_out)) {
        eni_cache_close(cache_out);
        st = open_and_lock(cache_out);
    }
    if (st != EN_OK) eni_cache_close(cache_out);
    return st;
}

void eni_cache_close(eni_cache *cache)
{
    if (cache->lock_fd >= 0) close(cache->lock_fd);
    if (cache->fd >= 0) close(cache->fd);
    cache->lock_fd = cache->fd = -1;
}

/* ---- one file ---- */

static void name_beside(const char *name, const char *prefix, const char *suffix, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "%s%.300s%s", prefix, name, suffix);
}

static bool save(const eni_cache *cache, const char *name, json_t *json)
{
    char temporary[NAME_BYTES];
    const char *doing;
    name_beside(name, ".", ".tmp", temporary);
    char *text = json == NULL ? NULL : json_dumps(json, JSON_INDENT(1));
    struct iovec part = {text, text == NULL ? 0 : strlen(text)};
    const eni_file_plan plan = {.folder = cache->fd, .name = name, .temporary = temporary, .mode = 0600};
    const bool is_saved = text != NULL && eni_file_put(&plan, &part, 1, &doing) == 0;
    free(text);
    json_decref(json);
    return is_saved;
}

static uint64_t time_of(const struct stat *info)
{
    return (uint64_t)info->st_mtim.tv_sec * 1000000000u + (uint64_t)info->st_mtim.tv_nsec;
}

/* The hash of a download, which follows the bytes as they are written. */
typedef struct following {
    int fd;
    uint64_t hashed;
    eni_digest digest;
    int error;
} following;

static void hash_to(following *f, uint64_t end)
{
    if (f->error == 0) f->error = eni_digest_add_file(&f->digest, f->fd, f->hashed, end);
    f->hashed = end;
}

static json_t *describe(const eni_cache_file *file, const struct stat *info, const char *sha256)
{
    json_t *known = json_object();
    eni_json_set_text(known, "key", file->object->key);
    eni_json_set_text(known, "etag", file->object->etag);
    eni_json_set_text(known, "sha256", sha256);
    ENI_JSON_SET_INTS(known, {"size", file->object->size}, {"time_ns", time_of(info)},
                      {"inode", info->st_ino});
    return known;
}

/* A file that was touched, or copied here, may still have the same bytes. */
static bool has_hash(const eni_cache *cache, const eni_cache_file *file, const char *sha256)
{
    char hex[ENI_DIGEST_HEX];
    const int fd = openat(cache->fd, file->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    eni_digest digest;
    eni_digest_begin(&digest);
    const int error = fd < 0 ? errno : eni_digest_add_file(&digest, fd, 0, file->object->size);
    eni_digest_end(&digest, hex);
    if (fd >= 0) close(fd);
    return error == 0 && strcmp(hex, sha256) == 0;
}

/* Whether the file exists and is this object. */
static bool is_known(const eni_cache *cache, const eni_cache_file *file)
{
    char name[NAME_BYTES];
    struct stat info;
    if (fstatat(cache->fd, file->name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
        return false;
    name_beside(file->name, "", beside, name);
    json_t *known = eni_json_load_at(cache->fd, name);
    const char *sha256 = json_string_value(json_object_get(known, "sha256"));
    bool is_same = eni_json_says(known, "etag", file->object->etag) &&
                   eni_json_says(known, "key", file->object->key) &&
                   (uint64_t)info.st_size == file->object->size;
    const bool is_untouched =
        eni_json_int_of(known, "time_ns") == time_of(&info) && eni_json_int_of(known, "inode") == info.st_ino;
    if (is_same && !is_untouched) {
        is_same = sha256 != NULL && has_hash(cache, file, sha256);
        if (is_same)
            (void)save(cache, name, describe(file, &info, sha256)); /* if this fails, it is hashed again */
    }
    json_decref(known);
    return is_same;
}

/* The boot id: data written before a reboot may have been lost, though the file has its length. */
static void read_boot_id(char id_out[64])
{
    if (!eni_file_line("/proc/sys/kernel/random/boot_id", id_out, 64)) id_out[0] = '\0';
}

/* The bytes downloaded so far, if they are this object's. */
static uint64_t count_part(const eni_cache *cache, const eni_cache_file *file)
{
    char part[NAME_BYTES], of[NAME_BYTES];
    struct stat info;
    name_beside(file->name, ".", ".part", part);
    name_beside(file->name, ".", ".of", of);
    char boot[64];
    read_boot_id(boot);
    json_t *known = eni_json_load_at(cache->fd, of);
    const bool is_same = eni_json_says(known, "etag", file->object->etag) &&
                         eni_json_says(known, "boot", boot) &&
                         eni_json_int_of(known, "size") == file->object->size;
    json_decref(known);
    if (is_same && fstatat(cache->fd, part, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) &&
        (uint64_t)info.st_size <= file->object->size)
        return (uint64_t)info.st_size;
    unlinkat(cache->fd, part, 0);
    unlinkat(cache->fd, of, 0);
    return 0;
}

en_status eni_cache_look(eni_cache *cache, eni_cache_file *files, size_t n)
{
    uint64_t needed = 0;
    struct statvfs disk;
    for (size_t i = 0; i < n; i++) {
        files[i].is_here = is_known(cache, &files[i]);
        files[i].have = files[i].is_here ? files[i].object->size : count_part(cache, &files[i]);
        needed += files[i].object->size - files[i].have;
    }
    if (needed == 0 || fstatvfs(cache->fd, &disk) != 0) return EN_OK;
    const uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (needed <= room) return EN_OK;
    return eni_fail(EN_EINVAL, "remote",
                    "%s needs %.1f MB in %s, but only %.1f MB are free there: make room (entrain data "
                    "--clear-cache empties the cache), or set XDG_CACHE_HOME",
                    cache->url, (double)needed * 1e-6, cache->path, (double)room * 1e-6);
}

/* Called with the bytes written so far: fewer than before if the service began again. */
static void follow(void *user, uint64_t have)
{
    following *f = user;
    if (have < f->hashed) {
        *f = (following){.fd = f->fd};
        eni_digest_begin(&f->digest);
    }
    if (have - f->hashed >= CHUNK) hash_to(f, have);
}

/* Bytes of an earlier download are hashed first, while no connection waits. */
static en_status fetch_into(eni_cache *cache, eni_remote *bucket, eni_cache_file *file, int fd,
                            char sha256_out[ENI_DIGEST_HEX])
{
    following f = {.fd = fd};
    eni_digest_begin(&f.digest);
    hash_to(&f, file->have);
    EN_TRY(eni_remote_get(bucket, file->object, fd, &file->have, follow, &f));
    hash_to(&f, file->have);
    eni_digest_end(&f.digest, sha256_out);
    if (f.error != 0)
        return eni_fail(EN_EIO, "remote", "cannot read back the download in %s: %s", cache->path,
                        strerror(f.error));
    if (fsync(fd) == 0) return EN_OK;
    return eni_fail(EN_EIO, "remote", "cannot write %s to disk: %s", file->name, strerror(errno));
}

/* Writes the metadata first: it has no effect while the file does not have its name. */
static en_status put_in_place(eni_cache *cache, const eni_cache_file *file, const char *part,
                              const char *sha256)
{
    char name[NAME_BYTES], of[NAME_BYTES];
    struct stat info;
    name_beside(file->name, "", beside, name);
    name_beside(file->name, ".", ".of", of);
    if (fstatat(cache->fd, part, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        save(cache, name, describe(file, &info, sha256)) &&
        renameat(cache->fd, part, cache->fd, file->name) == 0 && eni_folder_sync(cache->fd) == 0) {
        unlinkat(cache->fd, of, 0);
        return EN_OK;
    }
    return eni_fail(EN_EIO, "remote", "cannot move %s to its place in %s: %s", file->name, cache->path,
                    strerror(errno));
}

en_status eni_cache_fetch(eni_cache *cache, eni_remote *bucket, eni_cache_file *file)
{
    char part[NAME_BYTES], of[NAME_BYTES], sha256[ENI_DIGEST_HEX];
    name_beside(file->name, ".", ".part", part);
    name_beside(file->name, ".", ".of", of);
    if (file->have == 0) {
        char boot[64];
        read_boot_id(boot);
        json_t *known = json_object();
        eni_json_set_text(known, "etag", file->object->etag);
        eni_json_set_text(known, "boot", boot);
        eni_json_set_int(known, "size", file->object->size);
        unlinkat(cache->fd, part, 0);
        if (!save(cache, of, known))
            return eni_fail(EN_EIO, "remote", "cannot write into the cache %s: %s", cache->path,
                            strerror(errno));
    }
    const int fd = openat(cache->fd, part, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return eni_fail(EN_EIO, "remote", "cannot write into the cache %s: %s", cache->path, strerror(errno));
    const en_status st = fetch_into(cache, bucket, file, fd, sha256);
    close(fd);
    if (st == EN_EMISMATCH) { /* none of it can be used */
        unlinkat(cache->fd, part, 0);
        unlinkat(cache->fd, of, 0);
    }
    EN_TRY(st);
    EN_TRY(put_in_place(cache, file, part, sha256));
    file->is_here = true;
    return EN_OK;
}

/* ---- cleaning up ---- */

static bool is_among(const char *name, const eni_cache_file *files, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(files[i].name, name) == 0) return true;
    return false;
}

/* ".NAME.part": left by a fetch that was killed, of an object that the bucket no longer has. */
static bool is_part_of(const char *entry, const char *suffix, char name_out[NAME_BYTES])
{
    const size_t length = strlen(entry), ends = strlen(suffix);
    if (entry[0] != '.' || length <= 1 + ends || strcmp(entry + length - ends, suffix) != 0) return false;
    snprintf(name_out, NAME_BYTES, "%.*s", (int)(length - 1 - ends), entry + 1);
    return true;
}

void eni_cache_tidy(eni_cache *cache, const eni_cache_file *files, size_t n)
{
    const int copy = openat(cache->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        char name[NAME_BYTES];
        const bool is_part = is_part_of(e->d_name, ".part", name) || is_part_of(e->d_name, ".of", name);
        const size_t length = strlen(e->d_name), ends = sizeof beside - 1;
        if (!is_part) {
            if (length <= ends || strcmp(e->d_name + length - ends, beside) != 0) continue;
            snprintf(name, sizeof name, "%.*s", (int)(length - ends), e->d_name);
        }
        if (is_among(name, files, n) || is_among(e->d_name, files, n)) continue;
        if (!is_part) unlinkat(cache->fd, name, 0);
        unlinkat(cache->fd, e->d_name, 0);
    }
    if (dir != NULL)
        closedir(dir);
    else if (copy >= 0)
        close(copy);
}

static const char gone_prefix[] = ".gone-";

/* Removes all in an open folder, which is closed. */
static void remove_inside(int fd, uint64_t *bytes)
{
    DIR *dir = fdopendir(fd);
    if (dir == NULL) close(fd);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        struct stat info;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            fstatat(fd, e->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        const int inside = S_ISDIR(info.st_mode)
                               ? openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                               : -1;
        if (inside >= 0) remove_inside(inside, bytes);
        if (unlinkat(fd, e->d_name, S_ISDIR(info.st_mode) ? AT_REMOVEDIR : 0) == 0 && S_ISREG(info.st_mode))
            *bytes += (uint64_t)info.st_size;
    }
    if (dir != NULL) closedir(dir);
}

en_status eni_cache_clear(const char *root, uint64_t *bytes_out)
{
    *bytes_out = 0;
    if (access(root, F_OK) != 0) return EN_OK;
    EN_TRY(make_private(root));
    DIR *dir = opendir(root);
    if (dir == NULL) return eni_fail(EN_EIO, "remote", "cannot read the cache %s: %s", root, strerror(errno));
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        const bool is_gone =
            strncmp(e->d_name, gone_prefix, sizeof gone_prefix - 1) == 0; /* its process was killed */
        const int fd = e->d_name[0] == '.' && !is_gone
                           ? -1
                           : openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) continue;
        const int lock_fd = openat(fd, ".lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (lock_fd >= 0 && flock(lock_fd, LOCK_EX | LOCK_NB) != 0) {
            eni_warn("remote", "%s/%s stays: another process is fetching it", root, e->d_name);
            close(fd);
        } else { /* renamed first: a process that comes now makes a new one */
            char gone[NAME_BYTES];
            snprintf(gone, sizeof gone, "%s%d", gone_prefix, (int)getpid());
            const bool is_moved = !is_gone && renameat(dirfd(dir), e->d_name, dirfd(dir), gone) == 0;
            remove_inside(fd, bytes_out);
            unlinkat(dirfd(dir), is_moved ? gone : e->d_name, AT_REMOVEDIR);
        }
        if (lock_fd >= 0) close(lock_fd);
    }
    closedir(dir);
    return EN_OK;
}
