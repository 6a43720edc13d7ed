/* token.h - the job token: 128 random bits that every process of a run shares, and no other process knows.
 *
 * It travels in a 0600 file or over an inherited descriptor, never as an argument or in the environment,
 * where ps(1) would show it. On a lab server loopback is public: psd and ranks refuse peers without the
 * token. */
#ifndef NET_TOKEN_H
#define NET_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

#define ENI_TOKEN_BYTES 16u
#define ENI_TOKEN_HEX   33u /* 32 lower-case hex digits and the terminating 0 */

typedef struct eni_token {
    uint8_t bytes[ENI_TOKEN_BYTES];
} eni_token;

/* A fresh one from the operating system's generator. */
void eni_token_make(eni_token *token_out);

void eni_token_hex(const eni_token *token, char hex_out[ENI_TOKEN_HEX]);

/* EN_EFORMAT unless `hex` is exactly 32 hex digits. Not logged: the text may be half a secret. */
en_status eni_token_parse(const char *hex, eni_token *token_out);

/* In constant time. */
bool eni_token_equal(const eni_token *a, const eni_token *b);

/* The path where the processes that one user starts by hand on one host find it: DIRECTORY/token-PORT, with
 * the leader's port. EN_EINVAL if it does not fit. */
en_status eni_token_path(const char *directory, uint16_t port, char *path_out, size_t path_bytes);

/* Makes a folder with mode 0700 if it does not exist. On failure why_out has a sentence and nothing is
 * logged; EN_EDENIED: it is another user's, or others may write there. */
#define ENI_PRIVATE_WHY 400u
en_status eni_private_folder(const char *folder, char why_out[ENI_PRIVATE_WHY]);

/* Writes a new file with mode 0600, by rename, so that a reader sees all of it or nothing, and keeps a lock
 * on it, which the kernel releases when this process ends, however it ends: close *lock_out after the file is
 * removed. So the file of a killed leader can be told from that of a live one. A missing directory is made
 * with mode 0700; one of another owner, or that others may write, is refused with EN_EDENIED. */
en_status eni_token_write(const eni_token *token, const char *path, int *lock_out);

/* Whether the process that wrote a file, and keeps a lock on it, has ended. Unknown if there is no such file,
 * or its file system has no locks. */
typedef enum eni_writer_state { ENI_WRITER_UNKNOWN, ENI_WRITER_LIVES, ENI_WRITER_ENDED } eni_writer_state;
eni_writer_state eni_writer_look(const char *path);

/* Opens a file that holds a secret. EN_ENOENT, not logged; logged for `who`: EN_EDENIED for a symbolic link,
 * another owner, or a mode that lets others read; EN_EIO. */
en_status eni_secret_open(const char *who, const char *path, int *fd_out);

/* Reads it back. As eni_secret_open, but EN_ENOENT is logged; EN_EFORMAT. */
en_status eni_token_read(const char *path, eni_token *token_out);

/* The same as soon as the file is there. Not logged: EN_ENOENT at the deadline; EN_EINTR when abort_fd (negative: none) is
 * readable. */
en_status eni_token_await(const char *path, int64_t deadline_ns, int abort_fd, eni_token *token_out);

/* Reads 32 hex digits from an inherited pipe, memfd or file, and closes it, lest a child inherit it again. */
en_status eni_token_read_fd(int fd, eni_token *token_out);

/* Removes the file; a missing one is fine. */
void eni_token_remove(const char *path);

#endif
