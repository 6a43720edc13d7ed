/* test_resume.c - a run that was killed at any moment and is resumed ends with the bytes of one that was not.
 *
 *     test_resume [SEEDS]          kills per mode, 3 by default
 *
 * Momentum, Nesterov and a cosine rate make every step depend on all before it; 103 samples leave a ragged
 * step in each of four epochs. A checkpoint at every step, so that kills fall into writes, renames and
 * removals too. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/run.h"

#define COMMON                                                                                               \
    "--device=ref --model=mlp " MADE_UP " --epochs=4 --batch-size=4 --lr=0.02 --momentum=0.9 --nesterov "    \
    "--weight-decay=0.0005 --lr-schedule=cosine"
enum { SAMPLES = 412, EVERY = 8 };

static int seeds = 3;
static char plugin[128];

/* ---- folders and processes ---- */

/* Samples of the checkpoints in a folder, the newest first. */
static int checkpoints(const char *out, uint64_t found[16])
{
    char dir[200];
    int n = 0;
    snprintf(dir, sizeof dir, "%s/checkpoints", out);
    DIR *folder = opendir(dir);
    for (struct dirent *e; folder != NULL && n < 16 && (e = readdir(folder)) != NULL;) {
        unsigned long long samples;
        char rest[32];
        if (sscanf(e->d_name, "checkpoint-%llu%31s", &samples, rest) != 2 ||
            strcmp(rest, ".safetensors") != 0)
            continue;
        int at = n++;
        for (; at > 0 && found[at - 1] < samples; at--)
            found[at] = found[at - 1];
        found[at] = samples;
    }
    if (folder != NULL) closedir(folder);
    return n;
}

static uint64_t newest(const char *out)
{
    uint64_t found[16];
    return checkpoints(out, found) > 0 ? found[0] : 0;
}

static int temporary_files(const char *out)
{
    char dir[200];
    int n = 0;
    snprintf(dir, sizeof dir, "%s/checkpoints", out);
    DIR *folder = opendir(dir);
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;)
        n += strstr(e->d_name, ".tmp") != NULL;
    if (folder != NULL) closedir(folder);
    return n;
}

static void begin(process *p, const char *out, const char *flags)
{
    process_start(p, "entrain", NULL, "run --quiet --log-level=warn --threads=1 --out=%s %s", out, flags);
}

/* The launcher and all its children, psd too: nobody gets to say goodbye. */
static void kill_everything(process *p)
{
    DIR *proc = opendir("/proc");
    for (struct dirent *e; (e = readdir(proc)) != NULL;) {
        char path[300], line[512] = "";
        int parent;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *stat = fopen(path, "re");
        if (stat == NULL) continue;
        const char *after = fgets(line, sizeof line, stat) != NULL ? strrchr(line, ')') : NULL;
        if (after != NULL && sscanf(after + 1, " %*c %d", &parent) == 1 && parent == p->pid)
            kill(atoi(e->d_name), SIGKILL);
        fclose(stat);
    }
    closedir(proc);
    process_kill(p, SIGKILL);
    process_wait(p, 10);
    process_nobody_left(10);
}

/* Waits for a checkpoint of at least that many samples; 0: the run ended before. */
static int wait_for_checkpoint(const process *p, const char *out, uint64_t samples)
{
    double deadline = now_seconds() + 60 * SLOWNESS;
    while (newest(out) < samples) {
        struct pollfd ended = {.fd = p->pidfd, .events = POLLIN};
        if (poll(&ended, 1, 1) > 0) return 0;
        if (now_seconds() > deadline) fail_msg("no checkpoint at sample %d in %s", (int)samples, out);
    }
    return 1;
}

static json_t *result_of(const char *out)
{
    char path[200];
    json_error_t error;
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *result = json_load_file(path, 0, &error);
    if (result == NULL) fail_msg("%s: %s", path, error.text);
    return result;
}

/* Goes on to the end; its params_sha256 must be `expected`. */
static json_t *finish(const char *out, const char *expected, const char *flags)
{
    process p;
    begin(&p, out, flags);
    int code = process_wait(&p, 60);
    if (code != 0) fail_msg("entrain run %s: exit %d\n%s", flags, code, process_err(&p));
    json_t *result = result_of(out);
    if (strcmp(text_at(result, "params_sha256"), expected) != 0)
        fail_msg("%s: resumed from sample %s, it ends with %s, undisturbed with %s", flags,
                 json_string_value(json_array_get(json_object_get(result, "resumed_from"), 0)),
                 text_at(result, "params_sha256"), expected);
    assert_int_equal(temporary_files(out), 0);
    return result;
}

static void folder_for(char out[160], const char *name)
{
    static int n;
    snprintf(out, 160, "%s/%s%d", system_folder(), name, n++);
}

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

/* ---- kills ---- */

/* Every step once in metrics-RANK.jsonl, in order, and every point once in eval.jsonl. */
static void expect_one_run(const char *out, int nranks, uint64_t steps)
{
    char path[200];
    for (int r = 0; r < nranks; r++) {
        snprintf(path, sizeof path, "%s/metrics-%d.jsonl", out, r);
        json_t *lines = read_lines(path);
        if (json_array_size(lines) != steps)
            fail_msg("%s has %zu lines, not %d", path, json_array_size(lines), (int)steps);
        for (size_t i = 0; i < steps; i++)
            assert_int_equal(json_integer_value(json_object_get(json_array_get(lines, i), "step")), i);
        json_decref(lines);
    }
    snprintf(path, sizeof path, "%s/eval.jsonl", out);
    json_t *points = read_lines(path);
    json_int_t last = 0;
    for (size_t i = 0; i < json_array_size(points); i++) {
        json_int_t samples = json_integer_value(json_object_get(json_array_get(points, i), "samples"));
        assert_true(samples > last);
        last = samples;
    }
    assert_int_equal(last, SAMPLES);
    assert_int_equal(json_array_size(points), 5); /* every 100 samples, and the end */
    json_decref(points);
}

/* Killed three times in a row, at checkpoints drawn from the seed. */
static void kill_and_resume(const char *flags, const char *resumed_flags, const char *expected, int nranks,
                            uint64_t seed)
{
    char out[160], text[1024], again[1024];
    uint64_t random = seed, at = 0;
    int kills = 0;
    process p;
    folder_for(out, "killed");
    snprintf(text, sizeof text, "%s --eval-every=100 --checkpoint-every=%d --resume=auto", flags, EVERY);
    snprintf(again, sizeof again, "%s --eval-every=100 --checkpoint-every=%d --resume=auto", resumed_flags,
             EVERY);
    for (int i = 0; i < 3; i++) {
        at += 1 + draw(&random, 120);
        begin(&p, out, i % 2 == 0 ? text : again);
        kills += wait_for_checkpoint(&p, out, at);
        kill_everything(&p);
        at = newest(out);
    }
    assert_true(kills > 0);
    json_t *r = finish(out, expected, again);
    assert_true(json_array_size(json_object_get(r, "resumed_from")) >= 1);
    assert_int_equal((int)number_at(r, "samples_applied"), SAMPLES);
    assert_int_equal((int)number_at(r, "samples_computed"), SAMPLES);
    assert_int_equal((int)number_at(r, "updates"), (int)number_at(r, "steps"));
    expect_one_run(out, nranks, (uint64_t)number_at(r, "steps"));
    json_decref(r);
}

static void mode(const char *name, int nranks, const char *flags, const char *other)
{
    char text[512], resumed[512];
    snprintf(text, sizeof text, "-n %d %s " COMMON, nranks, flags);
    snprintf(resumed, sizeof resumed, "-n %d %s " COMMON, nranks, other);
    const char *expected = train_hash(60, "%s", text);
    for (int seed = 1; seed <= seeds; seed++)
        kill_and_resume(text, resumed, expected, nranks, (uint64_t)seed);
    promise("%s, %d worker(s): killed %d x 3 times at random, resumed: sha256 %.8s.. as undisturbed", name,
            nranks, seeds, expected);
}

static void test_solo(void **state)
{
    (void)state;
    mode("solo", 1, "--strategy=solo", "--strategy=solo");
}

static void test_ring(void **state)
{
    (void)state;
    mode("ring direct, then tcp", 2, "--strategy=ring --allreduce=direct", "--strategy=ring --transport=tcp");
    mode("ring over tcp", 3, "--strategy=ring --allreduce=ring --transport=tcp",
         "--strategy=ring --allreduce=ring --transport=tcp");
}

static void test_ps_sync(void **state)
{
    (void)state;
    mode("ps-sync, 1 then 3 shards", 2, "--strategy=ps-sync --shards=1", "--strategy=ps-sync --shards=3");
    mode("ps-sync over tcp, 3 then 2 shards", 2, "--strategy=ps-sync --shards=3 --transport=tcp",
         "--strategy=ps-sync --shards=2 --bucket-cap-mb=0.2");
}

static void test_localsgd(void **state)
{
    char flags[200];
    (void)state;
    snprintf(flags, sizeof flags, "--strategy=%s:period=5", plugin);
    mode("local SGD (weights per rank)", 2, flags, flags);
    snprintf(flags, sizeof flags, "--strategy=%s:period=5 --transport=tcp", plugin);
    mode("local SGD over tcp", 3, flags, flags);
}

/* ---- one file, many runs ---- */

/* A run's folder that has one checkpoint of about `samples`. */
static void half_way(char out[160], const char *flags, uint64_t samples)
{
    process p;
    char text[512];
    folder_for(out, "half");
    snprintf(text, sizeof text, "%s --checkpoint-every=%d", flags, EVERY);
    begin(&p, out, text);
    assert_int_equal(wait_for_checkpoint(&p, out, samples), 1);
    kill_everything(&p);
}

static void path_of_newest(const char *out, char path[256])
{
    snprintf(path, 256, "%s/checkpoints/checkpoint-%012llu.safetensors", out,
             (unsigned long long)newest(out));
}

/* Two micro-batches of one process, two ranks, a server: the same run in three ways, so any may go on. */
static void test_another_strategy_goes_on(void **state)
{
    static const char *const ways[] = {"-n 1 --strategy=solo --accumulate=2 " COMMON,
                                       "-n 2 --strategy=ring " COMMON,
                                       "-n 2 --strategy=ps-sync --shards=2 " COMMON};
    char out[160], path[256], text[700];
    (void)state;
    const char *expected = train_hash(60, "%s", ways[0]);
    for (int from = 0; from < 3; from++) {
        half_way(out, ways[from], 150);
        path_of_newest(out, path);
        for (int to = 0; to < 3; to++) {
            char to_out[160];
            folder_for(to_out, "other");
            snprintf(text, sizeof text, "%s --resume=%s", ways[to], path);
            json_t *r = finish(to_out, expected, text);
            assert_string_equal(json_string_value(json_array_get(json_object_get(r, "resumed_from"), 0)),
                                path);
            json_decref(r);
        }
    }
    promise("a checkpoint of solo --accumulate=2, ring and ps-sync is resumed by each of them: same bytes");
}

static void expect_refusal(const char *out, const char *flags, const char *first, const char *second)
{
    process p;
    begin(&p, out, flags);
    int code = process_wait(&p, 30);
    if (code != 2) fail_msg("entrain run %s: exit %d, not 2\n%s", flags, code, process_err(&p));
    if (process_says(&p, first, second) == 0)
        fail_msg("entrain run %s: nothing about \"%s\" and \"%s\"\n%s", flags, first, second,
                 process_err(&p));
    process_nobody_left(10);
}

static void test_another_run_is_refused(void **state)
{
    static const struct {
        const char *flags, *first, *second;
    } others[] = {
        {"-n 2 --strategy=ring " COMMON " --seed=2", "seed 1", "has 2"},
        {"-n 2 --strategy=ring " COMMON " --momentum=0.8", "momentum 0.9", "has 0.8"},
        {"-n 2 --strategy=ring " COMMON " --lr=0.5", "lr 0.02", "has 0.5"},
        {"-n 2 --strategy=ring " COMMON " --epochs=5", "samples-in-all 412", "has 515"},
        {"-n 2 --strategy=ring " COMMON " --limit-train-samples=102", "samples 103", "has 102"},
        {"-n 2 --strategy=ring " COMMON " --model=toy", "--model=mlp", "toy"},
        {"-n 2 --strategy=ring " COMMON " --no-shuffle", "shuffle on", "has off"},
        {"-n 2 --strategy=ring " COMMON " --batch-size=5", "inside a step", "batch sizes fit: 4, 2, 1"},
    };
    char out[160], path[256], text[900], fresh[160];
    (void)state;
    half_way(out, "-n 2 --strategy=ring " COMMON, 7 * 8);
    path_of_newest(out, path);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        folder_for(fresh, "fresh");
        snprintf(text, sizeof text, "%s --resume=%s", others[i].flags, path);
        expect_refusal(fresh, text, others[i].first, others[i].second);
    }
    expect_refusal(out, "-n 2 --strategy=ring " COMMON " --checkpoint-every=8", "earlier run",
                   "--resume=auto");
    snprintf(text, sizeof text, "-n 2 --strategy=%s:period=5 " COMMON, plugin);
    half_way(out, text, 60);
    path_of_newest(out, path);
    snprintf(text, sizeof text, "-n 3 --strategy=%s:period=5 " COMMON " --resume=%s", plugin, path);
    expect_refusal(fresh, text, "for each of 2 workers", "here are 3");
    snprintf(text, sizeof text, "-n 2 --strategy=%s:period=6 " COMMON " --resume=%s", plugin, path);
    expect_refusal(fresh, text, "period=5", "period=6");
    snprintf(text, sizeof text, "-n 2 --strategy=ring " COMMON " --resume=%s", plugin);
    expect_refusal(fresh, text, plugin, "does not begin with the digest");
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
    assert_true(checkpoints(out, found) >= 2);
    path_of_newest(out, path);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(truncate(path, before.st_size - 1), 0);
    snprintf(text, sizeof text, "%s --checkpoint-every=%d --resume=auto", flags, EVERY);
    process p;
    begin(&p, out, text);
    assert_int_equal(process_wait(&p, 60), 0);
    assert_true(process_says(&p, path, "passed over") > 0);
    json_t *r = result_of(out);
    assert_string_equal(text_at(r, "params_sha256"), expected);
    char from[64];
    snprintf(from, sizeof from, "%012llu", (unsigned long long)found[1]);
    assert_non_null(strstr(json_string_value(json_array_get(json_object_get(r, "resumed_from"), 0)), from));
    json_decref(r);
    promise("the newest checkpoint is cut by one byte: named, passed over, the one before is resumed");
}

/* A solo run under strace, which counts calls per thread, and every checkpoint has a thread of its own. */
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

/* Training goes on, with a warning for each checkpoint that could not be written. */
static void write_fails(const char *out, const char *filter, const char *cause, int failed,
                        const char *expected)
{
    process p;
    int code = under_strace(&p, out, filter);
    if (code != 0) fail_msg("%s: exit %d\n%s", filter, code, process_err(&p));
    if (process_says(&p, cause, "training goes on") != failed)
        fail_msg("%s: not %d warnings\n%s", filter, failed, process_err(&p));
    json_t *r = result_of(out);
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
    write_fails(out, "-e trace=fsync -e inject=fsync:error=EIO:when=1", "Input/output error", 6, expected);
    folder_for(out, "folder"); /* of the rename, without which it may be gone after a power failure */
    write_fails(out, "-e trace=fsync -e inject=fsync:error=EIO:when=2", "the folder of", 6, expected);
    folder_for(out, "enospc");
    write_fails(out, "-e trace=fallocate -e inject=fallocate:error=ENOSPC:when=1", "No space left", 6,
                expected);
    promise("EIO of every fsync, ENOSPC of every fallocate: a warning for each checkpoint, the same bytes at "
            "the end");
}

/* SIGKILL at each of the calls that a checkpoint is made of. */
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
            json_decref(
                finish(out, expected, "-n 1 --strategy=solo " COMMON " --checkpoint-every=60 --resume=auto"));
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
    assert_true(process_says(&p, "No space left on device", "training goes on") >= 1);
    assert_non_null(strstr(process_out(&p), "checkpoint-000000000060.safetensors"));
    json_t *r = result_of(out);
    assert_int_equal((int)number_at(r, "checkpoints.written"), 1);
    assert_true(number_at(r, "checkpoints.failed") >= 4);
    promise("a full disk: %d checkpoints failed with a warning, the good one is still there",
            (int)number_at(r, "checkpoints.failed"));
    json_decref(r);
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
    begin(&p, out, text);
    assert_int_equal(wait_for_checkpoint(&p, out, EVERY), 1);
    snprintf(text, sizeof text,
             "-n 1 --strategy=solo " COMMON
             " --epochs=100000 --checkpoint-every=8 --resume=auto --checkpoint-dir=%s/checkpoints",
             out);
    process q;
    begin(&q, second, text);
    int code = process_wait(&q, 30);
    if (code != 2 || process_says(&q, "another run writes", "checkpoint-dir") == 0)
        fail_msg("the second run: exit %d\n%s", code, process_err(&q));
    kill_everything(&p);
    promise("a second run into the folder of a living one is refused; a dead one's lock is gone with it");
}

/* ---- called off ---- */

static void test_ctrl_c_leaves_a_checkpoint(void **state)
{
    static const char *const ways[] = {"-n 1 --strategy=solo " COMMON, "-n 2 --strategy=ring " COMMON,
                                       "-n 2 --strategy=ps-sync --shards=2 " COMMON};
    char out[160], text[512];
    process p;
    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *expected = train_hash(60, "%s", ways[i]);
        folder_for(out, "stopped");
        snprintf(text, sizeof text, "%s --checkpoint-every=40", ways[i]);
        begin(&p, out, text);
        assert_int_equal(wait_for_checkpoint(&p, out, 40), 1);
        process_kill(&p, SIGINT);
        int code = process_wait(&p, 10);
        json_t *r = result_of(out);
        if (code == 0) { /* it was quicker */
            json_decref(r);
            continue;
        }
        assert_int_equal(code, 130);
        assert_string_equal(text_at(r, "exit"), "interrupted");
        char last[64];
        snprintf(last, sizeof last, "%012d", (int)number_at(r, "samples_applied"));
        assert_non_null(strstr(text_at(r, "checkpoints.last"), last));
        json_decref(r);
        snprintf(text, sizeof text, "%s --checkpoint-every=40 --resume=auto", ways[i]);
        json_decref(finish(out, expected, text));
    }
    promise("Ctrl-C: a checkpoint at the very step, and the resumed run ends with the undisturbed bytes");
}

/* The work of an asynchronous run is that of an undisturbed one, to within a micro-batch. */
static void test_asynchronous_work_is_whole(void **state)
{
    static const char *const ways[] = {"-n 2 --strategy=ps-async " COMMON,
                                       "-n 2 --strategy=ssp:bound=2 " COMMON};
    char out[160], text[512];
    (void)state;
    for (int i = 0; i < 2; i++) {
        half_way(out, ways[i], 150);
        snprintf(text, sizeof text, "%s --checkpoint-every=40 --resume=auto", ways[i]);
        process p;
        begin(&p, out, text);
        int code = process_wait(&p, 60);
        if (code != 0) fail_msg("%s: exit %d\n%s", text, code, process_err(&p));
        json_t *r = result_of(out);
        double applied = number_at(r, "samples_applied");
        if (applied < SAMPLES || applied >= SAMPLES + 4) fail_msg("%s: %g samples applied", ways[i], applied);
        json_decref(r);
    }
    promise(
        "ps-async and ssp killed and resumed: the samples of an undisturbed run, to within a micro-batch");
}

static void build_plugin(void)
{
    process cc;
    snprintf(plugin, sizeof plugin, "%s/localsgd.so", system_folder());
    process_start(&cc, "cc", NULL,
                  "-shared -fPIC -I" EN_SOURCE_DIR "/include " EN_SOURCE_DIR "/examples/localsgd.c -o %s",
                  plugin);
    int code = process_wait(&cc, 60);
    if (code == 127) system_skip("no program cc to build a plugin with");
    assert_int_equal(code, 0);
}

static void test_a_plugin_is_built(void **state)
{
    (void)state;
    build_plugin();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_plugin_is_built),
                                       cmocka_unit_test(test_solo),
                                       cmocka_unit_test(test_ring),
                                       cmocka_unit_test(test_ps_sync),
                                       cmocka_unit_test(test_localsgd),
                                       cmocka_unit_test(test_another_strategy_goes_on),
                                       cmocka_unit_test(test_another_run_is_refused),
                                       cmocka_unit_test(test_a_damaged_file_is_passed_over),
                                       cmocka_unit_test(test_ctrl_c_leaves_a_checkpoint),
                                       cmocka_unit_test(test_asynchronous_work_is_whole),
                                       cmocka_unit_test(test_a_second_run_keeps_out),
                                       cmocka_unit_test(test_a_full_disk),
                                       cmocka_unit_test(test_a_disk_that_fails),
                                       cmocka_unit_test(test_killed_at_every_call)};
    if (argc > 1) seeds = atoi(argv[1]);
    return system_main(tests);
}
