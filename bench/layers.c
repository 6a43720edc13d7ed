/* layers.c - times each layer of a network on a device, one pass at a time, beside the device's own peak.
 *
 *     bench_layers --model=convnet --batch=64 --threads=1
 *     bench_layers --model=convnet --batch=1024 --device=cuda --precision=bf16
 *     bench_layers --op=batchnorm:32x32x64 --op=maxpool:112x112x64 --batch=128
 *
 * One layer runs -n times in a row on the same memory, so its data is as warm as the caches allow; the sum is
 * the time of a step without any work between its layers. The peak is the device's product of two square
 * matrices (--peak). `share` is a pass's flops per second over that peak; passes that mostly move memory have
 * none. On a GPU that reports the peak of its memory, `moved` is the least that a pass must read and write, per
 * second, over that peak. There a pass is queued many times before the host waits, or the host's call would be
 * measured. The loader, the optimizer and the exchange are not included: see bench_train. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/figures.h"
#include "bench/programs.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/node.h"
#include "models/registry.h"
#include "ops/device.h"

enum {
    PASSES = 3,
    MAX_ROUNDS = 1000,
    PEAK_SIDE = 1024,
    GPU_PEAK_SIDE = 8192,
    IN_A_ROW = 20,
    PATH_BYTES = 4096,
    MAX_OPS = 16
};

typedef struct options {
    const char *model, *device, *ops[MAX_OPS]; /* single operations in place of the model */
    int nops, batch, threads, rounds, peak_side, is_json, has_tf32;
    uint32_t dtype;
    en_data_shape data; /* input of a network that takes any size */
} options;

/* One planned layer with its own memory. */
typedef struct bench_layer {
    en_op op;
    en_extent y;
    en_plan *plan;
    en_plan_info info;
    en_args args;
    void *memory[12];
    int nmemory;
} bench_layer;

typedef struct bench {
    options options;
    eni_device device;
    double peak;     /* flops a second */
    double peak_mem; /* bytes a second; 0: not known */
    int in_a_row;    /* runs between two clock readings */
    double sum_us, sum_flops, sum_bytes;
} bench;

/* ---- options ---- */

static const char usage[] =
    "usage: bench_layers [options]\n"
    "      --model=NAME      of `entrain models`, with its options [convnet]\n"
    "      --input=HxWxC     input of a network that takes any size [32x32x3]\n"
    "      --op=KIND:HxWxC   instead of a model, may be repeated: batchnorm (with relu), "
    "add\n"
    "                        (with relu), relu, maxpool (3 x 3, stride 2, padding 1), avgpool "
    "(all)\n"
    "      --device=D        ref, cpu, cuda, cuda:1, auto [auto]\n"
    "      --precision=P     fp32, bf16; on a GPU also tf32, fp16 [fp32]\n"
    "      --peak=N          matrix size for the peak [1024; on a GPU 8192]\n"
    "      --batch=N         samples [64]\n"
    "      --threads=N       compute threads [1]\n"
    "  -n, --iters=N         runs of each pass, 1 .. 1000; the median counts [30]\n"
    "      --json            one object per line\n";

static const struct option long_options[] = {
    {"model", required_argument, NULL, 'M'},
    {"input", required_argument, NULL, 'I'},
    {"device", required_argument, NULL, 'D'},
    {"batch", required_argument, NULL, 'B'},
    {"threads", required_argument, NULL, 'T'},
    {"iters", required_argument, NULL, 'n'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {"precision", required_argument, NULL, 'p'},
    {"peak", required_argument, NULL, 'P'},
    {"op", required_argument, NULL, 'O'},
    {NULL, 0, NULL, 0},
};

static int parse_count(const char *text, int most, int *out)
{
    const uint64_t value = figures_number(text);
    *out = (int)value;
    return value >= 1 && value <= (uint64_t)most;
}

static int parse_precision(const char *text, options *o)
{
    static const struct {
        const char *name;
        uint32_t dtype;
    } known[] = {{"fp32", EN_F32}, {"tf32", EN_F32}, {"bf16", EN_BF16}, {"fp16", EN_F16}};
    o->has_tf32 = strcmp(text, "tf32") == 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        o->dtype = known[i].dtype;
        if (strcmp(text, known[i].name) == 0) return 1;
    }
    return 0;
}

static int parse_input(const char *text, en_data_shape *data)
{
    long long h, w, c;
    if (sscanf(text, "%lldx%lldx%lld", &h, &w, &c) != 3) return 0;
    *data = (en_data_shape){.height = h, .width = w, .channels = c, .classes = 10};
    return 1;
}

static int parse_option(int c, options *o)
{
    switch (c) {
    case 'I': return parse_input(optarg, &o->data);
    case 'p': return parse_precision(optarg, o);
    case 'P': return parse_count(optarg, 65536, &o->peak_side);
    case 'M': o->model = optarg; return 1;
    case 'O': return o->nops < MAX_OPS && (o->ops[o->nops++] = optarg);
    case 'D': o->device = optarg; return 1;
    case 'B': return parse_count(optarg, 65536, &o->batch);
    case 'T': return parse_count(optarg, 4096, &o->threads);
    case 'n': return parse_count(optarg, MAX_ROUNDS, &o->rounds);
    case 'j': o->is_json = 1; return 1;
    default: return 0;
    }
}

/* 0: continue; else the exit code + 1. */
static int parse_options(int argc, char **argv, options *o)
{
    *o = (options){
        .model = "convnet", .device = "auto", .batch = 64, .threads = 1, .rounds = 30, .dtype = EN_F32};
    parse_input("32x32x3", &o->data);
    for (int c; (c = getopt_long(argc, argv, "n:h", long_options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(usage, stdout);
            return 1;
        }
        if (!parse_option(c, o)) {
            fputs("bench_layers: invalid flag; see --help\n", stderr);
            return 3;
        }
    }
    if (optind == argc) return 0;
    fputs("bench_layers: unexpected argument; see --help\n", stderr);
    return 3;
}

/* ---- one layer ---- */

/* Small numbers of both signs, so that a relu or a pooling has a choice; as bits of the type. */
static void fill(void *memory, uint64_t count, uint32_t dtype)
{
    uint32_t state = 1, bits;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        const float value = (float)(int32_t)state * 0x1p-33f;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == EN_F32)
            ((float *)memory)[i] = value;
        else if (dtype == EN_BF16)
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
        else /* 2^-3 and up to twice that, of both signs */
            ((uint16_t *)memory)[i] = (uint16_t)((state >> 16 & 0x8000u) | 0x3000u | (state >> 6 & 0x3ffu));
    }
}

static en_status tensor(bench *b, bench_layer *l, uint64_t count, uint32_t dtype, void **out)
{
    const en_device *device = b->device.ops;
    const uint64_t bytes = count * en_dtype_bytes(dtype);
    EN_TRY(device->alloc(b->device.ctx, bytes, out));
    l->memory[l->nmemory++] = *out;
    if (device->flags & EN_DEVICE_HOST) {
        fill(*out, count, dtype);
        return EN_OK;
    }
    void *values = eni_alloc(bytes + 1);
    if (values == NULL) return EN_ENOMEM;
    fill(values, count, dtype);
    en_status st = device->copy(b->device.ctx, *out, values, bytes, EN_COPY_IN);
    if (st == EN_OK) st = device->sync(b->device.ctx);
    eni_free(values);
    return st;
}

static en_status target(bench *b, bench_layer *l)
{
    void *memory; /* class 0 for every sample, or for mse the number 0 */
    const uint64_t count = (uint64_t)en_extent_count(l->op.x);
    EN_TRY(b->device.ops->alloc(b->device.ctx, count * sizeof(float), &memory));
    l->memory[l->nmemory++] = memory;
    l->args.target = memory;
    return EN_OK;
}

/* Additional tensors of batch normalisations and sums. */
static en_status more_tensors(bench *b, bench_layer *l)
{
    void *x2, *stats;
    const bool adds = l->op.kind == EN_OP_ADD || (l->op.flags & EN_OP_FUSE_ADD) != 0;
    EN_TRY(tensor(b, l, adds ? (uint64_t)en_extent_count(l->op.x) : 0, l->op.dtype, &x2));
    EN_TRY(tensor(b, l, (uint64_t)en_op_stats(&l->op), EN_F32, &stats));
    l->args.x2 = x2;
    l->args.stats = stats;
    return EN_OK;
}

/* A cast reads float32. */
static uint32_t x_dtype_of(const en_op *op)
{
    return op->kind == EN_OP_CAST ? (uint32_t)EN_F32 : op->dtype;
}

static en_status layer_open(bench *b, bench_layer *l)
{
    const en_device *device = b->device.ops;
    const uint64_t in = (uint64_t)en_extent_count(l->op.x), out = (uint64_t)en_extent_count(l->y);
    const uint64_t weights = (uint64_t)en_op_weights(&l->op);
    const uint32_t x_dtype = x_dtype_of(&l->op), y_dtype = eni_op_y_dtype(&l->op);
    void *x, *w, *bias;
    l->info.size = sizeof l->info;
    l->args.size = sizeof l->args;
    EN_TRY(device->plan(b->device.ctx, &l->op, &l->plan));
    device->plan_info(l->plan, &l->info);
    EN_TRY(tensor(b, l, in, x_dtype, &x));
    EN_TRY(tensor(b, l, out, y_dtype, &l->args.y));
    EN_TRY(tensor(b, l, out, y_dtype, &l->args.dy));
    EN_TRY(tensor(b, l, in, x_dtype, &l->args.dx));
    EN_TRY(tensor(b, l, weights, EN_F32, &w));
    EN_TRY(tensor(b, l, weights, EN_F32, &l->args.dw));
    EN_TRY(tensor(b, l, (uint64_t)l->op.channels, EN_F32, &bias));
    EN_TRY(tensor(b, l, (uint64_t)l->op.channels, EN_F32, &l->args.db));
    EN_TRY(more_tensors(b, l));
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
    EN_TRY(run(l->plan, &l->args)); /* first touch, and the inputs of a backward pass */
    EN_TRY(b->device.ops->sync(b->device.ctx));
    for (int i = 0; i < b->options.rounds; i++) {
        const int64_t begin = eni_now_ns();
        for (int k = 0; k < b->in_a_row; k++)
            EN_TRY(run(l->plan, &l->args));
        EN_TRY(b->device.ops->sync(b->device.ctx));
        times[i] = (eni_now_ns() - begin) / b->in_a_row;
    }
    figures_times(times, (size_t)b->options.rounds, us_out, &p99);
    return EN_OK;
}

/* Multiplications and additions of one pass. */
static double pass_flops(const bench_layer *l)
{
    if (l->op.kind == EN_OP_BATCHNORM) return 0; /* moves memory */
    const double outputs = (double)l->y.n * (double)l->y.h * (double)l->y.w;
    return 2 * outputs * (double)en_op_weights(&l->op);
}

/* The least that a pass reads and writes: each of its tensors once. Forward x, w, y; the backward ones dy,
 * and either x and dw or w and dx; without weights y or the saved tensor takes the place of the choice made.
 * A batch normalisation with relu reads x for its moments, and again; writes the masked dy; and reads x, dy
 * and dx. */
static double pass_bytes(const bench_layer *l, int pass)
{
    const double x = (double)en_extent_count(l->op.x) * (double)en_dtype_bytes(x_dtype_of(&l->op));
    const double y = (double)en_extent_count(l->y) * (double)en_dtype_bytes(eni_op_y_dtype(&l->op));
    const double w = (double)en_op_weights(&l->op) * sizeof(float);
    if (l->op.kind == EN_OP_BATCHNORM) return pass == 1 ? 4 * x : 3 * x;
    if (l->op.kind == EN_OP_ADD) return 3 * x;
    return x + y + w + (pass > 0 && w == 0 ? (l->info.saved_bytes > 0 ? (double)l->info.saved_bytes : y) : 0);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static void print_pass(const bench *b, const char *layer, const char *pass, const char *how, double us,
                       double flops, double bytes)
{
    const double rate = flops / us * 1e-3, share = 100 * rate * 1e9 / b->peak;
    const double moved = b->peak_mem > 0 ? 100 * bytes / (us * 1e-6) / b->peak_mem : 0;
    if (b->options.is_json)
        printf("{\"layer\": \"%s\", \"way\": \"%.8s\", \"pass\": \"%s\", \"how\": \"%s\", \"us\": %.2f, "
               "\"gflops\": %.1f, \"share\": %.1f, \"gb_s\": %.1f, \"moved\": %.1f}\n",
               layer, pass, pass, how, us, rate, share, bytes / us * 1e-3, moved);
    else if (flops > 0)
        printf("%-21s %-17s %9.1f %9.1f %6.0f %%  %s\n", layer, pass, us, rate, share, how);
    else
        printf("%-21s %-17s %9.1f %9s %8s  %s\n", layer, pass, us, "", "", how);
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
        b->sum_bytes += pass_bytes(l, i);
        print_pass(b, name, passes[i].name, passes[i].how, us, pass_flops(l), pass_bytes(l, i));
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

/* Each node once, with its own input. */
static en_status bench_network(bench *b, const en_schema *schema)
{
    if (b->options.dtype != EN_F32) {
        en_extent x = schema->input;
        x.n = b->options.batch;
        const en_op cast = eni_cast_op(x, b->options.dtype);
        EN_TRY(measure(b, "cast", &cast, bench_one));
    }
    uint32_t dtype = b->options.dtype;
    for (uint32_t i = 1; i < schema->nnodes; i++) {
        const en_node *node = &schema->nodes[i];
        en_op op = eni_node_op(node, b->options.batch, dtype);
        if (node->x == 0) op.flags |= EN_OP_NO_DX;
        if (!eni_op_is_view(&op))
            EN_TRY(measure(b, node->name[0] != '\0' ? node->name : eni_op_name(op.kind), &op, bench_one));
        if (i + 1 < schema->nnodes && eni_op_is_loss(schema->nodes[i + 1].op.kind))
            dtype = eni_op_y_dtype(&op);
    }
    return EN_OK;
}

/* "batchnorm:32x32x64" */
static en_status bench_text(bench *b, const char *text)
{
    static const struct {
        const char *name;
        en_op op;
    } known[] = {
        {"batchnorm",
         {.kind = EN_OP_BATCHNORM, .flags = EN_OP_BIAS | EN_OP_FUSE_RELU, .eps = 1e-5f, .momentum = 0.1f}},
        {"add", {.kind = EN_OP_ADD, .flags = EN_OP_FUSE_RELU}},
        {"relu", {.kind = EN_OP_RELU}},
        {"avgpool", {.kind = EN_OP_AVGPOOL}},
        {"maxpool",
         {.kind = EN_OP_MAXPOOL,
          .kernel_h = 3,
          .kernel_w = 3,
          .stride_h = 2,
          .stride_w = 2,
          .pad_h = 1,
          .pad_w = 1}}};
    char name[16];
    long long h, w, c;
    if (sscanf(text, "%15[a-z]:%lldx%lldx%lld", name, &h, &w, &c) == 4)
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            if (strcmp(name, known[i].name) != 0) continue;
            en_op op = known[i].op;
            op.size = sizeof op;
            op.dtype = b->options.dtype;
            op.x = (en_extent){b->options.batch, h, w, c};
            op.channels = op.kind == EN_OP_BATCHNORM ? c : 0;
            return measure(b, text, &op, bench_one);
        }
    fprintf(stderr,
            "bench_layers: --op=%s: expected a form such as batchnorm:32x32x64; --help lists the kinds\n",
            text);
    return EN_EINVAL;
}

static en_status bench_all(bench *b)
{
    en_schema schema = {0};
    const int side = b->options.peak_side;
    const en_op square = {.size = sizeof square,
                          .kind = EN_OP_LINEAR,
                          .dtype = b->options.dtype,
                          .x = {side, 1, 1, side},
                          .channels = side};
    const bool has_model = b->options.nops == 0;
    if (has_model) EN_TRY(eni_network_schema("--model", b->options.model, &b->options.data, &schema));
    en_status st = measure(b, "peak", &square, take_peak);
    if (!b->options.is_json)
        printf("%s, batch %d, %s; peak %.1f GFLOP/s\n\n%-21s %-17s %9s %9s %8s  %s\n",
               has_model ? b->options.model : "operations", b->options.batch,
               b->device.ops->describe(b->device.ctx), b->peak * 1e-9, "layer", "pass", "us", "GFLOP/s",
               "of peak", "how");
    for (int i = 0; st == EN_OK && i < b->options.nops; i++)
        st = bench_text(b, b->options.ops[i]);
    if (st == EN_OK && has_model) st = bench_network(b, &schema);
    print_pass(b, "all", "sum", "", b->sum_us, b->sum_flops, b->sum_bytes);
    en_schema_fini(&schema);
    return st;
}

/* The only device with further properties. */
static en_status open_gpu(bench *b, const char *plugins)
{
    const char *colon = strchr(b->options.device, ':');
    const en_device_config config = {.size = sizeof config,
                                     .index = colon != NULL ? atoi(colon + 1) : 0,
                                     .threads = 1,
                                     .host = eni_device_host(),
                                     .flags = b->options.has_tf32 ? EN_OPEN_TF32 : 0};
    en_gpu_facts facts = {.size = sizeof facts};
    EN_TRY(eni_device_load("cuda", plugins, &b->device.ops));
    EN_TRY(b->device.ops->open(&config, &b->device.ctx));
    EN_TRY(b->device.ops->gpu->facts(eni_device_host(), config.index, &facts));
    b->peak_mem = facts.bytes_per_s;
    b->in_a_row = IN_A_ROW;
    if (b->options.peak_side == 0) b->options.peak_side = GPU_PEAK_SIDE;
    return EN_OK;
}

static en_status open_device(bench *b)
{
    char built[PATH_BYTES];
    const char *plugins = getenv("ENTRAIN_PLUGIN_PATH");
    if (plugins == NULL) {
        if (program_path("plugins", built, sizeof built) != 0) return EN_ENOENT;
        plugins = built;
    }
    if (strncmp(b->options.device, "cuda", 4) == 0) return open_gpu(b, plugins);
    b->in_a_row = 1;
    if (b->options.peak_side == 0) b->options.peak_side = PEAK_SIDE;
    const eni_device_options how = {.plugin_dir = plugins,
                                    .threads = b->options.threads,
                                    .flags = b->options.dtype == EN_BF16 ? EN_OPEN_BF16 : 0};
    if (b->options.dtype == EN_BF16) b->options.dtype = EN_F32; /* of activations */
    return eni_device_open_with(b->options.device, &how, &b->device);
}

int main(int argc, char **argv)
{
    bench b = {0};
    int stop = parse_options(argc, argv, &b.options);
    if (stop) return stop - 1;
    en_status st = open_device(&b);
    if (st == EN_OK) st = bench_all(&b);
    eni_device_close(&b.device);
    return st == EN_OK ? 0 : 1;
}
