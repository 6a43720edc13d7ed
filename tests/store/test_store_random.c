/* test_store_random.c - random interleavings, repeats and lies included, against a model that is naive in
 * every way; and the same events again, from a log. */
#include "core/log.h"
#include "tests/store/event_log.h"
#include "tests/store/store_rig.h"

enum { WORLD = 4, COUNT = 40, EVENTS = 400, SEEDS = 60 };

/* ---- the strategy: n gradients a step, `bound` clocks -------------------------------------------------- */

static uint32_t quorum = 2; /* of the test in progress */
static uint64_t bound = 3;

static en_status any_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    const uint32_t wanted = quorum < part->nclients ? quorum : part->nclients;
    en_status status = store->absorb(store, part, msg, 0.5);
    return status != EN_OK || part->pending < wanted ? status : store->step(store, part);
}

static int any_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store;
    (void)state;
    if (part->min_clock == UINT64_MAX || msg->clock <= part->min_clock) return EN_REPLY_WEIGHTS;
    return msg->clock - part->min_clock <= bound ? EN_REPLY_WEIGHTS : EN_HOLD;
}

static const en_strategy any = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "any",
    .flags = EN_PUSH_READ_ONLY, /* so payloads are detached only when they are answered while staged */
    .on_push = any_push,
    .on_pull = any_pull,
};

/* ---- the naive model: everything is recomputed from the list of what was pushed ------------------------ */

typedef struct push {
    int32_t rank;
    uint64_t clock, nsamples;
    float grad[COUNT];
} push;

typedef struct model {
    float w[COUNT], momentum[COUNT];
    push staged[64];
    int nstaged;
    uint64_t clock[WORLD], version, samples;
    int is_done[WORLD];
} model;

static int by_rank_and_clock(const void *a, const void *b)
{
    const push *p = a, *q = b;
    if (p->rank != q->rank) return p->rank < q->rank ? -1 : 1;
    return p->clock < q->clock ? -1 : p->clock > q->clock;
}

static void model_step(model *m, const eni_store_config *config)
{
    uint64_t samples = 0;
    float mean[COUNT] = {0};
    int is_first = 1;
    qsort(m->staged, (size_t)m->nstaged, sizeof *m->staged, by_rank_and_clock);
    for (int k = 0; k < m->nstaged; k++) {
        const float scale = m->nstaged == 1 ? 0.5f : (float)(0.5 * (double)m->staged[k].nsamples);
        samples += m->staged[k].nsamples;
        for (int i = 0; m->staged[k].nsamples > 0 && i < COUNT; i++)
            mean[i] = is_first ? m->staged[k].grad[i] * scale : mean[i] + m->staged[k].grad[i] * scale;
        is_first = is_first && m->staged[k].nsamples == 0;
    }
    for (int i = 0; samples > 0 && m->nstaged > 1 && i < COUNT; i++) /* a single one is the mean of itself */
        mean[i] *= 1.0f / (float)samples;
    eni_hyper hyper = config->hyper;
    float *slots[] = {m->momentum};
    hyper.lr = eni_schedule_lr(&config->schedule, m->samples);
    hyper.step = m->version++;
    if (samples > 0) config->optimizer->step(m->w, slots, mean, COUNT, &hyper);
    m->samples += samples;
    m->nstaged = 0;
}

static uint32_t model_clients(const model *m)
{
    uint32_t n = 0;
    for (int r = 0; r < WORLD; r++)
        n += !m->is_done[r];
    return n;
}

static void model_push(model *m, const eni_store_config *config, int32_t rank, uint64_t nsamples,
                       const float *grad)
{
    push *p = &m->staged[m->nstaged++];
    *p = (push){.rank = rank, .clock = ++m->clock[rank], .nsamples = nsamples};
    memcpy(p->grad, grad, sizeof p->grad);
    uint32_t pending = 0, wanted = model_clients(m);
    if (quorum < wanted) wanted = quorum;
    for (int32_t r = 0; r < WORLD; r++) {
        int has = 0;
        for (int k = 0; k < m->nstaged; k++)
            has |= m->staged[k].rank == r;
        pending += (uint32_t)has;
    }
    if (pending >= wanted) model_step(m, config);
}

static int model_may_answer(const model *m, int32_t rank)
{
    uint64_t least = UINT64_MAX;
    for (int32_t r = 0; r < WORLD; r++)
        if (!m->is_done[r] && m->clock[r] < least) least = m->clock[r];
    return least == UINT64_MAX || m->clock[rank] <= least + bound;
}

/* ---- one random run ------------------------------------------------------------------------------------ */

typedef struct buffer {
    uint8_t *data;
    size_t n, room;
} buffer;

static en_status append(void *user, const void *data, size_t bytes)
{
    buffer *b = user;
    if (b->n + bytes > b->room) {
        b->room = 2 * (b->n + bytes);
        b->data = realloc(b->data, b->room);
        assert_non_null(b->data);
    }
    memcpy(b->data + b->n, data, bytes);
    b->n += bytes;
    return EN_OK;
}

typedef struct run {
    rig r;
    eni_store_config config;
    model m;
    event_log log;
    buffer bytes;
    eni_rng_key key;
    uint64_t draws;
    uint64_t seq[WORLD], base[WORLD];
    int is_waiting[WORLD];
    float memory[WORLD][COUNT]; /* what clients lend */
} run;

static uint64_t draw(run *t, uint64_t below)
{
    return eni_rng_below(&t->key, t->draws++, below);
}

static void feed(run *t, eni_store_event event)
{
    event.now_ns = t->r.now_ns + 1;
    event.ticket = t->r.ticket + 1;
    assert_int_equal(event_log_event(&t->log, &event), EN_OK);
    rig_step(&t->r, event);
}

static eni_store_event call_of(run *t, int32_t c, uint64_t nsamples)
{
    return (eni_store_event){
        .type = ENI_STORE_CALL,
        .client = c,
        .incarnation = 1,
        .seq = t->seq[c],
        .kind = 1,
        .what = EN_GRAD,
        .base_version = t->base[c],
        .nsamples = nsamples,
        .covered = nsamples,
        .payload = {.data = t->memory[c],
                    .count = COUNT,
                    .flags = ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY},
    };
}

/* Every answer must be one that the model allows, and every one that it allows must be there. */
static void check_answers(run *t)
{
    for (uint32_t i = 0; i < t->r.actions.n; i++) {
        const eni_store_action *a = &t->r.actions.item[i];
        assert_int_equal(a->type, ENI_STORE_REPLY);
        assert_true(t->is_waiting[a->client]);
        assert_true(model_may_answer(&t->m, a->client));
        assert_int_equal(a->version, t->m.version);
        assert_memory_equal(a->data, t->m.w, sizeof t->m.w);
        t->is_waiting[a->client] = 0;
        t->base[a->client] = a->version;
        memset(t->memory[a->client], 0xff,
               sizeof t->memory[a->client]); /* lent memory is its owner's again */
    }
    for (int32_t c = 0; c < WORLD; c++)
        if (t->is_waiting[c]) assert_false(model_may_answer(&t->m, c));
}

static void push_something(run *t, int32_t c)
{
    const uint64_t nsamples = draw(t, 5) * 4;
    t->seq[c]++;
    for (int i = 0; i < COUNT; i++)
        t->memory[c][i] = rig_gradient(c, t->seq[c], 0, (uint64_t)i);
    model_push(&t->m, &t->config, c, nsamples, t->memory[c]);
    t->is_waiting[c] = 1;
    feed(t, call_of(t, c, nsamples));
    check_answers(t);
}

static void repeat_something(run *t, int32_t c)
{
    if (t->seq[c] == 0) return;
    float other[COUNT] = {1e9f}; /* must not be looked at */
    eni_store_event event = call_of(t, c, 4);
    event.payload.data = other;
    feed(t, event);
    if (t->is_waiting[c]) {
        assert_int_equal(t->r.actions.n, 0);
        return;
    }
    assert_int_equal(t->r.actions.n, 1);
    assert_int_equal(t->r.actions.item[0].flags, ENI_STORE_IS_REPEAT);
    assert_memory_equal(t->r.actions.item[0].data, t->m.w, sizeof t->m.w);
    t->base[c] = t->r.actions.item[0].version;
}

static void lie(run *t, int32_t c)
{
    eni_store_event event = call_of(t, c, 4);
    event.seq += 2 + draw(t, 3);
    feed(t, event);
    assert_int_equal(t->r.actions.n, 1);
    assert_int_equal(t->r.actions.item[0].type, ENI_STORE_REFUSE);
}

static void finish_somebody(run *t, int32_t c)
{
    t->m.is_done[c] = 1;
    feed(t, (eni_store_event){.type = ENI_STORE_MEMBER, .client = c, .member = EN_MEMBER_FINISHED});
    check_answers(t);
}

static void begin(run *t, uint64_t seed)
{
    static const uint64_t count = COUNT;
    t->key = (eni_rng_key){.seed = seed, .purpose = ENI_RNG_TEST, .rank = 99};
    quorum = 1 + (uint32_t)draw(t, WORLD);
    bound = draw(t, 4);
    t->config = rig_config(&any, WORLD, &count, 1);
    t->r = rig_new(&t->config);
    t->log = (event_log){append, &t->bytes, EVENT_LOG_CONTENT};
    assert_int_equal(event_log_begin(&t->log, &t->config), EN_OK);
    for (uint64_t i = 0; i < COUNT; i++)
        t->m.w[i] = rig_weight(0, i);
}

/* The same events into a new store: the same weights. */
static void replay(run *t)
{
    static const uint64_t count = COUNT;
    event_reader reader;
    eni_store_event event;
    en_status st;
    char text[64];
    assert_int_equal(event_reader_open(t->bytes.data, t->bytes.n, &reader), EN_OK);
    assert_int_equal(event_reader_find(&reader, "buckets", text, sizeof text), EN_OK);
    assert_string_equal(text, "40");
    const eni_store_config config = rig_config(&any, WORLD, &count, 1);
    rig again = rig_new(&config);
    while ((st = event_reader_next(&reader, &event, NULL)) == EN_OK)
        assert_int_equal(eni_store_step(again.store, &event, &again.actions), EN_OK);
    assert_int_equal(st, EN_ENOENT);
    assert_memory_equal(eni_store_weights(again.store, 0, NULL), t->m.w, sizeof t->m.w);
    rig_free(&again);
}

static void random_events_agree_with_a_naive_model(void **state)
{
    (void)state;
    uint64_t pushes = 0, holds = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        run *t = calloc(1, sizeof *t);
        begin(t, seed);
        for (int i = 0; i < EVENTS; i++) {
            const int32_t c = (int32_t)draw(t, WORLD);
            const uint64_t what = draw(t, 100);
            if (t->m.is_done[c]) continue;
            if (what < 80 && !t->is_waiting[c])
                push_something(t, c);
            else if (what < 90)
                repeat_something(t, c);
            else if (what < 99)
                lie(t, c);
            else if (!t->is_waiting[c] && i > EVENTS / 2)
                finish_somebody(t, c);
            assert_memory_equal(eni_store_weights(t->r.store, 0, NULL), t->m.w, sizeof t->m.w);
        }
        for (int32_t c = 0; c < WORLD; c++) {
            pushes += eni_store_client(t->r.store, c)->pushes;
            holds += eni_store_client(t->r.store, c)->holds;
            assert_true(eni_store_client(t->r.store, c)->clocks_ahead <= bound);
        }
        replay(t);
        rig_free(&t->r);
        free(t->bytes.data);
        free(t);
    }
    assert_true(pushes > SEEDS * EVENTS / 4); /* it did something */
    assert_true(holds > SEEDS);
}

/* ---- damaged logs -------------------------------------------------------------------------------------- */

static void damaged_logs_are_refused(void **state)
{
    (void)state;
    run *t = calloc(1, sizeof *t);
    begin(t, 1);
    push_something(t, 0);
    const size_t whole = t->bytes.n;
    size_t good = 0;
    for (size_t n = 0; n < whole; n++) { /* cut anywhere: refused, or a log without its last event */
        uint8_t *cut = malloc(n + 1);
        memcpy(cut, t->bytes.data, n);
        event_reader reader;
        eni_store_event event;
        if (event_reader_open(cut, n, &reader) == EN_OK) {
            const en_status st = event_reader_next(&reader, &event, NULL);
            assert_int_not_equal(st, EN_OK);
            good += st == EN_ENOENT;
        }
        free(cut);
    }
    assert_int_equal(good, 1);
    t->bytes.data[8] = EVENT_LOG_VERSION + 1;
    event_reader reader;
    assert_int_equal(event_reader_open(t->bytes.data, whole, &reader), EN_EVERSION);
    rig_free(&t->r);
    free(t->bytes.data);
    free(t);
}

static void hashes_stand_for_contents(void **state)
{
    (void)state;
    run *t = calloc(1, sizeof *t);
    begin(t, 1);
    t->log.payloads = EVENT_LOG_HASH;
    push_something(t, 0);
    push_something(t, 1);
    event_reader reader;
    eni_store_event event;
    uint8_t a[EVENT_LOG_DIGEST] = {0}, b[EVENT_LOG_DIGEST] = {0};
    assert_int_equal(event_reader_open(t->bytes.data, t->bytes.n, &reader), EN_OK);
    assert_int_equal(event_reader_next(&reader, &event, a), EN_OK);
    assert_null(event.payload.data);
    assert_int_equal(event.payload.count, COUNT);
    assert_int_equal(event_reader_next(&reader, &event, b), EN_OK);
    assert_memory_not_equal(a, b, sizeof a);
    rig_free(&t->r);
    free(t->bytes.data);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_events_agree_with_a_naive_model),
        cmocka_unit_test(damaged_logs_are_refused),
        cmocka_unit_test(hashes_stand_for_contents),
    };
    eni_log_set_level(ENI_LOG_ERROR - 1); /* damaged logs are meant to be complained about */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
