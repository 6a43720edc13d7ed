/* test_launch.c - the ways to start a run end with the same bytes: entrain run, psd's line pasted into other
 * terminals, workers by hand, torchrun's variables, a file in place of flags. And the small sub-commands. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: entrain run, psd's printed line, workers by hand, torchrun's variables and --config end with
 * the same bytes.
 * Promise: Four ranks of a host read and hash the data set once, launched and by hand.
 * Promise: entrain predict prints the same bytes with 1, 2 and 3 processes; a process that dies, or an
 * output that is not a number, ends it and leaves nothing. */

#define JOB                                                                                                  \
    "--device=ref --model=mlp " MADE_UP " --steps=50 --batch-size=4 --lr=0.02 --momentum=0.9 --nesterov"
#define ALONE "--quiet --threads=1"

static void expect_end(process *p, int code)
{
    int got = process_wait(p, 60);
    if (got != code) fail_msg("%s ended with %d:\n%s%s", p->name, got, process_out(p), process_err(p));
}

/* A text of result.json in a folder. */
static void read_hash(const char *folder, const char *key, char hash_out[72])
{
    char path[160];
    snprintf(path, sizeof path, "%s/result.json", folder);
    json_t *result = json_load_file(path, 0, NULL);
    assert_non_null(result);
    snprintf(hash_out, 72, "%s", text_at(result, key));
    json_decref(result);
}

static void expect_hash(const char *folder, const char *expected)
{
    char hash[72];
    read_hash(folder, "params_sha256", hash);
    assert_string_equal(hash, expected);
}

static const char *out_folder(void)
{
    static char path[128];
    static int n;
    snprintf(path, sizeof path, "%s/launch%d", system_folder(), n++);
    return path;
}

/* What psd prints is a command: program, flags, with --rank=0 to be changed. */
static void test_pasted_line(void **state)
{
    process psd, ranks[3];
    (void)state;
    const char *expected = train_hash(60, "-n 3 --strategy=ps-sync --shards=2 " JOB), *out = out_folder();
    process_start(&psd, "psd", NULL,
                  "--strategy=ps-sync --world-size=3 --shards=2 --listen=tcp://127.0.0.1:0");
    const char *line = wait_for_line(&psd, "--server=", 20), *flags = strchr(line, ' '),
               *rank = strstr(line, "--rank=0");
    assert_true(flags != NULL && rank != NULL);
    char program[512];
    snprintf(program, sizeof program, "%.*s", (int)(flags - line), line);
    for (int r = 2; r >= 0; r--)
        process_start(&ranks[r], program, NULL, "%.*s--rank=%d%s --out=%s " ALONE " " JOB,
                      (int)(rank - flags), flags, r, rank + strlen("--rank=0"), out);
    for (int r = 0; r < 3; r++)
        expect_end(&ranks[r], 0);
    expect_end(&psd, 0);
    expect_hash(out, expected);
    assert_int_equal(files_left("entrain"), 0);
    promise("psd and the line that it prints, pasted for 3 ranks: the bytes of entrain run (%.8s..)",
            expected);
}

static void test_workers_by_hand(void **state)
{
    process ranks[2];
    (void)state;
    int port = free_port();
    const char *expected = train_hash(60, "-n 2 --strategy=ring " JOB), *out = out_folder();
    for (int r = 1; r >= 0; r--)
        process_start(
            &ranks[r], "worker", NULL,
            "--strategy=ring --rendezvous=tcp://127.0.0.1:%d --rank=%d --world-size=2 --out=%s " ALONE
            " " JOB,
            port, r, out);
    for (int r = 0; r < 2; r++)
        expect_end(&ranks[r], 0);
    expect_hash(out, expected);
    assert_int_equal(files_left("entrain"), 0);
    promise("two workers by hand, the second first: the bytes of entrain run");
}

static int lines_with(process *ranks, int n, const char *text)
{
    int lines = 0;
    for (int r = 0; r < n; r++)
        lines += process_says(&ranks[r], "dataset: ", text);
    return lines;
}

static void expect_one_reading(process *p, int n, int ranks)
{
    assert_int_equal(lines_with(p, n, "reading synthetic"), 1);
    assert_int_equal(lines_with(p, n, "hashing synthetic"), 1);
    assert_int_equal(lines_with(p, n, "mapped synthetic"), ranks);
}

/* The most of start-up is to decode and to hash the set. */
static void test_one_reading(void **state)
{
    process run, ranks[4];
    (void)state;
    const char *expected = train_hash(60, "-n 4 --strategy=ring " JOB), *out = out_folder();
    process_start(&run, "entrain", NULL, "run -n 4 --strategy=ring --log-level=debug --out=%s " ALONE " " JOB,
                  out);
    expect_end(&run, 0);
    expect_one_reading(&run, 1, 4);
    expect_hash(out, expected);
    const int port = free_port();
    out = out_folder();
    for (int r = 3; r >= 0; r--)
        process_start(
            &ranks[r], "worker", NULL,
            "--strategy=ring --rendezvous=tcp://127.0.0.1:%d --rank=%d --world-size=4 --log-level=debug "
            "--out=%s " ALONE " " JOB,
            port, r, out);
    for (int r = 0; r < 4; r++)
        expect_end(&ranks[r], 0);
    expect_one_reading(ranks, 4, 4);
    expect_hash(out, expected);
    process_start(&run, "entrain", NULL, "run -n 1 --strategy=solo --log-level=debug " ALONE " " JOB);
    expect_end(&run, 0);
    expect_one_reading(&run, 1, 0); /* alone, it keeps what it has read */
    promise("the data set is read once and hashed once a host by four ranks, under entrain run and by hand");
}

static void test_torchrun(void **state)
{
    process ranks[2];
    char env[256];
    (void)state;
    int port = free_port();
    const char *expected = train_hash(60, "-n 2 --strategy=ring " JOB), *out = out_folder();
    for (int r = 0; r < 2; r++) {
        snprintf(env, sizeof env,
                 "RANK=%d LOCAL_RANK=%d WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d",
                 r, r, port);
        process_start(&ranks[r], "worker", env, "--strategy=ring --out=%s " ALONE " " JOB, out);
    }
    for (int r = 0; r < 2; r++)
        expect_end(&ranks[r], 0);
    expect_hash(out, expected);
    promise("torchrun's RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: the bytes of entrain run");
}

/* One all-reduce and one push-pull with a known sum, from every rank; the seconds that it says it took. */
static double check_once(void)
{
    process p;
    double seconds = -1;
    process_start(&p, "entrain", NULL, "check -n 3");
    expect_end(&p, 0);
    const char *text = process_out(&p), *last = strstr(text, "check: all ranks reached each other (");
    for (int r = 0; r < 3; r++) {
        char expected[64];
        snprintf(expected, sizeof expected, "world_size 3, rank %d", r);
        const char *line = strstr(text, expected), *end = line == NULL ? NULL : strchr(line, '\n');
        assert_non_null(end);
        const char *first = strstr(line, "all-reduce"), *second = strstr(line, "push-pull");
        assert_true(first != NULL && second != NULL && first < end && second < end);
        assert_true(strstr(first, "sum ok") < second && strstr(second, "sum ok") < end);
    }
    assert_non_null(last);
    assert_int_equal(sscanf(last, "check: all ranks reached each other (%lf s)", &seconds), 1);
    return seconds;
}

/* It is quick. Other work on the machine makes it longer, never shorter: the best of several has little of
 * that. */
static void test_check(void **state)
{
    enum { TRIES = 10 };
    double best = 1e9;
    (void)state;
    for (int i = 0; i < TRIES && best >= 1 * SLOWNESS; i++) {
        const double seconds = check_once();
        if (seconds < best) best = seconds;
    }
    assert_true(best < 1 * SLOWNESS);
    promise("entrain check -n 3: one all-reduce, one push-pull, known sums, %.2f s", best);
}

static void expect_words(const char *command, const char *const *words)
{
    process p;
    process_start(&p, "entrain", NULL, "%s", command);
    expect_end(&p, 0);
    for (; *words != NULL; words++)
        if (strstr(process_out(&p), *words) == NULL)
            fail_msg("entrain %s does not mention %s:\n%s", command, *words, process_out(&p));
}

static void test_lists(void **state)
{
    (void)state;
    expect_words("strategies", (const char *const[]){"ps-sync", "ps-async", "ssp", "bound", "ring", "solo",
                                                     "Dean'12", "Ho'13", "Li'14", NULL});
    expect_words("models", (const char *const[]){"toy", "mlp", "203530 parameters", "convnet",
                                                 "431080 parameters", "resnet18", "width", NULL});
    expect_words("models convnet", (const char *const[]){"2.29 M multiply-adds", "conv1", "24 x 24 x 20",
                                                         "weight (20, 1, 5, 5), bias (20)", NULL});
    expect_words("models resnet18:stem=cifar,width=8",
                 (const char *const[]){"176402 parameters", "layer4.1.bn2", "batchnorm+add+relu",
                                       "reads 39 and 36", NULL});
    expect_words("data", (const char *const[]){"fashion-mnist", "mnist", "synthetic", NULL});
    expect_words("--help", (const char *const[]){"run", "compare", "check", "report", "eval", NULL});
    expect_words("help run", (const char *const[]){"usage: entrain run", "--strategy", NULL});
}

/* Saved weights are where the next run starts, and what eval sees. */
static void test_save_and_init(void **state)
{
    char saved[128], hash[72];
    process p;
    (void)state;
    snprintf(saved, sizeof saved, "%s/saved.safetensors", system_folder());
    json_t *first = train(60, "-n 2 --strategy=ring --save=%s " JOB, saved);
    json_t *second = train(60, "-n 2 --strategy=ps-sync --init=%s " JOB, saved);
    assert_string_equal(text_at(first, "params_sha256"), text_at(second, "init_sha256"));
    assert_string_not_equal(text_at(second, "params_sha256"), text_at(second, "init_sha256"));
    snprintf(hash, sizeof hash, "%s", text_at(second, "params_sha256"));
    assert_string_equal(hash, train_hash(60, "-n 2 --strategy=ring --init=%s " JOB, saved));
    process_start(
        &p, "entrain", NULL,
        "eval --init=%s --device=ref --threads=1 --model=mlp --data=synthetic --limit-test-samples=64",
        saved);
    expect_end(&p, 0);
    char expected[80];
    double right = number_at(first, "test_accuracy") * 64;
    snprintf(expected, sizeof expected, "Average loss: %.4f, Accuracy: %.0f/64",
             number_at(first, "test_loss"), right);
    if (strstr(process_out(&p), expected) == NULL)
        fail_msg("eval: not \"%s\":\n%s", expected, process_out(&p));
    promise("--save, then --init: the same hash; entrain eval: the same loss and accuracy (%s)", expected);
    json_decref(first);
    json_decref(second);
}

/* What `entrain predict` says of the samples, read back; how many are hit. */
typedef struct prediction {
    int64_t index;
    int label, class;
    double probability;
} prediction;

static int read_predictions(const char *text, int64_t n, prediction *first_out)
{
    prediction p;
    int hits = 0, used;
    for (int64_t i = 0; i < n; i++, text += used) {
        if (sscanf(text, "%" SCNd64 " %d %d %lf%n", &p.index, &p.label, &p.class, &p.probability, &used) !=
                4 ||
            text[used++] != '\n')
            fail_msg("line %lld is no prediction: %.40s", (long long)i, text);
        assert_true(p.index == i && p.class >= 0 && p.class < 10 && p.label >= 0 && p.label < 10);
        assert_true(p.probability >= 0.1 && p.probability <= 1);
        hits += p.class == p.label;
        if (i == 0) *first_out = p;
    }
    assert_string_equal(text, "");
    return hits;
}

#define SAVED "--init=%s --model=mlp --data=synthetic --limit-test-samples=103 --eval-batch-size=8"

/* The test set over several processes: a ragged last batch, and more processes than cores. */
static void test_predict(void **state)
{
    static const char *const devices[] = {"ref", "cpu"};
    char saved[128], expected[80], *lines = NULL;
    process p;
    (void)state;
    snprintf(saved, sizeof saved, "%s/early.safetensors", system_folder()); /* so that some are wrong */
    json_decref(
        train(60, "-n 2 --strategy=ring --device=ref --model=mlp " MADE_UP " --steps=2 --save=%s", saved));
    for (int d = 0; d < 2; d++) {
        prediction first = {0};
        if (!has_device(devices[d])) continue;
        for (int n = 1; n <= 3; n++) {
            process_start(&p, "entrain", NULL, "predict --device=%s -n %d " SAVED, devices[d], n, saved);
            expect_end(&p, 0);
            if (n == 1) lines = strdup(process_out(&p));
            assert_string_equal(process_out(&p), lines);
            assert_int_equal(process_says(&p, "Time elapsed", n == 1 ? "1 process on" : "processes on"), 1);
        }
        const int hits = read_predictions(lines, 103, &first);
        assert_true(hits > 0 && hits < 103);
        snprintf(expected, sizeof expected, "Accuracy: %d/103", hits);
        for (int n = 1; n <= 3; n++) {
            process_start(&p, "entrain", NULL, "eval --device=%s -n %d " SAVED, devices[d], n, saved);
            expect_end(&p, 0);
            if (strstr(process_out(&p), expected) == NULL)
                fail_msg("eval: not \"%s\":\n%s", expected, process_out(&p));
        }
        /* by another way: the loss of one sample is the logarithm of its label's probability, which is that of the
         * class, or less where the class is another */
        double loss;
        process_start(&p, "entrain", NULL,
                      "eval --device=%s --limit-test-samples=1 --init=%s --model=mlp --data=synthetic",
                      devices[d], saved);
        expect_end(&p, 0);
        assert_int_equal(sscanf(process_out(&p), "Test set: Average loss: %lf", &loss), 1);
        assert_true(exp(-loss) < first.probability + 1e-4);
        assert_true(first.class != first.label || exp(-loss) > first.probability - 1e-4);
        free(lines);
    }
    promise("entrain predict: the same bytes with 1, 2 and 3 processes, and eval's hits (%s)", expected);
}

/* Weights that are finite, but so large that sums of them are not. */
static void write_too_large(const char *path)
{
    uint64_t header;
    const float large = 3e38f;
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fread(&header, sizeof header, 1, file), 1);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long end = ftell(file);
    assert_int_equal(fseek(file, (long)(sizeof header + header), SEEK_SET), 0);
    while (ftell(file) < end)
        assert_int_equal(fwrite(&large, sizeof large, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

static void test_predict_no_number(void **state)
{
    char saved[128];
    process p;
    (void)state;
    snprintf(saved, sizeof saved, "%s/early.safetensors", system_folder());
    write_too_large(saved);
    process_start(&p, "entrain", NULL, "predict --device=ref -n 2 " SAVED, saved);
    expect_end(&p, 1);
    assert_string_equal(process_out(&p), "");
    assert_int_equal(process_says(&p, " E ", "early.safetensors: what the network gives of sample 0"), 1);
    assert_int_equal(process_says(&p, "", ""), 1);
    process_start(&p, "entrain", NULL, "eval --device=ref " SAVED, saved);
    expect_end(&p, 1);
    assert_string_equal(process_out(&p), "");
    assert_int_equal(process_says(&p, " E ", "early.safetensors: the average loss is not finite"), 1);
    promise("entrain predict and eval: outputs that are no numbers end it, with the file and the sample");
}

/* The child that a command has forked, which has its words. */
static pid_t await_child(const process *p, const char *word)
{
    const double deadline = now_seconds() + GUARD;
    pid_t child = 0;
    while (child == 0 && now_seconds() < deadline)
        child = process_child(p->pid, word);
    if (child == 0) fail_msg("%s has no child called %s:\n%s", p->name, word, process_err(p));
    return child;
}

/* Long enough to be met in it: seconds on a core. */
#define LONG "predict --init=%s -n 3 --model=mlp --data=synthetic --device=ref --limit-test-samples=40000"

static void test_predict_dies(void **state)
{
    char saved[128];
    process p;
    (void)state;
    snprintf(saved, sizeof saved, "%s/saved.safetensors", system_folder());
    for (int way = 0; way < 3; way++) {
        process_start(&p, "entrain", NULL, LONG, saved);
        const pid_t child = await_child(&p, "predict");
        if (way == 0)
            kill(child, SIGKILL);
        else
            process_kill(&p, way == 1 ? SIGINT : SIGKILL);
        assert_int_equal(process_wait(&p, GUARD), way == 0 ? 1 : way == 1 ? 130 : 128 + SIGKILL);
        assert_string_equal(process_out(&p), "");
        assert_int_equal(process_says(&p, "", ""), way == 0);
        if (way == 0) assert_int_equal(process_says(&p, " E ", "signal 9"), 1);
        process_nobody_left(GUARD);
    }
    promise("entrain predict: a process that is killed, Ctrl-C and a kill: nothing printed, nobody left");
}

/* A terminal gives its Ctrl-C to all of them. */
static void test_measurements_are_interrupted(void **state)
{
    static const char *const commands[] = {"advise --model=mlp --data=synthetic --device=ref",
                                           "check -v -n 2"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        process p;
        process_start(&p, "entrain", NULL, "%s", commands[i]);
        if (i == 1) wait_for_line(&p, "check: all ranks reached", GUARD);
        const pid_t child = await_child(&p, i == 0 ? "--rank=1" : "--probe=copy");
        process_kill(&p, SIGINT);
        kill(child, SIGINT);
        expect_end(&p, 130);
        assert_int_equal(process_says(&p, " E ", ""), 0);
        process_nobody_left(GUARD);
    }
    promise("entrain advise and check -v: Ctrl-C ends what they measure with 130, no process named");
}

static void test_config_file(void **state)
{
    char path[128], fed_back[256];
    (void)state;
    snprintf(path, sizeof path, "%s/job.yaml", system_folder());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("strategy: ring\nworkers: 2\ndevice: ref\nmodel: mlp\ndata: synthetic\nlimit-train-samples: 103\n"
          "limit_test_samples: 64\nsteps: 50\nbatch-size: 4\nlr: 0.5 # flags win\nmomentum: 0.9\nnesterov: "
          "on\n",
          file);
    fclose(file);
    const char *flags = train_hash(60, "-n 2 --strategy=ring " JOB);
    assert_string_equal(flags, train_hash(60, "--config=%s --lr=0.02", path));
    assert_string_not_equal(flags, train_hash(60, "--config=%s", path));
    snprintf(fed_back, sizeof fed_back, "%s/config.yaml", train_out());
    const char *as_written = train_hash(60, "--config=%s", path);
    /* What a run wrote down is a configuration again. */
    assert_string_equal(as_written, train_hash(60, "--config=%s", fed_back));
    promise("--config=FILE equals the flags, flags win, and the config.yaml of a run repeats it: same bytes");
}

/* Two workers of 3 samples in all, and two processes of one batch, say that there is not work for both. */
static void test_smaller_than_a_batch(void **state)
{
    process p;
    char saved[128];
    (void)state;
    snprintf(saved, sizeof saved, "%s/of-three.safetensors", system_folder());
    process_start(&p, "entrain", NULL,
                  "run -n 2 --strategy=ring --steps=2 --device=ref --model=mlp --data=synthetic "
                  "--limit-train-samples=3 --limit-test-samples=8 --save=%s",
                  saved);
    if (process_wait(&p, 60) != 0) fail_msg("%s", process_err(&p));
    assert_int_equal(process_says(&p, "3 training samples do not fill a step of 128", "2 batches of 64"), 1);
    process_start(&p, "entrain", NULL,
                  "predict -n 2 --init=%s --device=ref --model=mlp --data=synthetic --limit-test-samples=3",
                  saved);
    if (process_wait(&p, 60) != 0) fail_msg("%s", process_err(&p));
    assert_int_equal(process_says(&p, "-n 2: 3 samples are 1 batch of 3", ""), 1);
    process_start(&p, "entrain", NULL, "predict --init=%s --device=cpu:0,cpu:1 --model=mlp --data=synthetic",
                  saved);
    assert_int_equal(process_wait(&p, 60), 2);
    assert_int_equal(process_says(&p, "computes on one", "--device"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pasted_line),
                                       cmocka_unit_test(test_workers_by_hand),
                                       cmocka_unit_test(test_one_reading),
                                       cmocka_unit_test(test_torchrun),
                                       cmocka_unit_test(test_check),
                                       cmocka_unit_test(test_lists),
                                       cmocka_unit_test(test_save_and_init),
                                       cmocka_unit_test(test_predict),
                                       cmocka_unit_test(test_predict_no_number),
                                       cmocka_unit_test(test_predict_dies),
                                       cmocka_unit_test(test_smaller_than_a_batch),
                                       cmocka_unit_test(test_measurements_are_interrupted),
                                       cmocka_unit_test(test_config_file)};
    return system_main(tests);
}
