/* gpu_choose.h - where the vectors of a run on GPUs lie, and what carries them. Pure: the same facts give the
 * same choice on all ranks.
 *
 *     solo, or one rank whose weights change by mean_step alone      on the GPU, ALONE
 *     EN_SHARED_PARAMS (ring), one GPU per rank, NCCL everywhere          on the GPU, GROUP; hosts may differ
 *     EN_SHARED_PARAMS, all ranks on one GPU, CUDA IPC everywhere         on the GPU, SHARED
 *     any other strategy; some ranks share and some do not; IPC or
 *     NCCL missing; slices of GPUs (MIG) in one host; --backend=host;
 *     a network that is emulated or an all-reduce that was asked for
 *     by name                                                        staged */
#ifndef COLLECTIVE_GPU_CHOOSE_H
#define COLLECTIVE_GPU_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"

enum {
    ENI_VECTORS_ON_HOST = 0, /* the device is the host */
    ENI_VECTORS_STAGED = 1,  /* on registered host memory: gradients are copied in, weights out */
    ENI_VECTORS_ON_GPU = 2   /* they stay there: gpu_steps.h */
};

/* One rank's GPU, as announced to the others. */
typedef struct eni_rank_gpu {
    char uuid[48];     /* empty: none; "MIG-..": a slice of a GPU */
    char host_id[128]; /* as in net/host_info.h: who may share memory */
    char host[64];     /* for people */
    int32_t index;     /* cuda:INDEX there */
    uint8_t can_share; /* CUDA IPC works between this process and the others on its GPU */
    uint8_t has_group; /* NCCL can be loaded */
} eni_rank_gpu;

enum { ENI_GPU_BACKEND_AUTO, ENI_GPU_BACKEND_HOST, ENI_GPU_BACKEND_NCCL };

typedef struct eni_gpu_facts_of_run {
    int nranks;
    const eni_rank_gpu *gpus; /* (nranks) */
    uint32_t strategy_flags;  /* EN_SHARED_PARAMS .. */
    bool is_solo;             /* the strategy is solo: its weights change by step alone */
    bool has_store;           /* weights live on servers */
    int accumulate;           /* micro-batches that one process averages, >= 1 */
    int backend;              /* as asked: ENI_GPU_BACKEND_* */
    int allreduce;            /* as asked: ENI_COLL_* */
    bool is_shaped;           /* --net */
    const char *no_shm;       /* why one host's ranks cannot share memory; NULL: they can */
} eni_gpu_facts_of_run;

typedef struct eni_gpu_choice {
    int vectors;   /* ENI_VECTORS_STAGED or ON_GPU */
    int way;       /* ON_GPU: ENI_GPU_ALONE .. */
    char why[160]; /* one clause: "2 ranks share GPU-5f1c2a3b, which NCCL refuses: CUDA IPC" */
} eni_gpu_choice;

/* EN_EINVAL, logged, if the request is impossible: --backend=nccl for ranks that share a GPU, without NCCL,
 * or for a strategy that uses more than all-reduces. */
en_status eni_gpu_choose(const eni_gpu_facts_of_run *facts, eni_gpu_choice *choice_out);

/* The first pair of ranks with the same GPU (the same uuid, whatever their hosts are called); false where
 * every rank has its own. */
bool eni_gpu_find_pair(const eni_rank_gpu *gpus, int nranks, int *first_out, int *second_out);

#endif
