/* test_sweep.c - every operation of the cpu device on many extents (sweep_cases.h), with 1 to 4 threads, checked as
 * sweep_check.h says.
 *
 * Cases run in a child, a dozen operations one after the other; what a case does wrong ends the child, and another one
 * goes on behind it. Where the child is stands in memory that it shares with its parent, so that a case that crashes or
 * hangs is named, too. OpenMP does not survive a fork: the parent never loads the device.
 *
 *     test_ops ops_sweep          some cases, by a fixed rule
 *     test_ops ops_sweep --all    all; --part=2/3 takes the second of three parts
 *       --jobs=2                  children side by side
 *       --bf16                    with bf16 factors, within the bounds of float32
 *       --load                    with stress-ng on two cores beside it
 *       --case=17 --threads=2     that one alone, as a report names it
 *       --repeats=200 --ms=5      runs of a case, and milliseconds after which there are no more; but at least 4
 *
 * DNNL_MAX_CPU_ISA=AVX2 (or SSE41) in the environment holds oneDNN to that. First of all a device with planted faults
 * shows that each of them would be found. */
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/memory.h"
#include "tests/ops/sweep_cases.h"
#include "tests/ops/sweep_check.h"

/* Promise: Every operation of the cpu device gives ref's numbers, the same bits in every run, and touches
 * nothing outside its tensors. */

/* TSan cannot see the barriers of libgomp and reports every hand-over of an OpenMP loop as a race. EVERY so many of all
 * operations are in the sample: a number that shares no factor with those of the values, so that each of them appears. */
#if defined(__SANITIZE_THREAD__)
enum { MOST_THREADS = 1, EVERY = 487, HANGS_AFTER = 120, IS_SANITIZED = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { MOST_THREADS = 4, EVERY = 487, HANGS_AFTER = 120, IS_SANITIZED = 1 };
#else
enum { MOST_THREADS = 4, EVERY = 71, HANGS_AFTER = 120, IS_SANITIZED = 0 };
#endif

enum { MOST_JOBS = 16, SLICE = 16 };

static struct options {
    bool is_all, has_load;
    int part, parts, jobs, threads;
    int64_t one; /* case; -1: not one alone */
    sweep_limits limits;
} options = {.part = 1,
             .parts = 1,
             .jobs = 1,
             .one = -1,
             .limits = {.repeats = 200, .seconds = 0.005, .hangs_after = HANGS_AFTER}};

/* Shared by a job and its children. */
typedef struct job {
    sweep_place place;
    int64_t at; /* in chosen */
    int threads;
} job;

static struct shared {
    atomic_long next; /* in chosen: where the next slice starts */
    atomic_long cases, runs, bad;
    char device[160];
    job jobs[MOST_JOBS];
} * shared;

static int64_t *chosen, nchosen; /* numbers of cases */

static void child_begin(job *j, const sweep_limits *limits)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sweep_begin(&j->place, limits);
}

/* Waits for a child. Its failure, in static storage; NULL if it passed. */
static const char *outcome(pid_t child, const job *j)
{
    static char text[320];
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("fork");
        exit(1);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return NULL;
    if (WIFEXITED(status) && WEXITSTATUS(status) == SWEEP_FOUND)
        snprintf(text, sizeof text, "%s", j->place.what);
    else if (WIFEXITED(status))
        snprintf(text, sizeof text, "it ends with status %d", WEXITSTATUS(status));
    else if (WTERMSIG(status) == SIGALRM)
        snprintf(text, sizeof text, "it hangs");
    else
        snprintf(text, sizeof text, "it ends by signal %d", WTERMSIG(status));
    return text;
}

/* ---- cases --------------------------------------------------------------------------------------------------- */

/* Cases [from, to) of chosen, the first of them with `threads` and more. */
static void sweep(job *j, int64_t from, int64_t to, int threads)
{
    eni_device ref, cpu[MOST_THREADS];
    if (eni_device_open("ref", "", 1, &ref) != EN_OK) sweep_found("ref does not open");
    for (int t = 0; t < MOST_THREADS; t++)
        if (!(options.limits.is_bf16 ? open_cpu_bf16 : open_cpu)(&cpu[t], t + 1))
            sweep_found("cpu does not open");
    if (shared->device[0] == '\0') {
        const char *text = cpu[0].ops->describe(cpu[0].ctx), *behind = strstr(text, ", OpenMP");
        snprintf(shared->device, sizeof shared->device, "%.*s",
                 behind != NULL ? (int)(behind - text) : (int)strlen(text), text);
    }
    for (j->at = from; j->at < to; j->at++, threads = 1) {
        en_op op;
        sweep_expected e;
        (void)sweep_case(chosen[j->at], &op);
        sweep_expect(&e, &ref, &op);
        for (j->threads = threads; j->threads <= MOST_THREADS; j->threads++) {
            if (options.threads != 0 && options.threads != j->threads) continue;
            sweep_check(&cpu[j->threads - 1], &e);
            shared->cases++;
            shared->runs += j->place.run;
        }
        sweep_expect_no_more(&e);
    }
}

static void report(const job *j, const char *what)
{
    const sweep_place *p = &j->place;
    shared->cases++;
    shared->bad++;
    printf("BAD %ld, %d thread%s: %s; %s by %s, run %d: %s\n", (long)chosen[j->at], j->threads,
           j->threads == 1 ? "" : "s", p->name, p->pass, p->by, p->run + 1, what);
    fflush(stdout);
}

static void run_slice(job *j, int64_t from, int64_t to)
{
    int threads = 1;
    while (from < to) {
        j->at = from;
        j->threads = threads;
        const pid_t child = fork();
        if (child == 0) {
            child_begin(j, &options.limits);
            sweep(j, from, to, threads);
            _exit(0);
        }
        const char *what = outcome(child, j);
        if (what == NULL) return;
        report(j, what);
        from = j->at + (j->threads >= MOST_THREADS);
        threads = j->threads >= MOST_THREADS ? 1 : j->threads + 1;
    }
}

/* Takes slices until there are no more. */
static void run_job(job *j)
{
    for (;;) {
        const int64_t from = atomic_fetch_add(&shared->next, SLICE);
        if (from >= nchosen) return;
        run_slice(j, from, from + SLICE < nchosen ? from + SLICE : nchosen);
    }
}

/* Waits for all jobs, and tells now and then how far they are. */
static bool run_jobs(void)
{
    bool is_ok = true;
    int left = 0;
    fflush(stdout);
    for (; left < options.jobs; left++) {
        const pid_t child = fork();
        if (child < 0) return false;
        if (child > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_job(&shared->jobs[left]);
        _exit(0);
    }
    for (double told = sweep_now(); left > 0;) {
        int status = 0;
        const pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended > 0) left--;
        if (ended > 0 && status != 0) is_ok = false;
        if (ended == 0) usleep(20000);
        if (sweep_now() - told < 60) continue;
        told = sweep_now();
        fprintf(stderr, "%ld of %ld operations, %ld cases, %ld bad\n", (long)shared->next, (long)nchosen,
                (long)shared->cases, (long)shared->bad);
    }
    return is_ok;
}

/* ---- would it be found? ref with one fault in forward, of (1, 3, 3, 3) to 5 channels ---------------------------- */

enum { GAP, BEYOND, FRONT, INPUT, READS, LIBRARY, WRONG, FORGETS, CHANGES, FAILS, CRASHES, HANGS, FAULTS };

static const char *const fault_words[FAULTS] = {
    [GAP] = "writes behind y",       [BEYOND] = "writes 12 bytes behind the end of y",
    [FRONT] = "in front of y",       [INPUT] = "writes w, which it may only read",
    [READS] = "behind the end of b", [LIBRARY] = "memory that a library took",
    [WRONG] = "y[7] of 45 is",       [FORGETS] = "y[44] of 45 is",
    [CHANGES] = "in the first run",  [FAILS] = "fails with status",
    [CRASHES] = "ends by signal",    [HANGS] = "hangs"};

static int fault, runs_with_fault;
static const en_device *sound; /* ref's table */

static void write_into_a_library(void)
{
    volatile char *memory = eni_alloc(64);
    memory[64] = 0;
}

static en_status forward_with_fault(en_plan *plan, const en_args *args)
{
    const en_status st = sound->forward(plan, args);
    float *y = args->y;
    runs_with_fault++;
    switch (fault) {
    case GAP: y[45] = 0; break;
    case BEYOND: y[48] = 0; break;
    case FRONT: y[-1] = 0; break;
    case INPUT: *(volatile float *)(uintptr_t)args->w = 0; break;
    case READS: y[0] += ((const volatile float *)args->b)[5]; break;
    case LIBRARY: write_into_a_library(); break;
    case WRONG: y[7] += 1e-4f; break;
    case FORGETS: y[44] = NAN; break;
    case CHANGES: y[3] += runs_with_fault == 3 ? 1e-6f : 0; break;
    case FAILS: return EN_EBUG;
    case CRASHES: raise(SIGILL); break;
    case HANGS:
        for (;;)
            pause();
    }
    return st;
}

static bool is_found(int which)
{
    job *j = &shared->jobs[0];
    const pid_t child = fork();
    if (child == 0) {
        const sweep_limits limits = {.repeats = 4, .hangs_after = which == HANGS ? 1 : HANGS_AFTER};
        const en_op op = conv_op((en_extent){1, 3, 3, 3}, 5, 1, 1, 0, EN_OP_BIAS);
        eni_device ref;
        sweep_expected e;
        child_begin(j, &limits);
        if (eni_device_open("ref", "", 1, &ref) != EN_OK) _exit(0);
        sweep_expect(&e, &ref, &op);
        en_device table = *ref.ops;
        sound = ref.ops;
        fault = which;
        table.forward = forward_with_fault;
        sweep_check(&(eni_device){&table, ref.ctx}, &e);
        _exit(0);
    }
    const char *what = outcome(child, j);
    const bool is_reported = what != NULL && strstr(what, fault_words[which]) != NULL;
    if (!is_reported)
        printf("a planted fault is not found: \"%s\" was to be told, and was \"%s\"\n", fault_words[which],
               what != NULL ? what : "nothing");
    return is_reported;
}

static bool faults_are_found(void)
{
    bool is_ok = true;
    for (int i = 0; i < FAULTS; i++)
        if (i != LIBRARY || !IS_SANITIZED) is_ok = is_found(i) && is_ok;
    return is_ok;
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static pid_t start_load(void)
{
    const pid_t load = fork();
    if (load != 0) return load;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* and it ends what it started */
    execlp("stress-ng", "stress-ng", "--quiet", "--cpu", "2", (char *)NULL);
    fprintf(stderr, "without load: stress-ng is not installed\n");
    _exit(0);
}

static void end_load(pid_t load)
{
    if (load <= 0) return;
    kill(load, SIGTERM);
    waitpid(load, NULL, 0);
}

static void choose(void)
{
    const int64_t all = sweep_cases(), fixed = sweep_fixed();
    int64_t n = 0;
    en_op op;
    chosen = malloc((size_t)all * sizeof *chosen);
    for (int64_t i = 0; i < all && chosen != NULL; i++) {
        const bool is_wanted =
            options.one >= 0 ? i == options.one : options.is_all || i < fixed || i % EVERY == 0;
        const bool is_alike = options.limits.is_bf16 && i < all && sweep_case(i, &op) &&
                              op.kind != EN_OP_CONV2D && op.kind != EN_OP_LINEAR; /* as in float32 */
        if (is_wanted && !is_alike && sweep_case(i, &op)) chosen[n++] = i;
    }
    for (int64_t i = 0; i < n; i++) /* slice by slice to the parts */
        if (i / SLICE % options.parts == options.part - 1) chosen[nchosen++] = chosen[i];
}

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        double ms;
        long one;
        if (strcmp(a, "--all") == 0)
            options.is_all = true;
        else if (strcmp(a, "--bf16") == 0)
            options.limits.is_bf16 = true;
        else if (strcmp(a, "--load") == 0)
            options.has_load = true;
        else if (sscanf(a, "--case=%ld", &one) == 1)
            options.one = one;
        else if (sscanf(a, "--ms=%lf", &ms) == 1)
            options.limits.seconds = ms / 1000;
        else if (sscanf(a, "--part=%d/%d", &options.part, &options.parts) != 2 &&
                 sscanf(a, "--jobs=%d", &options.jobs) != 1 &&
                 sscanf(a, "--threads=%d", &options.threads) != 1 &&
                 sscanf(a, "--repeats=%d", &options.limits.repeats) != 1)
            return false;
    }
    return options.part >= 1 && options.part <= options.parts && options.jobs >= 1 &&
           options.jobs <= MOST_JOBS && options.limits.repeats >= 1;
}

/* The largest gap to ref of a kind's tensor. */
static void print_gaps(void)
{
    static const struct {
        int kind;
        const char *name;
    } sums[] = {{EN_OP_CONV2D, "conv"}, {EN_OP_LINEAR, "linear"}, {EN_OP_BATCHNORM, "batchnorm"}};
    printf("worst gaps:");
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < SWEEP_TENSORS; k++) {
            double worst = 0;
            for (int j = 0; j < options.jobs; j++)
                worst = fmax(worst, shared->jobs[j].place.worst[sums[i].kind][k]);
            if (worst > 0) printf(" %s %s %.1e,", sums[i].name, sweep_tensors[k], worst);
        }
    printf(" all others none\n");
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fprintf(stderr, "%s: the head of tests/ops/test_sweep.c says what it takes\n", argv[0]);
        return 2;
    }
    if (access(EN_BUILD_DIR "/plugins/device_cpu.so", F_OK) != 0) {
        printf("SKIP: this build has no cpu device (libdnnl-dev)\n");
        return 77;
    }
    if (options.limits.is_bf16 && !cpu_has_bf16()) {
        printf("SKIP: this CPU has no avx512_bf16\n");
        return 77;
    }
    const double start = sweep_now();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !faults_are_found()) return 1;
    choose();
    const pid_t load = options.has_load ? start_load() : 0;
    const bool is_ok = run_jobs();
    end_load(load);
    print_gaps();
    printf("PROMISE %ld operations of the cpu device%s with 1 to %d threads: %ld cases, %ld runs, %ld bad, "
           "%.0f s, %s\n",
           (long)nchosen, options.limits.is_bf16 ? " in bf16" : "", MOST_THREADS, (long)shared->cases,
           (long)shared->runs, (long)shared->bad, sweep_now() - start, shared->device);
    return is_ok && shared->bad == 0 && shared->cases > 0 ? 0 : 1;
}
