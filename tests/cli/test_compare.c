/* test_compare.c - `entrain compare` with the real programs: which runs, in which order, and what
 * compare.json says of them. */
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/commands.h"
#include "config/folders.h"
#include "runtime/core/log.h"

static struct scene {
    char dir[32], plugins[4096], said[2048];
} s;

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    size_t used = strlen(s.said);
    snprintf(s.said + used, sizeof s.said - used, "%s\n", text);
}

static int setup(void **state)
{
    (void)state;
    s = (struct scene){.dir = "/tmp/entrain-compare-XXXXXX"};
    eni_log_set_sink(listen_in, NULL);
    return mkdtemp(s.dir) != NULL && eni_folder_plugins(s.plugins, sizeof s.plugins) == EN_OK ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type, (void)at;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    eni_log_set_sink(NULL, NULL);
    return nftw(s.dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static en_status compare(const char *const *flags)
{
    char out[64], *argv[40] = {(char *)(uintptr_t) "compare"};
    static const char *const common[] = {"--model=toy",
                                         "--data=synthetic",
                                         "--device=ref",
                                         "--threads=1",
                                         "--batch-size=4",
                                         "--limit-train-samples=64",
                                         "--limit-test-samples=8",
                                         "--steps=2",
                                         "--quiet",
                                         "-n",
                                         "2"};
    int argc = 1;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        argv[argc++] = (char *)(uintptr_t)common[i];
    for (int i = 0; flags[i] != NULL; i++)
        argv[argc++] = (char *)(uintptr_t)flags[i];
    snprintf(out, sizeof out, "--out=%s", s.dir);
    argv[argc++] = out;
    eni_config config;
    assert_int_equal(eni_config_parse(ENI_COMPARE, argc, argv, &config), EN_OK);
    eni_command_context context = {
        .config = &config, .plugin_dir = s.plugins, .signal_fd = -1, .argc = argc, .argv = argv};
    fflush(stdout);
    int saved = dup(STDOUT_FILENO), saved_error = dup(STDERR_FILENO);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    en_status st = eni_command_compare(&context);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    dup2(saved_error, STDERR_FILENO);
    close(saved);
    close(saved_error);
    close(null);
    eni_config_fini(&config);
    return st;
}

static json_t *load(const char *relative)
{
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", s.dir, relative);
    json_t *json = json_load_file(path, 0, &error);
    if (json == NULL) fail_msg("%s: %s", path, error.text);
    return json;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL) fail_msg("no %s", key);
    return text;
}

struct expected {
    const char *cell, *arm;
    int seed;
};

static void expect_run(const json_t *run, int order, const struct expected *e)
{
    char relative[128];
    assert_string_equal(text_of(run, "cell"), e->cell);
    assert_string_equal(text_of(run, "arm"), e->arm);
    assert_int_equal(json_integer_value(json_object_get(run, "seed")), e->seed);
    assert_int_equal(json_integer_value(json_object_get(run, "order")), order);
    assert_int_equal(json_integer_value(json_object_get(run, "exit")), 0);
    assert_int_equal(strlen(text_of(run, "started")), strlen("2026-01-01T00:00:00Z"));
    snprintf(relative, sizeof relative, "%s/result.json", text_of(run, "dir"));
    json_t *result = load(relative);
    assert_int_equal(json_integer_value(json_object_get(result, "seed")), e->seed);
    assert_string_equal(text_of(result, "strategy"), e->arm);
    const json_t *emulated = json_object_get(json_object_get(result, "environment"), "emulated");
    assert_int_equal(json_array_size(emulated), strcmp(e->cell, "slow") == 0);
    json_decref(result);
    /* a timeline of the first seed only, in one file */
    char path[256];
    snprintf(path, sizeof path, "%s/%s/trace.json", s.dir, text_of(run, "dir"));
    assert_int_equal(access(path, F_OK) == 0, e->seed == 11);
    strcat(path, ".rank1");
    assert_int_equal(access(path, F_OK), -1);
}

static void test_runs_are_interleaved(void **state)
{
    (void)state;
    static const struct expected expected[] = {
        {"even", "ring", 11},    {"even", "ps-sync", 11}, /* seed 11 in both cells; who goes first rotates */
        {"slow", "ps-sync", 11}, {"slow", "ring", 11},    /* */
        {"even", "ps-sync", 12}, {"even", "ring", 12},    /* slow@1: seed 12 in one */
    };
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ps-sync", "--seeds=11,12",
                                              "--cells=even,slow@1", "--straggler=1:1.5", NULL}),
                     EN_OK);
    assert_string_equal(s.said, "");
    json_t *index = load("compare.json"), *runs = json_object_get(index, "runs");
    assert_int_equal(json_array_size(runs), 6);
    for (int i = 0; i < 6; i++)
        expect_run(json_array_get(runs, (size_t)i), i, &expected[i]);
    assert_int_equal(json_integer_value(json_object_get(index, "schema")), 1);
    assert_true(json_number_value(json_object_get(index, "target")) == 0.75); /* unless --target says else */
    const json_t *cells = json_object_get(index, "cells"), *arms = json_object_get(index, "arms");
    assert_int_equal(json_array_size(cells), 2);
    assert_true(json_is_null(json_object_get(json_array_get(cells, 0), "straggler")));
    assert_string_equal(text_of(json_array_get(cells, 1), "straggler"), "1:1.5");
    assert_int_equal(json_array_size(arms), 2);
    assert_string_equal(text_of(json_array_get(arms, 1), "strategy"), "ps-sync");
    assert_int_equal(json_array_size(json_object_get(index, "seeds")), 2);
    assert_true(json_array_size(json_object_get(index, "argv")) > 10);
    assert_non_null(json_object_get(index, "environment"));
    json_decref(index);
    /* equal start for all arms of a seed, whatever the strategy */
    json_t *ring = load("runs/even-ring-s11/result.json"), *ps = load("runs/even-ps-sync-s11/result.json");
    assert_string_equal(text_of(ring, "init_sha256"), text_of(ps, "init_sha256"));
    assert_string_equal(text_of(ring, "order_sha256"), text_of(ps, "order_sha256"));
    assert_string_equal(text_of(ring, "params_sha256"), text_of(ps, "params_sha256"));
    json_decref(ring);
    json_decref(ps);
}

static void test_what_would_overwrite_is_refused(void **state)
{
    (void)state;
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ring", NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "once"));
    assert_int_equal(compare((const char *[]){"--arm=ring", "--cells=even,even@1", NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "twice"));
}

static void test_nothing_to_compare(void **state)
{
    (void)state;
    assert_int_equal(compare((const char *[]){NULL}), EN_EINVAL);
    assert_non_null(strstr(s.said, "--arm="));
}

/* The second run fails: the comparison does, and compare.json tells both. */
static void test_a_failed_run_is_told(void **state)
{
    (void)state;
    /* What can be known beforehand is refused before the first arm trains; this only a worker finds. */
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=no-such", NULL}), EN_ENOENT);
    assert_int_equal(compare((const char *[]){"--arm=ring", "--arm=ssp:bond=3", NULL}), EN_EINVAL);
    en_status st = compare((const char *[]){"--arm=ring", "--arm=ring:assign=claim", NULL});
    assert_true(st != EN_OK);
    json_t *index = load("compare.json"), *runs = json_object_get(index, "runs");
    assert_int_equal(json_array_size(runs), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(runs, 0), "exit")), 0);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(runs, 1), "exit")), 1);
    json_decref(index);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_runs_are_interleaved),
        TEST(test_what_would_overwrite_is_refused),
        TEST(test_nothing_to_compare),
        TEST(test_a_failed_run_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
