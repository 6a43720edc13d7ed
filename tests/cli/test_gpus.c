/* test_gpus.c - what `entrain gpus` prints for machines that are not here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/gpus.h"

/* `n` GPUs of 80 GB, all linked alike. */
static eni_gpus *machine(int n, int link, const char *group, int nranks)
{
    eni_gpus *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->n = n;
    m->group = group;
    m->nranks = nranks;
    for (int i = 0; i < n; i++) {
        en_gpu_facts *f = &m->gpu[i].facts;
        strcpy(f->name, "NVIDIA X");
        snprintf(f->uuid, sizeof f->uuid, "GPU-%08d-ffff-ffff", i);
        snprintf(f->bus, sizeof f->bus, "0000:%02d:00.0", i);
        f->major = 9;
        f->memory_bytes = UINT64_C(80000000000);
        f->free_bytes = UINT64_C(79500000000);
        for (int j = 0; j < n; j++)
            m->link[i][j] = (uint8_t)link;
    }
    return m;
}

static const char *show(eni_gpus *m)
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
    assert_string_equal(show(machine(1, EN_LINK_SAME, "NCCL 2.28.9", 0)),
                        "GPU  NAME      UUID          BUS            CC   MEMORY     FREE  USED BY\n"
                        "  0  NVIDIA X  GPU-00000000  0000:00:00.0  9.0  80.0 GB  79.5 GB  nobody\n"
                        "\nCollectives: NCCL 2.28.9\n");
}

static void links_are_a_matrix(void **state)
{
    (void)state;
    eni_gpus *m = machine(3, EN_LINK_NVLINK, "NCCL 2.28.9", 0);
    m->link[0][2] = m->link[2][0] = EN_LINK_HOST;
    const char *text = show(m);
    assert_non_null(strstr(text, "\n   0       1       2\n"
                                 "0  -       NVLink  host\n"
                                 "1  NVLink  -       NVLink\n"
                                 "2  host    NVLink  -\n"));
}

static void more_gpus_than_a_line_has_room_for(void **state)
{
    (void)state;
    const char *text = show(machine(16, EN_LINK_NVLINK, "", 16));
    assert_non_null(strstr(text, "(the first 15 of 16)"));
    assert_non_null(strstr(text, "no NCCL"));
    assert_non_null(strstr(text, "  15  cuda:15"));
}

static void who_uses_it(void **state)
{
    (void)state;
    eni_gpus *m = machine(2, EN_LINK_PCIE, "", 0);
    m->gpu[0].nusers = 6;
    for (int i = 0; i < ENI_GPUS_USERS; i++)
        m->gpu[0].users[i] = (eni_gpus_user){.user = {.pid = 10 + i}};
    strcpy(m->gpu[0].users[0].program, "python3");
    m->gpu[0].users[0].user.bytes = 500000000;
    m->gpu[1].nusers = -1;
    const char *text = show(m);
    assert_non_null(strstr(text, "python3 pid 10 (0.50 GB), pid 11, pid 12, pid 13 and 2 more\n"));
    assert_non_null(strstr(text, "not told\n"));
}

static void expect_verdict(int n, const char *group, int nranks, const char *words)
{
    char text[256];
    eni_gpus *m = machine(n, EN_LINK_NVLINK, group, nranks);
    eni_gpus_verdict(m, text, sizeof text);
    free(m);
    if (strstr(text, words) == NULL)
        fail_msg("%d GPUs, %d ranks: \"%s\" is not in: %s", n, nranks, words, text);
    if (strlen(text) + 1 == sizeof text) fail_msg("cut off: %s", text);
}

static void what_ring_does(void **state)
{
    (void)state;
    expect_verdict(1, "NCCL 2", 1, "exchanges nothing");
    expect_verdict(1, "NCCL 2", 4, "CUDA IPC");
    expect_verdict(2, "NCCL 2", 3, "pinned host memory; with at most 2 ranks");
    expect_verdict(2, "NCCL 2", 2, "runs through NCCL 2");
    expect_verdict(2, "", 2, "there is no NCCL");
}

static void ranks_have_slices(void **state)
{
    (void)state;
    const char *text = show(machine(4, EN_LINK_NVLINK, "NCCL 2", 2));
    assert_non_null(
        strstr(text, "   0  cuda:0  NVIDIA X  GPU-00000000\n   1  cuda:2  NVIDIA X  GPU-00000002\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_gpu),
                                       cmocka_unit_test(links_are_a_matrix),
                                       cmocka_unit_test(more_gpus_than_a_line_has_room_for),
                                       cmocka_unit_test(who_uses_it),
                                       cmocka_unit_test(what_ring_does),
                                       cmocka_unit_test(ranks_have_slices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
