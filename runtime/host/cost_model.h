/* cost_model.h - how long an exchange, and a step, should take: pure functions of a few measured numbers.
 *
 * All times are seconds, all sizes bytes. The numbers:
 *
 *     alpha   latency: a flag exchange in shared memory; a message of no bytes over TCP, to a neighbour
 *     beta    seconds per byte over a link: of the network, or of the core that feeds it, whichever is slower
 *     gamma   seconds per byte added
 *     move    seconds per byte loaded or stored by one core while all of them do
 *
 * Collectives. ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", JPDC 2009: 2(p-1) hops of S/p. naive, and the alpha-beta-gamma notation: Thakur,
 * Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
 * direct: each rank loads and stores 2pS/p (coll.h), and more ranks than cores take turns. Parameter server:
 * Jiang and others, "A unified architecture for accelerating distributed DNN training" (BytePS), OSDI 2020:
 * with s servers the busiest link carries max(1, p/s) S each way.
 *
 * A step. Buckets leave as backward completes them and pass through stages (the ring; push, then pull), each
 * of which serves one bucket at a time: a flow shop. Cores are a second bound: the work of all processes of a
 * host, divided by its cores, bounds the step from below. */
#ifndef HOST_COST_MODEL_H
#define HOST_COST_MODEL_H

#include <stdbool.h>

typedef struct eni_cost_numbers {
    double alpha, beta, gamma;
} eni_cost_numbers;

/* One all-reduce of S bytes among p ranks; 0 for p = 1. */
double eni_cost_ring(int p, double bytes, const eni_cost_numbers *link);
double eni_cost_naive(int p, double bytes, const eni_cost_numbers *link);
double eni_cost_direct(int p, int cores, double bytes, double alpha, double move);

/* The mean and an optimizer step with one slot in one pass over one copy of the weights: each rank loads p
 * gradients, weights and slot of its S/p, and stores weights and slot. */
double eni_cost_fused(int p, int cores, double bytes, double alpha, double move);

/* The busiest link's share of one push or one pull of `bytes` by each of p workers to s servers: the seconds
 * that it is occupied. */
double eni_cost_push(int p, int servers, double bytes, const eni_cost_numbers *link);

/* ---- a step ---- */

enum { ENI_COST_BUCKETS = 512, ENI_COST_STAGES = 3 };

/* Measurements of this machine and this model. */
typedef struct eni_cost_machine {
    int cores;
    double compute_alone;    /* one micro-batch, forward and backward, on one core, the others idle */
    double compute_together; /* the same while every core computes one, until the slowest of them is done */
    double compute_crowded;  /* the same with two processes a core */
    double update;           /* one optimizer step over all weights on one core */
    double flag, move;       /* direct */
    eni_cost_numbers tcp;    /* between two processes of this machine: beta is work of a core */
    /* The server's and the worker's work for one worker's push and pull: latency, and per byte of the model. */
    eni_cost_numbers store_shm, store_tcp;
    int nbuckets;
    double bytes[ENI_COST_BUCKETS]; /* in the order of submit */
    double ready[ENI_COST_BUCKETS]; /* when it leaves, as a share of compute: 0 .. 1 */
} eni_cost_machine;

/* Where ranks and servers run. */
typedef struct eni_cost_layout {
    int ranks;         /* of the run */
    int ranks_on_host; /* of one host; they share its cores */
    int servers;       /* psd shards; 0: none */
    bool is_networked; /* ranks and servers talk over a network, emulated or real; else shared memory */
    bool has_own_host; /* servers are on hosts of their own; else they share the (one) host of the ranks */
    double rate;       /* bytes per second of a network card each way; 0: as fast as the cores feed it */
    double delay;
} eni_cost_layout;

/* A step's time and its parts. */
typedef struct eni_cost_step {
    double seconds;
    double compute;  /* the rank's own computing, slowed by others on its cores */
    double exchange; /* the exchange without overlap */
    double exposed;  /* the step less compute and update */
    bool is_cpu_bound;
} eni_cost_step;

eni_cost_step eni_cost_step_ring(const eni_cost_machine *machine, const eni_cost_layout *place);
eni_cost_step eni_cost_step_ps(const eni_cost_machine *machine, const eni_cost_layout *place);

/* The least p in [2, most] from which on the ring's step is never slower than that of the server with
 * place->servers shards, up to `most`; 0: no such p. */
int eni_cost_crossover(const eni_cost_machine *machine, const eni_cost_layout *place, int most);

/* When the last of n buckets has left the last of `nstages` stages. Bucket b is there at ready[b] and
 * occupies stage k for stage[k][b]; it reaches the next stage lag[k] after that. */
double eni_cost_pipeline(int n, const double *ready, int nstages, const double *const *stage,
                         const double *lag);

#endif
