/* gpu_list.h - what `entrain gpus` shows: this host's GPUs, how they are linked, and which rank would use
 * which. */
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
    int nranks;        /* -n, or by --stages; 0: not asked */
    int nstages;       /* --stages: GPUs in a row for each rank; 0: one */
    bool is_shared;    /* --gpu-sharing */
} eni_gpu_list;

/* What was found, as text (EN_ENOMEM), and as JSON, which is the caller's; NULL: out of memory. */
en_status eni_gpus_show(FILE *out, const eni_gpu_list *gpus);
json_t *eni_gpus_json(const eni_gpu_list *gpus);

/* What `ring` does with `nranks` on these, one sentence. */
void eni_gpus_verdict(const eni_gpu_list *gpus, char *text_out, size_t bytes);

#endif
