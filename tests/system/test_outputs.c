/* test_outputs.c - the folder of --out: one writer at a time, what it holds is replaced with --overwrite
 * only, an unfinished run goes on with --resume, and a recorded config writes nowhere. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/resumed.h"
#include "tests/system/side_by_side.h"

/* Promise: One run writes to an --out folder at a time; it is replaced by --overwrite only, and nobody's
 * own files are removed. */

#define JOB     "--device=ref --model=toy --batch-size=2 --lr=0.01"
#define ENDLESS JOB " --steps=100000000 --limit-test-samples=8"

enum { PATIENCE = 4 * GUARD }; /* seconds for a whole run or study, beside seven others on a busy machine */

/* What find says of a folder's entries. */
static void find(const char *out, const char *format, char *text, size_t bytes)
{
    char command[512];
    snprintf(command, sizeof command, "cd %s && find . -printf '%s\\n' | sort", out, format);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    text[fread(text, 1, bytes - 1, pipe)] = 0;
    assert_int_equal(pclose(pipe), 0);
}

/* By name, size, time and number, so that nothing can have been touched unseen; by name and number only,
 * which a run that goes on does not change. */
static void look(const char *out, char *text, size_t bytes)
{
    find(out, "%p %s %T@ %i %l", text, bytes);
}

static void list(const char *out, char *text, size_t bytes)
{
    find(out, "%p %i", text, bytes);
}

static int has(const char *out, const char *name)
{
    char path[512];
    struct stat is;
    snprintf(path, sizeof path, "%s/%s", out, name);
    return lstat(path, &is) == 0;
}

static void put(const char *out, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", out, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void wait_for_file(const process *p, const char *out, const char *name)
{
    const double deadline = now_seconds() + PATIENCE;
    while (!has(out, name)) {
        struct pollfd ended = {.fd = p->pidfd, .events = POLLIN};
        if (poll(&ended, 1, 1) > 0) fail_msg("%s ended without %s\n%s", p->name, name, process_err(p));
        if (now_seconds() > deadline) fail_msg("no %s in %s", name, out);
    }
}

/* Runs `program` with these flags and --out; the exit code, and that its stderr has both. */
static void expect(int code, const char *program, const char *out, const char *flags, const char *first,
                   const char *second)
{
    process p;
    process_start(&p, program, NULL, "%s --threads=1 --quiet --out=%s", flags, out);
    const int got = process_wait(&p, PATIENCE);
    if (got != code || (first != NULL && process_says(&p, first, second) < 1))
        fail_msg("%s %s: exit %d; %d is expected, and a line with \"%s\" and \"%s\":\n%s", program, flags,
                 got, code, first == NULL ? "" : first, second == NULL ? "" : second, process_err(&p));
    process_nobody_left(PATIENCE);
}

static void finish(const char *out, const char *flags)
{
    char text[512];
    snprintf(text, sizeof text, "run %s", flags);
    expect(0, "entrain", out, text, NULL, NULL);
}

static void unfinished(char out[160])
{
    process p;
    folder_for(out, "broken");
    process_start(&p, "entrain", NULL, "run -n 2 --strategy=ring " ENDLESS " --threads=1 --quiet --out=%s",
                  out);
    wait_for_file(&p, out, "metrics-1.jsonl");
    kill_everything(&p);
}

static void unchanged(const char *before, const char *out, const char *by)
{
    static char now[1 << 16];
    look(out, now, sizeof now);
    if (strcmp(before, now) != 0) fail_msg("%s changed %s:\n%s\n%s", by, out, before, now);
}

static char before[1 << 16];

/* ---- two at once ---- */

static void test_one_writer_at_a_time(void **state)
{
    static const struct {
        const char *program, *flags;
    } others[] = {{"entrain", "run -n 1 --strategy=solo " JOB " --steps=2"},
                  {"entrain", "run -n 1 --strategy=solo " JOB " --steps=2 --overwrite"},
                  {"entrain", "run -n 2 --strategy=ring " JOB " --steps=2 --resume=auto"},
                  {"entrain", "run -n 2 --strategy=ps-sync " JOB
                              " --steps=2 --overwrite --server-restarts=1 --server-timeout=5s"},
                  {"worker", "--strategy=solo --rank=0 --world-size=1 " JOB " --steps=2 --overwrite"},
                  {"entrain", "compare -n 1 --strategies=solo " JOB " --steps=2 --overwrite"},
                  {"entrain", "scale -n 1 --strategy=solo " JOB " --steps=2 --overwrite"}};
    process p;
    char out[160], names[1024], after[1024];
    (void)state;
    folder_for(out, "busy");
    process_start(&p, "entrain", NULL, "run -n 2 --strategy=ring " ENDLESS " --threads=1 --quiet --out=%s",
                  out);
    wait_for_file(&p, out, "metrics-1.jsonl");
    list(out, names, sizeof names);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        process q;
        process_start(&q, others[i].program, NULL, "%s --threads=1 --quiet --out=%s", others[i].flags, out);
        const int code = process_wait(&q, PATIENCE);
        if (code != 2 || process_says(&q, "another run writes there", out) != 1)
            fail_msg("%s: exit %d\n%s", others[i].flags, code, process_err(&q));
    }
    list(out, after, sizeof after);
    assert_string_equal(names, after);
    kill_everything(&p);
    finish(out, "-n 1 --strategy=solo " JOB " --steps=2 --overwrite"); /* the lock is gone with them */
    promise("a second run, study or worker in the --out of a living one: refused at once, nothing touched");
}

/* ---- a fresh one ---- */

static void test_what_is_there_stays(void **state)
{
    char out[160];
    (void)state;
    folder_for(out, "done");
    finish(out, "-n 2 --strategy=ring " JOB " --steps=3");
    look(out, before, sizeof before);
    expect(2, "entrain", out, "run -n 1 --strategy=solo " JOB " --steps=2", "holds a finished run (",
           "--overwrite");
    expect(2, "worker", out, "--strategy=solo --rank=0 --world-size=1 " JOB " --steps=2", "a finished run",
           "result.json");
    expect(2, "entrain", out, "compare -n 1 --strategies=solo " JOB " --steps=2", "a finished run",
           "--overwrite");
    expect(2, "entrain", out, "run -n 1 --strategy=solo " JOB " --steps=2 --overwrite --resume=auto",
           "--resume goes on", "give one of the two");
    /* refused for another reason, after --overwrite had been allowed */
    expect(2, "entrain", out, "run -n 1 --strategy=solo " JOB " --steps=2 --overwrite --init=/nowhere/at/all",
           "/nowhere/at/all", "");
    unchanged(before, out, "a run that was refused");
    unfinished(out);
    look(out, before, sizeof before);
    expect(2, "entrain", out, "run -n 1 --strategy=solo " JOB " --steps=2", "an unfinished run", "--resume");
    expect(2, "entrain", out, "run -n 1 --strategy=solo " JOB " --steps=2", "config.yaml", "--overwrite");
    unchanged(before, out, "a run that was refused");
    promise("a finished and an unfinished run: a fresh one is told what is there and what to do, nothing is "
            "touched");
}

/* Neither what the launcher refuses nor what a worker does; an empty folder that was there stays. */
static void test_a_refused_run_leaves_no_folder(void **state)
{
    static const char *const flags[] = {
        "run -n 1 --strategy=rng " JOB, "run -n 1 --strategy=solo " JOB " --init=/nowhere/at/all",
        "run --elastic=1..2 --strategy=ring --checkpoint-every=100 " JOB " --init=/nowhere/at/all"};
    char out[160];
    (void)state;
    folder_for(out, "refused");
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        expect(2, "entrain", out, flags[i], NULL, NULL);
        assert_int_equal(access(out, F_OK), -1);
    }
    assert_int_equal(mkdir(out, 0700), 0);
    expect(2, "entrain", out, flags[0], NULL, NULL);
    assert_int_equal(rmdir(out), 0);
}

static void test_overwrite_takes_the_old_run_away(void **state)
{
    char out[160], path[512], inside[400];
    (void)state;
    folder_for(out, "old");
    finish(out,
           "-n 3 --strategy=ring " JOB " --steps=40 --eval-every=60 --checkpoint-every=60 --tensorboard");
    assert_true(has(out, "metrics-2.jsonl") && has(out, "eval.jsonl") && newest_checkpoint(out) > 0);
    put(out, "notes.txt", "mine");
    put(out, "metrics-of-mine.jsonl", "mine");
    put(out, "checkpoints/readme", "mine");
    put(out, "checkpoints/checkpoint-best.safetensors", "mine");
    put(out, "result.json.0123456789abcdef.tmp", "half");
    put(system_folder(), "outside.txt", "mine");
    snprintf(path, sizeof path, "%s/metrics-7.jsonl", out);
    assert_int_equal(symlink("../outside.txt", path), 0);
    finish(out, "-n 1 --strategy=solo " JOB " --steps=2 --overwrite");
    assert_true(has(out, "notes.txt") && has(out, "metrics-of-mine.jsonl") && has(out, "checkpoints/readme"));
    assert_true(has(out, "checkpoints/checkpoint-best.safetensors"));
    assert_true(has(system_folder(), "outside.txt"));
    assert_false(has(out, "metrics-1.jsonl") || has(out, "metrics-2.jsonl") || has(out, "metrics-7.jsonl"));
    assert_false(has(out, "result.json.0123456789abcdef.tmp"));
    assert_int_equal(newest_checkpoint(out), 0);
    snprintf(path, sizeof path, "ls %s | grep -c events", out);
    FILE *pipe = popen(path, "r");
    assert_int_equal(fgetc(pipe), '0');
    pclose(pipe);
    snprintf(path, sizeof path, "%s/metrics-0.jsonl", out);
    json_t *lines = read_lines(path);
    assert_int_equal(json_array_size(lines), 2);
    json_decref(lines);

    /* A folder of checkpoints that is a link: what is behind it is not ours to remove. */
    folder_for(out, "linked");
    finish(out, "-n 1 --strategy=solo " JOB " --steps=40 --checkpoint-every=40");
    snprintf(inside, sizeof inside, "%s/checkpoints", out);
    snprintf(path, sizeof path, "%s/elsewhere", system_folder());
    assert_int_equal(rename(inside, path), 0);
    assert_int_equal(symlink("../elsewhere", inside), 0);
    finish(out, "-n 1 --strategy=solo " JOB " --steps=2 --overwrite");
    assert_true(newest_checkpoint(out) > 0); /* seen through the link */
    promise("--overwrite removes the old run's files, no others, and nothing behind a link");
}

/* ---- going on ---- */

static void test_resume_of_what_is_finished(void **state)
{
    char out[160], other[160], flags[512], path[256];
    (void)state;
    folder_for(out, "finished");
    finish(out, "-n 2 --strategy=ring " JOB " --steps=30 --checkpoint-every=40");
    look(out, before, sizeof before);
    expect(0, "entrain", out,
           "run -n 2 --strategy=ring " JOB " --steps=30 --checkpoint-every=40 --resume=auto", "is finished",
           out);
    expect(0, "worker", out, "--strategy=solo --rank=0 --world-size=1 " JOB " --steps=30 --resume=auto",
           "is finished", out);
    path_of_newest(out, path);
    snprintf(flags, sizeof flags, "run -n 2 --strategy=ring " JOB " --steps=30 --resume=%s", path);
    expect(2, "entrain", out, flags, "a finished run", "--out");
    unchanged(before, out, "--resume of a finished run");
    folder_for(other, "another");
    finish(other, "-n 2 --strategy=ring " JOB " --steps=30 --lr=0.1 --checkpoint-every=40");
    look(other, before, sizeof before);
    expect(2, "entrain", other, flags, "no checkpoint of its", "--out");
    unchanged(before, other, "--resume of another run's checkpoint");
    finish(out, "-n 2 --strategy=ring " JOB
                " --steps=50 --checkpoint-every=40 --resume=auto"); /* a larger budget */
    json_t *r = result_of(out);
    assert_int_equal((int)number_at(r, "samples_computed"), 200);
    json_decref(r);
    unfinished(out); /* and without a checkpoint: from the start */
    finish(out, "-n 1 --strategy=solo " JOB " --steps=5 --resume=auto");
    assert_false(has(out, "metrics-1.jsonl"));
    promise("--resume=auto of a finished run: says so, exits 0, touches nothing; with a larger budget it "
            "goes on");
}

static void test_a_recorded_config_writes_nowhere(void **state)
{
    char out[160], second[160], flags[400];
    process p;
    (void)state;
    folder_for(out, "recorded");
    finish(out, "-n 2 --strategy=ring " JOB " --steps=3 --checkpoint-every=4 --tensorboard");
    look(out, before, sizeof before);
    process_start(&p, "entrain", NULL, "run --config=%s/config.yaml -n 2 --checkpoint-every=0", out);
    const int code = process_wait(&p, PATIENCE);
    if (code != 0 || strstr(process_out(&p), "samples/s") == NULL) /* nor is it quiet */
        fail_msg("exit %d\n%s%s", code, process_out(&p), process_err(&p));
    unchanged(before, out, "a run from its config");
    folder_for(second, "again");
    snprintf(flags, sizeof flags, "-n 2 --config=%s/config.yaml", out);
    finish(second, flags);
    json_t *a = result_of(out), *b = result_of(second);
    assert_string_equal(text_at(a, "params_sha256"), text_at(b, "params_sha256"));
    json_decref(a);
    json_decref(b);
    unchanged(before, out, "a run from its config");
    promise("--config of a recorded run: the same run, which writes where the command says, or nowhere");
}

/* ---- studies ---- */

static void test_a_study_stays_too(void **state)
{
    char out[160], path[400];
    process p;
    (void)state;
    folder_for(out, "study");
    expect(0, "entrain", out, "compare -n 2 --strategies=ring,ps-sync " JOB " --steps=4", NULL, NULL);
    look(out, before, sizeof before);
    expect(2, "entrain", out, "compare -n 2 --strategies=ring " JOB " --steps=4", "study (compare.json",
           "--overwrite");
    expect(2, "entrain", out, "run -n 1 --strategy=solo " JOB " --steps=2", "study (compare.json",
           "--overwrite");
    expect(2, "entrain", out, "run -n 1 --strategy=solo " JOB " --steps=2 --resume=auto", "study",
           "compare --resume");
    unchanged(before, out, "a command that was refused");
    put(out, "runs/notes.txt", "mine");
    snprintf(path, sizeof path, "%s/theirs", system_folder());
    assert_int_equal(mkdir(path, 0777), 0);
    put(path, "result.json", "{}");
    snprintf(path, sizeof path, "%s/runs/link", out);
    assert_int_equal(symlink("../../theirs", path), 0);
    process_start(&p, "entrain", NULL, "report %s --csv", out);
    assert_int_equal(process_wait(&p, PATIENCE), 0);
    assert_true(has(out, "table.csv") && has(out, "comparisons.csv") && has(out, "runs.csv"));
    finish(out, "-n 1 --strategy=solo " JOB " --steps=2 --overwrite");
    assert_false(has(out, "table.csv") || has(out, "comparisons.csv") || has(out, "runs.csv"));
    assert_true(has(out, "runs/notes.txt") && has(out, "runs/link") &&
                has(system_folder(), "theirs/result.json"));
    assert_false(has(out, "compare.json") || has(out, "report.html") || has(out, "plots") ||
                 has(out, "runs/even-ring-s1"));
    promise("a study is replaced with --overwrite only, and goes with its runs");
}

#define STUDY                                                                                                \
    "compare -n 2 --strategies=ring,ps-sync --seeds=1,2 " JOB                                                \
    " --limit-train-samples=64 --limit-test-samples=8"

static json_t *load(const char *out, const char *name)
{
    char path[512];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", out, name);
    json_t *json = json_load_file(path, 0, &error);
    if (json == NULL) fail_msg("%s: %s", path, error.text);
    return json;
}

/* The runs of a study, each once, and all well. */
static void expect_runs(const char *out, int n)
{
    json_t *study = load(out, "compare.json"), *runs = json_object_get(study, "runs"), *run, *other;
    size_t i, k;
    assert_int_equal(json_array_size(runs), n);
    json_array_foreach(runs, i, run)
    {
        char name[300];
        assert_int_equal((int)number_at(run, "exit"), 0);
        json_array_foreach(runs, k, other)
            assert_true(i == k || (strcmp(text_at(run, "dir"), text_at(other, "dir")) != 0 &&
                                   number_at(run, "order") != number_at(other, "order")));
        snprintf(name, sizeof name, "%s/result.json", text_at(run, "dir"));
        json_t *result = load(out, name);
        assert_string_equal(text_at(result, "exit"), "ok");
        json_decref(result);
    }
    json_decref(study);
}

static void test_a_killed_study_goes_on(void **state)
{
    char out[160], path[400], first[4096], again[4096];
    process p;
    (void)state;
    folder_for(out, "comparison");
    process_start(&p, "entrain", NULL, STUDY " --steps=3000 --threads=1 --quiet --out=%s", out);
    wait_for_file(&p, out, "runs/even-ps-sync-s1/metrics-1.jsonl"); /* the second of four */
    kill_everything(&p);
    look(out, before, sizeof before);
    expect(2, "entrain", out, STUDY " --steps=3000", "an unfinished study (compare.json", "--resume");
    expect(2, "entrain", out, STUDY " --steps=3001 --resume", "another study", "steps");
    expect(2, "entrain", out, STUDY " --steps=3000 --resume --lr=0.02", "another study", "lr");
    expect(2, "entrain", out, STUDY " --steps=3000 --resume=elsewhere", "--resume=elsewhere", "alone");
    unchanged(before, out, "a study that was refused");
    snprintf(path, sizeof path, "%s/runs/even-ring-s1", out);
    look(path, first, sizeof first);
    expect(0, "entrain", out, STUDY " --steps=3000 --resume", NULL, NULL);
    look(path, again, sizeof again);
    assert_string_equal(first, again); /* what was done was not done again */
    expect_runs(out, 4);
    look(out, before, sizeof before);
    expect(0, "entrain", out, STUDY " --steps=3000 --resume", "is finished", out);
    unchanged(before, out, "--resume of a finished study");

    json_t *study = load(out, "compare.json"); /* one of its runs failed */
    json_object_set_new(json_array_get(json_object_get(study, "runs"), 2), "exit", json_integer(1));
    snprintf(path, sizeof path, "%s/compare.json", out);
    assert_int_equal(json_dump_file(study, path, 0), 0);
    json_decref(study);
    expect(0, "entrain", out, STUDY " --steps=3000 --resume", NULL, NULL);
    expect_runs(out, 4);
    promise("a comparison killed in its second of four runs: --resume does the missing and failed ones, and "
            "no other");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_writer_at_a_time),
                                       cmocka_unit_test(test_what_is_there_stays),
                                       cmocka_unit_test(test_a_refused_run_leaves_no_folder),
                                       cmocka_unit_test(test_overwrite_takes_the_old_run_away),
                                       cmocka_unit_test(test_resume_of_what_is_finished),
                                       cmocka_unit_test(test_a_recorded_config_writes_nowhere),
                                       cmocka_unit_test(test_a_study_stays_too),
                                       cmocka_unit_test(test_a_killed_study_goes_on)};
    return side_by_side_main(tests);
}
