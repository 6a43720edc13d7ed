/* test_mpirun.c - the real mpirun as launcher: Open MPI's, and MPICH's Hydra. Entrain itself uses no MPI. */
#include <stdio.h>
#include <string.h>

#include "tests/system/outer.h"

/* Promise: mpirun of Open MPI and of MPICH starts workers that end with entrain run's bytes; MVAPICH2 is
 * tried by its variables only. */

static void run_with(const char *name, const char *flags)
{
    process p;
    char job[700];
    const char *tool = outer_tool(name);
    if (tool == NULL) {
        print_message("%s is not installed: not tried\n", name);
        return;
    }
    int port = outer_port();
    const char *expected = train_hash(60, "-n 2 --strategy=ring " OUTER_JOB), *out = outer_folder();
    snprintf(job, sizeof job,
             "%s -n 2 " EN_BUILD_DIR
             "/worker --strategy=ring --rendezvous=tcp://127.0.0.1:%d --out=%s " OUTER_ALONE " " OUTER_JOB,
             flags, port, out);
    process_start(&p, tool, NULL, "%s", job);
    outer_expect_end(&p, 0);
    outer_expect_hash(out, expected);
    promise("%s -n 2 worker --strategy=ring: the bytes of entrain run", name);
}

static void test_open_mpi(void **state)
{
    (void)state;
    run_with("mpirun.openmpi", "--allow-run-as-root --oversubscribe");
}

static void test_mpich(void **state)
{
    (void)state;
    run_with("mpirun.mpich", "-launcher fork");
}

/* The defaults of a user who knows nothing of ports. */
static void test_server(void **state)
{
    process psd, p;
    (void)state;
    const char *tool = outer_tool("mpirun.openmpi"), *flags = "--allow-run-as-root --oversubscribe";
    if (tool == NULL) {
        tool = outer_tool("mpirun.mpich");
        flags = "-launcher fork";
    }
    const char *expected = train_hash(60, "-n 3 --strategy=ps-sync " OUTER_JOB), *out = outer_folder();
    process_start(&psd, "psd", NULL, "--strategy=ps-sync --world-size=3 --listen=tcp://127.0.0.1:0");
    int port = 0;
    const char *line = wait_for_line(&psd, "--server=", 20);
    assert_int_equal(sscanf(strstr(line, "--server="), "--server=tcp://127.0.0.1:%d", &port), 1);
    process_start(&p, tool, NULL,
                  "%s -n 3 " EN_BUILD_DIR
                  "/worker --strategy=ps-sync --server=tcp://127.0.0.1:%d --out=%s " OUTER_ALONE
                  " " OUTER_JOB,
                  flags, port, out);
    outer_expect_end(&p, 0);
    outer_expect_end(&psd, 0);
    outer_expect_hash(out, expected);
    promise("mpirun -n 3 worker --strategy=ps-sync with a psd by hand: the bytes of entrain run");
}

/* Ranks on two hosts, of which Open MPI says only how many are on each. */
static void test_hosts_without_a_meeting_place(void **state)
{
    process p;
    (void)state;
    process_start(&p, "worker",
                  "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
                  "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                  "--strategy=ring " OUTER_ALONE " " OUTER_JOB);
    outer_expect_end(&p, 2);
    assert_int_equal(process_says(&p, "2 of 4 ranks are on this host", "--rendezvous=tcp://HOST:PORT"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_open_mpi), cmocka_unit_test(test_mpich),
                                       cmocka_unit_test(test_server),
                                       cmocka_unit_test(test_hosts_without_a_meeting_place)};
    if (outer_tool("mpirun.openmpi") == NULL && outer_tool("mpirun.mpich") == NULL)
        system_skip("neither mpirun.openmpi nor mpirun.mpich is installed (Debian: openmpi-bin, mpich)");
    return system_main(tests);
}
