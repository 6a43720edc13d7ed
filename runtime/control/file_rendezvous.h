/* file_rendezvous.h - --rendezvous=file://PATH: rank 0 leaves its addresses and the job token in a file that
 * all hosts of a run see; the others wait for it.
 *
 * The file is written under another name, mode 0600, and renamed, so a reader sees all of it or nothing. Its
 * writer holds a lock on it (flock), which the kernel releases however the writer ends: so the writer's host
 * recognises the file of a killed run. Other hosts may not see the lock; they trust a file once somebody
 * answers at its address, and read it again until then. */
#ifndef CONTROL_FILE_RENDEZVOUS_H
#define CONTROL_FILE_RENDEZVOUS_H

#include "runtime/net/host_info.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

enum { ENI_FILE_RENDEZVOUS_ADDRESSES = 8 };

typedef struct eni_file_rendezvous {
    eni_token token;
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX]; /* of the leader, host_info.h */
    int64_t pid;
    eni_address address[ENI_FILE_RENDEZVOUS_ADDRESSES]; /* where it listens, best first */
    int naddresses;
} eni_file_rendezvous;

/* The path and port of "file:///PATH" or "file:///PATH?port=N" (port 0: the kernel chooses). EN_EINVAL,
 * logged. */
en_status eni_file_rendezvous_parse(const char *text, char *path_out, size_t bytes, uint16_t *port_out);

/* EN_EINVAL, logged, when the folder cannot be written to, or the file belongs to a running run; a file of a
 * dead run is fine. Tries its leader's addresses for at most 1 s. */
en_status eni_file_rendezvous_check_free(const char *path, const char *host_id);

/* Writes the file. Remove it with eni_token_remove, then close *lock_out. */
en_status eni_file_rendezvous_write(const eni_file_rendezvous *rendezvous, const char *path, int *lock_out);

/* Reads the file once. EN_ENOENT, not logged, if it does not exist. Logged: EN_EDENIED for a link, another
 * owner, or a mode that lets others read; EN_EFORMAT; EN_EIO. */
en_status eni_file_rendezvous_read(const char *path, eni_file_rendezvous *rendezvous_out);

/* Waits for the file of a live leader, and for one of its addresses to answer. `host_id` is the reader's: a
 * leader's loopback is not tried from another host, which is logged. `alive` is called every 50 ms; anything
 * but EN_OK ends the wait and is returned. EN_ETIMEOUT is logged with the last failure. */
typedef en_status (*eni_file_rendezvous_alive)(void *user);
en_status eni_file_rendezvous_find(const char *path, const char *host_id, int64_t deadline_ns,
                                   eni_file_rendezvous_alive alive, void *user, eni_token *token_out,
                                   eni_address *leader_out);

#endif
