/* pushpull.c - times push-pull by size: real psd processes, real workers, a synthetic gradient.
 *
 *     bench_pushpull --bytes=4K,1724320 --workers=1,2 --shards=1,2 --transport=shm,tcp
 *
 * Each row has its own psd and workers, on this host. `time` is the median over the rounds of one exchange:
 * every worker pushes its gradient and has pulled the new weights, summed and stepped by psd. If the workers
 * run in step it is the slowest worker's, from a barrier; else each worker's own. Gradients are rewritten and
 * weights checked between the exchanges; `round` includes that. GB/s is bytes in both directions, summed over
 * the workers, over `time`. `#wrong` counts weights that differ in any bit from the expected ones. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/figures.h"
#include "bench/programs.h"
#include "bench/pushpull.h"
#include "core/log.h"
#include "runtime/net/host_info.h"

enum { START_MS = 30000, ROUND_MS = 500, PATH_BYTES = 4096 }; /* deadlines of a trial */

typedef struct options {
    uint64_t begin, end, factor; /* bytes; used unless `bytes` is given */
    figures bytes, workers, shards;
    words strategies, transports;
    int warmup, rounds, check, is_json;
    double momentum;
    uint64_t bucket; /* bytes */
} options;

/* ---- options ---- */

static const char usage[] =
    "usage: bench_pushpull [options]\n"
    "      --bytes=LIST        vectors in bytes; K, M, G are 1024s [4K,1724320,44726568: a small message,\n"
    "                          the MNIST convnet, ResNet-18 for CIFAR-10]\n"
    "  -b, --minbytes=N        smallest vector of a range in place of the list\n"
    "  -e, --maxbytes=N        largest vector of the range [that of -b]\n"
    "  -f, --stepfactor=N      factor between sizes [4]\n"
    "  -w, --warmup_iters=N    untimed rounds first [5]\n"
    "  -n, --iters=N           timed rounds [30]\n"
    "  -c, --check=0|1         compare every pulled weight with the expected one [1]\n"
    "      --workers=LIST      processes, 1 .. 16 [1,2]\n"
    "      --shards=LIST       shards of psd, 1 .. 256, or 0: as many as psd chooses [1]\n"
    "      --transport=LIST    shm, tcp: how payloads and messages travel [shm,tcp]\n"
    "      --strategy=LIST     ps-sync, ps-async, ssp [ps-sync]\n"
    "      --momentum=X        of psd's SGD, 0 .. 1; 0 if the server steps on every gradient [0.9]\n"
    "      --bucket=N          the largest bucket in bytes, as --bucket-cap-mb [1M]\n"
    "      --json              one object per line\n";

static const struct option long_options[] = {
    {"bytes", required_argument, NULL, 'B'},
    {"minbytes", required_argument, NULL, 'b'},
    {"maxbytes", required_argument, NULL, 'e'},
    {"stepfactor", required_argument, NULL, 'f'},
    {"warmup_iters", required_argument, NULL, 'w'},
    {"iters", required_argument, NULL, 'n'},
    {"check", required_argument, NULL, 'c'},
    {"workers", required_argument, NULL, 'W'},
    {"shards", required_argument, NULL, 's'},
    {"transport", required_argument, NULL, 't'},
    {"strategy", required_argument, NULL, 'S'},
    {"momentum", required_argument, NULL, 'm'},
    {"bucket", required_argument, NULL, 'k'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Every word of the list must be one of `known`, which ends with NULL. */
static int parse_words(char *text, const char *const *known, words *out)
{
    if (!figures_words(text, out)) return 0;
    for (int i = 0; i < out->n; i++) {
        int k = 0;
        while (known[k] && strcmp(known[k], out->word[i]) != 0)
            k++;
        if (!known[k]) return 0;
    }
    return 1;
}

static int is_at_most(const figures *list, uint64_t most)
{
    for (int i = 0; i < list->n; i++)
        if (list->value[i] > most) return 0;
    return 1;
}

static int parse_count(const char *text, long least, long most, int *out)
{
    char *end;
    const long value = strtol(text, &end, 10);
    *out = (int)value;
    return end != text && *end == 0 && value >= least && value <= most;
}

static int parse_option(int c, char *text, options *o)
{
    static const char *const strategies[] = {"ps-sync", "ps-async", "ssp", NULL};
    static const char *const transports[] = {"shm", "tcp", NULL};
    char *end;
    switch (c) {
    case 'B': return figures_list(text, 4, &o->bytes);
    case 'b': o->bytes.n = 0; return (o->begin = figures_number(text)) >= 4;
    case 'e': return (o->end = figures_number(text)) >= 4;
    case 'f': return (o->factor = figures_number(text)) >= 2;
    case 'w': return parse_count(text, 0, PUSHPULL_ROUNDS, &o->warmup);
    case 'n': return parse_count(text, 1, PUSHPULL_ROUNDS, &o->rounds);
    case 'c': return parse_count(text, 0, 1, &o->check);
    case 'W': return figures_list(text, 1, &o->workers) && is_at_most(&o->workers, PUSHPULL_WORKERS);
    case 's': return figures_list(text, 0, &o->shards) && is_at_most(&o->shards, 256);
    case 't': return parse_words(text, transports, &o->transports);
    case 'S': return parse_words(text, strategies, &o->strategies);
    case 'm': o->momentum = strtod(text, &end); return *text && !*end && o->momentum >= 0 && o->momentum <= 1;
    case 'k': return (o->bucket = figures_number(text)) >= 64;
    default: o->is_json = 1; return 1;
    }
}

/* -b .. -e as a list. */
static int fill_range(options *o)
{
    if (o->bytes.n > 0) return 1;
    if (o->end == 0) o->end = o->begin;
    for (uint64_t bytes = o->begin; bytes <= o->end && o->bytes.n < FIGURES_MAX; bytes *= o->factor)
        o->bytes.value[o->bytes.n++] = bytes;
    return o->bytes.n > 0;
}

/* 0: continue; else the exit code + 1. */
static int parse_options(int argc, char **argv, options *o)
{
    static char both[] = "shm,tcp", sync[] = "ps-sync"; /* split in place */
    *o = (options){.factor = 4, .warmup = 5, .rounds = 30, .check = 1, .momentum = 0.9, .bucket = 1 << 20};
    figures_list("4K,1724320,44726568", 4, &o->bytes);
    figures_list("1,2", 1, &o->workers);
    figures_list("1", 1, &o->shards);
    figures_words(both, &o->transports);
    figures_words(sync, &o->strategies);
    for (int c, at = optind; (c = getopt_long(argc, argv, "b:e:f:w:n:c:h", long_options, NULL)) != -1;
         at = optind) {
        if (c == 'h') {
            fputs(usage, stdout);
            return 1;
        }
        char *text = optarg;
        char given[64];
        snprintf(given, sizeof given, "%s", text ? text : "");
        if (c != '?' && parse_option(c, text, o)) continue;
        if (c != '?')
            fprintf(stderr, "bench_pushpull: %s: invalid value \"%s\"; see --help\n", argv[at], given);
        return 3;
    }
    if (optind == argc && fill_range(o)) return 0;
    fputs(optind < argc ? "bench_pushpull: unexpected argument; see --help\n"
                        : "bench_pushpull: -e is less than -b\n",
          stderr);
    return 3;
}

/* ---- one trial ---- */

typedef struct seat {
    const pushpull_trial *trial;
    int rank;
} seat;

static int sit(void *user)
{
    const seat *s = user;
    return pushpull_worker(s->trial, s->rank);
}

/* psd inherits its listening socket and the token, as from the launcher. */
static int start_psd(pushpull_trial *trial, program *psd)
{
    char path[PATH_BYTES], hex[ENI_TOKEN_HEX], text[6][64];
    const eni_address any = {.host = "127.0.0.1"};
    int fds[2];
    if (program_path("psd", path, sizeof path) != 0) return -1;
    if (eni_tcp_listen(&any, false, &fds[0], &trial->psd) != EN_OK) return -1;
    eni_token_make(&trial->token);
    eni_token_hex(&trial->token, hex);
    fds[1] = memfd_create("entrain-token", MFD_CLOEXEC);
    if (fds[1] < 0 || write(fds[1], hex, ENI_TOKEN_HEX - 1) != ENI_TOKEN_HEX - 1 ||
        lseek(fds[1], 0, SEEK_SET)) {
        fputs("bench_pushpull: cannot pass a token to psd\n", stderr);
        return -1;
    }
    snprintf(text[0], sizeof text[0], "--listen-fd=%d", fds[0]);
    snprintf(text[1], sizeof text[1], "--token-fd=%d", fds[1]);
    snprintf(text[2], sizeof text[2], "--strategy=%s", trial->strategy);
    snprintf(text[3], sizeof text[3], "--world-size=%d", trial->workers);
    snprintf(text[4], sizeof text[4], "--shards=%d", trial->shards);
    snprintf(text[5], sizeof text[5], "--transport=%s", trial->over_tcp ? "tcp" : "shm");
    char *const argv[] = {
        path, text[0], text[1], text[2], text[3], text[4], text[5], "--quiet", "--log-level=warn", NULL};
    const int bad = program_start("psd", argv, fds, 2, psd);
    close(fds[0]);
    close(fds[1]);
    return bad;
}

static int run_trial(pushpull_trial *trial)
{
    program programs[PUSHPULL_WORKERS + 1];
    seat seats[PUSHPULL_WORKERS];
    int n = 0, bad = start_psd(trial, &programs[0]);
    if (bad) return bad;
    for (n = 1; n <= trial->workers && !bad; n++) {
        seats[n - 1] = (seat){trial, n - 1};
        bad = program_fork("a worker", sit, &seats[n - 1], &programs[n]);
    }
    return programs_wait(programs, n, bad ? 0 : START_MS + ROUND_MS * (trial->warmup + trial->rounds));
}

/* ---- the table ---- */

/* The times of the exchanges: per round the slowest worker's if they run in step, else every worker's. */
static size_t gather_times(const pushpull_trial *t, int64_t *times)
{
    size_t n = 0;
    for (int i = 0; i < t->rounds; i++) {
        int64_t slowest = 0;
        for (int r = 0; r < t->workers; r++) {
            const int64_t took = t->board->times[i][r];
            if (took > slowest) slowest = took;
            if (!t->is_sync) times[n++] = took;
        }
        if (t->is_sync) times[n++] = slowest;
    }
    return n;
}

static uint64_t report(const pushpull_trial *t, const options *o)
{
    static int64_t times[PUSHPULL_ROUNDS * PUSHPULL_WORKERS];
    double median_us, p99_us, round_us = 0;
    uint64_t wrong = 0;
    figures_times(times, gather_times(t, times), &median_us, &p99_us);
    for (int r = 0; r < t->workers; r++) {
        wrong += t->board->wrong[r];
        if ((double)t->board->round_ns[r] / 1e3 > round_us) round_us = (double)t->board->round_ns[r] / 1e3;
    }
    const unsigned long long bytes = t->count * sizeof(float), bad = wrong;
    const double gb_s = 2.0 * (double)bytes * t->workers / median_us / 1e3;
    const char *transport = t->over_tcp ? "tcp" : "shm";
    if (o->is_json)
        printf("{\"bench\":\"pushpull\",\"strategy\":\"%s\",\"shards\":%d,\"workers\":%d,\"bytes\":%llu,"
               "\"buckets\":%u,\"median_us\":%.2f,\"p99_us\":%.2f,\"round_us\":%.2f,\"gb_s\":%.3f,"
               "\"transport\":\"%s\",\"wrong\":%llu}\n",
               t->strategy, t->shards, t->workers, bytes, pushpull_buckets(t), median_us, p99_us, round_us,
               gb_s, transport, bad);
    else
        printf("%12llu %8u %7d %7d %9s %10s %9.1f %9.1f %9.1f %8.2f %7s\n", bytes, pushpull_buckets(t),
               t->workers, t->shards, transport, t->strategy, median_us, p99_us, round_us, gb_s,
               !t->check ? "N/A"
               : bad     ? "WRONG"
                         : "0");
    fflush(stdout);
    return wrong;
}

static void print_head(const options *o)
{
    printf("# psd and its workers on %d cores; SGD with momentum %g; %d rounds after %d\n",
           eni_host_info_cores(), o->momentum, o->rounds, o->warmup);
    printf("#%11s %8s %7s %7s %9s %10s %9s %9s %9s %8s %7s\n", "size", "buckets", "workers", "shards",
           "transport", "strategy", "time", "p99", "round", "push+pull", "#wrong");
    printf("#%11s %8s %7s %7s %9s %10s %9s %9s %9s %8s\n", "(B)", "", "", "", "", "", "(us)", "(us)", "(us)",
           "(GB/s)");
}

/* One row. Returns the number of wrong weights and failed processes. */
static uint64_t row(const options *o, pushpull_board *board, const char *strategy, const char *transport,
                    uint64_t bytes, int workers, int shards)
{
    memset(board, 0, sizeof *board);
    const int is_sync = strcmp(strategy, "ps-sync") == 0;
    pushpull_trial trial = {.strategy = strategy,
                            .workers = workers,
                            .shards = shards,
                            .warmup = o->warmup,
                            .rounds = o->rounds,
                            .check = o->check,
                            .over_tcp = strcmp(transport, "tcp") == 0,
                            .is_sync = is_sync,
                            .count = bytes / sizeof(float),
                            .bucket_size = o->bucket / 64 * 16,
                            .momentum = is_sync ? o->momentum : 0,
                            .board = board};
    const int bad = run_trial(&trial);
    return bad ? (uint64_t)bad : report(&trial, o);
}

int main(int argc, char **argv)
{
    options o;
    const int code = parse_options(argc, argv, &o);
    if (code) return code - 1;
    eni_log_set_who("bench_pushpull");
    pushpull_board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        perror("bench_pushpull: mmap");
        return 1;
    }
    if (!o.is_json) print_head(&o);
    uint64_t wrong = 0;
    for (int s = 0; s < o.strategies.n; s++)
        for (int t = 0; t < o.transports.n; t++)
            for (int b = 0; b < o.bytes.n; b++)
                for (int w = 0; w < o.workers.n; w++)
                    for (int k = 0; k < o.shards.n && wrong == 0; k++)
                        wrong = row(&o, board, o.strategies.word[s], o.transports.word[t], o.bytes.value[b],
                                    (int)o.workers.value[w], (int)o.shards.value[k]);
    return wrong == 0 ? 0 : 1;
}
