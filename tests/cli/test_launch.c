/* test_launch.c - the launcher with the real programs: the run ends well, or all processes are ended, and nothing is left.
 *
 * A long run that must be disturbed is disturbed from its first line of progress, so no test guesses when. */
#include "cli/launcher/launch.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/folders.h"
#include "core/clock.h"
#include "core/log.h"

static struct scene {
    char plugins[4096], said[2048];
    eni_launch_progress last;
    int updates;
    const char *failed; /* of the first update: a word of its command line, or NULL */
    pid_t killed;
    int alarm[2]; /* written at the first update when is_interrupting; [0] is the launcher's signal_fd */
    int is_interrupting;
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
    memset(&s, 0, sizeof s);
    s.alarm[0] = s.alarm[1] = -1;
    eni_log_set_sink(listen_in, NULL);
    return eni_folder_plugins(s.plugins, sizeof s.plugins) == EN_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    eni_log_set_sink(NULL, NULL);
    return 0;
}

/* ---- our children ---- */

static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    size_t n = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL) fclose(file);
    text[n] = 0;
    int parent = -1;
    const char *behind_name = strrchr(text, ')');
    if (behind_name == NULL || sscanf(behind_name + 1, " %*c %d", &parent) != 1) return -1;
    return parent;
}

static int has_word(pid_t pid, const char *word)
{
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    FILE *file = fopen(path, "re");
    size_t n = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file), length = strlen(word);
    if (file != NULL) fclose(file);
    text[n] = 0;
    for (size_t at = 0; at < n; at += strlen(text + at) + 1) {
        size_t bytes = strlen(text + at);
        if (bytes >= length && strcmp(text + at + bytes - length, word) == 0) return 1;
    }
    return 0;
}

/* Our child that has a command-line argument ending in `word`. */
static pid_t child_with(const char *word)
{
    pid_t found = -1;
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc != NULL && found < 0 && (e = readdir(proc)) != NULL;) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)atoi(e->d_name) : -1;
        if (pid > 0 && parent_of(pid) == getpid() && has_word(pid, word)) found = pid;
    }
    if (proc != NULL) closedir(proc);
    return found;
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *fds = opendir("/proc/self/fd");
    while (fds != NULL && readdir(fds) != NULL)
        count++;
    if (fds != NULL) closedir(fds);
    return count;
}

/* ---- launching ---- */

/* Far longer than any test: every rank sleeps a thousand times its own compute. */
#define SLOW "--epochs=1000", "--straggler=0:1000,1:1000,2:1000"

static void on_progress(void *user, const eni_launch_progress *progress)
{
    (void)user;
    s.last = *progress;
    if (s.updates++ > 0) return;
    if (s.failed != NULL) {
        s.killed = child_with(s.failed);
        if (s.killed > 0) kill(s.killed, SIGKILL);
    }
    if (s.is_interrupting && write(s.alarm[1], "x", 1) != 1) abort();
}

/* Runs it without the programs' output. Afterwards no child is left, and no descriptor more
 * than before. */
static en_status launch_at(const char *const *flags, int signal_fd)
{
    char *argv[40] = {(char *)(uintptr_t) "run"};
    static const char *const common[] = {
        "--model=toy",      "--data=synthetic",         "--device=ref",           "--threads=1",
        "--batch-size=4",   "--limit-train-samples=64", "--limit-test-samples=8", "--quiet",
        "--log-level=error"};
    int argc = 1;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        argv[argc++] = (char *)(uintptr_t)common[i];
    for (int i = 0; flags[i] != NULL; i++)
        argv[argc++] = (char *)(uintptr_t)flags[i];
    eni_config config;
    assert_int_equal(eni_config_parse(ENI_RUN, argc, argv, &config), EN_OK);
    eni_launch launch = {
        .config = &config, .plugin_dir = s.plugins, .signal_fd = signal_fd, .on_progress = on_progress};
    int before = open_descriptors(), saved = dup(STDERR_FILENO),
        null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDERR_FILENO);
    en_status st = eni_launch_run(&launch);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(null);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    assert_int_equal(open_descriptors(), before);
    eni_config_fini(&config);
    return st;
}

static en_status launch(const char *const *flags)
{
    return launch_at(flags, -1);
}

static void expect_result(const char *dir)
{
    char path[128];
    json_error_t error;
    snprintf(path, sizeof path, "%s/result.json", dir);
    json_t *result = json_load_file(path, 0, &error);
    if (result == NULL) fail_msg("%s: %s", path, error.text);
    assert_string_equal(json_string_value(json_object_get(result, "exit")), "ok");
    assert_int_equal(json_integer_value(json_object_get(result, "steps")), 2);
    assert_int_equal(json_integer_value(json_object_get(result, "workers")), 2);
    json_decref(result);
    static const char *const files[] = {"result.json", "eval.jsonl", "config.yaml", "metrics-0.jsonl",
                                        "metrics-1.jsonl"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        if (unlink(path) != 0) fail_msg("no %s", path);
    }
    assert_int_equal(rmdir(dir), 0); /* and no other file */
}

/* Our process started before the run, except for the first run. */
static void expect_startup_within(const char *dir, int64_t ns)
{
    char path[128];
    snprintf(path, sizeof path, "%s/result.json", dir);
    json_t *result = json_load_file(path, 0, NULL);
    const double seconds = json_number_value(json_object_get(result, "startup_seconds"));
    json_decref(result);
    assert_true(seconds > 0 && seconds <= (double)ns * 1e-9);
}

static void runs_to_the_end(const char *strategy)
{
    char dir[] = "/tmp/entrain-launch-XXXXXX", out[64], word[64];
    assert_non_null(mkdtemp(dir));
    snprintf(out, sizeof out, "--out=%s", dir);
    snprintf(word, sizeof word, "--strategy=%s", strategy);
    const int64_t begin = eni_now_ns();
    assert_int_equal(launch((const char *[]){"-n", "2", word, "--steps=2", out, NULL}), EN_OK);
    expect_startup_within(dir, eni_now_ns() - begin);
    assert_true(s.updates >= 1);
    assert_int_equal(s.last.samples, 16); /* two steps of two workers' four */
    assert_int_equal(s.last.total, 16);
    assert_string_equal(s.said, "");
    expect_result(dir);
}

static void test_ring(void **state)
{
    (void)state;
    runs_to_the_end("ring");
}

static void test_ps_sync(void **state)
{
    (void)state;
    runs_to_the_end("ps-sync");
}

static void test_wrong_use(void **state)
{
    (void)state;
    /* errors found by the workers, also with psd */
    assert_int_equal(
        launch((const char *[]){"-n", "2", "--strategy=ring", "--steps=2", "--model=no-such", NULL}),
        EN_EINVAL);
    assert_int_equal(
        launch((const char *[]){"-n", "2", "--strategy=ps-sync", "--steps=2", "--optimizer=no-such", NULL}),
        EN_EINVAL);
    assert_string_equal(s.said, ""); /* logged by the workers */
    /* an error found by the launcher: no process is started */
    en_status st = launch((const char *[]){"-n", "2", "--strategy=no-such", "--steps=2", NULL});
    assert_true(st == EN_EINVAL || st == EN_ENOENT);
    assert_non_null(strstr(s.said, "no-such"));
}

static void ends_after_a_death(const char *strategy, const char *failed)
{
    s.failed = failed;
    int64_t begin = eni_now_ns();
    en_status st = launch((const char *[]){"-n", "3", strategy, SLOW, NULL});
    assert_true(s.killed > 0);
    assert_int_equal(st, EN_EPEER);
    assert_non_null(strstr(s.said, "Killed (SIGKILL)"));
    assert_null(
        strstr(strstr(s.said, "Killed (SIGKILL)") + 1, "Killed (SIGKILL)")); /* the first failed rank only */
    char pid[32];
    snprintf(pid, sizeof pid, "pid %d", (int)s.killed);
    assert_non_null(strstr(s.said, pid));
    assert_true(eni_now_ns() - begin < 15 * ENI_SECOND);
}

static void test_a_killed_worker(void **state)
{
    (void)state;
    ends_after_a_death("--strategy=ring", "--rank=1");
}

static void test_a_killed_leader(void **state)
{
    (void)state;
    ends_after_a_death("--strategy=ring", "--rank=0");
}

static void test_a_killed_server(void **state)
{
    (void)state;
    ends_after_a_death("--strategy=ps-async", "psd");
}

static void interrupted(const char *strategy)
{
    assert_int_equal(pipe2(s.alarm, O_CLOEXEC), 0);
    s.is_interrupting = 1;
    int64_t begin = eni_now_ns();
    assert_int_equal(launch_at((const char *[]){"-n", "3", strategy, SLOW, NULL}, s.alarm[0]), EN_EINTR);
    assert_true(eni_now_ns() - begin < 10 * ENI_SECOND);
    assert_null(strstr(s.said, "died")); /* they ended on request */
    char signal_number = 0;
    assert_int_equal(read(s.alarm[0], &signal_number, 1), 1); /* still there for main */
    close(s.alarm[0]);
    close(s.alarm[1]);
}

static void test_interrupted(void **state)
{
    (void)state;
    interrupted("--strategy=ring");
}

static void test_interrupted_with_servers(void **state)
{
    (void)state;
    interrupted("--strategy=ps-sync");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ring),
        TEST(test_ps_sync),
        TEST(test_wrong_use),
        TEST(test_a_killed_worker),
        TEST(test_a_killed_leader),
        TEST(test_a_killed_server),
        TEST(test_interrupted),
        TEST(test_interrupted_with_servers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
