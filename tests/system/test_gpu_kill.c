/* test_gpu_kill.c - SIGKILL for a rank that computes on a GPU, for each way to sum gradients: the others end
 * within two seconds and name it once; no process, socket or memory file is left. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/gpu.h"
#include "tests/system/job.h"

/* Promise: A killed rank that computes on a GPU ends the others within 2 s, in each way in which gradients
 * meet. */

#define ENDLESS                                                                                              \
    "--device=cuda --model=toy --data=synthetic --threads=1 --batch-size=4 --limit-train-samples=64 "        \
    "--limit-test-samples=8 --log-every=0 --log-level=error --steps=100000000 "

enum { STARTS_WITHIN = 90 };
static double ends_within = 2; /* main() raises it on a real GPU, whose driver tears contexts down */

typedef struct kill_case {
    const char *way, *strategy, *more; /* flags */
    const char *fake, *value;          /* an option of the simulated GPU that leads there; NULL: none */
    int victim;
} kill_case;

static const kill_case cases[] = {
    {"shared memory of the GPU", "ring", "", NULL, NULL, 1},
    {"shared memory of the GPU", "ring", "", NULL, NULL, 0},
    {"shared memory of the GPU", "ring", "--straggler=1:100", NULL, NULL, 1},
    {"shared memory of the GPU", "ring", "--no-graph", NULL, NULL, 2},
    {"pinned memory", "ring", "--backend=host", NULL, NULL, 1},
    {"pinned memory", "ring", "--backend=host", NULL, NULL, 0},
    {"IPC refused", "ring", "", "FAKE_GPU_NO_IPC", "1", 2},
    {"NCCL", "ring", "--backend=nccl", "FAKE_GPUS", "3", 1},
    {"NCCL", "ring", "--backend=nccl", "FAKE_GPUS", "3", 0},
    {"NCCL", "ring", "--backend=nccl --no-graph --straggler=1:100", "FAKE_GPUS", "3", 2},
    {"two GPUs a rank", "ring", "--parallel=pipeline --stages=2 --micro-batches=2", "FAKE_GPUS", "6", 1},
    {"two GPUs a rank", "ps-sync", "--parallel=pipeline --stages=2 --micro-batches=2", "FAKE_GPUS", "6", 0},
    {"psd", "ps-sync", "", NULL, NULL, 1},
    {"psd", "ps-sync", "", NULL, NULL, JOB_PSD},
    {"psd", "ps-async", "", NULL, NULL, 0},
    {"psd", "ssp:bound=1", "", NULL, NULL, 1},
};

static double worst;

/* Blocks until all ranks are past the steps that are not recorded, so that the kill meets the usual kind of
 * step. */
static void start(job *j, const kill_case *c)
{
    job_run(j, c->strategy, 3, ENDLESS "%s", c->more);
    job_wait(j, 0, -1, NULL, 6, STARTS_WITHIN);
    job_wait(j, 1, -1, NULL, 6, STARTS_WITHIN);
    job_look(j);
}

static void kill_it(const kill_case *c)
{
    job j;
    char title[128], name[32];
    const int files = files_left("entrain");
    snprintf(title, sizeof title, "%s through %s %s, %s", c->strategy, c->way, c->more,
             job_name(c->victim, name));
    if (c->fake != NULL) gpu_fake(c->fake, c->value);
    gpu_next_seed();
    start(&j, c);
    stopwatch watch = stopwatch_start();
    assert_int_equal(kill(job_pid(&j, c->victim), SIGKILL), 0);
    const int code = process_wait(&j.run, GUARD);
    process_nobody_left(GUARD);
    const double took = stopwatch_read(&watch);
    printf("KILL %-72s %5.2f s\n", title, took); /* measured first, then judged */
    fflush(stdout);
    if (code != 1) fail_msg("%s: entrain run ended with %d:\n%s", title, code, process_err(&j.run));
    if (process_says(&j.run, name, "(SIGKILL)") != 1)
        fail_msg("%s: it should name the victim and the signal once; it said:\n%s", title,
                 process_err(&j.run));
    stopwatch_expect(&watch, took, ends_within, title);
    if (sockets_left(j.sockets) != 0) fail_msg("%s: sockets are left", title);
    assert_int_equal(shared_memory_left(), 0);
    assert_int_equal(files_left("entrain"), files);
    if (c->fake != NULL) gpu_fake(c->fake, NULL);
    if (took > worst) worst = took;
}

static void test_killed(void **state)
{
    int n = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int wants_gpus = cases[i].fake != NULL && strcmp(cases[i].fake, "FAKE_GPUS") == 0;
        if (!gpu_is_simulated() && cases[i].fake != NULL &&
            !(wants_gpus && gpu_count() >= atoi(cases[i].value)))
            continue;
        kill_it(&cases[i]);
        n++;
    }
    promise("SIGKILL on %s, %d cases: all others ended non-zero, named the victim once, left nothing; the "
            "worst took "
            "%.2f s (bound %g s)",
            gpu_is_simulated() ? "the simulated GPU" : "a GPU", n, worst, ends_within);
}

static int clear(void **state)
{
    gpu_clear(state);
    return job_clear(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_killed, clear)};
    gpu_begin(argc, argv);
    if (!gpu_is_simulated()) ends_within = 5;
    return system_main(tests);
}
