/* measure.c - `entrain check -v` and `advise` in place of training: the cost of exchanging, copying and
 * computing on the devices and the transport of a run. Every rank reports to the launcher
 * (cli/launcher/watch.c). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/collective/probe.h"
#include "runtime/host/costs.h"
#include "worker/worker.h"

static const int64_t allreduce_ns = 200 * ENI_MILLI, copy_ns = 60 * ENI_MILLI, compute_ns = ENI_SECOND;
static const uint64_t copy_bytes = 32 << 20;

static void report(const eni_worker *w, const char *what, double first, double second)
{
    char line[96];
    const int n = snprintf(line, sizeof line, "cost %s %.9g %.9g\n", what, first, second);
    if (w->config->result_fd < 0) return;
    (void)!write((int)w->config->result_fd, line, (size_t)n);
}

static void report_curve(const eni_worker *w, const char *what, const eni_cost_curve *curve)
{
    for (int i = 0; i < curve->n; i++)
        report(w, what, curve->point[i].bytes, curve->point[i].seconds);
}

/* Times calls of the store; rank 0's figures stand for all. */
static en_status probe_calls(eni_worker *w)
{
    eni_costs costs;
    EN_TRY(eni_exchange_measure(&w->rank, &costs));
    if (w->rank.world.rank == 0) report_curve(w, "call", &costs.call);
    return EN_OK;
}

/* All ranks at once. */
static en_status time_copies(eni_worker *w, float *to, const float *from)
{
    EN_TRY(eni_member_gather(w->rank.member, "copy", NULL, 0, NULL, INT64_MAX));
    const double move = eni_probe_copy(to, from, copy_bytes, copy_ns);
    EN_TRY(eni_member_gather(w->rank.member, "sum", NULL, 0, NULL, INT64_MAX));
    report(w, "copy", move, eni_probe_sum(to, from, copy_bytes, copy_ns));
    return EN_OK;
}

static en_status probe_copies(eni_worker *w)
{
    float *from = eni_alloc(copy_bytes), *to = eni_alloc(copy_bytes);
    if (from != NULL) memset(from, 0, copy_bytes); /* touches its pages */
    const en_status st = from == NULL || to == NULL ? EN_ENOMEM : time_copies(w, to, from);
    eni_free(from);
    eni_free(to);
    return st;
}

/* The sizes of --probe=MIN..MAX, each four times the last; returns how many, 0 if --probe gives none. */
static int sizes_of(const eni_worker *w, uint64_t bytes[ENI_COST_POINTS])
{
    const char *probe = w->config->probe;
    unsigned long long size, most;
    int n = 0;
    if (probe == NULL || sscanf(probe, "%llu..%llu", &size, &most) != 2 || size < 4 || size % 4 != 0)
        return 0;
    for (; size <= most && size <= 1 << 30 && n < ENI_COST_POINTS; size *= 4)
        bytes[n++] = size;
    return n;
}

uint64_t eni_measure_room(const eni_worker *w)
{
    uint64_t bytes[ENI_COST_POINTS];
    const int n = sizes_of(w, bytes);
    return n == 0 ? 0 : bytes[n - 1] / sizeof(float);
}

/* Also reports the bytes that this rank sends in one of the largest. */
static en_status probe_allreduces(eni_worker *w)
{
    uint64_t bytes[ENI_COST_POINTS];
    eni_coll *coll = w->rank.exchange.all.coll;
    eni_coll_op mean = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = ENI_SLOT_GRAD, .nsamples = 1};
    eni_cost_curve curve;
    eni_coll_counters before, after;
    const int n = sizes_of(w, bytes);
    if (n == 0 || coll == NULL)
        return eni_fail(EN_EINVAL, "check",
                        "--probe=%s: expected call, copy, compute or, with at least two ranks, a range of "
                        "bytes from 4 to 1 GiB, such as 4096..65536",
                        w->config->probe);
    EN_TRY(eni_probe_allreduce(coll, ENI_SLOT_GRAD, bytes, n, allreduce_ns / n, &curve));
    report_curve(w, "allreduce", &curve);
    mean.count = bytes[n - 1] / sizeof(float);
    eni_coll_count(coll, &before);
    EN_TRY(eni_coll_run(coll, &mean));
    eni_coll_count(coll, &after);
    report(w, "sent", (double)bytes[n - 1], (double)(after.payload_sent - before.payload_sent));
    return EN_OK;
}

/* One step of the optimizer over all weights, but not on the run's own, which may be psd's. */
static en_status time_update(const eni_worker *w, double *seconds_out)
{
    const eni_job *job = &w->rank.job;
    float *param = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_EVAL, 0);
    const float *grad = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_GRAD, 0);
    float *memory = eni_alloc_array(job->schema.count * ENI_MAX_SLOTS, sizeof *memory), *slots[ENI_MAX_SLOTS];
    double seconds[9];
    eni_hyper hyper = job->hyper;
    if (memory == NULL) return EN_ENOMEM;
    hyper.lr = 1e-9f;
    hyper.step = 1;
    for (int i = 0; i < ENI_MAX_SLOTS; i++)
        slots[i] = memory + (uint64_t)i * job->schema.count;
    for (int i = -1; i < 9; i++) {
        const int64_t begin = eni_now_ns();
        job->optimizer->step(param, slots, grad, job->schema.count, &hyper);
        if (i >= 0) seconds[i] = (double)(eni_now_ns() - begin) * 1e-9;
    }
    *seconds_out = eni_probe_median(seconds, 9);
    eni_free(memory);
    return EN_OK;
}

static en_status probe_computing(eni_worker *w)
{
    const eni_buckets *buckets = w->rank.job.buckets;
    double seconds, update, ready[ENI_COST_BUCKETS];
    EN_TRY(eni_time_batches(w, compute_ns, &seconds, ready));
    EN_TRY(time_update(w, &update));
    report(w, "compute", seconds, update);
    for (uint32_t b = 0; w->rank.world.rank == 0 && b < buckets->n && b < ENI_COST_BUCKETS; b++)
        report(w, "bucket", (double)(buckets->bucket[b].hi - buckets->bucket[b].lo) * sizeof(float),
               ready[b]);
    return EN_OK;
}

en_status eni_measure(eni_worker *w)
{
    const char *what = w->config->probe;
    if (strcmp(what, "call") == 0) return probe_calls(w);
    if (strcmp(what, "copy") == 0) return probe_copies(w);
    return strcmp(what, "compute") == 0 ? probe_computing(w) : probe_allreduces(w);
}
