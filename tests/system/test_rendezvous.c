/* test_rendezvous.c - where a run meets, on one host: by a file, after a killed run, and what stands in the
 * way. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/outer.h"

/* Promise: A file rendezvous works, replaces the file of a killed run and refuses a file that another user
 * can change. */

static void start_rank(process *p, int rank, const char *env, const char *how, const char *out)
{
    process_start(p, "worker", env,
                  "--strategy=ring %s --rank=%d --world-size=2 --out=%s " OUTER_ALONE " " OUTER_JOB, how,
                  rank, out);
}

static const char *expected_hash(void)
{
    static char hash[72];
    if (hash[0] == 0) snprintf(hash, sizeof hash, "%s", train_hash(60, "-n 2 --strategy=ring " OUTER_JOB));
    return hash;
}

static void run_to_the_end(const char *env, const char *how)
{
    process ranks[2];
    const char *out = outer_folder();
    start_rank(&ranks[1], 1, env, how, out);
    start_rank(&ranks[0], 0, env, how, out);
    for (int r = 0; r < 2; r++)
        outer_expect_end(&ranks[r], 0);
    outer_expect_hash(out, expected_hash());
}

static int exists(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0;
}

/* A rank 0 that waits for others, then is killed: what it has left is still there. */
static void leave_behind(const char *how, const char *path)
{
    process zero;
    start_rank(&zero, 0, NULL, how, outer_folder());
    wait_for_line(&zero, "leads at", 20);
    const double deadline = now_seconds() + 10;
    while (!exists(path))
        assert_true(now_seconds() < deadline);
    process_kill(&zero, SIGKILL);
    assert_int_equal(process_wait(&zero, 10), 128 + SIGKILL);
    assert_true(exists(path));
}

static void test_file(void **state)
{
    char how[200], path[160];
    (void)state;
    snprintf(path, sizeof path, "%s/meet", system_folder());
    snprintf(how, sizeof how, "--init-method=file://%s", path);
    run_to_the_end(NULL, how);
    assert_false(exists(path));
    leave_behind(how, path);
    run_to_the_end(NULL, how); /* rank 1 first: it must not believe the dead run's file */
    assert_false(exists(path));
    char given[240];
    snprintf(given, sizeof given, "%s?port=%d", how, outer_port());
    run_to_the_end(NULL, given);
    promise("--init-method=file://: the bytes of entrain run; a killed run's file is replaced, a run's own "
            "removed");
}

static void write_text(const char *path, const char *text, unsigned mode)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

static void refuse(int rank, const char *how, const char *first, const char *second)
{
    process p;
    start_rank(&p, rank, NULL, how, outer_folder());
    int code = process_wait(&p, 30);
    if ((code != 2 && code != 1) || process_says(&p, first, second) != 1)
        fail_msg("%s: exit %d, expected one line with \"%s\" and \"%s\":\n%s", how, code, first, second,
                 process_err(&p));
}

static void test_files_that_are_refused(void **state)
{
    char how[240], path[160], text[512];
    (void)state;
    snprintf(path, sizeof path, "%s/odd", system_folder());
    snprintf(how, sizeof how, "--rendezvous=file://%s --join-timeout=1s", path);
    refuse(1, how, path, "no rank 0 has written");
    write_text(path, "entrain-rendezvous 1\n", 0600);
    refuse(1, how, path, "is not what rank 0");
    refuse(0, how, path, "is not what rank 0"); /* whose file is it? not ours to replace */
    snprintf(text, sizeof text,
             "entrain-rendezvous 1\ntoken 00112233445566778899aabbccddeeff\nhost a\nhost_id b\npid 1\n"
             "at tcp://127.0.0.1:1\nend\n");
    write_text(path, text, 0644);
    refuse(1, how, path, "mode 0600");
    assert_int_equal(chmod(path, 0600), 0);
    refuse(1, how, "another host (a)", "its loopback only");
    unlink(path);
    assert_int_equal(symlink("/etc/hosts", path), 0);
    refuse(1, how, path, "cannot read");
    unlink(path);
    refuse(0, "--rendezvous=file:///nowhere/at/all", "/nowhere/at/all", "its folder must exist");
    refuse(1, "--rendezvous=file:///x?port=70000", "file:///x?port=70000", "?port=N");
    promise("files of others, cut off, readable by others, links, of no folder: refused by name");
}

static void test_file_of_a_live_run(void **state)
{
    process zero;
    char how[200], path[160], pid[40];
    (void)state;
    snprintf(path, sizeof path, "%s/live", system_folder());
    snprintf(how, sizeof how, "--rendezvous=file://%s", path);
    start_rank(&zero, 0, NULL, how, outer_folder());
    wait_for_line(&zero, "leads at", 20);
    const double deadline = now_seconds() + 10;
    while (!exists(path))
        assert_true(now_seconds() < deadline);
    snprintf(pid, sizeof pid, "rank 0 is pid %d", (int)zero.pid);
    refuse(0, how, "belongs to a run that goes on", pid);
    assert_true(exists(path));
    process_kill(&zero, SIGTERM);
    assert_int_not_equal(process_wait(&zero, 10), 0);
    assert_false(exists(path));
}

/* The token file under the port, of a run that was killed. */
static void test_token_of_a_killed_run(void **state)
{
    char how[100], path[160];
    int port = outer_port();
    (void)state;
    snprintf(how, sizeof how, "--rendezvous=tcp://127.0.0.1:%d", port);
    snprintf(path, sizeof path, "%s/entrain/token-%d", system_folder(), port);
    leave_behind(how, path);
    run_to_the_end(NULL, how);
    assert_false(exists(path));
    promise("a token file that a killed rank 0 left is not believed: rank 1 first, the next run works");
}

static void test_port_in_use(void **state)
{
    process zero;
    char how[100], holder[80];
    int port = outer_port();
    (void)state;
    snprintf(how, sizeof how, "--rendezvous=tcp://127.0.0.1:%d", port);
    start_rank(&zero, 0, NULL, how, outer_folder());
    wait_for_line(&zero, "leads at", 20);
    snprintf(holder, sizeof holder, "is in use by pid %d (worker --strategy=ring", (int)zero.pid);
    refuse(0, how, "port ", holder);
    process_kill(&zero, SIGTERM);
    assert_int_not_equal(process_wait(&zero, 10), 0);
    promise("a port in use: who holds it, by pid and command");
}

/* A token file by name or by environment, for all ranks. */
static void test_token_file(void **state)
{
    char how[300], path[160], env[200];
    (void)state;
    snprintf(path, sizeof path, "%s/secret", system_folder());
    write_text(path, "00112233445566778899aabbccddeeff\n", 0600);
    snprintf(how, sizeof how, "--rendezvous=tcp://127.0.0.1:%d --token-file=%s", outer_port(), path);
    run_to_the_end(NULL, how);
    assert_true(exists(path)); /* the user's stays */
    snprintf(how, sizeof how, "--rendezvous=tcp://127.0.0.1:%d", outer_port());
    snprintf(env, sizeof env, "ENTRAIN_TOKEN_FILE=%s", path);
    run_to_the_end(env, how);
    assert_true(exists(path));
    unlink(path);
    run_to_the_end(env, how); /* none there: rank 0 makes one, and takes it away */
    assert_false(exists(path));
}

/* Any wait over 5 s says for what. */
static void test_waits_are_explained(void **state)
{
    process file, port;
    char how[200];
    int number = outer_port();
    (void)state;
    snprintf(how, sizeof how, "--rendezvous=file://%s/never --join-timeout=9s", system_folder());
    start_rank(&file, 1, NULL, how, outer_folder());
    snprintf(how, sizeof how, "--rendezvous=tcp://127.0.0.1:%d --join-timeout=9s", number);
    start_rank(&port, 1, NULL, how, outer_folder());
    assert_int_not_equal(process_wait(&file, GUARD), 0);
    assert_int_not_equal(process_wait(&port, GUARD), 0);
    assert_int_equal(process_says(&file, " W ", "no rank 0 has written"), 1);
    assert_int_equal(process_says(&file, " E ", "no rank 0 has written"), 1);
    assert_int_equal(process_says(&port, " W ", "refused, nobody listens there"), 1);
    assert_int_equal(process_says(&port, " E ", "refused, nobody listens there"), 1);
}

static void test_no_rank(void **state)
{
    process p;
    (void)state;
    process_start(&p, "worker", "WORLD_SIZE=2", "--strategy=ring " OUTER_ALONE " " OUTER_JOB);
    outer_expect_end(&p, 2);
    assert_int_equal(process_says(&p, "which of the 2 ranks is this", "--rank=0 to --rank=1"), 1);
}

/* `entrain check` on two hosts, which are this one twice: each shows its own ranks of all, one spelling each. */
static void test_check_of_two_hosts(void **state)
{
    process node[2];
    const int port = free_port();
    (void)state;
    process_start(&node[0], "entrain", NULL,
                  "check -n 1 --nnodes=2 --node-rank=0 --master-addr=127.0.0.1 --master-port=%d", port);
    process_start(&node[1], "entrain", NULL,
                  "check --local_world_size=1 --nnodes=2 --node_rank=1 --init_method=tcp://127.0.0.1:%d",
                  port);
    for (int k = 0; k < 2; k++) {
        char says[64];
        outer_expect_end(&node[k], 0);
        snprintf(says, sizeof says, "world_size 2, rank %d, backend host", k);
        if (strstr(process_out(&node[k]), says) == NULL)
            fail_msg("no \"%s\" in %s", says, process_out(&node[k]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_file),
                                       cmocka_unit_test(test_files_that_are_refused),
                                       cmocka_unit_test(test_file_of_a_live_run),
                                       cmocka_unit_test(test_token_of_a_killed_run),
                                       cmocka_unit_test(test_port_in_use),
                                       cmocka_unit_test(test_token_file),
                                       cmocka_unit_test(test_waits_are_explained),
                                       cmocka_unit_test(test_no_rank),
                                       cmocka_unit_test(test_check_of_two_hosts)};
    return system_main(tests);
}
