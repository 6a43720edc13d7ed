/* wire.h - every byte that worker and psd exchange about weights, and the only thing they share.
 *
 * A message is two ZeroMQ frames (plus the routing id that ROUTER puts in front):
 *
 *     [header: one msgpack array, at most ENI_HEADER_MAX bytes] [payload: raw little-endian float32]
 *
 * The payload frame is absent when the header's bytes are 0 or when ENI_FLAG_SHM says that the payload lies
 * in shared memory. Tensors never pass through msgpack. The receiver owns the schema: a message names a
 * bucket, never a shape, and a payload whose length is not the partition's is refused.
 *
 * The unit is the partition: the part of bucket `bucket` that shard `shard` holds. A bucket is at most
 * ENI_BUCKET_MAX bytes, so a partition travels in one message and needs no reassembly. See docs/wire.md. */
#ifndef NET_WIRE_H
#define NET_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

#define ENI_WIRE_MAGIC 0x454e5431u /* "ENT1" */
/* Processes of different builds form one run if they have the same number. So raise it when anything changes that they share: a
 * message, the layout of shared memory, a key-value of a JOIN (spec/run_spec.h), the bytes of a gather, a line that a rank
 * writes to its launcher. */
#define ENI_WIRE_VERSION 4u
#define ENI_HEADER_MAX   4096u
#define ENI_BUCKET_MAX   (UINT64_C(64) << 20)

enum {
    /* client: token, incarnation; payload none. First message on a connection. A client that joins a running
     * run sends it first without seq, and may then only look; seq 1 + c joins it with clock c, and may be
     * repeated */
    ENI_MSG_HELLO = 1,
    ENI_MSG_WELCOME, /* shard: accepted */
    ENI_MSG_INIT,    /* client rank 0: the partition's initial weights; answered by a REPLY without payload */
    ENI_MSG_CALL,    /* client: push (payload) or pull (none), answered by one REPLY */
    ENI_MSG_REPLY,   /* shard: weights or the edited payload */
    ENI_MSG_SNAPSHOT, /* client: read-only pull of the weights, past the strategy; answered by REPLY */
    ENI_MSG_FINISHED, /* client: no more calls; answered by GOODBYE */
    ENI_MSG_REFUSED,  /* shard: `status` and `text` say why */
    ENI_MSG_GOODBYE,  /* shard: FINISHED was received */
    ENI_MSG_TYPES     /* one past the last */
};

enum {
    ENI_FLAG_SHM = 1,    /* payload (or room for the reply) lies in the client's arena */
    ENI_FLAG_CRC = 2,    /* crc is CRC-32C of the payload: TCP between hosts */
    ENI_FLAG_REPEAT = 4, /* the answer to a call that was answered before */
    ENI_FLAG_DATA = 8,   /* REPLY carries the edited payload, not weights */
    /* CALL: a retained push, sent again to a psd that came back. It was computed on min(base_version, the
     * partition's version), since psd may have lost some */
    ENI_FLAG_REPLAY = 16,
    /* the client maps this psd's weights where the answer is to go. CALL, SNAPSHOT: so weights need not be
     * copied; REPLY: they were not */
    ENI_FLAG_MAPPED = 32
};

#define ENI_INTO_NOTHING UINT32_MAX /* eni_header.into: the client does not want the vector */

/* `kind` of a SNAPSHOT that does not ask for a current vector. KEEP: rank 0 asks this shard to copy the
 * weights of all its partitions as they are when it is read, under the number `step`; answered, without
 * payload and with this kind, if it came over a ring, which counts answers. KEPT: asks for one partition's
 * copy under that number; older copies are freed. If psd has no such copy, the answer has no payload, and
 * version ENI_KEPT_NOWHERE. */
enum { ENI_SNAPSHOT_KEEP = 129, ENI_SNAPSHOT_KEPT = 130 };
#define ENI_KEPT_NOWHERE UINT64_MAX

enum { ENI_DTYPE_F32 = 1 };
enum { ENI_CODEC_NONE = 0 };

typedef struct eni_header {
    uint32_t type;  /* ENI_MSG_* */
    uint32_t flags; /* ENI_FLAG_* */
    uint32_t epoch; /* membership epoch */
    int32_t rank;   /* the client */
    uint32_t bucket;
    uint32_t shard;
    /* CALL: the strategy's own value, 0 .. 255; INIT, SNAPSHOT: 0 weights, 1 + i optimizer slot i. */
    uint32_t kind;
    uint32_t what; /* EN_GRAD, EN_DELTA, EN_WEIGHTS */
    uint32_t dtype, codec;
    uint64_t incarnation;  /* given at JOIN: a restarted worker is another client */
    uint64_t seq;          /* per (client, partition): 1, 2, .. A repeat is answered, not applied again */
    uint64_t base_version; /* CALL: version that `payload` was computed on; REPLY: version that it found */
    uint64_t version;      /* REPLY: version of what is sent */
    uint64_t stable;   /* REPLY: this client's calls to this partition up to this seq survive psd's death */
    uint64_t nsamples; /* the weight in a mean */
    /* CALL with a payload: samples that the client has computed since the last one of this bucket. REPLY to a
     * SNAPSHOT: the least clock of the partition's clients */
    uint64_t covered;
    uint64_t count;     /* elements of the partition */
    uint64_t bytes;     /* payload bytes, apart from count: a codec changes one of them */
    uint64_t step;      /* the client's step: for messages to people */
    int64_t deliver_ns; /* --net emulation: not before this time on the monotonic clock; 0: at once */
    uint32_t crc;
    uint32_t slot; /* ENI_FLAG_SHM: the arena slot that holds the payload of a CALL or INIT, or of a REPLY */
    uint32_t into; /* ENI_FLAG_SHM: the arena slot where the answer to a CALL or SNAPSHOT is to go */
    uint32_t status; /* REFUSED: an en_status */
    char text[256];  /* HELLO: token in hex; REFUSED: the sentence. 0-terminated */
} eni_header;

/* A worker on psd's own host hands its arena over before HELLO: one descriptor over psd's abstract socket
 * (fdpass.h) with this blob, and a second one with its ring (client/shm_ring.h). psd answers with an
 * eni_arena_answer once it has mapped it. From then on payloads of this worker may carry ENI_FLAG_SHM. */
typedef struct eni_arena_hello {
    int32_t rank;
    uint32_t epoch;
    uint64_t incarnation;
    uint64_t count;         /* elements of the flat vector */
    uint32_t shards, slots; /* shape of the ring; slots 0: none */
} eni_arena_hello;

/* With has_weights the first descriptor is that of psd's weights, one flat vector from its first byte on,
 * which only psd can write. The others are eventfds: those of shards first_shard, first_shard + 1, .. */
typedef struct eni_arena_answer {
    int32_t status; /* en_status */
    uint32_t has_weights;
    uint32_t first_shard, ndoorbells;
} eni_arena_answer;

/* Encodes into buffer (ENI_HEADER_MAX bytes). Returns the length; never fails for a header whose text is
 * terminated. No allocation. */
size_t eni_header_encode(const eni_header *header, uint8_t buffer[ENI_HEADER_MAX]);

/* Decodes untrusted bytes. EN_EPROTO for anything but exactly one well-formed header of this version with
 * every field in its range; *header_out is set only on success. `why_out` (may be NULL) gets a static
 * sentence on failure. No allocation, no logging. */
en_status eni_header_decode(const uint8_t *bytes, size_t length, eni_header *header_out,
                            const char **why_out);

#endif
