/* host_state.h - the state of a host, which its files share. Each calls only files below it:
 *
 *     host.c        open, close, one step: calls the strategy's hooks
 *     host_ops.c    the strategy's calls
 *     host_gpu.c    the same where vectors lie on a GPU
 *     host_state.c  misuse, slots of vectors, rates, operations, waits: shared by all of them
 *
 * Handles. A vector is (slot of the arena, bucket): en_vec = slot << 16 | bucket, plus 1, so that 0 is free.
 * A slot holds one named vector of all buckets; the arena makes it visible to other processes of the host.
 *
 * Requests. An en_req counts up and indexes a ring of operations in progress. Only blocks of the ring in use
 * have memory: a thousand hosts in virtual time are one process. A finished one is forgotten; waiting for it
 * again is fine and returns at once; waiting for one that never existed is misuse. */
#ifndef HOST_HOST_STATE_H
#define HOST_HOST_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/clock.h"
#include "runtime/host/host.h"

enum { ENI_HOST_REQUESTS = 1024, ENI_HOST_BLOCK = 8, ENI_HOST_NAME = 48, ENI_HOST_FENCE = 4 };
#define ENI_HOST_FENCED UINT64_C(0x5ea1ed5ea1ed5ea1)

typedef enum eni_request_kind { REQ_FREE, REQ_COLL, REQ_CALL, REQ_GPU } eni_request_kind;

typedef struct eni_request {
    eni_request_kind kind;
    eni_host *host;
    en_req id;
    const char *what;        /* "all-reduce", "push-pull": for people */
    eni_operation op;        /* what the transport carries; REQ_GPU, SHARED: once is_offered */
    const en_bucket *bucket; /* REQ_CALL: whose call; REQ_COLL with then_step, REQ_GPU: what to step */
    en_req after;            /* an unsent REQ_CALL: the collective on its vector */
    bool is_offered;         /* REQ_GPU, SHARED: the others know that the gradient is there */
    bool is_complete;        /* the transport's wait has returned */
    bool then_step;          /* mean_step: the optimizer follows the all-reduce */
    bool is_mean;            /* REQ_COLL: leaves a mean of gradients in grad */
    bool is_fused;           /* mean_step in one pass with it, at these rates */
    bool is_push;            /* REQ_CALL that carries a vector */
    bool is_grad;            /* and that is the gradient: it stands for the samples behind it */
    bool is_unsent;          /* and is not sent yet (host_ops.c) */
    en_status failed;        /* why it could not start, or its wait's status; EN_OK: no failure so far */
    eni_hyper hyper;
    int64_t stepping_ns, stepped_ns; /* is_fused: its first piece began, its last one ended; 0: none */
} eni_request;

/* The running hook of the strategy. */
typedef struct eni_host_hook {
    eni_hook_site place;          /* .hook NULL: none */
    en_status verdict;            /* logged already: EN_EBUG after misuse, EN_EINVAL; else EN_OK */
    bool has_refused;             /* the strategy has logged an error in it */
    _Atomic(pthread_t) thread;    /* of this hook, or of the last one */
    atomic_bool is_called_beside; /* another thread has called the host */
} eni_host_hook;

/* The arena's slots by name. */
typedef struct eni_host_slot_names {
    uint32_t n;
    char names[ENI_ARENA_NSLOTS][ENI_HOST_NAME];
    uint32_t optimizer; /* first of the optimizer's state */
    int noptimizer;
} eni_host_slot_names;

typedef struct eni_host_requests {
    eni_request *block[ENI_HOST_REQUESTS / ENI_HOST_BLOCK]; /* made when first used */
    uint32_t n;                                             /* in progress */
    en_req base;                                            /* at the ring's first position */
    en_req next, first;                                     /* the step's first one */
} eni_host_requests;

/* Calls that are not sent yet: req[begin % ..] up to end. */
typedef struct eni_host_unsent {
    en_req *req; /* (ENI_HOST_REQUESTS), made when first used */
    uint64_t begin, end;
} eni_host_unsent;

/* The step in progress. */
typedef struct eni_host_step {
    uint64_t step;
    float lr;           /* of an optimizer step in it */
    uint32_t nfinished; /* buckets of it */
    uint64_t npushes;   /* answered in it: counters.staleness is their mean */
    bool has_samples;   /* the next two are set */
    uint64_t local_samples, world_samples;
    uint64_t micros[EN_GPU_SOURCES]; /* samples of its micro-batches, 0 behind them */
    bool has_micros;
    int64_t left_ns, busy_ns; /* when its first exchange left (0: not yet), and busy() then */
} eni_host_step;

/* The state of a bucket. */
typedef struct eni_host_bucket {
    uint64_t steps_taken;  /* optimizer steps */
    uint64_t steps_begun;  /* and those with fixed rates that were not waited for yet */
    bool is_called;        /* a store has been sent it, or asked for it */
    bool is_empty;         /* grad is known to have no sample behind it: a step changes nothing */
    bool is_stepping;      /* on a GPU: step was called, but nothing is ordered behind it yet */
    uint64_t grad_samples; /* behind grad: this rank's own, or after a reduction its group's */
    /* samples since the bucket's last push: this rank's, or its host's if it pushes for it */
    uint64_t uncovered;
    en_req calling;         /* its last call */
    const char *stepped_by; /* "step", "mean_step": in this step; NULL: neither so far */
    en_req
        reqs[EN_REQS +
             ENI_HOST_FENCE]; /* the strategy's; behind them ENI_HOST_FENCED, for a plugin that miscounts */
} eni_host_bucket;

/* Whether the strategy trains at all; not where vectors lie on a GPU. */
typedef struct eni_host_progress {
    uint64_t steps;
    bool has_start;         /* first_crc is known */
    bool has_gradient;      /* one that was not 0 was submitted, at a rate above 0 */
    bool has_answer;        /* first_version is known */
    uint32_t first_crc;     /* of the weights before the first step */
    uint64_t first_version; /* of bucket 0, in the first answer of a store */
} eni_host_progress;

typedef struct eni_host_measured {
    bool is_done; /* costs are valid, or status has why not */
    en_status status;
    eni_costs costs;
} eni_host_measured;

struct eni_host {
    en_host table; /* first: en_host * and eni_host * are the same address */
    eni_host_config config;
    eni_transport transport;
    en_bucket *buckets; /* (n) */
    eni_host_hook hook;
    void *state; /* of the strategy */
    eni_host_slot_names slots;
    bool is_planning;
    bool steps_slices;   /* mean_step steps this rank's slice alone, for all ranks: see host_ops.c */
    bool has_own_params; /* then the slice is copied to the others */
    bool writes_param;   /* eni_host_writes_param */
    eni_host_requests requests;
    eni_host_unsent unsent;
    eni_host_step now;
    eni_host_bucket *of; /* (n) */
    uint64_t rand_calls;
    eni_host_measured measured;
    en_req next_offer; /* SHARED: requests before it are offered, or not REQ_GPU */
    eni_host_progress progress;
    eni_host_counters counters;
};

static inline int64_t eni_host_now(const eni_host *host)
{
    return host->transport.now_ns == NULL ? eni_now_ns() : host->transport.now_ns(host->transport.user);
}

/* The compute thread's time spent on exchanges so far: that time cannot have hidden them. */
static inline int64_t eni_host_busy(const eni_host *host)
{
    return host->counters.send_ns + host->counters.wait_ns + host->counters.update_ns;
}

/* Notes that an exchange is on its way; for a step's first one also when. */
static inline void eni_host_has_left(eni_host *host, int64_t now_ns)
{
    if (host->now.left_ns != 0) return;
    host->now.left_ns = now_ns;
    host->now.busy_ns = eni_host_busy(host);
}

static inline void eni_host_trace_update(eni_host *host, uint32_t bucket, int64_t begin_ns, int64_t end_ns)
{
    eni_trace_span(host->config.trace, ENI_TRACE_COMPUTE, "update", begin_ns, end_ns, (int64_t)host->now.step,
                   (int)bucket, 0);
}

/* Notes that this rank has stepped weights of a bucket since begin_ns. */
static inline void eni_host_updated(eni_host *host, uint32_t bucket, int64_t begin_ns)
{
    const int64_t end_ns = eni_host_now(host);
    host->counters.update_ns += end_ns - begin_ns;
    eni_host_trace_update(host, bucket, begin_ns, end_ns);
}

/* Whether the slot has optimizer state. */
static inline bool eni_host_is_optimizer_slot(const eni_host *host, uint32_t slot)
{
    return slot - host->slots.optimizer < (uint32_t)host->slots.noptimizer; /* wraps below the first */
}

static inline en_vec eni_vec_of(uint32_t slot, uint32_t bucket)
{
    return (slot << 16 | bucket) + 1;
}

static inline uint32_t eni_vec_slot(en_vec v)
{
    return (v - 1) >> 16;
}

static inline uint32_t eni_vec_bucket(en_vec v)
{
    return (v - 1) & 0xffff;
}

static inline bool eni_vec_is_valid(const eni_host *host, en_vec v)
{
    return v != 0 && eni_vec_bucket(v) < host->config.buckets->n && eni_vec_slot(v) < host->slots.n;
}

/* ---- host_state.c ---- */

/* CRC of this rank's weights in the arena. note_start records it once, for the initial weights. */
uint32_t eni_host_param_crc(const eni_host *host);
/* This rank's weights from element `at` on. */
float *eni_host_weights(const eni_host *host, uint64_t at, bool writes);
void eni_host_note_start(eni_host *host);

/* The host's position, for people: "submit of bad (rank 1, step 3, bucket 2)". */
void eni_host_site(const eni_host *host, char *text, size_t bytes);

/* Around calls that may wait for others: the hook is not charged with the time, nor with events in it. */
static inline void eni_host_leave_hook(const eni_host *host)
{
    eni_hook_leave(host->config.hooks);
}

static inline void eni_host_return_to_hook(const eni_host *host)
{
    if (host->hook.place.hook != NULL) eni_hook_enter(host->config.hooks, &host->hook.place);
}

/* Logs a misuse by the running hook, after its site ("submit of bad (rank 1, step 3, bucket 2) .."), and
 * makes the hook fail. */
void eni_host_misuse(eni_host *host, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Whether this is the thread of the hooks. Else it is misuse of `operation`, logged once; the running hook,
 * or the next one, fails with it. */
bool eni_host_is_on_thread(eni_host *host, const char *operation);

/* Whether `bucket` is one of the host's own, on the thread of the hooks; else misuse of `operation`. */
bool eni_host_knows(eni_host *host, const char *operation, const en_bucket *bucket);

/* Whether an operation for `group` that carries `what` and `word` is possible; else the hook fails with
 * EN_EINVAL, in one logged sentence. */
bool eni_host_serves(eni_host *host, const char *operation, int group, int what, uint64_t word);

/* The arena slot of a name; false: it is new. find allocates one for it; false: no room. */
bool eni_host_has_slot(const eni_host *host, const char *name, uint32_t *slot_out);
bool eni_host_find_slot(eni_host *host, const char *name, uint32_t *slot_out);

/* A collective on the vector of a bucket, in place. */
eni_coll_op eni_host_bucket_op(const eni_host *host, int op, int what, const en_bucket *bucket, en_vec v);

/* The rates of this rank's next step on a bucket; those of a step that begins now; the record of a step. */
eni_hyper eni_host_rates(const eni_host *host, uint32_t bucket);
eni_hyper eni_host_begin_step(eni_host *host, uint32_t bucket);
void eni_host_stepped(eni_host *host, uint32_t bucket, const eni_hyper *hyper);

/* The operations of a transport (host.h): the table's in virtual time, else of the groups of ranks and the
 * store client. */
en_status eni_operation_start(eni_host *host, eni_operation *op);
bool eni_operation_test(eni_host *host, const eni_operation *op);

/* Ends the operation of a request, once. */
en_status eni_host_complete(eni_host *host, eni_request *r);

/* The same in a wait of the strategy. Others are shown the wait; it is traced as `work` of the exchange from
 * begin_ns on, less the blocked time and the steps since update_ns was updated_ns. */
en_status eni_host_await(eni_host *host, eni_request *r, const char *work, int64_t begin_ns,
                         int64_t updated_ns);

/* The request in progress of that number; NULL: it has been waited for. */
eni_request *eni_host_request(eni_host *host, en_req id);

/* ---- host_gpu.c ----
 *
 * check: whether strategy and world allow it. The others only with config.gpu. begin: the step's rates.
 * mean_step, wait: of a request; step: of a world of one, ordered by settle. */
en_status eni_host_gpu_check(const eni_host *host);
en_status eni_host_gpu_begin(eni_host *host, uint64_t nsamples);
void eni_host_gpu_mean_step(eni_host *host, eni_request *r);
en_status eni_host_gpu_wait(eni_host *host, eni_request *r);
en_status eni_host_gpu_step(eni_host *host, const en_bucket *bucket);
en_status eni_host_gpu_settle(eni_host *host, uint32_t bucket);
void eni_host_gpu_offer(eni_host *host);

/* ---- host_ops.c ---- */

/* en_host.wait. */
en_status eni_host_wait(eni_host *host, en_req req);

/* Sends the calls that wait for a collective: all of them, or those that need no waiting. */
void eni_host_send_unsent(eni_host *host, bool may_block);

/* All operations; .world is the host's own to fill in. */
extern const en_host eni_host_operations;

#endif
