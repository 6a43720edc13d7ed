/* fdpass.h - hands file descriptors (memfds of weights and gradients) to processes of the same user and run.
 *
 * An abstract AF_UNIX socket with a random name: no file is left behind, and another network namespace cannot
 * see it, which is right: it counts as another host. A peer must have our uid (SO_PEERCRED) and show the job
 * token. Deadlines and abort_fd as in tcp.h. Descriptors made here are non-blocking and close-on-exec. */
#ifndef NET_FDPASS_H
#define NET_FDPASS_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"
#include "runtime/net/token.h"

#define ENI_FDPASS_NAME 48u   /* printable, terminated: goes into a member's data at JOIN */
#define ENI_FDPASS_MAX  64u   /* descriptors in one message */
#define ENI_FDPASS_BLOB 4096u /* bytes beside them */

/* Listens under a fresh random name. *fd_out, pollable for POLLIN, is the caller's to close. */
en_status eni_fdpass_listen(char name_out[ENI_FDPASS_NAME], int *fd_out);

/* Waits for one peer that passes both checks. Unauthenticated peers are dropped with a warning and the wait
 * goes on; silent ones do not keep others out (pending.h). */
en_status eni_fdpass_accept(int listen_fd, const eni_token *token, int64_t deadline_ns, int abort_fd,
                            int *fd_out);

/* Connects, checks that the other side has our uid, and shows the token; tries again if it was closed without
 * an answer because unauthenticated peers crowd the listener. EN_ENOENT if nobody listens there,
 * EN_EDENIED. */
en_status eni_fdpass_connect(const char *name, const eni_token *token, int64_t deadline_ns, int abort_fd,
                             int *fd_out);

/* Sends up to ENI_FDPASS_MAX descriptors (they stay the caller's) and a blob of 1 .. ENI_FDPASS_BLOB bytes. */
en_status eni_fdpass_send(int fd, const int *fds, size_t nfds, const void *blob, size_t bytes,
                          int64_t deadline_ns, int abort_fd);

/* Receives one message. The descriptors in fds_out[0 .. *nfds_out) are the caller's to close; the other
 * entries are set to -1. EN_EPROTO when the message does not fit (nothing leaks), EN_EPEER when the other
 * side closed. */
en_status eni_fdpass_recv(int fd, int fds_out[ENI_FDPASS_MAX], size_t *nfds_out, void *blob_out,
                          size_t capacity, size_t *bytes_out, int64_t deadline_ns, int abort_fd);

/* Claims a name that all processes of a host know. One process holds it until it closes *fd_out or ends,
 * however it ends. *fd_out is -1 if another process, of any user, holds it. EN_EIO, logged. */
en_status eni_fdpass_claim(const char *name, int *fd_out);

/* Gives `fd` to every process of our user that asks at the claimed name, until stop_fd is readable. */
void eni_fdpass_serve(int listen_fd, int fd, int stop_fd);

/* Asks the process that holds the name, and waits until it serves. *fd_out is the caller's to close. Not
 * logged: EN_ENOENT and EN_EPEER if nobody holds it (any more), EN_EDENIED (a warning) if another user does,
 * EN_ETIMEOUT, then with the number of that process in *pid_out (0: not known). */
en_status eni_fdpass_ask(const char *name, int64_t deadline_ns, int abort_fd, int *fd_out, int64_t *pid_out);

#endif
