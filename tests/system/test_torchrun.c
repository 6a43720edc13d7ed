/* test_torchrun.c - the real torchrun as launcher. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/outer.h"

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
    fprintf(file, "#!/bin/sh\n"
                  "if [ $RANK = 0 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then\n"
                  "  WORLD_SIZE=3 \"$@\" & # waits for a rank that never comes\n"
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_static), cmocka_unit_test(test_standalone),
                                       cmocka_unit_test(test_server), cmocka_unit_test(test_two_hosts),
                                       cmocka_unit_test(test_restart)};
    snprintf(torchrun, sizeof torchrun, "%s",
             outer_need("torchrun", "pip: torch; -DEN_PYTHON=VENV/bin/python3 says where"));
    if (!outer_torchrun_works())
        system_skip(
            "%s fails with /bin/true, too; another one (pip: torch) is named by -DEN_PYTHON=VENV/bin/python3",
            torchrun);
    return system_main(tests);
}
