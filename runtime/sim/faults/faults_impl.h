/* faults_impl.h - the state of fault injection, which its files share. Each calls only files below it:
 *
 *     fault_test.c   one strategy under faults
 *     faults.c       which faults, when
 *     outage.c       stores and ranks that die and return
 *     envoy.c        messages that get lost, and what a worker's client does about it
 *     faults_impl.c  draws, queue, news
 */
#ifndef FAULTS_FAULTS_IMPL_H
#define FAULTS_FAULTS_IMPL_H

#include "core/rng.h"
#include "runtime/sim/faults/faults.h"
#include "runtime/sim/world.h"

/* One message on its way. It is freed when it has arrived, a call's when the store has let go of its payload.
 */
typedef enum eni_letter_type {
    ENI_LETTER_CALL = 1, /* to a store */
    ENI_LETTER_FINISHED,
    ENI_LETTER_REPLY, /* to a rank */
    ENI_LETTER_REFUSED,
    ENI_LETTER_GOODBYE
} eni_letter_type;

typedef struct eni_letter {
    eni_letter_type type;
    eni_sim *sim;
    int32_t store, rank;
    uint32_t epoch; /* of the store's life, as the sender knows it */
    uint64_t incarnation;
    uint32_t bucket, kind, what;
    int is_replay;
    uint64_t seq, base_version, nsamples, covered; /* CALL */
    uint64_t version, stable;                      /* REPLY */
    en_status status;                              /* REFUSED */
    char text[192];
    uint64_t count; /* of data */
    float data[];
} eni_letter;

/* A call that is not both answered and stable. */
typedef struct eni_retained {
    struct eni_retained *next;
    eni_letter *letter; /* what is sent, again and again */
    uint32_t base_epoch;
    uint64_t micro_batch;
    int is_answered;
    float *in;
    en_req request;
} eni_retained;

/* The client of one incarnation of a rank on one partition. */
typedef struct eni_envoy {
    eni_sim *sim;
    int32_t rank, store;
    uint32_t bucket, epoch, base_epoch;
    uint64_t incarnation, seq, base_version, stable;
    eni_retained *first, *last; /* by seq */
    eni_retained *current;      /* whose answer is awaited; NULL: idle */
    uint64_t attempt;           /* counts sends: an alarm of an earlier one is void */
    int is_dead;
} eni_envoy;

/* What a rank knows of one store: its life, and whether FINISHED was said and answered by GOODBYE. */
typedef struct eni_finished_notice {
    uint32_t epoch;
    int is_due, is_said;
    uint64_t attempt;
} eni_finished_notice;

/* A saved state and what it promises. */
typedef struct eni_snapshot {
    uint8_t *bytes;
    size_t n, room;
    uint64_t *seq;            /* (ranks, buckets) the last calls that it has taken in */
    uint64_t *incarnation;    /* (ranks) whose */
    uint64_t behind, counted; /* the second account of staleness */
} eni_snapshot;

typedef struct eni_fault_store {
    uint32_t epoch;
    int is_down, is_writing;
    uint64_t write; /* counts saves: the end of one that a death cut short is void */
    eni_snapshot pending, safe;
    uint64_t behind, counted; /* staleness of the live store, counted here */
} eni_fault_store;

typedef struct eni_cut {
    int32_t rank, store, ways; /* ways: 1 to the store, 2 to the rank, 3 both */
    int64_t from_ns, to_ns;
} eni_cut;

/* What the leader knows of a rank. */
typedef struct eni_presence_of {
    uint64_t incarnation,
        clock; /* clock: calls on each partition before this incarnation, as others counted them */
    int is_in;
} eni_presence_of;

struct eni_fault_state {
    const eni_fault_plan *plan;
    eni_rng_key key;
    uint64_t draws;
    eni_fault_store *fault;  /* (stores) */
    eni_presence_of *member; /* (ranks) */
    eni_envoy **envoy;       /* (ranks, stores, buckets) */
    eni_finished_notice *finished; /* (ranks, stores) */
    eni_cut *cut;
    eni_fault_stats *figures;
};

/* ---- faults_impl.c */
uint64_t eni_faults_draw(eni_fault_state *state, uint64_t below);
int64_t eni_faults_draw_ns(eni_fault_state *state, int64_t below);
int eni_faults_happens(eni_fault_state *state, double share);
int eni_faults_is_quiet(const eni_sim *sim);
void eni_faults_tell(eni_sim *sim, int type, const eni_envoy *envoy, const eni_retained *retained);
void eni_faults_post(eni_sim *sim, int64_t delay_ns, void (*happen)(void *, void *), void *subject);
/* A MEMBER event into one store. */
en_status eni_faults_member(eni_sim_store *store, int32_t rank, uint64_t incarnation, uint32_t member);

/* ---- outage.c: events for the queue, but for keep */

/* Whose state is being saved, and the how manyth save that is. */
typedef struct eni_saving {
    int32_t store;
    uint64_t write;
} eni_saving;

/* The state of store k of this moment. */
en_status eni_faults_keep(eni_sim *sim, int32_t k, eni_snapshot *kept);
void eni_faults_save(void *sim, void *saving);
void eni_faults_store_dies(void *sim, void *store);
void eni_faults_rank_dies(void *sim, void *rank);

/* ---- envoy.c */
en_status eni_envoy_call(eni_rank *rank, const eni_sim_call *call);
void eni_envoy_finished(eni_rank *rank);
/* An answer of a store goes on its way. */
void eni_envoy_reply(eni_sim_store *store, const eni_store_action *action);
eni_finished_notice *eni_envoy_finished_notice(const eni_sim *sim, int32_t rank, int32_t store);
/* The store of a new epoch is there: everything that it may not have is sent again. */
void eni_envoy_new_epoch(eni_sim *sim, int32_t rank, int32_t store, uint32_t epoch);
/* Its rank died. */
void eni_envoy_die(eni_sim *sim, int32_t rank);
/* 1 if every call of the rank is answered and, once it has finished, every store has heard so. */
int eni_envoy_is_done(const eni_sim *sim, int32_t rank);

#endif
