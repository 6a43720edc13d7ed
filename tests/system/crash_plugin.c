/* crash_plugin.c - two strategies with a function that ends the process or never returns: `hook` names it,
 * `deed` says how. It does so on rank 1, in step 2 and bucket 0 where it has them; theory is called on rank 0
 * alone. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "entrain/graph.h"
#include "entrain/strategy.h"

static const en_option options[] = {
    {.size = sizeof(en_option), .type = EN_OPT_TEXT, .key = "hook", .help = "which function", .text = "none"},
    {.size = sizeof(en_option), .type = EN_OPT_TEXT, .key = "deed", .help = "what it does", .text = "exit"},
    {.size = sizeof(en_option), .type = EN_OPT_BOOL, .key = "everybody", .help = "on all ranks", .max = 1},
    {0}};

static int overflow(int depth)
{
    volatile char frame[4096];
    frame[depth % 4096] = (char)depth;
    return depth < 1 << 30 ? overflow(depth + 1) + frame[depth % 4096] : 0;
}

__attribute__((no_sanitize("address", "undefined"))) static void act(const char *deed)
{
    int *volatile nowhere = (int *)8;
    volatile int zero = 0;
    if (strcmp(deed, "segv") == 0) *nowhere = 1;
    if (strcmp(deed, "abort") == 0) abort();
    if (strcmp(deed, "exit") == 0) exit(0);
    if (strcmp(deed, "exit2") == 0) exit(2);
    if (strcmp(deed, "quick") == 0) quick_exit(0);
    if (strcmp(deed, "leave") == 0) _exit(0);
    if (strcmp(deed, "overflow") == 0) overflow(0);
    while (strcmp(deed, "loop") == 0)
        zero = 0;
#if defined(__x86_64__)
    if (strcmp(deed, "fpe") == 0) zero = 100 / zero;
#else
    (void)zero;
    if (strcmp(deed, "fpe") == 0) raise(SIGFPE); /* a division by zero does not trap there */
#endif
}

/* ---- the worker half ---- */

static int is_due(en_host *host, const char *hook)
{
    const int is_chosen = host->world->rank == 1 || host->num(host, "everybody") != 0;
    return is_chosen && strcmp(host->text(host, "hook"), hook) == 0;
}

static void maybe(en_host *host, const char *hook, uint64_t step)
{
    if (step == 2 && is_due(host, hook)) act(host->text(host, "deed"));
}

static en_status crash_open(en_host *host, void *state)
{
    (void)state;
    maybe(host, "open", 2);
    return EN_OK;
}

static en_status crash_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)bucket, (void)lo, (void)hi;
    maybe(host, "plan", 2);
    return EN_OK;
}

static en_status crash_before(en_host *host, void *state, uint64_t step)
{
    (void)state;
    maybe(host, "before_step", step);
    return EN_OK;
}

static en_status ring_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->mean_step(host, bucket);
    maybe(host, "submit", bucket->step);
    return EN_OK;
}

static en_status store_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    return EN_OK;
}

static en_status crash_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state;
    const en_status st = host->wait(host, req[0]);
    maybe(host, "finish", bucket->step);
    return st;
}

static en_status crash_after(en_host *host, void *state, uint64_t step)
{
    (void)state;
    maybe(host, "after_step", step);
    return EN_OK;
}

static int ring_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)state, (void)bucket, (void)vec_out;
    maybe(host, "eval", 2);
    return EN_EVAL_PARAM;
}

static void crash_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state, (void)theory_out;
    if (host->world->rank == 0 && strcmp(host->text(host, "hook"), "theory") == 0)
        act(host->text(host, "deed"));
}

/* ---- the store half ---- */

static void maybe_in_store(en_store *store, const char *hook)
{
    if (strcmp(store->text(store, "hook"), hook) == 0) act(store->text(store, "deed"));
}

static en_status crash_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    if (msg->clock == 2) maybe_in_store(store, "on_push");
    store->timer(store, part, 0);
    const en_status st = store->absorb(store, part, msg, 1);
    return st == EN_OK ? store->step(store, part) : st;
}

static int crash_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state, (void)part;
    if (msg->clock == 2) maybe_in_store(store, "on_pull");
    return EN_REPLY_WEIGHTS;
}

static void crash_timer(en_store *store, void *state, const en_partition *part)
{
    (void)state, (void)part;
    maybe_in_store(store, "on_timer");
}

static void crash_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    (void)state, (void)part, (void)event;
    if (who == 1) maybe_in_store(store, "on_member");
}

static const en_strategy on_store = {.abi = EN_STRATEGY_ABI,
                                     .size = sizeof(en_strategy),
                                     .name = "crash-store",
                                     .help = "ends psd",
                                     .flags = EN_STORE_ON_SERVERS,
                                     .options = options,
                                     .submit = store_submit,
                                     .finish = crash_finish,
                                     .on_push = crash_push,
                                     .on_pull = crash_pull,
                                     .on_timer = crash_timer,
                                     .on_member = crash_member};

static const en_strategy on_ring = {.abi = EN_STRATEGY_ABI,
                                    .size = sizeof(en_strategy),
                                    .name = "crash",
                                    .help = "ends a rank",
                                    .flags = EN_SYNCHRONOUS,
                                    .options = options,
                                    .next = &on_store,
                                    .open = crash_open,
                                    .plan = crash_plan,
                                    .before_step = crash_before,
                                    .submit = ring_submit,
                                    .finish = crash_finish,
                                    .after_step = crash_after,
                                    .eval = ring_eval,
                                    .theory = crash_theory};

/* ---- a network ---- */

static en_at crash_build(en_graph *g, en_at batch)
{
    (void)batch;
    act(g->text(g, "deed"));
    return g->refuse(g, "it did nothing");
}

static const en_network network = {.abi = EN_NETWORK_ABI,
                                   .size = sizeof(en_network),
                                   .name = "crash",
                                   .help = "ends who builds it",
                                   .input = {1, 2, 2, 1},
                                   .build = crash_build,
                                   .options = options};

EN_EXPORT const en_network *en_network_entry(uint32_t host_abi)
{
    if (getenv("CRASH_IN_ENTRY") != NULL) act("loop");
    return host_abi == EN_NETWORK_ABI ? &network : 0;
}

EN_EXPORT const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    if (getenv("CRASH_IN_ENTRY") != NULL) act("loop");
    return host_abi == EN_STRATEGY_ABI ? &on_ring : 0;
}
