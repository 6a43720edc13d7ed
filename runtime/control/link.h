/* link.h - one control connection as frames: u32 length (little endian), then that many bytes of msgpack.
 *
 * Never blocks. Belongs to one thread. Private to leader and member. */
#ifndef CONTROL_LINK_H
#define CONTROL_LINK_H

#include "entrain/status.h"
#include "runtime/control/control.h"
#include "runtime/net/pack.h"

#define ENI_FRAME_MAX (ENI_BLOB_MAX + 4096u) /* a blob and what stands around it */

typedef struct eni_link {
    int fd; /* owned; -1: closed */
    eni_pack in;
    size_t in_at; /* bytes of `in` that eni_link_next has handed out */
    eni_pack out;
} eni_link;

/* Takes the connected socket over. */
void eni_link_init(eni_link *link, int fd);

/* Closes. Safe twice. */
void eni_link_fini(eni_link *link);

/* Reads what has come, up to one longest frame. EN_EPEER at the end of the stream. */
en_status eni_link_read(eni_link *link);

/* The next complete frame, borrowed until the next read. EN_ETIMEOUT: none is complete; EN_EPROTO: its length
 * is over the limit or 0. */
en_status eni_link_next(eni_link *link, eni_span *frame_out);

/* Appends one frame to what is to be sent: begin, pack into link->out, end. */
size_t eni_link_begin(eni_link *link);
en_status eni_link_end(eni_link *link, size_t begin);

/* Sends what goes now. EN_OK also when something is left: see link->out.bytes. EN_EPEER (not logged) when the
 * link is closed or the other side has gone. */
en_status eni_link_flush(eni_link *link);

#endif
