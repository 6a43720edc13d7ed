/* leader_state.h - what the leader's files share: leader.c (calls and loop), leader_join.c (until WELCOME)
 * and leader_run.c (after it). All of it belongs to the leader's thread except what stands under `lock`. */
#ifndef NET_LEADER_STATE_H
#define NET_LEADER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/net/leader.h"
#include "runtime/net/message.h"

/* The life of a connection. */
typedef enum eni_seat_stage {
    SEAT_FREE,
    SEAT_NEW,    /* connected, has not shown the token */
    SEAT_JOINED, /* token, world size and rank are right; waits for the others */
    SEAT_ACTIVE, /* welcomed */
    SEAT_LEAVING /* told goodbye or no: closes when all is sent and the other side has closed */
} eni_seat_stage;

typedef struct eni_seat {
    eni_seat_stage stage;
    eni_link link;
    en_status stream; /* EN_OK while the connection can be read */
    bool is_mute;     /* sending failed: read on, a goodbye may still be there to be read */
    bool is_half_closed;
    bool is_in_world;           /* peer and pairs belong to the leader now */
    int64_t heard_ns, leave_ns; /* last bytes; when a leaving seat is closed at the latest */
    eni_peer peer;              /* from JOINED on; rank -1: to be assigned */
    const eni_pair *pairs;
    size_t npairs;
    int64_t step;
    uint64_t samples;
    char phase[ENI_PHASE_MAX];
    bool has_blob; /* takes part in the gather that is open */
    uint8_t *blob;
    size_t blob_bytes;
} eni_seat;

typedef enum eni_leader_stage { LEADER_JOINING, LEADER_RUNNING, LEADER_ENDING } eni_leader_stage;

struct eni_leader {
    eni_leader_config config; /* host and host_id are our own copies */
    eni_address address;
    pthread_t thread;
    int listen_fd, wake_fd, over_fd;

    eni_leader_stage stage;
    int64_t join_deadline_ns, next_beat_ns, end_ns, abort_ns, looked_ns;
    eni_seat *seats;
    size_t nseats;
    bool has_warned_full; /* once is enough: strangers must not fill a log */
    struct pollfd *polled;
    eni_world_info world; /* valid until stop: on_world may keep it */
    eni_peer *peers;      /* by rank */
    eni_seat **by_rank;
    eni_terms terms;
    int32_t nleft; /* ranks that said BYE */
    char gather_tag[ENI_TAG_MAX];
    int32_t ngathered, gather_first; /* blobs here; the rank that opened it */
    char abort_reason[ENI_REASON_MAX];

    atomic_uint_fast64_t claimed, samples;
    pthread_mutex_t lock;
    bool is_over, has_death, is_abort_asked;
    en_status status;
    char reason[ENI_REASON_MAX];
    char asked_reason[ENI_REASON_MAX];
    eni_death death;
};

/* leader.c */
void eni_seat_put(eni_seat *seat, const eni_message *message); /* what went wrong shows when it is read */
void eni_seat_leave(eni_seat *seat);                           /* close it once all is sent */
void eni_seat_free(eni_seat *seat);

/* leader_join.c */
void eni_leader_join(eni_leader *leader, eni_seat *seat, const eni_message *join);
void eni_leader_unjoin(eni_leader *leader, eni_seat *seat); /* its connection broke before WELCOME */
void eni_leader_refuse(eni_seat *seat, en_status status, const char *reason);
void eni_leader_tick_join(eni_leader *leader, int64_t now_ns);

/* leader_run.c */
void eni_leader_serve(eni_leader *leader, eni_seat *seat, const eni_message *message);
void eni_leader_lost(eni_leader *leader, eni_seat *seat, const char *cause);
void eni_leader_tick_run(eni_leader *leader, int64_t now_ns);

/* Ends the run: every member hears status and reason; nothing else is served any more. */
void eni_leader_finish(eni_leader *leader, en_status status, const char *reason);

#endif
