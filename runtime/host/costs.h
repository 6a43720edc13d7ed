/* costs.h - the time to exchange one bucket on this run's own transport, measured before step 0: the
 * answer to en_host.cost().
 *
 * The probe makes real all-reduces on the gradient slot (all zeros before step 0, and zeros after it) and
 * real round trips with the store, on buckets of different sizes, all ranks at once; a bucket in between is
 * interpolated. A push would step weights, so a call is composed of operations that change nothing:
 *
 *     call = pull + push + step
 *     pull   a SNAPSHOT of the bucket by all ranks at once: headers up, weights down
 *     push   an INIT repeated by rank 0: the store reads it and answers that it has weights already. Its time
 *            per byte counts n times (n payloads meet at one shard); the round trip itself is in pull
 *     step   one optimizer step over the bucket, done here on memory of our own
 *
 * So `call` is a sum of measurements, not one; where pushes overlap replies it is an upper bound. Results
 * depend on it only through a strategy's choice, and that is the same on all ranks, because all are given
 * rank 0's figures. */
#ifndef HOST_COSTS_H
#define HOST_COSTS_H

#include <stdint.h>

#include "entrain/status.h"
#include "ops/optimizer.h"
#include "runtime/client/client.h"
#include "runtime/collective/coll.h"
#include "runtime/collective/probe.h"
#include "runtime/spec/buckets.h"

typedef struct eni_costs {
    eni_cost_curve allreduce; /* n 0: nothing was measured */
    eni_cost_curve call;
} eni_costs;

/* Borrowed during the call. */
typedef struct eni_costs_config {
    int rank, nranks;
    const eni_buckets *buckets;
    eni_coll *coll;     /* NULL: none, and no curve */
    eni_client *client; /* NULL: not a client; it gets rank 0's figures nevertheless */
    const eni_optimizer *optimizer;
    eni_hyper hyper;
    /* Replaces every rank's figures by rank 0's. Also a barrier. */
    en_status (*share)(void *user, void *bytes, size_t length);
    void *user;
} eni_costs_config;

/* Measures. All ranks call it at the same point, between INIT and the first step; compute thread. Takes about
 * ENI_COSTS_NS, or one round of each where the network is slower than that. EN_ENOMEM, and the errors of the
 * transport and `share`. */
#define ENI_COSTS_NS (20 * ENI_MILLI)
en_status eni_costs_measure(const eni_costs_config *config, eni_costs *costs_out);

/* Seconds of `op` (0: a call, else EN_ALLREDUCE .. EN_BCAST) on `bytes` bytes among nranks; NAN where it was
 * not measured. Collectives other than the all-reduce are scaled by the bytes that they send. */
double eni_costs_of(const eni_costs *costs, int op, int nranks, uint64_t bytes);

#endif
