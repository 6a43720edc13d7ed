/* gpu_choose.h - where the vectors of a run on GPUs lie, and what carries them. Pure: the same facts give the
 * same choice on all ranks. */
#ifndef COMM_GPU_CHOOSE_H
#define COMM_GPU_CHOOSE_H

#include <stdint.h>

#include "entrain/status.h"

enum {
    ENI_VECTORS_ON_HOST = 0, /* the device is the host */
    ENI_VECTORS_STAGED = 1,  /* the strategy works on pinned host memory; gradients come, weights go */
    ENI_VECTORS_ON_GPU = 2   /* they stay there: gpu_steps.h */
};

/* One rank's GPU, as it told the others. */
typedef struct eni_gpu_seat {
    char uuid[48];     /* empty: none */
    char host_id[64];
    uint8_t can_share; /* CUDA IPC works in this process */
    uint8_t has_group; /* NCCL can be loaded */
} eni_gpu_seat;

typedef struct eni_gpu_facts_of_run {
    int nranks, nhosts;
    const eni_gpu_seat *seats; /* (nranks) */
    uint32_t strategy_flags;   /* EN_ONE_COPY .. */
    int is_solo;               /* one rank, no store */
    int backend;               /* as asked: ENI_GPU_BACKEND_* */
    int is_shaped;             /* --net */
    int allreduce;             /* as asked: ENI_COLL_* */
    const char *no_shm;        /* as in eni_coll_facts */
} eni_gpu_facts_of_run;

enum { ENI_GPU_BACKEND_AUTO, ENI_GPU_BACKEND_HOST, ENI_GPU_BACKEND_NCCL };

typedef struct eni_gpu_choice {
    int vectors;   /* ENI_VECTORS_STAGED or ON_GPU */
    int way;       /* ON_GPU: ENI_GPU_ALONE .. */
    char why[160]; /* one clause: "2 ranks share GPU-5f1c, which NCCL refuses: CUDA IPC" */
} eni_gpu_choice;

/* EN_EINVAL, logged, when what was asked cannot be (nccl for ranks that share a GPU). */
en_status eni_gpu_choose(const eni_gpu_facts_of_run *facts, eni_gpu_choice *choice_out);

#endif
