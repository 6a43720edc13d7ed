/* test_nvml.c - GPUs as a driver tells of them, on machines that are not here (tests/fake_nvml, by LD_LIBRARY_PATH). */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/nvml.h"
#include "core/signals.h"

/* Promise: GPUs with NVLink, NVSwitch, PCIe or slices, and the ones that CUDA_VISIBLE_DEVICES shows, are
 * read from NVIDIA's driver without CUDA. */

static eni_gpu_machine m;
static struct {
    char text[1024];
    int n;
} * said; /* shared with the child that asks */

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    snprintf(said->text, sizeof said->text, "%s", text);
    said->n++;
}

static int clear(void **state)
{
    static const char *const options[] = {"FAKE_GPUS",       "FAKE_GPU_LINK",        "FAKE_GPU_MIG",
                                          "FAKE_GPU_DRIVER", "CUDA_VISIBLE_DEVICES", "FAKE_NVML_FAIL",
                                          "FAKE_NVML_USERS", "FAKE_NVML_HIDDEN",     "FAKE_GPU_NO_USERS"};
    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        unsetenv(options[i]);
    said->n = 0;
    return 0;
}

static void list(const char *ngpus, const char *link)
{
    setenv("FAKE_GPUS", ngpus, 1);
    setenv("FAKE_GPU_LINK", link, 1);
    assert_int_equal(eni_nvml_list(getenv("CUDA_VISIBLE_DEVICES"), -1, &m), EN_OK);
    assert_int_equal(eni_nvml_count(getenv("CUDA_VISIBLE_DEVICES")), m.n);
}

/* All paths from GPU 0, "X NV6". */
static const char *paths(void)
{
    static char text[512];
    text[0] = 0;
    for (int b = 0; b < m.n; b++)
        snprintf(text + strlen(text), 32, "%s%s", b > 0 ? " " : "", m.link[0][b].path);
    return text;
}

static void expect_way(int way)
{
    for (int a = 0; a < m.n; a++)
        for (int b = 0; b < m.n; b++)
            assert_int_equal(m.link[a][b].way, a == b ? ENI_LINK_SAME : way);
}

static void one_is_described(void **state)
{
    (void)state;
    setenv("FAKE_NVML_USERS", "1:500000000,4123456", 1);
    list("1", "pcie");
    const eni_gpu_seen *g = &m.gpu[0];
    assert_int_equal(m.n, 1);
    assert_string_equal(m.driver, "580.0.fake");
    assert_string_equal(g->name, "Simulated GPU");
    assert_int_equal(strlen(g->uuid), 40);
    assert_memory_equal(g->uuid, "GPU-", 4);
    assert_string_equal(g->bus, "0000:01:00.0");
    assert_true(g->major == 9 && g->minor == 0);
    assert_int_equal(g->memory_bytes, UINT64_C(8) << 30);
    assert_string_equal(g->cpus, "0-15,64-79");
    assert_int_equal(g->numa_node, 0);
    assert_int_equal(g->nusers, 2);
    assert_int_equal(g->users[0].bytes, 500000000);
    assert_true(g->users[0].program[0] != 0); /* init, whatever it is called */
    assert_true(g->users[1].pid == 4123456 && g->users[1].bytes == 0 && g->users[1].program[0] == 0);
    assert_string_equal(m.link[0][0].path, "X");
}

static void links_are_those_of_nvidia_smi(void **state)
{
    (void)state;
    list("2", "nvlink");
    assert_string_equal(paths(), "X NV6");
    list("4", "nvlink");
    assert_string_equal(paths(), "X NV2 NV2 NV2");
    expect_way(ENI_LINK_NVLINK);
    list("8", "nvswitch");
    assert_string_equal(paths(), "X NV18 NV18 NV18 NV18 NV18 NV18 NV18");
    expect_way(ENI_LINK_NVLINK);
    list("6", "pcie");
    assert_string_equal(paths(), "X PIX NODE NODE SYS SYS");
    expect_way(ENI_LINK_PCIE);
    assert_true(m.gpu[5].numa_node == 1 && strcmp(m.gpu[5].cpus, "16-31,80-95") == 0);
    list("2", "none");
    assert_string_equal(paths(), "X PIX");
    expect_way(ENI_LINK_HOST);
}

/* What a function does not tell is not known, and nothing else is lost. */
static void errors_leave_gaps(void **state)
{
    (void)state;
    setenv("FAKE_NVML_FAIL", "NvLink", 1);
    list("2", "nvswitch");
    assert_string_equal(paths(), "X PIX"); /* P2P says that it is NVLink, nobody how many */
    expect_way(ENI_LINK_NVLINK);
    setenv("FAKE_NVML_FAIL", "NvLinkRemote", 1);
    list("2", "nvlink");
    assert_string_equal(paths(), "X PIX");
    setenv("FAKE_NVML_FAIL", "P2P,Topology,NvLink,Affinity,Capability,Memory,Processes,Driver,Pci,Name", 1);
    list("2", "nvlink");
    assert_string_equal(paths(), "X ");
    expect_way(ENI_LINK_NONE);
    const eni_gpu_seen *g = &m.gpu[1];
    assert_true(g->name[0] == 0 && g->bus[0] == 0 && g->cpus[0] == 0 && m.driver[0] == 0);
    assert_true(g->numa_node == -1 && g->nusers == -1 && g->major == 0 && g->memory_bytes == 0);
    assert_memory_equal(g->uuid, "GPU-", 4);
    assert_int_equal(said->n, 0);
}

static void expect_shown(const char *visible, const char *indices)
{
    char text[64] = "";
    eni_gpu_machine all;
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(eni_nvml_list(NULL, -1, &all), EN_OK);
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    if (indices[0] == 0) {
        assert_int_equal(eni_nvml_count(getenv("CUDA_VISIBLE_DEVICES")), 0);
        assert_int_equal(eni_nvml_list(getenv("CUDA_VISIBLE_DEVICES"), -1, &m), EN_EUNSUPPORTED);
        assert_non_null(strstr(said->text, "CUDA_VISIBLE_DEVICES"));
        return;
    }
    assert_int_equal(eni_nvml_list(getenv("CUDA_VISIBLE_DEVICES"), -1, &m), EN_OK);
    assert_int_equal(eni_nvml_count(getenv("CUDA_VISIBLE_DEVICES")), m.n);
    for (int i = 0; i < m.n; i++)
        for (int k = 0; k < all.n; k++)
            if (strcmp(m.gpu[i].uuid, all.gpu[k].uuid) == 0)
                snprintf(text + strlen(text), 16, "%s%d", text[0] != 0 ? "," : "", k);
    assert_string_equal(text, indices);
}

static void visible_devices_count_first(void **state)
{
    char uuids[256];
    (void)state;
    list("4", "pcie");
    snprintf(uuids, sizeof uuids, "%.12s,%s", m.gpu[2].uuid, m.gpu[0].uuid);
    expect_shown("3,1", "3,1");
    expect_shown("2, 0", "2,0");
    expect_shown(uuids, "2,0");
    expect_shown("1,7,2", "1"); /* as CUDA does: the first that is wrong ends it */
    expect_shown("1,-1,2", "1");
    expect_shown("1,GPU-0123,2", "1");
    expect_shown("", "");
    expect_shown("-1", "");
    expect_shown("NoDevFiles", "");
}

/* A GPU of another container is in the driver's count, and nobody's. */
static void what_is_hidden_has_no_index(void **state)
{
    (void)state;
    setenv("FAKE_NVML_HIDDEN", "0", 1);
    list("3", "pcie");
    assert_int_equal(m.n, 2);
    assert_string_equal(m.gpu[0].bus, "0000:02:00.0");
}

static void of_slices_one_is_seen(void **state)
{
    (void)state;
    setenv("FAKE_GPU_MIG", "1", 1);
    list("3", "pcie");
    assert_int_equal(m.n, 1);
    assert_memory_equal(m.gpu[0].uuid, "MIG-", 4);
    assert_non_null(strstr(m.gpu[0].name, " MIG "));
    assert_string_equal(m.gpu[0].bus, "0000:01:00.0");
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    assert_int_equal(eni_nvml_count(getenv("CUDA_VISIBLE_DEVICES")), 1);
    setenv("CUDA_VISIBLE_DEVICES", m.gpu[0].uuid, 1);
    assert_int_equal(eni_nvml_count(getenv("CUDA_VISIBLE_DEVICES")), 1);
    setenv("CUDA_VISIBLE_DEVICES", "MIG-0123", 1);
    assert_int_equal(eni_nvml_count(getenv("CUDA_VISIBLE_DEVICES")), 0);
}

static void one_is_looked_at(void **state)
{
    eni_gpu_user users[1];
    uint64_t free_bytes;
    int n;
    (void)state;
    setenv("FAKE_NVML_USERS", "11:1000,12:24", 1);
    list("2", "pcie");
    assert_int_equal(eni_nvml_look(m.gpu[1].uuid, users, 1, &n, &free_bytes), EN_OK);
    assert_true(n == 2 && users[0].pid == 11 && users[0].bytes == 1000);
    assert_int_equal(free_bytes, (UINT64_C(8) << 30) - 1024);
    setenv("FAKE_GPU_NO_USERS", "1", 1);
    assert_int_equal(eni_nvml_look(m.gpu[1].uuid, users, 1, &n, &free_bytes), EN_EUNSUPPORTED);
    assert_true(free_bytes > 0);
    assert_int_equal(eni_nvml_look("GPU-none", users, 1, &n, &free_bytes), EN_EUNSUPPORTED);
    assert_int_equal(free_bytes, 0);
    setenv("FAKE_GPU_DRIVER", "none", 1);
    assert_int_equal(eni_nvml_look(m.gpu[1].uuid, NULL, 0, &n, &free_bytes), EN_EUNSUPPORTED);
    assert_int_equal(said->n, 0);
}

static void expect_refusal(const char *words)
{
    said->n = 0;
    assert_int_equal(eni_nvml_count(getenv("CUDA_VISIBLE_DEVICES")), 0);
    assert_int_equal(said->n, 0);
    assert_int_equal(eni_nvml_list(getenv("CUDA_VISIBLE_DEVICES"), -1, &m), EN_EUNSUPPORTED);
    assert_int_equal(said->n, 1);
    if (strstr(said->text, words) == NULL || strstr(said->text, "--device=cpu") == NULL)
        fail_msg("\"%s\"", said->text);
}

static void no_answer_is_one_sentence(void **state)
{
    (void)state;
    setenv("FAKE_GPU_DRIVER", "none", 1);
    expect_refusal("modprobe nvidia");
    unsetenv("FAKE_GPU_DRIVER");
    setenv("FAKE_NVML_FAIL", "Init", 1);
    expect_refusal("999, Unknown Error");
    setenv("FAKE_NVML_FAIL", "Count", 1);
    expect_refusal("no GPU");
    unsetenv("FAKE_NVML_FAIL");
    setenv("FAKE_GPUS", "0", 1);
    expect_refusal("no GPU");
}

static en_status answer(void *user)
{
    return *(int *)user;
}

static en_status crash(void *user)
{
    (void)user;
    raise(SIGKILL);
    return EN_OK;
}

static en_status hang(void *user)
{
    (void)user;
    while (true)
        pause();
    return EN_OK;
}

/* A crash, and who would rather not wait. */
static void a_child_asks(void **state)
{
    int st = EN_EFORMAT;
    (void)state;
    assert_int_equal(eni_driver_ask(answer, &st, -1), EN_EFORMAT);
    assert_int_equal(eni_driver_ask(crash, NULL, -1), EN_EIO);
    const int signals = eni_signals_open();
    raise(SIGTERM);
    assert_int_equal(eni_driver_ask(hang, NULL, signals), EN_EINTR);
    assert_int_equal(eni_signals_take(signals), SIGTERM);
    close(signals);
    assert_int_equal(said->n, 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup(f, clear)
    const struct CMUnitTest tests[] = {TEST(one_is_described),
                                       TEST(links_are_those_of_nvidia_smi),
                                       TEST(errors_leave_gaps),
                                       TEST(visible_devices_count_first),
                                       TEST(what_is_hidden_has_no_index),
                                       TEST(of_slices_one_is_seen),
                                       TEST(one_is_looked_at),
                                       TEST(no_answer_is_one_sentence),
                                       TEST(a_child_asks)};
    said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (said == MAP_FAILED) return 1;
    eni_log_set_sink(listen_in, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
