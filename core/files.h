/* files.h - limits of descriptors and threads, and replacing a file so that no reader ever sees half of it. */
#ifndef CORE_FILES_H
#define CORE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "entrain/status.h"

/* Raises the soft limit of open files to `needed`, if the hard limit allows; `who` ("a leader of 8 ranks") needs
 * them. EN_EUNSUPPORTED, logged, if that is not enough: poll(2) of more descriptors than the limit always
 * fails. Any thread. */
en_status eni_files_need(size_t needed, const char *who);

/* Starts `needed` threads at once, and ends them: OpenMP ends the process if it cannot start one. EN_EUNSUPPORTED,
 * logged, if they cannot be started. */
en_status eni_threads_need(int needed, const char *who);

/* Whether accept(2) failed with `error` because descriptors, or memory for one, ran out. Connections then wait in
 * the kernel's queue, and the caller should pause: an immediate retry would spin. Logs the limit and the remedy,
 * every 10 s at most: *next_ns (0 at first) is when it may log again. */
bool eni_files_are_short(int error, const char *who, int64_t *next_ns);

/* fopen(path, mode) for a file of ours; mode "w", "a" and "r+" create or change it. Does not follow a symbolic link
 * put there by somebody else (ELOOP), does not wait at a pipe, and no child inherits the descriptor. Mode "r" is for a
 * file that the user names, and follows links; a pipe that nobody writes reads as empty. NULL, with errno. */
FILE *eni_file_open(const char *path, const char *mode);

/* Reads the first line of a small file, such as one in /proc, without its newline. False if it is empty or unreadable. */
bool eni_file_line(const char *path, char *line_out, size_t bytes);

/* pread(2) and pwrite(2) of all the bytes, however often the kernel stops halfway. False, with errno: EIO if the
 * file ends first. Any thread; block. */
bool eni_file_read_at(int fd, void *data, size_t bytes, off_t at);
bool eni_file_write_at(int fd, const void *data, size_t bytes, off_t at);

/* ---- replacing a file: after a crash of the process or the machine the old file or the new one is there.
 * Any thread ---- */

typedef struct eni_file_plan {
    int folder; /* an open descriptor */
    /* The final name, and the temporary one until the rename, which a killed process leaves behind. */
    const char *name, *temporary;
    mode_t mode;
    bool is_volatile; /* need not survive a reboot: no fsync */
    bool takes_room;  /* reserves it first: a full disk shows before a large file is written */
    int *lock_out;    /* not NULL: gets the open descriptor, locked (flock) before the rename */
} eni_file_plan;

/* Writes the parts (and modifies them) to the temporary file, syncs it, renames it, and syncs the folder; a held file
 * (lock_out) skips the last, since no later process uses it. 0; or -1 with errno and the failed action ("write"):
 * then the file is unchanged, or new if only its folder could not be synced. */
int eni_file_put(const eni_file_plan *plan, struct iovec *parts, size_t n, const char **doing_out);

/* fsync(2) of an open folder, which makes renames in it durable: 0, or -1 with errno. If the file system
 * does not support it (CIFS and FUSE return EINVAL, WSL's DrvFs EIO) succeeds after what is possible. Any thread; blocks. */
int eni_folder_sync(int folder);

/* The same by path, with a temporary PATH.*.tmp, reserving disk space first. On failure why_out has one sentence;
 * nothing is logged. */
en_status eni_file_replace(const char *path, struct iovec *parts, size_t n, char *why_out, size_t why_bytes);

/* The same for a private file (mode 0600) that stays open and locked: `lock_out` of the plan. */
en_status eni_file_hold(const char *path, const char *text, size_t bytes, bool is_volatile, int *lock_out,
                        char *why_out, size_t why_bytes);

/* The same for a text, without reserving space (NULL: it ran out of memory); failures are logged for `who` ("result"), or at level
 * debug if it is NULL. */
en_status eni_file_replace_text(const char *who, const char *path, const char *text);

#endif
