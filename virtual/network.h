/* network.h - a network of `entrain models` on real data as a problem of the virtual host: the micro-batches, weights and
 * steps of a run on real ranks. */
#ifndef VIRTUAL_NETWORK_H
#define VIRTUAL_NETWORK_H

#include <pthread.h>

#include "job/job.h"
#include "models/evaluation.h"
#include "ops/device.h"
#include "virtual/simulation.h"

/* Sums over the gradients of a rank since they were set to zero. */
typedef struct eni_virtual_score {
    double loss; /* summed over the samples */
    uint64_t correct;
} eni_virtual_score;

/* A thread computes with these. */
typedef struct eni_virtual_thread {
    eni_device device;
    en_model *model;
    uint32_t *indices;               /* (batch) */
    float *x;                        /* (batch, H, W, C) */
    void *target;                    /* (batch) */
    struct eni_virtual_thread *next; /* that is free */
} eni_virtual_thread;

typedef struct eni_virtual_network {
    eni_job job;
    eni_dataset *dataset;
    pthread_mutex_t lock;    /* of `free` and the samplers */
    eni_sampler *sampler[2]; /* of even and of odd epochs: ranks are in two at one time */
    int nthreads;
    eni_virtual_thread *threads, *free;
    float *init; /* (schema.count) */
    float *
        states; /* (plan.world, schema.nstate) of the last forward of each rank, or of its micro-batches; NULL: none */
    eni_virtual_score *scores; /* (nranks) */
    eni_evaluation *evaluation;
    int split; /* that is evaluated */
    eni_sim_problem problem;
} eni_virtual_network;

/* Opens data set, network and device as the flags say, and sets in `simulation`: problem, micro_batches, assign,
 * optimizer, hyper, schedule, eval_every and buckets. Borrows config and simulation. On failure *network_out is NULL. Errors as of
 * job/job.h and ops/device.h; EN_EINVAL: a GPU; logged. */
en_status eni_virtual_network_open(const eni_config *config, const char *plugins, eni_virtual *simulation,
                                   eni_virtual_network **network_out);
void eni_virtual_network_close(eni_virtual_network *network); /* NULL is fine */

/* Loss and accuracy (NAN without classes) of weights (schema.count) and running statistics (schema.nstate) on the held-out
 * samples, or, without any, on the test set. */
en_status eni_virtual_network_evaluate(eni_virtual_network *network, const float *param, const float *state,
                                       eni_set_score *score_out);

/* The same on the test set. */
en_status eni_virtual_network_test(eni_virtual_network *network, const float *param, const float *state,
                                   eni_set_score *score_out);

#endif
