/* check_ranks.c - `entrain check`: can these processes reach each other, and how fast? The smallest job that
 * uses every part answers the first; -v measures this host and shows the cost model beside it. */
#include "cli/trial.h"

#include <stdio.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/device.h"
#include "report/table.h"
#include "run/units.h"
#include "runtime/net/host_info.h"
#include "runtime/net/shaper.h"

/* ---- the output of -v ---- */

enum { WAYS = 4 };

typedef struct way {
    int algorithm, transport;
} way;

static const way ways[WAYS] = {{ENI_COLL_DIRECT, ENI_OVER_SHM},
                               {ENI_COLL_NAIVE, ENI_OVER_SHM},
                               {ENI_COLL_RING, ENI_OVER_TCP},
                               {ENI_COLL_NAIVE, ENI_OVER_TCP}};

typedef struct figures {
    int n, cores;
    eni_cost_curve curve[WAYS]; /* among the n ranks */
    double move_one, move_all, sum;
    double flag, move;    /* of direct, between two ranks */
    eni_cost_numbers tcp; /* a hop, between two ranks */
} figures;

/* Measures the formulas' constants between two ranks, so that the times of more ranks are predictions. The
 * sizes are those of nccl-tests: 4 KB to 64 MB, each four times the previous one, in units of 1024. */
static en_status measure(const eni_command_context *context, figures *f)
{
    eni_measured m;
    EN_TRY(eni_check_measure(context, 1, NULL, "auto", NULL, "copy", &m));
    f->move_one = m.move;
    f->sum = m.sum;
    EN_TRY(eni_check_measure(context, f->n, NULL, "auto", NULL, "copy", &m));
    f->move_all = m.move;
    EN_TRY(eni_check_numbers(context, f->cores, &f->flag, &f->move, &f->tcp));
    for (int w = 0; w < WAYS; w++) {
        EN_TRY(eni_check_measure(context, f->n, eni_coll_algorithm_name(ways[w].algorithm),
                                 ways[w].transport == ENI_OVER_SHM ? "auto" : "tcp", NULL, "4096..67108864",
                                 &m));
        f->curve[w] = m.allreduce;
    }
    return EN_OK;
}

static double predicted(const figures *f, const way *w, double bytes)
{
    /* every rank shares its core with n / cores others */
    const double turns = f->n > f->cores ? (double)f->n / f->cores : 1;
    const eni_cost_numbers hop = {f->tcp.alpha * turns, f->tcp.beta * turns, f->tcp.gamma * turns};
    if (w->algorithm == ENI_COLL_RING) return eni_cost_ring(f->n, bytes, &hop);
    if (w->algorithm == ENI_COLL_DIRECT) return eni_cost_direct(f->n, f->cores, bytes, f->flag, f->move);
    if (w->transport == ENI_OVER_TCP) return eni_cost_naive(f->n, bytes, &hop);
    /* each loads all n vectors and stores its own twice: once to a copy, once in place */
    return f->flag * 2 * turns + (f->n + 3) * bytes * f->move * turns;
}

static void put_us(eni_table *table, double seconds)
{
    char text[ENI_TABLE_TEXT];
    eni_text_grouped(seconds * 1e6, ",", text, sizeof text);
    if (seconds < 1e-4)
        eni_table_put(table, "%.1f", seconds * 1e6);
    else
        eni_table_put(table, "%s", text);
}

static en_status print_rows(const figures *f)
{
    eni_table table;
    eni_table_begin(
        &table, ">size|>direct shm|>model|>naive shm|>model|>ring tcp|>model|>naive tcp|>model|auto picks");
    for (int i = 0; i < f->curve[0].n; i++) {
        const double bytes = f->curve[0].point[i].bytes;
        const eni_coll_facts facts = {.asked = ENI_COLL_AUTO, .nranks = f->n, .nhosts = 1};
        eni_coll_choice choice;
        const bool is_large = bytes >= 1 << 20;
        eni_table_put(&table, "%.0f %s", bytes / (is_large ? 1 << 20 : 1024), is_large ? "MB" : "KB");
        for (int w = 0; w < WAYS; w++) {
            put_us(&table, f->curve[w].point[i].seconds);
            put_us(&table, predicted(f, &ways[w], bytes));
        }
        if (eni_coll_choose(&facts, &choice) != EN_OK) choice.algorithm = ENI_COLL_AUTO;
        eni_table_put(&table, "%s", eni_coll_algorithm_name(choice.algorithm));
    }
    return eni_table_print(&table, stdout);
}

static void print_numbers(const figures *f, const eni_cost_curve *calls)
{
    const eni_cost_point *call = calls->point;
    printf("\n%d ranks on %d core%s. GB/s are 1e9 bytes loaded and stored a second; times are medians.\n\n",
           f->n, f->cores, f->cores == 1 ? "" : "s");
    printf("  copy            one core %.1f GB/s, %d at once %.1f GB/s; adding %.1f GB/s of vector\n",
           1e-9 / f->move_one, f->n, f->n * 1e-9 / f->move_all, 1e-9 / f->sum);
    printf("  shared memory   alpha %.2f us a flag exchange, beta %.3f ns a byte and core (%.1f GB/s)\n",
           f->flag * 1e6, f->move * 1e9, 1e-9 / f->move);
    printf("  TCP, loopback   alpha %.1f us a hop, beta %.3f ns a byte (%.2f GB/s)\n", f->tcp.alpha * 1e6,
           f->tcp.beta * 1e9, 1e-9 / f->tcp.beta);
    for (int i = 0; i < calls->n; i++)
        printf("%s%.0f us for %.0f KB%s", i == 0 ? "  push-pull       " : ", ", call[i].seconds * 1e6,
               call[i].bytes / 1024, i == calls->n - 1 ? " (pull, push and step; docs/advise.md)\n" : "");
    printf("\nOne all-reduce of float32, microseconds: measured and by the model "
           "(docs/advise.md)\n\n");
}

/* Alpha, beta and bandwidths of this host, and a row per size with every algorithm's measured and predicted
 * time. `calls` (n 0: none): times of push-pulls. */
static en_status show_table(const eni_command_context *context, const eni_cost_curve *calls)
{
    figures f = {.n = (int)context->config->workers, .cores = eni_host_info_cores()};
    if (f.n < 2 || f.n > 16)
        return eni_fail(EN_EINVAL, "check", "-v measures 2 to 16 workers of one host, not %d", f.n);
    EN_TRY(measure(context, &f));
    print_numbers(&f, calls);
    return print_rows(&f);
}

/* ---- the effect of a network on an all-reduce: the cost model as an experiment ---- */

/* The time of V over one link, unless the cores of one host cannot carry that much. */
static const double seconds_of_v = 0.05;
static const double least_v = 1 << 16, most_v = 1 << 22;

/* Rounds down to a power of two of bytes. */
static uint64_t size_of(double rate)
{
    double wanted = rate > 0 ? rate * seconds_of_v : 1 << 20;
    uint64_t bytes = (uint64_t)least_v;
    if (wanted > most_v) wanted = most_v;
    while ((double)(2 * bytes) <= wanted)
        bytes *= 2;
    return bytes;
}

static en_status put_ranks(const eni_command_context *context, int p, uint64_t rate, int64_t delay,
                           uint64_t v, eni_table *table)
{
    static const char *const algorithms[] = {"ring", "naive"};
    char probe[48];
    const eni_cost_numbers card = {.alpha = (double)delay / ENI_SECOND,
                                   .beta = rate > 0 ? 1 / (double)rate : 0};
    const eni_cost_numbers cable = {.alpha = card.alpha, .beta = p * card.beta}; /* of all p */
    const double model[] = {eni_cost_ring(p, (double)v, &card), eni_cost_naive(p, (double)v, &card)};
    snprintf(probe, sizeof probe, "%llu..%llu", (unsigned long long)v, (unsigned long long)v);
    eni_table_put(table, "%d", p);
    for (int a = 0; a < 2; a++) {
        eni_measured m;
        EN_TRY(eni_check_measure(context, p, algorithms[a], "auto", context->config->net, probe, &m));
        eni_table_put(table, "%.2f|%.1f|%.1f", m.sent / (double)v, eni_cost_at(&m.allreduce, (double)v) * 1e3,
                      model[a] * 1e3);
    }
    eni_table_put(table, "%.1f", eni_cost_naive(p, (double)v, &cable) * 1e3);
    return EN_OK;
}

/* beta is bytes a second here, as papers write V/beta. */
static en_status show_network(const eni_command_context *context)
{
    eni_table table;
    char network[96];
    uint64_t rate = 0;
    int64_t delay = 0;
    if (!eni_net_parse(context->config->net, &rate, &delay)) return EN_EINVAL;
    if (rate == 0 && delay == 0) return EN_OK;
    const uint64_t v = size_of((double)rate);
    eni_net_describe(rate, delay, network, sizeof network);
    printf("\nOne all-reduce of V = %.0f KB among p ranks, each with a link of its own: %s.\n"
           "Milliseconds measured and by the formula, with the rate beta and the delay d; "
           "bytes sent by a rank as multiples of V\n\n",
           (double)v / 1024, network);
    eni_table_begin(
        &table, ">p|>ring sends|>ms|>2(p-1)(V/(p beta)+d)|>naive sends|>ms|>(p-1)V/beta+d|>p(p-1)V/beta+d");
    for (int p = 2; p <= 8; p *= 2)
        EN_TRY(put_ranks(context, p, rate, delay, v, &table));
    EN_TRY(eni_table_print(&table, stdout));
    printf("\nIn a ring each rank sends less than 2V, for any number of ranks; without a delay the formula "
           "stays below 2V/beta. p(p-1)V/beta+d is naive when all share one link.\n");
    return EN_OK;
}

/* ---- the command ---- */

/* The smallest job that uses every part: the workers join psd, sum known numbers by the all-reduce and
 * through the server, and leave. */
en_status eni_command_check(const eni_command_context *context)
{
    const int64_t begin = eni_now_ns();
    const eni_config *c = context->config;
    eni_measured calls = {0};
    const eni_check_job job = {
        .workers = c->workers, .shards = c->shards, .model = "toy", .transport = "auto", .net = c->net};
    eni_check_job first = job;
    if (eni_config_is_given(c, "device")) first.device = c->device;
    EN_TRY(eni_check_run(context, &first));
    if (eni_device_is_gpu(c->device)) {
        /* Vectors of GPUs travel in two ways (docs/gpu.md): staged through the host, as in every strategy with a
         * store, and from GPU to GPU, as in ring. */
        first.strategy = c->workers == 1 ? "solo" : "ring";
        first.backend = c->backend;
        first.shards = 0;
        EN_TRY(eni_check_run(context, &first));
    }
    printf("check: all ranks%s reached each other (%.2f s)\n",
           eni_device_is_gpu(c->device) ? " and their GPUs" : "", (double)(eni_now_ns() - begin) * 1e-9);
    if (!c->verbose) return EN_OK;
    fflush(stdout); /* the rest takes some seconds */
    eni_check_job measured = job;
    measured.model = "mlp"; /* buckets of 10 kB and 800 kB */
    measured.probe = "call";
    measured.measured = &calls;
    EN_TRY(eni_check_run(context, &measured));
    EN_TRY(show_table(context, &calls.call));
    return c->net != NULL ? show_network(context) : EN_OK;
}
