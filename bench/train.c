/* train.c - times training: runs `entrain run` for every combination and reads its result.
 *
 *     bench_train --strategy=solo,ring,ps-sync --workers=1,2 --threads=1 --batch=64 --model=convnet
 *
 * samples/s is result.json's: all workers together, without the evaluation. Rows run one after the other,
 * --repeat rounds of all rows, so that a machine that slows down slows every row alike; a row shows the median
 * and its spread. With --at-once=2 two runs of a row train side by side and their samples/s are added: the
 * machine's rate for two processes that never communicate. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "bench/figures.h"
#include "bench/programs.h"
#include "core/log.h"
#include "runtime/net/host_info.h"

enum { DEADLINE_MS = 600000, PATH_BYTES = 4096, MAX_ROWS = 256, MAX_REPEATS = 15, MAX_AT_ONCE = 16 };

typedef struct options {
    words models, strategies;
    figures workers, threads, batches;
    const char *data, *transport, *device;
    words more; /* flags of `entrain run`, passed on unchanged */
    int steps, repeats, at_once, is_json;
    char entrain[PATH_BYTES];
    char folder[64]; /* the folder for the files of runs; removed at the end */
} options;

typedef struct row {
    const char *model, *strategy;
    uint64_t workers, threads, batch;
    char device[16]; /* chosen by the workers or given */
    double samples_s[MAX_REPEATS];
    /* The following are of the last run: */
    double data_share; /* of a step's time: waiting for the batch, all workers together */
    double peak_mb;    /* the largest worker's memory, including its data set */
    double data_mb;    /* of that, the data set; 0: not recorded */
    double startup_s;  /* from the start of the launcher to the end of the first step; 0: not recorded */
} row;

/* ---- options ---- */

static const char usage[] =
    "usage: bench_train [options]\n"
    "      --model=LIST      names of `entrain models`, with at most one option each [convnet]\n"
    "      --strategy=LIST   names of `entrain strategies`; solo runs with one worker only "
    "[solo,ring,ps-sync]\n"
    "      --workers=LIST    worker processes [1,2]\n"
    "      --threads=LIST    compute threads per worker [1]\n"
    "      --batch=LIST      samples per worker and step [64]\n"
    "      --data=NAME       as of `entrain run` [fashion-mnist if it is installed, else synthetic]\n"
    "      --transport=T     auto, shm, tcp [auto]\n"
    "      --device=D        ref, cpu, cuda: as of `entrain run` [auto: see the table]\n"
    "      --flags=LIST      more flags of `entrain run`: --flags=--precision=bf16,--no-graph\n"
    "  -n, --iters=N         steps of every worker [150]\n"
    "  -r, --repeat=N        runs per row, 1 .. 15 [1]\n"
    "      --at-once=N       runs of a row side by side, 1 .. 16, their samples/s added [1]\n"
    "      --json            one object per line\n";

static const struct option long_options[] = {
    {"model", required_argument, NULL, 'M'},
    {"strategy", required_argument, NULL, 'S'},
    {"workers", required_argument, NULL, 'W'},
    {"threads", required_argument, NULL, 'T'},
    {"batch", required_argument, NULL, 'B'},
    {"data", required_argument, NULL, 'd'},
    {"transport", required_argument, NULL, 't'},
    {"iters", required_argument, NULL, 'n'},
    {"device", required_argument, NULL, 'D'},
    {"flags", required_argument, NULL, 'f'},
    {"repeat", required_argument, NULL, 'r'},
    {"at-once", required_argument, NULL, 'a'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int parse_count(const char *text, long least, long most, int *out)
{
    char *end;
    const long value = strtol(text, &end, 10);
    *out = (int)value;
    return end != text && *end == 0 && value >= least && value <= most;
}

static int parse_option(int c, char *text, options *o)
{
    switch (c) {
    case 'M': return figures_words(text, &o->models);
    case 'S': return figures_words(text, &o->strategies);
    case 'W': return figures_list(text, 1, &o->workers);
    case 'T': return figures_list(text, 1, &o->threads);
    case 'B': return figures_list(text, 1, &o->batches);
    case 'd': o->data = text; return *text != 0;
    case 't': o->transport = text; return *text != 0;
    case 'D': o->device = text; return *text != 0;
    case 'f': return figures_words(text, &o->more);
    case 'n': return parse_count(text, 1, 100000000, &o->steps);
    case 'r': return parse_count(text, 1, MAX_REPEATS, &o->repeats);
    case 'a': return parse_count(text, 1, MAX_AT_ONCE, &o->at_once);
    default: o->is_json = 1; return 1;
    }
}

/* 0: continue; else the exit code + 1. */
static int parse_options(int argc, char **argv, options *o)
{
    static char models[] = "convnet", strategies[] = "solo,ring,ps-sync"; /* split in place */
    *o = (options){.transport = "auto", .device = "auto", .steps = 150, .repeats = 1, .at_once = 1};
    figures_words(models, &o->models);
    figures_words(strategies, &o->strategies);
    figures_list("1,2", 1, &o->workers);
    figures_list("1", 1, &o->threads);
    figures_list("64", 1, &o->batches);
    for (int c, at = optind; (c = getopt_long(argc, argv, "n:r:h", long_options, NULL)) != -1; at = optind) {
        char given[64];
        snprintf(given, sizeof given, "%s", optarg ? optarg : "");
        if (c == 'h') {
            fputs(usage, stdout);
            return 1;
        }
        if (c != '?' && parse_option(c, optarg, o)) continue;
        if (c != '?') fprintf(stderr, "bench_train: %s: invalid value \"%s\"; see --help\n", argv[at], given);
        return 3;
    }
    if (optind == argc) return 0;
    fputs("bench_train: unexpected argument; see --help\n", stderr);
    return 3;
}

/* ---- one run ---- */

/* Reads the workers' reports. */
static void read_roles(const json_t *roles, row *r)
{
    double data_ns = 0, step_ns = 0;
    size_t i;
    json_t *role;
    json_array_foreach(roles, i, role)
    {
        if (!json_object_get(role, "rank")) continue; /* psd */
        const double peak_mb = json_number_value(json_object_get(role, "max_rss")) / 1e6;
        if (peak_mb > r->peak_mb) r->peak_mb = peak_mb;
        data_ns += json_number_value(json_object_get(role, "data_ns"));
        step_ns += json_number_value(json_object_get(role, "step_ns"));
    }
    r->data_share = step_ns > 0 ? data_ns / step_ns : 0;
}

/* `samples_per_s` of FOLDER/result.json, or a negative number with a sentence on stderr. */
static double read_result(const char *folder, row *r)
{
    char path[PATH_BYTES];
    json_error_t error;
    snprintf(path, sizeof path, "%s/result.json", folder);
    json_t *result = json_load_file(path, 0, &error);
    const json_t *rate = json_object_get(result, "samples_per_s");
    const double samples_s = json_is_number(rate) ? json_number_value(rate) : 0;
    if (samples_s <= 0)
        fprintf(stderr, "bench_train: %s has no samples_per_s: %s\n", path, result ? "" : error.text);
    const char *device = json_string_value(json_object_get(result, "device"));
    snprintf(r->device, sizeof r->device, "%s", device ? device : "unknown");
    r->data_mb = json_number_value(json_object_get(result, "data_bytes")) / 1e6;
    r->startup_s = json_number_value(json_object_get(result, "startup_seconds"));
    read_roles(json_object_get(result, "roles"), r);
    json_decref(result);
    return samples_s > 0 ? samples_s : -1;
}

/* Removes the files of a run by their known names, and nothing else. */
static void remove_run(const char *folder, uint64_t workers)
{
    static const char *const files[] = {"result.json", "eval.jsonl", "config.yaml"};
    char path[PATH_BYTES];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    for (uint64_t r = 0; r < workers; r++) {
        snprintf(path, sizeof path, "%s/metrics-%" PRIu64 ".jsonl", folder, r);
        unlink(path);
    }
}

/* Starts a run that leaves its files in `folder`. */
static int start_run(const options *o, const row *r, const char *folder, program *entrain)
{
    enum { FLAGS = 11, FLAG_BYTES = 128 };
    char text[FLAGS][FLAG_BYTES];
    char *argv[FLAGS + 8 + FIGURES_MAX] = {(char *)o->entrain, "run"};
    int n = 0;
    snprintf(text[n++], FLAG_BYTES, "--model=%s", r->model);
    snprintf(text[n++], FLAG_BYTES, "--strategy=%s", r->strategy);
    snprintf(text[n++], FLAG_BYTES, "--workers=%" PRIu64, r->workers);
    snprintf(text[n++], FLAG_BYTES, "--threads=%" PRIu64, r->threads);
    snprintf(text[n++], FLAG_BYTES, "--batch-size=%" PRIu64, r->batch);
    snprintf(text[n++], FLAG_BYTES, "--steps=%d", o->steps);
    snprintf(text[n++], FLAG_BYTES, "--data=%s", strcmp(r->model, "toy") == 0 ? "synthetic" : o->data);
    snprintf(text[n++], FLAG_BYTES, "--transport=%s", o->transport);
    snprintf(text[n++], FLAG_BYTES, "--device=%s", o->device);
    snprintf(text[n++], FLAG_BYTES, "--out=%s", folder);
    for (int i = 0; i < n; i++)
        argv[2 + i] = text[i];
    argv[2 + n] = "--limit-test-samples=64"; /* the evaluation is not timed */
    argv[3 + n] = "--mute";
    argv[4 + n] = "--log-level=warn";
    argv[5 + n] = "--overwrite"; /* the folder is reused */
    for (int i = 0; i < o->more.n; i++)
        argv[6 + n + i] = o->more.word[i];
    return program_start("entrain run", argv, NULL, 0, entrain);
}

static void name_folder(const options *o, int i, char folder_out[80])
{
    snprintf(folder_out, 80, "%s/%d", o->folder, i);
}

/* Trains once, with --at-once runs side by side. Returns the sum of their samples/s; negative: one failed,
 * and reported why. */
static double run_once(const options *o, row *r)
{
    program entrain[MAX_AT_ONCE];
    char folder[80];
    double samples_s = 0;
    int n = 0, bad = 0;
    r->peak_mb = 0;
    for (; n < o->at_once; n++) {
        name_folder(o, n, folder);
        if (mkdir(folder, 0700) != 0 || start_run(o, r, folder, &entrain[n]) != 0) {
            fprintf(stderr, "bench_train: cannot start a run in %s\n", folder);
            rmdir(folder);
            bad = 1;
            break;
        }
    }
    bad = programs_wait(entrain, n, bad ? 0 : DEADLINE_MS) != 0 || bad;
    for (int i = 0; i < n; i++) {
        name_folder(o, i, folder);
        const double one = bad ? -1 : read_result(folder, r);
        samples_s = one < 0 || samples_s < 0 ? -1 : samples_s + one;
        remove_run(folder, r->workers);
        rmdir(folder);
    }
    return samples_s;
}

/* ---- all rows ---- */

static int list_rows(const options *o, row *rows)
{
    int n = 0;
    for (int m = 0; m < o->models.n; m++)
        for (int s = 0; s < o->strategies.n; s++)
            for (int w = 0; w < o->workers.n; w++)
                for (int t = 0; t < o->threads.n; t++)
                    for (int b = 0; b < o->batches.n && n < MAX_ROWS; b++) {
                        const char *strategy = o->strategies.word[s];
                        const uint64_t workers = o->workers.value[w];
                        if (strncmp(strategy, "solo", 4) == 0 && workers > 1) continue;
                        rows[n++] = (row){.model = o->models.word[m],
                                          .strategy = strategy,
                                          .workers = workers,
                                          .threads = o->threads.value[t],
                                          .batch = o->batches.value[b]};
                    }
    return n;
}

static int compare_rates(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const options *o, row *r)
{
    qsort(r->samples_s, (size_t)o->repeats, sizeof *r->samples_s, compare_rates);
    const double median = r->samples_s[o->repeats / 2];
    const double least = r->samples_s[0], most = r->samples_s[o->repeats - 1];
    const char *data = strcmp(r->model, "toy") == 0 ? "synthetic" : o->data;
    if (o->is_json)
        printf("{\"bench\":\"train\",\"model\":\"%s\",\"strategy\":\"%s\",\"workers\":%" PRIu64
               ",\"threads\":%" PRIu64 ",\"batch\":%" PRIu64
               ",\"at_once\":%d,\"samples_s\":%.1f,\"least\":%.1f,\"most\":%.1f,"
               "\"runs\":%d,\"steps\":%d,\"data\":\"%s\",\"device\":\"%s\",\"data_share\":%.6f,"
               "\"peak_mb\":%.1f,\"data_mb\":%.1f,\"startup_s\":%.3f}\n",
               r->model, r->strategy, r->workers, r->threads, r->batch, o->at_once, median, least, most,
               o->repeats, o->steps, data, r->device, r->data_share, r->peak_mb, r->data_mb, r->startup_s);
    else
        printf("%-20s %-12s %-14s %-6s %7" PRIu64 " %7" PRIu64 " %6" PRIu64 " %10.0f  %.0f-%.0f\n", r->model,
               r->strategy, data, r->device, r->workers, r->threads, r->batch, median, least, most);
    fflush(stdout);
}

static int run_rows(const options *o)
{
    static row rows[MAX_ROWS];
    const int n = list_rows(o, rows);
    if (n == 0) {
        fputs("bench_train: nothing to run: solo has one worker\n", stderr);
        return 2;
    }
    if (!o->is_json) {
        printf("# entrain run on %d cores, %d steps, %d run(s) per row, %d at once\n", eni_host_info_cores(),
               o->steps, o->repeats, o->at_once);
        printf("#%-19s %-12s %-14s %-6s %7s %7s %6s %10s  %s\n", "model", "strategy", "data", "device",
               "workers", "threads", "batch", "samples/s", "least-most");
    }
    for (int i = 0; i < o->repeats; i++)
        for (int k = 0; k < n; k++) {
            rows[k].samples_s[i] = run_once(o, &rows[k]);
            if (rows[k].samples_s[i] < 0) return 1;
            if (i == o->repeats - 1) report(o, &rows[k]);
        }
    return 0;
}

int main(int argc, char **argv)
{
    options o;
    int code = parse_options(argc, argv, &o);
    if (code) return code - 1;
    eni_log_set_who("bench_train");
    if (!o.data)
        o.data = access("/usr/share/datasets/fashion-mnist", R_OK) == 0 ? "fashion-mnist" : "synthetic";
    if (program_path("entrain", o.entrain, sizeof o.entrain) != 0) return 1;
    strcpy(o.folder, "/tmp/entrain-bench-XXXXXX");
    if (!mkdtemp(o.folder)) {
        fprintf(stderr, "bench_train: cannot create a folder in /tmp: %s\n", strerror(errno));
        return 1;
    }
    code = run_rows(&o);
    if (rmdir(o.folder) != 0) fprintf(stderr, "bench_train: %s was left behind\n", o.folder);
    return code;
}
