/* host_state.c - shared by all files of a host: reports of misuse, which buckets are the host's own, the slots
 * of named vectors, the rates of a step, the display of a wait to others, and the carrying of operations. It
 * calls no other file of the host. */
#include "runtime/host/host_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/crc32c.h"
#include "core/log.h"
#include "core/try.h"

/* ---- misuse ---- */

/* Outside of a hook, as in a test: "a call of bad (rank 1)". */
void eni_host_site(const eni_host *host, char *text, size_t bytes)
{
    const eni_hook_site call = {"a call", host->config.strategy->name, {{"rank", host->config.world.rank}}};
    eni_hook_site_text(host->hook.place.hook != NULL ? &host->hook.place : &call, text, bytes);
}

void eni_host_misuse(eni_host *host, const char *fmt, ...)
{
    char place[160], text[320];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    eni_host_site(host, place, sizeof place);
    eni_error("host", "%s %s", place, text);
    host->hook.verdict = EN_EBUG;
}

/* The thread may run beside the hook, or outlive it: nothing of the hook's is read or written here. */
bool eni_host_is_on_thread(eni_host *host, const char *operation)
{
    if (pthread_equal(atomic_load_explicit(&host->hook.thread, memory_order_relaxed), pthread_self()))
        return true;
    if (!atomic_exchange(&host->hook.is_called_beside, true))
        eni_error("host",
                  "%s (rank %d) called %s on a thread of its own: call the host in a hook, on the thread "
                  "that calls the hook",
                  host->config.strategy->name, host->config.world.rank, operation);
    return false;
}

bool eni_host_serves(eni_host *host, const char *operation, int group, int what, uint64_t word)
{
    static const char *const names[] = {"EN_WORLD", "EN_LOCAL", "EN_GROUP", "EN_LEADERS"};
    const en_world *world = &host->config.world;
    const bool has_groups = (host->config.strategy->flags & EN_USES_GROUPS) != 0;
    char why[160] = "";
    if (group < EN_WORLD || group > EN_LEADERS)
        snprintf(why, sizeof why, "for unknown group %d; expected EN_WORLD, EN_LOCAL, EN_GROUP or EN_LEADERS",
                 group);
    else if (group >= EN_GROUP && !has_groups)
        snprintf(why, sizeof why, "for %s, which requires the flag EN_USES_GROUPS", names[group]);
    else if (group == EN_LEADERS && world->group_rank != 0)
        snprintf(why, sizeof why,
                 "for EN_LEADERS, but this rank is not the first of its group: it is %d there",
                 world->group_rank);
    else if (group == EN_LOCAL && world->nhosts > 1 && host->config.has_own_groups)
        snprintf(why, sizeof why,
                 "for EN_LOCAL, but the groups of --groups are not the hosts': use EN_GROUP");
    else if (what < EN_GRAD || what > EN_WEIGHTS)
        snprintf(why, sizeof why, "with unknown contents %d; expected EN_GRAD, EN_DELTA or EN_WEIGHTS", what);
    else if (word != 0)
        snprintf(why, sizeof why, "with word %llu, which is not supported yet: use 0",
                 (unsigned long long)word);
    if (why[0] == 0) return true;
    eni_host_misuse(host, "called %s %s", operation, why);
    host->hook.verdict = EN_EINVAL;
    return false;
}

bool eni_host_knows(eni_host *host, const char *operation, const en_bucket *bucket)
{
    if (!eni_host_is_on_thread(host, operation)) return false;
    const uintptr_t from = (uintptr_t)bucket - (uintptr_t)host->buckets; /* wraps for what lies before */
    const size_t size = sizeof *bucket;
    if (from % size == 0 && from / size < host->config.buckets->n) return true;
    eni_host_misuse(host, "called %s with a bucket that is not the host's; pass on the hook's own",
                    operation);
    return false;
}

/* ---- vectors and rates ---- */

bool eni_host_has_slot(const eni_host *host, const char *name, uint32_t *slot_out)
{
    for (uint32_t s = ENI_SLOT_FREE; s < host->slots.n; s++)
        if (strcmp(host->slots.names[s], name) == 0) {
            *slot_out = s;
            return true;
        }
    return false;
}

bool eni_host_find_slot(eni_host *host, const char *name, uint32_t *slot_out)
{
    if (eni_host_has_slot(host, name, slot_out)) return true;
    if (host->slots.n >= eni_arena_nslots(host->config.arena) || host->slots.n >= ENI_ARENA_NSLOTS)
        return false;
    snprintf(host->slots.names[host->slots.n], ENI_HOST_NAME, "%s", name);
    *slot_out = host->slots.n++;
    return true;
}

eni_coll_op eni_host_bucket_op(const eni_host *host, int op, int what, const en_bucket *bucket, en_vec v)
{
    return (eni_coll_op){.op = op,
                         .what = what,
                         .bucket = bucket->id,
                         .step = host->now.step,
                         .slot = eni_vec_slot(v),
                         .offset = host->config.buckets->bucket[bucket->id].lo,
                         .count = bucket->count,
                         .lo = bucket->lo,
                         .hi = bucket->hi,
                         .nsamples = bucket->nsamples};
}

eni_hyper eni_host_rates(const eni_host *host, uint32_t bucket)
{
    eni_hyper hyper = host->config.hyper;
    hyper.lr = host->now.lr;
    hyper.step = host->of[bucket].steps_begun;
    return hyper;
}

eni_hyper eni_host_begin_step(eni_host *host, uint32_t bucket)
{
    const eni_hyper hyper = eni_host_rates(host, bucket);
    host->of[bucket].steps_begun++;
    return hyper;
}

void eni_host_stepped(eni_host *host, uint32_t bucket, const eni_hyper *hyper)
{
    host->writes_param = true;
    host->of[bucket].steps_taken++;
    host->counters.lr = hyper->lr;
    if (bucket == 0) host->counters.steps++;
}

float *eni_host_weights(const eni_host *host, uint64_t at, bool writes)
{
    const eni_transport *t = &host->transport;
    return t->weights != NULL ? t->weights(t->user, writes) + at
                              : eni_arena_at(host->config.arena, ENI_SLOT_PARAM, at);
}

uint32_t eni_host_param_crc(const eni_host *host)
{
    uint32_t crc = 0;
    for (uint32_t b = 0; b < host->config.buckets->n; b++) {
        const eni_bucket_range *range = &host->config.buckets->bucket[b];
        crc = eni_crc32c(crc, eni_host_weights(host, range->lo, false),
                         (range->hi - range->lo) * sizeof(float));
    }
    return crc;
}

void eni_host_note_start(eni_host *host)
{
    if (host->progress.has_start || host->config.gpu != NULL) return;
    host->progress.has_start = true;
    host->progress.first_crc = eni_host_param_crc(host);
}

/* ---- operations: collectives by a group of ranks, calls by the store client ---- */

static eni_coll *group_of(const eni_host *host, const eni_operation *op)
{
    const eni_host_config *c = &host->config;
    return op->group == EN_GROUP ? c->group : op->group == EN_LEADERS ? c->leaders : c->coll;
}

static en_status start_operation(eni_host *host, eni_operation *op)
{
    const eni_transport *t = &host->transport;
    eni_client *client = host->config.client;
    if (t->start != NULL) return t->start(t->user, op);
    if (op->kind == ENI_OPERATION_COLL) return eni_coll_submit(group_of(host, op), &op->coll, &op->ticket);
    op->version = eni_client_answered(client, op->bucket).version;
    return eni_client_call(client, op->bucket, op->out, op->in,
                           &(eni_header){.type = ENI_MSG_CALL,
                                         .kind = op->call_kind,
                                         .what = op->what,
                                         .nsamples = op->nsamples,
                                         .covered = op->covered,
                                         .step = op->step});
}

en_status eni_operation_start(eni_host *host, eni_operation *op)
{
    eni_host_leave_hook(host);
    const en_status st = start_operation(host, op);
    eni_host_return_to_hook(host);
    return st;
}

bool eni_operation_test(eni_host *host, const eni_operation *op)
{
    const eni_transport *t = &host->transport;
    if (t->test != NULL) return t->test(t->user, op);
    return op->kind == ENI_OPERATION_COLL && eni_coll_test(group_of(host, op), op->ticket);
}

static en_status wait_coll(eni_coll *group, eni_operation *op)
{
    eni_coll_counters before, after;
    eni_coll_count(group, &before);
    EN_TRY(eni_coll_wait(group, op->ticket));
    eni_coll_count(group, &after);
    op->waited_ns = (int64_t)(after.wait_ns - before.wait_ns);
    op->samples = eni_coll_samples(group, op->ticket);
    return EN_OK;
}

static en_status wait_operation(eni_host *host, eni_operation *op)
{
    const eni_transport *t = &host->transport;
    eni_client *client = host->config.client;
    if (t->wait != NULL) return t->wait(t->user, op);
    if (op->kind == ENI_OPERATION_COLL) return wait_coll(group_of(host, op), op);
    const int64_t before_ns = eni_client_waited(client);
    EN_TRY(eni_client_wait(client, op->bucket));
    op->waited_ns = eni_client_waited(client) - before_ns;
    const eni_client_answer answer = eni_client_answered(client, op->bucket);
    op->version = answer.version;
    op->staleness = answer.staleness;
    return EN_OK;
}

/* ---- requests and waits ---- */

eni_request *eni_host_request(eni_host *host, en_req id)
{
    const uint64_t at = (id - host->requests.base) % ENI_HOST_REQUESTS;
    eni_request *block = id < host->requests.base ? NULL : host->requests.block[at / ENI_HOST_BLOCK];
    eni_request *r = block == NULL ? NULL : &block[at % ENI_HOST_BLOCK];
    return r != NULL && r->kind != REQ_FREE && r->id == id ? r : NULL;
}

en_status eni_host_complete(eni_host *host, eni_request *r)
{
    if (r->is_complete || r->failed != EN_OK) return r->failed;
    r->is_complete = true;
    eni_host_leave_hook(host);
    r->failed = wait_operation(host, &r->op);
    eni_host_return_to_hook(host);
    host->counters.wait_ns += r->op.waited_ns;
    return r->failed;
}

/* Blocked time first, work after it: nearly always the true order, and both lengths are exact. */
static void trace_wait(const eni_host *host, const eni_request *r, const char *work, int64_t begin,
                       int64_t waited, int64_t end)
{
    eni_trace *trace = host->config.trace;
    int64_t step = (int64_t)host->now.step;
    if (waited > 0)
        eni_trace_span(trace, ENI_TRACE_COMPUTE, "wait", begin, begin + waited, step, (int)r->bucket->id, 0);
    eni_trace_span(trace, ENI_TRACE_COMPUTE, work, begin + waited, end, step, (int)r->bucket->id,
                   r->bucket->count * sizeof(float));
}

en_status eni_host_await(eni_host *host, eni_request *r, const char *work, int64_t begin_ns,
                         int64_t updated_ns)
{
    const eni_bucket_range *range = &host->config.buckets->bucket[r->bucket->id];
    eni_wait_note *note = host->config.wait_note;
    const int64_t waited_ns = host->counters.wait_ns;
    if (note != NULL)
        eni_wait_note_begin(note, r->what, range->nparams > 0 ? range->params[0].name : "",
                            r->bucket->count * sizeof(float), (uint32_t)(r->id - host->requests.first + 1));
    const en_status st = eni_host_complete(host, r);
    if (note != NULL) eni_wait_note_end(note);
    EN_TRY(st);
    const int64_t end = eni_host_now(host), blocked = host->counters.wait_ns - waited_ns;
    host->counters.send_ns += end - begin_ns - blocked - (host->counters.update_ns - updated_ns);
    trace_wait(host, r, work, begin_ns, blocked, end);
    return EN_OK;
}
