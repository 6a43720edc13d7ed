/* vectors_state.h - what vectors.c (life, staged) and vectors_on_gpu.c (who shares what on the GPUs) have in
 * common. */
#ifndef WORKER_VECTORS_STATE_H
#define WORKER_VECTORS_STATE_H

#include "worker/vectors.h"

struct eni_vectors {
    const en_gpu *gpu;
    int nslots; /* of the optimizer */
    uint32_t nbuckets;

    /* device memory: own, or, SHARED, rank 0's */
    float *param, *slot[ENI_MAX_SLOTS];
    float **grads; /* (ngrads) ALONE: by micro-batch; SHARED: by rank */
    int ngrads;
    int is_guest; /* param and slots are rank 0's */

    eni_gpu_steps *steps;
    en_group *group;

    /* the host's side of a copy */
    void *registered[2 + ENI_MAX_SLOTS]; /* of the arena */
    int nregistered;

    en_event *computed; /* in COMPUTE: what a copy begins behind */
    en_event *left;     /* in EXCHANGE: gradients have left; and, elsewhere, all that was asked for is done */
    en_event *taken;    /* in EXCHANGE: new weights have come in */
    en_event **arrived; /* (nbuckets) a gradient is where the strategy finds it */
    uint64_t copied;
};

/* vectors_on_gpu.c: device memory and steps of ENI_VECTORS_ON_GPU; and gives back what of it is not plain
 * memory of our own. */
en_status eni_vectors_open_on_gpu(eni_worker *w, eni_vectors *v);
void eni_vectors_close_on_gpu(eni_worker *w, eni_vectors *v);

#endif
