/* test_sweep.c - every operation of the cpu device on many extents, with 1 to 4 threads, many times: are the numbers
 * ref's, the bits the same each time, and the memory beside its tensors left alone?
 *
 * A run of a case: outputs and workspace hold no numbers; each tensor lies between guards (guarded.h); a pass may write
 * what is its own and nothing else. Backward runs on ref's y: where y is near 0 a fused relu would else be open on one
 * side and closed on the other, which is no error.
 *
 * Cases run in a child, some dozens one after the other; what a case does wrong ends the child, and another one goes on
 * behind it. Where the child is stands in memory that it shares with its parent, so that a case that crashes or hangs is
 * named, too. OpenMP does not survive a fork: the parent never loads the device.
 *
 *     test_ops_sweep              some cases, by a fixed rule, within a minute
 *     test_ops_sweep --all        all; --part=2/3 takes the second of three parts
 *       --jobs=2                  children side by side
 *       --load                    with stress-ng on two cores beside it
 *       --case=17 --threads=2     that one alone, as a report names it
 *       --repeats=200 --ms=10     runs of a case, at least 4, and milliseconds after which there are no more
 *
 * DNNL_MAX_CPU_ISA=AVX2 (or SSE41) in the environment holds oneDNN to that. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/ops/guarded.h"
#include "tests/ops/sweep_cases.h"
#include "tests/ops/trial.h"

#define PLUGINS EN_BUILD_DIR "/plugins"

/* TSan cannot see the barriers of libgomp and reports every hand-over of an OpenMP loop as a race. */
#if defined(__SANITIZE_THREAD__)
enum { MOST_THREADS = 1, EVERY = 487, HANGS_AFTER = 120 };
#elif defined(__SANITIZE_ADDRESS__)
enum { MOST_THREADS = 4, EVERY = 487, HANGS_AFTER = 120 };
#else
enum { MOST_THREADS = 4, EVERY = 71, HANGS_AFTER = 20 };
#endif

enum { LEAST_RUNS = 4, MOST_JOBS = 16, SLICE = 16, SEED = 7, FOUND = 3 };

static struct options {
    bool is_all, has_load;
    int part, parts, jobs, repeats, threads;
    int64_t one; /* case; -1: not one alone */
    double seconds;
} options = {.part = 1, .parts = 1, .jobs = 1, .repeats = 200, .one = -1, .seconds = 0.005};

/* ---- what parent and children share ------------------------------------------------------------------------- */

enum { X, X2, W, B, TARGET, DY, STATS, Y, DX, DW, DB, SAVED, WORKSPACE, TENSORS };

/* Where a child is, and what it found there. */
typedef struct place {
    int64_t at; /* in chosen */
    int threads, run;
    char name[256], pass[32], by[48], what[256];
    double worst[EN_OP_KINDS][TENSORS]; /* gap to ref, of all cases so far */
} place;

static struct shared {
    atomic_long next; /* in chosen: where the next slice starts */
    atomic_long cases, runs, bad;
    char device[160];
    place of_job[MOST_JOBS];
} * shared;

static int64_t *chosen, nchosen; /* numbers of cases */
static place *here;              /* of this job */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ends the child: after a wrong case nothing else in it can be trusted. */
__attribute__((format(printf, 1, 2))) static _Noreturn void found(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(here->what, sizeof here->what, format, args);
    va_end(args);
    _exit(FOUND);
}

/* ---- one operation ------------------------------------------------------------------------------------------ */

/* What ref says, and what the first run gave. */
typedef struct expected {
    trial ref;
    float *dy, *stats; /* before backward, before forward */
    void *first[TENSORS];
    bool has_first[3]; /* of a pass */
} expected;

static const struct {
    const char *name;
    unsigned writes; /* tensors, as bits */
} passes[] = {{"forward", 1u << Y | 1u << STATS | 1u << SAVED},
              {"backward_weights", 1u << DW | 1u << DB | 1u << DY | 1u << SAVED},
              {"backward_data", 1u << DX}};

static bool has_pass(const trial *t, int pass)
{
    const uint32_t lacks = pass == 0 ? 0 : pass == 1 ? EN_OP_FORWARD_ONLY : EN_OP_FORWARD_ONLY | EN_OP_NO_DX;
    return !(t->op.flags & lacks) && (pass != 1 || t->nw > 0);
}

static bool is_written(const trial *t, int pass, int tensor)
{
    if (tensor == WORKSPACE) return true;
    if (tensor == DY && !(t->op.flags & EN_OP_FUSE_RELU)) return false;
    if (tensor == STATS && t->op.flags & EN_OP_FORWARD_ONLY) return false;
    return (passes[pass].writes >> tensor & 1) != 0;
}

static const char *const tensor_names[TENSORS] = {"x", "x2", "w",  "b",  "target", "dy",       "stats",
                                                  "y", "dx", "dw", "db", "saved",  "workspace"};

static void *tensor_of(const trial *t, int tensor)
{
    void *const all[TENSORS] = {t->x, t->x2, t->w,  t->b,  t->target, t->dy,       t->stats,
                                t->y, t->dx, t->dw, t->db, t->saved,  t->workspace};
    return all[tensor];
}

/* Elements; bytes of saved. */
static size_t count_of(const trial *t, int tensor)
{
    const int64_t nb = t->op.flags & EN_OP_BIAS ? t->nb : 0;
    const int64_t all[TENSORS] = {[DY] = t->ny,
                                  [STATS] = t->nstats,
                                  [Y] = t->ny,
                                  [DX] = t->nx,
                                  [DW] = t->nw,
                                  [DB] = nb,
                                  [SAVED] = (int64_t)t->info.saved_bytes};
    return (size_t)all[tensor];
}

static size_t bytes_of(const trial *t, int tensor)
{
    return count_of(t, tensor) * (tensor == SAVED ? 1 : sizeof(float));
}

static float *copied(const float *from, int64_t count)
{
    float *to = malloc((size_t)count * sizeof *to + 1);
    if (to == NULL) found("no memory");
    return memcpy(to, from, (size_t)count * sizeof *to);
}

static void expect(expected *e, const eni_device *ref, const en_op *op)
{
    *e = (expected){0};
    trial_init(&e->ref, ref, op, SEED);
    e->dy = copied(e->ref.dy, e->ref.ny);
    e->stats = copied(e->ref.stats, e->ref.nstats);
    trial_run(&e->ref);
    for (int k = DY; k < SAVED; k++)
        e->first[k] = copied(tensor_of(&e->ref, k), (int64_t)count_of(&e->ref, k));
}

static void expect_no_more(expected *e)
{
    for (int k = 0; k < TENSORS; k++)
        free(e->first[k]);
    free(e->dy);
    free(e->stats);
    trial_fini(&e->ref);
}

/* Of the largest value of a tensor: sums are rounded in another order by oneDNN, and those of batch normalisation are
 * kept in float for a while. Everything else is ref's arithmetic. */
static double tolerance(uint32_t kind)
{
    return kind == EN_OP_CONV2D || kind == EN_OP_LINEAR ? 2e-5 : kind == EN_OP_BATCHNORM ? 2e-5 : 0.0;
}

/* What a sum of so many products of numbers in (-1, 1) is like: it may happen to be near 0 where all of a tensor is one
 * sum, and is then no measure of its error. The gradient of batch normalisation is a difference of such that are alike. */
static double usual(const trial *t, int tensor)
{
    const double taps = (double)(t->nw / (t->nb > 0 ? t->nb : 1));
    const double pixels = (double)(t->ny / (t->y_extent.c > 0 ? t->y_extent.c : 1));
    if (t->op.kind == EN_OP_BATCHNORM && tensor == DX) return 1.0;
    if (tolerance(t->op.kind) == 0.0 || tensor == STATS) return 1e-3;
    if (tensor == DW || tensor == DB) return sqrt(pixels) / 3;
    if (t->op.kind == EN_OP_BATCHNORM) return 1e-3;
    return sqrt(tensor == Y ? taps : taps * (double)t->op.channels / (double)t->op.x.c) / 3;
}

static void against_ref(const trial *got, const float *is, const float *should, size_t count, int tensor)
{
    const uint32_t kind = got->op.kind;
    const double most = tensor == DY ? 0.0 : tolerance(kind);
    double largest = usual(got, tensor), widest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)should[i]));
    for (size_t i = 0; i < count; i++) {
        const double gap = fabs((double)is[i] - (double)should[i]) / largest;
        if (!(gap <= most))
            found("%s[%zu] of %zu is %.9g, ref's is %.9g; the largest is %.3g", tensor_names[tensor], i,
                  count, (double)is[i], (double)should[i], largest);
        if (gap > widest) widest = gap;
    }
    if (widest > here->worst[kind][tensor]) here->worst[kind][tensor] = widest;
}

/* Of the running statistics those that count: the padding is no number. */
static void stats_against_ref(const trial *got, const trial *ref)
{
    against_ref(got, got->stats, ref->stats, (size_t)got->nb, STATS);
    against_ref(got, trial_var(got), trial_var(ref), (size_t)got->nb, STATS);
    if (*trial_batches(got) != *trial_batches(ref)) found("stats counts other batches than ref");
}

static const char *implementation(const trial *t, int pass)
{
    return pass == 0 ? t->info.forward : pass == 1 ? t->info.backward_weights : t->info.backward_data;
}

/* Loops of our own, whose bits do not depend on the number of threads. */
static bool is_ours(const trial *t, int pass)
{
    const char *by = implementation(t, pass);
    return strcmp(by, "loops") == 0 || strncmp(by, "winograd:", 9) == 0;
}

static void same_bits(const trial *got, const expected *e, int tensor, const char *as)
{
    const unsigned char *is = tensor_of(got, tensor), *was = e->first[tensor];
    const size_t bytes = bytes_of(got, tensor);
    if (memcmp(is, was, bytes) == 0) return;
    size_t at = 0;
    while (is[at] == was[at])
        at++;
    float now_is, then;
    memcpy(&now_is, is + at / 4 * 4, 4);
    memcpy(&then, was + at / 4 * 4, 4);
    found("%s[%zu] is %.9g, and was %.9g %s", tensor_names[tensor], at / 4, (double)now_is, (double)then, as);
}

/* What a pass left. */
static void look(const trial *got, expected *e, int pass)
{
    for (int k = DY; k < WORKSPACE; k++) {
        const size_t bytes = bytes_of(got, k);
        if (!(passes[pass].writes >> k & 1) || bytes == 0) continue;
        if (k == SAVED && pass == 0 && has_pass(got, 1)) continue; /* which adds to it */
        if (here->run == 0 && k == STATS) stats_against_ref(got, &e->ref);
        if (here->run == 0 && k != STATS && k != SAVED)
            against_ref(got, tensor_of(got, k), tensor_of(&e->ref, k), count_of(got, k), k);
        if (here->run > 0)
            same_bits(got, e, k, "in the first run");
        else if (e->has_first[pass] && is_ours(got, pass) && k != SAVED)
            same_bits(got, e, k, "with fewer threads");
        else
            memcpy(e->first[k], tensor_of(got, k), bytes);
    }
    e->has_first[pass] = true;
    for (int k = 0; k < TENSORS; k++)
        if (guarded_damage(tensor_of(got, k)) != NULL) found("%s", guarded_damage(tensor_of(got, k)));
}

static void run_pass(const trial *got, int pass)
{
    const en_device *ops = got->device->ops;
    const en_args args = trial_args(got);
    snprintf(here->pass, sizeof here->pass, "%s", passes[pass].name);
    snprintf(here->by, sizeof here->by, "%s", implementation(got, pass));
    for (int k = 0; k < TENSORS; k++)
        guarded_protect(tensor_of(got, k), is_written(got, pass, k));
    guarded_fill(got->workspace);
    const en_status st = pass == 0   ? ops->forward(got->plan, &args)
                         : pass == 1 ? ops->backward_weights(got->plan, &args)
                                     : ops->backward_data(got->plan, &args);
    if (st != EN_OK) found("it fails with status %d", (int)st);
}

static void run_once(const trial *got, expected *e)
{
    for (int k = DY; k < WORKSPACE; k++) {
        guarded_protect(tensor_of(got, k), true);
        guarded_fill(tensor_of(got, k));
    }
    memcpy(got->dy, e->dy, (size_t)got->ny * sizeof(float));
    memcpy(got->stats, e->stats, (size_t)got->nstats * sizeof(float));
    for (int pass = 0; pass < 3; pass++) {
        if (!has_pass(got, pass)) continue;
        run_pass(got, pass);
        look(got, e, pass);
        if (pass == 0) memcpy(got->y, e->ref.y, (size_t)got->ny * sizeof(float));
    }
}

/* With so many threads as the device was opened with. */
static void check_case(const eni_device *device, expected *e)
{
    static const trial_memory guarded = {guarded_new, guarded_free};
    trial got = {.device = device, .op = e->ref.op};
    alarm(HANGS_AFTER);
    here->run = 0;
    snprintf(here->name, sizeof here->name, "%s", trial_name(&got));
    snprintf(here->pass, sizeof here->pass, "planning");
    here->by[0] = '\0';
    trial_init_in(&got, &guarded, device, &e->ref.op, SEED);
    free(e->first[SAVED]);
    e->first[SAVED] = copied((const float *)(const void *)got.saved, (int64_t)(got.info.saved_bytes + 3) / 4);
    const double start = now();
    do {
        guarded_libraries(here->run < LEAST_RUNS); /* it costs some calls of the system each time */
        run_once(&got, e);
        here->run++;
    } while (here->run < options.repeats && (here->run < LEAST_RUNS || now() - start < options.seconds));
    guarded_libraries(true);
    trial_fini(&got);
    if (guarded_damage(NULL) != NULL) found("%s", guarded_damage(NULL));
    shared->cases++;
    shared->runs += here->run;
}

/* ---- children ----------------------------------------------------------------------------------------------- */

/* Cases [from, to) of chosen, the first of them with `threads` and more. */
static void sweep(int64_t from, int64_t to, int threads)
{
    eni_device ref, cpu[MOST_THREADS];
    guarded_catch(here->what, sizeof here->what, FOUND);
    guarded_libraries(true);
    alarm(HANGS_AFTER);
    if (eni_device_open("ref", "", 1, &ref) != EN_OK) found("ref does not open");
    for (int t = 0; t < MOST_THREADS; t++)
        if (!open_cpu(&cpu[t], t + 1)) found("cpu does not open");
    if (shared->device[0] == '\0')
        snprintf(shared->device, sizeof shared->device, "%s", cpu[0].ops->describe(cpu[0].ctx));
    for (here->at = from; here->at < to; here->at++, threads = 1) {
        en_op op;
        expected e;
        (void)sweep_case(chosen[here->at], &op);
        alarm(HANGS_AFTER);
        expect(&e, &ref, &op);
        for (here->threads = threads; here->threads <= MOST_THREADS; here->threads++)
            if (options.threads == 0 || options.threads == here->threads)
                check_case(&cpu[here->threads - 1], &e);
        expect_no_more(&e);
    }
}

static void report(int status)
{
    char how[64] = "";
    shared->bad++;
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, WTERMSIG(status) == SIGALRM ? "it hangs" : "it ends by signal %d",
                 WTERMSIG(status));
    else if (WEXITSTATUS(status) != FOUND)
        snprintf(how, sizeof how, "it ends with status %d", WEXITSTATUS(status));
    printf("BAD %ld, %d thread%s: %s; %s by %s, run %d: %s%s\n", (long)chosen[here->at], here->threads,
           here->threads == 1 ? "" : "s", here->name, here->pass, here->by, here->run + 1, how, here->what);
    fflush(stdout);
}

static void run_slice(int64_t from, int64_t to)
{
    int threads = 1;
    while (from < to) {
        here->at = from;
        here->threads = threads;
        here->what[0] = '\0';
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            sweep(from, to, threads);
            _exit(0);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child) {
            perror("fork");
            exit(1);
        }
        if (status == 0) return;
        report(status);
        from = here->at + (here->threads >= MOST_THREADS ? 1 : 0);
        threads = here->threads >= MOST_THREADS ? 1 : here->threads + 1;
    }
}

/* Takes slices until there are no more. */
static void run_job(int job)
{
    here = &shared->of_job[job];
    for (;;) {
        const int64_t from = atomic_fetch_add(&shared->next, SLICE);
        if (from >= nchosen) return;
        run_slice(from, from + SLICE < nchosen ? from + SLICE : nchosen);
    }
}

/* Waits for all jobs, and tells now and then how far they are. */
static bool run_jobs(void)
{
    bool is_ok = true;
    int left = 0;
    fflush(stdout);
    for (int job = 0; job < options.jobs; job++) {
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run_job(job);
            _exit(0);
        }
        left += child > 0;
    }
    is_ok = left == options.jobs;
    for (double told = now(); left > 0;) {
        int status = 0;
        const pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended > 0) left--;
        if (ended > 0 && status != 0) is_ok = false;
        if (ended == 0) usleep(20000);
        if (now() - told < 60) continue;
        told = now();
        fprintf(stderr, "%ld of %ld operations, %ld cases, %ld bad\n", (long)shared->next, (long)nchosen,
                (long)shared->cases, (long)shared->bad);
    }
    return is_ok;
}

/* ---- the whole ---------------------------------------------------------------------------------------------- */

static pid_t start_load(void)
{
    const pid_t load = fork();
    if (load != 0) return load;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* and it ends what it started */
    execlp("stress-ng", "stress-ng", "--quiet", "--cpu", "2", (char *)NULL);
    fprintf(stderr, "without load: there is no stress-ng\n");
    _exit(0);
}

/* Every so many, a number that shares no factor with those of the values: so each of these appears. */
static void choose(void)
{
    const int64_t all = sweep_cases(), fixed = sweep_fixed();
    chosen = malloc((size_t)all * sizeof *chosen);
    int64_t n = 0;
    en_op op;
    for (int64_t i = 0; i < all; i++) {
        const bool is_wanted =
            options.one >= 0 ? i == options.one : options.is_all || i < fixed || i % EVERY == 0;
        if (is_wanted && sweep_case(i, &op)) chosen[n++] = i;
    }
    for (int64_t i = 0; i < n; i++) /* parts by slices */
        if (i / SLICE % options.parts == options.part - 1) chosen[nchosen++] = chosen[i];
}

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        int end = 0;
        double ms;
        long one;
        if (strcmp(a, "--all") == 0)
            options.is_all = true;
        else if (strcmp(a, "--load") == 0)
            options.has_load = true;
        else if (sscanf(a, "--case=%ld%n", &one, &end) == 1)
            options.one = one;
        else if (sscanf(a, "--ms=%lf%n", &ms, &end) == 1)
            options.seconds = ms / 1000;
        else if (sscanf(a, "--part=%d/%d%n", &options.part, &options.parts, &end) != 2 &&
                 sscanf(a, "--jobs=%d%n", &options.jobs, &end) != 1 &&
                 sscanf(a, "--threads=%d%n", &options.threads, &end) != 1 &&
                 sscanf(a, "--repeats=%d%n", &options.repeats, &end) != 1)
            return false;
    }
    return options.part >= 1 && options.part <= options.parts && options.jobs >= 1 &&
           options.jobs <= MOST_JOBS && options.repeats >= 1;
}

static void print_gaps(void)
{
    for (int kind = 0; kind < EN_OP_KINDS; kind++)
        for (int k = 0; k < TENSORS; k++) {
            double worst = 0;
            for (int job = 0; job < options.jobs; job++)
                worst = fmax(worst, shared->of_job[job].worst[kind][k]);
            if (worst > 0) printf("kind %d, %s: worst gap %.2g\n", kind, tensor_names[k], worst);
        }
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fprintf(stderr, "%s: see the head of tests/ops/test_sweep.c\n", argv[0]);
        return 2;
    }
    if (access(PLUGINS "/device_cpu.so", F_OK) != 0) {
        printf("SKIP: this build has no cpu device (libdnnl-dev)\n");
        return 77;
    }
    const double start = now();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    choose();
    const pid_t load = options.has_load ? start_load() : 0;
    const bool is_ok = run_jobs();
    if (load > 0) {
        kill(load, SIGTERM);
        waitpid(load, NULL, 0);
    }
    print_gaps();
    printf("%ld operations, %ld cases, %ld runs, %ld bad, %.0f s, %s\n", (long)nchosen, (long)shared->cases,
           (long)shared->runs, (long)shared->bad, now() - start, shared->device);
    return is_ok && shared->bad == 0 && shared->cases > 0 ? 0 : 1;
}
