/* test_servers.c - several psds: the same bytes as with one, and as without; their deaths are named. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/clock.h"
#include "tests/system/run.h"

/* Promise: Several servers end with the bytes of one. */

#define MODEL MADE_UP " --model=mlp --batch-size=8 --momentum=0.9 --epochs=2"

static void two_servers_end_with_the_bytes_of_ring_and_solo(void **state)
{
    (void)state;
    const char *solo = train_hash(60 * SLOWNESS, "-n 1 --strategy=solo --accumulate=2 " MODEL);
    const char *ring = train_hash(60 * SLOWNESS, "-n 2 --strategy=ring " MODEL);
    const char *two = train_hash(60 * SLOWNESS, "-n 2 --strategy=ps-sync --servers=2 --shards=3 " MODEL);
    const char *tcp =
        train_hash(60 * SLOWNESS, "-n 2 --strategy=ps-sync --servers=3 --shards=2 --transport=tcp " MODEL);
    assert_string_equal(ring, solo);
    assert_string_equal(two, solo);
    assert_string_equal(tcp, solo);
    promise("ps-sync on 2 servers x 3 shards, and on 3 x 2 by message: the bytes of ring and solo");
}

static void the_report_is_the_sum(void **state)
{
    (void)state;
    json_t *one = train(60 * SLOWNESS, "-n 2 --strategy=ps-sync --shards=6 " MODEL);
    json_t *two = train(60 * SLOWNESS, "-n 2 --strategy=ps-sync --servers=2 --shards=3 " MODEL);
    static const char *const same[] = {"updates", "samples_applied", "samples_dropped", "payload_bytes",
                                       "shm_bytes"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_true(number_at(one, same[i]) == number_at(two, same[i]));
    assert_true(number_at(one, "staleness.count") == number_at(two, "staleness.count"));
    json_decref(one);
    json_decref(two);
}

static void started_by_hand_on_two_ports(void **state)
{
    (void)state;
    process psd[2], worker[2];
    char env[300], address[40];
    const char *both = "--servers=2 --shards=2 --strategy=ps-sync --world-size=2 --quiet";
    snprintf(env, sizeof env, "XDG_RUNTIME_DIR=%s", system_folder());
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", free_port());
    process_start(&psd[1], "psd", env, "--leader=%s --server-rank=1 --listen=tcp://127.0.0.1:0 %s", address,
                  both);
    process_start(&psd[0], "psd", env, "--listen=%s %s", address, both);
    for (int r = 0; r < 2; r++)
        process_start(&worker[r], "worker", env,
                      "--strategy=ps-sync --server=%s --rank=%d --world-size=2 --threads=1 --quiet " MODEL,
                      address, r);
    for (int r = 0; r < 2; r++)
        assert_int_equal(process_wait(&worker[r], 60 * SLOWNESS), 0);
    for (int k = 0; k < 2; k++)
        assert_int_equal(process_wait(&psd[k], 10 * SLOWNESS), 0);
    process_nobody_left(2);
}

/* Kills server k of a run that would last for minutes: every process ends, and the line names the server. */
static void dies(int k, const char *name)
{
    process entrain;
    char word[32], line[64];
    snprintf(word, sizeof word, "--server-rank=%d", k);
    process_start(
        &entrain, "entrain", NULL,
        "run -n 2 --strategy=ps-sync --servers=2 --data=synthetic --model=mlp --batch-size=8 --epochs=1000 "
        "--limit-train-samples=2048 --limit-test-samples=64 --threads=1 --quiet");
    wait_for_line(&entrain, "psd 1: 2 workers", 30 * SLOWNESS);
    wait_for_line(&entrain, "psd: 2 workers", 30 * SLOWNESS);
    const pid_t pid = process_child(entrain.pid, k > 0 ? word : "psd");
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    assert_int_equal(process_wait(&entrain, 5 * SLOWNESS), 1);
    snprintf(line, sizeof line, "entrain: %s (pid %d", name, (int)pid);
    assert_int_equal(process_says(&entrain, line, ""), 1);
    process_nobody_left(3);
}

static void the_death_of_psd_1_is_named(void **state)
{
    (void)state;
    dies(1, "psd 1");
}

static void wrong_numbers_are_refused(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"--server-rank=2 --servers=2 --leader=tcp://127.0.0.1:1", "--server-rank=2"},
        {"--server-rank=1 --servers=2", "--leader"},
        {"--servers=64 --shards=5", "256"},
        {"--servers=2 --state=/nonexistent/x", "--servers=2"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        process p;
        process_start(&p, "psd", NULL, "--strategy=ps-sync --world-size=2 --listen=tcp://127.0.0.1:0 %s",
                      lines[i][0]);
        assert_int_equal(process_wait(&p, 5 * SLOWNESS), 2);
        assert_int_equal(process_says(&p, lines[i][1], ""), 1);
    }
}

/* Whether a process has blocked SIGTERM, which it then reads from a descriptor. */
static bool handles_sigterm(pid_t pid)
{
    char path[40], line[200];
    unsigned long long blocked = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "SigBlk: %llx", &blocked) == 1) break;
    if (file != NULL) fclose(file);
    return (blocked >> (SIGTERM - 1) & 1) != 0;
}

/* psd 1 waits for psd 0's token: a signal ends the wait. */
static void a_server_without_a_leader_can_be_ended(void **state)
{
    (void)state;
    process psd;
    char env[300];
    snprintf(env, sizeof env, "XDG_RUNTIME_DIR=%s", system_folder());
    process_start(&psd, "psd", env,
                  "--leader=tcp://127.0.0.1:%d --server-rank=1 --servers=2 --strategy=ps-sync --world-size=1 "
                  "--join-timeout=600s --quiet",
                  free_port());
    const int64_t deadline_ns = eni_now_ns() + (int64_t)(20 * SLOWNESS) * ENI_SECOND;
    while (!handles_sigterm(psd.pid) && eni_now_ns() < deadline_ns)
        eni_sleep_until(eni_now_ns() + 10 * ENI_MILLI);
    process_kill(&psd, SIGTERM);
    assert_int_equal(process_wait(&psd, 20 * SLOWNESS), 128 + SIGTERM);
    process_nobody_left(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_servers_end_with_the_bytes_of_ring_and_solo),
        cmocka_unit_test(the_report_is_the_sum),
        cmocka_unit_test(started_by_hand_on_two_ports),
        cmocka_unit_test(a_server_without_a_leader_can_be_ended),
        cmocka_unit_test(the_death_of_psd_1_is_named),
        cmocka_unit_test(wrong_numbers_are_refused),
    };
    return system_main(tests);
}
