/* test_records.c - the files of --out have what others read them for (architecture, section 7). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: The loss and accuracy that rank 0 shows are the means over the samples of all ranks.
 * Promise: The files of --out have every key that others read. */

#define STEPS 60
#define JOB   "--device=ref --model=mlp " MADE_UP " --steps=60 --batch-size=4 --eval-every=200"

static void expect_keys(const json_t *object, const char *file, const char *const *keys)
{
    for (; *keys != NULL; keys++)
        if (json_object_get(object, *keys) == NULL) fail_msg("%s has no %s", file, *keys);
}

static const char *const result_keys[] = {"schema",
                                          "argv",
                                          "version",
                                          "strategy",
                                          "workers",
                                          "model",
                                          "data",
                                          "seed",
                                          "device",
                                          "steps",
                                          "updates",
                                          "samples_computed",
                                          "samples_applied",
                                          "samples_dropped",
                                          "per_worker",
                                          "global_batch_size",
                                          "train_seconds",
                                          "eval_seconds",
                                          "cpu_seconds",
                                          "max_rss",
                                          "data_bytes",
                                          "startup_seconds",
                                          "samples_per_s",
                                          "train_loss",
                                          "train_accuracy",
                                          "test_loss",
                                          "test_accuracy",
                                          "init_sha256",
                                          "order_sha256",
                                          "params_sha256",
                                          "payload_bytes",
                                          "wire_bytes",
                                          "shm_bytes",
                                          "theory_bytes",
                                          "staleness",
                                          "exit",
                                          "environment",
                                          NULL};

/* As a number in a range: a key that is there and holds nonsense would pass otherwise. */
static void expect_between(const json_t *object, const char *path, double low, double high)
{
    double value = number_at(object, path);
    if (!(value >= low && value <= high)) fail_msg("%s is %g, not in %g .. %g", path, value, low, high);
}

static void check_result(const json_t *r, const char *strategy)
{
    static const char *const staleness[] = {"mean", "p50", "p95", "p99", "max", "histogram", NULL};
    static const char *const hashes[] = {"init_sha256", "order_sha256", "params_sha256"};
    expect_keys(r, "result.json", result_keys);
    expect_keys(json_object_get(r, "staleness"), "staleness of result.json", staleness);
    assert_string_equal(text_at(r, "strategy"), strategy);
    assert_string_equal(text_at(r, "exit"), "ok");
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(strlen(text_at(r, hashes[i])), 64);
    assert_true(number_at(r, "workers") == 2);
    assert_true(number_at(r, "global_batch_size") == 8);
    assert_int_equal(json_array_size(json_object_get(r, "per_worker")), 2);
    /* Nothing is lost on the way: what was computed was applied, and is what the plan says: 60 steps of 8, of
     * which four were an epoch's last with 7 (103 = 12 * 8 + 7). */
    assert_true(number_at(r, "samples_computed") == STEPS * 8 - 4);
    assert_true(number_at(r, "samples_applied") == STEPS * 8 - 4);
    assert_true(number_at(r, "samples_dropped") == 0);
    /* Something was computed while an exchange was under way, and no more than was computed at all. */
    for (size_t rank = 0; rank < 2; rank++) {
        const json_t *role = json_array_get(json_object_get(r, "roles"), rank);
        assert_true(number_at(role, "hidden_ns") > 0);
        assert_true(number_at(role, "hidden_ns") <= number_at(role, "compute_ns"));
    }
    expect_between(r, "train_loss", 0, 10);
    expect_between(r, "test_loss", 0, 10);
    expect_between(r, "train_accuracy", 0, 1);
    expect_between(r, "test_accuracy", 0, 1);
    expect_between(r, "train_seconds", 1e-6, 100);
    expect_between(r, "samples_per_s", 1, 1e9);
    expect_between(r, "cpu_seconds", 1e-3, 1000);
    expect_between(r, "max_rss", 1e6, 1e10);
    expect_between(r, "data_bytes", 103, 1e6);
    expect_between(r, "startup_seconds", 1e-3, 100);
}

static double check_metrics(int rank)
{
    static const char *const keys[] = {
        "schema",        "t",          "step",      "epoch",   "samples",    "update",  "base_version",
        "loss",          "lr",         "step_ns",   "data_ns", "compute_ns", "send_ns", "wait_ns",
        "payload_bytes", "wire_bytes", "staleness", NULL};
    char path[160];
    double payload = 0, previous = 0;
    size_t i;
    json_t *line;
    snprintf(path, sizeof path, "%s/metrics-%d.jsonl", train_out(), rank);
    json_t *lines = read_lines(path);
    assert_true(json_array_size(lines) > 0);
    json_array_foreach(lines, i, line)
    {
        expect_keys(line, path, keys);
        assert_true(number_at(line, "step") == (double)i);
        assert_true(number_at(line, "samples") >= previous);
        /* The parts of a step are parts of it; a server's reply may be waited for inside of send. */
        assert_true(number_at(line, "data_ns") + number_at(line, "compute_ns") + number_at(line, "wait_ns") <=
                    1.001 * number_at(line, "step_ns"));
        payload += number_at(line, "payload_bytes");
        previous = number_at(line, "samples");
    }
    json_decref(lines);
    return payload;
}

/* A point every 200 samples, and the end. */
static void check_curve(const json_t *r)
{
    static const char *const keys[] = {"schema",    "samples",       "t", "update",
                                       "test_loss", "test_accuracy", NULL};
    char path[160];
    double previous = 0;
    size_t i;
    json_t *line;
    snprintf(path, sizeof path, "%s/eval.jsonl", train_out());
    json_t *lines = read_lines(path);
    assert_true(json_array_size(lines) >= 2 && json_array_size(lines) <= 4);
    json_array_foreach(lines, i, line)
    {
        expect_keys(line, path, keys);
        assert_true(number_at(line, "samples") > previous);
        previous = number_at(line, "samples");
    }
    assert_true(previous == STEPS * 8 - 4);
    const json_t *last = json_array_get(lines, json_array_size(lines) - 1);
    assert_true(number_at(last, "test_accuracy") == number_at(r, "test_accuracy"));
    assert_true(fabs(number_at(last, "test_loss") - number_at(r, "test_loss")) < 1e-6);
    json_decref(lines);
}

static void check_config(const char *strategy)
{
    char path[160], line[512], expected[64];
    int found = 0, steps = 0;
    snprintf(path, sizeof path, "%s/config.yaml", train_out());
    snprintf(expected, sizeof expected, "strategy: \"%s\"", strategy);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        found += strncmp(line, expected, strlen(expected)) == 0;
        steps += strncmp(line, "steps: 60", 9) == 0;
        assert_null(strstr(line, "token")); /* a secret has no place in a file of mode 0644 */
    }
    fclose(file);
    assert_int_equal(found, 1);
    assert_int_equal(steps, 1);
}

static void check_run(const char *strategy)
{
    json_t *r = train(60, "-n 2 --strategy=%s " JOB, strategy);
    check_result(r, strategy);
    assert_true(check_metrics(0) + check_metrics(1) == number_at(r, "payload_bytes"));
    check_curve(r);
    check_config(strategy);
    json_decref(r);
}

static void test_records(void **state)
{
    static const char *const collective[] = {"algorithm", "transport", "why", NULL};
    (void)state;
    check_run("ring");
    check_run("ps-sync");
    check_run("ps-async");
    json_t *r = train(60, "-n 2 --strategy=ring " JOB);
    expect_keys(json_object_get(r, "collective"), "collective of result.json", collective);
    json_decref(r);
    promise("result.json, metrics-RANK.jsonl, eval.jsonl, config.yaml: every key of the contract, and sums "
            "agree");
}

/* Mean loss and share of hits over the lines of all ranks that belong to one step: those that end at `end` samples or
 * less, and beyond `begin`. */
static void mean_of_step(const char *out, int ranks, int64_t begin, int64_t end, double *loss_out,
                         double *accuracy_out)
{
    double n = 0;
    char path[160];
    *loss_out = *accuracy_out = 0;
    for (int r = 0; r < ranks; r++) {
        size_t i;
        json_t *lines, *line;
        snprintf(path, sizeof path, "%s/metrics-%d.jsonl", out, r);
        lines = read_lines(path);
        json_array_foreach(lines, i, line)
        {
            const double at = number_at(line, "samples"), own = number_at(line, "nsamples");
            if (at <= (double)begin || at > (double)end || own == 0) continue;
            n += own;
            *loss_out += number_at(line, "loss") * own;
            *accuracy_out += number_at(line, "accuracy") * own;
        }
        json_decref(lines);
    }
    assert_true(n == (double)(end - begin));
    *loss_out /= n;
    *accuracy_out /= n;
}

/* What rank 0 shows is the mean over the samples of all ranks, whoever computed them. */
static void test_shown(void **state)
{
    static const struct {
        const char *flags;
        int ranks, global;
    } ways[] = {{"-n 3 --strategy=ring", 3, 12},
                {"-n 2 --strategy=ps-sync", 2, 8},
                {"-n 3 --strategy=ps-async --straggler=1:3", 3, 12},
                {"-n 1 --strategy=solo --accumulate=2", 1, 8}};
    int lines = 0;
    (void)state;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        char out[128], text[1 << 14], *save = NULL;
        process p;
        int shown = 0;
        snprintf(out, sizeof out, "%s/shown%zu", system_folder(), w);
        process_start(&p, "entrain", NULL, "run %s --threads=1 --log-every=3 --out=%s " JOB, ways[w].flags,
                      out);
        assert_int_equal(process_wait(&p, GUARD), 0);
        snprintf(text, sizeof text, "%s", process_err(&p));
        for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
            int epoch, at;
            double loss, accuracy, expected, hits;
            if (sscanf(line, "Train Epoch: %d [%d/103 (%*d%%)] Loss: %lf Accuracy: %lf%%", &epoch, &at, &loss,
                       &accuracy) != 4)
                continue;
            const int own = at == 103 ? 103 % ways[w].global : ways[w].global;
            const int64_t end = (epoch - 1) * 103 + at;
            mean_of_step(out, ways[w].ranks, end - own, end, &expected, &hits);
            if (fabs(loss - expected) > 2e-6 * (1 + expected) || fabs(accuracy - hits * 100) > 0.006)
                fail_msg("%s: %s: not %.6f, %.2f%%", ways[w].flags, line, expected, hits * 100);
            shown++;
        }
        assert_int_equal(shown, STEPS / 3);
        lines += shown;
    }
    promise("loss and accuracy that rank 0 shows are those of all ranks' metrics files: %d lines of 4 runs",
            lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_records), cmocka_unit_test(test_shown)};
    return system_main(tests);
}
