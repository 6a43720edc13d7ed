/* test_gpu_list.c - the output of `entrain gpus` for imaginary machines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "cli/gpu_list.h"

/* `n` GPUs of 80 GB, all linked alike. */
static eni_gpu_list *machine(int n, int link, const char *group, int nranks)
{
    eni_gpu_list *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->machine.n = n;
    strcpy(m->machine.driver, "580.65.06");
    m->is_built = true;
    m->group = group;
    m->nranks = nranks;
    for (int i = 0; i < n; i++) {
        eni_gpu_seen *f = &m->machine.gpu[i];
        strcpy(f->name, "NVIDIA X");
        snprintf(f->uuid, sizeof f->uuid, "GPU-%08d-ffff-ffff", i);
        snprintf(f->bus, sizeof f->bus, "0000:%02d:00.0", i);
        f->major = 9;
        f->numa_node = i / 4;
        strcpy(f->cpus, "0-7");
        f->memory_bytes = UINT64_C(80000000000);
        f->free_bytes = UINT64_C(79500000000);
        for (int j = 0; j < n; j++)
            m->machine.link[i][j] =
                i == j ? (eni_gpu_link){ENI_LINK_SAME, "X"} : (eni_gpu_link){(uint8_t)link, "PIX"};
    }
    return m;
}

static const char *show(eni_gpu_list *m)
{
    static char kept[1 << 16];
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    eni_gpus_show(out, m);
    fclose(out);
    snprintf(kept, sizeof kept, "%s", text);
    free(text);
    free(m);
    return kept;
}

static void one_gpu(void **state)
{
    (void)state;
    assert_string_equal(
        show(machine(1, ENI_LINK_SAME, "NCCL 2.28.9", 0)),
        "GPU  NAME      UUID          BUS            CC   MEMORY     FREE  NUMA  CPUS  USED BY\n"
        "  0  NVIDIA X  GPU-00000000  0000:00:00.0  9.0  80.0 GB  79.5 GB     0  0-7   nobody\n"
        "\nDriver: 580.65.06\nCollectives: NCCL 2.28.9\n");
}

static void links_are_a_matrix(void **state)
{
    (void)state;
    eni_gpu_list *m = machine(3, ENI_LINK_PCIE, "NCCL 2.28.9", 0);
    m->machine.link[0][1] = m->machine.link[1][0] = (eni_gpu_link){ENI_LINK_NVLINK, "NV12"};
    m->machine.link[0][2] = m->machine.link[2][0] = (eni_gpu_link){ENI_LINK_HOST, "SYS"};
    m->machine.link[2][1] = (eni_gpu_link){ENI_LINK_NONE, ""};
    const char *text = show(m);
    assert_non_null(strstr(text, "\n   0     1     2\n"
                                 "0  X     NV12  SYS*\n"
                                 "1  NV12  X     PIX\n"
                                 "2  SYS*  -     X\n"));
}

static void more_gpus_than_a_line_has_room_for(void **state)
{
    (void)state;
    const char *text = show(machine(16, ENI_LINK_NVLINK, "", 16));
    assert_non_null(strstr(text, "(the first 15 of 16)"));
    assert_non_null(strstr(text, "no NCCL"));
    assert_non_null(strstr(text, "  15  cuda:15"));
}

/* Six on GPU 0: python3 with half a gigabyte, and five with only their pids. */
static void add_users(eni_gpu_list *m)
{
    m->machine.gpu[0].nusers = 6;
    for (int i = 0; i < 6; i++)
        m->machine.gpu[0].users[i] = (eni_gpu_user){.pid = 10 + i};
    strcpy(m->machine.gpu[0].users[0].program, "python3");
    m->machine.gpu[0].users[0].bytes = 500000000;
}

static void who_uses_it(void **state)
{
    (void)state;
    eni_gpu_list *m = machine(2, ENI_LINK_PCIE, "", 0);
    add_users(m);
    m->machine.gpu[1].nusers = -1;
    m->machine.gpu[1].free_bytes = 0;
    const char *text = show(m);
    assert_non_null(strstr(text, "python3 pid 10 (0.50 GB), pid 11, pid 12, pid 13 and 2 more\n"));
    assert_non_null(strstr(text, "80.0 GB        -     0  0-7   unknown\n"));
}

/* ---- --json ---- */

static const json_t *gpu_of(const json_t *all, size_t index)
{
    return json_array_get(json_object_get(all, "gpus"), index);
}

static void says(const json_t *object, const char *key, const char *text)
{
    assert_string_equal(json_string_value(json_object_get(object, key)), text);
}

static json_int_t number(const json_t *object, const char *key)
{
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

static int is_null(const json_t *object, const char *key)
{
    return json_is_null(json_object_get(object, key));
}

static void json_has_what_the_table_has(void **state)
{
    (void)state;
    eni_gpu_list *m = machine(2, ENI_LINK_PCIE, "NCCL 2.28.9", 0);
    add_users(m);
    strcpy(m->machine.gpu[0].users[1].program, "\xff\xfe"); /* no text */
    json_t *all = eni_gpus_json(m);
    const json_t *g = gpu_of(all, 0), *users = json_object_get(g, "users"), *user = json_array_get(users, 0);
    assert_int_equal(number(all, "schema"), 1);
    assert_int_equal(json_array_size(json_object_get(all, "gpus")), 2);
    assert_int_equal(number(g, "index"), 0);
    assert_int_equal(number(gpu_of(all, 1), "index"), 1);
    says(g, "name", "NVIDIA X");
    says(g, "uuid", "GPU-00000000-ffff-ffff");
    says(g, "bus", "0000:00:00.0");
    says(g, "compute_capability", "9.0");
    assert_int_equal(number(g, "memory_bytes"), 80000000000);
    assert_int_equal(number(g, "free_bytes"), 79500000000);
    assert_int_equal(number(g, "numa_node"), 0);
    says(g, "cpus", "0-7");
    says(all, "driver", "580.65.06");
    assert_int_equal(number(g, "nusers"), 6);
    assert_int_equal(json_array_size(users), 6);
    assert_int_equal(number(user, "pid"), 10);
    assert_int_equal(number(user, "bytes"), 500000000);
    says(user, "program", "python3");
    assert_true(is_null(json_array_get(users, 1), "program") && is_null(json_array_get(users, 1), "bytes"));
    assert_int_equal(number(gpu_of(all, 1), "nusers"), 0);
    says(all, "collectives", "NCCL 2.28.9");
    assert_null(json_object_get(all, "ranks")); /* not asked for */
    json_decref(all);
    free(m);
}

static void json_says_null_where_nobody_knows(void **state)
{
    (void)state;
    eni_gpu_list *m = machine(1, ENI_LINK_SAME, "", 0);
    m->machine.gpu[0] = (eni_gpu_seen){.numa_node = -1, .nusers = -1};
    m->machine.link[0][0].path[0] = m->machine.driver[0] = 0;
    json_t *all = eni_gpus_json(m);
    static const char *const keys[] = {"name",         "uuid",       "bus",       "compute_capability",
                                       "memory_bytes", "free_bytes", "numa_node", "cpus",
                                       "nusers",       "users"};
    assert_true(is_null(all, "collectives") && is_null(all, "driver"));
    assert_true(json_is_null(json_array_get(json_array_get(json_object_get(all, "topology"), 0), 0)));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_true(is_null(gpu_of(all, 0), keys[i]));
    json_decref(all);
    free(m);
}

static void json_has_links_and_ranks(void **state)
{
    (void)state;
    eni_gpu_list *m = machine(16, ENI_LINK_NVLINK, "NCCL 2", 8);
    m->machine.link[0][2] = m->machine.link[2][0] = (eni_gpu_link){ENI_LINK_HOST, "NODE"};
    json_t *all = eni_gpus_json(m), *links = json_object_get(all, "links"),
           *paths = json_object_get(all, "topology"), *ranks = json_object_get(all, "ranks");
    assert_int_equal(json_array_size(links), 16);
    const json_t *row = json_array_get(links, 2);
    assert_int_equal(json_array_size(row), 16);
    assert_string_equal(json_string_value(json_array_get(row, 0)), "host");
    assert_string_equal(json_string_value(json_array_get(row, 1)), "nvlink");
    assert_string_equal(json_string_value(json_array_get(row, 2)), "same");
    row = json_array_get(paths, 2);
    assert_int_equal(json_array_size(row), 16);
    assert_string_equal(json_string_value(json_array_get(row, 0)), "NODE");
    assert_string_equal(json_string_value(json_array_get(row, 2)), "X");
    assert_int_equal(json_array_size(ranks), 8);
    assert_int_equal(number(json_array_get(ranks, 3), "rank"), 3);
    assert_int_equal(number(json_array_get(ranks, 3), "gpu"), 6);
    assert_non_null(strstr(json_string_value(json_object_get(all, "verdict")), "NCCL 2"));
    json_decref(all);
    free(m);
}

/* ---- ranks ---- */

static void expect_verdict(int n, const char *group, int nranks, const char *words)
{
    char text[ENI_GPUS_VERDICT];
    eni_gpu_list *m = machine(n, ENI_LINK_NVLINK, group, nranks);
    eni_gpus_verdict(m, text, sizeof text);
    free(m);
    if (strstr(text, words) == NULL)
        fail_msg("%d GPUs, %d ranks: \"%s\" is not in: %s", n, nranks, words, text);
    if (strlen(text) + 1 == sizeof text) fail_msg("truncated: %s", text);
}

static void what_ring_does(void **state)
{
    (void)state;
    expect_verdict(1, "NCCL 2", 1, "exchanges nothing");
    expect_verdict(1, "NCCL 2", 4, "CUDA IPC");
    expect_verdict(2, "NCCL 2", 3, "pinned host memory");
    expect_verdict(2, "NCCL 2", 3, "most 2 ranks");
    expect_verdict(2, "NCCL 2", 2, "through NCCL 2");
    expect_verdict(2, "", 2, "libnccl.so.2");
}

static void a_build_without_the_device_says_so(void **state)
{
    (void)state;
    eni_gpu_list *m = machine(2, ENI_LINK_PCIE, "", 2);
    m->is_built = false;
    const char *text = show(m);
    assert_non_null(strstr(text, "Collectives: none"));
    assert_non_null(strstr(text, "--device=cuda is refused; `make cuda`"));
}

static void ranks_have_slices(void **state)
{
    (void)state;
    const char *text = show(machine(4, ENI_LINK_NVLINK, "NCCL 2", 2));
    assert_non_null(
        strstr(text, "   0  cuda:0  NVIDIA X  GPU-00000000\n   1  cuda:2  NVIDIA X  GPU-00000002\n"));
}

static eni_gpu_list *in_stages(int n, int nranks, int nstages, bool is_shared)
{
    eni_gpu_list *m = machine(n, ENI_LINK_NVLINK, "NCCL 2", nranks);
    m->nstages = nstages;
    m->is_shared = is_shared;
    return m;
}

static void ranks_of_several_gpus(void **state)
{
    (void)state;
    const char *text = show(in_stages(4, 2, 2, false));
    assert_non_null(strstr(text, "2 ranks on this host with --device=cuda --stages=2:\n"
                                 "RANK  DEVICES\n"
                                 "   0  cuda:0,cuda:1\n"
                                 "   1  cuda:2,cuda:3\n"));
    assert_non_null(strstr(text, " 2 GPUs, a stage on each"));
    text = show(in_stages(8, 1, 8, false));
    assert_non_null(strstr(text, "   0  cuda:0 .. cuda:7\n"));
    assert_non_null(strstr(text, " 8 GPUs, a stage on each."));
    text = show(in_stages(5, 3, 2, true));
    assert_non_null(strstr(text, "   2  cuda:0,cuda:1\n"));
    assert_non_null(strstr(text, "3 ranks share 4 GPUs, 2 on each (--gpu-sharing)"));

    eni_gpu_list *m = in_stages(4, 2, 2, false);
    json_t *all = eni_gpus_json(m);
    const json_t *last = json_array_get(json_object_get(all, "ranks"), 1),
                 *slice = json_object_get(last, "gpus");
    assert_int_equal(number(last, "gpu"), 2);
    assert_int_equal(json_array_size(slice), 2);
    assert_int_equal(json_integer_value(json_array_get(slice, 0)), 2);
    assert_int_equal(json_integer_value(json_array_get(slice, 1)), 3);
    json_decref(all);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_gpu),
                                       cmocka_unit_test(links_are_a_matrix),
                                       cmocka_unit_test(more_gpus_than_a_line_has_room_for),
                                       cmocka_unit_test(who_uses_it),
                                       cmocka_unit_test(json_has_what_the_table_has),
                                       cmocka_unit_test(json_says_null_where_nobody_knows),
                                       cmocka_unit_test(json_has_links_and_ranks),
                                       cmocka_unit_test(what_ring_does),
                                       cmocka_unit_test(a_build_without_the_device_says_so),
                                       cmocka_unit_test(ranks_have_slices),
                                       cmocka_unit_test(ranks_of_several_gpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
