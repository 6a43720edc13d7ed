/* test_mesh.c - four processes reach each other's sockets and arenas; unauthenticated peers and absent ranks
 * do not hold them up. */
#include "runtime/collective/mesh.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "tests/cluster.h"
#include "tests/heard.h"
#include "tests/recv_all.h"

enum { RANKS = 4, COUNT = 1024 };

/* What all processes know when the mesh is made: as after WELCOME. */
static struct scene {
    eni_mesh mesh[RANKS];
    eni_key_value member_data[RANKS][2];
    eni_peer peers[RANKS];
    eni_token token;
} scene;

static int setup(void **state)
{
    (void)state;
    memset(&scene, 0, sizeof scene);
    eni_log_set_sink(hear, NULL); /* unauthenticated peers are warned of */
    eni_token_make(&scene.token);
    for (int r = 0; r < RANKS; r++) {
        if (eni_mesh_open("127.0.0.1", "127.0.0.1", false, &scene.mesh[r]) != EN_OK) return -1;
        scene.member_data[r][0] = (eni_key_value){"data", scene.mesh[r].address};
        scene.member_data[r][1] = (eni_key_value){"arena", scene.mesh[r].name};
        scene.peers[r] = (eni_peer){.rank = r, .member_data = scene.member_data[r], .nmember_data = 2};
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS; r++) {
        eni_mesh_close(&scene.mesh[r]);
        eni_mesh_close(&scene.mesh[r]); /* safe twice */
    }
    eni_log_set_sink(NULL, NULL);
    return 0;
}

static eni_world_info info_of(int rank)
{
    return (eni_world_info){.rank = rank, .nranks = RANKS, .epoch = 3, .peers = scene.peers};
}

static int64_t in_ms(int ms)
{
    return eni_now_ns() + ms * ENI_MILLI;
}

static void run(cluster_main main, int deadline_ms)
{
    struct cluster cluster;
    assert_int_equal(cluster_run(&cluster, RANKS, main, NULL, deadline_ms), 0);
    cluster_close(&cluster);
}

/* ---- sockets ---- */

/* Everybody greets everybody: a socket that leads to another rank than it says would show. */
static int sockets(int rank, int n, cluster_board *board, void *user)
{
    (void)board, (void)user;
    const eni_world_info info = info_of(rank);
    int fd[RANKS];
    CLUSTER_CHECK(eni_mesh_sockets(&scene.mesh[rank], &info, &scene.token, in_ms(10000), -1, fd) == EN_OK);
    CLUSTER_CHECK(fd[rank] == -1);
    for (int r = 0; r < n; r++) {
        const int hello[2] = {rank, r};
        if (r != rank) CLUSTER_CHECK(eni_tcp_send(fd[r], hello, sizeof hello, in_ms(5000), -1) == EN_OK);
    }
    for (int r = 0; r < n; r++) {
        int hello[2] = {-1, -1};
        if (r == rank) continue;
        CLUSTER_CHECK(recv_all(fd[r], hello, sizeof hello, in_ms(5000), -1) == EN_OK);
        CLUSTER_CHECK(hello[0] == r && hello[1] == rank);
        close(fd[r]);
    }
    return 0;
}

static void test_sockets(void **state)
{
    (void)state;
    run(sockets, 60000);
}

/* The greeting as docs/wire.md has it. */
struct greeting {
    uint32_t magic;
    int32_t rank;
    uint32_t epoch;
    uint8_t token[ENI_TOKEN_BYTES];
};

static int newcomer(const void *says, size_t bytes)
{
    eni_address address;
    int fd = -1;
    assert_int_equal(eni_address_parse(scene.mesh[0].address, &address), EN_OK);
    assert_int_equal(eni_tcp_connect(&address, in_ms(5000), -1, &fd), EN_OK);
    if (bytes > 0) assert_int_equal(eni_tcp_send(fd, says, bytes, in_ms(5000), -1), EN_OK);
    return fd;
}

/* They stand in rank 0's queue before any rank does. */
static void test_unauthenticated_peers_are_dropped(void **state)
{
    (void)state;
    struct greeting right = {.magic = 0x454e4d31u, .rank = 1, .epoch = 3};
    memcpy(right.token, scene.token.bytes, sizeof right.token);
    struct greeting token = right, epoch = right, own = right, none = right, magic = right;
    token.token[3] ^= 1;
    epoch.epoch = 2;
    own.rank = 0;
    none.rank = RANKS;
    magic.magic++;
    int fd[] = {newcomer(&token, sizeof token), newcomer(&epoch, sizeof epoch), newcomer(&own, sizeof own),
                newcomer(&none, sizeof none),   newcomer(&magic, sizeof magic), newcomer(&right, 5)};
    close(fd[5]); /* said half, and left */
    run(sockets, 60000);
    for (int i = 0; i < 5; i++)
        close(fd[i]);
}

/* Connects, says nothing, and stays: it costs two seconds, not the run. */
static void test_a_silent_peer_is_dropped(void **state)
{
    (void)state;
    int fd = newcomer(NULL, 0);
    int64_t begin = eni_now_ns();
    run(sockets, 60000);
    assert_true(eni_now_ns() - begin < 6 * ENI_SECOND);
    close(fd);
}

/* Rank 3 never comes. The others have one deadline and end together: one that came too late would find the sockets of those that
 * have given up closed, which is another failure. */
static int absent(int rank, int n, cluster_board *board, void *user)
{
    const int64_t deadline_ns = *(const int64_t *)user;
    const eni_world_info info = info_of(rank);
    int fd[RANKS] = {7, 7, 7, 7};
    if (rank == n - 1) return 0;
    const en_status st = eni_mesh_sockets(&scene.mesh[rank], &info, &scene.token, deadline_ns, -1, fd);
    const int64_t end_ns = eni_now_ns();
    atomic_fetch_add(&board->word[0], 1);
    CLUSTER_CHECK(cluster_await(&board->word[0], (uint64_t)n - 1));
    CLUSTER_CHECK(st == EN_ETIMEOUT && end_ns >= deadline_ns);
    for (int r = 0; r < n; r++)
        CLUSTER_CHECK(fd[r] == -1);
    return 0;
}

static void test_an_absent_rank_ends_at_the_deadline(void **state)
{
    int64_t deadline_ns = in_ms(300);
    struct cluster cluster;
    (void)state;
    assert_int_equal(cluster_run(&cluster, RANKS, absent, &deadline_ns, 60000), 0);
    cluster_close(&cluster);
}

/* The control plane says that somebody died: no need to wait for the deadline. */
static int aborted(int rank, int n, cluster_board *board, void *user)
{
    (void)board, (void)user;
    const eni_world_info info = info_of(rank);
    int fd[RANKS], wake[2];
    if (rank == n - 1) return 0;
    CLUSTER_CHECK(pipe(wake) == 0 && write(wake[1], "x", 1) == 1);
    CLUSTER_CHECK(eni_mesh_sockets(&scene.mesh[rank], &info, &scene.token, in_ms(60000), wake[0], fd) ==
                  EN_EPEER);
    eni_arena *own = NULL, *arenas[RANKS];
    CLUSTER_CHECK(eni_arena_open(COUNT, 1, 1, &own) == EN_OK);
    CLUSTER_CHECK(
        eni_mesh_arenas(&scene.mesh[rank], &info, &scene.token, own, in_ms(60000), wake[0], arenas) != EN_OK);
    eni_arena_close(own);
    return 0;
}

static void test_abort_ends_the_wait(void **state)
{
    (void)state;
    run(aborted, 60000);
}

static int unnamed(int rank, int n, cluster_board *board, void *user)
{
    (void)board, (void)user, (void)n;
    const eni_world_info info = info_of(rank);
    int fd[RANKS];
    eni_arena *own = NULL, *arenas[RANKS];
    if (rank != 1) return 0;
    scene.peers[0].nmember_data = 0; /* rank 0 did not say where it is */
    CLUSTER_CHECK(eni_mesh_sockets(&scene.mesh[rank], &info, &scene.token, in_ms(5000), -1, fd) == EN_EPROTO);
    CLUSTER_CHECK(eni_arena_open(COUNT, 1, 1, &own) == EN_OK);
    CLUSTER_CHECK(eni_mesh_arenas(&scene.mesh[rank], &info, &scene.token, own, in_ms(5000), -1, arenas) ==
                  EN_EPROTO);
    eni_arena_close(own);
    return 0;
}

static void test_a_rank_without_address(void **state)
{
    (void)state;
    run(unnamed, 60000);
}

/* ---- arenas ---- */

/* Each sees what the others wrote, and is seen. */
static int arenas(int rank, int n, cluster_board *board, void *user)
{
    (void)user;
    const eni_world_info info = info_of(rank);
    eni_arena *own = NULL, *all[RANKS];
    CLUSTER_CHECK(eni_arena_open(COUNT, 2, 1, &own) == EN_OK);
    for (uint64_t i = 0; i < COUNT; i++)
        *eni_arena_at(own, 1, i) = (float)(1000 * rank) + (float)i;
    if (rank == n - 1) { /* first tries another run's token at rank 0's door */
        eni_token other;
        int fd;
        eni_token_make(&other);
        CLUSTER_CHECK(eni_fdpass_connect(scene.mesh[0].name, &other, in_ms(5000), -1, &fd) == EN_EDENIED);
    }
    CLUSTER_CHECK(eni_mesh_arenas(&scene.mesh[rank], &info, &scene.token, own, in_ms(10000), -1, all) ==
                  EN_OK);
    CLUSTER_CHECK(all[rank] == own);
    for (int r = 0; r < n; r++)
        for (uint64_t i = 0; i < COUNT; i++)
            CLUSTER_CHECK(*eni_arena_at(all[r], 1, i) == (float)(1000 * r) + (float)i);
    /* a write through a peer's mapping is the peer's memory */
    *eni_arena_at(all[(rank + 1) % n], 0, 0) = (float)(rank + 1);
    atomic_fetch_add(&board->word[0], 1);
    int64_t until = in_ms(5000);
    while (atomic_load(&board->word[0]) < (uint64_t)n && eni_now_ns() < until)
        eni_sleep_until(in_ms(1));
    CLUSTER_CHECK(*eni_arena_at(own, 0, 0) == (float)((rank + n - 1) % n + 1));
    for (int r = 0; r < n; r++)
        eni_arena_close(all[r]);
    return 0;
}

static void test_arenas(void **state)
{
    (void)state;
    run(arenas, 60000);
}

static int arenas_absent(int rank, int n, cluster_board *board, void *user)
{
    const eni_world_info info = info_of(rank);
    eni_arena *own = NULL, *all[RANKS];
    if (rank == n - 1) return 0;
    CLUSTER_CHECK(eni_arena_open(COUNT, 1, 1, &own) == EN_OK);
    const en_status st =
        eni_mesh_arenas(&scene.mesh[rank], &info, &scene.token, own, *(const int64_t *)user, -1, all);
    atomic_fetch_add(&board->word[0], 1);
    CLUSTER_CHECK(cluster_await(&board->word[0], (uint64_t)n - 1));
    CLUSTER_CHECK(st == EN_ETIMEOUT);
    for (int r = 0; r < n; r++)
        CLUSTER_CHECK(all[r] == NULL);
    eni_arena_close(own);
    return 0;
}

static void test_an_absent_arena_ends_at_the_deadline(void **state)
{
    int64_t deadline_ns = in_ms(300);
    struct cluster cluster;
    (void)state;
    assert_int_equal(cluster_run(&cluster, RANKS, arenas_absent, &deadline_ns, 60000), 0);
    cluster_close(&cluster);
}

/* A rank whose vector has another length is not of this run, whatever its token. */
static int arenas_unequal(int rank, int n, cluster_board *board, void *user)
{
    (void)board, (void)user, (void)n;
    const eni_world_info info = {.rank = rank, .nranks = 2, .epoch = 3, .peers = scene.peers};
    eni_arena *own = NULL, *all[RANKS];
    if (rank > 1) return 0;
    CLUSTER_CHECK(eni_arena_open(rank == 0 ? COUNT : COUNT / 2, 1, 1, &own) == EN_OK);
    CLUSTER_CHECK(eni_mesh_arenas(&scene.mesh[rank], &info, &scene.token, own, in_ms(5000), -1, all) ==
                  EN_EPROTO);
    eni_arena_close(own);
    return 0;
}

static void test_unequal_arenas_are_refused(void **state)
{
    (void)state;
    run(arenas_unequal, 60000);
}

static void test_beyond_loopback_is_denied(void **state)
{
    (void)state;
    eni_mesh mesh;
    assert_int_equal(eni_mesh_open("0.0.0.0", "127.0.0.1", false, &mesh), EN_EDENIED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sockets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unauthenticated_peers_are_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_silent_peer_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_absent_rank_ends_at_the_deadline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abort_ends_the_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_rank_without_address, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arenas, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_absent_arena_ends_at_the_deadline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unequal_arenas_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_beyond_loopback_is_denied, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
