/* scale.c - bench_scale: the times of an all-reduce and a push-pull by the number of ranks and of shards, beside
 * those of the cost model (runtime/host/cost_model.h).
 *
 * The model gets its numbers from the fewest processes that have an exchange (two ranks; one and two workers
 * with one shard) and predicts all others, so where the curves part the model is wrong: docs/performance.md
 * says why. Push-pulls are bench_pushpull's, all-reduces bench_allreduce's, without their checks of the sums. */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/figures.h"
#include "core/clock.h"
#include "core/memory.h"
#include "report/plot.h"
#include "report/stats.h"
#include "runtime/collective/probe.h"
#include "runtime/host/cost_model.h"
#include "runtime/net/host_info.h"

enum { ROWS_MAX = 64, REPEATS = 3 };

static const char usage[] =
    "usage: bench_scale [options]\n"
    "      --bytes=N       of the vector; K, M, G are 1024s [1724320, the MNIST convnet's weights]\n"
    "      --ranks=LIST    processes of an all-reduce, and workers of a push-pull, 1 .. 16 [1,2,4,8,16]\n"
    "      --shards=LIST   shards of psd, with 4 workers [1,2,4,8]\n"
    "      --plot=FILE     also draws the curves, as SVG (gnuplot)\n"
    "      --json          one object per line\n";

typedef struct options {
    uint64_t bytes;
    figures ranks, shards;
    const char *plot;
    int is_json;
} options;

typedef struct row {
    const char *what, *over; /* "all-reduce direct", "shm" */
    int ranks, shards;
    double measured, predicted; /* seconds */
    int is_source;              /* the model's numbers come from this one */
} row;

typedef struct scale {
    options o;
    int cores;
    double flag, move;
    eni_cost_numbers tcp, store[2]; /* store: shm, tcp */
    row rows[ROWS_MAX];
    int nrows;
    const char *program; /* of this benchmark, to find bench_pushpull beside it */
} scale;

static double max(double a, double b)
{
    return a > b ? a : b;
}

static row *add_row(scale *s, const char *what, const char *over, int ranks, int shards, double measured)
{
    row *r = &s->rows[s->nrows < ROWS_MAX - 1 ? s->nrows++ : s->nrows];
    *r = (row){.what = what, .over = over, .ranks = ranks, .shards = shards, .measured = measured};
    return r;
}

/* ---- running another benchmark ---- */

/* Adds the point of each line of its --json to the curve. Returns the number of lines; negative: it failed. */
static int run_bench(const scale *s, const char *command, eni_cost_curve *curve)
{
    char path[1400], line[2048];
    const char *slash = strrchr(s->program, '/');
    int n = 0;
    snprintf(path, sizeof path, "%.*s%s", slash == NULL ? 0 : (int)(slash - s->program + 1), s->program,
             command);
    FILE *out = popen(path, "r");
    while (out != NULL && fgets(line, sizeof line, out) != NULL) {
        json_t *object = json_loads(line, 0, NULL);
        const double us = json_number_value(json_object_get(object, "median_us"));
        if (us > 0) eni_cost_add(curve, json_number_value(json_object_get(object, "bytes")), us * 1e-6);
        n += us > 0;
        json_decref(object);
    }
    return out == NULL || pclose(out) != 0 ? -1 : n;
}

/* ---- all-reduce ---- */

static int run_allreduce(const scale *s, int ranks, const char *algorithm, uint64_t least, uint64_t most,
                         eni_cost_curve *curve)
{
    char command[200];
    snprintf(command, sizeof command, "bench_allreduce --json -b %llu -e %llu --ranks=%d --algorithm=%s -c 0",
             (unsigned long long)least, (unsigned long long)most, ranks, algorithm);
    *curve = (eni_cost_curve){0};
    return run_bench(s, command, curve) < 1;
}

/* Between two ranks direct takes 2 flags + 4 S moves / 2, and a ring 2 hops + S bytes (cost_model.h). */
static int find_numbers(scale *s)
{
    eni_cost_curve direct, ring;
    double alpha, beta;
    if (run_allreduce(s, 2, "direct", 4096, 4 << 20, &direct) ||
        run_allreduce(s, 2, "ring", 4096, 4 << 20, &ring))
        return 1;
    eni_cost_line(&direct, &alpha, &beta);
    s->flag = alpha / 2;
    s->move = beta * (s->cores < 2 ? s->cores : 2) / 4;
    eni_cost_line(&ring, &alpha, &beta);
    s->tcp = (eni_cost_numbers){alpha / 2, beta, 0};
    return 0;
}

static int allreduces(scale *s, const char *what, const char *algorithm, const char *over)
{
    for (int i = 0; i < s->o.ranks.n; i++) {
        const int p = (int)s->o.ranks.value[i];
        eni_cost_curve curve;
        if (p < 2) continue;
        if (run_allreduce(s, p, algorithm, s->o.bytes, s->o.bytes, &curve)) return 1;
        const double turns = max(1, (double)p / s->cores), bytes = (double)s->o.bytes;
        const eni_cost_numbers hop = {s->tcp.alpha * turns, s->tcp.beta * turns, 0};
        row *r = add_row(s, what, over, p, 0, curve.point[0].seconds);
        r->is_source = p == 2;
        r->predicted = strcmp(algorithm, "direct") == 0
                           ? eni_cost_direct(p, s->cores, bytes, s->flag, s->move)
                           : eni_cost_ring(p, bytes, &hop);
    }
    return 0;
}

/* ---- push-pull ---- */

/* The median of a few runs of bench_pushpull; negative: it failed. */
static double push_pull(const scale *s, const char *over, int workers, int shards)
{
    char command[200];
    double seconds[REPEATS];
    snprintf(command, sizeof command,
             "bench_pushpull --json --bytes=%llu --workers=%d --shards=%d --transport=%s -n 20 -c 0",
             (unsigned long long)s->o.bytes, workers, shards, over);
    for (int i = 0; i < REPEATS; i++) {
        eni_cost_curve one = {0};
        if (run_bench(s, command, &one) < 1) return -1;
        seconds[i] = one.point[0].seconds;
    }
    return eni_stats_median(seconds, REPEATS);
}

/* Shards serve at the same time only as far as the workers leave cores idle. */
static double predict_store(const scale *s, int over, int workers, int shards)
{
    const int idle = s->cores - workers, at_once = idle < 1 ? 1 : shards < idle ? shards : idle;
    const double turns = max(1, (double)(workers + 1) / s->cores);
    return s->store[over].alpha * turns + workers / at_once * (double)s->o.bytes * s->store[over].beta;
}

static int push_pulls(scale *s, int over)
{
    static const char *const names[] = {"shm", "tcp"};
    const double bytes = (double)s->o.bytes, one = push_pull(s, names[over], 1, 1),
                 two = push_pull(s, names[over], 2, 1);
    if (one < 0 || two < 0) return 1;
    /* t(w) = alpha turns(w) + w S beta, through one and two workers; both numbers at least 0 */
    const double a1 = max(1, 2.0 / s->cores), a2 = max(1, 3.0 / s->cores);
    const double alpha = max(0, (2 * one - two) / (2 * a1 - a2));
    s->store[over] = (eni_cost_numbers){alpha, max(0, (two - a2 * alpha) / (2 * bytes)), 0};
    for (int i = 0; i < s->o.ranks.n; i++) {
        const int w = (int)s->o.ranks.value[i];
        const double t = w == 1 ? one : w == 2 ? two : w <= 16 ? push_pull(s, names[over], w, 1) : 0;
        if (t < 0) return 1;
        if (t <= 0) continue;
        row *r = add_row(s, "push-pull", names[over], w, 1, t);
        r->is_source = w <= 2;
        r->predicted = predict_store(s, over, w, 1);
    }
    for (int i = 0; i < s->o.shards.n; i++) {
        const int shards = (int)s->o.shards.value[i];
        const double t = push_pull(s, names[over], 4, shards);
        if (t < 0) return 1;
        add_row(s, "push-pull, 4 workers", names[over], 4, shards, t)->predicted =
            predict_store(s, over, 4, shards);
    }
    return 0;
}

/* ---- output ---- */

static void show(const scale *s)
{
    if (!s->o.is_json) {
        printf("# %llu bytes, %d cores; the model's numbers come from the rows marked *\n",
               (unsigned long long)s->o.bytes, s->cores);
        printf("#%-22s %-4s %6s %7s %12s %12s %8s\n", "what", "over", "ranks", "shards", "measured us",
               "model us", "model");
    }
    for (int i = 0; i < s->nrows; i++) {
        const row *r = &s->rows[i];
        if (s->o.is_json)
            printf("{\"bench\":\"scale\",\"what\":\"%s\",\"transport\":\"%s\",\"ranks\":%d,\"shards\":%d,"
                   "\"bytes\":%llu,"
                   "\"median_us\":%.2f,\"model_us\":%.2f,\"is_source\":%s}\n",
                   r->what, r->over, r->ranks, r->shards, (unsigned long long)s->o.bytes, r->measured * 1e6,
                   r->predicted * 1e6, r->is_source ? "true" : "false");
        else
            printf(" %-22s %-4s %5d%s %7d %12.1f %12.1f %+7.0f%%\n", r->what, r->over, r->ranks,
                   r->is_source ? "*" : " ", r->shards, r->measured * 1e6, r->predicted * 1e6,
                   100 * (r->predicted / r->measured - 1));
    }
}

/* A named block of data per curve. */
static void print_block(const scale *s, FILE *script, const char *name, const char *what, const char *over,
                        int by_shards)
{
    fprintf(script, "$%s << EOD\n", name);
    for (int i = 0; i < s->nrows; i++) {
        const row *r = &s->rows[i];
        if (strcmp(r->what, what) == 0 && strcmp(r->over, over) == 0)
            fprintf(script, "%d %g %g\n", by_shards ? r->shards : r->ranks, r->measured * 1e3,
                    r->predicted * 1e3);
    }
    fputs("EOD\n", script);
}

static void print_panel(FILE *script, const char *title, const char *x, const char *first, const char *second,
                        const char *shm, const char *tcp)
{
    fprintf(script,
            "set title '%s'\nset xlabel '%s'\n"
            "plot $%s using 1:2 with linespoints lc rgb '#0072b2' pt 7 ps 0.7 lw 1.5 title '%s', "
            "$%s using 1:3 with linespoints lc rgb '#0072b2' pt 6 ps 0.7 lw 0.6 title 'model', "
            "$%s using 1:2 with linespoints lc rgb '#d55e00' pt 5 ps 0.7 lw 1.5 title '%s', "
            "$%s using 1:3 with linespoints lc rgb '#d55e00' pt 4 ps 0.7 lw 0.6 title 'model'\n",
            title, x, shm, first, shm, tcp, second, tcp);
}

static int draw(const scale *s)
{
    char *text = NULL, reason[256];
    size_t bytes;
    FILE *script = open_memstream(&text, &bytes);
    fputs("set terminal svg size 960,340 font 'sans,11' background 'white'\n", script);
    print_block(s, script, "direct", "all-reduce direct", "shm", 0);
    print_block(s, script, "ring", "all-reduce ring", "tcp", 0);
    print_block(s, script, "shm", "push-pull", "shm", 0);
    print_block(s, script, "tcp", "push-pull", "tcp", 0);
    print_block(s, script, "shardshm", "push-pull, 4 workers", "shm", 1);
    print_block(s, script, "shardtcp", "push-pull, 4 workers", "tcp", 1);
    fputs("set multiplot layout 1,3\nset logscale x 2\nset logscale y 10\nset format y '%g'\nset ylabel "
          "'milliseconds'\n"
          "set key top left reverse Left samplen 2\nset grid lc rgb '#dddddd'\nset border 3\nset tics "
          "nomirror\n"
          "set xtics (1,2,4,8,16,32,64)\nset offsets graph 0.05, graph 0.05, graph 0.5, graph 0.05\n",
          script);
    print_panel(script, "All-reduce", "ranks", "direct, shared memory", "ring, TCP", "direct", "ring");
    print_panel(script, "Push-pull, 1 shard", "workers", "shared memory", "TCP", "shm", "tcp");
    print_panel(script, "Push-pull, 4 workers", "shards", "shared memory", "TCP", "shardshm", "shardtcp");
    fclose(script);
    eni_picture picture =
        eni_plot_run("gnuplot", text, bytes, "<svg", 20 * ENI_SECOND, reason, sizeof reason);
    FILE *file = picture.data == NULL ? NULL : fopen(s->o.plot, "we");
    if (picture.data == NULL) fprintf(stderr, "bench_scale: no picture: %s\n", reason);
    if (picture.data != NULL && file == NULL) perror(s->o.plot);
    const int bad = file == NULL || fwrite(picture.data, 1, picture.bytes, file) != picture.bytes;
    if (file != NULL && fclose(file) != 0) perror(s->o.plot);
    eni_free(picture.data);
    free(text);
    return bad;
}

/* ---- main ---- */

static int parse(int argc, char **argv, options *o)
{
    static const struct option longs[] = {{"bytes", required_argument, NULL, 'b'},
                                          {"ranks", required_argument, NULL, 'r'},
                                          {"shards", required_argument, NULL, 's'},
                                          {"plot", required_argument, NULL, 'p'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    *o = (options){.bytes = 1724320};
    figures_list("1,2,4,8,16", 1, &o->ranks);
    figures_list("1,2,4,8", 1, &o->shards);
    int is_fine = 1;
    for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
        switch (c) {
        case 'b': o->bytes = figures_number(optarg) / 64 * 64; break;
        case 'r': is_fine &= figures_list(optarg, 1, &o->ranks); break;
        case 's': is_fine &= figures_list(optarg, 1, &o->shards); break;
        case 'p': o->plot = optarg; break;
        case 'j': o->is_json = 1; break;
        case 'h': fputs(usage, stdout); exit(0);
        default: is_fine = 0;
        }
    }
    for (int i = 0; i < o->ranks.n; i++)
        is_fine &= o->ranks.value[i] <= 16;
    for (int i = 0; i < o->shards.n; i++)
        is_fine &= o->shards.value[i] <= 256;
    return is_fine && optind == argc && o->bytes >= 64;
}

int main(int argc, char **argv)
{
    static scale s;
    s.program = argv[0];
    s.cores = eni_host_info_cores();
    if (!parse(argc, argv, &s.o)) {
        fputs(usage, stderr);
        return 2;
    }
    if (find_numbers(&s) || allreduces(&s, "all-reduce direct", "direct", "shm") ||
        allreduces(&s, "all-reduce ring", "ring", "tcp") || push_pulls(&s, 0) || push_pulls(&s, 1)) {
        fputs("bench_scale: a measurement failed\n", stderr);
        return 1;
    }
    show(&s);
    return s.o.plot != NULL ? draw(&s) : 0;
}
