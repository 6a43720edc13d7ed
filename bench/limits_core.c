/* limits_core.c - limits of cores and memory: load and store, the in-place sum of shared vectors, sgemm; and
 * the checksum of every payload between hosts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/limits.h"
#include "core/clock.h"
#include "core/crc32c.h"
#include "ops/multiversion.h"

#ifdef EN_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#endif

/* The rounds of a process, each starting at a barrier; 1 if `work` on the memory fails. */
static int time_rounds(const limit_trial *t, int rank, int (*work)(const limit_trial *, void *const *),
                       void *const *memory)
{
    for (int i = -t->warmup; i < t->rounds; i++) {
        limit_barrier(t);
        const int64_t begin_ns = eni_now_ns();
        if (work(t, memory)) return 1;
        if (i >= 0) t->board->times[i][rank] = eni_now_ns() - begin_ns;
    }
    return 0;
}

/* ---- copy: as STREAM's, with the C library's memcpy ---- */

static int copy(const limit_trial *t, void *const *memory)
{
    char *from = memory[0];
    memcpy(memory[1], from, t->bytes);
    from[0]++; /* prevents the copy from being optimised away */
    return 0;
}

static int copy_main(const limit_trial *t, int rank)
{
    void *const memory[] = {limit_memory(t->bytes), limit_memory(t->bytes)};
    return memory[0] == NULL || memory[1] == NULL || time_rounds(t, rank, copy, memory);
}

static double copy_work(const limit_trial *t)
{
    return 2.0 * (double)t->bytes * t->processes;
}

const limit_kind limit_copy = {.name = "copy",
                               .bytes = "1724320,44726568,64M",
                               .processes = "1,2",
                               .batch = 1,
                               .unit = "gb_s",
                               .what = "loaded and stored, all processes together",
                               .main = copy_main,
                               .is_together = 1,
                               .work = copy_work};

/* ---- checksum: the product's CRC-32C, beside a core's load bandwidth ---- */

static int checksum(const limit_trial *t, void *const *memory)
{
    unsigned char *bytes = memory[0];
    bytes[0] = (unsigned char)eni_crc32c(0, bytes, t->bytes); /* prevents it from being optimised away */
    return 0;
}

static int checksum_main(const limit_trial *t, int rank)
{
    void *const memory[] = {limit_memory(t->bytes)};
    return memory[0] == NULL || time_rounds(t, rank, checksum, memory);
}

static double checksum_work(const limit_trial *t)
{
    return (double)t->bytes * t->processes;
}

const limit_kind limit_checksum = {.name = "checksum",
                                   .bytes = "4K,1M,64M",
                                   .processes = "1,2",
                                   .batch = 1,
                                   .unit = "gb_s",
                                   .what = "loaded and summed up by CRC-32C, all processes together",
                                   .main = checksum_main,
                                   .is_together = 1,
                                   .work = checksum_work};

/* ---- sum: every rank adds its share of all vectors and stores it into all: no all-reduce moves less ---- */

ENI_MULTIVERSION static void sum_two(float *restrict a, float *restrict b, uint64_t lo, uint64_t hi)
{
    for (uint64_t i = lo; i < hi; i++) {
        const float y = a[i] + b[i];
        a[i] = y;
        b[i] = y;
    }
}

ENI_MULTIVERSION static void sum_four(float *restrict a, float *restrict b, float *restrict c,
                                      float *restrict d, uint64_t lo, uint64_t hi)
{
    for (uint64_t i = lo; i < hi; i++) {
        const float y = (a[i] + b[i]) + (c[i] + d[i]);
        a[i] = y;
        b[i] = y;
        c[i] = y;
        d[i] = y;
    }
}

ENI_MULTIVERSION static void add(float *restrict sum, const float *restrict x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

/* Any number of vectors: through a block that stays in the first-level cache. */
static void sum_many(float *vectors, uint64_t count, int n, uint64_t lo, uint64_t hi)
{
    enum { BLOCK = 2048 };
    float sum[BLOCK];
    for (uint64_t at = lo; at < hi; at += BLOCK) {
        const uint64_t k = hi - at < BLOCK ? hi - at : BLOCK;
        memcpy(sum, vectors + at, k * sizeof *sum);
        for (int r = 1; r < n; r++)
            add(sum, vectors + (uint64_t)r * count + at, k);
        for (int r = 0; r < n; r++)
            memcpy(vectors + (uint64_t)r * count + at, sum, k * sizeof *sum);
    }
}

static int sum_main(const limit_trial *t, int rank)
{
    const uint64_t count = t->bytes / sizeof(float), n = (uint64_t)t->processes;
    const uint64_t lo = count * (uint64_t)rank / n, hi = count * ((uint64_t)rank + 1) / n;
    float *x = t->vectors, *own = x + (uint64_t)rank * count;
    for (int i = -t->warmup; i < t->rounds; i++) {
        for (uint64_t at = 0; at < count; at += 1024)
            own[at] = 1;
        limit_barrier(t);
        const int64_t begin_ns = eni_now_ns();
        limit_barrier(t);
        if (n == 2)
            sum_two(x, x + count, lo, hi);
        else if (n == 4)
            sum_four(x, x + count, x + 2 * count, x + 3 * count, lo, hi);
        else
            sum_many(x, count, t->processes, lo, hi);
        limit_barrier(t);
        if (i >= 0) t->board->times[i][rank] = eni_now_ns() - begin_ns;
    }
    return 0;
}

static double vector_work(const limit_trial *t)
{
    return (double)t->bytes;
}

const limit_kind limit_sum = {.name = "sum",
                              .bytes = "4K,1M,64M",
                              .processes = "2,4",
                              .batch = 1,
                              .unit = "gb_s",
                              .what = "of one vector; summed into all, in place, between two barriers",
                              .main = sum_main,
                              .is_together = 1,
                              .work = vector_work};

/* ---- sgemm ---- */

#ifdef EN_HAVE_ONEDNN

static int64_t side_of(const limit_trial *t)
{
    return (int64_t)sqrt((double)t->bytes / sizeof(float));
}

static int multiply(const limit_trial *t, void *const *memory)
{
    const int64_t n = side_of(t);
    if (dnnl_sgemm('N', 'N', n, n, n, 1.0f, memory[0], n, memory[1], n, 0.0f, memory[2], n) == dnnl_success)
        return 0;
    fputs("bench_limits: dnnl_sgemm failed\n", stderr);
    return 1;
}

static int sgemm_main(const limit_trial *t, int rank)
{
    const int64_t n = side_of(t);
    float *a = limit_memory(t->bytes), *b = limit_memory(t->bytes), *c = limit_memory(t->bytes);
    if (!a || !b || !c) return 1;
    for (int64_t i = 0; i < n * n; i++)
        a[i] = b[i] = (float)(i % 7) - 3.0f;
    omp_set_num_threads(1);
    return time_rounds(t, rank, multiply, (void *const[]){a, b, c});
}

static double sgemm_work(const limit_trial *t)
{
    const double n = (double)side_of(t);
    return 2.0 * n * n * n * t->processes;
}

static const limit_kind sgemm = {.name = "sgemm",
                                 .bytes = "4M",
                                 .processes = "1,2",
                                 .batch = 1,
                                 .unit = "gflop_s",
                                 .what = "one thread a process, all processes together",
                                 .main = sgemm_main,
                                 .is_together = 1,
                                 .work = sgemm_work};

const limit_kind *limit_sgemm(void)
{
    return &sgemm;
}

#else

const limit_kind *limit_sgemm(void)
{
    return NULL;
}

#endif
