/* test_gpu_lease.c - the queue for a GPU, among processes: one at a time, in the order of arrival, whatever
 * becomes of them; and nothing that others put into the folder is trusted. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "tests/cluster.h"
#include "worker/lease.h"

#define UUID "GPU-5f1c2a3b-0000"

enum { ARRIVED, HOLDER, SERVED, FREED };

static char dir[64], path[128], said[1024];

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    snprintf(said, sizeof said, "%s", text);
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/entrain-lease-XXXXXX");
    if (mkdtemp(dir) == NULL) return -1;
    snprintf(path, sizeof path, "%s/entrain-%s.lease", dir, UUID);
    said[0] = 0;
    eni_log_set_sink(listen_in, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    eni_log_set_sink(NULL, NULL);
    unlink(path);
    return rmdir(dir);
}

/* 1 once the word is at least `want`; 0 after 20 s. */
static int await_word(const _Atomic uint64_t *word, uint64_t want)
{
    const int64_t deadline = eni_now_ns() + 20 * ENI_SECOND;
    while (*word < want && eni_now_ns() < deadline)
        sched_yield();
    return *word >= want;
}

/* Polls until it is ours. */
static en_status await_lease(eni_lease *lease, eni_lease_holder *last)
{
    const int64_t deadline = eni_now_ns() + 20 * ENI_SECOND;
    eni_lease_holder now;
    en_status st;
    while ((st = eni_lease_poll(lease, &now)) == EN_ETIMEOUT && eni_now_ns() < deadline) {
        *last = now;
        sched_yield();
    }
    return st;
}

/* ---- one at a time, in order ---- */

static int queues(int rank, int n, cluster_board *board, void *user)
{
    eni_lease *lease = NULL;
    eni_lease_holder holder = {0};
    (void)user;
    CLUSTER_CHECK(await_word(&board->word[ARRIVED], (uint64_t)rank));
    CLUSTER_CHECK(eni_lease_open(dir, UUID, &lease) == EN_OK);
    const en_status first = eni_lease_poll(lease, &holder);
    if (rank == 0) {
        CLUSTER_CHECK(first == EN_OK && holder.ahead == 0);
        board->word[HOLDER] = (uint64_t)getpid();
    } else {
        CLUSTER_CHECK(first == EN_ETIMEOUT && holder.ahead == rank);
        CLUSTER_CHECK(holder.pid == (int64_t)board->word[HOLDER]);
        CLUSTER_CHECK(holder.user[0] != 0 && holder.since_s > 0);
    }
    board->word[ARRIVED]++;
    CLUSTER_CHECK(await_word(&board->word[ARRIVED], (uint64_t)n));
    CLUSTER_CHECK(await_lease(lease, &holder) == EN_OK);
    CLUSTER_CHECK(board->word[FREED] ==
                  (uint64_t)rank); /* all before have given it back, nobody else has it */
    CLUSTER_CHECK(++board->word[SERVED] == (uint64_t)rank + 1);
    board->word[FREED]++;
    eni_lease_close(lease);
    return 0;
}

static void test_order(void **state)
{
    (void)state;
    struct cluster cluster;
    assert_int_equal(cluster_run(&cluster, 5, queues, NULL, 30000), 0);
    cluster_close(&cluster);
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0666); /* other users' runs queue, too */
}

/* ---- a death, of the holder or in the queue ---- */

static int dies(int rank, int n, cluster_board *board, void *user)
{
    eni_lease *lease = NULL;
    eni_lease_holder holder = {0};
    (void)user;
    CLUSTER_CHECK(await_word(&board->word[ARRIVED], (uint64_t)rank));
    CLUSTER_CHECK(eni_lease_open(dir, UUID, &lease) == EN_OK);
    CLUSTER_CHECK(eni_lease_poll(lease, &holder) == (rank == 0 ? EN_OK : EN_ETIMEOUT));
    board->word[ARRIVED]++;
    CLUSTER_CHECK(await_word(&board->word[ARRIVED], (uint64_t)n));
    if (rank < 2) raise(SIGKILL);
    CLUSTER_CHECK(await_lease(lease, &holder) == EN_OK);
    eni_lease_close(lease);
    return 0;
}

static void test_death(void **state)
{
    (void)state;
    struct cluster cluster;
    assert_int_equal(cluster_run(&cluster, 3, dies, NULL, 30000), 2);
    assert_int_equal(cluster.exit_code[2], 0);
    cluster_close(&cluster);
}

/* The tickets begin anew once nobody is there: the file does not grow from run to run. */
static void test_stays_small(void **state)
{
    (void)state;
    eni_lease_holder holder;
    struct stat s;
    for (int i = 0; i < 5; i++) {
        eni_lease *lease = NULL;
        assert_int_equal(eni_lease_open(dir, UUID, &lease), EN_OK);
        assert_int_equal(eni_lease_poll(lease, &holder), EN_OK);
        assert_int_equal(eni_lease_poll(lease, &holder), EN_OK);
        eni_lease_close(lease);
    }
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_size, 32);
}

/* ---- the wait ---- */

static en_status is_over(void *user)
{
    const cluster_board *board = user;
    return board->word[SERVED] > 0 ? EN_EINTR : EN_OK;
}

/* Rank 0 holds; rank 1 waits, says for whom, and ends when it is told. */
static int waits(int rank, int n, cluster_board *board, void *user)
{
    eni_lease *lease = NULL;
    eni_lease_holder holder = {0};
    int *fds = user;
    char text[64];
    (void)n;
    CLUSTER_CHECK(await_word(&board->word[ARRIVED], (uint64_t)rank));
    CLUSTER_CHECK(eni_lease_open(dir, UUID, &lease) == EN_OK);
    if (rank == 0) {
        CLUSTER_CHECK(eni_lease_poll(lease, &holder) == EN_OK);
        board->word[HOLDER] = (uint64_t)getpid();
        board->word[ARRIVED]++;
        CLUSTER_CHECK(await_word(&board->word[ARRIVED], 2));
        board->word[SERVED] = 1;
        CLUSTER_CHECK(write(fds[1], "x", 1) == 1);
        CLUSTER_CHECK(await_word(&board->word[FREED], 1));
    } else {
        const eni_alive alive = {.status = is_over, .user = board, .fd = fds[0]};
        board->word[ARRIVED]++;
        CLUSTER_CHECK(eni_lease_wait(lease, "cuda:0 (GPU-5f1c)", &alive) == EN_EINTR);
        snprintf(text, sizeof text, "held by pid %lld of ", (long long)board->word[HOLDER]);
        CLUSTER_CHECK(strstr(said, "waiting for cuda:0 (GPU-5f1c): ") == said && strstr(said, text) != NULL);
        CLUSTER_CHECK(strstr(said, " since ") != NULL);
        board->word[FREED] = 1;
    }
    eni_lease_close(lease);
    return 0;
}

static void test_wait_ends(void **state)
{
    (void)state;
    struct cluster cluster;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(cluster_run(&cluster, 2, waits, fds, 30000), 0);
    cluster_close(&cluster);
    close(fds[0]);
    close(fds[1]);
}

/* ---- what others put there ---- */

static void test_refusals(void **state)
{
    (void)state;
    eni_lease *lease = NULL;
    eni_lease_holder holder;
    char other[128];
    snprintf(other, sizeof other, "%s/precious", dir);
    const int fd = open(other, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, "precious", 8) == 8 && close(fd) == 0);

    assert_int_equal(symlink(other, path), 0);
    assert_int_not_equal(eni_lease_open(dir, UUID, &lease), EN_OK);
    assert_non_null(strstr(said, path));
    unlink(path);

    assert_int_equal(link(other, path), 0);
    assert_int_equal(eni_lease_open(dir, UUID, &lease), EN_EINVAL);
    assert_non_null(strstr(said, "no plain file"));
    unlink(path);

    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(eni_lease_open(dir, UUID, &lease), EN_EINVAL);
    unlink(path);
    struct stat s;
    assert_true(stat(other, &s) == 0 && s.st_size == 8);
    unlink(other);

    assert_int_equal(eni_lease_open("/nowhere/at/all", UUID, &lease), EN_EIO);
    assert_int_equal(eni_lease_open(dir, "../etc", &lease), EN_EINVAL);
    assert_null(lease);

    /* rubbish in a file that nobody locks is swept away */
    const int big = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    assert_true(big >= 0 && ftruncate(big, (off_t)1 << 40) == 0 && close(big) == 0);
    assert_int_equal(eni_lease_open(dir, UUID, &lease), EN_OK);
    assert_int_equal(eni_lease_poll(lease, &holder), EN_OK);
    eni_lease_close(lease);
}

/* ---- the folder ---- */

typedef struct folder_case {
    const char *folder;
    en_status expected;
    const char *says;
} folder_case;

/* In a process of its own, as somebody whom modes mean something to. */
static int looks_at_folder(int rank, int n, cluster_board *board, void *user)
{
    const folder_case *c = user;
    (void)rank, (void)n, (void)board;
    CLUSTER_CHECK(geteuid() != 0 || setuid(65534) == 0);
    CLUSTER_CHECK(eni_lease_check(c->folder) == c->expected);
    CLUSTER_CHECK(strstr(said, c->says) != NULL && (c->expected == EN_OK) == (said[0] == 0));
    return 0;
}

static void expect_folder(const char *folder, en_status expected, const char *says)
{
    struct cluster cluster;
    folder_case c = {folder, expected, says};
    assert_int_equal(cluster_run(&cluster, 1, looks_at_folder, &c, 30000), 0);
    cluster_close(&cluster);
}

static void test_folders(void **state)
{
    (void)state;
    expect_folder("/nowhere/at/all", EN_EINVAL, "is no folder");
    expect_folder("/dev/null", EN_EINVAL, "is no folder");
    assert_int_equal(chmod(dir, 0777), 0);
    expect_folder(dir, EN_OK, "");
    assert_int_equal(chmod(dir, 0555), 0);
    expect_folder(dir, EN_EINVAL, "cannot be written");
    expect_folder(dir, EN_EINVAL, dir);

    /* but its administrator may have made the queue */
    assert_int_equal(chmod(dir, 0755), 0);
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    assert_true(fd >= 0 && fchmod(fd, 0666) == 0 && close(fd) == 0);
    assert_int_equal(chmod(dir, 0555), 0);
    expect_folder(dir, EN_OK, "");
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(chmod(dir, 0555), 0);
    expect_folder(dir, EN_EINVAL, "cannot be written");
    assert_int_equal(chmod(dir, 0700), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_death, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stays_small, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wait_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folders, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
