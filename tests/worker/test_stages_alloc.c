/* test_stages_alloc.c - the step path on several devices allocates nothing of ours, and once warm touches no new page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/allocations.h"
#include "tests/models/rig.h"
#include "tests/network.h"
#include "worker/parallel/stages.h"

/* Promise: Our code allocates nothing in a step on two devices, and 200 warm steps touch no new page, in
 * both schedules and as replicas. */

enum { NDEVICES = 2, CHUNKS = 4, ROWS = 4, FIRST = 10, STRAY = 4 };

static const struct way {
    const char *name;
    eni_pipeline_kind kind;
    int nchunks;
    bool are_replicas;
} ways[] = {{"1f1b", ENI_1F1B, CHUNKS, false},
            {"gpipe", ENI_GPIPE, CHUNKS, false},
            {"one after the other", ENI_1F1B, 1, false},
            {"replicas", ENI_1F1B, NDEVICES, true}};
enum { WAYS = sizeof ways / sizeof *ways };

static const struct job {
    const char *network, *options;
    en_data_shape data; /* zeroes: the network's own */
} jobs[] = {{"convnet", NULL, {0}}, {"resnet18", "width=4,stem=cifar", {12, 12, 3, 10}}};
enum { JOBS = sizeof jobs / sizeof *jobs };

/* A network on two devices, and what a step gives them; the rig's own device lends its schema and vectors. */
typedef struct team {
    rig rig;
    eni_stages *stages;
    en_batch batch, chunk[CHUNKS];
    en_score score[CHUNKS];
    float *grad[NDEVICES];
    int nchunks;
} team;

static void team_open(team *t, const struct job *job, const struct way *way, const char *device)
{
    static const eni_straggler none = {.factor = 1};
    eni_part parts[NDEVICES];
    rig_open_for(&t->rig, network_named(job->network), job->options, job->data.height > 0 ? &job->data : NULL,
                 device, 1);
    const en_schema *schema = &t->rig.schema;
    t->nchunks = way->nchunks;
    t->batch = batch_new(schema, way->nchunks * ROWS, 3);
    for (int c = 0; c < way->nchunks; c++)
        t->chunk[c] = batch_part(schema, &t->batch, c * ROWS, ROWS);
    for (int d = 0; d < NDEVICES; d++)
        t->grad[d] = calloc(schema->count, sizeof *t->grad[d]);
    for (int d = 0; way->are_replicas && d < NDEVICES; d++)
        assert_int_equal(eni_split_balance(schema, 1, &parts[d]), EN_OK);
    if (!way->are_replicas) assert_int_equal(eni_split_balance(schema, NDEVICES, parts), EN_OK);
    const eni_stages_options options = {.schema = schema,
                                        .device = device,
                                        .plugin_dir = EN_BUILD_DIR "/plugins",
                                        .n = NDEVICES,
                                        .parts = parts,
                                        .are_replicas = way->are_replicas,
                                        .kind = way->kind,
                                        .nchunks = way->nchunks,
                                        .threads = 1,
                                        .dtype = EN_F32};
    assert_int_equal(eni_stages_open(&options, &t->stages), EN_OK);
    assert_int_equal(eni_stages_prepare(t->stages, (uint64_t)t->batch.n, EN_MODEL_TRAIN), EN_OK);
    assert_int_equal(eni_stages_start(t->stages, -1, &none, NULL), EN_OK);
}

static void team_close(team *t)
{
    assert_true(eni_stages_close(t->stages));
    for (int d = 0; d < NDEVICES; d++)
        free(t->grad[d]);
    batch_free(&t->batch);
    rig_close(&t->rig);
}

/* As worker/parallel/trainer_stages.c: until all tensors are there. */
static void team_step(team *t, int64_t step)
{
    uint32_t first = t->rig.schema.ntensors;
    const eni_pass pass = {.kind = ENI_PASS_TRAIN,
                           .step = step,
                           .nchunks = t->nchunks,
                           .chunk = t->chunk,
                           .param = t->rig.param,
                           .state = t->rig.state,
                           .grad = t->grad,
                           .score = t->score};
    en_status st = eni_stages_begin(t->stages, &pass);
    while (st == EN_OK || st == EN_ETIMEOUT)
        st = eni_stages_await(t->stages, first, eni_now_ns() + 20 * ENI_MILLI, &first);
    assert_int_equal(st, EN_ESTOP);
}

static long page_faults(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt + usage.ru_majflt;
}

/* oneDNN's own is counted apart, and given back (tests/ops/test_step_alloc.c). */
static void check_way(const struct job *job, const struct way *way, const char *device, int steps)
{
    team t;
    team_open(&t, job, way, device);
    for (int i = 0; i < FIRST; i++)
        team_step(&t, i);
    const long before = page_faults();
    for (int i = FIRST; i < FIRST + steps; i++)
        team_step(&t, i);
    const long faults = page_faults() - before;
    allocations_begin();
    team_step(&t, FIRST + steps);
    const allocations some = allocations_end();
    if (some.own > 0 || some.foreign != some.freed || (strcmp(device, "ref") == 0 && some.foreign > 0))
        fail_msg("%s, %s on %s: %ld are ours, and %ld of %ld are given back", job->network, way->name, device,
                 some.own, some.freed, some.foreign);
    print_message("%s, %s on two devices %s: %ld page faults in %d steps\n", t.rig.schema.spec, way->name,
                  device, faults, steps);
    assert_in_range(faults, 0, STRAY);
    team_close(&t);
}

static void check_all(const char *device, int steps)
{
    for (int i = 0; i < JOBS; i++)
        for (int w = 0; w < WAYS; w++)
            check_way(&jobs[i], &ways[w], device, steps);
    print_message(
        "PROMISE on two devices %s, none of ours in a step, no new page in %d: both schedules, stages one "
        "after the other, replicas\n",
        device, steps);
}

static void ref_allocates_nothing(void **state)
{
    (void)state;
    check_all("ref", 20);
}

static void cpu_allocates_nothing_of_ours(void **state)
{
    (void)state;
    eni_device cpu;
    if (eni_device_open("cpu", EN_BUILD_DIR "/plugins", 1, &cpu) != EN_OK) skip();
    eni_device_close(&cpu);
    check_all("cpu", 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ref_allocates_nothing),
                                       cmocka_unit_test(cpu_allocates_nothing_of_ours)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
