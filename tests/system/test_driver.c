/* test_driver.c - `entrain gpus` where the cuda device is not built: it asks NVIDIA's driver, here a double of the driver's
 * library (tests/fake_nvml). */
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: entrain gpus lists this host's GPUs where the cuda device is not built. */

/* Its GPUs have UUIDs of their own: other tests use the default ones meanwhile. */
#define DRIVER(folder) "LD_LIBRARY_PATH=" EN_BUILD_DIR "/fake/" folder " FAKE_GPU_MACHINE=driver "

/* The output of `entrain gpus`, which ends with 0. */
static const char *gpus(const char *env, const char *flags)
{
    static char text[1 << 14];
    process p;
    process_start(&p, "entrain", env, "gpus%s", flags);
    const int code = process_wait(&p, 60);
    if (code != 0) fail_msg("%s entrain gpus%s: exit %d: %s", env, flags, code, process_err(&p));
    snprintf(text, sizeof text, "%s", process_out(&p));
    return text;
}

static void expect(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("\"%s\" is not in:\n%s", part, text);
}

static void test_one(void **state)
{
    (void)state;
    const char *text = gpus(DRIVER("nvml") "FAKE_GPUS=1", "");
    expect(text, "  0  Simulated GPU  GPU-");
    expect(text, "0000:01:00.0  9.0  8.59 GB  8.59 GB     0  0-15,64-79 ");
    expect(text, "580.0.fake");
    assert_null(strstr(text, "\n0  X"));
}

static void test_links(void **state)
{
    (void)state;
    expect(gpus(DRIVER("nvml") "FAKE_GPUS=2 FAKE_GPU_LINK=nvlink", ""), "\n0  X    NV6\n1  NV6  X\n");
    expect(gpus(DRIVER("nvml") "FAKE_GPUS=4", ""), "\n0  X     PIX   NODE  NODE\n");
    expect(gpus(DRIVER("nvml") "FAKE_GPUS=4 FAKE_GPU_LINK=none", ""), "\n0  X      PIX*   NODE*  NODE*\n");
    expect(gpus(DRIVER("nvml") "FAKE_GPUS=4 FAKE_GPU_LINK=nvswitch", ""), "\n3  NV18  NV18  NV18  X\n");
    expect(gpus(DRIVER("nvml") "FAKE_GPUS=4 FAKE_GPU_LINK=nvlink FAKE_NVML_FAIL=NvLink", ""),
           "\n0  X     PIX   NODE  NODE\n");
    expect(gpus(DRIVER("nvml") "FAKE_GPUS=4 CUDA_VISIBLE_DEVICES=3", ""), "  0  Simulated GPU  GPU-");
    promise("entrain gpus without the cuda device: 1, 2 and 4 GPUs, linked in four ways, and one that says "
            "nothing of NVLink");
}

/* The library of an old driver has fewer functions: the columns that it can fill are shown. */
static void test_old_driver(void **state)
{
    (void)state;
    const char *text = gpus(DRIVER("nvml-old") "FAKE_GPUS=2", "");
    expect(text, "0000:02:00.0   -  8.59 GB  8.59 GB     -  - ");
    expect(text, "\n0  X  -\n1  -  X\n");
    text = gpus(DRIVER("nvml-old") "FAKE_GPUS=2", " --json");
    expect(text, "\"driver\": null");
    expect(text, "\"topology\": [\n  [\n   \"X\",\n   null\n  ],");
}

static void refuse(const char *env, const char *cause)
{
    process p;
    process_start(&p, "entrain", env, "gpus --json");
    const int code = process_wait(&p, 60);
    if (code != 2 || process_says(&p, cause, "--device=cpu") != 1 || process_says(&p, "", "") != 1)
        fail_msg("%s entrain gpus: exit %d, expected 2 and one sentence on \"%s\"; it said:\n%s", env, code,
                 cause, process_err(&p));
    assert_string_equal(process_out(&p), "");
}

static void test_refusals(void **state)
{
    (void)state;
    refuse(DRIVER("nvml-none"), "libnvidia-ml.so.1: file too short");
    refuse(DRIVER("nvml-too-old"), "nvmlDeviceGetCount_v2");
    refuse(DRIVER("nvml") "FAKE_GPU_DRIVER=none", "modprobe nvidia");
    refuse(DRIVER("nvml") "FAKE_NVML_FAIL=Init", "999");
    refuse(DRIVER("nvml") "FAKE_GPUS=0", "CUDA_VISIBLE_DEVICES");
    refuse(DRIVER("nvml") "FAKE_GPUS=2 CUDA_VISIBLE_DEVICES=7", "CUDA_VISIBLE_DEVICES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one), cmocka_unit_test(test_links),
                                       cmocka_unit_test(test_old_driver), cmocka_unit_test(test_refusals)};
    system_use_plugins(EN_BUILD_DIR "/fake/nvml"); /* where there are none */
    return system_main(tests);
}
