/* member_state.h - what a member's files share:
 *
 *     member.c         life, and calls that wait for the leader: claims, gathers, the early end, goodbyes
 *     member_run.c     its thread: heartbeats, silence, what the leader says
 *     member_join.c    until WELCOME; psd went away and comes back; a server opens its shards
 *     member_status.c  how the run is, where this rank is; the calls that only look or note
 *
 * Each calls only those below it. */
#ifndef CONTROL_MEMBER_STATE_H
#define CONTROL_MEMBER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/control/member.h"
#include "runtime/control/message.h"

/* One question to the leader, and its answer. */
typedef enum eni_ask_stage { ASK_IDLE, ASK_SENT, ASK_ANSWERED } eni_ask_stage;

typedef enum eni_member_stage {
    MEMBER_HERE,
    MEMBER_AWAY,     /* no connection: psd is to come back */
    MEMBER_REJOINING /* JOIN is sent, WELCOME is due */
} eni_member_stage;

/* A leader, from one generation to the next. */
typedef struct eni_reign {
    eni_peer leader;
    uint32_t epoch;
    struct eni_reign *before;
} eni_reign;

/* A gather of ours that a psd that comes back may want again; number 0: none. */
typedef struct eni_kept {
    uint64_t number;
    char tag[ENI_TAG_MAX];
    uint8_t *data;
    size_t bytes;
} eni_kept;

/* Somebody whom the run goes on without. */
typedef struct eni_lost {
    eni_death death;
    struct eni_lost *next;
} eni_lost;

/* stop_step while the leader is choosing it. */
#define ENI_STEP_PENDING (ENI_STEP_NEVER - 1)

struct eni_member {
    eni_member_config config; /* key-values, member data, host and host_id are our own copies */
    pthread_t thread;
    bool has_thread;
    int wake_fd;       /* written when link.out has something new or the thread is to stop */
    int event_fd;      /* readable once status is no longer EN_OK, or is_interrupted, or is_over */
    int generation_fd; /* readable once there is a generation that nobody has looked at */
    eni_world_info world;
    eni_peer *peers;
    int32_t npeers; /* of peers that have come */

    atomic_int status;
    atomic_uint_fast64_t generation;
    atomic_int_fast64_t away_since;

    /* the compute thread's word on where it is */
    atomic_int_fast64_t step;
    atomic_uint_fast64_t samples;
    _Atomic(const char *) phase;
    eni_wait_note wait; /* .moves also counts changes of step and phase */
    atomic_int waits_for_device;
    atomic_int_fast64_t entered;    /* the step it may be in */
    atomic_uint_fast64_t stop_step; /* ENI_STEP_NEVER, ENI_STEP_PENDING, or the one before which all end */

    /* the thread's */
    eni_member_stage stage;
    int64_t heard_ns, next_beat_ns, looked_ns, next_try_ns, stop_deadline_ns;
    int64_t awake_ns; /* when this process was last found to have been stopped; 0: never */
    int64_t told_wait_ns, next_notice_ns; /* begin of the wait that was explained last; when again */
    uint64_t moved_bytes;
    int process_fd; /* readable when the leader's process has ended; -1 */
    int64_t ended_ns;
    eni_link link; /* the thread's, except that `out` may be appended to under the lock */

    pthread_mutex_t lock; /* never held across a wait other than the condition's */
    pthread_cond_t changed;
    eni_reign *reign;    /* the present one */
    bool is_stopping;    /* close() was called */
    bool is_interrupted; /* abort_fd was readable */
    bool is_over;        /* a server: all ranks have left */
    bool has_said_bye, is_bye_answered;
    eni_ask_stage claim;
    bool has_index;
    uint64_t claims, index; /* number and answer of the last claim that was answered */
    eni_ask_stage gather;
    uint64_t sent, done; /* gathers */
    eni_kept kept[2];    /* by the gather's number */
    char gather_tag[ENI_TAG_MAX];
    eni_blobs blobs;
    size_t nblobs; /* of blobs.count that have come */
    bool has_stop; /* an early end was asked for, here or elsewhere */
    char stop_why[ENI_REASON_MAX];
    eni_lost *lost;
    char reason[ENI_REASON_MAX];
    bool has_death;
    eni_death death;
};

/* member_status.c, with the lock held */
en_status eni_member_put(eni_member *member, const eni_message *message); /* and wakes the thread */
/* Ends the run for this process; the first call wins. */
void eni_member_finish(eni_member *member, en_status status, const char *reason, const eni_death *death);
/* Nobody told us of a death: it is the leader itself that is gone. */
void eni_member_leader_lost(eni_member *member, const char *cause, bool is_stopped);

/* member_join.c */
en_status eni_member_join(eni_member *member);
en_status eni_member_serve(eni_member *member, const eni_message *serve); /* a server's SERVE; without lock */
/* With the lock held. */
en_status eni_member_set_leader(eni_member *member,
                                const eni_message *message); /* a leader; the first, or another */
bool eni_member_may_wait_for_leader(const eni_member *member);
void eni_member_go_away(eni_member *member, const char *cause);
void eni_member_tick_away(eni_member *member, int64_t now_ns); /* may let go of the lock for a moment */
void eni_member_rejoined(eni_member *member, const eni_message *welcome);

/* member_run.c. The thread: argument is the member. */
void *eni_member_run(void *member);

#endif
