/* stream.h - one TCP connection between two ranks: frames out, frames in, never blocking.
 *
 * A frame is a header of 88 bytes, little-endian, and up to one segment of float32. Sending is one writev
 * straight from the vector; receiving goes straight to where the payload belongs. Private to
 * runtime/collective; used by the progress thread (progress_engine.c) only. */
#ifndef COLLECTIVE_STREAM_H
#define COLLECTIVE_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/collective/group.h"

#define ENI_FRAME_MAGIC 0x314c4f43u /* "COL1" */

enum { ENI_FRAME_DATA = 1, ENI_FRAME_READY = 2 };

typedef struct eni_frame {
    uint32_t magic;
    uint8_t type;  /* ENI_FRAME_* */
    uint8_t dtype; /* DATA: ENI_COLL_F32 */
    uint8_t op, what;
    uint32_t epoch;
    int32_t rank;   /* the sender */
    uint64_t seq;   /* DATA: of the operation; READY: operations the sender has submitted */
    uint64_t count; /* elements of the whole operation */
    uint32_t bucket;
    int16_t step;       /* of the ring; 0 elsewhere */
    uint16_t training;  /* step of training, the low bits */
    uint64_t lo, hi;    /* the range that this payload belongs to, within the operation */
    uint64_t at;        /* first element of the payload, within [lo, hi] */
    uint64_t nsamples;  /* behind the payload; of a sum: so far. Ring, step 0: not yet multiplied */
    int64_t deliver_ns; /* --net emulation: not before this time; 0: at once */
    uint32_t n;         /* elements of the payload */
    uint32_t crc;       /* CRC-32C of the header with a crc of 0, then the payload; 0 where it is not used */
} eni_frame;
_Static_assert(sizeof(eni_frame) == 88, "no padding: the struct is the wire format");

typedef struct eni_stream {
    int fd; /* -1: none, or the peer has closed in good order */
    int peer;
    int has_crc;         /* both sides fill in and check the checksum */
    int has_data;        /* the peer has sent data, so it wants to know what we are ready for */
    uint64_t peer_ready; /* operations that the peer has submitted, as far as it has said */
    uint64_t told_ready; /* what it knows of us */

    int is_sending;
    eni_frame tx;
    const float *tx_data;
    size_t tx_done; /* bytes of header and payload */
    int64_t tx_begin_ns;

    eni_frame rx;
    size_t rx_done;     /* bytes of header and payload */
    uint32_t rx_crc;    /* of what has arrived of the frame; 0 where it is not used */
    float *rx_data;     /* NULL: the header is not complete, or not accepted yet */
    int64_t rx_hold_ns; /* > 0: complete, but the emulated network delivers it then */
    int64_t rx_begin_ns;
    int lowat;      /* SO_RCVLOWAT, as set by the progress thread; 0: not yet */
    float *scratch; /* (segment) for payloads that are added, not stored */
} eni_stream;

/* Starts sending; the payload stays in place until eni_stream_push says that the frame is gone. */
void eni_stream_begin(eni_stream *stream, const eni_frame *frame, const float *data);

/* Sends what the socket takes. *gone_out 1: the frame has left. EN_EPEER when the connection broke. */
en_status eni_stream_push(eni_stream *stream, eni_coll *coll, int *gone_out);

/* Reads towards a complete header. *have_out 1: stream->rx is one. An orderly end between two frames closes
 * the stream and is EN_OK: whether it came too early is for the caller to know. */
en_status eni_stream_pull_header(eni_stream *stream, eni_coll *coll, int *have_out);

/* Reads the payload of stream->rx into stream->rx_data. *have_out 1: complete. */
en_status eni_stream_pull_payload(eni_stream *stream, eni_coll *coll, int *have_out);

/* Checks the checksum of a complete frame. EN_EPROTO, logged. */
en_status eni_stream_check(const eni_stream *stream);

static inline size_t eni_frame_payload(const eni_frame *frame)
{
    return (size_t)frame->n * sizeof(float);
}

#endif
