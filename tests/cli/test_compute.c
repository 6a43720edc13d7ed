/* test_compute.c - eval's device: the options that reach it, on ref and on a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/compute.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "tests/network.h"

static const char *device = "ref", *plugins = EN_BUILD_DIR "/plugins";

static void config_of(eni_config *c, const char *precision)
{
    assert_int_equal(eni_config_init(ENI_ADVISE, c), EN_OK);
    assert_int_equal(eni_config_set(c, "device", device, "test"), EN_OK);
    assert_int_equal(eni_config_set(c, "precision", precision, "test"), EN_OK);
    assert_int_equal(eni_config_set(c, "batch-size", "2", "test"), EN_OK);
    assert_int_equal(eni_config_set(c, "bucket-cap-mb", "0.05", "test"), EN_OK);
    assert_int_equal(eni_config_set(c, "deterministic", "on", "test"), EN_OK);
}

/* Options that a host device lacks are refused before anything is planned. */
static void options_reach_the_device(void **state)
{
    (void)state;
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    const int is_gpu = strcmp(device, "cuda") == 0;
    en_schema schema;
    assert_int_equal(en_schema_init(network_named("toy"), &schema), EN_OK);
    for (int p = 0; p < 3; p++) {
        eni_config c;
        eni_compute compute = {0};
        config_of(&c, precisions[p]);
        eni_log_set_level(-1);
        const en_status st = eni_compute_open(&c, plugins, 1, 1, 2, &schema, &compute);
        eni_log_set_level(ENI_LOG_INFO);
        assert_int_equal(st, p == 0 || is_gpu ? EN_OK : p == 1 ? EN_EUNSUPPORTED : EN_EINVAL);
        if (st == EN_OK) {
            const char *text = compute.device.ops->describe(compute.device.ctx);
            if (is_gpu) assert_non_null(strstr(text, "deterministic"));
            assert_int_equal(en_model_prepare(compute.model, 3, EN_MODEL_TRAIN), EN_OK);
        }
        eni_compute_close(&compute);
        eni_compute_close(&compute);
        eni_config_fini(&c);
    }
    en_schema_fini(&schema);
}

/* In a separate process: CUDA does not survive a fork, and the test forks. */
static int has_gpu(void)
{
    int status = 1;
    const pid_t child = fork();
    if (child == 0) {
        const en_device *table;
        int32_t n = 0;
        eni_log_set_level(-1);
        _exit(eni_device_load(device, plugins, &table) != EN_OK ||
              table->gpu->count(eni_device_host(), &n) != EN_OK || n == 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* [NAME [PLUGINS]] */
int main(int argc, char **argv)
{
    if (argc > 1) device = argv[1];
    if (argc > 2) plugins = argv[2];
    if (strcmp(device, "cuda") == 0 && !has_gpu()) {
        printf("SKIP: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_reach_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
