/* sweep_check.c - see sweep_check.h. */
#include "tests/ops/sweep_check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/ops/guarded.h"

enum { SEED = 7 };

static sweep_place *here;
static sweep_limits limits;

void sweep_begin(sweep_place *place, const sweep_limits *of_case)
{
    here = place;
    limits = *of_case;
    here->what[0] = '\0';
    guarded_catch(here->what, sizeof here->what, SWEEP_FOUND);
    guarded_libraries(true);
    alarm(limits.hangs_after);
}

double sweep_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void sweep_found(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(here->what, sizeof here->what, format, args);
    va_end(args);
    _exit(SWEEP_FOUND);
}

enum { X, X2, W, B, TARGET, DY, STATS, Y, DX, DW, DB, SAVED, WORKSPACE };

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

const char *const sweep_tensors[SWEEP_TENSORS] = {"x", "x2", "w",  "b",  "target", "dy",       "stats",
                                                  "y", "dx", "dw", "db", "saved",  "workspace"};

static void *tensor_of(const trial *t, int tensor)
{
    void *const all[SWEEP_TENSORS] = {t->x, t->x2, t->w,  t->b,  t->target, t->dy,       t->stats,
                                      t->y, t->dx, t->dw, t->db, t->saved,  t->workspace};
    return all[tensor];
}

/* Elements; bytes of saved. */
static size_t count_of(const trial *t, int tensor)
{
    const int64_t nb = t->op.flags & EN_OP_BIAS ? t->nb : 0;
    const int64_t all[SWEEP_TENSORS] = {[DY] = t->ny,
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

static void *copied(const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    if (to == NULL) sweep_found("no memory");
    return memcpy(to, from, bytes);
}

void sweep_expect(sweep_expected *e, const eni_device *ref, const en_op *op)
{
    *e = (sweep_expected){0};
    trial_init(&e->ref, ref, op, SEED);
    if (limits.is_bf16) trial_round(&e->ref);
    e->dy = copied(e->ref.dy, bytes_of(&e->ref, DY));
    e->stats = copied(e->ref.stats, bytes_of(&e->ref, STATS));
    trial_run(&e->ref);
    for (int k = DY; k < SAVED; k++)
        e->first[k] = copied(tensor_of(&e->ref, k), bytes_of(&e->ref, k));
}

void sweep_expect_no_more(sweep_expected *e)
{
    for (int k = 0; k < SWEEP_TENSORS; k++)
        free(e->first[k]);
    free(e->dy);
    free(e->stats);
    trial_fini(&e->ref);
}

/* Relative to the largest value of a tensor: oneDNN rounds sums in another order, and batch normalisation
 * keeps its sums in float for a while. Everything else is ref's arithmetic. */
static double tolerance(uint32_t kind)
{
    return kind == EN_OP_CONV2D || kind == EN_OP_BATCHNORM ? 5e-6 : kind == EN_OP_LINEAR ? 2e-6 : 0.0;
}

/* Relative to the terms of a batch normalisation's input gradient: gradient times weight over deviation. They
 * cancel: over two values nearly to nothing, and the less these two differ, the larger the terms are. */
static double largest_term(const trial *t)
{
    const int64_t c = t->op.x.c, pixels = t->nx / c;
    double largest = 0;
    for (int64_t i = 0; i < c; i++) {
        double mean = 0, square = 0;
        for (int64_t p = 0; p < pixels; p++)
            mean += (double)t->x[p * c + i] / (double)pixels;
        for (int64_t p = 0; p < pixels; p++)
            square += pow((double)t->x[p * c + i] - mean, 2) / (double)pixels;
        largest = fmax(largest, fabs((double)t->w[i]) / sqrt(square + (double)t->op.eps));
    }
    return largest;
}

/* The typical size of a sum of so many products of numbers in (-1, 1). A tensor that is one sum may happen to
 * be near 0, and then does not measure its error. */
static double usual(const trial *t, int tensor)
{
    const double taps = (double)(t->nw / (t->nb > 0 ? t->nb : 1));
    const double pixels = (double)(t->ny / (t->y_extent.c > 0 ? t->y_extent.c : 1));
    if (t->op.kind == EN_OP_BATCHNORM && tensor == DX) return largest_term(t);
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
            sweep_found("%s[%zu] of %zu is %.9g, ref's is %.9g; the largest is %.3g", sweep_tensors[tensor],
                        i, count, (double)is[i], (double)should[i], largest);
        if (gap > widest) widest = gap;
    }
    if (widest > here->worst[kind][tensor]) here->worst[kind][tensor] = widest;
}

/* Only the running statistics that count: the padding is NaN. */
static void stats_against_ref(const trial *got, const trial *ref)
{
    against_ref(got, got->stats, ref->stats, (size_t)got->nb, STATS);
    against_ref(got, trial_var(got), trial_var(ref), (size_t)got->nb, STATS);
    if (*trial_batches(got) != *trial_batches(ref)) sweep_found("stats counts other batches than ref");
}

static const char *implementation(const trial *t, int pass)
{
    return pass == 0 ? t->info.forward : pass == 1 ? t->info.backward_weights : t->info.backward_data;
}

/* Loops of our own, whose bits do not depend on the number of threads. */
static bool is_ours(const trial *t, int pass)
{
    const char *by = implementation(t, pass);
    return strcmp(by, "loops") == 0 || strncmp(by, "winograd:", 9) == 0 || strncmp(by, "columns:", 8) == 0;
}

static void same_bits(const trial *got, const sweep_expected *e, int tensor, const char *as)
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
    sweep_found("%s[%zu] is %.9g, and was %.9g %s", sweep_tensors[tensor], at / 4, (double)now_is,
                (double)then, as);
}

/* The results of a pass. */
static void look(const trial *got, sweep_expected *e, int pass)
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
    for (int k = 0; k < SWEEP_TENSORS; k++)
        if (guarded_damage(tensor_of(got, k)) != NULL) sweep_found("%s", guarded_damage(tensor_of(got, k)));
}

static void run_pass(const trial *got, int pass)
{
    const en_device *ops = got->device->ops;
    const en_args args = trial_args(got);
    snprintf(here->pass, sizeof here->pass, "%s", passes[pass].name);
    snprintf(here->by, sizeof here->by, "%s", implementation(got, pass));
    for (int k = 0; k < SWEEP_TENSORS; k++)
        guarded_protect(tensor_of(got, k), is_written(got, pass, k));
    guarded_fill(got->workspace);
    const en_status st = pass == 0   ? ops->forward(got->plan, &args)
                         : pass == 1 ? ops->backward_weights(got->plan, &args)
                                     : ops->backward_data(got->plan, &args);
    if (st != EN_OK) sweep_found("it fails with status %d", (int)st);
}

static void run_once(const trial *got, sweep_expected *e)
{
    for (int k = DY; k < WORKSPACE; k++) {
        guarded_protect(tensor_of(got, k), true);
        guarded_fill(tensor_of(got, k));
    }
    memcpy(got->dy, e->dy, bytes_of(got, DY));
    memcpy(got->stats, e->stats, bytes_of(got, STATS));
    for (int pass = 0; pass < 3; pass++) {
        if (!has_pass(got, pass)) continue;
        run_pass(got, pass);
        look(got, e, pass);
        if (pass == 0) memcpy(got->y, e->ref.y, bytes_of(got, Y));
    }
}

/* With so many threads as the device was opened with. */
void sweep_check(const eni_device *device, sweep_expected *e)
{
    static const trial_memory guarded = {guarded_new, guarded_free};
    trial got = {.device = device, .op = e->ref.op};
    alarm(limits.hangs_after);
    here->run = 0;
    snprintf(here->name, sizeof here->name, "%s", trial_name(&got));
    snprintf(here->pass, sizeof here->pass, "planning");
    here->by[0] = '\0';
    trial_init_in(&got, &guarded, device, &e->ref.op, SEED);
    if (limits.is_bf16) trial_round(&got);
    free(e->first[SAVED]);
    e->first[SAVED] = copied(got.saved, got.info.saved_bytes);
    const double start = sweep_now();
    do {
        guarded_libraries(here->run < SWEEP_LEAST_RUNS); /* it costs some calls of the system each time */
        run_once(&got, e);
        here->run++;
    } while (here->run < limits.repeats &&
             (here->run < SWEEP_LEAST_RUNS || sweep_now() - start < limits.seconds));
    guarded_libraries(true);
    trial_fini(&got);
    if (guarded_damage(NULL) != NULL) sweep_found("%s", guarded_damage(NULL));
}
