/* test_resume_trouble.c - checkpoints in trouble: of another run, in damaged files, on disks that are full or fail, and with
 * kills inside a write. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/resumed.h"

/* Promise: Resume refuses another run's checkpoint, passes over a damaged one, and survives a full or
 * failing disk and a kill at each call of a write. */

static char localsgd[128]; /* a plugin */

static void test_a_plugin_is_built(void **state)
{
    (void)state;
    snprintf(localsgd, sizeof localsgd, "%s/localsgd.so", system_folder());
    build_plugin("examples/localsgd.c", localsgd);
}

/* ---- other runs ---- */

/* Exit code 2, and a line with all of these words. */
static void expect_refusal(const char *out, const char *flags, const char *first, const char *second,
                           const char *third)
{
    process p;
    begin_run(&p, out, flags);
    int code = process_wait(&p, 30);
    if (code != 2 || process_names(&p, first, second, third) == 0)
        fail_msg("entrain run %s: exit %d, expected 2 and \"%s\", \"%s\" and \"%s\"\n%s", flags, code, first,
                 second, third, process_err(&p));
    process_nobody_left(10);
}

static void test_another_run_is_refused(void **state)
{
    static const struct {
        const char *flags, *words[3];
    } others[] = {
        {"-n 2 --strategy=ring " COMMON " --seed=2", {"seed", "1", "2"}},
        {"-n 2 --strategy=ring " COMMON " --momentum=0.8", {"momentum", "0.9", "0.8"}},
        {"-n 2 --strategy=ring " COMMON " --decay=weights", {"decay", "all", "weights"}},
        {"-n 2 --strategy=ring " COMMON " --lr=0.5", {"lr", "0.02", "0.5"}},
        {"-n 2 --strategy=ring " COMMON " --epochs=5", {"samples-in-all", "412", "515"}},
        {"-n 2 --strategy=ring " COMMON " --limit-train-samples=102", {"samples", "103", "102"}},
        {"-n 2 --strategy=ring " COMMON " --model=toy", {"--model=mlp", "toy", ""}},
        {"-n 2 --strategy=ring " COMMON " --no-shuffle", {"shuffle", "on", "off"}},
        {"-n 2 --strategy=ring " COMMON " --no-reshuffle", {"reshuffle", "on", "off"}},
        {"-n 2 --strategy=ring " COMMON " --augment=flip", {"augment", "none", "flip"}},
        {"-n 2 --strategy=ring " COMMON " --normalize=0.5:0.5", {"normalize", "0.1307:0.3081", "0.5:0.5"}},
        {"-n 2 --strategy=ring " COMMON " --resize=28", {"resize", "0", "28"}},
        {"-n 2 --strategy=ring " COMMON " --batch-size=5", {"4", "2", "1"}},
    };
    char out[160], path[256], text[900], fresh[160];
    (void)state;
    /* Killed at its first or second checkpoint: a step lasts for a second. Neither fits a batch of 5, and both fit the batch
     * sizes that the message names. */
    half_way(out, "-n 2 --strategy=ring " COMMON " --straggler=1:1000", 8);
    path_of_newest(out, path);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        folder_for(fresh, "fresh");
        snprintf(text, sizeof text, "%s --resume=%s", others[i].flags, path);
        expect_refusal(fresh, text, others[i].words[0], others[i].words[1], others[i].words[2]);
    }
    expect_refusal(out, "-n 2 --strategy=ring " COMMON " --checkpoint-every=8", out, "--resume=auto",
                   "--overwrite");
    snprintf(text, sizeof text, "-n 2 --strategy=%s:period=5 " COMMON, localsgd);
    half_way(out, text, 60);
    path_of_newest(out, path);
    snprintf(text, sizeof text, "-n 3 --strategy=%s:period=5 " COMMON " --resume=%s", localsgd, path);
    expect_refusal(fresh, text, path, "2", "3");
    snprintf(text, sizeof text, "-n 2 --strategy=%s:period=6 " COMMON " --resume=%s", localsgd, path);
    expect_refusal(fresh, text, "period=5", "period=6", "");
    snprintf(text, sizeof text, "-n 2 --strategy=ring " COMMON " --resume=%s", localsgd);
    expect_refusal(fresh, text, localsgd, "digest", "");
    half_way(out, "-n 2 --strategy=grouped:period=5 --groups=2 " COMMON, 60);
    path_of_newest(out, path);
    snprintf(text, sizeof text, "-n 2 --strategy=grouped:period=5 " COMMON " --resume=%s", path);
    expect_refusal(fresh, text, "0;1", "0-1", "--groups=0;1");
    promise("a resume with another seed, rate, momentum, budget under cosine, data, model, order, batch or "
            "number "
            "of workers with state: refused with both values, exit 2");
}

/* ---- damage and full disks ---- */

static void test_a_damaged_file_is_passed_over(void **state)
{
    const char *flags = "-n 2 --strategy=ring " COMMON;
    char out[160], path[256], text[512];
    uint64_t found[16];
    struct stat before;
    (void)state;
    const char *expected = train_hash(60, "%s", flags);
    half_way(out, flags, 150);
    assert_true(list_checkpoints(out, found) >= 2);
    path_of_newest(out, path);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(truncate(path, before.st_size - 1), 0);
    snprintf(text, sizeof text, "%s --checkpoint-every=%d --resume=auto", flags, EVERY);
    process p;
    begin_run(&p, out, text);
    assert_int_equal(process_wait(&p, 60), 0);
    assert_true(process_says(&p, " W ", path) > 0);
    json_t *r = result_of(out);
    assert_string_equal(text_at(r, "params_sha256"), expected);
    char from[64];
    snprintf(from, sizeof from, "%012llu", (unsigned long long)found[1]);
    assert_non_null(strstr(json_string_value(json_array_get(json_object_get(r, "resumed_from"), 0)), from));
    json_decref(r);
    promise("the newest checkpoint is cut by one byte: named, passed over, the one before is resumed");
}

/* A solo run under strace, which counts calls per thread; each checkpoint has a thread of its own. */
static int under_strace(process *p, const char *out, const char *filter)
{
    process_start(p, "/usr/bin/strace", NULL,
                  "-f -qq -o /dev/null %s " EN_BUILD_DIR
                  "/entrain run --quiet --log-level=warn --threads=1 --out=%s -n 1 --strategy=solo " COMMON
                  " --checkpoint-every=60 --resume=auto",
                  filter, out);
    int code = process_wait(p, 120);
    if (code == 127 || process_says(p, "ptrace", "") > 0) system_skip("strace cannot trace here");
    return code;
}

/* Training continues, with a warning for each checkpoint that could not be written. The same call fails in every thread, so
 * where rank 0 makes it for result.json too, the run fails, and result.json says so. */
static void write_fails(const char *out, const char *filter, const char *cause, int failed,
                        const char *expected)
{
    process p;
    int code = under_strace(&p, out, filter);
    if (code != (expected == NULL)) fail_msg("%s: exit %d\n%s", filter, code, process_err(&p));
    if (process_says(&p, cause, "--checkpoint-dir") != failed)
        fail_msg("%s: not %d warnings\n%s", filter, failed, process_err(&p));
    json_t *r = result_of(out);
    if (expected == NULL) {
        if (process_says(&p, cause, "result.json") < 1) fail_msg("%s: %s", filter, process_err(&p));
        assert_string_equal(text_at(r, "exit"), "failed");
        json_decref(r);
        return;
    }
    assert_string_equal(text_at(r, "params_sha256"), expected);
    assert_int_equal((int)number_at(r, "checkpoints.failed"), failed);
    assert_int_equal((int)number_at(r, "checkpoints.written"), 6 - failed);
    assert_int_equal(temporary_files(out), 0);
    json_decref(r);
}

static void test_a_disk_that_fails(void **state)
{
    char out[160];
    (void)state;
    const char *expected = train_hash(60, "-n 1 --strategy=solo " COMMON);
    folder_for(out, "eio");
    write_fails(out, "-e trace=fsync -e inject=fsync:error=EIO:when=1", "Input/output error", 6, NULL);
    folder_for(out, "folder"); /* the folder's fsync: without it the rename may be lost in a power failure */
    write_fails(out, "-e trace=fsync -e inject=fsync:error=EIO:when=2", out, 6, NULL);
    folder_for(out, "enospc");
    write_fails(out, "-e trace=fallocate -e inject=fallocate:error=ENOSPC:when=1", "No space left", 6,
                expected);
    promise("EIO of every fsync, ENOSPC of every fallocate: a warning for each checkpoint, the same bytes at "
            "the end, or a run that failed where its result cannot be brought to the disk");
}

/* SIGKILL at each of the calls that write a checkpoint. */
static void test_killed_at_every_call(void **state)
{
    static const struct {
        const char *call;
        int n;
    } calls[] = {{"fallocate", 1}, {"write", 8}, {"fsync", 2}, {"rename", 1}, {"unlink", 1}};
    char out[160], filter[200];
    int kills = 0;
    process p;
    (void)state;
    const char *expected = train_hash(60, "-n 1 --strategy=solo " COMMON);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int n = 1; n <= calls[i].n; n++) {
            folder_for(out, "call");
            snprintf(filter, sizeof filter, "-e trace=%s -e inject=%s:signal=KILL:when=%d", calls[i].call,
                     calls[i].call, n);
            kills += under_strace(&p, out, filter) != 0;
            process_nobody_left(10);
            json_decref(finish_run(out, expected,
                                   "-n 1 --strategy=solo " COMMON " --checkpoint-every=60 --resume=auto"));
        }
    assert_true(kills >= 8);
    promise("SIGKILL at every fallocate, write, fsync, rename and unlink of a checkpoint (%d kills): resumed "
            "to the "
            "same bytes",
            kills);
}

/* A file system with room for one checkpoint and a half: the first one stays. */
static void test_a_full_disk(void **state)
{
    process p;
    char out[160], dir[200];
    (void)state;
    folder_for(out, "full");
    snprintf(dir, sizeof dir, "%s-disk", out);
    assert_int_equal(mkdir(dir, 0700), 0);
    process_start(&p, "/usr/bin/unshare", NULL,
                  "-rm " EN_SOURCE_DIR "/tests/system/on_small_disk.sh %s 2400k " EN_BUILD_DIR
                  "/entrain run --quiet --log-level=warn --threads=1 --out=%s -n 1 "
                  "--strategy=solo " COMMON " --checkpoint-every=60 --checkpoint-dir=%s",
                  dir, out, dir);
    int code = process_wait(&p, 60);
    if (code == 127 || code == 77 || process_says(&p, "unshare", "") > 0) {
        print_message("no small file system here: %s", process_err(&p));
        skip();
    }
    if (code != 0) fail_msg("exit %d\n%s", code, process_err(&p));
    assert_true(process_says(&p, "No space left on device", "--checkpoint-dir") >= 1);
    assert_non_null(strstr(process_out(&p), "checkpoint-000000000060.safetensors"));
    json_t *r = result_of(out);
    assert_int_equal((int)number_at(r, "checkpoints.written"), 1);
    assert_true(number_at(r, "checkpoints.failed") >= 4);
    promise("a full disk: %d checkpoints failed with a warning, the good one is still there",
            (int)number_at(r, "checkpoints.failed"));
    json_decref(r);
}

/* Its records do not fit: both ranks meet that, at several files, and one line says so. */
static void test_a_disk_without_room_for_records(void **state)
{
    process p;
    char dir[160];
    (void)state;
    folder_for(dir, "records-disk");
    assert_int_equal(mkdir(dir, 0700), 0);
    process_start(
        &p, "/usr/bin/unshare", NULL,
        "-rm " EN_SOURCE_DIR "/tests/system/on_small_disk.sh %s 64k " EN_BUILD_DIR
        "/entrain run --quiet --log-level=warn --threads=1 --out=%s/out -n 2 --strategy=ring --device=ref "
        "--model=toy --data=synthetic --limit-train-samples=64 --limit-test-samples=8 --batch-size=4 "
        "--steps=400",
        dir, dir);
    const int code = process_wait(&p, 60);
    if (code == 127 || code == 77 || process_says(&p, "unshare", "") > 0) {
        print_message("no small file system here: %s", process_err(&p));
        skip();
    }
    const int said = process_says(&p, "cannot write", "No space left on device");
    if (code != 1 || said != 1) fail_msg("exit %d, said %d times:\n%s", code, said, process_err(&p));
}

/* ---- two at once ---- */

static void test_a_second_run_keeps_out(void **state)
{
    char out[160], second[160], text[600];
    process p;
    (void)state;
    folder_for(out, "first");
    folder_for(second, "second");
    snprintf(text, sizeof text, "-n 1 --strategy=solo " COMMON " --epochs=100000 --checkpoint-every=%d",
             EVERY);
    begin_run(&p, out, text);
    assert_int_equal(wait_for_checkpoint(&p, out, EVERY), 1);
    snprintf(text, sizeof text,
             "-n 1 --strategy=solo " COMMON
             " --epochs=100000 --checkpoint-every=8 --resume=auto --checkpoint-dir=%s/checkpoints",
             out);
    process q;
    begin_run(&q, second, text);
    int code = process_wait(&q, 30);
    if (code != 2 || process_says(&q, out, "--checkpoint-dir") == 0)
        fail_msg("the second run: exit %d\n%s", code, process_err(&q));
    kill_everything(&p);
    promise("a second run into the folder of a living one is refused; a dead one's lock is gone with it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_plugin_is_built),
                                       cmocka_unit_test(test_another_run_is_refused),
                                       cmocka_unit_test(test_a_damaged_file_is_passed_over),
                                       cmocka_unit_test(test_a_second_run_keeps_out),
                                       cmocka_unit_test(test_a_disk_without_room_for_records),
                                       cmocka_unit_test(test_a_full_disk),
                                       cmocka_unit_test(test_a_disk_that_fails),
                                       cmocka_unit_test(test_killed_at_every_call)};
    return system_main(tests);
}
