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

/* Brings --data, --init and --resume, whichever are URLs, into the cache of this host, and sets where they lie; blocks, and
 * shows how far it is unless --quiet. signal_fd: SIGINT and SIGTERM end it (they stay in it), and the next call goes on
 * where it was; -1: none. Nothing happens where there is no URL. EN_EINVAL, EN_EIO; EN_EINTR. */
en_status eni_transfer_bring(eni_config *config, int signal_fd);

typedef struct eni_mirror eni_mirror;

/* For --save and --checkpoint-dir, whichever are URLs: sets paths in --out in their place, and starts the process that takes
 * up whatever is renamed there. With --resume=auto, what the bucket has and --out has not comes down first: the newest
 * checkpoint. Who does not write these files (`is_writer`) gets the paths alone. NULL comes out where there is no process.
 * EN_EINVAL: no --out; as above. */
en_status eni_mirror_open(eni_config *config, bool is_writer, int signal_fd, eni_mirror **mirror_out);

/* The run is over (`ended`: how): waits until all is taken up, or given up and said, and frees. EN_EIO: something could not be taken up; the
 * file stays in --out. EN_EINTR: after a (second) signal nothing more is waited for. NULL is fine. */
en_status eni_mirror_close(eni_mirror *mirror, en_status ended);

/* `entrain data URL`: prints what a bucket has there. */
en_status eni_transfer_list(const eni_config *config, const char *url, int signal_fd);

/* `entrain data --clear-cache` */
en_status eni_transfer_clear(const eni_config *config, int signal_fd);

#endif
