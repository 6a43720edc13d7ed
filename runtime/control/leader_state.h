/* leader_state.h - shared by the leader's files:
 *
 *     leader.c             lifetime, calls, the loop, and messages after WELCOME
 *     leader_join.c        one JOIN: who may join, and who is missing
 *     leader_admit.c       admission: at the start, later, and back
 *     leader_end.c         goodbyes, the early end, deaths: who died first
 *     leader_wish.c        requests for other workers (ask.h)
 *     leader_gather.c      all-gather of small blobs
 *     leader_status.c      state of the run: who waits for whom; the file for `entrain ps`
 *     leader_connection.c  send to a member, close a connection, write the journal, end the run
 *
 * Each calls only those below it.
 *
 * All of it belongs to the leader's thread except the members under `lock`. */
#ifndef CONTROL_LEADER_STATE_H
#define CONTROL_LEADER_STATE_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/log.h"
#include "runtime/control/leader.h"
#include "runtime/control/message.h"
#include "runtime/control/runs.h"

/* The stages of a connection. */
typedef enum eni_connection_stage {
    CONNECTION_FREE,
    CONNECTION_NEW,    /* connected, has not shown the token */
    CONNECTION_JOINED, /* token, world size and rank are right; waits for the others */
    CONNECTION_ACTIVE, /* welcomed */
    CONNECTION_LEAVING /* BYE or a refusal was sent: closes when all is sent and the other side has closed */
} eni_connection_stage;

typedef struct eni_connection {
    eni_connection_stage stage;
    eni_log_limit *refusals; /* the leader's */
    eni_link link;
    en_status stream;     /* EN_OK while the connection can be read */
    bool is_write_closed; /* sending failed: keep reading, a goodbye may still arrive */
    bool is_half_closed;
    bool is_in_world;           /* peer and key-values belong to the leader now */
    int64_t heard_ns, leave_ns; /* last bytes; the latest time to close a leaving connection */
    int process_fd;             /* readable when its process has ended; -1: not watched */
    int64_t ended_ns;           /* when that was seen; 0: it has not ended */
    int32_t server;             /* 0: a worker's */
    bool is_newcomer;           /* admitted once the others train */
    eni_peer peer;              /* from JOINED on; ENI_RANK_NONE: to be assigned */
    const eni_key_value *key_values;
    size_t nkey_values;
    uint64_t incarnation, done; /* of its JOIN: 0 for a first incarnation; gathers that it has */
} eni_connection;

typedef enum eni_leader_member_stage {
    MEMBER_MISSING, /* has not joined, or not rejoined */
    MEMBER_HERE,
    MEMBER_BYE,  /* has sent BYE, and waits for the answer */
    MEMBER_GONE, /* BYE was answered */
    MEMBER_LEFT, /* the same, of a rank that was asked to leave: treated like a lost one */
    MEMBER_LOST
} eni_leader_member_stage;

/* A rank, or a server k >= 1, with or without a connection. */
typedef struct eni_leader_member {
    eni_leader_member_stage stage;
    eni_connection *connection; /* NULL: not connected */
    int64_t missing_ns;         /* MISSING: since when */
    int64_t step;               /* as of the last heartbeat, like the next ones */
    uint32_t op, waits;
    uint64_t moves, samples;
    char phase[ENI_PHASE_MAX];
    bool has_wait;                /* `wait` describes its present wait */
    eni_message wait;             /* WAITING */
    uint64_t claims, claim_index; /* number and answer of its last claim */
    uint64_t told, done;          /* gathers sent to it; gathers it has confirmed */
    eni_kept kept[2];             /* by the gather's number: the next, and after a rejoin the last */
    bool has_paused, is_leaving;  /* the latter: it was asked to leave */
    int64_t paused_step;
    uint64_t save_step;               /* as reported in PAUSED; ENI_STEP_NEVER: none */
    const eni_key_value *member_data; /* a server's READY */
    size_t nmember_data;
    bool is_ready;
    eni_kept added; /* a server's part of the open gather */
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
    eni_run_writer *writer; /* NULL if absent */
    eni_run_rank *rank;     /* (nmembers) */
    uint64_t born;          /* start time of this process */
    int64_t next_ns;
    char address[ENI_ADDRESS_TEXT]; /* the leader's */
    eni_score scores[256];          /* steps whose sums are incomplete; total 0: a free entry */
    bool has_bad_score;             /* an impossible one was reported; logged once */
} eni_leader_status;

/* Moments on the monotonic clock, in ns. */
typedef struct eni_leader_times {
    int64_t started_ns, join_deadline_ns, next_notice_ns;
    int64_t next_beat_ns, looked_ns;
    int64_t moved_ns;    /* when any member was last seen to progress */
    int64_t training_ns; /* when all ranks were first seen in a step; 0: not yet */
    int64_t end_ns;      /* the latest end of the goodbyes */
} eni_leader_times;

/* Its thread, and the eventfds that wake it and those that wait for its end. */
typedef struct eni_leader_loop {
    pthread_t thread;
    int wake_fd, over_fd;
} eni_leader_loop;

/* Where members connect. */
typedef struct eni_leader_listener {
    int fd;
    bool has_warned_full; /* once is enough: unauthenticated peers must not fill a log */
    int64_t closed_ns;    /* accept failed, and would fail again before then */
    int64_t say_short_ns; /* core/files.h */
    eni_log_limit refusals;
} eni_leader_listener;

/* A member aborted; the run ends then unless a death has explained it. at_ns 0: none did. */
typedef struct eni_leader_abort_notice {
    int64_t at_ns;
    char reason[ENI_REASON_MAX];
} eni_leader_abort_notice;

typedef struct eni_leader_stopping {
    eni_stop_stage stage;
    bool is_save;     /* a checkpoint's step is being chosen, and the run goes on */
    int64_t saved_ns; /* until then another request belongs to the same signal */
    uint64_t step;
} eni_leader_stopping;

/* Requests of other threads. */
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
    int32_t ncame; /* ranks given so far: the next newcomer gets this one */
    eni_terms terms;
    eni_key_value *member_data; /* terms.member_data and those of the servers */
    uint64_t asked_gather;      /* the gather for which the servers were asked; 0: none */
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

/* Ranks that take part, among those that have joined. */
static inline int32_t eni_leader_count_living(const eni_leader *leader)
{
    int32_t n = 0;
    for (int32_t r = 0; r < leader->ncame; r++)
        n += eni_leader_member_lives(&leader->members[r]);
    return n;
}

/* How long a member that may come back is waited for. */
static inline int64_t eni_leader_back_ns(const eni_leader *leader)
{
    return leader->config.server_timeout_ns > 0 ? leader->config.server_timeout_ns : leader->config.join_ns;
}

/* leader_connection.c */
/* A failure shows when the connection is read. */
void eni_connection_put(eni_connection *connection, const eni_message *message);
void eni_connection_leave(eni_connection *connection); /* close it once all is sent */
/* Sends REFUSED with that sentence, and closes. Returns false, for the caller's check. */
bool eni_leader_refuse(eni_connection *connection, en_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether the token is the run's; else refuses it. */
bool eni_leader_knows(const eni_leader *leader, eni_connection *connection, const eni_token *token);
void eni_connection_free(eni_connection *connection);
/* The connected member of a welcomed connection; NULL if none. */
eni_leader_member *eni_leader_member_of(eni_leader *leader, const eni_connection *connection);
void eni_leader_member_put(eni_leader_member *member, const eni_message *message); /* if it is connected */
/* Whether this process' own member will log what all members receive. */
bool eni_leader_has_own_member(const eni_leader *leader);
/* Ends the run: sends status and reason to every member; nothing else is served any more. `finish` logs
 * it. */
void eni_leader_finish(eni_leader *leader, en_status status, const char *reason);
void eni_leader_end(eni_leader *leader, en_status status, const char *reason, const eni_message *last);
/* Writes an entry of the journal; a failure ends the run. */
en_status eni_leader_write(eni_leader *leader, eni_entry_kind kind, int32_t rank, uint64_t number,
                           uint64_t value);

/* leader_gather.c. The first two return NULL, or how the message broke the protocol. */
const char *eni_leader_gather(eni_leader *leader, eni_leader_member *member, const eni_message *message);
const char *eni_leader_added(eni_leader *leader, eni_leader_member *member, const eni_message *message);
void eni_leader_try_gather(eni_leader *leader);
/* Whether all ranks that are here have done the same number of gathers, and none has begun another. */
bool eni_leader_is_between_gathers(const eni_leader *leader, uint64_t *done_out);
const eni_kept *eni_leader_member_blob(const eni_leader_member *member, uint64_t number); /* NULL: not here */

/* leader_end.c */
void eni_leader_check_end(eni_leader *leader); /* after a goodbye, a DONE or a loss */
/* has_time: no rank is cut off; each finishes its work. */
void eni_leader_begin_stop(eni_leader *leader, const char *why, bool has_time);
void eni_leader_check_paused(eni_leader *leader);
void eni_leader_begin_save(eni_leader *leader);                           /* a checkpoint is asked for */
void eni_leader_tell_stop(eni_leader *leader, eni_leader_member *member); /* to one that has just come back */
/* To rank 0, which has just come back and has the result. */
void eni_leader_tell_presence(eni_leader *leader);
void eni_leader_lost(eni_leader *leader, eni_connection *connection, const char *cause);
/* The member is lost, unless it may come back. */
void eni_leader_connection_broke(eni_leader *leader, eni_connection *connection, const char *cause);
void eni_leader_gave_up(eni_leader *leader, eni_connection *connection, const char *reason);
void eni_leader_check_silence(eni_leader *leader, int64_t now_ns);

/* leader_wish.c */
void eni_leader_wish(eni_leader *leader, eni_connection *connection, const eni_message *wish);
/* The rank ends when it has done its claims; does nothing if it cannot leave. */
void eni_leader_ask_to_leave(eni_leader *leader, int32_t rank);

/* leader_join.c */
void eni_leader_join(eni_leader *leader, eni_connection *connection, const eni_message *join);
void eni_leader_tick_join(eni_leader *leader, int64_t now_ns);
/* "2 of 3 ranks are here, missing rank 2" */
void eni_leader_have(const eni_leader *leader, char text_out[ENI_REASON_MAX]);

/* leader_admit.c */
/* All have joined: compares their key-values, opens the world, and admits them, or ends the run. */
void eni_leader_begin(eni_leader *leader);
/* Restores config.revived, before anyone joins. */
void eni_leader_revive(eni_leader *leader);
/* A member that came back to a run under way, or to a revived leader. Its JOIN has passed the checks. */
void eni_leader_return(eni_leader *leader, eni_connection *connection);
void eni_leader_ready(eni_leader *leader, eni_connection *connection, const eni_message *message);
void eni_leader_tick_newcomers(eni_leader *leader, int64_t now_ns);
eni_peer eni_leader_own_peer(const eni_leader *leader);
int32_t eni_leader_servers_expected(const eni_leader *leader);
/* The index of a server (0: a rank) among the members. */
int32_t eni_leader_index_of(const eni_leader *leader, int32_t server, int32_t rank);
/* The joined connection with that number: a rank, or server -1 - number. NULL if none. */
const eni_connection *eni_leader_find_joined(const eni_leader *leader, int32_t number);
int32_t eni_leader_count_joined(const eni_leader *leader, bool is_server);
/* True if equal; else `reason_out` has the first key whose values differ. */
bool eni_leader_compare(const eni_key_value *ours, size_t nours, const eni_connection *connection,
                        const char *whose, char reason_out[ENI_REASON_MAX]);

/* leader_status.c */
void eni_leader_waiting(eni_leader *leader, eni_connection *connection, eni_leader_member *member,
                        const eni_message *message);
void eni_leader_check_deadlock(eni_leader *leader, int64_t now_ns);
void eni_leader_score(eni_leader *leader, const eni_leader_member *member, const eni_message *message);
void eni_leader_status_open(eni_leader *leader); /* if it fails, the run goes on without it */
void eni_leader_status_tick(eni_leader *leader, int64_t now_ns);

static inline bool eni_leader_is_stopping(const eni_leader *leader)
{
    return leader->stop.stage != STOP_NONE && !leader->stop.is_save;
}

#endif
