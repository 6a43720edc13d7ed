/* gpu_list.h - the output of `entrain gpus`: this host's GPUs, how they are linked, and the ranks that would
 * use them. */
#ifndef CLI_GPU_LIST_H
#define CLI_GPU_LIST_H

#include <jansson.h>
#include <stdio.h>

#include "config/config.h"
#include "core/nvml.h"

enum { ENI_GPUS_LINKED = 15, ENI_GPUS_VERDICT = 256 };

typedef struct eni_gpu_list {
    eni_gpu_machine machine;
    bool is_built;     /* there is a cuda device that can be loaded */
    const char *group; /* "NCCL 2.28.9"; "" without NCCL */
    int nranks;        /* -n, or by --stages; 0: not given */
    int nstages;       /* --stages: consecutive GPUs for each rank; 0: one */
    bool is_shared;    /* --gpu-sharing */
} eni_gpu_list;

/* The list as text (EN_ENOMEM), and as JSON, which the caller owns (NULL: out of memory). */
en_status eni_gpus_show(FILE *out, const eni_gpu_list *gpus);
json_t *eni_gpus_json(const eni_gpu_list *gpus);

/* One sentence: how `ring` exchanges among `nranks` on these GPUs. */
void eni_gpus_verdict(const eni_gpu_list *gpus, char *text_out, size_t bytes);

#endif
