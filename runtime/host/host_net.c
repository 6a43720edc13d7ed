/* host_net.c - the transport of sockets and shared memory: collectives by a group of ranks
 * (collective/coll.h), calls by the store client (client/client.h), costs by measuring both. */
#include <math.h>

#include "core/clock.h"
#include "core/try.h"
#include "runtime/host/host_state.h"

static eni_coll *group_of(const eni_host *host, const eni_operation *op)
{
    return op->group == EN_LOCAL ? host->config.local : host->config.coll;
}

static en_status start(void *user, eni_operation *op)
{
    eni_host *host = user;
    eni_client *client = host->config.client;
    if (op->kind == ENI_OPERATION_COLL) return eni_coll_submit(group_of(host, op), &op->coll, &op->ticket);
    op->version = eni_client_version(client, op->bucket);
    return eni_client_push(client, op->bucket, op->call_kind, op->what, op->out, op->in, op->nsamples,
                           op->covered, op->step);
}

static bool test(void *user, const eni_operation *op)
{
    const eni_host *host = user;
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

static en_status wait_call(eni_client *client, eni_operation *op)
{
    eni_client_counters before, after;
    eni_client_count(client, &before);
    EN_TRY(eni_client_wait(client, op->bucket));
    eni_client_count(client, &after);
    op->waited_ns = after.wait_ns - before.wait_ns;
    op->version = eni_client_version(client, op->bucket);
    op->staleness = eni_client_staleness(client, op->bucket);
    return EN_OK;
}

static en_status wait(void *user, eni_operation *op)
{
    eni_host *host = user;
    return op->kind == ENI_OPERATION_COLL ? wait_coll(group_of(host, op), op)
                                          : wait_call(host->config.client, op);
}

static int64_t now_ns(void *user)
{
    (void)user;
    return eni_now_ns();
}

/* Measured when it is first asked for, which is before step 0. */
static double cost(void *user, int op, uint64_t bytes)
{
    eni_host *host = user;
    if (!host->has_measured && host->is_planning && host->config.measure != NULL) {
        host->has_measured = true;
        host->cost_status = host->config.measure(host->config.measure_user, &host->costs);
    }
    if (!host->has_measured || host->cost_status != EN_OK) return NAN; /* a rule must not guess */
    return eni_costs_of(&host->costs, op, host->config.world.nranks, bytes);
}

eni_transport eni_host_net(eni_host *host)
{
    const eni_host_config *c = &host->config;
    return (eni_transport){.user = host,
                           .has_world = c->coll != NULL,
                           .has_local = c->local != NULL,
                           .is_client = c->client != NULL,
                           .start = start,
                           .test = test,
                           .wait = wait,
                           .now_ns = now_ns,
                           .cost = cost};
}
