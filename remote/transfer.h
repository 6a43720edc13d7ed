/* transfer.h - what of a command lies in buckets: brought here before it begins, and what it saves there taken up.
 *
 * A program of its own, `transfer` (main.c here), does it: only that has the keys, libcurl and the sockets. So no rank and
 * no launcher can leak a key into a log, a core or a child's environment, and who uses no bucket loads no libcurl. The
 * commands see paths: --data=URL stays, with --data-dir beside it; --init, --resume, --save and --checkpoint-dir become
 * paths.
 *
 * Main thread, before any other starts. Errors are logged, by this process or by `transfer`. */
#ifndef REMOTE_TRANSFER_H
#define REMOTE_TRANSFER_H

#include "config/config.h"

typedef struct eni_uploads eni_uploads;

/* Before a command: brings --data, --init and --resume, whichever are URLs, into the cache of this host and sets where they
 * lie; for --save and --checkpoint-dir sets paths in --out, and starts the process that takes up what is renamed there. With
 * --resume=auto the newest checkpoint of the bucket comes down first, if --out has none as new. Who does not write these
 * files (`is_writer`) gets the paths alone. The keys are gone from the environment afterwards.
 *
 * Blocks, and shows how far it is unless --quiet. signal_fd: SIGINT and SIGTERM end it (they stay in it), and the next call
 * goes on where it was; -1: none. EN_EINVAL: what a flag names cannot be, told before anything is fetched; EN_EIO; EN_EINTR. On
 * failure, and where nothing is saved to a bucket, NULL comes out. */
en_status eni_transfer_begin(eni_config *config, bool is_writer, int signal_fd, eni_uploads **uploads_out);

/* And after it (`ended`: how): waits until all is taken up, or given up and said, and frees. EN_EIO: something could not be
 * taken up; the file stays in --out. EN_EINTR: after a (second) signal nothing more is waited for, but that parts are
 * removed there (upload.h; 8 s). NULL is fine. */
en_status eni_transfer_end(eni_uploads *uploads, en_status ended);

/* `entrain data URL`: prints what a bucket has there. */
en_status eni_transfer_list(const eni_config *config, const char *url, int signal_fd);

/* `entrain data --clear-cache` */
en_status eni_transfer_clear(const eni_config *config, int signal_fd);

#endif
