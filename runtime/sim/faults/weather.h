/* weather.h - the state of a storm, which its files share. Each calls only files below it:
 *
 *     tempest.c  one strategy in one storm
 *     storm.c    a storm's life: which faults, when
 *     outage.c   stores and ranks that die and return
 *     envoy.c    letters that get lost, and what a worker's client does about it
 *     weather.c  draws, agenda, news
 */
#ifndef FAULTS_WEATHER_H
#define FAULTS_WEATHER_H

#include "core/rng.h"
#include "runtime/sim/faults/storm.h"
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

/* The client of one incarnation of a rank on one cell. */
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
typedef struct eni_farewell {
    uint32_t epoch;
    int is_due, is_said;
    uint64_t attempt;
} eni_farewell;

/* A saved state and what it promises. */
typedef struct eni_kept {
    uint8_t *bytes;
    size_t n, room;
    uint64_t *seq;            /* (ranks, buckets) the last calls that it has taken in */
    uint64_t *incarnation;    /* (ranks) whose */
    uint64_t behind, counted; /* the second account of staleness */
} eni_kept;

typedef struct eni_haven {
    uint32_t epoch;
    int is_down, is_writing;
    uint64_t write; /* counts saves: the end of one that a death cut short is void */
    eni_kept pending, safe;
    uint64_t behind, counted; /* staleness of the live store, counted here */
} eni_haven;

typedef struct eni_cut {
    int32_t rank, store, ways; /* ways: 1 to the store, 2 to the rank, 3 both */
    int64_t from_ns, to_ns;
} eni_cut;

/* What the leader knows of a rank. */
typedef struct eni_presence_of {
    uint64_t incarnation,
        clock; /* clock: calls on each cell before this incarnation, as others counted them */
    int is_in;
} eni_presence_of;

struct eni_weather {
    const eni_storm *storm;
    eni_rng_key key;
    uint64_t draws;
    eni_haven *haven;        /* (stores) */
    eni_presence_of *member; /* (ranks) */
    eni_envoy **envoy;       /* (ranks, stores, buckets) */
    eni_farewell *farewell;  /* (ranks, stores) */
    eni_cut *cut;
    eni_storm_figures *figures;
};

/* ---- weather.c */
uint64_t eni_weather_draw(eni_weather *weather, uint64_t below);
int64_t eni_weather_draw_ns(eni_weather *weather, int64_t below);
int eni_weather_happens(eni_weather *weather, double share);
int eni_weather_is_calm(const eni_sim *sim);
void eni_weather_tell(eni_sim *sim, int type, const eni_envoy *envoy, const eni_retained *retained);
void eni_weather_post(eni_sim *sim, int64_t delay_ns, void (*happen)(void *, void *), void *subject);
/* A MEMBER event into one store. */
en_status eni_weather_member(eni_sim_store *store, int32_t rank, uint64_t incarnation, uint32_t member);

/* ---- outage.c: entries for the agenda, but for keep */

/* Whose state is being saved, and the how manyth save that is. */
typedef struct eni_saving {
    int32_t store;
    uint64_t write;
} eni_saving;

/* The state of store k of this moment. */
en_status eni_weather_keep(eni_sim *sim, int32_t k, eni_kept *kept);
void eni_weather_save(void *sim, void *saving);
void eni_weather_store_dies(void *sim, void *store);
void eni_weather_rank_dies(void *sim, void *rank);

/* ---- envoy.c */
en_status eni_envoy_call(eni_rank *rank, const eni_sim_call *call);
void eni_envoy_finished(eni_rank *rank);
/* An answer of a store goes on its way. */
void eni_envoy_reply(eni_sim_store *store, const eni_store_action *action);
eni_farewell *eni_envoy_farewell(const eni_sim *sim, int32_t rank, int32_t store);
/* The store of a new epoch is there: everything that it may not have is sent again. */
void eni_envoy_new_epoch(eni_sim *sim, int32_t rank, int32_t store, uint32_t epoch);
/* Its rank died. */
void eni_envoy_die(eni_sim *sim, int32_t rank);
/* 1 if every call of the rank is answered and, once it has finished, every store has heard so. */
int eni_envoy_is_done(const eni_sim *sim, int32_t rank);

#endif
