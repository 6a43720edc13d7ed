/* test_torchrun.c - the real torchrun as launcher. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/outer.h"
#include "tests/system/resumed.h"

/* Promise: torchrun starts workers that end with entrain run's bytes.
 * Promise: torchrun --nnodes=1:2 with an agent that joins, dies with its worker and joins again ends with
 * the bytes of runs by hand. */

static char torchrun[512];

/* torchrun takes most of its time to import torch. */
static void expect_end(process *p, int code)
{
    int got = process_wait(p, 120);
    if (got != code) fail_msg("torchrun ended with %d:\n%s%s", got, process_out(p), process_err(p));
}

static void start(process *p, const char *flags, const char *worker_flags)
{
    process_start(p, torchrun, "OMP_NUM_THREADS=1",
                  "%s --no_python --nproc_per_node=2 " EN_BUILD_DIR "/worker %s " OUTER_ALONE " " OUTER_JOB,
                  flags, worker_flags);
}

/* Flags are spelled with _, which every torchrun knows: Debian 12 has one that knows no other. */
static void ring(const char *flags)
{
    process p;
    char words[200];
    const char *expected = train_hash(60, "-n 2 --strategy=ring " OUTER_JOB), *out = outer_folder();
    snprintf(words, sizeof words, "--strategy=ring --out=%s", out);
    start(&p, flags, words);
    expect_end(&p, 0);
    outer_expect_hash(out, expected);
    if (process_says(&p, "the port after MASTER_PORT", "torchrun's agent") != 1)
        fail_msg("rank 0 does not say which port it took:\n%s", process_err(&p));
    promise("torchrun %s --no_python --nproc_per_node=2 worker --strategy=ring: the bytes of entrain run",
            flags);
}

/* torchrun's own default way: a port by number, which its agent holds. */
static void test_static(void **state)
{
    char flags[64];
    (void)state;
    snprintf(flags, sizeof flags, "--master_port=%d", outer_port());
    ring(flags);
}

static void test_standalone(void **state)
{
    (void)state;
    ring("--standalone");
}

static void test_server(void **state)
{
    process psd, p;
    char words[200];
    const char *expected = train_hash(60, "-n 2 --strategy=ps-sync " OUTER_JOB), *out = outer_folder();
    int port = outer_port();
    (void)state;
    process_start(&psd, "psd", NULL, "--strategy=ps-sync --world-size=2 --listen=tcp://127.0.0.1:%d", port);
    snprintf(words, sizeof words, "--strategy=ps-sync --server=tcp://127.0.0.1:%d --out=%s", port, out);
    start(&p, "--standalone", words);
    expect_end(&p, 0);
    outer_expect_end(&psd, 0);
    outer_expect_hash(out, expected);
    promise("torchrun with ps-sync and a psd by hand: the bytes of entrain run");
}

/* Two agents, one on each of two hosts. */
static void test_two_hosts(void **state)
{
    process agents[2];
    char token[128];
    (void)state;
    const char *expected = train_hash(60, "-n 1 --strategy=solo --accumulate=4 --sum-order=ring " OUTER_JOB),
               *out = outer_folder();
    if (geteuid() != 0 || outer_tool("ip") == NULL) {
        print_message("not root, or no iproute2: torchrun on two hosts is not tried\n");
        return;
    }
    outer_make_hosts(2);
    snprintf(token, sizeof token, "%s/token", system_folder());
    FILE *file = fopen(token, "w");
    assert_non_null(file);
    fputs("00112233445566778899aabbccddeeff\n", file);
    fclose(file);
    assert_int_equal(chmod(token, 0600), 0);
    for (int k = 1; k >= 0; k--)
        outer_start_on(&agents[k], k, torchrun,
                       "--nnodes=2 --node_rank=%d --master_addr=%s --master_port=29400 --no_python "
                       "--nproc_per_node=2 " EN_BUILD_DIR
                       "/worker --strategy=ring --insecure --token-file=%s --out=%s " OUTER_ALONE
                       " " OUTER_JOB,
                       k, outer_host_address(0), token, out);
    for (int k = 0; k < 2; k++)
        expect_end(&agents[k], 0);
    outer_expect_hash(out, expected);
    promise("torchrun --nnodes=2 --nproc_per_node=2 on two hosts: the bytes of one process");
}

/* A killed rank: torchrun starts all of them again, and what the dead ones left must not confuse the new. */
static void test_restart(void **state)
{
    process p;
    char words[700];
    const char *expected = train_hash(60, "-n 2 --strategy=ring " OUTER_JOB), *out = outer_folder();
    (void)state;
    /* The first life ends by SIGKILL of rank 0, when it leads and has left its token. */
    snprintf(words, sizeof words, "%s/life", system_folder());
    FILE *file = fopen(words, "w");
    assert_non_null(file);
    fprintf(file,
            "#!/bin/sh\n"
            "if [ $RANK = 0 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then\n"
            "  WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 \"$@\" & # waits for a rank of this host that never comes\n"
            "  until [ -n \"$(ls $XDG_RUNTIME_DIR/entrain/token-* 2>/dev/null)\" ]; do :; done\n"
            "  kill -9 $!; exit 9\n"
            "fi\n"
            "exec \"$@\"\n");
    fclose(file);
    process_start(&p, torchrun, "OMP_NUM_THREADS=1",
                  "--standalone --max_restarts=1 --no_python --nproc_per_node=2 /bin/sh %s " EN_BUILD_DIR
                  "/worker --strategy=ring --out=%s " OUTER_ALONE " " OUTER_JOB,
                  words, out);
    expect_end(&p, 0);
    outer_expect_hash(out, expected);
    promise("torchrun --max_restarts=1, rank 0 killed in its first life: the second ends with the bytes of "
            "entrain "
            "run");
}

/* ---- agents that come and go ---- */

#define ELASTIC_JOB                                                                                          \
    "--strategy=ring --device=ref --model=mlp --data=synthetic --limit-train-samples=103 "                   \
    "--limit-test-samples=64 --global-batch-size=12 --epochs=300 --lr=0.02 --momentum=0.9 --nesterov "       \
    "--log-level=warn"

/* One worker, slow until the file is there: importing torch takes so long that a quick run would be over. */
static const char *slow_worker(const char *hurry)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/slow", system_folder());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\n[ -e %s ] || set -- \"$@\" --straggler=0:60\nexec \"$@\"\n", hurry);
    fclose(file);
    return path;
}

static void start_agent(process *p, int port, const char *script, const char *out)
{
    /* Agents that share a host must not share torch's own store: with it the second round may never begin. */
    process_start(
        p, torchrun, "OMP_NUM_THREADS=1 TORCH_CPP_LOG_LEVEL=ERROR TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        "--nnodes=1:2 --nproc_per_node=1 --max_restarts=3 --rdzv_backend=c10d --rdzv_id=elastic "
        "--rdzv_endpoint=127.0.0.1:%d --rdzv_conf=last_call_timeout=1 --monitor_interval=0.1 "
        "--local_addr=127.0.0.1 --no_python /bin/sh %s " EN_BUILD_DIR
        "/worker --rendezvous=file://%s.meet --checkpoint-every=36 --resume=auto --out=%s " OUTER_ALONE
        " " ELASTIC_JOB,
        port, script, out, out);
}

/* What its host does when it fails: agent and worker are gone at once. */
static void lose_agent(process *agent)
{
    const pid_t worker = process_child(agent->pid, EN_BUILD_DIR "/worker");
    process_kill(agent, SIGKILL);
    if (worker != 0) kill(worker, SIGKILL);
    process_wait(agent, 10);
}

/* Two workers once a second one has a file of its own. */
static void wait_for_second(const process *agent, const char *out)
{
    char path[200];
    const double deadline = now_seconds() + 2 * GUARD;
    snprintf(path, sizeof path, "%s/metrics-1.jsonl", out);
    while (access(path, F_OK) != 0)
        if (now_seconds() > deadline) fail_msg("no second worker\n%s", process_err(agent));
}

/* One agent, a second one comes, is lost with its host, and comes again. */
static void test_agents_come_and_go(void **state)
{
    static const int workers[] = {1, 2, 1, 2};
    process first, second;
    char hurry[128], found[HASHES], expected[HASHES];
    const char *out = outer_folder();
    const int port = outer_port();
    (void)state;
    snprintf(hurry, sizeof hurry, "%s/hurry", system_folder());
    const char *script = slow_worker(hurry);
    start_agent(&first, port, script, out);
    assert_int_equal(wait_for_checkpoint(&first, out, 1), 1);
    start_agent(&second, port, script, out);
    wait_for_second(&second, out);
    assert_int_equal(wait_for_checkpoint(&first, out, newest_checkpoint(out) + 73), 1);
    lose_agent(&second);
    assert_int_equal(wait_for_checkpoint(&first, out, newest_checkpoint(out) + 73), 1); /* alone again */
    FILE *file = fopen(hurry, "w");
    assert_non_null(file);
    fclose(file);
    start_agent(&second, port, script, out);
    expect_end(&first, 0);
    expect_end(&second, 0);
    json_t *result = result_of(out);
    const json_t *paths = json_object_get(result, "resumed_from");
    assert_int_equal(json_array_size(paths), 3);
    assert_int_equal((int)number_at(result, "samples_applied"), 300 * 103);
    hashes_of(result, found);
    hashes_by_hand(ELASTIC_JOB, workers, paths, expected);
    assert_string_equal(found, expected);
    json_decref(result);
    promise("torchrun --nnodes=1:2 --max_restarts=3: a second agent comes, is killed with its worker, and "
            "comes again: the "
            "bytes of runs by hand with 1, 2, 1 and 2 workers");
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_static),  cmocka_unit_test(test_standalone),
        cmocka_unit_test(test_server),  cmocka_unit_test(test_two_hosts),
        cmocka_unit_test(test_restart), cmocka_unit_test(test_agents_come_and_go)};
    snprintf(torchrun, sizeof torchrun, "%s",
             outer_need("torchrun", "pip: torch; -DEN_PYTHON=VENV/bin/python3 says where"));
    if (!outer_torchrun_works())
        system_skip(
            "%s fails with /bin/true, too; another one (pip: torch) is named by -DEN_PYTHON=VENV/bin/python3",
            torchrun);
    return system_main(tests);
}
