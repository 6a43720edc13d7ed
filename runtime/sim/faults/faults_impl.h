/* faults_impl.h - the state of fault injection, which its files share. Each calls only files below it:
 *
 *     fault_test.c   one strategy under faults
 *     faults.c       which faults, when
 *     outage.c       stores and ranks that die and return
 *     messages.c     messages that get lost and are sent again; draws, members */
#ifndef FAULTS_FAULTS_IMPL_H
#define FAULTS_FAULTS_IMPL_H

#include "core/rng.h"
#include "runtime/sim/faults/faults.h"
#include "runtime/sim/world.h"

/* A saved state and its promises. */
typedef struct eni_snapshot {
    uint8_t *bytes;
    size_t n, room;
    uint64_t *seq;            /* (ranks, buckets) the last calls that it has taken in */
    uint64_t *incarnation;    /* (ranks) of those calls */
    uint8_t *has_finished;    /* (ranks) */
    uint64_t behind, counted; /* the second account of staleness */
} eni_snapshot;

typedef struct eni_fault_store {
    bool is_writing;
    uint64_t write; /* counts saves: the end of one interrupted by a death is void */
    eni_snapshot pending, safe;
    uint64_t behind, counted; /* staleness of the live store, counted here */
} eni_fault_store;

typedef struct eni_cut {
    int32_t rank, store, ways; /* ways: 1 to the store, 2 to the rank, 3 both */
    int64_t from_ns, to_ns;
} eni_cut;

/* The leader's record of a rank. */
typedef struct eni_presence_of {
    uint64_t incarnation;
    uint64_t clock; /* calls on each partition before this incarnation, as the others counted them */
    bool is_in;
} eni_presence_of;

struct eni_fault_state {
    const eni_fault_plan *plan;
    eni_rng_key key;
    uint64_t draws;
    eni_fault_store *fault;  /* (stores) */
    eni_presence_of *member; /* (ranks) */
    uint64_t *attempt; /* (ranks, stores, buckets + 1) counts sends: an alarm of an earlier one is void */
    eni_cut *cut;
    eni_fault_stats *figures;
};

/* ---- messages.c: draws, events, members */
uint64_t eni_faults_draw(eni_fault_state *state, uint64_t below);
int64_t eni_faults_draw_ns(eni_fault_state *state, int64_t below);
void eni_faults_post(eni_sim *sim, int64_t delay_ns, void (*happen)(void *, void *), void *subject);
/* A MEMBER event into one store. */
en_status eni_faults_member(eni_sim_store *store, int32_t rank, uint64_t incarnation, uint32_t member);

/* ---- outage.c: events for the queue, except keep */

/* A save in progress: the store's number, and the save's. */
typedef struct eni_fault_saving {
    int32_t store;
    uint64_t write;
} eni_fault_saving;

/* Copies the present state of store k. */
en_status eni_faults_keep(eni_sim *sim, int32_t k, eni_snapshot *kept);
void eni_faults_save(void *sim, void *saving);
void eni_faults_store_dies(void *sim, void *store);
void eni_faults_rank_dies(void *sim, void *rank);

/* ---- messages.c: three of eni_sim_faults */
void eni_faults_send(eni_sim *sim, const eni_header *header, const float *data);
en_status eni_faults_at_store(eni_sim_store *store, eni_sim_message *message);
void eni_faults_watch(eni_sim_rank *rank, const eni_client_event *event, const eni_client_action *action);

/* The store of a new epoch is there: resends everything that it may not have. */
void eni_faults_new_epoch(eni_sim *sim, int32_t rank, int32_t store, uint32_t epoch);
/* Ends a rank's client, and reports the answered calls that may be lost with it. */
void eni_faults_client_dies(eni_sim_rank *rank);
/* Whether every call of a rank that has finished is answered, and every store knows that it has. */
bool eni_faults_is_done(const eni_sim_rank *rank);

#endif
