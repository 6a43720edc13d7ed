/* test_kv.c - libentrain.so against a real psd: ranks are forked programs that know entrain/client.h only.
 *
 * A rank fails by returning a line number; its exit code is then not 0. In a build with AddressSanitizer
 * every rank looks for leaks before it ends. */
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entrain/client.h"
#include "ops/optimizer.h"
#include "runtime/net/token.h"
#include "tests/system/process.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
static int leaks(void)
{
    return __lsan_do_recoverable_leak_check();
}
#else
static int leaks(void)
{
    return 0;
}
#endif

enum { RANKS = 2, STEPS = 12, PIECE = 1 << 20, RANK_SECONDS = 20 };

/* ---- programs -------------------------------------------------------------------------------------------
 */

/* What a rank is told; the log of its client ends up in `said`. */
typedef struct scene {
    char server[64];
    const char *strategy;
    uint32_t flags;
    int go[2]; /* a pipe from a rank to the test, or to another rank */
    char said[4096];
} scene;

typedef int (*rank_main)(scene *s, int rank);

#define REQUIRE(claim)                                                                                       \
    do {                                                                                                     \
        if (!(claim)) {                                                                                      \
            fprintf(stderr, "%s:%d: rank %d: not so: %s\nit said: %s\n", __FILE__, __LINE__, rank, #claim,   \
                    s->said);                                                                                \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

static void start_psd(scene *s, process *psd, const char *strategy, int ranks, int shards)
{
    const int port = free_port();
    *s = (scene){.strategy = strategy, .go = {-1, -1}};
    snprintf(s->server, sizeof s->server, "tcp://127.0.0.1:%d", port);
    process_start(psd, "psd", NULL, "--listen=%s --strategy=%s --world-size=%d --shards=%d", s->server,
                  strategy, ranks, shards);
}

static pid_t start_rank(scene *s, rank_main main, int rank)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(RANK_SECONDS * SLOWNESS); /* no wait without a deadline */
    const int code = main(s, rank);
    fflush(NULL);
    _exit(code != 0 ? code : leaks());
}

static int end_rank(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void run_ranks(scene *s, rank_main main, int ranks)
{
    pid_t pid[RANKS];
    for (int r = 0; r < ranks; r++)
        pid[r] = start_rank(s, main, r);
    for (int r = 0; r < ranks; r++)
        assert_int_equal(end_rank(pid[r]), 0);
}

/* One word between processes, with a deadline. */
static void open_go(scene *s)
{
    assert_int_equal(pipe(s->go), 0);
}

static void close_go(const scene *s)
{
    close(s->go[0]);
    close(s->go[1]);
}

static void say_go(const scene *s)
{
    if (write(s->go[1], "", 1) != 1) _exit(1);
}

static int hear_go(const scene *s)
{
    struct pollfd word = {.fd = s->go[0], .events = POLLIN};
    char byte;
    return poll(&word, 1, RANK_SECONDS * SLOWNESS * 1000) == 1 && read(s->go[0], &byte, 1) == 1;
}

/* ---- what a rank declares -------------------------------------------------------------------------------
 */

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    scene *s = user;
    const size_t used = strlen(s->said);
    if (level <= 1) snprintf(s->said + used, sizeof s->said - used, "%s: %s\n", subsystem, text);
}

enum { W, B, S, TENSORS };
static const uint64_t counts[TENSORS] = {35, 3, 1};

static float initial[35];

static void declare(en_client_tensor tensors[TENSORS])
{
    static const char *const names[] = {"w", "b", "s"};
    for (int i = 0; i < 35; i++)
        initial[i] = (float)i - 8;
    for (int t = 0; t < TENSORS; t++)
        tensors[t] = (en_client_tensor){.size = sizeof *tensors, .name = names[t], .initial = initial};
    tensors[W].shape[0] = 5;
    tensors[W].shape[1] = 7;
    tensors[B].shape[0] = 3;
}

static en_client_options options_of(scene *s, int rank, int ranks, const en_client_tensor *tensors)
{
    return (en_client_options){.abi = EN_CLIENT_ABI,
                               .size = sizeof(en_client_options),
                               .server = s->server,
                               .strategy = s->strategy,
                               .rank = rank,
                               .world_size = ranks,
                               .runtime_dir = system_folder(),
                               .flags = s->flags,
                               .tensors = tensors,
                               .ntensors = TENSORS,
                               .lr = 1,
                               .join_timeout = 10 * SLOWNESS,
                               .log = listen_in,
                               .log_user = s};
}

static en_status open_rank(scene *s, int rank, int ranks, en_client **client)
{
    en_client_tensor tensors[TENSORS];
    declare(tensors);
    const en_client_options options = options_of(s, rank, ranks, tensors);
    return en_client_open(&options, client);
}

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
        REQUIRE(memcmp(en_client_param(client, t), initial, counts[t] * sizeof(float)) == 0);
        memcpy(expected[t], initial, counts[t] * sizeof(float));
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
    run_ranks(&s, sync_rank, RANKS);
    assert_int_equal(process_wait(&psd, 10), 0);
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
    run_ranks(&s, async_rank, 1);
    assert_int_equal(process_wait(&psd, 10), 0);
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
            float expected = initial[i];
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
    run_ranks(&s, ssp_rank, RANKS);
    assert_int_equal(process_wait(&psd, 10), 0);
}

/* ---- who may not join -----------------------------------------------------------------------------------
 */

static int stranger_rank(scene *s, int rank)
{
    char path[256];
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
    REQUIRE(eni_token_write(&token, path) == EN_OK);
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
    run_ranks(&s, stranger_rank, 1);
    assert_int_equal(process_wait(&psd, 10), 0);
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
    run_ranks(&s, mismatched_rank, RANKS);
    assert_int_equal(process_wait(&psd, 10), 1);
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
    run_ranks(&s, other_strategy_rank, 1);
    assert_int_equal(process_wait(&psd, 10), 1);
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
    assert_true(now_seconds() - begin < 3 * SLOWNESS);
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
    run_ranks(&s, deserted_rank, RANKS);
    close_go(&s);
    assert_int_equal(process_wait(&psd, 10), 1);
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
    run_ranks(&s, interrupted_rank, RANKS);
    close_go(&s);
    assert_int_equal(process_wait(&psd, 10), 1);
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
    run_ranks(&s, nonfinite_rank, 1);
    assert_int_equal(process_wait(&psd, 10), 1);
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
    REQUIRE(strstr(s->said, "tensor b has a call in progress") != NULL);
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
    run_ranks(&s, clumsy_rank, 1);
    assert_int_equal(process_wait(&psd, 10), 0);
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
    REFUSED(EN_EINVAL, o.ntensors = 0);
    REFUSED(EN_EINVAL, o.ntensors = EN_CLIENT_TENSORS + 1);
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[0].size = 0));
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[B].name = "w"));
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[B].name = ""));
    REFUSED(EN_EINVAL, (o.tensors = wrong, wrong[W].shape[2] = UINT64_MAX));
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
        if (type == 'A') continue; /* the version itself */
        if (strncmp(name, "en_client_", 10) != 0) fail_msg("%s is exported", name);
        n++;
    }
    assert_int_equal(pclose(nm), 0);
    assert_int_equal(n, 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_nothing_else_is_exported),
        cmocka_unit_test(test_sync_mean_in_shared_memory),
        cmocka_unit_test(test_sync_mean_over_tcp_on_three_shards),
        cmocka_unit_test(test_async_alone_is_sequential),
        cmocka_unit_test(test_ssp_applies_every_gradient_once),
        cmocka_unit_test(test_a_wrong_token),
        cmocka_unit_test(test_a_mismatch_is_named),
        cmocka_unit_test(test_psd_has_another_strategy),
        cmocka_unit_test(test_psd_is_killed),
        cmocka_unit_test(test_psd_is_killed_over_tcp),
        cmocka_unit_test(test_a_rank_goes_without_a_word),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_a_gradient_that_is_not_finite),
        cmocka_unit_test(test_clumsy_calls_change_nothing),
    };
    return system_main(tests);
}
