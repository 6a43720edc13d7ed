/* tcp_limit.c - the all-reduce over TCP beside its limit: the same flows without arithmetic.
 *
 *     bench/namespaces.sh 2 sh -c 'build/bench/bench_tcp_limit --ranks=2 --hosts=$HOSTS'
 *
 * An all-reduce of S bytes among p ranks makes every rank send 2 (p-1) S/p bytes to its right neighbour and
 * receive as many from its left one. The limit only does that, all at once, over plain sockets: from a vector
 * of S bytes and into one, in pieces of 256 KiB, by one thread that polls when nothing moves (two blocking
 * threads are no faster). `cached` sends and overwrites one piece again and again, so that it stays in a cache:
 * the limit of the sockets alone, out of reach for a real vector.
 *
 * The variants are interleaved, iteration by iteration, between barriers. An iteration's time is that of the
 * slowest rank, the columns are medians; `of limit` is the median of limit / ours in the same iteration, with
 * quartiles. Without --hosts the ranks are connected over loopback, where our frames carry no checksum. */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "bench/figures.h"
#include "bench/hosts.h"
#include "core/clock.h"
#include "core/memory.h"
#include "runtime/collective/coll.h"
#include "runtime/net/host_info.h"

enum { MAX_ITERATIONS = 1000, DEADLINE_MS = 600000, PIECE = 256 << 10 };
enum { LIMIT, CACHED, OURS, NWAYS };

typedef struct options {
    uint64_t begin, end, factor; /* bytes */
    uint64_t segment;            /* of a frame's payload; 0: the group's */
    int warmup, iterations, is_json, nranks, algorithm;
    const char *hosts;
} options;

typedef struct shared { /* by all ranks */
    hosts_board bare, group;
    _Atomic uint64_t arrived; /* at barriers, by all ranks */
    eni_flag together;        /* the barriers that all have reached */
    uint64_t wrong[CLUSTER_MAX];
    int64_t ns[NWAYS][MAX_ITERATIONS][CLUSTER_MAX];
} shared;

typedef struct bench {
    options options;
    shared *shared;
} bench;

/* ---- options ---- */

static const char usage[] =
    "usage: bench_tcp_limit [options]\n"
    "  -b, --minbytes=N      smallest vector in bytes, K, M, G allowed [4K]\n"
    "  -e, --maxbytes=N      largest vector [64M]\n"
    "  -f, --stepfactor=N    factor between sizes [4]\n"
    "  -w, --warmup_iters=N  untimed iterations first [3]\n"
    "  -n, --iters=N         timed iterations, 1 .. 1000 [15]\n"
    "      --ranks=N         processes, 2 .. 16 [2]\n"
    "      --algorithm=A     ring, naive [ring]\n"
    "      --hosts=PREFIX    ranks enter the network namespaces PREFIX-0, PREFIX-1, .. "
    "[loopback]\n"
    "      --json            one object per line\n";

static const struct option long_options[] = {
    {"minbytes", required_argument, NULL, 'b'},
    {"maxbytes", required_argument, NULL, 'e'},
    {"stepfactor", required_argument, NULL, 'f'},
    {"warmup_iters", required_argument, NULL, 'w'},
    {"iters", required_argument, NULL, 'n'},
    {"ranks", required_argument, NULL, 'r'},
    {"algorithm", required_argument, NULL, 'a'},
    {"segment", required_argument, NULL, 's'},
    {"hosts", required_argument, NULL, 'H'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* The algorithm's number, or -1. */
static int parse_algorithm(const char *name)
{
    int a = ENI_COLL_NAIVE;
    while (a >= 0 && strcmp(eni_coll_algorithm_name(a), name) != 0)
        a--;
    return a;
}

static int parse_options(int argc, char **argv, options *o)
{
    *o = (options){4096, 64 << 20, 4, 0, 3, 15, 0, 2, ENI_COLL_RING, NULL};
    for (int c; (c = getopt_long(argc, argv, "b:e:f:w:n:", long_options, NULL)) != -1;) {
        switch (c) {
        case 'b': o->begin = figures_number(optarg); break;
        case 'e': o->end = figures_number(optarg); break;
        case 'f': o->factor = figures_number(optarg); break;
        case 'w': o->warmup = (int)figures_number(optarg); break;
        case 'n': o->iterations = (int)figures_number(optarg); break;
        case 'r': o->nranks = (int)figures_number(optarg); break;
        case 'a': o->algorithm = parse_algorithm(optarg); break;
        case 's': o->segment = figures_number(optarg); break;
        case 'H': o->hosts = optarg; break;
        case 'j': o->is_json = 1; break;
        default: return 0;
        }
    }
    return optind == argc && o->begin >= 64 && o->end >= o->begin && o->factor >= 2 && o->iterations >= 1 &&
           o->iterations <= MAX_ITERATIONS && o->nranks >= 2 && o->nranks <= CLUSTER_MAX &&
           o->algorithm >= ENI_COLL_RING;
}

/* ---- one rank ---- */

typedef struct rank_state {
    bench *b;
    int rank;
    int right, left; /* sockets of the limit; the same one with two ranks */
    char *out, *in;  /* (end) */
    eni_coll *coll;
    float *vector; /* (end) in the arena */
    uint64_t nbarriers;
    eni_alive alive;
} rank_state;

/* Through shared memory, so that the sockets are idle when a turn begins; long waits sleep. */
static int barrier(rank_state *s)
{
    shared *all = s->b->shared;
    const uint64_t number = ++s->nbarriers, last = number * (uint64_t)s->b->options.nranks;
    if (atomic_fetch_add(&all->arrived, 1) + 1 == last) eni_flag_set(&all->together, number);
    return eni_flag_await(&all->together, number, 0, INT64_MAX, &s->alive) == EN_OK ? 0 : -1;
}

/* Moves up to a piece in one direction. 1: moved, 0: cannot now, -1: broken. */
static int move(int fd, int is_out, char *vector, uint64_t bytes, uint64_t total, uint64_t *done)
{
    const uint64_t at = *done % bytes;
    uint64_t n = total - *done;
    if (n > PIECE) n = PIECE;
    if (n > bytes - at) n = bytes - at;
    if (n == 0) return 0;
    const ssize_t moved = is_out ? send(fd, vector + at, n, MSG_DONTWAIT | MSG_NOSIGNAL)
                                 : recv(fd, vector + at, n, MSG_DONTWAIT);
    if (moved > 0) *done += (uint64_t)moved;
    if (moved > 0) return 1;
    return moved < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

/* `around`: the period, in bytes, in which the vector is reused. */
static int run_flows(rank_state *s, uint64_t bytes, uint64_t around)
{
    const uint64_t p = (uint64_t)s->b->options.nranks, total = 2 * (p - 1) * (bytes / p);
    uint64_t sent = 0, received = 0;
    while (sent < total || received < total) {
        const int out = move(s->right, 1, s->out, around, total, &sent);
        const int in = move(s->left, 0, s->in, around, total, &received);
        if (out < 0 || in < 0) return -1;
        if (out > 0 || in > 0) continue;
        struct pollfd polls[2] = {{sent < total ? s->right : -1, POLLOUT, 0},
                                  {received < total ? s->left : -1, POLLIN, 0}};
        poll(polls, 2, -1);
    }
    return 0;
}

static int run_ours(rank_state *s, uint64_t bytes)
{
    const eni_coll_op op = {
        .op = EN_ALLREDUCE, .what = EN_GRAD, .count = bytes / sizeof(float), .nsamples = 64};
    return eni_coll_run(s->coll, &op) == EN_OK ? 0 : -1;
}

static int run_way(rank_state *s, int way, uint64_t bytes)
{
    const uint64_t cached = bytes < PIECE ? bytes : PIECE;
    return way == OURS ? run_ours(s, bytes) : run_flows(s, bytes, way == CACHED ? cached : bytes);
}

/* Small numbers, for which the sum is exact in any order. */
static float value_of(int rank, uint64_t i)
{
    return (float)((i * 7 + (uint64_t)rank * 13) % 101);
}

static int check(rank_state *s, uint64_t bytes)
{
    const int n = s->b->options.nranks;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < bytes / sizeof(float); i++)
        s->vector[i] = value_of(s->rank, i);
    if (run_ours(s, bytes) != 0) return -1;
    for (uint64_t i = 0; i < bytes / sizeof(float); i++) {
        float sum = 0;
        for (int r = 0; r < n; r++)
            sum += value_of(r, i) * 64;
        wrong += s->vector[i] != sum * (1.0f / (float)(64 * n));
    }
    s->b->shared->wrong[s->rank] = wrong;
    return 0;
}

static int time_size(rank_state *s, uint64_t bytes)
{
    const options *o = &s->b->options;
    for (int i = -o->warmup; i < o->iterations; i++)
        for (int way = 0; way < NWAYS; way++) {
            for (uint64_t at = 0; at < bytes / sizeof(float); at += 1024)
                s->vector[at] = 1; /* as backward would: every page is this rank's */
            if (barrier(s) != 0) return -1;
            const int64_t begin_ns = eni_now_ns();
            if (run_way(s, way, bytes) != 0) return -1;
            if (i >= 0) s->b->shared->ns[way][i][s->rank] = eni_now_ns() - begin_ns;
        }
    return check(s, bytes);
}

/* ---- the table ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double slowest_us(const bench *b, int way, int iteration)
{
    int64_t most = 1;
    for (int r = 0; r < b->options.nranks; r++)
        if (b->shared->ns[way][iteration][r] > most) most = b->shared->ns[way][iteration][r];
    return (double)most / 1e3;
}

static void report(const bench *b, uint64_t bytes)
{
    static double us[NWAYS][MAX_ITERATIONS], ratio[MAX_ITERATIONS];
    double median[NWAYS];
    const options *o = &b->options;
    const int n = o->iterations;
    uint64_t wrong = 0;
    for (int r = 0; r < o->nranks; r++)
        wrong += b->shared->wrong[r];
    for (int i = 0; i < n; i++) {
        for (int way = 0; way < NWAYS; way++)
            us[way][i] = slowest_us(b, way, i);
        ratio[i] = us[LIMIT][i] / us[OURS][i];
    }
    for (int way = 0; way < NWAYS; way++) {
        qsort(us[way], (size_t)n, sizeof(double), compare);
        median[way] = us[way][n / 2];
    }
    qsort(ratio, (size_t)n, sizeof(double), compare);
    const double gb_s = (double)bytes / median[OURS] / 1e3;
    if (o->is_json)
        printf(
            "{\"bench\":\"tcp_limit\",\"algorithm\":\"%s\",\"hosts\":%d,\"ranks\":%d,\"bytes\":%llu,"
            "\"limit_us\":%.1f,\"cached_us\":%.1f,\"median_us\":%.1f,\"algbw_gb_s\":%.6g,\"of_limit\":%.4f,"
            "\"of_limit_least\":%.4f,\"of_limit_most\":%.4f,\"wrong\":%llu}\n",
            eni_coll_algorithm_name(o->algorithm), o->hosts ? o->nranks : 1, o->nranks,
            (unsigned long long)bytes, median[LIMIT], median[CACHED], median[OURS], gb_s, ratio[n / 2],
            ratio[0], ratio[n - 1], (unsigned long long)wrong);
    else
        printf("%12llu %11.1f %11.1f %11.1f %8.2f %7.0f %%   %3.0f-%.0f %% %7s\n", (unsigned long long)bytes,
               median[CACHED], median[LIMIT], median[OURS], gb_s, 100 * ratio[n / 2], 100 * ratio[n / 4],
               100 * ratio[n * 3 / 4], wrong ? "WRONG" : "0");
    fflush(stdout);
}

static int open_rank(rank_state *s)
{
    const options *o = &s->b->options;
    static eni_arena *arenas[CLUSTER_MAX];
    int bare[CLUSTER_MAX], group[CLUSTER_MAX];
    const int n = o->nranks, rank = s->rank;
    if (o->hosts && hosts_enter(o->hosts, rank) != 0) return -1;
    if (hosts_connect(o->hosts, rank, n, &s->b->shared->bare, bare) != 0 ||
        hosts_connect(o->hosts, rank, n, &s->b->shared->group, group) != 0)
        return -1;
    s->right = bare[(rank + 1) % n];
    s->left = bare[(rank + n - 1) % n];
    s->out = eni_alloc(o->end);
    s->in = eni_alloc(o->end);
    if (!s->out || !s->in || eni_arena_open(o->end / sizeof(float), 1, 1, &arenas[rank]) != EN_OK) return -1;
    memset(s->out, 1, o->end);
    memset(s->in, 1, o->end);
    s->vector = eni_arena_at(arenas[rank], 0, 0);
    const eni_coll_config config = {.rank = rank,
                                    .nranks = n,
                                    .epoch = 1,
                                    .algorithm = o->algorithm,
                                    .transport = ENI_OVER_TCP,
                                    .arenas = arenas,
                                    .sockets = group,
                                    .segment = o->segment / sizeof(float),
                                    .alive = s->alive};
    return eni_coll_open(&config, &s->coll) == EN_OK ? 0 : -1;
}

static int rank_main(int rank, int n, cluster_board *board, void *user)
{
    rank_state s = {.b = user, .rank = rank, .alive = {cluster_alive, board, -1}};
    const options *o = &s.b->options;
    (void)n;
    if (open_rank(&s) != 0) return 1;
    for (uint64_t bytes = o->begin; bytes <= o->end; bytes *= o->factor) {
        if (time_size(&s, bytes) != 0 || barrier(&s) != 0) return 1;
        if (rank == 0) report(s.b, bytes);
        if (barrier(&s) != 0) return 1; /* wait until it is printed */
    }
    eni_coll_close(s.coll);
    return 0;
}

int main(int argc, char **argv)
{
    static bench b;
    struct cluster cluster;
    if (!parse_options(argc, argv, &b.options)) {
        fputs(usage, stderr);
        return 2;
    }
    b.shared = mmap(NULL, sizeof *b.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.shared == MAP_FAILED) return 1;
    if (!b.options.is_json) {
        printf("# %d ranks on %d cores, %s over %s\n", b.options.nranks, eni_host_info_cores(),
               eni_coll_algorithm_name(b.options.algorithm),
               b.options.hosts ? "veth between network namespaces" : "loopback");
        printf("#%11s %11s %11s %8s %10s %11s %7s\n", "size (B)", "limit (us)", "ours (us)", "GB/s",
               "of limit", "quartiles", "#wrong");
    }
    fflush(stdout);
    const int bad = cluster_run(&cluster, b.options.nranks, rank_main, &b, DEADLINE_MS);
    if (bad) fprintf(stderr, "bench_tcp_limit: %d of %d ranks failed\n", bad, b.options.nranks);
    return bad ? 1 : 0;
}
