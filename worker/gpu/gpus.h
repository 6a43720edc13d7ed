/* gpus.h - which GPU this rank computes on, and which ones the others have.
 *
 *     before the join     eni_gpu_check     there is a GPU, and --device names an existing one
 *                                           (ops/device.h)
 *     after the join      eni_gpus_open     picks it, reports it, prints the table of several
 *                         (the device's context is opened with facts.index)
 *                         eni_gpus_choose   where vectors lie: collective/gpu_choose.h; tries CUDA IPC
 *                         (vectors are opened: worker/gpu/vectors.h)
 *     training begins     eni_gpus_report   memory per rank; other users of the GPUs
 *     it has ended        eni_gpus_look     who uses it now
 *                         eni_gpus_close
 *
 * All ranks make the calls in this order; open, choose and report wait for each other (gathers). Compute
 * thread. */
#ifndef WORKER_GPU_GPUS_H
#define WORKER_GPU_GPUS_H

#include <stdbool.h>

#include "entrain/device.h"
#include "entrain/strategy.h"
#include "runtime/collective/gpu_choose.h"
#include "runtime/control/control.h"

/* Everything is borrowed and outlives the gpus. */
typedef struct eni_gpus_config {
    const char *spec;        /* --device: "cuda", "cuda:1" */
    const en_device *device; /* with .gpu */
    const en_device_host *host;
    en_world world;
    const eni_world_info *info; /* hosts and pids */
    /* eni_member_gather with the member in `user`, without a deadline. */
    en_status (*gather)(void *user, const char *tag, const void *blob, size_t bytes, eni_blobs *blobs_out);
    void *user;
} eni_gpus_config;

typedef struct eni_gpus {
    eni_gpus_config config;
    const en_gpu *gpu;
    en_gpu_facts facts;    /* of this rank's GPU */
    eni_rank_gpu *of_rank; /* (nranks); can_share after choose */
} eni_gpus;

en_status eni_gpus_open(const eni_gpus_config *config, eni_gpus **gpus_out);

/* `facts`: nranks and gpus are filled in here. EN_EINVAL as eni_gpu_choose. */
en_status eni_gpus_choose(eni_gpus *gpus, en_ctx *ctx, const eni_gpu_facts_of_run *facts,
                          eni_gpu_choice *choice_out);

/* The processes that use this rank's GPU now, apart from the ranks of this run. */
typedef struct eni_gpus_use {
    bool is_known;       /* the driver reports users */
    int others;          /* processes */
    int64_t pid;         /* of one of them; 0 if unknown */
    uint64_t own_bytes;  /* GPU memory of this process; 0 if not known */
    uint64_t free_bytes; /* of the whole GPU */
} eni_gpus_use;
void eni_gpus_look(const eni_gpus *gpus, eni_gpus_use *use_out);

/* Once, when everything is allocated: rank 0 logs what each rank takes, and warns of other users. */
en_status eni_gpus_report(eni_gpus *gpus);

/* NULL is fine. */
void eni_gpus_close(eni_gpus *gpus);

#endif
