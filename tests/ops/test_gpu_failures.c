/* test_gpu_failures.c - what a user hears when the driver is not what it should be, or a GPU fails in the
 * middle of a run. On the simulated GPU alone, whose failures can be switched on; each in a process of its
 * own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/ops/gpu_rig.h"

enum { SECONDS = 30 };

static gpu_rig rig;

/* In a child: counting GPUs must fail, and name all of these. */
typedef struct driver {
    const char *variable, *value;
    const char *words[4];
} driver;

static int count_in_vain(void *user, int rank)
{
    const driver *d = user;
    const en_device *table;
    eni_device device = {0};
    int32_t n = -1;
    (void)rank;
    setenv(d->variable, d->value, 1);
    GPU_OK(eni_device_load("cuda", rig.plugins, &table));
    GPU_REQUIRE(table->gpu->count(eni_device_host(), &n) == EN_EUNSUPPORTED && n == -1);
    for (int i = 0; i < 4 && d->words[i]; i++) {
        if (strstr(gpu_last_error(), d->words[i])) continue;
        fprintf(stderr, "%s=%s: \"%s\" does not name \"%s\"\n", d->variable, d->value, gpu_last_error(),
                d->words[i]);
        return 1;
    }
    GPU_REQUIRE(eni_device_open("cuda", rig.plugins, 1, &device) == EN_EUNSUPPORTED);
    return 0;
}

static void a_driver_that_does_not_do_is_named_with_the_remedy(void **state)
{
    (void)state;
    driver drivers[] = {
        {"FAKE_GPU_DRIVER", "none", {"NVIDIA driver", "--device=cpu"}},
        {"FAKE_GPU_DRIVER", "old", {"CUDA 1", "newer driver", "--device=cpu"}},
        {"CUDA_VISIBLE_DEVICES", "", {"CUDA_VISIBLE_DEVICES", "--gpus=all", "--device=cpu"}},
    };
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++)
        assert_true(gpu_processes(1, SECONDS, count_in_vain, &drivers[i]));
}

/* ---- a GPU that fails --------------------------------------------------------------------------------- */

static int nerrors;

static void count_errors(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level == ENI_LOG_ERROR) nerrors++;
    if (level == ENI_LOG_ERROR && nerrors == 1) fprintf(stderr, "%s\n", text);
}

/* All calls with a status say EN_EIO from then on, one line is logged, and all can be closed. */
static int fail_in_the_middle(void *user, int rank)
{
    (void)user, (void)rank;
    const float values[100] = {1};
    float got[100];
    en_event *event;
    void *memory;
    setenv("FAKE_GPU_FAIL_AT", "3", 1);
    gpu_rig_open(&rig, 0, 0);
    eni_log_set_sink(count_errors, NULL);
    float *x = gpu_put(&rig, values, 100);
    GPU_OK(rig.gpu->event_new(rig.ctx, &event));
    en_status st = EN_OK;
    for (int i = 0; i < 10 && st == EN_OK; i++) {
        st = rig.gpu->lin(rig.ctx, EN_STREAM_COMPUTE, x, 1.0f, x, 1.0f, 100);
        if (st == EN_OK) st = rig.gpu->event_record(event, EN_STREAM_COMPUTE);
        while (st == EN_OK && (st = rig.gpu->poll(event)) == EN_ETIMEOUT)
            st = EN_OK;
    }
    GPU_REQUIRE(st == EN_EIO);
    GPU_REQUIRE(rig.gpu->poll(event) == EN_EIO);
    GPU_REQUIRE(rig.gpu->event_record(event, EN_STREAM_PREFETCH) == EN_EIO);
    GPU_REQUIRE(rig.gpu->lin(rig.ctx, EN_STREAM_COMPUTE, x, 1.0f, x, 1.0f, 100) == EN_EIO);
    GPU_REQUIRE(rig.ops->copy(rig.ctx, got, x, sizeof got, EN_COPY_OUT) == EN_EIO);
    GPU_REQUIRE(rig.ops->alloc(rig.ctx, 100, &memory) == EN_EIO);
    GPU_REQUIRE(rig.ops->sync(rig.ctx) == EN_EIO);
    GPU_REQUIRE(rig.gpu->capture_begin(rig.ctx) == EN_EIO);
    GPU_REQUIRE(nerrors == 1);
    rig.ops->free(rig.ctx, x);
    rig.gpu->event_free(event);
    gpu_rig_close(&rig);
    GPU_REQUIRE(nerrors == 1);
    return 0;
}

static void a_gpu_that_fails_stays_failed_and_says_so_once(void **state)
{
    (void)state;
    assert_true(gpu_processes(1, SECONDS, fail_in_the_middle, NULL));
}

static int run_out_of_memory(void *user, int rank)
{
    (void)user, (void)rank;
    void *memory[8] = {NULL};
    setenv("FAKE_GPU_OOM_AFTER", "16777216", 1);
    gpu_rig_open(&rig, 0, 0);
    int n = 0;
    en_status st = EN_OK;
    while (n < 8 && (st = rig.ops->alloc(rig.ctx, 4 << 20, &memory[n])) == EN_OK)
        n++;
    GPU_REQUIRE(st == EN_ENOMEM && n > 0 && n <= 4);
    GPU_REQUIRE(strstr(gpu_last_error(), "4 MiB") && strstr(gpu_last_error(), "--batch"));
    GPU_REQUIRE(memory[n] == NULL);
    rig.ops->free(rig.ctx, memory[0]);
    GPU_OK(rig.ops->alloc(rig.ctx, 4 << 20, &memory[0]));
    while (n > 0)
        rig.ops->free(rig.ctx, memory[--n]);
    gpu_rig_close(&rig);
    return 0;
}

static void out_of_memory_says_how_much_was_asked_for(void **state)
{
    (void)state;
    assert_true(gpu_processes(1, SECONDS, run_out_of_memory, NULL));
}

int main(int argc, char **argv)
{
    int ngpus;
    const int code = gpu_rig_find(&rig, argc, argv, &ngpus);
    if (code != 0) return code;
    if (!gpu_is_simulated(&rig)) {
        fprintf(stderr, "skipped: a real GPU does not fail when it is told to\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_driver_that_does_not_do_is_named_with_the_remedy),
        cmocka_unit_test(a_gpu_that_fails_stays_failed_and_says_so_once),
        cmocka_unit_test(out_of_memory_says_how_much_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
