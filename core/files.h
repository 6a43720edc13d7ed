/* files.h - how many descriptors this process may hold, and how a file is replaced so that nobody ever finds
 * half of it. */
#ifndef CORE_FILES_H
#define CORE_FILES_H

#include <stddef.h>

#include "entrain/status.h"

/* Raises the soft limit of open files as far as `needed` asks and the hard one allows; `who` ("a leader of 8
 * ranks") needs them. EN_EUNSUPPORTED with one sentence where that is not enough: a poll(2) of more
 * descriptors than the limit fails for ever. Any thread. */
en_status eni_files_need(size_t needed, const char *who);

/* Writes what `put` writes: to a temporary file in the same folder, which is synchronised and renamed, and
 * then its folder is synchronised. A process that is killed, or a machine, leaves the old file or the new
 * one, and at most a file PATH.*.tmp. Not EN_OK: why_out has one sentence, nothing is logged, and `path` is
 * as it was. Any thread. */
typedef en_status (*eni_file_put)(void *user, const char *path, int fd, char *why_out, size_t why_bytes);
en_status eni_file_replace(const char *path, eni_file_put put, void *user, char *why_out, size_t why_bytes);

/* The same for a text (NULL: there was no memory for it); what is wrong is logged for `who` ("result"). */
en_status eni_file_replace_text(const char *who, const char *path, const char *text);

/* For a `put`: all of it, whatever write(2) takes at once; and the sentence of errno, "cannot write PATH:
 * ..". */
en_status eni_file_put_all(const char *path, int fd, const void *data, size_t bytes, char *why_out,
                           size_t why_bytes);
en_status eni_file_failed(const char *doing, const char *path, char *why_out, size_t why_bytes);

#endif
