/* member_state.h - what member.c (joining, calls) and member_run.c (its thread) share. */
#ifndef NET_MEMBER_STATE_H
#define NET_MEMBER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/net/member.h"
#include "runtime/net/message.h"

/* One question to the leader, and its answer. */
typedef enum eni_ask_stage { ASK_IDLE, ASK_SENT, ASK_ANSWERED } eni_ask_stage;

struct eni_member {
    pthread_t thread;
    bool has_thread;
    int wake_fd;  /* written when link.out has something new or the thread is to stop */
    int event_fd; /* readable once status is no longer EN_OK, or is_interrupted */
    int abort_fd; /* the owner's */
    int64_t peer_timeout_ns;
    eni_world_info world; /* immutable after open */
    eni_peer *peers;

    atomic_int status;
    atomic_int_fast64_t step;
    atomic_uint_fast64_t samples;
    _Atomic(const char *) phase;

    int64_t heard_ns, next_beat_ns, looked_ns; /* the thread's */
    eni_link link; /* the thread's, except that `out` may be appended to under the lock */

    pthread_mutex_t lock; /* never held across a wait other than the condition's */
    pthread_cond_t changed;
    bool is_stopping;    /* close() was called */
    bool is_interrupted; /* abort_fd was readable */
    bool has_said_bye, is_bye_answered;
    eni_ask_stage claim;
    bool has_index;
    uint64_t index;
    eni_ask_stage gather;
    char gather_tag[ENI_TAG_MAX];
    eni_blobs blobs;
    size_t nblobs; /* of blobs.count that have come */
    char reason[ENI_REASON_MAX];
    bool has_death;
    eni_death death;
};

/* The thread: argument is the member. */
void *eni_member_run(void *member);

/* Appends a message and wakes the thread. Call with the lock held. */
en_status eni_member_put(eni_member *member, const eni_message *message);

#endif
