/* limits.c - the most that this machine can do of the work that Entrain does.
 *
 *     bench_limits --what=copy,sum --bytes=1724320,64M --processes=1,2
 *
 * The other benchmarks are compared with its figures, so run it together with them: in the same minute, with
 * the same other load. GB/s: for copy, bytes loaded and stored; for sum, bytes of one vector; for messages, bytes
 * in both directions if there are two; each over the median time, all processes together. */
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench/figures.h"
#include "bench/limits.h"
#include "bench/programs.h"
#include "runtime/net/host_info.h"

enum { DEADLINE_MS = 60000, ALIGNMENT = 4096 };

static const limit_kind *all_kinds[9]; /* ends with NULL */

typedef struct options {
    const limit_kind *kinds[8];
    figures bytes, processes;
    int rounds, is_json;
} options;

/* ---- options ---- */

static const char usage[] = "usage: bench_limits [options]\n"
                            "      --what=LIST       copy (load and store of private memory), sum (vectors "
                            "in shared memory, in place),\n"
                            "                        sgemm (oneDNN, one thread a process), roundtrip "
                            "(ZeroMQ, DEALERs and an echoing\n"
                            "                        ROUTER), meeting (the ROUTER answers when all have "
                            "sent), one-way (1 MB frames),\n"
                            "                        echo (frames of at most 1 MB, both ways) [all]\n"
                            "      --bytes=LIST      sizes; K, M, G are 1024s [by kind]\n"
                            "      --processes=LIST  number at the same time, 1 .. 16 [1,2; for sum 2,4]\n"
                            "  -n, --iters=N         timed rounds [by size]\n"
                            "      --json            one object per line\n";

static const struct option long_options[] = {
    {"what", required_argument, NULL, 'W'},
    {"bytes", required_argument, NULL, 'B'},
    {"processes", required_argument, NULL, 'p'},
    {"iters", required_argument, NULL, 'n'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void list_kinds(void)
{
    int n = 0;
    all_kinds[n++] = &limit_copy;
    all_kinds[n++] = &limit_checksum;
    all_kinds[n++] = &limit_sum;
    if (limit_sgemm()) all_kinds[n++] = limit_sgemm();
    all_kinds[n++] = &limit_roundtrip;
    all_kinds[n++] = &limit_meeting;
    all_kinds[n++] = &limit_one_way;
    all_kinds[n++] = &limit_echo;
}

static int parse_kinds(char *text, options *o)
{
    words list;
    if (!figures_words(text, &list) || list.n > 7) return 0;
    memset(o->kinds, 0, sizeof o->kinds);
    for (int i = 0; i < list.n; i++) {
        int k = 0;
        while (all_kinds[k] && strcmp(all_kinds[k]->name, list.word[i]) != 0)
            k++;
        if (!all_kinds[k]) return 0;
        o->kinds[i] = all_kinds[k];
    }
    return 1;
}

static int parse_option(int c, char *text, options *o)
{
    uint64_t n;
    switch (c) {
    case 'W': return parse_kinds(text, o);
    case 'B': return figures_list(text, 64, &o->bytes);
    case 'p':
        if (!figures_list(text, 1, &o->processes)) return 0;
        for (int i = 0; i < o->processes.n; i++)
            if (o->processes.value[i] > LIMIT_PROCESSES) return 0;
        return 1;
    case 'n':
        n = figures_number(text);
        o->rounds = (int)n;
        return n >= 1 && n <= LIMIT_ROUNDS;
    default: o->is_json = 1; return 1;
    }
}

/* 0: continue; else the exit code + 1. */
static int parse_options(int argc, char **argv, options *o)
{
    *o = (options){.rounds = 0};
    memcpy(o->kinds, all_kinds, sizeof o->kinds);
    for (int c; (c = getopt_long(argc, argv, "n:h", long_options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(usage, stdout);
            return 1;
        }
        if (c != '?' && parse_option(c, optarg, o)) continue;
        if (c != '?') fputs("bench_limits: invalid value; see --help\n", stderr);
        return 3;
    }
    if (optind == argc) return 0;
    fputs("bench_limits: unexpected argument; see --help\n", stderr);
    return 3;
}

/* ---- one trial ---- */

void limit_barrier(const limit_trial *trial)
{
    const uint64_t n = (uint64_t)trial->processes;
    const uint64_t before = atomic_fetch_add_explicit(&trial->board->arrived, 1, memory_order_acq_rel);
    for (int spins = 0;
         atomic_load_explicit(&trial->board->arrived, memory_order_acquire) < (before / n + 1) * n;)
        if (++spins > 2000) {
            sched_yield();
            spins = 0;
        }
}

void *limit_memory(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, bytes + ALIGNMENT) != 0) {
        fprintf(stderr, "bench_limits: cannot allocate %zu bytes\n", bytes);
        return NULL;
    }
    memset(memory, 0, bytes + ALIGNMENT);
    return memory;
}

typedef struct seat {
    const limit_kind *kind;
    const limit_trial *trial;
    int rank; /* -1: the ROUTER */
} seat;

static int sit(void *user)
{
    const seat *s = user;
    return s->rank < 0 ? s->kind->serve(s->trial) : s->kind->main(s->trial, s->rank);
}

static int run_trial(const limit_kind *kind, const limit_trial *trial)
{
    program programs[LIMIT_PROCESSES + 1];
    seat seats[LIMIT_PROCESSES + 1];
    int n = 0, bad = 0;
    for (int rank = kind->serve ? -1 : 0; rank < trial->processes && !bad; rank++, n++) {
        seats[n] = (seat){kind, trial, rank};
        bad = program_fork("a process of a limit", sit, &seats[n], &programs[n]);
    }
    return programs_wait(programs, n, bad ? 0 : DEADLINE_MS);
}

/* ---- the table ---- */

static void report(const limit_kind *kind, const limit_trial *t, int is_json)
{
    static int64_t times[LIMIT_ROUNDS * LIMIT_PROCESSES];
    double median_us, p99_us;
    size_t n = 0;
    for (int i = 0; i < t->rounds; i++) {
        int64_t slowest = 0;
        for (int r = 0; r < t->processes; r++) {
            const int64_t took = t->board->times[i][r];
            if (took > slowest) slowest = took;
            if (!kind->is_together) times[n++] = took;
        }
        if (kind->is_together) times[n++] = slowest;
    }
    figures_times(times, n, &median_us, &p99_us);
    const unsigned long long bytes = t->bytes;
    const double rate = kind->work(t) / median_us / 1e3;
    if (is_json)
        printf("{\"bench\":\"limits\",\"what\":\"%s\",\"bytes\":%llu,\"processes\":%d,\"rounds\":%d,"
               "\"median_us\":%.2f,\"p99_us\":%.2f,\"%s\":%.6g}\n",
               kind->name, bytes, t->processes, t->rounds, median_us, p99_us, kind->unit, rate);
    else
        printf("%-10s %12llu %9d %7d %11.1f %11.1f %9.2f %-8s %s\n", kind->name, bytes, t->processes,
               t->rounds, median_us, p99_us, rate, kind->unit, kind->what);
    fflush(stdout);
}

/* A shared vector for every process, if the kind needs them. */
static float *share_vectors(const limit_trial *t)
{
    const size_t bytes = (size_t)t->processes * t->bytes;
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* About a third of a second, and at least seven. */
static int usual_rounds(uint64_t bytes)
{
    const uint64_t rounds = (UINT64_C(1) << 30) / bytes;
    return rounds < 7 ? 7 : rounds > 3000 ? 3000 : (int)rounds;
}

static int row(const limit_kind *kind, const options *o, limit_board *board, uint64_t bytes, int processes)
{
    const int rounds = o->rounds ? o->rounds : usual_rounds(bytes * (uint64_t)kind->batch);
    limit_trial trial = {.bytes = bytes / 4 * 4,
                         .processes = processes,
                         .warmup = rounds < 20 ? 2 : rounds / 10,
                         .rounds = rounds,
                         .board = board};
    memset(board, 0, sizeof *board);
    if (kind == &limit_sum && !(trial.vectors = share_vectors(&trial))) {
        fprintf(stderr, "bench_limits: cannot allocate %d vectors of shared memory\n", processes);
        return 1;
    }
    const int bad = run_trial(kind, &trial);
    if (trial.vectors) munmap(trial.vectors, (size_t)processes * trial.bytes);
    if (!bad) report(kind, &trial, o->is_json);
    return bad != 0;
}

int main(int argc, char **argv)
{
    options o;
    list_kinds();
    const int code = parse_options(argc, argv, &o);
    if (code) return code - 1;
    limit_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        perror("bench_limits: mmap");
        return 1;
    }
    if (!o.is_json)
        printf("# limits of this machine, %d cores\n#%-9s %12s %9s %7s %11s %11s %9s\n",
               eni_host_info_cores(), "limit", "size (B)", "processes", "rounds", "median (us)", "p99 (us)",
               "rate");
    int bad = 0;
    for (int k = 0; o.kinds[k] && !bad; k++) {
        figures bytes = o.bytes, processes = o.processes;
        if (bytes.n == 0) figures_list(o.kinds[k]->bytes, 1, &bytes);
        if (processes.n == 0) figures_list(o.kinds[k]->processes, 1, &processes);
        for (int b = 0; b < bytes.n; b++)
            for (int p = 0; p < processes.n && !bad; p++)
                bad = row(o.kinds[k], &o, board, bytes.value[b], (int)processes.value[p]);
    }
    return bad;
}
