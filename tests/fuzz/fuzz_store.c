/* fuzz_store.c - any events, in any order, from clients that lie: what psd's pure core does with what a
 * believed connection may say.
 *
 * The first byte chooses the strategy, then eight bytes are an event. Whatever comes: the store goes on, each
 * call is answered at most once, each payload is given back exactly once, versions never go back, and the
 * weights stay finite. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/options.h"
#include "ops/optimizer.h"
#include "runtime/store/store.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { CLIENTS = 3, BUCKETS = 2, EVENT = 8, EVENTS_MAX = 256 };
static const uint64_t counts[BUCKETS] = {5, 3};

typedef struct trial {
    eni_store *store;
    eni_options *options;
    eni_store_actions actions;
    uint64_t version[BUCKETS];
    uint8_t is_answered[EVENTS_MAX]; /* by ticket */
    int lent, returned;              /* payloads */
} trial;

typedef struct payload { /* what a payload's owner points to */
    trial *trial;
    float data[8];
} payload;

static void give_back(void *owner)
{
    payload *p = owner;
    p->trial->returned++;
    free(p);
}

/* Bits 0-1 of the shape: none, right, wrong length, not finite. */
static eni_payload payload_of(trial *t, uint8_t shape, uint32_t bucket)
{
    static const float odd[] = {NAN, INFINITY, 1e30f, -1e30f}; /* the last two: no step overflows */
    payload *p = shape & 3 ? malloc(sizeof *p) : NULL;
    if (p == NULL) return (eni_payload){0};
    p->trial = t;
    for (int i = 0; i < 8; i++)
        p->data[i] = (float)(shape + i) / 64;
    if ((shape & 3) == 3) p->data[shape >> 4 & 1] = odd[shape >> 2 & 3];
    t->lent++;
    const uint64_t count = bucket < BUCKETS ? counts[bucket] : 1;
    return (eni_payload){.data = p->data,
                         .count = (shape & 3) == 2 ? (uint64_t)(shape >> 2 & 7) : count,
                         .flags = shape >> 5 & (ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY),
                         .release = give_back,
                         .owner = p};
}

static void check(trial *t, uint64_t ticket)
{
    for (uint32_t i = 0; i < t->actions.n; i++) {
        const eni_store_action *action = &t->actions.item[i];
        if (action->type == ENI_STORE_TIMER_AT) continue;
        must(action->ticket <= ticket && action->client >= -1 && action->client <= CLIENTS);
        must(!t->is_answered[action->ticket]);
        t->is_answered[action->ticket] = 1;
    }
    for (uint32_t b = 0; b < BUCKETS; b++) {
        uint64_t version = 0;
        const float *weights = eni_store_weights(t->store, b, &version);
        must(weights == NULL || version >= t->version[b]);
        t->version[b] = version;
        for (uint64_t i = 0; weights != NULL && i < counts[b]; i++)
            must(isfinite(weights[i]));
    }
}

static void step(trial *t, const uint8_t *e, uint64_t ticket, int64_t now_ns)
{
    eni_store_event event = {
        .type = (eni_store_event_type)(1 + e[0] % 5),
        .now_ns = now_ns,
        .client = e[1] % (CLIENTS + 2) - 1, /* -1 .. CLIENTS: also nobody */
        .incarnation = 1 + (e[1] >> 7),
        .ticket = ticket,
        .bucket = e[2] % (BUCKETS + 1),
        .member = EN_MEMBER_JOINED + (e[2] >> 4) % 3, /* the host says it, not the wire */
        .seq = e[3] == 255 ? UINT64_MAX : e[3] % 16,
        .kind = e[4],
        .what = e[4] % 5,
        .base_version = e[5] == 255 ? UINT64_MAX : e[5],
        .nsamples = e[6] == 255 ? UINT64_MAX : e[6],
        .covered = e[6] == 254 ? UINT64_MAX : e[6],
        .is_replay = e[0] >> 7,
    };
    if (event.type == ENI_STORE_INIT || event.type == ENI_STORE_CALL)
        event.payload = payload_of(t, e[7], event.bucket);
    must(eni_store_step(t->store, &event, &t->actions) == EN_OK);
    check(t, ticket);
}

static const en_strategy *nth_strategy(unsigned n)
{
    const en_strategy *first = en_strategy_entry(EN_STRATEGY_ABI), *at = first;
    for (; n > 0; n--)
        at = at->next != NULL ? at->next : first;
    return at;
}

/* All have joined and sent the weights, half of the time: else most inputs never get to a step. */
static void begin(trial *t)
{
    for (int32_t c = 0; c < CLIENTS; c++) {
        const eni_store_event join = {
            .type = ENI_STORE_MEMBER, .client = c, .member = EN_MEMBER_JOINED, .incarnation = 1};
        must(eni_store_step(t->store, &join, &t->actions) == EN_OK);
    }
    for (uint32_t b = 0; b < BUCKETS; b++) {
        const eni_store_event init = {
            .type = ENI_STORE_INIT, .bucket = b, .incarnation = 1, .payload = payload_of(t, 1, b)};
        must(eni_store_step(t->store, &init, &t->actions) == EN_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    trial t = {0};
    if (bytes == 0) return 0;
    eni_log_set_level(-1);
    const en_strategy *strategy = nth_strategy(data[0] & 7);
    must(eni_options_new(strategy, "", &t.options) == EN_OK);
    const eni_store_config config = {
        .strategy = strategy,
        .options = t.options,
        .optimizer = eni_optimizer_find("sgd"),
        .hyper = {.momentum = 0.9f, .weight_decay = 1e-3f},
        .schedule = {.kind = ENI_LR_CONSTANT, .base = 0.1},
        .nbuckets = BUCKETS,
        .bucket_counts = counts,
        .nshards = 1,
        .world = CLIENTS,
        .seed = 7,
    };
    must(eni_store_new(&config, &t.store) == EN_OK);
    if (data[0] & 8) begin(&t);
    uint64_t ticket = 1;
    for (size_t at = 1; at + EVENT <= bytes && ticket < EVENTS_MAX; at += EVENT, ticket++)
        step(&t, data + at, ticket, (int64_t)ticket * 1000);
    eni_store_free(t.store);
    eni_store_actions_fini(&t.actions);
    eni_options_free(t.options);
    must(t.lent == t.returned);
    return 0;
}
