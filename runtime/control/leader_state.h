/* leader_state.h - what the leader's files share:
 *
 *     leader.c             life, calls, the loop, and what members say after WELCOME
 *     leader_join.c        one JOIN: who may come in, and who is missing
 *     leader_admit.c       letting in: at the start, later, and back
 *     leader_end.c         goodbyes, the early end, deaths: who died first
 *     leader_wish.c        other workers, please (ask.h)
 *     leader_gather.c      blobs of all for all
 *     leader_status.c      how the run stands: who waits for whom; the file for `entrain ps`
 *     leader_connection.c  say something to a member, close a connection, write down, end the run
 *
 * Each calls only those below it.
 *
 * All of it belongs to the leader's thread except what stands under `lock`. */
#ifndef CONTROL_LEADER_STATE_H
#define CONTROL_LEADER_STATE_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/log.h"
#include "runtime/control/leader.h"
#include "runtime/control/message.h"
#include "runtime/control/runs.h"

/* The life of a connection. */
typedef enum eni_connection_stage {
    CONNECTION_FREE,
    CONNECTION_NEW,    /* connected, has not shown the token */
    CONNECTION_JOINED, /* token, world size and rank are right; waits for the others */
    CONNECTION_ACTIVE, /* welcomed */
    CONNECTION_LEAVING /* told goodbye or no: closes when all is sent and the other side has closed */
} eni_connection_stage;

typedef struct eni_connection {
    eni_connection_stage stage;
    eni_log_limit *refusals; /* the leader's */
    eni_link link;
    en_status stream;     /* EN_OK while the connection can be read */
    bool is_write_closed; /* sending failed: read on, a goodbye may still be there to be read */
    bool is_half_closed;
    bool is_in_world;           /* peer and key-values belong to the leader now */
    int64_t heard_ns, leave_ns; /* last bytes; when a leaving connection is closed at the latest */
    int process_fd;             /* readable when its process has ended; -1: it cannot be watched */
    int64_t ended_ns;           /* when that was seen; 0: it has not ended */
    int32_t server;             /* 0: a worker's */
    bool is_newcomer;           /* it is let in when the others train */
    eni_peer peer;              /* from JOINED on; ENI_RANK_NONE: to be assigned */
    const eni_key_value *key_values;
    size_t nkey_values;
    uint64_t incarnation, done; /* of its JOIN: 0 for a first incarnation; gathers that it has */
} eni_connection;

typedef enum eni_leader_member_stage {
    MEMBER_MISSING, /* has not joined, or not joined again */
    MEMBER_HERE,
    MEMBER_BYE,  /* has said it, and waits for the answer */
    MEMBER_GONE, /* told goodbye */
    MEMBER_LEFT, /* the same of one that was asked to leave: it is missed as little as one that is lost */
    MEMBER_LOST
} eni_leader_member_stage;

/* A rank, or a server k >= 1, whoever holds its connection. */
typedef struct eni_leader_member {
    eni_leader_member_stage stage;
    eni_connection *connection; /* NULL: not connected */
    int64_t missing_ns;         /* MISSING: since when */
    int64_t step;               /* as of the last heartbeat, like the next ones */
    uint32_t op, waits;
    uint64_t moves, samples;
    char phase[ENI_PHASE_MAX];
    bool has_wait;                /* `wait` is about the wait that it is in now */
    eni_message wait;             /* WAITING */
    uint64_t claims, claim_index; /* number and answer of its last claim */
    uint64_t told, done;          /* gathers that it was sent; that it has */
    eni_kept kept[2];             /* by the gather's number: the next, and after a rejoin the last */
    bool has_paused, is_leaving;  /* the latter: it was asked to */
    int64_t paused_step;
    uint64_t save_step;               /* as it said with that; ENI_STEP_NEVER: none */
    const eni_key_value *member_data; /* a server's READY */
    size_t nmember_data;
    bool is_ready;
    eni_kept added; /* a server's word to the gather that is open */
} eni_leader_member;

typedef enum eni_leader_stage {
    LEADER_JOINING,
    LEADER_SERVING, /* the other servers open their shards */
    LEADER_RUNNING,
    LEADER_ENDING
} eni_leader_stage;

typedef enum eni_stop_stage { STOP_NONE, STOP_PAUSING, STOP_CHOSEN } eni_stop_stage;

/* The file for `entrain ps`. */
typedef struct eni_leader_status {
    eni_run_writer *writer; /* NULL: none */
    eni_run_rank *rank;     /* (nmembers) */
    uint64_t born;          /* this process was */
    int64_t next_ns;
    char address[ENI_ADDRESS_TEXT]; /* where it leads */
    eni_score scores[256];          /* steps whose sums are not whole yet; total 0: a free place */
    bool has_bad_score;             /* one was told of that cannot be: said once */
} eni_leader_status;

/* Moments on the monotonic clock, in ns. */
typedef struct eni_leader_times {
    int64_t started_ns, join_deadline_ns, next_notice_ns;
    int64_t next_beat_ns, looked_ns;
    int64_t moved_ns;    /* when anybody was last seen to go on */
    int64_t training_ns; /* when all ranks were first seen in a step; 0: not yet */
    int64_t end_ns;      /* goodbyes are over at the latest */
} eni_leader_times;

/* Its thread, and what wakes it and whoever waits for its end. */
typedef struct eni_leader_loop {
    pthread_t thread;
    int wake_fd, over_fd;
} eni_leader_loop;

/* Where members come in. */
typedef struct eni_leader_listener {
    int fd;
    bool has_warned_full; /* once is enough: unauthenticated peers must not fill a log */
    int64_t closed_ns;    /* accept failed, and would again: not before then */
    int64_t say_short_ns; /* core/files.h */
    eni_log_limit refusals;
} eni_leader_listener;

/* Somebody gave up; the run ends when no death has explained it by then. at_ns 0: nobody did. */
typedef struct eni_leader_abort_notice {
    int64_t at_ns;
    char reason[ENI_REASON_MAX];
} eni_leader_abort_notice;

typedef struct eni_leader_stopping {
    eni_stop_stage stage;
    bool is_save;     /* what is being chosen is the step of a checkpoint, and the run goes on */
    int64_t saved_ns; /* until then another wish is of the same signal */
    uint64_t step;
} eni_leader_stopping;

/* What other threads asked for. */
typedef struct eni_leader_asked {
    bool is_abort, is_stop;
    char abort_reason[ENI_REASON_MAX];
} eni_leader_asked;

typedef struct eni_leader_verdict {
    bool is_over;
    en_status status;
    eni_run_outcome outcome;
} eni_leader_verdict;

struct eni_leader {
    eni_leader_config config; /* host, host_id and attributes are our own copies */
    eni_address address;
    eni_leader_loop loop;
    eni_leader_listener listener;
    eni_leader_stage stage;
    eni_leader_times when;
    eni_connection *connections;
    size_t nconnections;
    struct pollfd *polled;
    eni_leader_status status;
    eni_world_info world;       /* valid until stop: on_world may keep it */
    eni_peer *peers;            /* (nmembers) ranks, then servers 1 .. */
    eni_leader_member *members; /* (nmembers) */
    int32_t nmembers;
    int32_t ncame; /* ranks that have been given: the next newcomer gets this one */
    eni_terms terms;
    eni_key_value *member_data; /* terms.member_data and what the servers added */
    uint64_t asked_gather;      /* the one for which the servers were asked; 0: none */
    eni_leader_stopping stop;
    eni_leader_abort_notice abort;

    atomic_uint_fast64_t claimed, samples;
    pthread_mutex_t lock;
    eni_leader_asked asked; /* under lock, as the next one */
    eni_leader_verdict end;
};

static inline int32_t eni_leader_member_number(const eni_leader *leader, const eni_leader_member *member)
{
    int32_t i = (int32_t)(member - leader->members);
    return i < leader->config.nranks ? i : -2 - (i - leader->config.nranks);
}

/* Ranks that the run begins with. */
static inline int32_t eni_leader_first_ranks(const eni_leader *leader)
{
    return leader->config.nfirst > 0 ? leader->config.nfirst : leader->config.nranks;
}

static inline bool eni_leader_member_lives(const eni_leader_member *member)
{
    return member->stage <= MEMBER_BYE;
}

/* Ranks that take part; of those that have come. */
static inline int32_t eni_leader_count_living(const eni_leader *leader)
{
    int32_t n = 0;
    for (int32_t r = 0; r < leader->ncame; r++)
        n += eni_leader_member_lives(&leader->members[r]);
    return n;
}

/* How long somebody who may come back is waited for. */
static inline int64_t eni_leader_back_ns(const eni_leader *leader)
{
    return leader->config.server_timeout_ns > 0 ? leader->config.server_timeout_ns : leader->config.join_ns;
}

/* leader_connection.c */
/* What went wrong shows when the connection is read. */
void eni_connection_put(eni_connection *connection, const eni_message *message);
void eni_connection_leave(eni_connection *connection); /* close it once all is sent */
/* REFUSED with that sentence, and leave. False, for who checks whether somebody may come in. */
bool eni_leader_refuse(eni_connection *connection, en_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether the token that it shows is the run's; else it is refused. */
bool eni_leader_knows(const eni_leader *leader, eni_connection *connection, const eni_token *token);
void eni_connection_free(eni_connection *connection);
/* The connected member of a welcomed connection; NULL. */
eni_leader_member *eni_leader_member_of(eni_leader *leader, const eni_connection *connection);
void eni_leader_member_put(eni_leader_member *member, const eni_message *message); /* if it is connected */
/* Whether this process' own member will log what all members hear. */
bool eni_leader_has_own_member(const eni_leader *leader);
/* Ends the run: every member hears status and reason; nothing else is served any more. `finish` logs it. */
void eni_leader_finish(eni_leader *leader, en_status status, const char *reason);
void eni_leader_end(eni_leader *leader, en_status status, const char *reason, const eni_message *last);
/* An entry of the journal; a failure ends the run. */
en_status eni_leader_write(eni_leader *leader, eni_entry_kind kind, int32_t rank, uint64_t number,
                           uint64_t value);

/* leader_gather.c. The first two: NULL, or how the message broke the protocol. */
const char *eni_leader_gather(eni_leader *leader, eni_leader_member *member, const eni_message *message);
const char *eni_leader_added(eni_leader *leader, eni_leader_member *member, const eni_message *message);
void eni_leader_try_gather(eni_leader *leader);
/* Whether all ranks that are here have done as many gathers, and none has begun another one. */
bool eni_leader_is_between_gathers(const eni_leader *leader, uint64_t *done_out);
const eni_kept *eni_leader_member_blob(const eni_leader_member *member, uint64_t number); /* NULL: not here */

/* leader_end.c */
void eni_leader_check_end(eni_leader *leader); /* after a goodbye, a DONE or a loss */
/* has_time: nobody is cut off; each rank finishes what it does. */
void eni_leader_begin_stop(eni_leader *leader, const char *why, bool has_time);
void eni_leader_check_paused(eni_leader *leader);
void eni_leader_begin_save(eni_leader *leader);                           /* a checkpoint is asked for */
void eni_leader_tell_stop(eni_leader *leader, eni_leader_member *member); /* to one who has just come back */
/* To rank 0, which has just come back: it has the result. */
void eni_leader_tell_presence(eni_leader *leader);
void eni_leader_lost(eni_leader *leader, eni_connection *connection, const char *cause);
/* It is lost, unless it may come back. */
void eni_leader_connection_broke(eni_leader *leader, eni_connection *connection, const char *cause);
void eni_leader_gave_up(eni_leader *leader, eni_connection *connection, const char *reason);
void eni_leader_check_silence(eni_leader *leader, int64_t now_ns);

/* leader_wish.c */
void eni_leader_wish(eni_leader *leader, eni_connection *connection, const eni_message *wish);
/* The rank ends when it has done what it has claimed; where it cannot, nothing happens. */
void eni_leader_ask_to_leave(eni_leader *leader, int32_t rank);

/* leader_join.c */
void eni_leader_join(eni_leader *leader, eni_connection *connection, const eni_message *join);
void eni_leader_tick_join(eni_leader *leader, int64_t now_ns);
/* "2 of 3 ranks are here, missing rank 2" */
void eni_leader_have(const eni_leader *leader, char text_out[ENI_REASON_MAX]);

/* leader_admit.c */
/* All have joined: compares what they said, opens the world, and lets them in, or ends the run. */
void eni_leader_begin(eni_leader *leader);
/* From config.revived, before anyone joins. */
void eni_leader_revive(eni_leader *leader);
/* A member that came back to a run under way, or to a revived leader. Its JOIN has passed. */
void eni_leader_return(eni_leader *leader, eni_connection *connection);
void eni_leader_ready(eni_leader *leader, eni_connection *connection, const eni_message *message);
void eni_leader_tick_newcomers(eni_leader *leader, int64_t now_ns);
eni_peer eni_leader_own_peer(const eni_leader *leader);
int32_t eni_leader_servers_expected(const eni_leader *leader);
/* Of a server (0: of a rank) among the members. */
int32_t eni_leader_index_of(const eni_leader *leader, int32_t server, int32_t rank);
/* Who waits under that number: a rank, or server -1 - number. NULL: nobody. */
const eni_connection *eni_leader_find_joined(const eni_leader *leader, int32_t number);
int32_t eni_leader_count_joined(const eni_leader *leader, bool is_server);
/* False, and the first key whose values differ in `reason_out`. */
bool eni_leader_compare(const eni_key_value *ours, size_t nours, const eni_connection *connection,
                        const char *whose, char reason_out[ENI_REASON_MAX]);

/* leader_status.c */
void eni_leader_waiting(eni_leader *leader, eni_connection *connection, eni_leader_member *member,
                        const eni_message *message);
void eni_leader_check_deadlock(eni_leader *leader, int64_t now_ns);
void eni_leader_score(eni_leader *leader, const eni_leader_member *member, const eni_message *message);
void eni_leader_status_open(eni_leader *leader); /* without it the run goes on */
void eni_leader_status_tick(eni_leader *leader, int64_t now_ns);

static inline bool eni_leader_is_stopping(const eni_leader *leader)
{
    return leader->stop.stage != STOP_NONE && !leader->stop.is_save;
}

#endif
