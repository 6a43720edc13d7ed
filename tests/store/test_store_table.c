/* test_store_table.c - what a strategy's store half may ask of its host. */
#include "core/log.h"
#include "tests/store/store_rig.h"

enum { COUNT = 32 };
static const uint64_t count = COUNT;

/* One strategy that does what the message's kind says. */
enum { AVERAGE = 1, REMEMBER, ALARM, TWICE, DROP, HALF, DICE };

typedef struct seen {
    uint64_t timers, dice[2];
    int64_t now_ns;
} seen;

static en_status kind_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    seen *s = state;
    s->now_ns = store->now_ns(store);
    switch (msg->kind) {
    case AVERAGE: /* AD-PSGD: both sides end with the average */
        for (uint64_t i = 0; i < part->count; i++)
            msg->data[i] = part->w[i] = 0.5f * (part->w[i] + msg->data[i]);
        store->touch(store, part);
        return EN_OK;
    case REMEMBER: /* DC-ASGD: the weights that this client saw last */
        memcpy(msg->data, store->peer(store, part, msg->src, 0), part->count * sizeof(float));
        memcpy(store->peer(store, part, msg->src, 0), part->w, part->count * sizeof(float));
        return EN_OK;
    case ALARM: store->timer(store, part, 1000); return EN_OK;
    case TWICE: store->absorb(store, part, msg, 1); return store->absorb(store, part, msg, 1);
    case HALF: store->absorb(store, part, msg, 0.5); return store->step(store, part);
    case DICE: s->dice[0] = s->dice[1], s->dice[1] = store->rand(store); return EN_OK;
    default: return EN_OK;
    }
}

static int kind_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    const seen *s = state;
    (void)store;
    (void)part;
    if (msg->kind == ALARM) return s->timers > 0 ? EN_REPLY_WEIGHTS : EN_HOLD;
    return msg->kind == AVERAGE || msg->kind == REMEMBER ? EN_REPLY_DATA : EN_REPLY_WEIGHTS;
}

static void kind_timer(en_store *store, void *state, const en_partition *part)
{
    seen *s = state;
    if (++s->timers == 1) store->timer(store, part, 0); /* once more, but not within this event */
}

static const en_strategy kinds = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "kinds",
    .peer_vecs = 2,
    .partition_state = sizeof(seen),
    .on_push = kind_push,
    .on_pull = kind_pull,
    .on_timer = kind_timer,
};

static rig new_rig(uint32_t stream)
{
    eni_store_config config = rig_config(&kinds, 2, &count, 1);
    config.stream = stream;
    return rig_new(&config);
}

static void call(rig *r, int32_t client, uint32_t kind, uint64_t seq, float *data, uint32_t flags)
{
    rig_step(r, (eni_store_event){.type = ENI_STORE_CALL,
                                  .client = client,
                                  .incarnation = 1,
                                  .seq = seq,
                                  .kind = kind,
                                  .nsamples = 2,
                                  .covered = 6,
                                  .payload = {.data = data, .count = COUNT, .flags = flags}});
}

static void an_edited_payload_is_the_answer(void **state)
{
    (void)state;
    rig r = new_rig(0);
    float x[COUNT], want = 0.5f * (rig_weight(0, 7) + 3.0f);
    for (int i = 0; i < COUNT; i++)
        x[i] = 3;
    call(&r, 0, AVERAGE, 1, x, 0);
    assert_int_equal(rig_for(&r, 0)->flags, ENI_STORE_IS_DATA);
    assert_ptr_equal(rig_for(&r, 0)->data, x); /* in place */
    assert_true(x[7] == want && eni_store_weights(r.store, 0, NULL)[7] == want);
    assert_int_equal(rig_for(&r, 0)->version, 1);
    assert_int_equal(eni_store_client(r.store, 0)->applied, 6); /* covered, whatever it weighs */
    assert_int_equal(eni_store_totals(r.store)->touches, 1);
    call(&r, 0, AVERAGE, 1, x, 0); /* a repeat cannot be answered: x is not kept */
    assert_int_equal(rig_for(&r, 0)->status, EN_EUNSUPPORTED);
    rig_free(&r);
}

static void read_only_memory_is_copied_before_a_hook_edits_it(void **state)
{
    (void)state;
    rig r = new_rig(0);
    float x[COUNT];
    for (int i = 0; i < COUNT; i++)
        x[i] = 3;
    call(&r, 0, AVERAGE, 1, x, ENI_PAYLOAD_BORROWED | ENI_PAYLOAD_READ_ONLY);
    assert_true(x[7] == 3);
    assert_true(rig_for(&r, 0)->data != x);
    assert_true(rig_for(&r, 0)->data[7] == 0.5f * (rig_weight(0, 7) + 3.0f));
    assert_int_equal(eni_store_totals(r.store)->detached, 1);
    rig_free(&r);
}

static void peers_start_with_the_initial_weights(void **state)
{
    (void)state;
    rig r = new_rig(0);
    float x[COUNT] = {1}, y[COUNT] = {1};
    call(&r, 0, AVERAGE, 1, x, 0);
    call(&r, 1, REMEMBER, 1, y, 0);
    assert_true(rig_for(&r, 1)->data[3] == rig_weight(0, 3));
    call(&r, 1, REMEMBER, 2, y, 0); /* and then hold what was put there */
    assert_true(rig_for(&r, 1)->data[0] == x[0]);
    rig_free(&r);
}

static void a_timer_fires_once_per_setting(void **state)
{
    (void)state;
    rig r = new_rig(0);
    float x[COUNT] = {0};
    call(&r, 0, ALARM, 1, x, 0);
    assert_int_equal(r.actions.n, 1);
    assert_int_equal(r.actions.item[0].type, ENI_STORE_TIMER_AT);
    const int64_t when = r.actions.item[0].when_ns;
    assert_int_equal(when, r.now_ns + 1000);
    rig_step(&r, (eni_store_event){.type = ENI_STORE_TIMER}); /* too early */
    assert_int_equal(r.actions.n, 1);
    assert_int_equal(r.actions.item[0].when_ns, when);
    r.now_ns = when - 1;
    rig_step(&r, (eni_store_event){.type = ENI_STORE_TIMER});
    assert_int_equal(r.actions.n, 2);
    assert_int_equal(r.actions.item[0].type, ENI_STORE_REPLY); /* the held call */
    assert_int_equal(r.actions.item[1].when_ns, when);         /* set again by the hook, for now */
    rig_step(&r, (eni_store_event){.type = ENI_STORE_TIMER});
    assert_int_equal(r.actions.n, 0); /* none is due */
    rig_free(&r);
}

static void the_weight_of_absorb_scales_the_numerator_only(void **state)
{
    (void)state;
    rig r = new_rig(0);
    const eni_store_config config = rig_config(&kinds, 2, &count, 1);
    float x[COUNT], mean[COUNT], w[COUNT], momentum[COUNT] = {0};
    float *slots[] = {momentum};
    for (uint64_t i = 0; i < COUNT; i++) {
        x[i] = rig_gradient(0, 0, 0, i);
        mean[i] = x[i] * 1.0f * 0.5f; /* scale 0.5 * 2 samples, over 2 samples */
        w[i] = rig_weight(0, i);
    }
    eni_hyper hyper = config.hyper;
    hyper.lr = eni_schedule_lr(&config.schedule, 0);
    config.optimizer->step(w, slots, mean, COUNT, &hyper);
    call(&r, 0, HALF, 1, x, 0);
    assert_memory_equal(eni_store_weights(r.store, 0, NULL), w, sizeof w);
    rig_free(&r);
}

static void neither_absorbed_nor_touched_is_dropped(void **state)
{
    (void)state;
    rig r = new_rig(0);
    float x[COUNT] = {0};
    call(&r, 0, DROP, 1, x, 0);
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REPLY);
    assert_int_equal(eni_store_client(r.store, 0)->dropped, 6);
    assert_int_equal(eni_store_client(r.store, 0)->applied, 0);
    assert_int_equal(eni_store_client(r.store, 0)->staleness.count, 0); /* it was applied to nothing */
    rig_free(&r);
}

static void absorbing_twice_is_the_strategy_s_bug(void **state)
{
    (void)state;
    rig r = new_rig(0);
    float x[COUNT] = {0};
    call(&r, 0, TWICE, 1, x, 0);
    assert_int_equal(rig_for(&r, 0)->type, ENI_STORE_REFUSE);
    assert_int_equal(rig_for(&r, 0)->status, EN_EBUG);
    call(&r, 0, HALF, 2, x, 0); /* nothing of it stayed staged */
    assert_int_equal(rig_look(&r, 0)->samples, 2);
    rig_free(&r);
}

static void random_numbers_are_the_host_s(void **state)
{
    (void)state;
    float x[COUNT] = {0};
    uint64_t first[3];
    for (uint32_t k = 0; k < 3; k++) {
        rig r = new_rig(k == 2); /* streams 0, 0, 1 */
        call(&r, 0, DICE, 1, x, 0);
        call(&r, 0, DICE, 2, x, 0);
        first[k] = ((en_store *)r.store)->rand((en_store *)r.store); /* the third of the stream */
        rig_free(&r);
    }
    assert_true(first[0] == first[1]);
    assert_true(first[0] != first[2]);
}

/* A hook that is NULL: absorb with weight 1, step, answer with weights. */
static void defaults_are_plain_async(void **state)
{
    (void)state;
    static const en_strategy none = {.abi = EN_STRATEGY_ABI, .size = sizeof(en_strategy), .name = "none"};
    const eni_store_config config = rig_config(&none, 2, &count, 1);
    rig r = rig_new(&config);
    float x[COUNT] = {1};
    call(&r, 1, 1, 1, x, ENI_PAYLOAD_READ_ONLY);
    assert_int_equal(rig_for(&r, 1)->version, 1);
    assert_int_equal(eni_store_totals(r.store)->detached, 0);
    rig_call(&r, 0, 0, 1, 0, 0, NULL, 0); /* a pure pull */
    assert_int_equal(rig_for(&r, 0)->version, 1);
    assert_int_equal(eni_store_client(r.store, 0)->pulls, 1);
    rig_free(&r);
}

/* A round of many clients: `hold` is the verdict of those that come before the last one. */
static int hold, pulls;

static en_status round_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    const en_status st = store->absorb(store, part, msg, 1);
    return st != EN_OK || part->pending < part->nclients ? st : store->step(store, part);
}

static int round_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store, (void)state;
    pulls++;
    return part->version > msg->base_version ? EN_REPLY_WEIGHTS : hold;
}

/* Promise: A held call is asked about again only when what it waits for has come: a round of W clients takes 2W - 1 questions,
 * not W squared. */
static void held_calls_are_asked_again_when_it_matters(void **state)
{
    (void)state;
    enum { CLIENTS = 50 };
    static const en_strategy rounds = {.abi = EN_STRATEGY_ABI,
                                       .size = sizeof(en_strategy),
                                       .name = "rounds",
                                       .on_push = round_push,
                                       .on_pull = round_pull};
    static const struct {
        int hold, asked;
    } cases[] = {{EN_HOLD, CLIENTS * (CLIENTS + 1) / 2},
                 {EN_HOLD_VERSION, 2 * CLIENTS - 1},
                 {EN_HOLD_CLOCK, 2 * CLIENTS - 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const eni_store_config config = rig_config(&rounds, CLIENTS, &count, 1);
        rig r = rig_new(&config);
        float x[COUNT] = {1};
        hold = cases[i].hold;
        pulls = 0;
        for (int c = CLIENTS; c-- > 0;) /* against the order of the sum */
            call(&r, c, 1, 1, x, 0);
        assert_int_equal(pulls, cases[i].asked);
        assert_int_equal(r.actions.n,
                         CLIENTS); /* all are answered by the last push, in the order of arrival */
        assert_int_equal(r.actions.item[0].client, CLIENTS - 1);
        assert_int_equal(eni_store_client(r.store, 1)->holds, 1);
        assert_int_equal(eni_store_client(r.store, 0)->holds, 0);
        rig_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_edited_payload_is_the_answer),
        cmocka_unit_test(read_only_memory_is_copied_before_a_hook_edits_it),
        cmocka_unit_test(peers_start_with_the_initial_weights),
        cmocka_unit_test(a_timer_fires_once_per_setting),
        cmocka_unit_test(the_weight_of_absorb_scales_the_numerator_only),
        cmocka_unit_test(neither_absorbed_nor_touched_is_dropped),
        cmocka_unit_test(absorbing_twice_is_the_strategy_s_bug),
        cmocka_unit_test(random_numbers_are_the_host_s),
        cmocka_unit_test(defaults_are_plain_async),
        cmocka_unit_test(held_calls_are_asked_again_when_it_matters),
    };
    eni_log_set_level(ENI_LOG_ERROR - 1); /* the strategy's bugs are meant to be complained about */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
