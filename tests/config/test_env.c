/* test_env.c - what a worker makes of the variables of torchrun, Slurm, Open MPI, PMI and MVAPICH2. The
 * values are those that the real launchers set (see tests/system/test_torchrun.c and its neighbours). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/config.h"
#include "config/env.h"
#include "core/log.h"
#include "tests/mentions.h"

#define TORCHRUN "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500 "
#define AGENT    TORCHRUN "TORCHELASTIC_RUN_ID=7 TORCHELASTIC_USE_AGENT_STORE=True "
#define STEP                                                                                                 \
    "SLURM_JOB_ID=123456 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=5 SLURM_NTASKS=8 "              \
    "SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=a[3-5,9] "                    \
    "SLURM_STEP_TASKS_PER_NODE=2(x1),3 "
#define BATCH "SLURM_JOB_ID=123456 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_NODELIST=a SLURM_LOCALID=0 "
#define OPENMPI                                                                                              \
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "                            \
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 "
#define HYDRA "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 "
#define MV2                                                                                                  \
    "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2 "
/* Open MPI's daemons are one task on each host; the workers inherit its variables. */
#define DAEMON                                                                                               \
    "SLURM_JOB_ID=123456 SLURM_STEP_ID=1 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 "      \
    "SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NODELIST=a[3-4] SLURM_STEP_TASKS_PER_NODE=1(x2) "

static const struct {
    const char *env, *words;
    int64_t rank, world, local_rank, local_size;
    const char *rendezvous;
} good[] = {
    {"", "", -1, -1, -1, -1, "tcp://127.0.0.1:23456"},
    {TORCHRUN, "", 3, 4, 1, 2, "tcp://a:29500"},
    {AGENT, "", 3, 4, 1, 2, "tcp://a:29501"}, /* the agent listens on 29500 itself */
    {AGENT STEP, "", 3, 4, 1, 2, "tcp://a:29501"},
    {AGENT DAEMON OPENMPI, "", 3, 4, 1, 2, "tcp://a:29501"},
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=here MASTER_PORT=9", "", 1, 2, 1, 2,
     "tcp://127.0.0.1:9"},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=fe80::1 MASTER_PORT=9", "", 1, 2, -1, -1, "tcp://[fe80::1]:9"},
    {STEP, "", 2, 5, 0, 3, "tcp://a3:18456"},
    {STEP "MASTER_ADDR=b", "", 2, 5, 0, 3, "tcp://b:18456"},
    {STEP "MASTER_PORT=7", "", 2, 5, 0, 3, "tcp://a3:7"},
    {STEP, "--rank=0 --world-size=2", 0, 2, 0, 3, "tcp://127.0.0.1:23456"},
    {STEP, "--rendezvous=tcp://b:1", 2, 5, 0, 3, "tcp://b:1"},
    {STEP, "--rendezvous=env://", 2, 5, 0, 3, "tcp://a3:18456"},
    {BATCH, "--rank=0 --world-size=1", 0, 1, -1, -1, "tcp://127.0.0.1:23456"},
    {BATCH "SLURM_STEP_ID=4294967291", "--rank=0 --world-size=4", 0, 4, -1, -1, "tcp://127.0.0.1:23456"},
    {BATCH, "--strategy=solo", -1, -1, -1, -1, "tcp://127.0.0.1:23456"},
    {"SLURM_JOB_ID=7 SLURM_NTASKS=1", "", -1, -1, -1, -1, "tcp://127.0.0.1:23456"},
    {"SLURM_JOB_ID=123456 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=5 SLURM_LOCALID=0 "
     "SLURM_NODEID=1 "
     "SLURM_STEP_NUM_NODES=2 SLURM_NODELIST=c[3-5]",
     "", 2, 5, 0, -1, "tcp://c3:18456"},
    {"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1 SLURM_NODEID=0 "
     "SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=a SLURM_STEP_TASKS_PER_NODE=2",
     "", 1, 2, 1, 2, "tcp://127.0.0.1:15007"},
    {OPENMPI, "", 1, 2, 1, 2, "tcp://127.0.0.1:23456"},
    {HYDRA, "", 1, 2, 1, 2, "tcp://127.0.0.1:23456"},
    {MV2 HYDRA, "", 1, 2, 1, 2, "tcp://127.0.0.1:23456"},
    {DAEMON OPENMPI, "", 1, 2, 1, 2, "tcp://127.0.0.1:23456"},
    {STEP OPENMPI, "--rank=4 --world-size=5 --local-rank=2 --local-size=3", 4, 5, 2, 3,
     "tcp://127.0.0.1:23456"},
};

static const struct {
    const char *env, *words;
    const char *part[4];
} bad[] = {
    {"RANK=x WORLD_SIZE=2", "", {"RANK", "\"x\"", "", ""}},
    {"RANK=2 WORLD_SIZE=2", "", {"--rank", "\"2\"", "--world-size 2", ""}},
    {"MASTER_ADDR=a", "", {"MASTER_ADDR", "MASTER_PORT", "--rendezvous", ""}},
    {"MASTER_ADDR=a MASTER_PORT=tcp://10.0.0.1:80",
     "",
     {"MASTER_PORT", "\"tcp://10.0.0.1:80\"", "65534", "enableServiceLinks"}},
    {"MASTER_ADDR=a/b MASTER_PORT=80", "", {"MASTER_ADDR", "\"a/b\"", "", ""}},
    {BATCH, "", {"4 tasks (SLURM_NTASKS)", "srun", "--world-size=1", ""}},
    {BATCH "SLURM_STEP_ID=4294967291", "", {"4 tasks (SLURM_NTASKS)", "srun", "", ""}},
    {"", "--rendezvous=env://", {"--rendezvous", "\"env://\"", "MASTER_ADDR", ""}},
    {STEP OPENMPI,
     "",
     {"Slurm|SLURM_PROCID 2 SLURM_STEP_NUM_TASKS 5", "Open MPI|OMPI_COMM_WORLD_RANK 1 OMPI_COMM_WORLD_SIZE 2",
      "--rank", "--world-size"}},
    {"RANK=0 WORLD_SIZE=2 " HYDRA, "", {"RANK 0 WORLD_SIZE 2", "PMI_RANK 1", "--rank", ""}},
    {"RANK=0 WORLD_SIZE=3 " STEP, "--rank=0", {"WORLD_SIZE 3", "SLURM_STEP_NUM_TASKS 5", "--world-size", ""}},
};

static void clear(void)
{
    extern char **environ;
    static char *none[] = {NULL};
    environ = none;
}

static void set(const char *pairs, char *copy, size_t bytes)
{
    clear();
    snprintf(copy, bytes, "%s", pairs);
    for (char *save, *pair = strtok_r(copy, " ", &save); pair != NULL; pair = strtok_r(NULL, " ", &save))
        assert_int_equal(putenv(pair), 0);
}

static void hear(void *user, int level, const char *subsystem, const char *text)
{
    (void)level;
    (void)subsystem;
    snprintf(user, 1024, "%s", text);
}

static en_status parse_as(eni_program program, const char *env, const char *words, eni_config *config,
                          char heard[1024])
{
    static char pairs[2048];
    char copy[256], *argv[16] = {"worker"};
    int argc = 1;
    set(env, pairs, sizeof pairs);
    snprintf(copy, sizeof copy, "%s", words);
    for (char *save, *w = strtok_r(copy, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    heard[0] = '\0';
    eni_log_set_sink(hear, heard);
    en_status st = eni_config_parse(program, argc, argv, config);
    eni_log_set_sink(NULL, NULL);
    clear();
    return st;
}

static en_status parse(const char *env, const char *words, eni_config *config, char heard[1024])
{
    return parse_as(ENI_WORKER, env, words, config, heard);
}

/* A command that starts ranks itself, started as if it were one. */
static void a_run_of_its_own_for_each_task(void **state)
{
    (void)state;
    static const char *const envs[] = {TORCHRUN, AGENT, STEP, OPENMPI, HYDRA, MV2 HYDRA, DAEMON OPENMPI};
    static const eni_program programs[] = {ENI_RUN, ENI_COMPARE, ENI_SCALE, ENI_CHECK};
    char heard[1024];
    eni_config c;
    for (size_t e = 0; e < sizeof envs / sizeof *envs; e++) {
        for (size_t p = 0; p < sizeof programs / sizeof *programs; p++)
            if (parse_as(programs[p], envs[e], "", &c, heard) != EN_EINVAL ||
                !mentions(heard, "entrain worker|--nnodes=N|--node-rank=I"))
                fail_msg("%s: %s", envs[e], heard);
        assert_int_equal(parse_as(ENI_RUN, envs[e], "--nnodes=2 --node-rank=1 --master-addr=a", &c, heard),
                         EN_OK);
        eni_config_fini(&c);
    }
    static const char *const one[] = {BATCH, "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", "WORLD_SIZE=2"};
    for (size_t e = 0; e < sizeof one / sizeof *one; e++) {
        if (parse_as(ENI_RUN, one[e], "", &c, heard) != EN_OK) fail_msg("%s: %s", one[e], heard);
        eni_config_fini(&c);
    }
}

static void launchers_are_understood(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char heard[1024];
        eni_config c;
        if (parse(good[i].env, good[i].words, &c, heard) != EN_OK)
            fail_msg("%s| %s: %s", good[i].env, good[i].words, heard);
        bool is_right = c.rank == good[i].rank && c.world_size == good[i].world &&
                        c.local_rank == good[i].local_rank && c.local_size == good[i].local_size &&
                        strcmp(c.rendezvous, good[i].rendezvous) == 0;
        if (!is_right)
            fail_msg("%s| %s: rank %d of %d, local %d of %d, %s", good[i].env, good[i].words, (int)c.rank,
                     (int)c.world_size, (int)c.local_rank, (int)c.local_size, c.rendezvous);
        eni_config_fini(&c);
    }
}

static void what_is_wrong_is_one_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char heard[1024];
        eni_config c;
        if (parse(bad[i].env, bad[i].words, &c, heard) != EN_EINVAL) fail_msg("%s is taken", bad[i].env);
        for (int k = 0; k < 4; k++)
            if (!mentions(heard, bad[i].part[k]))
                fail_msg("%s: \"%s\" lacks \"%s\"", bad[i].env, heard, bad[i].part[k]);
    }
}

static void slurm_texts(void **state)
{
    static const char *const lists[][2] = {{"a", "a"},
                                           {"a,b", "a"},
                                           {"a[3-5,9]", "a3"},
                                           {"a[9,3-5],b", "a9"},
                                           {"rack[01-02]node[3-4]-ib,x", "rack01node3-ib"},
                                           {"a[3", NULL},
                                           {"a[[3]]", NULL},
                                           {"a3]", NULL},
                                           {"a[3-5", NULL},
                                           {"", NULL}};
    char host[32];
    int64_t tasks;
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        bool is_list = eni_slurm_first_host(lists[i][0], host, sizeof host);
        assert_int_equal(is_list, lists[i][1] != NULL);
        if (is_list) assert_string_equal(host, lists[i][1]);
    }
    assert_false(eni_slurm_first_host("a-name-of-more-than-thirty-one-letters", host, sizeof host));
    static const int64_t expected[] = {2, 2, 2, 1};
    for (int64_t node = 0; node < 4; node++) {
        assert_true(eni_slurm_tasks_on("2(x3),1", node, &tasks));
        assert_int_equal(tasks, expected[node]);
    }
    static const char *const wrong[] = {"", "x", "2(x3", "2(x0),1", "2(y3)", "2;1", "2(x3),"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(eni_slurm_tasks_on(wrong[i], 3, &tasks));
    assert_false(eni_slurm_tasks_on("2(x3),1", 4, &tasks));
}

static void a_token_file_by_environment(void **state)
{
    char heard[1024];
    eni_config c;
    (void)state;
    assert_int_equal(parse("ENTRAIN_TOKEN_FILE=/a/b", "", &c, heard), EN_OK);
    assert_string_equal(c.token_file, "/a/b");
    eni_config_fini(&c);
    assert_int_equal(parse("ENTRAIN_TOKEN_FILE=/a/b", "--token-file=/c", &c, heard), EN_OK);
    assert_string_equal(c.token_file, "/c");
    eni_config_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers_are_understood), cmocka_unit_test(a_run_of_its_own_for_each_task),
        cmocka_unit_test(what_is_wrong_is_one_sentence), cmocka_unit_test(slurm_texts),
        cmocka_unit_test(a_token_file_by_environment)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
