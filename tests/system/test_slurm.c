/* test_slurm.c - the real Slurm, with one node, in a folder of its own: munged, slurmctld and slurmd are
 * started here and end with the test. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/outer.h"

/* Promise: srun and sbatch start workers that end with entrain run's bytes. */

static process munged, controller, node;
static char environment[160], home[128];

static void write_text(const char *name, unsigned mode, const char *text, size_t bytes)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", home, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

/* The port that a step meets at follows from it: not the same in two tests at a time. */
static int first_job(void)
{
    return 1000 + (int)getpid() % 3900; /* below the ports of other tests, see tests/port.h */
}

static void write_config(void)
{
    char text[2048], host[256], key[1024];
    assert_int_equal(gethostname(host, sizeof host), 0);
    for (size_t i = 0; i < sizeof key; i++)
        key[i] = (char)(rand() & 255); /* it guards a node that lives for seconds, on loopback */
    write_text("munge.key", 0400, key, sizeof key);
    int n =
        snprintf(text, sizeof text,
                 "ClusterName=entrain\nFirstJobId=%d\nSlurmctldHost=%s(127.0.0.1)\nSlurmctldPort=%"
                 "d\nSlurmdPort=%d\nSlurmUser=root\n"
                 "SlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket=%s/munge.sock\nCredType=cred/munge\n"
                 "StateSaveLocation=%s/state\nSlurmdSpoolDir=%s/spool\nSlurmctldPidFile=%s/slurmctld.pid\n"
                 "SlurmdPidFile=%s/slurmd.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
                 "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"
                 "SelectType=select/cons_tres\nSwitchType=switch/none\nMpiDefault=none\nReturnToService=2\n"
                 "SlurmdParameters=config_overrides\nNodeName=%s NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN\n"
                 "PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE\n",
                 first_job(), host, outer_port(), outer_port(), home, home, home, home, home, host);
    write_text("slurm.conf", 0644, text, (size_t)n);
    write_text("cgroup.conf", 0644, "CgroupAutomount=no\n", 19);
}

static void stop(process *p)
{
    if (p->pid <= 0) return;
    kill(p->pid, SIGTERM);
    process_wait(p, 20);
    p->pid = 0;
}

/* All in the foreground, so that they end with us. They say that they are there by doing a job. */
static int start_slurm(void **state)
{
    char path[200];
    process probe;
    (void)state;
    snprintf(home, sizeof home, "%s/slurm", system_folder());
    snprintf(environment, sizeof environment, "SLURM_CONF=%s/slurm.conf", home);
    assert_int_equal(mkdir(home, 0700), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", home, i == 0 ? "state" : "spool");
        assert_int_equal(mkdir(path, 0755), 0);
    }
    write_config();
    process_start(
        &munged, outer_tool("munged"), NULL,
        "--foreground --force --key-file=%s/munge.key --socket=%s/munge.sock --pid-file=%s/munged.pid "
        "--seed-file=%s/munge.seed --log-file=%s/munged.log",
        home, home, home, home, home);
    process_start(&controller, outer_tool("slurmctld"), NULL, "-D -c -f %s/slurm.conf", home);
    process_start(&node, outer_tool("slurmd"), NULL, "-D -f %s/slurm.conf", home);
    process_start(&probe, outer_tool("srun"), environment, "-n 1 /bin/true");
    int code = process_wait(&probe, 60);
    if (code == 0) return 0;
    char why[512];
    snprintf(why, sizeof why, "%s%s%s", process_err(&probe), process_err(&controller), process_err(&node));
    stop(&node);
    stop(&controller);
    stop(&munged);
    system_skip("a Slurm of one node does not start here: srun ended with %d: %s", code, why);
}

static int stop_slurm(void **state)
{
    (void)state;
    stop(&node);
    stop(&controller);
    stop(&munged);
    return 0;
}

/* srun says rank, size and where to meet: nothing else is given. */
static void test_srun(void **state)
{
    process p;
    (void)state;
    const char *expected = train_hash(60, "-n 2 --strategy=ring " OUTER_JOB), *out = outer_folder();
    process_start(&p, outer_tool("srun"), environment,
                  "-n 2 " EN_BUILD_DIR "/worker --strategy=ring --out=%s " OUTER_ALONE " " OUTER_JOB, out);
    outer_expect_end(&p, 0);
    outer_expect_hash(out, expected);
    char where[64]; /* the first job was the probe */
    snprintf(where, sizeof where, "leads at 127.0.0.1:%d", 15000 + first_job() + 1);
    if (process_says(&p, where, "") != 1) fail_msg("not \"%s\":\n%s", where, process_err(&p));
    promise("srun -n 2 worker --strategy=ring: the bytes of entrain run");
}

static void batch(const char *script, char *said, size_t bytes)
{
    process p;
    char path[200];
    write_text("job.sh", 0700, script, strlen(script));
    snprintf(path, sizeof path, "%s/job.out", home);
    process_start(&p, outer_tool("sbatch"), environment, "-W -n 2 -o %s %s/job.sh", path, home);
    int code = process_wait(&p, 90);
    FILE *file = fopen(path, "r");
    size_t n = file == NULL ? 0 : fread(said, 1, bytes - 1, file);
    if (file != NULL) fclose(file);
    said[n] = 0;
    if (code != 0) fail_msg("sbatch ended with %d:\n%s%s", code, process_err(&p), said);
}

/* The script itself has SLURM_PROCID 0 and SLURM_NTASKS 2, but is no task: a worker in it trains alone. */
static void test_batch_script_is_no_task(void **state)
{
    char script[1024], said[8192];
    (void)state;
    const char *alone = train_hash(60, "-n 1 --strategy=solo " OUTER_JOB), *out = outer_folder();
    snprintf(script, sizeof script,
             "#!/bin/sh\n" EN_BUILD_DIR "/worker --strategy=solo --out=%s " OUTER_ALONE " " OUTER_JOB "\n",
             out);
    batch(script, said, sizeof said);
    outer_expect_hash(out, alone);
    promise("a worker in a batch script, outside srun, is alone");
}

static void test_srun_in_a_batch(void **state)
{
    char script[1024], said[8192];
    (void)state;
    const char *expected = train_hash(60, "-n 2 --strategy=ring " OUTER_JOB), *out = outer_folder();
    snprintf(script, sizeof script,
             "#!/bin/sh\nsrun " EN_BUILD_DIR
             "/worker --strategy=ring --rendezvous=file://%s/meet-$SLURM_JOB_ID "
             "--out=%s " OUTER_ALONE " " OUTER_JOB "\n",
             home, out);
    batch(script, said, sizeof said);
    outer_expect_hash(out, expected);
    promise("sbatch, srun worker --rendezvous=file://: the bytes of entrain run");
}

/* Another launcher inside: its ranks are meant, not Slurm's. */
static void test_launchers_inside(void **state)
{
    static const struct {
        const char *tool, *flags;
    } inside[] = {{"mpirun.openmpi", "--allow-run-as-root --oversubscribe -n 2"},
                  {"mpirun.mpich", "-launcher fork -n 2"},
                  {"torchrun", "--standalone --no_python --nproc_per_node=2"}};
    (void)state;
    const char *expected = train_hash(60, "-n 2 --strategy=ring " OUTER_JOB);
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        process p;
        const char *tool = outer_tool(inside[i].tool), *out = outer_folder();
        if (tool == NULL) {
            print_message("%s is not installed: not tried inside srun\n", inside[i].tool);
            continue;
        }
        if (strcmp(inside[i].tool, "torchrun") == 0 && !outer_torchrun_works()) {
            print_message("%s fails with /bin/true, too: not tried inside srun\n", tool);
            continue;
        }
        process_start(&p, outer_tool("srun"), environment,
                      "-n 1 %s %s " EN_BUILD_DIR "/worker --strategy=ring --out=%s " OUTER_ALONE
                      " " OUTER_JOB,
                      tool, inside[i].flags, out);
        outer_expect_end(&p, 0);
        outer_expect_hash(out, expected);
        promise("srun -n 1 %s ..: the ranks of the inner launcher", inside[i].tool);
    }
}

static void test_conflict(void **state)
{
    process p;
    (void)state;
    process_start(&p, outer_tool("srun"), environment,
                  "-n 2 /usr/bin/env RANK=0 WORLD_SIZE=4 " EN_BUILD_DIR "/worker --strategy=ring " OUTER_ALONE
                  " " OUTER_JOB);
    outer_expect_end(&p, 2);
    if (process_says(&p, "the environment says RANK 0 WORLD_SIZE 4", "SLURM_STEP_NUM_TASKS 2") < 1 ||
        process_says(&p, "give --rank and --world-size, which decide", "") < 1)
        fail_msg("the conflict is not named:\n%s", process_err(&p));
    promise("RANK and WORLD_SIZE against Slurm's: all values and the flags that decide, exit 2");
}

int main(void)
{
    static const char *const tools[] = {"munged", "slurmctld", "slurmd", "srun", "sbatch"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_srun, start_slurm), cmocka_unit_test(test_batch_script_is_no_task),
        cmocka_unit_test(test_srun_in_a_batch), cmocka_unit_test(test_launchers_inside),
        cmocka_unit_test_teardown(test_conflict, stop_slurm)};
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        outer_need(tools[i], "Debian: slurm-wlm and munge");
    if (geteuid() != 0) system_skip("a Slurm of its own needs root");
    return system_main(tests);
}
