/* host_call.c - when a call to the store leaves: at once, or when the collectives on its vector are done.
 *
 * Contents change in the order of call. A leader that reduces the gradients of its host and pushes the mean
 * says so in submit, one after the other, and backward goes on. The collective is done some time later, so
 * the push is late: it is sent at the next submit, or in the next wait, whichever comes first after that.
 * Late calls leave in their order. Whoever waits for an answer sends all of them first, and waits for their
 * collectives: the other ranks have made, or will make before anything else, the same calls. */
#include "runtime/host/host_state.h"
#include "core/clock.h"
#include "core/try.h"

void eni_host_send(eni_host *host, eni_request *r)
{
    const en_bucket *bucket = r->bucket;
    const uint64_t nsamples = r->is_grad ? host->grad_samples[bucket->id] : bucket->nsamples;
    if (bucket->id == 0) host->counters.base_version = eni_client_version(host->config.client, 0);
    const int64_t begin = eni_now_ns();
    r->is_late = 0;
    r->failed = eni_client_push(host->config.client, bucket->id, r->call_kind, r->call_what, r->out, r->in,
                                nsamples, r->covered, host->step);
    const int64_t end = eni_now_ns();
    host->counters.send_ns += end - begin;
    eni_host_has_left(host, end);
    eni_trace_span(host->config.trace, ENI_TRACE_COMPUTE, "push", begin, end, (int64_t)host->step,
                   (int)bucket->id, bucket->count * sizeof(float));
}

/* The collective under way on the vector that the call sends, or NULL. */
static const eni_request *holds_up(const eni_host *host, const eni_request *r)
{
    for (en_req id = r->id; id-- > host->first_request;) {
        const eni_request *c = &host->requests[id % ENI_HOST_REQUESTS];
        if (c->id != id || c->kind != REQ_COLL || c->bucket != r->bucket || (int)c->slot != r->out) continue;
        return c->failed == EN_OK && eni_coll_test(c->group, c->coll) ? NULL : c;
    }
    return NULL;
}

int eni_host_delay(eni_host *host, eni_request *r)
{
    const eni_request *before = holds_up(host, r);
    if (before == NULL) return 0;
    r->failed = before->failed;
    if (r->failed != EN_OK) return 1; /* never sent */
    r->is_late = 1;
    r->group = before->group;
    r->coll = before->coll;
    host->late[host->late_end++ % ENI_HOST_REQUESTS] = r->id;
    return 1;
}

void eni_host_send_late(eni_host *host, int may_block)
{
    for (; host->late_begin < host->late_end; host->late_begin++) {
        const en_req id = host->late[host->late_begin % ENI_HOST_REQUESTS];
        eni_request *r = &host->requests[id % ENI_HOST_REQUESTS];
        if (r->id != id || r->kind != REQ_CALL || !r->is_late) continue;
        if (!may_block && !eni_coll_test(r->group, r->coll)) return;
        eni_coll_counters before, after;
        eni_coll_count(r->group, &before);
        const en_status st = eni_coll_wait(r->group, r->coll);
        eni_coll_count(r->group, &after);
        host->counters.wait_ns += (int64_t)(after.wait_ns - before.wait_ns);
        if (st == EN_OK) {
            eni_host_send(host, r);
        } else {
            r->failed = st;
            r->is_late = 0;
        }
    }
}
