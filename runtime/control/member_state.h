/* member_state.h - shared by a member's files:
 *
 *     member_run.c   its thread and lifetime: heartbeats, silence, messages of the leader
 *     member_join.c  until WELCOME; psd went away and comes back; a server opens its shards
 *     member.c       the calls: progress, state of the run, claims, gathers, the early end, goodbyes
 *
 * Each calls only those below it. */
#ifndef CONTROL_MEMBER_STATE_H
#define CONTROL_MEMBER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/control/member.h"
#include "runtime/control/message.h"

/* The stages of one question to the leader. */
typedef enum eni_ask_stage { ASK_IDLE, ASK_SENT, ASK_ANSWERED } eni_ask_stage;

typedef enum eni_member_stage {
    MEMBER_HERE,
    MEMBER_AWAY,     /* no connection: psd is expected back */
    MEMBER_REJOINING /* JOIN is sent, WELCOME is expected */
} eni_member_stage;

/* A leader, from one generation to the next. */
typedef struct eni_reign {
    eni_peer leader;
    uint32_t epoch;
    struct eni_reign *before;
} eni_reign;

/* A lost rank that the run goes on without. */
typedef struct eni_lost {
    eni_death death;
    struct eni_lost *next;
} eni_lost;

/* stop_step while the leader is choosing it. */
#define ENI_STEP_PENDING (ENI_STEP_NEVER - 1)

/* The compute thread's note of its progress. */
typedef struct eni_member_progress {
    atomic_int_fast64_t step;
    atomic_uint_fast64_t samples;
    _Atomic(const char *) phase;
    eni_wait_note wait; /* .moves also counts changes of step and phase */
    atomic_int waits_for_device;
} eni_member_progress;

typedef struct eni_member_stopping {
    atomic_int_fast64_t entered;    /* the step that this rank may be in */
    atomic_uint_fast64_t step;      /* ENI_STEP_NEVER, ENI_STEP_PENDING, or the one before which all end */
    atomic_uint_fast64_t save_step; /* the last one before which all save; ENI_STEP_NEVER: none yet */
    atomic_bool has_wish;           /* rank 0 of a run that claims is to save */
} eni_member_stopping;

/* The present leader and its process. */
typedef struct eni_member_leadership {
    eni_reign *reign; /* the present one */
    atomic_uint_fast64_t generation;
    atomic_int_fast64_t away_since;
    int process_fd; /* readable when the leader's process has ended; -1 */
    int64_t ended_ns;
} eni_member_leadership;

/* Moments of the thread, in ns. */
typedef struct eni_member_times {
    int64_t heard_ns, next_beat_ns, looked_ns, next_try_ns, stop_deadline_ns;
    int64_t awake_ns; /* when this process was last found to have been stopped; 0: never */
    int64_t told_wait_ns, next_notice_ns; /* begin of the wait explained last; when again */
} eni_member_times;

typedef struct eni_member_claims {
    eni_ask_stage stage;
    bool has_index;
    uint64_t number, index; /* of the last answered claim, and its answer */
} eni_member_claims;

typedef struct eni_member_gathers {
    eni_ask_stage stage;
    uint64_t sent, done;
    eni_kept kept[2]; /* ours, by their number: a restarted psd may need them again */
    char tag[ENI_TAG_MAX];
    eni_blobs blobs;
    size_t nblobs; /* of blobs.count that have arrived */
} eni_member_gathers;

/* Scores in rings: this rank's own, which the compute thread has reported and the thread has not sent yet; at
 * rank 0, sums that have not been read yet, of which the oldest is overwritten. */
enum { ENI_SCORES_KEPT = 256 };
typedef struct eni_member_scores {
    eni_score own[ENI_SCORES_KEPT], kept[ENI_SCORES_KEPT];
    atomic_uint_fast64_t told, sent;
    atomic_uint_fast64_t come;
    uint64_t taken;
} eni_member_scores;

typedef struct eni_member_end {
    atomic_int status;
    eni_run_outcome outcome;
    eni_lost *lost;            /* ranks that the run goes on without */
    eni_presence_event *heard; /* (nheard) ranks that came and went */
    uint32_t nheard, room;     /* room: of heard */
    atomic_bool is_leaving;    /* this rank is to leave */
    bool asks_to_leave;
    bool is_interrupted; /* abort_fd was readable */
    bool is_over;        /* a server: all ranks have left */
    bool has_said_bye, is_bye_answered;
} eni_member_end;

typedef struct eni_member_thread {
    pthread_t id;
    bool is_there;
    bool is_stopping; /* close() was called */
    int wake_fd;      /* written when link.out has something new or the thread is to stop */
    uint64_t moved_bytes;
} eni_member_thread;

struct eni_member {
    eni_member_config config; /* key-values, member data, host and host_id are our own copies */
    eni_member_thread thread;
    int event_fd; /* readable once the status is no longer EN_OK, or is_interrupted, or is_over */
    eni_world_info world;
    eni_peer *peers;
    int32_t npeers;        /* of peers that have arrived */
    int64_t came_after_ns; /* -1: this rank was there from the beginning */
    eni_member_progress place;
    eni_member_stage stage; /* the thread's, as the next one */
    eni_member_times when;
    eni_link link; /* the thread's, except that `out` may be appended to under the lock */

    /* Never held across a wait other than the condition's; guards all that is not atomic. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    eni_member_leadership lead;
    eni_member_stopping stop;
    eni_member_claims claim;
    eni_member_gathers gather;
    eni_member_scores scores;
    eni_member_end end;
};

/* member.c, with the lock held */
en_status eni_member_put(eni_member *member, const eni_message *message); /* and wakes the thread */
void eni_member_put_scores(eni_member *member);                           /* those not sent yet */
/* Ends the run for this process; the first call wins. */
void eni_member_finish(eni_member *member, en_status status, const char *reason, const eni_death *death);
/* Requests the early end, unless one was requested or we have left. */
void eni_member_ask_stop(eni_member *member, const char *why);
/* No death was announced: the leader itself is gone. */
void eni_member_leader_lost(eni_member *member, const char *cause, bool is_stopped);

/* member_join.c */
en_status eni_member_join(eni_member *member);
/* A server's SERVE, and its answer; without lock. */
en_status eni_member_serve(eni_member *member, const eni_message *serve, eni_message *ready_out);
/* Sets a leader, the first or another. This one and those below with the lock held. */
en_status eni_member_set_leader(eni_member *member, const eni_message *message);
bool eni_member_may_wait_for_leader(const eni_member *member);
void eni_member_go_away(eni_member *member, const char *cause);
void eni_member_tick_away(eni_member *member, int64_t now_ns); /* may release the lock for a moment */
void eni_member_rejoined(eni_member *member, const eni_message *welcome);

#endif
