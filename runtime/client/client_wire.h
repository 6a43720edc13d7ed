/* client_wire.h - a client's messages to the shards of one psd and back: a socket to every shard; for a psd
 * on this host also the arena, which it maps, and a ring in shared memory (shm_ring.h), by which a message
 * needs no socket.
 *
 * An emulated wire (--net) makes an answer usable later than it arrives: it waits here until its time.
 * Messages are not interpreted, except WELCOME. The caller's lock protects all of it. */
#ifndef CLIENT_CLIENT_WIRE_H
#define CLIENT_CLIENT_WIRE_H

#include <stdatomic.h>

#include "runtime/client/client.h"
#include "runtime/client/shm_ring.h"

typedef struct eni_delayed_answer {
    eni_packet packet;
    int64_t ready_ns;
} eni_delayed_answer;

typedef struct eni_client_wire {
    const eni_client_config *config;
    int shards;
    uint64_t generation;         /* of psd, as connected: its returns so far */
    uint32_t epoch;              /* of that psd */
    eni_dealer **dealers;        /* (shards) */
    eni_shm_ring *ring;          /* messages without a socket; NULL: psd takes none */
    uint64_t by_socket;          /* messages under way that a socket will answer */
    bool is_quiet;               /* the last wait brought nothing by ring: look at the sockets */
    int at;                      /* position in the round of eni_client_wire_next; -1: not begun */
    bool is_looking;             /* this round looks at sockets */
    bool *is_ready;              /* (shards) scratch of poll */
    eni_delayed_answer *delayed; /* (buckets * shards) */
    uint32_t ndelayed;
    bool is_shared;     /* payloads go through the arena */
    bool wants_weights; /* psd's weights are to be mapped */
    int weights_fd;     /* psd's, to be mapped; -1: none */
    int greeted;        /* shards that have answered HELLO */
    uint64_t joins_at;  /* HELLO's seq: 0; a newcomer's: 1 + its clock, once it has one */
    atomic_int *lent;   /* payloads that ZeroMQ still reads */
    uint64_t past_wire; /* bytes of dealers that were closed */
    int64_t wait_ns;
} eni_client_wire;

/* Not connected yet. EN_ENOMEM. `config` outlives it. */
en_status eni_client_wire_init(eni_client_wire *wire, const eni_client_config *config);
/* Also after an init that failed. */
void eni_client_wire_fini(eni_client_wire *wire);

/* Whether psd came back since; without `keep` never. */
bool eni_client_wire_is_outdated(const eni_client_wire *wire);
/* EN_OK, or why no wait can succeed any more. */
en_status eni_client_wire_alive(const eni_client_wire *wire);

/* The status of a REFUSED, logged. */
en_status eni_client_wire_refused(const eni_header *header);

/* Opens the sockets, passes the arena on and waits for all WELCOMEs. EN_OK also if psd came back
 * once more meanwhile. */
en_status eni_client_wire_connect(eni_client_wire *wire, const eni_endpoints *psd, int64_t deadline_ns);
/* Sends HELLO again to all, and waits as above; nothing is under way. */
en_status eni_client_wire_greet(eni_client_wire *wire, int64_t deadline_ns);
void eni_client_wire_disconnect(eni_client_wire *wire);
/* Closes weights_fd. */
void eni_client_wire_forget_weights(eni_client_wire *wire);

/* Sends now. is_shared: ZeroMQ may read the payload in place. EN_OK also when psd is away: with `keep` a
 * blocked socket may be that of a lost psd. */
en_status eni_client_wire_send(eni_client_wire *wire, int shard, eni_header *header, float *payload,
                               bool is_shared);

/* The next answer that has arrived and is usable, to be released. EN_ETIMEOUT: no more, this round is over. */
en_status eni_client_wire_next(eni_client_wire *wire, eni_packet *packet_out);

/* Blocks until something may have changed, at most 20 ms; then checks whether the run goes on. */
en_status eni_client_wire_wait(eni_client_wire *wire);

/* Bytes on the wire so far, both ways. */
uint64_t eni_client_wire_bytes(const eni_client_wire *wire);

#endif
