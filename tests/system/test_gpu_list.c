/* test_gpu_list.c - `entrain gpus` as people and programs read it: the table lines up, and --json says the
 * same. */
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/gpu.h"

/* Promise: entrain gpus shows the same as a table and as JSON. */

/* What `entrain gpus` prints, in the buffer; it must end with 0. */
static void list(const char *flags, char *text_out, size_t bytes)
{
    process p;
    process_start(&p, "entrain", NULL, "gpus%s", flags);
    const int code = process_wait(&p, 60);
    if (code != 0) fail_msg("entrain gpus%s: exit %d: %s", flags, code, process_err(&p));
    snprintf(text_out, bytes, "%s", process_out(&p));
}

static json_t *list_json(const char *flags)
{
    char text[1 << 16];
    json_error_t error;
    list(flags, text, sizeof text);
    json_t *all = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (all == NULL) fail_msg("entrain gpus%s: %s in:\n%s", flags, error.text, text);
    return all;
}

/* Where the column that `head` names begins, in the first line of a table. */
static size_t column(const char *table, const char *head)
{
    const char *at = strstr(table, head), *end = strchr(table, '\n');
    if (at == NULL || at > end) fail_msg("no column %s in:\n%s", head, table);
    return (size_t)(at - table);
}

/* A blank before each column that is flush left, in every row. */
static void expect_aligned(const char *table, int rows)
{
    static const char *const heads[] = {"NAME", "UUID", "BUS", "CPUS", "USED BY"};
    const char *line = strchr(table, '\n');
    for (int i = 0; i < rows; i++, line = strchr(line + 1, '\n'))
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
            const char *cell = line + 1 + column(table, heads[h]);
            if (cell[-1] != ' ' || cell[-2] != ' ' || !isgraph((unsigned char)*cell))
                fail_msg("column %s of GPU %d does not line up:\n%s", heads[h], i, table);
        }
    if (line == NULL || line[1] != '\n') fail_msg("%d rows expected:\n%s", rows, table);
}

static void expect_same(const json_t *all, const char *table, int n)
{
    const json_t *gpus = json_object_get(all, "gpus");
    assert_int_equal(json_array_size(gpus), n);
    assert_int_equal(json_array_size(json_object_get(all, "links")), n);
    assert_int_equal(json_array_size(json_object_get(all, "topology")), n);
    for (int i = 0; i < n; i++) {
        const json_t *gpu = json_array_get(gpus, (size_t)i);
        char uuid[16];
        snprintf(uuid, sizeof uuid, "%.12s", text_at(gpu, "uuid"));
        assert_int_equal(number_at(gpu, "index"), i);
        assert_true(number_at(gpu, "memory_bytes") > 0);
        assert_non_null(strstr(table, uuid));
        assert_non_null(strstr(table, text_at(gpu, "name")));
        assert_non_null(strstr(table, text_at(gpu, "bus")));
    }
}

static void try_machine(int n)
{
    char text[1 << 14], flags[32];
    list("", text, sizeof text);
    expect_aligned(text, n);
    assert_int_equal(strstr(text, "Links") != NULL, n > 1);
    json_t *all = list_json(" --json");
    expect_same(all, text, n);
    assert_null(json_object_get(all, "ranks"));
    json_decref(all);

    snprintf(flags, sizeof flags, " -n %d --json", n);
    all = list_json(flags);
    const json_t *ranks = json_object_get(all, "ranks");
    assert_int_equal(json_array_size(ranks), n);
    for (int r = 0; r < n; r++)
        assert_int_equal(number_at(json_array_get(ranks, (size_t)r), "gpu"), r);
    assert_non_null(strstr(text_at(all, "verdict"), "GPU of its own"));
    json_decref(all);
}

static void test_list(void **state)
{
    (void)state;
    if (!gpu_is_simulated()) {
        try_machine(gpu_count());
        return;
    }
    static const int machines[] = {1, 2, 8};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        char count[8];
        snprintf(count, sizeof count, "%d", machines[i]);
        gpu_fake("FAKE_GPUS", count);
        try_machine(machines[i]);
    }
    promise("entrain gpus: the table lines up and --json says the same, with 1, 2 and 8 GPUs");
}

/* More ranks than slices: refused as `run` refuses it, before anything is printed. */
static void test_slices(void **state)
{
    (void)state;
    if (!gpu_is_simulated()) return;
    process p;
    gpu_fake("FAKE_GPUS", "4");
    json_t *all = list_json(" -n 2 --stages=2 --json");
    const json_t *slice = json_object_get(json_array_get(json_object_get(all, "ranks"), 1), "gpus");
    assert_int_equal(json_array_size(slice), 2);
    assert_int_equal(json_integer_value(json_array_get(slice, 0)), 2);
    json_decref(all);
    process_start(&p, "entrain", NULL, "gpus -n 3 --stages=2");
    assert_int_equal(process_wait(&p, 60), 2);
    assert_string_equal(process_out(&p), "");
    assert_int_equal(process_says(&p, "enough for 2 of its 3 ranks", "--gpu-sharing"), 1);
    json_decref(list_json(" -n 3 --stages=2 --gpu-sharing --json"));
    process_start(&p, "entrain", NULL,
                  "run -n 3 --strategy=ring --device=cuda --parallel=pipeline --stages=2 --model=mlp "
                  "--data=synthetic --steps=1");
    assert_int_equal(process_wait(&p, 60), 2);
    assert_int_equal(process_says(&p, "enough for 2 of its 3 ranks", "--gpu-sharing"), 1);
    process_start(&p, "entrain", NULL, "gpus -n 1 --stages=5");
    assert_int_equal(process_wait(&p, 60), 2);
    assert_int_equal(process_says(&p, "a rank needs 5 GPUs, and this host has 4", ""), 1);
}

/* Nothing on stdout that a program would take for an answer. */
static void test_none(void **state)
{
    (void)state;
    process p;
    process_start(&p, "entrain", gpu_is_simulated() ? "FAKE_GPUS=0" : "CUDA_VISIBLE_DEVICES=", "gpus --json");
    assert_int_equal(process_wait(&p, 60), 2);
    assert_string_equal(process_out(&p), "");
    assert_int_equal(process_says(&p, "GPU", ""), 1);
}

static int is_nobody_there(const json_t *all)
{
    const json_t *gpu = json_array_get(json_object_get(all, "gpus"), 0),
                 *users = json_object_get(gpu, "users");
    return json_is_array(users) && json_array_size(users) == 0;
}

/* A rank that trains is in both, with its pid. */
static void test_user(void **state)
{
    (void)state;
    process run;
    process_start(&run, "entrain", NULL,
                  "run --quiet -n 1 --strategy=solo --device=cuda --model=mlp --data=synthetic "
                  "--limit-train-samples=64 --limit-test-samples=8 --steps=100000000");
    json_t *all = list_json(" --json");
    const double deadline = now_seconds() + 60;
    while (is_nobody_there(all)) {
        if (now_seconds() > deadline) fail_msg("nobody uses the GPU: %s", process_err(&run));
        json_decref(all);
        all = list_json(" --json");
    }
    const json_t *gpu = json_array_get(json_object_get(all, "gpus"), 0),
                 *users = json_object_get(gpu, "users");
    if (!json_is_null(users)) { /* some drivers do not tell */
        const json_t *user = json_array_get(users, 0);
        char text[1 << 14], line[64];
        list("", text, sizeof text);
        assert_true(number_at(gpu, "nusers") >= 1);
        snprintf(line, sizeof line, "pid %.0f", number_at(user, "pid"));
        if (gpu_is_simulated()) assert_string_equal(text_at(user, "program"), "worker");
        assert_non_null(strstr(text, line));
    }
    json_decref(all);
    process_kill(&run, SIGINT);
    process_wait(&run, 60);
    process_nobody_left(5);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {GPU_TEST(test_list), GPU_TEST(test_slices), GPU_TEST(test_none),
                                       GPU_TEST(test_user)};
    gpu_begin(argc, argv);
    return system_main(tests);
}
