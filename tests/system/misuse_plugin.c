/* misuse_plugin.c - three strategies that break the contract as their option `deed` says, on rank 1 at step 2
 * in bucket 0, or in psd: a real run must end with a line that names them, without a crash. */
#include <pthread.h>

#include "entrain/strategy.h"

enum { UNKNOWN_REQUEST = 1, EVAL_99, FOREIGN_VECTOR, STOP, GROUP, WORD, NO_BUCKET, NO_KEY, TWICE, FAIL };
enum { UNDECLARED = 14, NO_OPERATION, OWN_THREAD, WAIT_IN_SUBMIT, WHILE_REDUCED, SECOND_STEP, FIFTH_REQUEST };
enum { LAZY = 11, UNWAITED, OTHER_CALL }; /* on all ranks, but the last */
enum {
    PEER = 1,
    ABSORB_TWICE,
    STEP_NOWHERE,
    ANSWER_WORD,
    ANSWER_COPY,
    SAY_STOP,
    WRONG_ANSWER,
    HOLD_ALL,
    UNTOUCHED,
    NOT_FINITE,
    NEVER_STEP
};

static const en_option options[] = {
    {.size = sizeof(en_option), .type = EN_OPT_INT, .key = "deed", .help = "what to do", .max = 100}, {0}};

static int deed_of(en_host *host, const en_bucket *bucket)
{
    return host->world->rank == 1 && bucket->id == 0 && bucket->step == 2 ? (int)host->num(host, "deed") : 0;
}

typedef struct call {
    en_host *host;
    const en_bucket *bucket;
} call;

static void *make_call(void *call_)
{
    const call *c = call_;
    c->host->coll(c->host, EN_ALLREDUCE, EN_WORLD, EN_GRAD, c->bucket, c->bucket->grad);
    return 0;
}

static void call_in_a_thread(en_host *host, const en_bucket *bucket)
{
    call c = {host, bucket};
    pthread_t thread;
    if (pthread_create(&thread, 0, make_call, &c) == 0) pthread_join(thread, 0);
}

static en_status ring_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    const int deed = deed_of(host, bucket), of_all = (int)host->num(host, "deed");
    if (of_all == LAZY) return EN_OK;
    if (deed == OTHER_CALL) {
        req[0] = host->coll(host, EN_BCAST, EN_WORLD, EN_WEIGHTS, bucket, bucket->param);
        return EN_OK;
    }
    req[0] = host->mean_step(host, bucket);
    if (of_all == UNWAITED && bucket->step == 2 && bucket->id == 0)
        req[1] = host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_DELTA, bucket, host->vec(host, "more", bucket));
    switch (deed) {
    case UNKNOWN_REQUEST: host->wait(host, 123456); break;
    case FOREIGN_VECTOR: host->lin(host, bucket->grad, 1, bucket->grad + (90u << 16), 1); break;
    case STOP: return EN_ESTOP;
    case GROUP: host->coll(host, EN_ALLREDUCE, EN_GROUP, EN_GRAD, bucket, bucket->grad); break;
    case WORD: host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, bucket->grad, bucket->param, 77); break;
    case NO_BUCKET: host->step(host, 0); break;
    case NO_KEY: host->num(host, 0); break;
    case UNDECLARED: host->num(host, "period"); break;
    case NO_OPERATION: host->coll(host, 77, EN_WORLD, EN_GRAD, bucket, bucket->grad); break;
    case OWN_THREAD: call_in_a_thread(host, bucket); break;
    case WAIT_IN_SUBMIT: host->wait(host, req[0]); break;
    case WHILE_REDUCED: host->lin(host, host->vec(host, "more", bucket), 1, bucket->grad, 0); break;
    case SECOND_STEP: host->step(host, bucket); break;
    case FIFTH_REQUEST: req[EN_REQS] = req[0]; break;
    case FAIL: return EN_EUNSUPPORTED;
    default: break;
    }
    return EN_OK;
}

static en_status ring_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    en_status st = host->wait(host, req[0]);
    if (deed_of(host, bucket) == TWICE && st == EN_OK) st = host->wait(host, req[0]); /* allowed */
    return st;
}

static en_status ring_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)lo, (void)hi;
    return host->vec(host, "more", bucket) != 0 ? EN_OK : EN_ENOMEM;
}

/* Everybody by himself. */
static en_status alone_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state, (void)req;
    return host->step(host, bucket);
}

static int ring_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)state, (void)bucket, (void)vec_out;
    return (int)host->num(host, "deed") == EVAL_99 ? 99 : EN_EVAL_PARAM;
}

static en_status store_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    return EN_OK;
}

static en_status store_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    const int deed = msg->src == 1 && msg->clock == 2 ? (int)store->num(store, "deed") : 0;
    if ((int)store->num(store, "deed") == NEVER_STEP) return EN_OK;
    switch (deed) {
    case PEER: store->peer(store, part, 1000, 0); break;
    case ABSORB_TWICE: store->absorb(store, part, msg, 1); break;
    case STEP_NOWHERE: store->step(store, 0); break;
    case ANSWER_WORD: store->answer(store, msg, 77); break;
    case ANSWER_COPY: store->answer(store, &(en_msg){.src = 5000}, 0); break;
    case SAY_STOP: return EN_ESTOP;
    case UNTOUCHED: part->w[0] += 1; return EN_OK;
    case NOT_FINITE:
        part->w[0] = 1.0f / 0.0f;
        store->touch(store, part);
        return EN_OK;
    default: break;
    }
    const en_status st = store->absorb(store, part, msg, 1);
    return st == EN_OK ? store->step(store, part) : EN_OK;
}

static int store_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state, (void)part;
    const int deed = msg->clock == 2 ? (int)store->num(store, "deed") : 0;
    return deed == WRONG_ANSWER ? 99 : deed == HOLD_ALL ? EN_HOLD : EN_REPLY_WEIGHTS;
}

static const en_strategy on_store = {.abi = EN_STRATEGY_ABI,
                                     .size = sizeof(en_strategy),
                                     .name = "misuse-store",
                                     .help = "breaks the contract in psd",
                                     .flags = EN_STORE_ON_SERVERS,
                                     .options = options,
                                     .submit = store_submit,
                                     .on_push = store_push,
                                     .on_pull = store_pull};

static const en_strategy per_push = {.abi = EN_STRATEGY_ABI,
                                     .size = sizeof(en_strategy),
                                     .name = "misuse-rounds",
                                     .help = "says that it is synchronous, and steps with each push",
                                     .flags = EN_STORE_ON_SERVERS | EN_SYNCHRONOUS,
                                     .options = options,
                                     .next = &on_store,
                                     .submit = store_submit};

static const en_strategy apart = {.abi = EN_STRATEGY_ABI,
                                  .size = sizeof(en_strategy),
                                  .name = "misuse-apart",
                                  .help = "says that it is synchronous, and never exchanges",
                                  .flags = EN_SYNCHRONOUS,
                                  .options = options,
                                  .next = &per_push,
                                  .submit = alone_submit};

static const en_strategy alone = {.abi = EN_STRATEGY_ABI,
                                  .size = sizeof(en_strategy),
                                  .name = "misuse-replicated",
                                  .help = "says that all ranks have the same weights",
                                  .flags = EN_SYNCHRONOUS | EN_REPLICATED,
                                  .options = options,
                                  .next = &apart,
                                  .submit = alone_submit};

static const en_strategy on_ring = {.abi = EN_STRATEGY_ABI,
                                    .size = sizeof(en_strategy),
                                    .name = "misuse",
                                    .help = "breaks the contract in a worker",
                                    .flags = EN_SYNCHRONOUS,
                                    .options = options,
                                    .next = &alone,
                                    .plan = ring_plan,
                                    .submit = ring_submit,
                                    .finish = ring_finish,
                                    .eval = ring_eval};

EN_EXPORT const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &on_ring : 0;
}
