/* host_gpu.c - mean_step, and step in a world of one, where the vectors lie on a GPU (gpu_steps.h).
 *
 * ALONE, GROUP: submit puts the step into the GPU's streams, wait orders the next forward behind it: the host
 * goes on at once. SHARED: the others may read a gradient only when the GPU has computed it, and only the
 * host can announce that. So a request is offered, in the order of submit, once its event is reached: polled
 * in every submit, awaited in wait.
 *
 *     submit b0   event b0
 *     submit b1   event b1; b0 is there: offer it
 *     wait b0     b1 is there: offer it; all have offered b0: take (this rank's slice is stepped), all have
 *     wait b1     all have offered b1: take, all have */
#include "runtime/host/host_state.h"

#include <string.h>

#include "core/log.h"
#include "core/try.h"

static bool is_shared(const eni_host *host)
{
    return host->config.gpu != NULL && eni_gpu_steps_way(host->config.gpu) == ENI_GPU_SHARED;
}

en_status eni_host_gpu_check(const eni_host *host)
{
    const eni_host_config *c = &host->config;
    const char *obstacle = NULL;
    if (c->gpu == NULL) return EN_OK;
    if (c->client != NULL)
        obstacle = "its weights live on servers";
    else if (c->world.nranks > 1 && !(c->strategy->flags & EN_SHARED_PARAMS))
        obstacle = "it may change weights by more than mean_step";
    else if (is_shared(host) && (c->coll == NULL || !eni_coll_can_share(c->coll)))
        obstacle = "ranks that share a GPU need a group in shared memory";
    if (obstacle == NULL) return EN_OK;
    return eni_fail(EN_EBUG, "host", "%s cannot keep its vectors on a GPU: %s", c->strategy->name, obstacle);
}

en_status eni_host_gpu_begin(eni_host *host, uint64_t nsamples)
{
    const eni_hyper hyper = eni_host_rates(host, 0); /* all buckets take the same number of steps there */
    const uint64_t alone = host->config.world.nranks == 1 ? nsamples : 0; /* a group of one */
    const uint64_t total = host->now.has_samples ? host->now.world_samples : alone;
    if (!host->now.has_micros) host->now.micros[0] = nsamples;
    const en_status st = eni_gpu_steps_begin(host->config.gpu, &hyper, host->now.micros, total);
    memset(host->now.micros, 0, sizeof host->now.micros);
    host->now.has_micros = false;
    return st;
}

/* ---- shared: offers in the order of submit ---- */

static void step_slice(void *user, uint64_t lo, uint64_t hi, const eni_sources *from)
{
    const eni_request *r = user;
    eni_host *host = r->host;
    const int64_t begin = eni_host_now(host);
    eni_gpu_steps_take(host->config.gpu, r->bucket->id, lo, hi, from);
    eni_host_updated(host, r->bucket->id, begin);
}

static en_status offer(eni_host *host, eni_request *r)
{
    const en_bucket *bucket = r->bucket;
    r->op =
        (eni_operation){.kind = ENI_OPERATION_COLL,
                        .group = EN_WORLD,
                        .coll = eni_host_bucket_op(host, ENI_COLL_MEAN_STEP, EN_GRAD, bucket, bucket->grad)};
    r->op.coll.on_reduced = step_slice;
    r->op.coll.on_reduced_user = r;
    r->is_offered = true;
    const int64_t begin = eni_host_now(host), updated = host->counters.update_ns;
    const en_status st = eni_operation_start(host, &r->op);
    host->counters.send_ns += eni_host_now(host) - begin - (host->counters.update_ns - updated);
    return st;
}

/* Offers up to and including request `last`, waiting for gradients; then those whose gradients are there. */
static void offer_until(eni_host *host, en_req last)
{
    for (; host->next_offer < host->requests.next; host->next_offer++) {
        eni_request *r = eni_host_request(host, host->next_offer);
        if (r == NULL || r->kind != REQ_GPU || r->is_offered) continue;
        if (r->failed == EN_OK) {
            eni_host_leave_hook(host);
            const en_status st =
                eni_gpu_steps_ready(host->config.gpu, r->bucket->id, host->next_offer <= last);
            eni_host_return_to_hook(host);
            if (st == EN_ETIMEOUT) return;
            r->failed = st == EN_OK ? offer(host, r) : st;
        }
    }
}

void eni_host_gpu_offer(eni_host *host)
{
    if (is_shared(host)) offer_until(host, 0);
}

static en_status wait_shared(eni_host *host, eni_request *r)
{
    const int64_t begin = eni_host_now(host), updated = host->counters.update_ns;
    offer_until(host, r->id);
    EN_TRY(r->failed);
    const en_status st = eni_host_await(host, r, "all-reduce", begin, updated);
    EN_TRY(eni_gpu_steps_status(host->config.gpu)); /* the cause, where a kernel has failed */
    return st;
}

/* ---- called by the table ---- */

/* The first one connects the group, which takes all ranks. */
static en_status submit(eni_host *host, const en_bucket *bucket)
{
    eni_host_leave_hook(host);
    const en_status st = eni_gpu_steps_submit(host->config.gpu, bucket->id);
    eni_host_return_to_hook(host);
    return st;
}

void eni_host_gpu_mean_step(eni_host *host, eni_request *r)
{
    r->host = host;
    r->what = "all-reduce";
    r->hyper = eni_host_begin_step(host, r->bucket->id);
    const int64_t begin = eni_host_now(host);
    r->failed = submit(host, r->bucket);
    host->counters.send_ns += eni_host_now(host) - begin;
}

static void count_group(eni_host *host, const en_bucket *bucket)
{
    if (eni_gpu_steps_way(host->config.gpu) != ENI_GPU_GROUP) return;
    host->counters.group_bytes += eni_coll_bytes(ENI_COLL_RING, EN_ALLREDUCE, host->config.world.nranks) *
                                  (double)(bucket->count * sizeof(float));
}

en_status eni_host_gpu_wait(eni_host *host, eni_request *r)
{
    EN_TRY(is_shared(host) ? wait_shared(host, r) : r->failed);
    if (!is_shared(host)) {
        eni_host_leave_hook(host);
        const en_status st = eni_gpu_steps_wait(host->config.gpu, r->bucket->id);
        eni_host_return_to_hook(host);
        EN_TRY(st);
    }
    eni_host_stepped(host, r->bucket->id, &r->hyper);
    count_group(host, r->bucket);
    return EN_OK;
}

en_status eni_host_gpu_step(eni_host *host, const en_bucket *bucket)
{
    const eni_hyper hyper = eni_host_begin_step(host, bucket->id);
    if (host->config.coll != NULL || bucket->lo != 0 || bucket->hi != bucket->count) {
        eni_host_misuse(host,
                        "called step on a part of bucket %u, or with other ranks: on a GPU it steps whole "
                        "buckets in a world of one; use --backend=host",
                        bucket->id);
        return EN_EBUG;
    }
    EN_TRY(submit(host, bucket));
    host->of[bucket->id].is_stepping = true;
    eni_host_stepped(host, bucket->id, &hyper);
    return EN_OK;
}

en_status eni_host_gpu_settle(eni_host *host, uint32_t bucket)
{
    host->of[bucket].is_stepping = false;
    return eni_gpu_steps_wait(host->config.gpu, bucket);
}
