#include "server/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <dirent.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/mutation.h"
#include "core/try.h"

#define MAGIC UINT64_C(0x4554415453544e45) /* "ENTSTATE" */

enum { VERSION = 1, NAME_MAX_BYTES = 32, DIGEST_BYTES = ENI_DIGEST_HEX - 1 };

/* In front of the bytes, as it lies in the file: little endian, like everything that Entrain runs on. */
typedef struct frame {
    uint64_t magic;
    uint32_t version, kind, shard, nshards;
    uint64_t run, generation, length;
    uint64_t unused[2];
} frame;
_Static_assert(sizeof(frame) == 64, "the header of a state file");

struct eni_state {
    char *path;
    int fd;
};

/* ---- the folder ---------------------------------------------------------------------------------------- */

static en_status check_folder(const eni_state *state)
{
    struct stat info;
    if (fstat(state->fd, &info) != 0) {
        eni_error("state", "%s: %s", state->path, strerror(errno));
        return EN_EIO;
    }
    if (info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        eni_error("state", "%s must be this user's, and nobody else may write to it: it holds the job token",
                  state->path);
        return EN_EDENIED;
    }
    if (flock(state->fd, LOCK_EX | LOCK_NB) == 0) return EN_OK;
    eni_error("state", "%s is in use by another psd", state->path);
    return EN_EDENIED;
}

en_status eni_state_open(const char *folder, eni_state **state_out)
{
    eni_state *state = eni_alloc(sizeof *state);
    en_status st = EN_ENOMEM;
    if (!state) return EN_ENOMEM;
    state->fd = -1;
    if (!(state->path = eni_strdup(folder))) goto close_state;
    st = EN_EIO;
    if ((mkdir(folder, 0700) != 0 && errno != EEXIST) ||
        (state->fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        st = errno == ENOENT ? EN_ENOENT : EN_EIO;
        eni_error("state", "cannot make the folder %s of --state: %s", folder, strerror(errno));
        goto close_state;
    }
    EN_TRY_GOTO(check_folder(state), close_state);
    *state_out = state;
    return EN_OK;

close_state:
    eni_state_close(state);
    return st;
}

void eni_state_close(eni_state *state)
{
    if (!state) return;
    if (state->fd >= 0) close(state->fd);
    eni_free(state->path);
    eni_free(state);
}

/* Whether a file is one of ours: "claims", "run.N", "lane-K.N", and what such a file is before its rename. */
static int is_ours(const char *name)
{
    unsigned shard;
    char end[8] = "";
    int used = 0;
    if (strcmp(name, "claims") == 0 || strcmp(name, "claims.tmp") == 0) return 1;
    if (strncmp(name, "run.", 4) == 0)
        snprintf(end, sizeof end, "%s", name + 4);
    else if (sscanf(name, "lane-%u.%n", &shard, &used) == 1 && used > 0)
        snprintf(end, sizeof end, "%s", name + used);
    return strcmp(end, "0") == 0 || strcmp(end, "1") == 0 || strcmp(end, "tmp") == 0;
}

void eni_state_clear(eni_state *state)
{
    const int copy = openat(state->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) {
        if (copy >= 0) close(copy);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (is_ours(entry->d_name)) unlinkat(state->fd, entry->d_name, 0);
    closedir(dir);
}

const char *eni_state_path(const eni_state *state)
{
    return state->path;
}

int eni_state_fd(const eni_state *state)
{
    return state->fd;
}

static void name_of(eni_state_kind kind, uint32_t shard, const char *end, char name[NAME_MAX_BYTES])
{
    if (kind == ENI_STATE_RUN)
        snprintf(name, NAME_MAX_BYTES, "run.%s", end);
    else
        snprintf(name, NAME_MAX_BYTES, "lane-%u.%s", shard, end);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void digest_frame(const frame *head, const void *bytes, size_t length, char hex[ENI_DIGEST_HEX])
{
    eni_digest *digest = eni_digest_new();
    hex[0] = 0;
    if (!digest) return;
    eni_digest_add(digest, head, sizeof *head);
    eni_digest_add(digest, bytes, length);
    eni_digest_take(digest, hex);
}

/* 0, or -1 with errno. */
static int write_all(int fd, struct iovec *part, int n)
{
    while (n > 0) {
        const ssize_t done = writev(fd, part, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        size_t left = (size_t)done;
        for (; n > 0 && left >= part->iov_len; part++, n--)
            left -= part->iov_len;
        if (n > 0) {
            part->iov_base = (char *)part->iov_base + left;
            part->iov_len -= left;
        }
    }
    return 0;
}

/* The file beside its place, its bytes on the disk. 0, or -1 with errno. */
static int write_beside(const eni_state *state, const char *name, struct iovec *part, int n)
{
    const int fd =
        openat(state->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0) return -1;
    if (write_all(fd, part, n) == 0 && (fsync(fd) == 0 || (eni_mutant("fsync-again") && fsync(fd) == 0)))
        return close(fd);
    const int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

en_status eni_state_write(const eni_state *state, const eni_state_stamp *stamp, const void *bytes,
                          size_t length)
{
    char hex[ENI_DIGEST_HEX], beside[NAME_MAX_BYTES], place[NAME_MAX_BYTES];
    frame head = {.magic = MAGIC,
                  .version = VERSION,
                  .kind = stamp->kind,
                  .shard = stamp->shard,
                  .nshards = stamp->nshards,
                  .run = stamp->run,
                  .generation = stamp->generation,
                  .length = length};
    digest_frame(&head, bytes, length, hex);
    if (!hex[0]) return EN_ENOMEM;
    struct iovec parts[] = {{&head, sizeof head}, {(void *)bytes, length}, {hex, DIGEST_BYTES}};
    name_of(stamp->kind, stamp->shard, "tmp", beside);
    name_of(stamp->kind, stamp->shard, stamp->generation % 2 == 0 ? "0" : "1", place);
    if (write_beside(state, beside, parts, 3) == 0 && renameat(state->fd, beside, state->fd, place) == 0 &&
        (eni_mutant("no-directory-sync") || fsync(state->fd) == 0))
        return EN_OK;
    eni_warn(
        "state",
        "cannot write %s/%s: %s; serving goes on, and a psd that is started again would continue from an "
        "older state",
        state->path, place, strerror(errno));
    unlinkat(state->fd, beside, 0);
    return EN_EIO;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* One generation; the reason why it is not sound, or NULL. *is_there_out: there is such a file. */
static const char *read_one(const eni_state *state, const char *name, eni_state_kind kind, uint32_t shard,
                            frame *head, uint8_t **bytes_out, int *is_there_out)
{
    struct stat info;
    char hex[ENI_DIGEST_HEX], stored[DIGEST_BYTES];
    const char *why = NULL;
    uint8_t *bytes = NULL;
    const int fd = openat(state->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    *is_there_out = fd >= 0 || errno != ENOENT;
    if (fd < 0) return strerror(errno);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        why = "it is no regular file";
    else if (read(fd, head, sizeof *head) != (ssize_t)sizeof *head || head->magic != MAGIC)
        why = "it is no state of psd";
    else if (head->version != VERSION)
        why = "it was written by another version of psd";
    else if (head->kind != kind || head->shard != shard)
        why = "it is the state of something else";
    else if (info.st_size < (off_t)(sizeof *head + DIGEST_BYTES) ||
             head->length != (uint64_t)info.st_size - sizeof *head - DIGEST_BYTES)
        why = "it was cut off";
    else if (!(bytes = eni_alloc(head->length)))
        why = "psd is out of memory";
    for (uint64_t at = 0; !why && at < head->length;) {
        const ssize_t n = read(fd, bytes + at, head->length - at);
        if (n <= 0) why = "it cannot be read";
        at += n > 0 ? (uint64_t)n : 0;
    }
    if (!why && read(fd, stored, sizeof stored) != (ssize_t)sizeof stored) why = "it cannot be read";
    if (!why) digest_frame(head, bytes, head->length, hex);
    if (!why && memcmp(hex, stored, sizeof stored) != 0) why = "its hash is wrong: it is damaged";
    close(fd);
    if (why)
        eni_free(bytes);
    else
        *bytes_out = bytes;
    return why;
}

en_status eni_state_read(const eni_state *state, eni_state_kind kind, uint32_t shard,
                         eni_state_stamp *stamp_out, uint8_t **bytes_out, size_t *length_out)
{
    static const char *const ends[] = {"0", "1"};
    char name[NAME_MAX_BYTES];
    frame head[2];
    uint8_t *bytes[2] = {0};
    const char *why[2];
    int is_there[2];
    for (int i = 0; i < 2; i++) {
        name_of(kind, shard, ends[i], name);
        why[i] = read_one(state, name, kind, shard, &head[i], &bytes[i], &is_there[i]);
        if (why[i] && is_there[i]) eni_warn("state", "%s/%s is of no use: %s", state->path, name, why[i]);
    }
    if (!is_there[0] && !is_there[1]) return EN_ENOENT;
    if (why[0] && why[1]) {
        name_of(kind, shard, "*", name);
        eni_error("state", "neither generation of %s/%s is sound: psd cannot go on with that run",
                  state->path, name);
        return EN_EFORMAT;
    }
    const int newest = why[0] ? 1 : why[1] ? 0 : head[1].generation > head[0].generation;
    eni_free(bytes[!newest]);
    *stamp_out = (eni_state_stamp){.kind = kind,
                                   .shard = shard,
                                   .nshards = head[newest].nshards,
                                   .run = head[newest].run,
                                   .generation = head[newest].generation};
    *bytes_out = bytes[newest];
    *length_out = head[newest].length;
    return EN_OK;
}
