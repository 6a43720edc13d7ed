/* test_store_save.c - a store that was saved and loaded is the same store: at any moment of a random life,
 * with every strategy there is. And no damage to the bytes does more than to be refused. */
#include <math.h>

#include "core/log.h"
#include "plugin/plugin.h"
#include "runtime/spec/strategies.h"
#include "runtime/store/store_save.h"
#include "tests/store/store_rig.h"

#define ZOO EN_BUILD_DIR "/test/plugins/zoo.so@"

enum { WORLD = 3, BUCKETS = 2, EVENTS = 160, SEEDS = 40, BUFFER_MAX = 1 << 20 };

static const uint64_t counts[BUCKETS] = {37, 5};

typedef struct bytes {
    size_t n;
    uint8_t data[BUFFER_MAX];
} bytes;

static en_status append(void *user, const void *data, size_t n)
{
    bytes *b = user;
    if (n > BUFFER_MAX - b->n) return EN_EIO;
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return EN_OK;
}

static void save(const eni_store *store, bytes *out)
{
    out->n = 0;
    assert_int_equal(eni_store_save(store, append, out), EN_OK);
}

/* ---- a random life ------------------------------------------------------------------------------------- */

typedef struct client {
    uint64_t incarnation, seq[BUCKETS], base[BUCKETS];
    int is_waiting[BUCKETS], is_here;
} client;

typedef struct life {
    eni_store_config config;
    eni_options *options;
    eni_rng_key key;
    uint64_t draws;
    int64_t now_ns, last_ns, timer_ns; /* last_ns: of the last event */
    uint64_t ticket;
    client client[WORLD];
    eni_store *store, *twin; /* twin: NULL before the save */
    eni_store_actions actions, twin_actions;
    uint64_t compared;
} life;

static uint64_t draw(life *l, uint64_t below)
{
    return eni_rng_below(&l->key, l->draws++, below);
}

static void begin(life *l, const char *spec, uint64_t seed)
{
    char word[ENI_PLUGIN_WORD_MAX];
    const char *given;
    const en_strategy *strategy;
    *l = (life){.key = {.seed = seed, .purpose = ENI_RNG_TEST, .rank = 17}, .timer_ns = INT64_MAX};
    assert_int_equal(eni_plugin_split("--strategy", spec, word, &given), EN_OK);
    assert_int_equal(eni_strategy_find(EN_BUILD_DIR "/plugins", word, &strategy), EN_OK);
    assert_int_equal(eni_options_new(strategy, given, &l->options), EN_OK);
    l->config = rig_config(strategy, WORLD, counts, BUCKETS);
    l->config.options = l->options;
    l->config.nshards = 1 + (int32_t)draw(l, 2);
    l->config.shard = (int32_t)draw(l, (uint64_t)l->config.nshards);
    l->config.sum_order = draw(l, 2) ? ENI_SUM_RING : ENI_SUM_RANK;
    assert_int_equal(eni_store_new(&l->config, &l->store), EN_OK);
}

static void end(life *l)
{
    eni_store_free(l->store);
    eni_store_free(l->twin);
    eni_store_actions_fini(&l->actions);
    eni_store_actions_fini(&l->twin_actions);
    eni_options_free(l->options);
}

static void same_actions(life *l)
{
    assert_int_equal(l->actions.n, l->twin_actions.n);
    for (uint32_t i = 0; i < l->actions.n; i++) {
        const eni_store_action *a = &l->actions.item[i], *b = &l->twin_actions.item[i];
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->client, b->client);
        assert_int_equal(a->ticket, b->ticket);
        assert_int_equal(a->bucket, b->bucket);
        assert_int_equal(a->flags, b->flags);
        assert_int_equal(a->version, b->version);
        assert_int_equal(a->met, b->met);
        assert_int_equal(a->count, b->count);
        assert_int_equal(a->when_ns, b->when_ns);
        assert_int_equal(a->status, b->status);
        assert_string_equal(a->text, b->text);
        assert_int_equal(a->data != NULL, b->data != NULL);
        if (a->data) assert_memory_equal(a->data, b->data, a->count * sizeof(float));
        l->compared++;
    }
}

static void take_answers(life *l)
{
    for (uint32_t i = 0; i < l->actions.n; i++) {
        const eni_store_action *a = &l->actions.item[i];
        if (a->type == ENI_STORE_TIMER_AT) {
            l->timer_ns = a->when_ns;
            continue;
        }
        if (a->client < 0 || a->client >= WORLD) continue;
        client *c = &l->client[a->client];
        c->is_waiting[a->bucket] = 0;
        if (a->type == ENI_STORE_REPLY && a->version > c->base[a->bucket]) c->base[a->bucket] = a->version;
    }
}

/* The event into both stores, each with a payload of its own. */
static void feed(life *l, eni_store_event event, const float *payload, uint64_t count)
{
    event.now_ns = l->last_ns = l->now_ns;
    event.ticket = ++l->ticket;
    for (int k = 0; k < (l->twin ? 2 : 1); k++) {
        float *copy = payload ? malloc(count * sizeof *copy) : NULL;
        if (copy) {
            memcpy(copy, payload, count * sizeof *copy);
            event.payload = (eni_payload){.data = copy, .count = count, .release = free, .owner = copy};
            if (event.nsamples % 3 == 1) event.payload.flags = ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY;
        }
        assert_int_equal(eni_store_step(k ? l->twin : l->store, &event, k ? &l->twin_actions : &l->actions),
                         EN_OK);
    }
    if (l->twin) same_actions(l);
    take_answers(l);
}

static void call_something(life *l, int32_t r, uint32_t bucket)
{
    client *c = &l->client[r];
    float grad[64];
    const uint64_t count = eni_store_count(l->store, bucket), what = draw(l, 10);
    const int is_push = draw(l, 8) > 0;
    eni_store_event event = {.type = ENI_STORE_CALL,
                             .client = r,
                             .incarnation = c->incarnation - (draw(l, 40) == 0),
                             .bucket = bucket,
                             .kind = 1 + (uint32_t)draw(l, 2),
                             .what = EN_GRAD,
                             .nsamples = draw(l, 6),
                             .covered = draw(l, 20),
                             .is_replay = draw(l, 10) == 0};
    event.seq = what == 0 ? c->seq[bucket] : what == 1 ? c->seq[bucket] + 2 : c->seq[bucket] + 1;
    event.base_version = event.is_replay ? c->base[bucket] + draw(l, 3) : c->base[bucket];
    for (uint64_t i = 0; i < count; i++)
        grad[i] = rig_gradient(r, event.seq, bucket, i);
    if (draw(l, 60) == 0) grad[0] = INFINITY;
    const uint64_t seq = eni_store_seq(l->store, r, bucket);
    c->is_waiting[bucket] = 1;
    feed(l, event, is_push ? grad : NULL, count);
    if (eni_store_seq(l->store, r, bucket) > seq) c->seq[bucket] = event.seq;
}

static void member_something(life *l, int32_t r)
{
    client *c = &l->client[r];
    uint32_t member = EN_MEMBER_JOINED;
    if (c->is_here) member = draw(l, 3) ? EN_MEMBER_LEFT : EN_MEMBER_FINISHED;
    c->is_here = member == EN_MEMBER_JOINED;
    if (c->is_here) {
        memset(c->seq, 0, sizeof c->seq);
        c->incarnation++;
    }
    memset(c->is_waiting, 0, sizeof c->is_waiting);
    feed(l,
         (eni_store_event){
             .type = ENI_STORE_MEMBER, .client = r, .incarnation = c->incarnation, .member = member},
         NULL, 0);
}

static void init_something(life *l, uint32_t bucket)
{
    float w[64];
    const uint64_t count = eni_store_count(l->store, bucket);
    for (uint64_t i = 0; i < count; i++)
        w[i] = rig_weight(bucket, i);
    feed(l, (eni_store_event){.type = ENI_STORE_INIT, .bucket = bucket}, w, count);
}

static void anything(life *l)
{
    const int32_t r = (int32_t)draw(l, WORLD);
    const uint32_t bucket = (uint32_t)draw(l, BUCKETS);
    const uint64_t what = draw(l, 100);
    l->now_ns += (int64_t)draw(l, 40) * 1000;
    if (l->timer_ns <= l->now_ns) {
        l->timer_ns = INT64_MAX;
        feed(l, (eni_store_event){.type = ENI_STORE_TIMER}, NULL, 0);
    }
    if (eni_store_count(l->store, bucket) == 0) return;
    if (what < (l->client[r].is_here ? 4 : 60))
        member_something(l, r);
    else if (what < 8)
        init_something(l, bucket);
    else if (what < 12)
        feed(l, (eni_store_event){.type = ENI_STORE_SNAPSHOT, .client = r, .bucket = bucket}, NULL, 0);
    else if (!l->client[r].is_waiting[bucket] || what < 30)
        call_something(l, r, bucket);
}

/* ---- saved and loaded, it is the same ------------------------------------------------------------------ */

/* All but one statistic: what was loaded is never borrowed, so it is never detached. */
static void same_states(const life *l, bytes *a, bytes *b)
{
    save(l->store, a);
    save(l->twin, b);
    assert_int_equal(a->n, b->n);
    const size_t text = a->data[12] | (size_t)a->data[13] << 8, detached = 16 + text + 25 + 5 * 8;
    memset(a->data + detached, 0, 8);
    memset(b->data + detached, 0, 8);
    assert_memory_equal(a->data, b->data, a->n);
}

static void twice(const char *spec, uint64_t seed, bytes *a, bytes *b, uint64_t *compared)
{
    life l;
    begin(&l, spec, seed);
    const int moment = (int)draw(&l, EVENTS);
    for (int i = 0; i < EVENTS; i++) {
        if (i == moment) {
            save(l.store, a);
            assert_int_equal(eni_store_new(&l.config, &l.twin), EN_OK);
            const en_status st = eni_store_load(l.twin, a->data, a->n, l.last_ns);
            if (st != EN_OK) fail_msg("%s, seed %d: %s", spec, (int)seed, en_status_str(st));
            assert_int_equal(eni_store_timer(l.twin), eni_store_timer(l.store));
            same_states(&l, a, b);
        }
        anything(&l);
    }
    same_states(&l, a, b);
    for (int32_t r = 0; r < WORLD; r++)
        assert_int_equal(eni_store_incarnation(l.twin, r), l.client[r].incarnation);
    *compared += l.compared;
    end(&l);
}

static void a_loaded_store_goes_on_as_the_saved_one(void **state)
{
    (void)state;
    static const char *const all[] = {"ps-sync",      "ps-async",   "ssp:bound=0", "ssp:bound=3",
                                      ZOO "softsync", ZOO "backup", ZOO "moody",   ZOO "late",
                                      ZOO "visit",    ZOO "hier",   ZOO "stuck",   "ring"};
    bytes *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    for (size_t s = 0; s < sizeof all / sizeof *all; s++) {
        uint64_t compared = 0;
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            twice(all[s], seed, a, b, &compared);
        assert_true(compared > SEEDS * EVENTS / 8); /* they had something to say */
    }
    free(a);
    free(b);
}

/* The clock of the machine that a store comes back on may be another. */
static void timers_go_on_with_what_is_left(void **state)
{
    (void)state;
    life l;
    bytes *whole = malloc(sizeof *whole);
    begin(&l, ZOO "late", 1);
    l.now_ns = 500;
    for (int32_t r = 0; r < WORLD; r++)
        member_something(&l, r);
    for (uint32_t bucket = 0; bucket < BUCKETS; bucket++)
        if (eni_store_count(l.store, bucket) > 0) init_something(&l, bucket);
    while (eni_store_timer(l.store) == INT64_MAX)
        call_something(&l, (int32_t)draw(&l, WORLD), 0);
    assert_int_equal(eni_store_timer(l.store), 1000500);
    save(l.store, whole);
    const int64_t clocks[] = {7, 500, INT64_MAX - 3};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(eni_store_new(&l.config, &l.twin), EN_OK);
        assert_int_equal(eni_store_load(l.twin, whole->data, whole->n, clocks[i]), EN_OK);
        const int64_t due = i < 2 ? clocks[i] + 1000000 : INT64_MAX - 1;
        assert_int_equal(eni_store_timer(l.twin), due);
        eni_store_free(l.twin);
        l.twin = NULL;
    }
    end(&l);
    free(whole);
}

static uint64_t other_way(uint64_t ticket)
{
    return ticket + 1000;
}

/* What a ticket says of the way back was of the psd that is gone: the round may be complete before its client
 * has asked again. */
static void held_calls_are_answered_by_another_way(void **state)
{
    (void)state;
    life l;
    bytes *whole = malloc(sizeof *whole);
    const float gradient[37] = {1};
    begin(&l, "ps-sync", 1);
    eni_store_config config = rig_config(l.config.strategy, 2, counts, 1);
    config.options = l.options;
    rig before = rig_new(&config), after = {0};
    rig_push_owned(&before, 0, 0, 1, 0, 1, gradient, counts[0]);
    assert_int_equal(before.actions.n, 0);
    save(before.store, whole);
    config.old_ticket = other_way;
    assert_int_equal(eni_store_new(&config, &after.store), EN_OK);
    assert_int_equal(eni_store_load(after.store, whole->data, whole->n, 0), EN_OK);
    rig_push_owned(&after, 1, 0, 1, 0, 1, gradient, counts[0]);
    assert_int_equal(rig_for(&after, 0)->ticket, other_way(before.ticket));
    assert_int_equal(rig_for(&after, 1)->ticket, after.ticket);
    rig_free(&before);
    rig_free(&after);
    end(&l);
    free(whole);
}

/* ---- damage -------------------------------------------------------------------------------------------- */

/* A small store with a bit of everything: held, staged, answered but staged, a peer vector, a timer. */
static void small_life(life *l, const char *spec)
{
    begin(l, spec, 5);
    eni_store_free(l->store);
    static const uint64_t few[BUCKETS] = {3, 2};
    l->config.bucket_counts = few;
    l->config.nshards = 1;
    l->config.shard = 0;
    assert_int_equal(eni_store_new(&l->config, &l->store), EN_OK);
    for (int32_t r = 0; r < WORLD; r++)
        member_something(l, r);
    init_something(l, 0);
    for (int i = 0; i < 12; i++)
        anything(l);
    for (uint32_t kind = 0; kind < 2 && !eni_store_weights(l->store, 1, NULL); kind++)
        feed(l, (eni_store_event){.type = ENI_STORE_SNAPSHOT, .bucket = 1, .kind = kind}, NULL, 0);
}

/* What was accepted must go on working, with whatever numbers it has. */
static void live_on(life *l, uint64_t seed)
{
    life on = *l;
    on.key.seed = seed;
    on.store = l->twin;
    on.twin = NULL;
    on.actions = on.twin_actions = (eni_store_actions){0};
    init_something(&on, 1); /* answers who waits for it */
    for (int i = 0; i < 6; i++)
        anything(&on);
    eni_store_actions_fini(&on.actions);
}

static en_status load_damaged(life *l, const uint8_t *data, size_t n, uint64_t seed)
{
    uint8_t *exact = malloc(n + (n == 0)); /* so that a byte too far is seen */
    memcpy(exact, data, n);
    assert_int_equal(eni_store_new(&l->config, &l->twin), EN_OK);
    const en_status st = eni_store_load(l->twin, exact, n, l->now_ns);
    free(exact);
    if (st == EN_OK) live_on(l, seed);
    eni_store_free(l->twin);
    l->twin = NULL;
    return st;
}

static void damage_is_refused_or_harmless(void **state)
{
    (void)state;
    static const char *const all[] = {"ps-sync", ZOO "softsync", ZOO "moody", "ssp:bound=0"};
    bytes *whole = malloc(sizeof *whole);
    for (size_t s = 0; s < sizeof all / sizeof *all; s++) {
        life l;
        small_life(&l, all[s]);
        save(l.store, whole);
        assert_int_equal(load_damaged(&l, whole->data, whole->n, 0), EN_OK);
        for (size_t n = 0; n < whole->n; n++)
            assert_int_not_equal(load_damaged(&l, whole->data, n, n), EN_OK);
        whole->data[whole->n] = 0;
        assert_int_equal(load_damaged(&l, whole->data, whole->n + 1, 0), EN_EFORMAT);
        uint64_t refused = 0;
        for (size_t bit = 0; bit < whole->n * 8; bit++) {
            whole->data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            refused += load_damaged(&l, whole->data, whole->n, bit) != EN_OK;
            whole->data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        assert_true(refused > whole->n * 8 / 4); /* header, text, counts, ranges */
        end(&l);
    }
    free(whole);
}

static void of_another_run_is_named(void **state)
{
    (void)state;
    life l;
    bytes *whole = malloc(sizeof *whole);
    small_life(&l, "ssp:bound=3");
    save(l.store, whole);
    l.config.seed++;
    assert_int_equal(load_damaged(&l, whole->data, whole->n, 0), EN_EMISMATCH);
    l.config.seed--;
    whole->data[8]++;
    assert_int_equal(load_damaged(&l, whole->data, whole->n, 0), EN_EVERSION);
    whole->data[8]--;
    assert_int_equal(eni_store_load(l.store, whole->data, whole->n, 0), EN_EBUG); /* not a new one */
    assert_int_equal(load_damaged(&l, whole->data, whole->n, 0), EN_OK);
    end(&l);
    free(whole);
}

static en_status refuse_third(void *user, const void *data, size_t n)
{
    int *calls = user;
    (void)data;
    (void)n;
    return ++*calls < 3 ? EN_OK : EN_EIO;
}

static void a_full_disk_is_passed_on(void **state)
{
    (void)state;
    static const uint64_t much[1] = {200000};
    const en_strategy *strategy;
    eni_store *store;
    int calls = 0;
    assert_int_equal(eni_strategy_find(EN_BUILD_DIR "/plugins", "ps-async", &strategy), EN_OK);
    const eni_store_config config = rig_config(strategy, 2, much, 1);
    assert_int_equal(eni_store_new(&config, &store), EN_OK);
    assert_int_equal(eni_store_save(store, refuse_third, &calls), EN_EIO);
    assert_int_equal(calls, 3); /* and no more after it */
    eni_store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loaded_store_goes_on_as_the_saved_one),
        cmocka_unit_test(timers_go_on_with_what_is_left),
        cmocka_unit_test(held_calls_are_answered_by_another_way),
        cmocka_unit_test(damage_is_refused_or_harmless),
        cmocka_unit_test(of_another_run_is_named),
        cmocka_unit_test(a_full_disk_is_passed_on),
    };
    eni_log_set_level(ENI_LOG_ERROR - 1); /* damaged states are meant to be complained about */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
