/* test_kv_fail.c - who may not join psd, what a program hears when somebody dies, and wrong use. */
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/net/token.h"
#include "tests/client/kv_rig.h"

/* Promise: A program that links libentrain learns of psd's death within 3 s. */

/* ---- who may not join -----------------------------------------------------------------------------------
 */

static int unauthenticated_rank(scene *s, int rank)
{
    char path[256];
    int lock;
    eni_token token;
    en_client_tensor tensors[TENSORS];
    en_client *client;
    declare(tensors);
    en_client_options options = options_of(s, rank, 1, tensors);
    snprintf(path, sizeof path, "%s/stranger", system_folder());
    options.token_file = path;
    options.join_timeout = 0.1;
    REQUIRE(en_client_open(&options, &client) == EN_ENOENT && client == NULL);
    REQUIRE(strstr(s->said, path) != NULL);
    eni_token_make(&token);
    REQUIRE(eni_token_write(&token, path, &lock) == EN_OK);
    close(lock);
    options.join_timeout = 10;
    REQUIRE(en_client_open(&options, &client) == EN_EDENIED && client == NULL);
    REQUIRE(strstr(s->said, "token") != NULL);
    /* psd is still there for who knows its token */
    REQUIRE(open_rank(s, rank, 1, &client) == EN_OK);
    REQUIRE(en_client_finish(client) == EN_OK);
    en_client_close(client);
    return 0;
}

static void test_a_wrong_token(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-sync", 1, 1);
    run_ranks(&s, &psd, unauthenticated_rank, 1, 0);
}

static int mismatched_rank(scene *s, int rank)
{
    en_client_tensor tensors[TENSORS];
    en_client *client;
    declare(tensors);
    tensors[W].shape[1] = rank == 0 ? 7 : 8;
    const en_client_options options = options_of(s, rank, RANKS, tensors);
    REQUIRE(en_client_open(&options, &client) == EN_EMISMATCH && client == NULL);
    REQUIRE(strstr(s->said, "tensor w differs") != NULL);
    REQUIRE(strstr(s->said, "(5, 7)") != NULL && strstr(s->said, "(5, 8)") != NULL);
    return 0;
}

static void test_a_mismatch_is_named(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-sync", RANKS, 1);
    run_ranks(&s, &psd, mismatched_rank, RANKS, 2);
}

static int other_strategy_rank(scene *s, int rank)
{
    en_client *client;
    s->strategy = "ps-async";
    REQUIRE(open_rank(s, rank, 1, &client) == EN_EMISMATCH);
    REQUIRE(strstr(s->said, "ps-sync") != NULL && strstr(s->said, "ps-async") != NULL);
    return 0;
}

static void test_psd_has_another_strategy(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-sync", 1, 1);
    run_ranks(&s, &psd, other_strategy_rank, 1, 2);
}

/* ---- deaths ---------------------------------------------------------------------------------------------
 */

static int loyal_rank(scene *s, int rank)
{
    en_client *client;
    en_status status = EN_OK;
    REQUIRE(open_rank(s, rank, 1, &client) == EN_OK);
    while (status == EN_OK) { /* until the alarm */
        status = en_client_push_pull(client, EN_CLIENT_ALL, 1);
        if (status == EN_OK) status = en_client_wait(client, EN_CLIENT_ALL);
        if (en_client_version(client, W) == 10) say_go(s);
    }
    REQUIRE(status == EN_EPEER);
    REQUIRE(en_client_status(client) == EN_EPEER);
    REQUIRE(en_client_pull(client, W) == EN_EPEER && en_client_wait(client, W) == EN_EPEER);
    REQUIRE(en_client_finish(client) == EN_EPEER);
    REQUIRE(strstr(s->said, "psd") != NULL);
    en_client_close(client);
    return 0;
}

static void psd_is_killed(uint32_t flags)
{
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-sync", 1, 1);
    s.flags = flags;
    open_go(&s);
    const pid_t rank = start_rank(&s, loyal_rank, 0);
    assert_true(hear_go(&s));
    const double begin = now_seconds();
    process_kill(&psd, SIGKILL);
    assert_int_equal(end_rank(rank), 0);
    const double seconds = now_seconds() - begin;
    assert_true(seconds < 3 * SLOWNESS);
    promise("a program on libentrain hears of psd's death in 3 s at most: %.2f s over %s", seconds,
            flags & EN_CLIENT_TCP ? "TCP" : "shared memory");
    assert_int_equal(process_wait(&psd, 10), 128 + SIGKILL);
    close_go(&s);
}

static void test_psd_is_killed(void **state)
{
    (void)state;
    psd_is_killed(0);
}

static void test_psd_is_killed_over_tcp(void **state)
{
    (void)state;
    psd_is_killed(EN_CLIENT_TCP);
}

/* Rank 1 goes without a word; rank 0, which waits for its gradient, is told. */
static int deserted_rank(scene *s, int rank)
{
    en_client *client;
    REQUIRE(open_rank(s, rank, RANKS, &client) == EN_OK);
    if (rank == 0) {
        REQUIRE(en_client_push_pull(client, W, 1) == EN_OK);
        say_go(s);
        REQUIRE(en_client_wait(client, W) == EN_EPEER);
        REQUIRE(strstr(s->said, "rank 1") != NULL);
    } else {
        REQUIRE(hear_go(s));
    }
    en_client_close(client);
    return 0;
}

static void test_a_rank_goes_without_a_word(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-sync", RANKS, 1);
    open_go(&s);
    run_ranks(&s, &psd, deserted_rank, RANKS, 1);
    close_go(&s);
}

static int interrupted_rank(scene *s, int rank)
{
    en_client_tensor tensors[TENSORS];
    en_client *client;
    const uint64_t one = 1;
    declare(tensors);
    en_client_options options = options_of(s, rank, RANKS, tensors);
    options.interrupt_fd = eventfd(0, EFD_CLOEXEC);
    REQUIRE(options.interrupt_fd > 0);
    REQUIRE(en_client_open(&options, &client) == EN_OK);
    if (rank == 0) { /* rank 1 never pushes */
        REQUIRE(hear_go(s));
        REQUIRE(en_client_push(client, EN_CLIENT_ALL, 1) == EN_OK);
        REQUIRE(write(options.interrupt_fd, &one, sizeof one) == sizeof one);
        REQUIRE(en_client_wait(client, EN_CLIENT_ALL) == EN_EINTR);
        REQUIRE(en_client_status(client) == EN_EINTR && en_client_pull(client, W) == EN_EINTR);
    } else {
        en_status status = EN_OK;
        say_go(s);
        while (status == EN_OK) { /* until the alarm */
            status = en_client_pull(client, W);
            if (status == EN_OK) status = en_client_wait(client, W);
        }
        REQUIRE(status == EN_EPEER);
    }
    en_client_close(client);
    close(options.interrupt_fd);
    return 0;
}

static void test_interrupted(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-sync", RANKS, 1);
    open_go(&s);
    run_ranks(&s, &psd, interrupted_rank, RANKS, 1);
    close_go(&s);
}

/* The number is another file's by then, one that is readable: nobody has asked for an end. */
static int reused_rank(scene *s, int rank)
{
    en_client_tensor tensors[TENSORS];
    en_client *client;
    const uint64_t one = 1;
    declare(tensors);
    en_client_options options = options_of(s, rank, 1, tensors);
    const int number = eventfd(0, EFD_CLOEXEC), spare = dup(number);
    options.interrupt_fd = number;
    REQUIRE(number > 0 && spare > 0);
    REQUIRE(en_client_open(&options, &client) == EN_OK);
    REQUIRE(dup2(eventfd(1, EFD_CLOEXEC), number) == number);
    REQUIRE(en_client_status(client) == EN_OK);
    REQUIRE(en_client_pull(client, W) == EN_OK && en_client_wait(client, W) == EN_OK);
    REQUIRE(close(number) == 0);
    REQUIRE(en_client_status(client) == EN_OK);
    REQUIRE(en_client_pull(client, W) == EN_OK && en_client_wait(client, W) == EN_OK);
    REQUIRE(write(spare, &one, sizeof one) == sizeof one);
    REQUIRE(en_client_status(client) == EN_EINTR && en_client_pull(client, W) == EN_EINTR);
    en_client_close(client);
    return 0;
}

static void test_an_interrupt_that_is_closed(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-sync", 1, 1);
    run_ranks(&s, &psd, reused_rank, 1, 1);
}

/* ---- wrong use ------------------------------------------------------------------------------------------
 */

static int nonfinite_rank(scene *s, int rank)
{
    en_client *client;
    REQUIRE(open_rank(s, rank, 1, &client) == EN_OK);
    en_client_grad(client, B)[1] = NAN;
    REQUIRE(en_client_push_pull(client, B, 1) == EN_OK);
    REQUIRE(en_client_wait(client, B) == EN_ENONFINITE);
    REQUIRE(en_client_status(client) == EN_ENONFINITE && en_client_pull(client, W) == EN_ENONFINITE);
    en_client_close(client);
    return 0;
}

static void test_a_gradient_that_is_not_finite(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-async", 1, 1);
    run_ranks(&s, &psd, nonfinite_rank, 1, 1);
}

static int clumsy_rank(scene *s, int rank)
{
    en_client *client;
    en_client_counters unsized = {0};
    REQUIRE(open_rank(s, rank, 1, &client) == EN_OK);
    REQUIRE(en_client_param(client, TENSORS) == NULL && en_client_grad(client, -1) == NULL);
    REQUIRE(en_client_elements(client, TENSORS) == 0 && en_client_version(client, TENSORS) == 0);
    REQUIRE(en_client_pull(client, TENSORS) == EN_EINVAL && en_client_wait(client, -2) == EN_EINVAL);
    REQUIRE(en_client_push(client, B, 1) == EN_OK);
    REQUIRE(en_client_pull(client, EN_CLIENT_ALL) == EN_EINVAL);
    REQUIRE(strstr(s->said, "tensor b") != NULL);
    REQUIRE(en_client_pull(client, W) == EN_OK); /* another one is free */
    REQUIRE(en_client_wait(client, EN_CLIENT_ALL) == EN_OK);
    REQUIRE(en_client_wait(client, EN_CLIENT_ALL) == EN_OK); /* nothing in progress: at once */
    REQUIRE(en_client_count(client, &unsized) == EN_EINVAL);
    REQUIRE(en_client_version(client, B) == 0); /* the push has stepped in the store, not in param */
    REQUIRE(en_client_push_pull(client, B, 1) == EN_OK);
    REQUIRE(en_client_finish(client) == EN_OK); /* waits for it */
    REQUIRE(en_client_version(client, B) == 2);
    en_client_close(client);
    en_client_close(NULL);
    return 0;
}

static void test_clumsy_calls_change_nothing(void **state)
{
    (void)state;
    scene s;
    process psd;
    start_psd(&s, &psd, "ps-async", 1, 1);
    run_ranks(&s, &psd, clumsy_rank, 1, 0);
}

/* Each is refused before anybody is spoken to. */
static void test_options_are_checked(void **state)
{
    (void)state;
    scene s = {.server = "tcp://127.0.0.1:1", .strategy = "ps-sync"};
    en_client_tensor tensors[TENSORS], wrong[TENSORS];
    declare(tensors);
    const en_client_options good = options_of(&s, 0, 1, tensors);
    en_client *client;
#define REFUSED(status, ...)                                                                                 \
    do {                                                                                                     \
        en_client_options o = good;                                                                          \
        memcpy(wrong, tensors, sizeof wrong);                                                                \
        s.said[0] = 0;                                                                                       \
        __VA_ARGS__;                                                                                         \
        assert_int_equal(en_client_open(&o, &client), status);                                               \
        assert_null(client);                                                                                 \
        assert_true(o.abi != EN_CLIENT_ABI || o.size == 0 || s.said[0] != 0);                                \
    } while (0)
    REFUSED(EN_EVERSION, o.abi = 2);
    REFUSED(EN_EVERSION, o.size = 0);
    REFUSED(EN_EINVAL, o.server = NULL);
    REFUSED(EN_EINVAL, o.server = "127.0.0.1");
    REFUSED(EN_EINVAL, o.strategy = "./mine.so");
    REFUSED(EN_EINVAL, o.rank = 1);
    REFUSED(EN_EINVAL, o.lr = 0);
    REFUSED(EN_EINVAL, o.lr = NAN);
    REFUSED(EN_EINVAL, o.optimizer = "magic");
    REFUSED(EN_EINVAL, o.lr_schedule = "cosine");
    REFUSED(EN_EINVAL, o.lr_schedule = "sometimes");
    static const uint64_t falling[] = {200, 100};
    REFUSED(EN_EINVAL,
            (o.lr_schedule = "multistep", o.lr_gamma = 0.1, o.lr_milestones = falling, o.nlr_milestones = 2));
    REFUSED(EN_EINVAL, o.ntensors = 0);
    REFUSED(EN_EINVAL, o.ntensors = EN_CLIENT_TENSORS + 1);
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[0].size = 0));
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[B].name = "w"));
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[B].name = ""));
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[B].name = "b\n09:00:00.000 E psd: no line of ours"));
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[B].name = "\xc3("));
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[B].reserved = 1));
    REFUSED(EN_EINVAL, o.flags = 64);
    REFUSED(EN_EINVAL, o.interrupt_fd = 1000000); /* not open */
    assert_int_equal(en_client_open(NULL, &client), EN_EINVAL);
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[W].shape[2] = UINT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wrong_token),
        cmocka_unit_test(test_a_mismatch_is_named),
        cmocka_unit_test(test_psd_has_another_strategy),
        cmocka_unit_test(test_psd_is_killed),
        cmocka_unit_test(test_psd_is_killed_over_tcp),
        cmocka_unit_test(test_a_rank_goes_without_a_word),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_an_interrupt_that_is_closed),
        cmocka_unit_test(test_a_gradient_that_is_not_finite),
        cmocka_unit_test(test_clumsy_calls_change_nothing),
        cmocka_unit_test(test_options_are_checked),
    };
    return system_main(tests);
}
