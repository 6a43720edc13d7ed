/* test_kv.c - what the store does with the gradients of other programs, to the last bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/optimizer.h"
#include "tests/client/kv_rig.h"

enum { STEPS = 12, PIECE = 1 << 20 };

/* Small whole numbers: means over 1 + 3 samples and sums of them are exact in float32. */
static float gradient_at(int rank, int step, int tensor, uint64_t i)
{
    return (float)((rank + 1) * 4 * ((step + tensor + (int)i) % 5 - 2));
}

static void fill(en_client *client, int rank, int step)
{
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < counts[t]; i++)
            en_client_grad(client, t)[i] = gradient_at(rank, step, t, i);
}

/* ---- ps-sync: the mean, exactly -------------------------------------------------------------------------
 */

static float mean_at(int step, int tensor, uint64_t i)
{
    return (gradient_at(0, step, tensor, i) + 3 * gradient_at(1, step, tensor, i)) / 4;
}

static int sync_rank(scene *s, int rank)
{
    en_client *client;
    const uint64_t nsamples = rank == 0 ? 1 : 3;
    float expected[TENSORS][35];
    REQUIRE(open_rank(s, rank, RANKS, &client) == EN_OK);
    for (int t = 0; t < TENSORS; t++) {
        REQUIRE(en_client_elements(client, t) == counts[t]);
        for (uint64_t i = 0; i < counts[t]; i++) {
            expected[t][i] = initial_at(i);
            REQUIRE(en_client_param(client, t)[i] == expected[t][i]);
        }
    }
    for (int step = 0; step < STEPS; step++) {
        fill(client, rank, step);
        REQUIRE(en_client_push_pull(client, EN_CLIENT_ALL, nsamples) == EN_OK);
        REQUIRE(en_client_wait(client, EN_CLIENT_ALL) == EN_OK);
        for (int t = 0; t < TENSORS; t++)
            for (uint64_t i = 0; i < counts[t]; i++) {
                expected[t][i] -= mean_at(step, t, i);
                REQUIRE(en_client_param(client, t)[i] == expected[t][i]);
            }
        REQUIRE(en_client_version(client, EN_CLIENT_ALL) == (uint64_t)step + 1);
    }
    en_client_counters moved = {.size = sizeof moved};
    const uint64_t bytes = (35 + 3 + 1) * sizeof(float);
    REQUIRE(en_client_finish(client) == EN_OK);
    REQUIRE(en_client_count(client, &moved) == EN_OK);
    REQUIRE(moved.is_shared == !(s->flags & EN_CLIENT_TCP));
    REQUIRE(moved.pushes == STEPS * TENSORS && moved.pulls == 0 && moved.staleness_max == 0);
    /* beside the steps: rank 0's initial weights, and everybody's first pull */
    REQUIRE(moved.payload_sent == bytes * (STEPS + (rank == 0)));
    REQUIRE(moved.payload_received == bytes * (STEPS + 1));
    REQUIRE(moved.shm_bytes == (moved.is_shared ? moved.payload_sent + moved.payload_received : 0));
    REQUIRE(en_client_status(client) == EN_OK && en_client_finish(client) == EN_OK);
    REQUIRE(en_client_push(client, W, 1) == EN_EINVAL);
    REQUIRE(en_client_param(client, W)[0] == expected[W][0]);
    en_client_close(client);
    return 0;
}

static void sync_mean(uint32_t flags, int shards)
{
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-sync", RANKS, shards);
    s.flags = flags;
    run_ranks(&s, &psd, sync_rank, RANKS, 0);
}

static void test_sync_mean_in_shared_memory(void **state)
{
    (void)state;
    sync_mean(0, 1);
}

static void test_sync_mean_over_tcp_on_three_shards(void **state)
{
    (void)state;
    sync_mean(EN_CLIENT_TCP, 3);
}

/* ---- ps-async with one rank: sequential SGD, byte for byte ----------------------------------------------
 */

enum { LONG = PIECE + 37 }; /* two buckets */

static int async_rank(scene *s, int rank)
{
    en_client_tensor tensors[2] = {{.size = sizeof *tensors, .name = "long", .shape = {LONG}},
                                   {.size = sizeof *tensors, .name = "short", .shape = {3, 3}}};
    en_client_options options = options_of(s, rank, 1, tensors);
    const eni_hyper hyper = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = 1};
    const uint64_t count[2] = {LONG, 9};
    float *w = calloc(2 * LONG, sizeof *w), *slot = calloc(2 * LONG, sizeof *slot);
    en_client *client;
    options.ntensors = 2;
    options.flags |= EN_CLIENT_NESTEROV;
    options.lr = 0.1;
    options.momentum = 0.9;
    options.weight_decay = 0.01;
    REQUIRE(w != NULL && slot != NULL);
    REQUIRE(en_client_open(&options, &client) == EN_OK); /* from zeros */
    for (uint64_t step = 0; step < 5; step++) {
        eni_hyper now = hyper;
        now.step = step;
        for (int t = 1; t >= 0; t--) { /* each leaves as soon as it is ready */
            for (uint64_t i = 0; i < count[t]; i++)
                en_client_grad(client, t)[i] = sinf((float)(i + step)) + 0.1f * en_client_param(client, t)[i];
            float *slots[] = {slot + t * LONG};
            eni_optimizer_find("sgd")->step(w + t * LONG, slots, en_client_grad(client, t), count[t], &now);
            REQUIRE(en_client_push_pull(client, t, 8) == EN_OK);
        }
        for (int t = 0; t < 2; t++) {
            REQUIRE(en_client_wait(client, t) == EN_OK);
            REQUIRE(memcmp(en_client_param(client, t), w + t * LONG, count[t] * sizeof *w) == 0);
        }
    }
    REQUIRE(w[LONG - 1] != 0);
    REQUIRE(en_client_finish(client) == EN_OK);
    en_client_close(client);
    free(w);
    free(slot);
    return 0;
}

static void test_async_alone_is_sequential(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-async", 1, 2);
    run_ranks(&s, &psd, async_rank, 1, 0);
}

/* ---- ssp: push and pull apart; every gradient arrives once ----------------------------------------------
 */

static int ssp_rank(scene *s, int rank)
{
    en_client *client;
    en_client_counters moved = {.size = sizeof moved};
    REQUIRE(open_rank(s, rank, RANKS, &client) == EN_OK);
    for (int step = 0; step < STEPS; step++) {
        REQUIRE(en_client_pull(client, EN_CLIENT_ALL) == EN_OK);
        REQUIRE(en_client_wait(client, EN_CLIENT_ALL) == EN_OK);
        const float before = en_client_param(client, W)[1];
        fill(client, rank, step);
        REQUIRE(en_client_push(client, EN_CLIENT_ALL, 1) == EN_OK);
        REQUIRE(en_client_wait(client, EN_CLIENT_ALL) == EN_OK);
        REQUIRE(en_client_param(client, W)[1] == before); /* a push leaves the weights alone */
    }
    while (en_client_version(client, EN_CLIENT_ALL) < RANKS * STEPS) { /* until the alarm */
        REQUIRE(en_client_pull(client, EN_CLIENT_ALL) == EN_OK);
        REQUIRE(en_client_wait(client, EN_CLIENT_ALL) == EN_OK);
    }
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < counts[t]; i++) {
            float expected = initial_at(i);
            for (int step = 0; step < STEPS; step++)
                expected -= gradient_at(0, step, t, i) + gradient_at(1, step, t, i);
            REQUIRE(en_client_param(client, t)[i] == expected);
        }
    REQUIRE(en_client_count(client, &moved) == EN_OK);
    REQUIRE(moved.pushes == STEPS * TENSORS && moved.pulls >= STEPS * TENSORS);
    REQUIRE(moved.staleness_max <=
            2 * 1 + 1); /* bound 1: of the other rank's pushes, no more can lie between */
    REQUIRE(en_client_finish(client) == EN_OK);
    en_client_close(client);
    return 0;
}

static void test_ssp_applies_every_gradient_once(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ssp:bound=1", RANKS, 2);
    run_ranks(&s, &psd, ssp_rank, RANKS, 0);
}

/* ---- the library ----------------------------------------------------------------------------------------
 */

static void test_nothing_else_is_exported(void **state)
{
    (void)state;
    char line[256];
    int n = 0;
    FILE *nm = popen("nm -D --defined-only " EN_BUILD_DIR "/libentrain.so", "r");
    assert_non_null(nm);
    while (fgets(line, sizeof line, nm) != NULL) {
        char type, name[128];
        assert_int_equal(sscanf(line, "%*x %c %127s", &type, name), 2);
        if (type == 'A') continue;                       /* the version itself */
        if (strncmp(name, "en_sim_", 7) == 0) continue;  /* tests/virtual/test_api.c */
        if (strncmp(name, "en_rank_", 8) == 0) continue; /* tests/job/test_program.c */
        if (strncmp(name, "en_client_", 10) != 0) fail_msg("%s is exported", name);
        n++;
    }
    assert_int_equal(pclose(nm), 0);
    assert_int_equal(n, 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_mean_in_shared_memory),
        cmocka_unit_test(test_sync_mean_over_tcp_on_three_shards),
        cmocka_unit_test(test_async_alone_is_sequential),
        cmocka_unit_test(test_ssp_applies_every_gradient_once),
        cmocka_unit_test(test_nothing_else_is_exported),
    };
    return system_main(tests);
}
