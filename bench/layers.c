/* layers.c - times each layer of a network on a device, one pass at a time, beside the device's own peak.
 *
 *     bench_layers --model=convnet --batch=64 --threads=1
 *
 * One layer runs -n times in a row on the same memory, so its data is as warm as the caches allow; the sum is
 * what a step would take if nothing lay between its layers. The peak is the device's product of two square
 * matrices of 1024. `share` is a pass's flops per second over that peak; passes that mostly move memory have
 * none. The loader, the optimizer and the exchange are not in it: see bench_train. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/figures.h"
#include "bench/programs.h"
#include "models/layer.h"
#include "models/registry.h"
#include "ops/device.h"
#include "runtime/core/clock.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"

enum { PASSES = 3, MAX_ROUNDS = 1000, PEAK_SIDE = 1024, PATH_BYTES = 4096 };

typedef struct options {
    const char *model, *device;
    int batch, threads, rounds, is_json;
} options;

/* One layer planned, with memory of its own. */
typedef struct bench_layer {
    en_op op;
    en_extent y;
    en_plan *plan;
    en_plan_info info;
    en_args args;
    void *memory[10];
    int nmemory;
} bench_layer;

typedef struct bench {
    options options;
    eni_device device;
    double peak; /* flops a second */
    double sum_us, sum_flops;
} bench;

/* ---- options ---- */

static const char usage[] = "usage: bench_layers [options]\n"
                            "      --model=NAME      of `entrain models` [convnet]\n"
                            "      --device=D        ref, cpu, auto [auto]\n"
                            "      --batch=N         samples [64]\n"
                            "      --threads=N       compute threads [1]\n"
                            "  -n, --iters=N         runs of each pass, 1 .. 1000; the median counts [30]\n"
                            "      --json            one object a line\n";

static const struct option long_options[] = {
    {"model", required_argument, NULL, 'M'}, {"device", required_argument, NULL, 'D'},
    {"batch", required_argument, NULL, 'B'}, {"threads", required_argument, NULL, 'T'},
    {"iters", required_argument, NULL, 'n'}, {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0},
};

static int parse_count(const char *text, int most, int *out)
{
    const uint64_t value = figures_number(text);
    *out = (int)value;
    return value >= 1 && value <= (uint64_t)most;
}

static int parse_option(int c, options *o)
{
    switch (c) {
    case 'M': o->model = optarg; return 1;
    case 'D': o->device = optarg; return 1;
    case 'B': return parse_count(optarg, 65536, &o->batch);
    case 'T': return parse_count(optarg, 4096, &o->threads);
    case 'n': return parse_count(optarg, MAX_ROUNDS, &o->rounds);
    case 'j': o->is_json = 1; return 1;
    default: return 0;
    }
}

/* 0: go on; else the exit code + 1. */
static int parse_options(int argc, char **argv, options *o)
{
    *o = (options){.model = "convnet", .device = "auto", .batch = 64, .threads = 1, .rounds = 30};
    for (int c; (c = getopt_long(argc, argv, "n:h", long_options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(usage, stdout);
            return 1;
        }
        if (!parse_option(c, o)) {
            fputs("bench_layers: --help says what can be\n", stderr);
            return 3;
        }
    }
    if (optind == argc) return 0;
    fputs("bench_layers: there are only flags; see --help\n", stderr);
    return 3;
}

/* ---- one layer ---- */

/* Small numbers of both signs, so that a relu or a pooling finds something to choose. */
static en_status tensor(bench *b, bench_layer *l, uint64_t count, void **out)
{
    EN_TRY(b->device.ops->alloc(b->device.ctx, count * sizeof(float), out));
    l->memory[l->nmemory++] = *out;
    float *values = *out;
    uint32_t state = 1;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(int32_t)state * 0x1p-33f;
    }
    return EN_OK;
}

static en_status target(bench *b, bench_layer *l)
{
    void *memory; /* class 0 of every sample, or for mse the number 0 */
    const uint64_t count = (uint64_t)en_extent_count(l->op.x);
    EN_TRY(b->device.ops->alloc(b->device.ctx, count * sizeof(float), &memory));
    l->memory[l->nmemory++] = memory;
    l->args.target = memory;
    return EN_OK;
}

static en_status layer_open(bench *b, bench_layer *l)
{
    const en_device *device = b->device.ops;
    const uint64_t in = (uint64_t)en_extent_count(l->op.x), out = (uint64_t)en_extent_count(l->y);
    const uint64_t weights = (uint64_t)en_op_weights(&l->op);
    void *x, *w, *bias;
    l->info.size = sizeof l->info;
    l->args.size = sizeof l->args;
    EN_TRY(device->plan(b->device.ctx, &l->op, &l->plan));
    device->plan_info(l->plan, &l->info);
    EN_TRY(tensor(b, l, in, &x));
    EN_TRY(tensor(b, l, out, &l->args.y));
    EN_TRY(tensor(b, l, out, &l->args.dy));
    EN_TRY(tensor(b, l, in, &l->args.dx));
    EN_TRY(tensor(b, l, weights, &w));
    EN_TRY(tensor(b, l, weights, &l->args.dw));
    EN_TRY(tensor(b, l, (uint64_t)l->op.channels, &bias));
    EN_TRY(tensor(b, l, (uint64_t)l->op.channels, &l->args.db));
    EN_TRY(target(b, l));
    l->args.x = x;
    l->args.w = w;
    l->args.b = bias;
    void *scratch; /* one block for both: saved, then workspace */
    const uint64_t saved = eni_round_up(l->info.saved_bytes, device->align);
    EN_TRY(device->alloc(b->device.ctx, saved + l->info.workspace_bytes, &scratch));
    l->memory[l->nmemory++] = scratch;
    l->args.saved = scratch;
    l->args.workspace = (char *)scratch + saved;
    return EN_OK;
}

static void layer_close(bench *b, bench_layer *l)
{
    b->device.ops->plan_free(l->plan);
    for (int i = 0; i < l->nmemory; i++)
        b->device.ops->free(b->device.ctx, l->memory[i]);
}

static en_status pass_time(bench *b, bench_layer *l, en_status (*run)(en_plan *, const en_args *),
                           double *us_out)
{
    int64_t times[MAX_ROUNDS];
    double p99;
    EN_TRY(run(l->plan, &l->args)); /* first touch, and what a backward pass reads of it */
    for (int i = 0; i < b->options.rounds; i++) {
        const int64_t begin = eni_now_ns();
        EN_TRY(run(l->plan, &l->args));
        EN_TRY(b->device.ops->sync(b->device.ctx));
        times[i] = eni_now_ns() - begin;
    }
    figures_times(times, (size_t)b->options.rounds, us_out, &p99);
    return EN_OK;
}

/* Multiplications and additions of one pass. */
static double pass_flops(const bench_layer *l)
{
    const double outputs = (double)l->y.n * (double)l->y.h * (double)l->y.w;
    return 2 * outputs * (double)en_op_weights(&l->op);
}

/* ---- the table ---- */

static void print_pass(const bench *b, const char *layer, const char *pass, const char *how, double us,
                       double flops)
{
    const double rate = flops / us * 1e-3, share = 100 * rate * 1e9 / b->peak;
    if (b->options.is_json)
        printf("{\"layer\": \"%s\", \"pass\": \"%s\", \"how\": \"%s\", \"us\": %.1f, \"gflops\": %.1f, "
               "\"share\": %.1f}\n",
               layer, pass, how, us, rate, share);
    else if (flops > 0)
        printf("%-14s %-17s %9.1f %9.1f %6.0f %%  %s\n", layer, pass, us, rate, share, how);
    else
        printf("%-14s %-17s %9.1f %9s %8s  %s\n", layer, pass, us, "", "", how);
}

static en_status bench_one(bench *b, const char *name, bench_layer *l)
{
    const en_device *device = b->device.ops;
    const struct {
        const char *name, *how;
        en_status (*run)(en_plan *, const en_args *);
        int is_there;
    } passes[PASSES] = {
        {"forward", l->info.forward, device->forward, 1},
        {"backward weights", l->info.backward_weights, device->backward_weights, en_op_weights(&l->op) > 0},
        {"backward data", l->info.backward_data, device->backward_data, !(l->op.flags & EN_OP_NO_DX)}};
    for (int i = 0; i < PASSES; i++) {
        double us;
        if (!passes[i].is_there) continue;
        EN_TRY(pass_time(b, l, passes[i].run, &us));
        b->sum_us += us;
        b->sum_flops += pass_flops(l);
        print_pass(b, name, passes[i].name, passes[i].how, us, pass_flops(l));
    }
    return EN_OK;
}

static en_status measure(bench *b, const char *name, const en_op *op,
                         en_status (*what)(bench *, const char *, bench_layer *))
{
    bench_layer l = {.op = *op};
    en_status st = en_op_output(op, &l.y);
    if (st == EN_OK) st = layer_open(b, &l);
    if (st == EN_OK) st = what(b, name, &l);
    layer_close(b, &l);
    return st;
}

static en_status take_peak(bench *b, const char *name, bench_layer *l)
{
    double us;
    (void)name;
    EN_TRY(pass_time(b, l, b->device.ops->forward, &us));
    b->peak = pass_flops(l) / us * 1e6;
    return EN_OK;
}

static en_status bench_network(bench *b, const en_network *network)
{
    en_extent x = network->input;
    int has_weights = 0;
    x.n = b->options.batch;
    for (const en_layer *layer = network->layers; layer->op != 0; layer++) {
        en_op op = eni_layer_op(layer, x, EN_F32);
        if (!has_weights) op.flags |= EN_OP_NO_DX;
        has_weights |= en_op_weights(&op) > 0;
        if (!eni_layer_is_view(layer, x))
            EN_TRY(measure(b, layer->name ? layer->name : eni_layer_op_name(layer->op), &op, bench_one));
        EN_TRY(en_op_output(&op, &x));
    }
    return EN_OK;
}

static en_status bench_all(bench *b)
{
    const en_network *network;
    const en_op square = {.size = sizeof square,
                          .kind = EN_OP_LINEAR,
                          .dtype = EN_F32,
                          .x = {PEAK_SIDE, 1, 1, PEAK_SIDE},
                          .channels = PEAK_SIDE};
    EN_TRY(eni_network_get("--model", b->options.model, &network));
    EN_TRY(measure(b, "peak", &square, take_peak));
    if (!b->options.is_json)
        printf("%s, batch %d, %s; peak %.1f GFLOP/s\n\n%-14s %-17s %9s %9s %8s  %s\n", b->options.model,
               b->options.batch, b->device.ops->describe(b->device.ctx), b->peak * 1e-9, "layer", "pass",
               "us", "GFLOP/s", "of peak", "how");
    EN_TRY(bench_network(b, network));
    print_pass(b, "all", "sum", "", b->sum_us, b->sum_flops);
    return EN_OK;
}

int main(int argc, char **argv)
{
    bench b = {0};
    char plugins[PATH_BYTES];
    int stop = parse_options(argc, argv, &b.options);
    if (stop) return stop - 1;
    if (program_path("plugins", plugins, sizeof plugins) != 0) return 1;
    en_status st = eni_device_open(b.options.device, plugins, b.options.threads, &b.device);
    if (st == EN_OK) st = bench_all(&b);
    eni_device_close(&b.device);
    return st == EN_OK ? 0 : 1;
}
