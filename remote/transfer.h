/* transfer.h - a command's files in object storage: downloads before it begins, and uploads of the files it
 * saves.
 *
 * A program of its own, `transfer` (main.c here), does it: only that has the keys, libcurl and the sockets.
 * So no rank and no launcher can leak a key into a log, a core or a child's environment, and commands without
 * buckets load no libcurl. The commands see paths: --data=URL stays, with --data-dir beside it; --init,
 * --resume, --save and --checkpoint-dir become paths.
 *
 * Main thread, before any other starts. Errors are logged, by this process or by `transfer`. */
#ifndef REMOTE_TRANSFER_H
#define REMOTE_TRANSFER_H

#include "config/config.h"

typedef struct eni_uploads eni_uploads;

/* Call before a command: downloads --data, --init and --resume, where they are URLs, into the cache of this
 * host and sets their paths; for --save and --checkpoint-dir sets paths in --out, and starts the process that
 * uploads files as they appear there. With --resume=auto the newest checkpoint of the bucket is downloaded
 * first, if --out has none as new. A process that does not write these files (not `is_writer`) only gets the
 * paths. Removes the keys from the environment.
 *
 * Blocks, and shows its progress unless --quiet. signal_fd: SIGINT and SIGTERM end it (they stay in it), and
 * the next call continues; -1: none. EN_EINVAL: a flag's URL is not possible, reported before anything is
 * fetched; EN_EIO; EN_EINTR. *uploads_out is NULL on failure, and if no file is saved to a bucket. */
en_status eni_transfer_begin(eni_config *config, bool is_writer, int signal_fd, eni_uploads **uploads_out);

/* Call after it (`ended`: how): waits until all is uploaded, or given up with a message, and frees. EN_EIO: a
 * file could not be uploaded; it stays in --out. EN_EINTR: a (second) signal ends the wait, except for the
 * removal of parts (upload.h; 8 s). NULL is fine. */
en_status eni_transfer_end(eni_uploads *uploads, en_status ended);

/* `entrain data URL`: prints the objects of a bucket. */
en_status eni_transfer_list(const eni_config *config, const char *url, int signal_fd);

/* `entrain data --clear-cache` */
en_status eni_transfer_clear(const eni_config *config, int signal_fd);

#endif
