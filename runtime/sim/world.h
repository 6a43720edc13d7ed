/* world.h - the state of one run of the virtual host, shared by the files of this folder.
 *
 *     sim.c          set-up, the loop, the result
 *     sim_rank.c     a rank's steps, on its fiber, and the transport of its host (runtime/host)
 *     collectives.c  collectives among ranks          delivery.c   calls to stores and their answers
 *     gradients.c    computed on several threads
 *     shards.c       the stores themselves            virtual_time, fiber: their parts
 *     replay.c       a recorded order of calls       world.c      a run and its ranks, for all of them
 *
 * Fault injection is in faults/, which calls these files and is called through eni_sim_faults. */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "runtime/client/client_step.h"
#include "runtime/host/host.h"
#include "runtime/sim/fiber.h"
#include "runtime/sim/sim.h"
#include "runtime/sim/virtual_time.h"
#include "runtime/store/store.h"

typedef struct eni_sim eni_sim;
typedef struct eni_sim_rank eni_sim_rank;
typedef struct eni_sim_message eni_sim_message;

/* An operation in progress. A ticket names a slot of its rank and the generation of that slot: once it is
 * done and reported, the slot serves another. */
typedef struct eni_sim_pending {
    uint32_t generation;
    uint32_t parts;    /* still to come; 0: done */
    bool is_reported;  /* and waited for */
    en_status status;  /* the first that is not EN_OK */
    uint64_t samples;  /* eni_operation */
    const char *doing; /* for the report of who is stuck */
    uint32_t bucket;
    int32_t dest; /* a rank that it needs, EN_SERVERS, or another negative number: nobody in particular */
} eni_sim_pending;

/* A rank's call on a bucket: it has one at a time (runtime/host). */
typedef struct eni_sim_call {
    int in;               /* slot of the arena for the answer, or ENI_SLOT_NONE */
    bool keeps_out;       /* its message may point to the rank's vector (eni_operation) */
    uint64_t request;     /* ticket */
    uint64_t micro_batch; /* of the step that made it */
} eni_sim_call;

/* A gradient in the queue of gradients.c. */
enum { ENI_JOB_NONE, ENI_JOB_QUEUED, ENI_JOB_RUNNING, ENI_JOB_DONE };
typedef struct eni_sim_job {
    eni_sim_rank *previous, *next;
    int state;
    en_status status;
    bool is_computing; /* it has begun, and was not awaited yet */
} eni_sim_job;

/* Why a fiber leaves, besides to wait: the scheduler's stack is large enough to compute on. */
enum { ENI_ASKS_NOTHING, ENI_ASKS_GRADIENT, ENI_ASKS_RESULT, ENI_ASKS_RECORD };

struct eni_sim_rank {
    eni_sim *sim;
    en_world world;
    eni_fiber *fiber;
    eni_arena *arena; /* all vectors of this rank */
    /* (count) its weights: in the arena; until it writes some, the initial ones, or an answer's */
    const float *param;
    eni_sim_message *answer; /* whose they are; else NULL */
    float *grad;             /* (count) in the arena */
    eni_host *host;          /* opened on the fiber */
    en_status status;        /* what its body returned */
    bool is_running;
    bool is_dead; /* by a fault: the fiber is not to be resumed */

    uint64_t step;
    uint64_t first_batch, nbatches; /* micro-batches of this step; 0: nothing is left for this rank */
    int asks;                       /* ENI_ASKS_* */
    eni_sim_job job;
    eni_sim_step done; /* ENI_ASKS_RECORD */
    uint64_t nsamples; /* of the gradient */
    uint64_t waiting;  /* for this ticket; 0: not waiting */

    eni_sim_pending *pending;
    uint32_t npending;
    uint64_t coll_calls[EN_LEADERS + 1]; /* per group: the next collective's number */
    eni_client_state client;             /* of all stores; zeroed if the rank is dead */
    eni_sim_call *calls;                 /* (nbuckets) */
    eni_sim_rank_result *result;
};

/* A store's place in its recorded order. */
typedef struct eni_sim_replay {
    uint64_t next;            /* of its arrivals */
    int64_t now_ns;           /* on the clock of the recorded run */
    eni_sim_message *waiting; /* came before its turn */
} eni_sim_replay;

/* A store and where it runs: shards first, or one per rank. */
typedef struct eni_sim_store {
    eni_sim *sim;
    eni_store *core;
    uint32_t epoch;   /* how often it came back; with core NULL it is down */
    int32_t node;     /* of the network */
    int32_t peer;     /* in the event log */
    int64_t timer_ns; /* due; INT64_MAX: none */
    int64_t free_ns;  /* when it has handled all messages so far */
    uint64_t nserved; /* messages */
    eni_sim_replay replay;
} eni_sim_store;

typedef struct eni_collective eni_collective;
typedef struct eni_sendrecv eni_sendrecv;
typedef struct eni_sim_block eni_sim_block;
typedef struct eni_sim_pool eni_sim_pool;
typedef struct eni_sim_faults eni_sim_faults;
typedef struct eni_fault_state eni_fault_state; /* faults/faults_impl.h */

typedef struct eni_sim_stores {
    int32_t n, nshards;
    eni_sim_store *all; /* (n) */
    eni_store_actions actions;
} eni_sim_stores;

/* The exchanges of one group: the world, a group with its first rank + 1, or the leaders. */
typedef struct eni_sim_meeting {
    eni_collective *collectives; /* that are not complete yet */
    int64_t free_ns;             /* when its links are idle again */
} eni_sim_meeting;

typedef struct eni_sim_exchanges {
    eni_sim_meeting *groups;  /* (2 + nranks) */
    eni_sendrecv **sendrecvs; /* (nranks) halves without their other half, by receiver */
} eni_sim_exchanges;

/* Memory of all ranks, in one mapping each, and of messages. */
typedef struct eni_sim_memory {
    eni_stacks *stacks;
    eni_arena *arenas;     /* (nranks) */
    eni_sim_block *blocks; /* of eni_sim_alloc */
} eni_sim_memory;

/* The arguments of a mean over all ranks, or of the stores of all ranks. */
typedef struct eni_sim_means {
    const float **from; /* (nranks) */
    uint64_t *weight;   /* (nranks) */
    float *scratch;     /* (count) a mean, or a micro-gradient */
} eni_sim_means;

/* The parts of gradients. */
typedef struct eni_sim_gradients {
    uint64_t *samples_before; /* (n) of each micro-batch: in those before it; grown on demand */
    uint64_t n;
    uint64_t samples;     /* computed by all ranks */
    eni_sim_pool *pool;   /* NULL: one thread computes */
    float **micro;        /* (accumulate) micro-gradients of a rank alone in the world, else NULL */
    uint64_t *slow_until; /* (nranks, nslow) run/slowdown.h */
} eni_sim_gradients;

struct eni_sim {
    const eni_sim_config *config;
    eni_sim_result *result;
    const eni_options *options;
    eni_options *own_options; /* when the configuration has none */
    eni_buckets *buckets;
    eni_event_queue queue;
    eni_network network;
    /* Digest of its events: two runs with one digest did the same at the same times in the same order. */
    eni_digest log;
    en_status status; /* the first failure: ends the run */

    int32_t nranks, nrunning;
    int32_t *hosts;        /* (nranks) run/rank_groups.h */
    const int32_t *groups; /* the same if groups are hosts */
    eni_sim_rank *ranks;
    eni_sim_stores stores;
    eni_sim_exchanges exchanges;
    eni_sim_gradients gradients;
    eni_sim_means means;
    eni_client_actions client_actions;
    eni_sim_memory memory;
    uint64_t refusals;            /* answers of stores that refused: the first is logged as a warning */
    uint64_t in_flight;           /* messages: the run ends when the last has arrived */
    eni_fault_state *fault_state; /* of config->faults */

    bool claims;
    uint64_t next_batch; /* CLAIM: the next of the global order */
};

/* One message on its way, with the header of the wire. It has a copy of its vector, but for two: a push may point at its rank's
 * gradient, and an answer at a version of the store's (eni_sim_held). */
struct eni_sim_message {
    eni_sim *sim;
    eni_sim_message *next; /* eni_sim_replay */
    int32_t from, to;      /* nodes of the network */
    eni_header header;
    float *data; /* (header.bytes / 4) */
    _Alignas(ENI_LINE) float copy
        []; /* and room for a canary; may become a rank's weights, which a device wants aligned */
};

static inline bool eni_sim_comes_later(const eni_sim *sim, int32_t rank)
{
    return sim->config->join_ns != NULL && sim->config->join_ns[rank] > 0;
}

static inline bool eni_sim_is_to_store(const eni_header *header)
{
    return header->type == ENI_MSG_CALL || header->type == ENI_MSG_FINISHED;
}

/* Faults of a run: of messages, links, stores, ranks (runtime/sim/faults). */
struct eni_sim_faults {
    en_status (*open)(eni_sim *sim);     /* when the stores are open */
    void (*close)(eni_sim *sim);         /* also after an open that failed */
    bool (*is_over)(const eni_sim *sim); /* once every rank has finished and every store knows it */
    en_status (*check)(eni_sim *sim);    /* after the end: EN_EBUG, logged, for counts that do not agree */
    /* A message leaves: sends each copy of it that does by eni_delivery_carry. */
    void (*send)(eni_sim *sim, const eni_header *header, const float *data);
    /* A message has arrived at a store: takes it by eni_delivery_take, or frees it. */
    en_status (*at_store)(eni_sim_store *store, eni_sim_message *message);
    /* An event goes into a rank's client (action NULL), or an action of the client has been carried out. */
    void (*watch)(eni_sim_rank *rank, const eni_client_event *event, const eni_client_action *action);
};

/* Ends the run with this status, unless it is EN_OK or the run has failed already. */
static inline void eni_sim_fail(eni_sim *sim, en_status status)
{
    if (sim->status == EN_OK) sim->status = status;
}

/* ---- world.c ---- */

/* Zeroed memory of this run, freed with it: also of messages on their way when it fails. */
void *eni_sim_alloc(eni_sim *sim, size_t bytes);
void eni_sim_free(eni_sim *sim, void *memory);
void eni_sim_free_all(eni_sim *sim);
/* The version buffer that this memory holds: freeing it releases the buffer. NULL: none. */
eni_version_buffer **eni_sim_held(void *memory);

/* Logs an event at the present time: at_ns is filled in. */
void eni_sim_log(eni_sim *sim, eni_sim_event event);

/* happen(sim, subject) at at_ns; out of memory fails the run. */
void eni_sim_post(eni_sim *sim, int64_t at_ns, void (*happen)(void *sim, void *subject), void *subject);

/* An event of the queue: the rank goes on, and its gradient, if it asks for it, is computed here. */
void eni_sim_rank_resume(void *sim, void *rank);

/* Samples in all micro-batches before this one, as in data/plan.h: the learning rate's argument. */
uint64_t eni_sim_samples_before(eni_sim *sim, uint64_t micro_batch);

/* The first element of a bucket in a slot of the rank's arena. */
float *eni_sim_rank_at(eni_sim_rank *rank, uint32_t slot, uint32_t bucket);

/* The rank's weights become these, which are of `answer` (freed after them), if not NULL. */
void eni_sim_rank_share(eni_sim_rank *rank, const float *param, eni_sim_message *answer);
/* Before the rank writes its weights: they become its own, in the arena. */
float *eni_sim_rank_own(eni_sim_rank *rank);

/* A new ticket of `parts` parts; 0 when out of memory (the run then fails). */
uint64_t eni_sim_rank_begin(eni_sim_rank *rank, uint32_t parts, const char *doing, uint32_t bucket,
                            int32_t dest);

/* One part of it is done; wakes the rank when it waits for the last. */
void eni_sim_rank_part_done(eni_sim_rank *rank, uint64_t ticket, en_status status);

/* The ticket's operation, while it is in progress; else NULL. */
eni_sim_pending *eni_sim_rank_pending(eni_sim_rank *rank, uint64_t ticket);

/* The same, in progress, or done and not reported yet; NULL: neither. */
eni_sim_pending *eni_sim_rank_slot_of(eni_sim_rank *rank, uint64_t ticket);

/* ---- gradients.c ---- */

en_status eni_gradients_open(eni_sim *sim);
void eni_gradients_close(eni_sim *sim);

/* The rank's gradient is computed, now or by the time of await, which ends the run if that failed. */
en_status eni_gradients_begin(eni_sim_rank *rank);

/* Before anything reads or writes the rank's gradient, or writes its weights; also without a begin. */
void eni_gradients_await(eni_sim_rank *rank);
void eni_gradients_await_all(eni_sim *sim);
/* ---- replay.c ---- */

/* Whether the order is of such a run. EN_EINVAL, logged. */
en_status eni_replay_check(const eni_sim *sim);

/* A message has arrived. The next event, if its turn has come: a message, or NULL: the timer. */
void eni_replay_wait(eni_sim_store *store, eni_sim_message *message);
bool eni_replay_next(eni_sim_store *store, eni_sim_message **message_out);

/* Whether all of the order was played, if there is one; else EN_EMISMATCH, logged. */
en_status eni_replay_end(const eni_sim *sim);

/* ---- sim.c ---- */

/* A rank that died begins anew, as another incarnation. */
en_status eni_sim_restart_rank(eni_sim *sim, int32_t rank, uint64_t incarnation);

/* ---- sim_rank.c ---- */

/* The body of the fiber: open, plan, then steps until the budget is used up. */
void eni_sim_rank_body(void *rank);

/* ---- collectives.c ---- */

/* This rank's part in a collective of a group, or its sendrecv. EN_EINVAL, EN_EMISMATCH (logged), EN_ENOMEM. */
en_status eni_exchange_start(eni_sim_rank *rank, int group, const eni_coll_op *op, uint64_t *ticket_out);

/* The ns of a collective on `bytes`: those of a ring, each of whose hops takes as long as between the two neighbours that are
 * farthest apart. NULL: of all ranks. */
double eni_exchange_ns(const eni_sim *sim, int op, double bytes, const eni_collective *collective);

/* ---- delivery.c ---- */

enum { ENI_SIM_INCARNATION = 1 }; /* without restarts */

/* Opens the client of a rank's incarnation, and closes it: answers to it are then dropped. */
en_status eni_delivery_open_client(eni_sim_rank *rank, uint64_t incarnation);
void eni_delivery_close_client(eni_sim_rank *rank);

/* Makes a call (eni_operation) on its stores. */
en_status eni_delivery_call(eni_sim_rank *rank, const eni_operation *operation, uint64_t *ticket_out);

/* Announces to every store that the rank makes no more calls. */
void eni_delivery_finished(eni_sim_rank *rank);

/* Any other event for the client: OVERDUE, RETURNED. */
void eni_delivery_event(eni_sim_rank *rank, const eni_client_event *event);

/* One event into a store's core, its actions out: answers on their way, timers set. Stamps the time. */
en_status eni_delivery_handle(eni_sim_store *store, const eni_store_event *event);

/* A TIMER event is due at when_ns; INT64_MAX: none. */
void eni_delivery_set_timer(eni_sim_store *store, int64_t when_ns);

/* Whether this rank is a client of the stores. */
bool eni_delivery_is_client(const eni_sim_rank *rank);

/* For faults. carry: this message leaves, and takes late_ns longer than the network; it `copies` the data, or points at them, and
 * `held` holds them, if not NULL. take: passes a message to its store, which owns it from here on. */
void eni_delivery_carry(eni_sim *sim, const eni_header *header, const float *data, int64_t late_ns,
                        bool copies, eni_version_buffer *held);
en_status eni_delivery_take(eni_sim_store *store, eni_sim_message *message);

/* ---- shards.c ---- */

/* Makes the stores, gives them the initial weights and their clients. */
en_status eni_shards_open(eni_sim *sim);
void eni_shards_close(eni_sim *sim);

/* Replaces the core of a store that died by an empty one. */
en_status eni_shards_renew(eni_sim *sim, int32_t store);

/* A rank that joins late gets the shards' present weights, and they count it from now on; its clock is chosen
 * as by a client on sockets (client.h). */
en_status eni_shards_join(eni_sim_rank *rank);

/* Copies the weights of the shards, or the mean of the stores on ranks, into flat (count). */
void eni_shards_collect(const eni_sim *sim, float *flat_out);

#endif
