/* files.h - how many descriptors and threads this process may have, and how a file is replaced so that nobody ever
 * finds half of it. */
#ifndef CORE_FILES_H
#define CORE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "entrain/status.h"

/* Raises the soft limit of open files as far as `needed` asks and the hard one allows; `who` ("a leader of 8
 * ranks") needs them. EN_EUNSUPPORTED with one sentence where that is not enough: a poll(2) of more
 * descriptors than the limit fails for ever. Any thread. */
en_status eni_files_need(size_t needed, const char *who);

/* Starts so many threads at once, and ends them: OpenMP ends the process where it gets none. EN_EUNSUPPORTED with
 * one sentence where they cannot be had. */
en_status eni_threads_need(int needed, const char *who);

/* Whether accept(2) failed with `error` for want of a descriptor, or of memory for one. Then those who come wait
 * in the kernel's queue, and the caller too, for a moment: to try again at once is to try all the time. It is
 * said with the limit and the remedy, every 10 s at most: *next_ns (0 at first) is when it may be said again. */
bool eni_files_are_short(int error, const char *who, int64_t *next_ns);

/* fopen(path, mode) for a file of ours, of which a mode of "w", "a" or "r+" makes or changes it: a symbolic link
 * that somebody else has put there is not followed (ELOOP), nobody is waited for at the end of a pipe, and no child has the
 * descriptor. NULL, with errno. */
FILE *eni_file_open(const char *path, const char *mode);

/* Reads the first line of a small file, such as one in /proc, without its newline. False if there is none. */
bool eni_file_line(const char *path, char *line_out, size_t bytes);

/* pread(2) and pwrite(2) of all the bytes, however often the kernel stops halfway. False, with errno: EIO where the file
 * ends before them. Any thread; block. */
bool eni_file_read_at(int fd, void *data, size_t bytes, off_t at);
bool eni_file_write_at(int fd, const void *data, size_t bytes, off_t at);

/* ---- a file is replaced: a process that is killed, or a machine, leaves the old one or the new one. Any
 * thread ---- */

typedef struct eni_file_plan {
    int folder; /* open */
    /* In it: what is renamed, and what it is until then; a killed process leaves that. */
    const char *name, *temporary;
    mode_t mode;
    bool is_volatile; /* need not outlive the machine: nothing is synchronised */
    bool takes_room;  /* for all of it at first: a disk too full is found before a large file is written */
    int *lock_out;    /* not NULL: the descriptor, locked (flock) before the file has its name, stays open */
} eni_file_plan;

/* Writes the parts, which it changes: to the temporary file, which is synchronised and renamed, and then the
 * folder is synchronised, but not for a held file, which is of no use to a later process. 0; or -1 with errno
 * and what it was doing ("write"): then the file is as it was, or new if only its folder could not be
 * synchronised. */
int eni_file_put(const eni_file_plan *plan, struct iovec *parts, size_t n, const char **doing_out);

/* fsync(2) of an open folder, which makes what was renamed in it durable: 0, or -1 with errno. A file system that cannot
 * (CIFS and FUSE answer EINVAL, WSL's DrvFs EIO) does what it can, and that is no failure. Any thread; blocks. */
int eni_folder_sync(int folder);

/* The same by path, with a temporary PATH.*.tmp, and room is taken first. Not EN_OK: why_out has one
 * sentence, nothing is logged. */
en_status eni_file_replace(const char *path, struct iovec *parts, size_t n, char *why_out, size_t why_bytes);

/* The same for a file that nobody else may read and that is held: `lock_out` of the plan. */
en_status eni_file_hold(const char *path, const char *text, size_t bytes, bool is_volatile, int *lock_out,
                        char *why_out, size_t why_bytes);

/* The same for a text, without taking room (NULL: there was no memory for it); what is wrong is logged for `who` ("result"). */
en_status eni_file_replace_text(const char *who, const char *path, const char *text);

#endif
