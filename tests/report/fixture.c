/* fixture.c - see fixture.h. */
#include "tests/report/fixture.h"

#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/rng.h"

enum { SAMPLES = 59904, GLOBAL_BATCH = 128, EVAL_EVERY = 3328, PARAM_BYTES = 431080 * 4 };

static const char *const setting_names[] = {"even", "slow"};
static const double slowdown = 3;

static void need(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "fixture: %s failed\n", what);
    exit(1);
}

bool fixture_has(const char *text, const char *parts)
{
    char part[128];
    for (; *parts != 0; parts += *parts == '|') {
        const size_t n = strcspn(parts, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, parts);
        if (strstr(text, part) == NULL) return false;
        parts += n;
    }
    return true;
}

/* Uniform in [-1, 1). */
static double noise(int64_t seed, uint32_t what, uint64_t index)
{
    eni_rng_key key = {(uint64_t)seed, ENI_RNG_TEST, what, 0};
    return 2 * eni_rng_unit(&key, index) - 1;
}

static void hash_of(char hex_out[ENI_DIGEST_HEX], const char *what, const char *who, int64_t seed)
{
    char text[128];
    snprintf(text, sizeof text, "%s %s %lld", what, who, (long long)seed);
    eni_digest_of(text, strlen(text), hex_out);
}

fixture fixture_demo(void)
{
    return (fixture){.narms = 3,
                     .arms = {{"ring", "ring", "direct", 0.02, 128, {14870, 5090}, 0.806, 0, 1, {0, 0}},
                              {"ps-sync", "ps-sync", NULL, 0.02, 128, {12350, 4760}, 0.806, 1, 1, {0, 0}},
                              {"ps-async", "ps-async", NULL, 0.01, 64, {13110, 8920}, 0.801, 1, 0, {1, 1}}},
                     .nseeds = {3, 1},
                     .has_trace = 1};
}

/* ---- files --------------------------------------------------------------------------------------------- */

static void path_of(char path[PATH_MAX], const char *dir, const char *file)
{
    need(snprintf(path, PATH_MAX, "%s/%s", dir, file) < PATH_MAX, "a path");
}

void fixture_folder(char path_out[64])
{
    strcpy(path_out, "/tmp/entrain-report-XXXXXX");
    need(mkdtemp(path_out) != NULL, "mkdtemp");
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

void fixture_remove(const char *dir)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void fixture_text(const char *dir, const char *file, const char *text)
{
    char path[PATH_MAX];
    path_of(path, dir, file);
    FILE *out = fopen(path, "w");
    need(out != NULL && fputs(text, out) >= 0 && fclose(out) == 0, path);
}

char *fixture_read(const char *dir, const char *file)
{
    char path[PATH_MAX];
    path_of(path, dir, file);
    FILE *in = fopen(path, "r");
    if (in == NULL) return NULL;
    char *text = NULL;
    size_t size = 0;
    if (getdelim(&text, &size, 0, in) < 0) need(0, path);
    fclose(in);
    return text;
}

void fixture_set(const char *dir, const char *file, const char *key, json_t *value)
{
    char path[PATH_MAX];
    path_of(path, dir, file);
    json_t *object = json_load_file(path, 0, NULL);
    need(object != NULL, path);
    if (value == NULL)
        json_object_del(object, key);
    else
        json_object_set_new(object, key, value);
    need(json_dump_file(object, path, JSON_INDENT(1)) == 0, path);
    json_decref(object);
}

static void write_json(const char *dir, const char *file, json_t *value)
{
    char path[PATH_MAX];
    path_of(path, dir, file);
    need(value != NULL && json_dump_file(value, path, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) == 0, path);
    json_decref(value);
}

/* ---- one run ------------------------------------------------------------------------------------------- */

typedef struct made_run {
    const fixture_arm *arm;
    size_t setting;
    int64_t seed;
    char folder[PATH_MAX];
    double speed; /* with the seed's noise */
} made_run;

/* Synchronous arms compute the same numbers, so their noise is the same. */
static uint32_t luck_of(const fixture_arm *arm)
{
    return arm->is_synchronous ? 100 : 100 + (uint32_t)strlen(arm->name);
}

static double accuracy_at(const made_run *run, double samples)
{
    double end = run->arm->accuracy + 0.002 * noise(run->seed, luck_of(run->arm), 0);
    double rise = 1 - 0.9 * exp(-pow(samples / 5200, 0.62));
    double wobble = 0.006 * noise(run->seed, luck_of(run->arm), (uint64_t)samples) * (1 - samples / SAMPLES);
    double last = 1 - 0.9 * exp(-pow(SAMPLES / 5200.0, 0.62));
    return round(10000 * (0.1 + (end - 0.1) * rise / last + wobble)) / 10000;
}

static void write_evals(const made_run *run)
{
    char path[PATH_MAX];
    path_of(path, run->folder, "eval.jsonl");
    FILE *out = fopen(path, "w");
    need(out != NULL, path);
    for (double samples = EVAL_EVERY; samples <= SAMPLES; samples += EVAL_EVERY) {
        double accuracy = accuracy_at(run, samples);
        char text[32];
        snprintf(text, sizeof text, "%.4f", accuracy);
        fprintf(out,
                "{\"samples\":%.0f,\"t\":%.4f,\"update\":%.0f,\"test_loss\":%.4f,\"test_accuracy\":%s}\n",
                samples, samples / run->speed, samples / run->arm->batch, 1.9 * (1 - accuracy) + 0.12,
                run->arm->has_no_classes ? "null" : text);
    }
    need(fclose(out) == 0, path);
}

/* Milliseconds of each phase for one micro-batch of a worker: data, compute, exchange, wait, update. */
static void phases_of(const made_run *run, int rank, double ms[5])
{
    double step = 1000 * GLOBAL_BATCH / run->speed; /* both workers, one micro-batch each */
    if (!run->arm->is_synchronous && run->setting == 1) step *= rank == 0 ? 0.67 : 2;
    ms[0] = 0.12, ms[4] = run->arm->has_server ? 0 : 0.35, ms[2] = run->arm->has_server ? 1.1 : 0.32;
    ms[1] = rank == 1 && run->setting == 1 ? step - ms[0] - ms[2] - ms[4] - 0.2 : 7.4;
    ms[3] = fmax(0.05, step - ms[0] - ms[1] - ms[2] - ms[4]);
}

static double steps_of(const made_run *run, int rank)
{
    double all = SAMPLES / 64.0;
    return run->arm->is_synchronous || run->setting == 0 ? all / 2 : rank == 0 ? 0.75 * all : 0.25 * all;
}

static json_t *histogram(double mean, double pushes)
{
    json_t *list = json_array();
    double left = pushes;
    for (int value = 0; value < 12 && left >= 1; value++) {
        /* Around the mean rather than Poisson: two even workers alternate. */
        double share = mean == 0 ? 1 : exp(-1.6 * (value - mean) * (value - mean)) / (1 + 2 * exp(-1.6));
        double count = fmin(left, round(pushes * share));
        if (count >= 1) json_array_append_new(list, json_pack("[i, I]", value, (json_int_t)count));
        left -= count;
    }
    return list;
}

/* The mean staleness of ranks 0 and 1. */
static void means_of(const made_run *run, double mean[2])
{
    const double *even = run->arm->staleness;
    const bool is_uneven = run->setting == 1 && even[0] > 0;
    mean[0] = is_uneven ? even[0] / slowdown : even[0];
    mean[1] = is_uneven ? even[1] * slowdown : even[1];
}

static json_t *per_worker_of(const made_run *run)
{
    double mean[2];
    json_t *per_worker = json_array();
    means_of(run, mean);
    for (int rank = 0; rank < 2; rank++)
        json_array_append_new(per_worker,
                              json_pack("{s:i, s:{s:f, s:o}}", "rank", rank, "staleness", "mean", mean[rank],
                                        "histogram", histogram(mean[rank], steps_of(run, rank))));
    return per_worker;
}

static json_t *roles_of(const made_run *run)
{
    json_t *roles = json_array();
    for (int rank = 0; rank < 2; rank++) {
        double ms[5], steps = steps_of(run, rank);
        phases_of(run, rank, ms);
        char name[16], core[4];
        snprintf(name, sizeof name, "rank %d", rank);
        snprintf(core, sizeof core, "%d", rank);
        json_array_append_new(
            roles, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "role", name, "cores",
                             core, "cpu_seconds", steps * (ms[0] + ms[1] + ms[4]) / 1e3, "data_ns",
                             ms[0] * steps * 1e6, "compute_ns", ms[1] * steps * 1e6, "send_ns",
                             ms[2] * steps * 1e6, "wait_ns", ms[3] * steps * 1e6, "update_ns",
                             ms[4] * steps * 1e6, "steps", steps, "straggler_slept_ns",
                             fmax(0, ms[1] - 7.4) * steps * 1e6, "hidden_ns", 2.1 * steps * 1e6));
    }
    if (run->arm->has_server) {
        double all = 1e9 * SAMPLES / run->speed;
        json_array_append_new(roles, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "role",
                                               "psd", "cores", "0-1", "cpu_seconds", 0.3 * all / 1e9,
                                               "data_ns", 0.0, "compute_ns", 0.0, "send_ns", 0.12 * all,
                                               "wait_ns", 0.7 * all, "update_ns", 0.18 * all, "steps",
                                               SAMPLES / run->arm->batch, "per_worker", per_worker_of(run)));
    }
    return roles;
}

static json_t *staleness_of(const made_run *run)
{
    double mean[2], pushes = SAMPLES / run->arm->batch;
    means_of(run, mean);
    double all =
        (mean[0] * steps_of(run, 0) + mean[1] * steps_of(run, 1)) / (steps_of(run, 0) + steps_of(run, 1));
    double most = all > 0 ? ceil(mean[1]) + 1 : 0;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:o}", "mean", all, "p50", all > 0 ? 1.0 : 0.0, "p95",
                     all > 0 ? most - 1 : 0.0, "p99", most, "max", most, "histogram", histogram(all, pushes));
}

static json_t *shares_of(const made_run *run)
{
    json_t *list = json_array();
    for (int rank = 0; rank < 2; rank++) {
        double samples = 64 * steps_of(run, rank);
        json_array_append_new(list,
                              json_pack("{s:i, s:f, s:f, s:f}", "rank", rank, "samples_computed", samples,
                                        "samples_applied", samples, "steps", steps_of(run, rank)));
    }
    return list;
}

static json_t *result_of(const made_run *run)
{
    char init[ENI_DIGEST_HEX], order[ENI_DIGEST_HEX], params[ENI_DIGEST_HEX];
    hash_of(init, "init", "", run->seed);
    hash_of(order, "order", "", run->seed);
    hash_of(params, "params", run->arm->is_synchronous ? "synchronous" : run->arm->name, run->seed);
    double updates = SAMPLES / run->arm->batch, theory = 2 * (SAMPLES / 64.0) * PARAM_BYTES;
    if (!run->arm->has_server) theory = SAMPLES / 128.0 * 2 * PARAM_BYTES;
    json_t *result = json_pack("{s:i, s:s, s:s, s:i, s:s, s:s, s:I, s:s, s:I, s:f, s:f, s:f, s:i, s:i}",
                               "schema", 2, "version", "0.1.0", "strategy", run->arm->strategy, "workers", 2,
                               "model", "convnet", "data", "fashion-mnist", "seed", (json_int_t)run->seed,
                               "device", "cpu", "steps", (json_int_t)(SAMPLES / 64), "updates", updates,
                               "samples_computed", (double)SAMPLES, "samples_applied", (double)SAMPLES,
                               "samples_dropped", 96, "global_batch_size", GLOBAL_BATCH);
    json_object_update_new(
        result, json_pack("{s:f, s:f, s:f, s:f, s:f, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:s, s:s}",
                          "train_seconds", SAMPLES / run->speed, "samples_per_s", run->speed, "test_accuracy",
                          accuracy_at(run, SAMPLES), "test_loss", 0.52, "lr", run->arm->lr, "init_sha256",
                          init, "order_sha256", order, "params_sha256", params, "payload_bytes", theory,
                          "theory_bytes", theory, "wire_bytes",
                          run->arm->has_server ? updates * 2 * 640.0 * GLOBAL_BATCH / run->arm->batch : 0.0,
                          "shm_bytes", 2 * theory, "exit", "ok", "transport", "shm"));
    if (run->arm->has_no_classes) json_object_set_new(result, "test_accuracy", json_null());
    if (run->arm->algorithm != NULL)
        json_object_set_new(result, "collective",
                            json_pack("{s:s, s:s, s:s}", "algorithm", run->arm->algorithm, "transport", "shm",
                                      "why", "all ranks are on one host"));
    json_t *emulated = json_array();
    if (run->setting == 1) {
        json_array_append_new(emulated, json_string("straggler 1:3"));
        json_object_set_new(result, "stragglers",
                            json_pack("[{s:i, s:f, s:f, s:i, s:i}]", "rank", 1, "factor", 3.0,
                                      "factor_measured", 3.0 + 0.01 * noise(run->seed, 8, 0), "pieces", 1000,
                                      "late", 0));
    }
    json_object_set_new(result, "environment", json_pack("{s:o}", "emulated", emulated));
    json_object_set_new(result, "roles", roles_of(run));
    json_object_set_new(result, "staleness", staleness_of(run));
    json_object_set_new(result, "per_worker", shares_of(run));
    return result;
}

static void write_metrics(const made_run *run)
{
    for (int rank = 0; rank < 2; rank++) {
        char path[PATH_MAX], name[32];
        double ms[5];
        snprintf(name, sizeof name, "metrics-%d.jsonl", rank);
        path_of(path, run->folder, name);
        phases_of(run, rank, ms);
        FILE *out = fopen(path, "w");
        need(out != NULL, path);
        for (int step = 0; step < 40; step++)
            fprintf(out, "{\"schema\":1,\"t\":%.4f,\"step\":%d,\"loss\":%.4f,\"step_ns\":%.0f}\n",
                    0.009 * step, step, 2.3 * exp(-0.05 * step),
                    1e6 * (ms[0] + ms[1] + ms[2] + ms[3] + ms[4]) *
                        (1 + 0.05 * noise(run->seed, 7, (uint64_t)step)));
        need(fclose(out) == 0, path);
    }
}

static void span(FILE *out, const char *name, double begin_ms, double ms, int pid, int tid, int step)
{
    fprintf(out,
            ",\n{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d,\"args\":{"
            "\"step\":%d}}",
            name, 1e3 * begin_ms, 1e3 * ms, pid, tid, step);
}

static void write_trace(const made_run *run)
{
    char path[PATH_MAX];
    path_of(path, run->folder, "trace.json");
    FILE *out = fopen(path, "w");
    need(out != NULL, path);
    fputs("{\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"rank "
          "0\"}},\n"
          "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"rank 1\"}}",
          out);
    if (run->arm->has_server)
        fputs(",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1000,\"args\":{\"name\":\"psd\"}}", out);
    for (int step = 0; step < 10; step++)
        for (int rank = 0; rank < 2; rank++) {
            double ms[5], at = 20 + step * 1000.0 * GLOBAL_BATCH / run->speed + 0.3 * rank;
            phases_of(run, rank, ms);
            span(out, "data", at, ms[0], rank, 0, step);
            span(out, "forward", at += ms[0], 0.35 * ms[1], rank, 0, step);
            span(out, "backward", at += 0.35 * ms[1], 0.65 * ms[1], rank, 0, step);
            at += 0.65 * ms[1];
            span(out, "load", at - ms[1], 0.5, rank, 2, step + 1);
            span(out, run->arm->has_server ? "push" : "all-reduce", at - 1.2, 1.2 + ms[2], rank, 1, step);
            span(out, "wait", at, ms[2] + ms[3], rank, 0, step);
            if (!run->arm->has_server) span(out, "update", at + ms[2] + ms[3], ms[4], rank, 0, step);
            for (int lane = 0; lane < 2 && run->arm->has_server; lane++) {
                span(out, "absorb", at - 0.7 + 0.2 * lane, 0.35, 1000, 10 + lane, step);
                if (rank == 1 || !run->arm->is_synchronous)
                    span(out, "update", at - 0.3 + 0.2 * lane, 0.4, 1000, 10 + lane, step);
            }
        }
    fputs("\n],\"dropped\":0}\n", out);
    need(fclose(out) == 0, path);
}

/* ---- the comparison ------------------------------------------------------------------------------------ */

static json_t *write_run(const char *dir, const fixture *spec, size_t setting, size_t arm, int64_t seed,
                         int order)
{
    made_run run = {.arm = &spec->arms[arm], .setting = setting, .seed = seed};
    char name[128], started[40];
    snprintf(name, sizeof name, "runs/%s-%zu-s%lld", setting_names[setting], arm, (long long)seed);
    path_of(run.folder, dir, name);
    need(mkdir(run.folder, 0777) == 0, run.folder);
    run.speed = spec->arms[arm].speed[setting] * (1 + 0.015 * noise(seed, (uint32_t)arm, setting));
    write_json(run.folder, "result.json", result_of(&run));
    write_evals(&run);
    write_metrics(&run);
    if (spec->has_trace && seed == 1) write_trace(&run);
    fixture_text(
        run.folder, "config.yaml",
        "model: convnet\ndata: fashion-mnist\nworkers: 2\nbatch-size: 64\nmomentum: 0.5\nepochs: 1\n");
    snprintf(started, sizeof started, "2026-05-04T10:%02d:%02dZ", order / 6, order % 6 * 10);
    return json_pack("{s:s, s:s, s:I, s:s, s:i, s:s, s:i}", "setting", setting_names[setting], "arm",
                     spec->arms[arm].name, "seed", (json_int_t)seed, "dir", name, "order", order, "started",
                     started, "exit", 0);
}

void fixture_write(const char *dir, const fixture *spec)
{
    char path[PATH_MAX];
    path_of(path, dir, "runs");
    need(mkdir(path, 0777) == 0, path);
    json_t *settings = json_array(), *arms = json_array(), *runs = json_array(), *seeds = json_array();
    json_t *planned = json_object();
    int order = 0;
    for (size_t c = 0; c < 2; c++) {
        if (spec->nseeds[c] == 0) continue;
        json_array_append_new(settings,
                              c == 0 ? json_pack("{s:s, s:n}", "name", setting_names[c], "straggler")
                                     : json_pack("{s:s, s:s}", "name", setting_names[c], "straggler", "1:3"));
        json_object_set_new(planned, setting_names[c], json_integer((json_int_t)spec->nseeds[c]));
        for (size_t s = 0; s < spec->nseeds[c]; s++)
            for (size_t a = 0; a < spec->narms; a++)
                json_array_append_new(runs, write_run(dir, spec, c, a, (int64_t)s + 1, order++));
    }
    for (size_t a = 0; a < spec->narms; a++)
        json_array_append_new(arms, json_pack("{s:s, s:s, s:{}, s:f}", "name", spec->arms[a].name, "strategy",
                                              spec->arms[a].strategy, "options", "lr", spec->arms[a].lr));
    size_t most = spec->nseeds[0] > spec->nseeds[1] ? spec->nseeds[0] : spec->nseeds[1];
    for (size_t s = 0; s < most; s++)
        json_array_append_new(seeds, json_integer((json_int_t)s + 1));
    write_json(dir, "compare.json",
               json_pack("{s:i, s:[s, s, s, s, s, s, s, s], s:f, s:s, s:o, s:o, s:o, s:o, s:{s:o}, s:{s:s, "
                         "s:i, s:s, s:s, s:s, "
                         "s:f}}",
                         "schema", 2, "argv", "entrain", "compare", "-n", "2",
                         "--strategies=ring,ps-sync,ps-async", "--data=fashion-mnist", "--seeds=1,2,3",
                         "--out=demo", "target", 0.75, "lr_scale", "linear", "settings", settings, "arms",
                         arms, "seeds", seeds, "runs", runs, "plan", "seeds", planned, "environment", "cpu",
                         "AMD EPYC 7B13", "cores", 2, "kernel", "6.1.0-18-amd64", "version", "0.1.0",
                         "commit", "fc617c6", "load", 0.08));
}
