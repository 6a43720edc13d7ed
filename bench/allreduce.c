/* allreduce.c - times the all-reduce by size, in the columns of nccl-tests.
 *
 *     bench_allreduce --ranks=2 --algorithm=direct -b 4K -e 64M -f 4
 *
 * Ranks are processes of this machine. Every iteration starts at a barrier; its time is that of the slowest
 * rank; `time` is the median. algbw is bytes / time, busbw is algbw * 2 (n - 1) / n: the load of each rank's
 * connection, for any number of ranks. `#wrong` counts elements that are not exactly the mean. With
 * --contract=arena the vectors are in shared memory from the start, as a worker's gradients are; with private
 * they are the caller's own, as for a library that is handed a pointer.
 *
 * With --then-step a step of SGD with momentum follows: `after` it on every rank's own weights, or `fused`
 * into one pass over one copy of the weights, as `entrain run --strategy=ring` has them on one host. `#wrong`
 * then counts weights. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/private.h"
#include "core/clock.h"
#include "core/memory.h"
#include "ops/mean.h"
#include "ops/optimizer.h"
#include "runtime/collective/coll.h"
#include "runtime/net/host_info.h"
#include "tests/cluster.h"

enum { MAX_ITERATIONS = 10000, DEADLINE_MS = 600000 };

enum { THEN_NOTHING, THEN_AFTER, THEN_FUSED };
static const char *const then_names[] = {"none", "after", "fused"};

enum { SLOT_GRAD, SLOT_PARAM, SLOT_MOMENTUM, NSLOTS };
static const eni_hyper hyper = {.lr = 0.125f, .momentum = 0.9f};

struct options {
    uint64_t begin, end, factor; /* bytes */
    int warmup, iterations, check, is_json, nranks, algorithm, is_private, then_step;
};

struct bench {
    struct options options;
    eni_coll_choice choice;
    eni_arena *arenas[CLUSTER_MAX];
    int pairs[CLUSTER_MAX][CLUSTER_MAX];
    int64_t (*times)[CLUSTER_MAX]; /* (iterations, ranks) ns, shared by the ranks */
    uint64_t *wrong;               /* (ranks) shared by the ranks */
};

/* ---- options ---- */

static const char usage[] = "usage: bench_allreduce [options]\n"
                            "  -b, --minbytes=N      smallest vector in bytes, K, M, G allowed [4K]\n"
                            "  -e, --maxbytes=N      largest vector [64M]\n"
                            "  -f, --stepfactor=N    factor between sizes [4]\n"
                            "  -w, --warmup_iters=N  untimed iterations first [3]\n"
                            "  -n, --iters=N         timed iterations [30]\n"
                            "  -c, --check=0|1       compare the result with the exact mean [1]\n"
                            "      --ranks=N         processes, 2 .. 16 [2]\n"
                            "      --algorithm=A     auto, direct, ring (over TCP), naive [auto]\n"
                            "      --contract=C      arena: vectors live in shared memory; private: they are "
                            "the caller's own [arena]\n"
                            "      --then-step=T     none, after: SGD with momentum on every rank's weights, "
                            "fused: in one pass [none]\n"
                            "      --json            one object per line\n";

static const struct option long_options[] = {
    {"minbytes", required_argument, NULL, 'b'},
    {"maxbytes", required_argument, NULL, 'e'},
    {"stepfactor", required_argument, NULL, 'f'},
    {"warmup_iters", required_argument, NULL, 'w'},
    {"iters", required_argument, NULL, 'n'},
    {"check", required_argument, NULL, 'c'},
    {"ranks", required_argument, NULL, 'r'},
    {"algorithm", required_argument, NULL, 'a'},
    {"contract", required_argument, NULL, 'C'},
    {"then-step", required_argument, NULL, 's'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* A positive number with an optional K, M or G (1024s, as in nccl-tests); 0 if invalid. */
static uint64_t parse_number(const char *text)
{
    char *end;
    const unsigned long long value = strtoull(text, &end, 10);
    const char *units = "KMG", *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (end == text || (*end && (!unit || end[1]))) return 0;
    return (uint64_t)value << (unit ? 10 * (unit - units + 1) : 0);
}

static int parse_then(const char *text)
{
    for (int t = THEN_NOTHING; t <= THEN_FUSED; t++)
        if (strcmp(text, then_names[t]) == 0) return t;
    return -1;
}

/* The algorithm's number, or -1. */
static int parse_algorithm(const char *name)
{
    int a = ENI_COLL_NAIVE;
    while (a >= 0 && strcmp(eni_coll_algorithm_name(a), name) != 0)
        a--;
    return a;
}

static int parse_options(int argc, char **argv, struct options *o)
{
    *o = (struct options){4096, 64 << 20, 4, 3, 30, 1, 0, 2, ENI_COLL_AUTO, 0, THEN_NOTHING};
    for (int c; (c = getopt_long(argc, argv, "b:e:f:w:n:c:", long_options, NULL)) != -1;) {
        switch (c) {
        case 'b': o->begin = parse_number(optarg); break;
        case 'e': o->end = parse_number(optarg); break;
        case 'f': o->factor = parse_number(optarg); break;
        case 'w': o->warmup = (int)parse_number(optarg); break;
        case 'n': o->iterations = (int)parse_number(optarg); break;
        case 'c': o->check = (int)parse_number(optarg); break;
        case 'r': o->nranks = (int)parse_number(optarg); break;
        case 'a': o->algorithm = parse_algorithm(optarg); break;
        case 'C':
            o->is_private = strcmp(optarg, "private") == 0;
            if (!o->is_private && strcmp(optarg, "arena") != 0) return 0;
            break;
        case 's': o->then_step = parse_then(optarg); break;
        case 'j': o->is_json = 1; break;
        default: return 0;
        }
    }
    return optind == argc && o->begin >= 4 && o->end >= o->begin && o->factor >= 2 && o->iterations >= 1 &&
           o->iterations <= MAX_ITERATIONS && o->nranks >= 2 && o->nranks <= CLUSTER_MAX &&
           o->algorithm >= 0 && o->then_step >= 0 && (o->then_step == THEN_NOTHING || !o->is_private);
}

/* ---- one rank ---- */

struct trial {
    eni_coll *coll;
    float *shared;           /* (count) the vector in the arena */
    float *private;          /* (count) or NULL */
    float *param, *momentum; /* (count) */
    const eni_optimizer *optimizer;
    uint64_t count;
    int then_step;
};

static void step_range(const struct trial *trial, uint64_t lo, uint64_t hi, const float *mean)
{
    float *slots[ENI_MAX_SLOTS] = {trial->momentum + lo};
    trial->optimizer->step(trial->param + lo, slots, mean, hi - lo, &hyper);
}

static void take_mean(void *user, uint64_t lo, uint64_t hi, const eni_sources *from)
{
    const struct trial *trial = user;
    float *slots[ENI_MAX_SLOTS] = {trial->momentum + lo};
    eni_mean_step(trial->optimizer, trial->param + lo, slots, from, hi - lo, &hyper);
}

static en_status trial_once(struct trial *trial)
{
    eni_coll_op op = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = SLOT_GRAD, .count = trial->count};
    if (trial->private) return private_allreduce(trial->coll, &op, trial->private);
    if (trial->then_step == THEN_FUSED) {
        op.op = ENI_COLL_MEAN_STEP;
        op.on_reduced = take_mean;
        op.on_reduced_user = trial;
    }
    const en_status st = eni_coll_run(trial->coll, &op);
    if (st == EN_OK && trial->then_step == THEN_AFTER) step_range(trial, 0, trial->count, trial->shared);
    return st;
}

/* Small numbers, for which the sum is exact in any order. */
static float value_of(int rank, uint64_t i)
{
    return (float)((i * 7 + (uint64_t)rank * 13) % 101);
}

static void fill(const struct trial *trial, float *vector, int rank)
{
    for (uint64_t i = 0; i < trial->count; i++) {
        vector[i] = value_of(rank, i);
        if (trial->then_step == THEN_NOTHING) continue;
        trial->param[i] = 1;
        trial->momentum[i] = 0;
    }
}

static uint64_t count_wrong(const struct trial *trial, int nranks)
{
    const float *result = trial->private ? trial->private : trial->shared;
    if (trial->then_step != THEN_NOTHING) result = trial->param;
    const float inv = 1.0f / (float)nranks;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < trial->count; i++) {
        float sum = 0;
        for (int r = 0; r < nranks; r++)
            sum += value_of(r, i);
        float expected = sum * inv, momentum = 0, *slots[ENI_MAX_SLOTS] = {&momentum};
        if (trial->then_step != THEN_NOTHING) {
            const float mean = expected;
            expected = 1;
            trial->optimizer->step(&expected, slots, &mean, 1, &hyper);
        }
        wrong += result[i] != expected;
    }
    return wrong;
}

/* Between iterations a rank writes to every page of its vector, as backward would. */
static int time_size(const struct bench *b, struct trial *trial, int rank)
{
    const eni_coll_op barrier = {.op = ENI_COLL_BARRIER};
    float *vector = trial->private ? trial->private : trial->shared;
    for (int i = -b->options.warmup; i < b->options.iterations; i++) {
        for (uint64_t at = 0; at < trial->count; at += 1024)
            vector[at] = 1;
        if (eni_coll_run(trial->coll, &barrier) != EN_OK) return 1;
        const int64_t begin_ns = eni_now_ns();
        if (trial_once(trial) != EN_OK) return 1;
        if (i >= 0) b->times[i][rank] = eni_now_ns() - begin_ns;
    }
    if (!b->options.check) return 0;
    fill(trial, vector, rank);
    if (trial_once(trial) != EN_OK) return 1;
    b->wrong[rank] = count_wrong(trial, b->options.nranks);
    return 0;
}

static int compare_ns(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void report(const struct bench *b, uint64_t count)
{
    static int64_t slowest[MAX_ITERATIONS];
    const struct options *o = &b->options;
    uint64_t wrong = 0;
    for (int i = 0; i < o->iterations; i++) {
        slowest[i] = 0;
        for (int r = 0; r < o->nranks; r++)
            if (b->times[i][r] > slowest[i]) slowest[i] = b->times[i][r];
    }
    for (int r = 0; r < o->nranks; r++)
        wrong += b->wrong[r];
    qsort(slowest, (size_t)o->iterations, sizeof *slowest, compare_ns);
    const double median_us = (double)slowest[o->iterations / 2] / 1e3;
    const double p99_us = (double)slowest[(o->iterations - 1) * 99 / 100] / 1e3;
    const unsigned long long bytes = count * sizeof(float), elements = count;
    const double algbw = (double)bytes / median_us / 1e3;
    const double busbw = algbw * 2 * (o->nranks - 1) / o->nranks;
    if (o->is_json)
        printf("{\"bench\":\"allreduce\",\"algorithm\":\"%s\",\"transport\":\"%s\",\"contract\":\"%s\","
               "\"then_step\":\"%s\",\"ranks\":%d,"
               "\"bytes\":%llu,\"median_us\":%.2f,\"p99_us\":%.2f,\"algbw_gb_s\":%.6g,\"busbw_gb_s\":%.6g,"
               "\"wrong\":%llu}\n",
               eni_coll_algorithm_name(b->choice.algorithm),
               b->choice.transport == ENI_OVER_SHM ? "shm" : "tcp", o->is_private ? "private" : "arena",
               then_names[o->then_step], o->nranks, bytes, median_us, p99_us, algbw, busbw,
               (unsigned long long)wrong);
    else
        printf("%12llu %12llu %8s %7s %9.1f %8.2f %8.2f %7s\n", bytes, elements, "float", "avg", median_us,
               algbw, busbw, o->check ? (wrong ? "WRONG" : "0") : "N/A");
    fflush(stdout);
}

static int rank_main(int rank, int n, cluster_board *board, void *user)
{
    struct bench *b = user;
    const int over_tcp = b->choice.transport == ENI_OVER_TCP;
    if (over_tcp) cluster_keep(n, b->pairs, rank);
    const eni_coll_config config = {.rank = rank,
                                    .nranks = n,
                                    .epoch = 1,
                                    .algorithm = b->choice.algorithm,
                                    .transport = b->choice.transport,
                                    .arenas = b->arenas,
                                    .sockets = over_tcp ? b->pairs[rank] : NULL,
                                    .alive = {cluster_alive, board, -1}};
    struct trial trial = {.shared = eni_arena_at(b->arenas[rank], SLOT_GRAD, 0),
                          .param = eni_arena_at(b->arenas[rank], SLOT_PARAM, 0),
                          .momentum = eni_arena_at(b->arenas[rank], SLOT_MOMENTUM, 0),
                          .optimizer = eni_optimizer_find("sgd"),
                          .then_step = b->options.then_step};
    if (eni_coll_open(&config, &trial.coll) != EN_OK) return 1;
    for (uint32_t slot = SLOT_PARAM; slot < NSLOTS && trial.then_step == THEN_FUSED; slot++)
        if (eni_coll_share(trial.coll, slot) != EN_OK) {
            fputs("bench_allreduce: --then-step=fused needs --algorithm=direct\n", stderr);
            return 1;
        }
    if (b->options.is_private) {
        trial.private = eni_alloc(b->options.end);
        if (!trial.private) return 1;
    }
    for (uint64_t bytes = b->options.begin; bytes <= b->options.end; bytes *= b->options.factor) {
        const eni_coll_op barrier = {.op = ENI_COLL_BARRIER};
        trial.count = bytes / sizeof(float);
        if (time_size(b, &trial, rank) != 0 || eni_coll_run(trial.coll, &barrier) != EN_OK) return 1;
        if (rank == 0) report(b, trial.count);
        if (eni_coll_run(trial.coll, &barrier) != EN_OK) return 1; /* wait until it is printed */
    }
    eni_free(trial.private);
    eni_coll_close(trial.coll);
    return 0;
}

/* ---- all ranks ---- */

static en_status bench_open(struct bench *b)
{
    const struct options *o = &b->options;
    const eni_coll_facts facts = {.asked = o->algorithm, .nranks = o->nranks, .nhosts = 1};
    static eni_arena *board; /* written by the ranks and read by rank 0, until the end */
    const uint64_t floats = (uint64_t)MAX_ITERATIONS * CLUSTER_MAX * 2 + CLUSTER_MAX * 2;
    if (eni_coll_choose(&facts, &b->choice) != EN_OK) return EN_EINVAL;
    if (eni_arena_open(floats, 1, 1, &board) != EN_OK) return EN_ENOMEM;
    b->times = (void *)eni_arena_at(board, 0, 0);
    b->wrong = (uint64_t *)(b->times + MAX_ITERATIONS);
    uint64_t count = o->end / sizeof(float);
    if (o->is_private) count = PRIVATE_STAGE;
    for (int r = 0; r < o->nranks; r++)
        if (eni_arena_open(count, NSLOTS, 1, &b->arenas[r]) != EN_OK) return EN_ENOMEM;
    if (b->choice.transport == ENI_OVER_TCP && cluster_connect(o->nranks, b->pairs) != 0) return EN_EIO;
    return EN_OK;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (!parse_options(argc, argv, &b.options)) {
        fputs(usage, stderr);
        return 2;
    }
    if (bench_open(&b) != EN_OK) return 1;
    if (!b.options.is_json) {
        printf("# %d ranks on %d cores, %s over %s (%s), vectors in %s memory, then a step: %s\n",
               b.options.nranks, eni_host_info_cores(), eni_coll_algorithm_name(b.choice.algorithm),
               b.choice.transport == ENI_OVER_SHM ? "shm" : "tcp", b.choice.why,
               b.options.is_private ? "private" : "shared", then_names[b.options.then_step]);
        printf("#%11s %12s %8s %7s %9s %8s %8s %7s\n", "size", "count", "type", "redop", "time", "algbw",
               "busbw", "#wrong");
        printf("#%11s %12s %8s %7s %9s %8s %8s\n", "(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)");
    }
    struct cluster cluster;
    const int bad = cluster_run(&cluster, b.options.nranks, rank_main, &b, DEADLINE_MS);
    if (bad) fprintf(stderr, "bench_allreduce: %d of %d ranks failed\n", bad, b.options.nranks);
    return bad ? 1 : 0;
}
