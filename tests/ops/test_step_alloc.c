/* test_step_alloc.c - the step path allocates nothing, and once warm touches no new page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "tests/allocations.h"
#include "tests/models/rig.h"
#include "tests/network.h"
#include "tests/ops/trial.h"

/* Promise: Our code allocates nothing in a step: in no operation, nor in convnet, mlp and resnet18.
 * Promise: After ten warm-up steps, 200 more touch no new page. */

static int threads = 1; /* of the device cpu: the first argument */
static int is_bf16;     /* its products: the second, "bf16" */
static int open_it(eni_device *cpu)
{
    return is_bf16 ? open_cpu_bf16(cpu, threads) : open_cpu(cpu, threads);
}

/* The allocations of a step of an op, after the first steps. */
static allocations count_step(trial *t)
{
    trial_run(t);
    trial_run(t);
    allocations_begin();
    trial_run(t);
    return allocations_end();
}

static void the_hook_counts(void **state)
{
    (void)state;
    allocations_begin();
    void *volatile memory = malloc(10);
    free(memory);
    memory = aligned_alloc(64, 64);
    free(memory);
    const allocations some = allocations_end();
    assert_int_equal(some.own, 2);
    assert_int_equal(some.freed, 2);
    assert_int_equal(some.largest, 64);
}

static void ref_allocates_nothing(void **state)
{
    (void)state;
    eni_device ref;
    assert_int_equal(eni_device_open("ref", "", 1, &ref), EN_OK);
    int n;
    const en_op *ops = trial_ops(&n);
    for (int i = 0; i < n; i++) {
        trial t;
        trial_init(&t, &ref, &ops[i], 2);
        const allocations some = count_step(&t);
        trial_fini(&t);
        assert_int_equal(some.own + some.foreign, 0);
    }
    eni_device_close(&ref);
}

/* oneDNN's product of matrices that is not a kernel of one shape: it takes what it wants in every call, and
 * no attribute reaches it. */
static int has_gemm(const en_plan_info *info)
{
    return strstr(info->forward, "gemm:jit") || strstr(info->backward_weights, "gemm:jit") ||
           strstr(info->backward_data, "gemm:jit");
}

/* oneDNN keeps the arguments of a call in a small hash map that lives as long as the call: no way around it
 * in its API. Nothing may stay, and nothing may be large (scratch, buffers), but for its gemm. */
static void check_cpu_step(const eni_device *cpu, const en_op *op)
{
    trial t;
    trial_init(&t, cpu, op, 2);
    const allocations some = count_step(&t);
    if (some.own > 0 || some.foreign != some.freed)
        fail_msg("%s: %ld are ours, and %ld of %ld are given back", trial_name(&t), some.own, some.freed,
                 some.foreign);
    if (some.largest > 512) {
        if (!has_gemm(&t.info)) fail_msg("%s: %ld bytes at once", trial_name(&t), some.largest);
        if (op->x.n == 64)
            print_message(
                "PROMISE %s of 64 x (%lld, %lld, %lld) to %lld, %s: none of ours in a step; oneDNN's gemm "
                "takes up to %ld bytes, and gives them back\n",
                op->kind == EN_OP_LINEAR ? "linear" : "conv", (long long)op->x.h, (long long)op->x.w,
                (long long)op->x.c, (long long)op->channels, cpu->ops->describe(cpu->ctx), some.largest);
    }
    trial_fini(&t);
}

static void cpu_keeps_nothing(void **state)
{
    (void)state;
    eni_device cpu;
    if (!open_it(&cpu)) skip();
    int n;
    const en_op *ops = trial_ops(&n);
    for (int i = 0; i < n; i++)
        check_cpu_step(&cpu, &ops[i]);
    eni_device_close(&cpu);
}

/* ---- whole networks ---------------------------------------------------------------------------------- */

static const struct job {
    const char *network, *options;
    en_data_shape data; /* zeroes: the network's own */
    int64_t n;
} jobs[] = {{"convnet", NULL, {0}, 64},
            {"mlp", NULL, {0}, 64},
            {"resnet18", "width=8,stem=imagenet", {32, 32, 3, 10}, 16},
            {"resnet18", "width=8,stem=cifar", {12, 12, 3, 10}, 8}};
enum { JOBS = sizeof jobs / sizeof *jobs };

static void open_job(const struct job *job, const char *device, rig *r, en_batch *batch)
{
    rig_open_for(r, network_named(job->network), job->options, job->data.height > 0 ? &job->data : NULL,
                 is_bf16 && strcmp(device, "cpu") == 0 ? "cpu-bf16" : device, threads);
    *batch = batch_new(&r->schema, job->n, 3);
}

static void close_job(rig *r, en_batch *batch)
{
    batch_free(batch);
    rig_close(r);
}

/* The allocations of a step of the whole network, graph and batch normalisation included. */
static allocations count_job(const struct job *job, const char *device)
{
    rig r;
    en_batch batch;
    open_job(job, device, &r, &batch);
    rig_step(&r, &batch);
    rig_step(&r, &batch);
    allocations_begin();
    rig_step(&r, &batch);
    const allocations some = allocations_end();
    close_job(&r, &batch);
    return some;
}

static void networks_allocate_nothing_on_ref(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        const allocations some = count_job(&jobs[i], "ref");
        if (some.own + some.foreign > 0)
            fail_msg("%s:%s: %ld of ours, %ld of libraries", jobs[i].network, jobs[i].options, some.own,
                     some.foreign);
    }
}

static void networks_keep_nothing_on_cpu(void **state)
{
    (void)state;
    eni_device cpu;
    if (!open_it(&cpu)) skip();
    eni_device_close(&cpu);
    for (int i = 0; i < JOBS; i++) {
        const allocations some = count_job(&jobs[i], "cpu");
        if (some.own > 0 || some.foreign != some.freed)
            fail_msg("%s:%s: %ld are ours, and %ld of %ld are given back", jobs[i].network, jobs[i].options,
                     some.own, some.freed, some.foreign);
    }
    print_message(
        "PROMISE convnet, mlp and resnet18 with either stem: none of ours in a step, on ref, and on "
        "cpu with --threads=%d\n",
        threads);
}

static long page_faults(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt + usage.ru_majflt;
}

/* A block that lies elsewhere than in the step before costs as many faults as it has pages, 90 and more at
 * once. Now and then one may be the system's, which took a page away. */
static void check_faults(const struct job *job)
{
    enum { FIRST = 10, STEPS = 200, STRAY = 4 };
    rig r;
    en_batch batch;
    open_job(job, "cpu", &r, &batch);
    for (int i = 0; i < FIRST; i++)
        rig_step(&r, &batch);
    const long before = page_faults();
    for (int i = 0; i < STEPS; i++)
        rig_step(&r, &batch);
    const long faults = page_faults() - before;
    print_message("PROMISE %s, %s: %ld page faults in steps %d to %d\n", r.schema.spec,
                  r.device.ops->describe(r.device.ctx), faults, FIRST, FIRST + STEPS - 1);
    close_job(&r, &batch);
    assert_in_range(faults, 0, STRAY);
}

static void after_ten_steps_no_page_is_new(void **state)
{
    (void)state;
    eni_device cpu;
    if (!open_it(&cpu)) skip();
    eni_device_close(&cpu);
    for (int i = 0; i < JOBS; i++)
        check_faults(&jobs[i]);
}

/* The faults first: what comes before them would have touched the memory. */
int main(int argc, char **argv)
{
    if (argc > 1) threads = atoi(argv[1]);
    is_bf16 = argc > 2 && strcmp(argv[2], "bf16") == 0;
    if (is_bf16 && !cpu_has_bf16()) {
        printf("SKIP: this CPU has no avx512_bf16\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(after_ten_steps_no_page_is_new),
                                       cmocka_unit_test(the_hook_counts),
                                       cmocka_unit_test(ref_allocates_nothing),
                                       cmocka_unit_test(cpu_keeps_nothing),
                                       cmocka_unit_test(networks_allocate_nothing_on_ref),
                                       cmocka_unit_test(networks_keep_nothing_on_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
