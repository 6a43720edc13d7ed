/* cache.h - copies of objects on this host, as files that ranks read.
 *
 *     CACHE/s3-BUCKET-0123456789abcdef/        for one URL and endpoint; CACHE is 0700 and the user's
 *         train.bin                            always complete: it gets this name at the end
 *         train.bin.entrain                    JSON: key, etag, size, sha256, and the file's time and inode
 *         .train.bin.part, .train.bin.of       a partial download, and the ETag of its object
 *         .lock                                held (flock) by the process that fetches
 *
 * A file is fetched again when the bucket has another ETag or size, or when the file was changed here. One
 * thread. */
#ifndef REMOTE_CACHE_H
#define REMOTE_CACHE_H

#include <limits.h>
#include <stdbool.h>

#include "remote/remote.h"

typedef struct eni_cache {
    int fd, lock_fd;
    char path[PATH_MAX];
    char url[2048]; /* for messages */
} eni_cache;

/* Makes and locks the folder for a URL, below `root`, which is made too. Blocks, with a message, while
 * another process fetches the same. EN_EINVAL, logged: others may write there, or it is another user's;
 * EN_EIO. */
en_status eni_cache_open(const char *root, const char *url, const char *endpoint, eni_cache *cache_out);
void eni_cache_close(eni_cache *cache); /* safe on one that failed to open and was zeroed */

/* An object and the name of its file, without a '/'. */
typedef struct eni_cache_file {
    const eni_object *object;
    const char *name;
    bool is_here;
    uint64_t have; /* bytes of it that are here */
} eni_cache_file;

/* Finds which of the files are here, and whether there is room for the others: EN_EINVAL, logged with both
 * figures. */
en_status eni_cache_look(eni_cache *cache, eni_cache_file *files, size_t n);

/* Fetches one that is not here. EN_EMISMATCH, not logged: the object has changed meanwhile. */
en_status eni_cache_fetch(eni_cache *cache, eni_remote *bucket, eni_cache_file *file);

/* Removes files of earlier fetches that are not among these. */
void eni_cache_tidy(eni_cache *cache, const eni_cache_file *files, size_t n);

/* Removes the whole cache except folders that are in use. *bytes_out: bytes that were freed. EN_EINVAL,
 * EN_EIO, logged. */
en_status eni_cache_clear(const char *root, uint64_t *bytes_out);

#endif
