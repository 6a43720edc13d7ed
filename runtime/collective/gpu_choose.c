/* gpu_choose.c - what rules out NCCL and CUDA IPC, each with its reason, then the choice. */
#include "runtime/collective/gpu_choose.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "entrain/gpu.h"
#include "entrain/strategy.h"
#include "runtime/collective/coll.h"
#include "runtime/collective/gpu_steps.h"

/* ---- two ranks ---- */

typedef bool (*relation)(const eni_rank_gpu *a, const eni_rank_gpu *b);

/* The first two ranks for which the relation holds; false if it holds for no two. */
static bool find_two(const eni_rank_gpu *gpus, int nranks, relation holds, int *first_out, int *second_out)
{
    for (int a = 0; a < nranks; a++)
        for (int b = a + 1; b < nranks; b++)
            if (holds(&gpus[a], &gpus[b])) {
                *first_out = a;
                *second_out = b;
                return true;
            }
    return false;
}

static bool share_gpu(const eni_rank_gpu *a, const eni_rank_gpu *b)
{
    return strcmp(a->uuid, b->uuid) == 0;
}

static bool have_other_gpus(const eni_rank_gpu *a, const eni_rank_gpu *b)
{
    return !share_gpu(a, b);
}

static bool have_other_hosts(const eni_rank_gpu *a, const eni_rank_gpu *b)
{
    return strcmp(a->host_id, b->host_id) != 0;
}

/* NCCL knows GPUs by their bus address, which slices of one GPU share. */
static bool have_slices(const eni_rank_gpu *a, const eni_rank_gpu *b)
{
    return strncmp(a->uuid, "MIG-", 4) == 0 && strncmp(b->uuid, "MIG-", 4) == 0 && !have_other_hosts(a, b);
}

bool eni_gpu_find_pair(const eni_rank_gpu *gpus, int nranks, int *first_out, int *second_out)
{
    return find_two(gpus, nranks, share_gpu, first_out, second_out);
}

/* ---- why not NCCL, why not IPC ---- */

/* The first rank without NCCL; nranks: all have it. */
static int first_without_group(const eni_gpu_facts_of_run *f)
{
    int r = 0;
    while (r < f->nranks && f->gpus[r].has_group)
        r++;
    return r;
}

static bool all_can_share(const eni_gpu_facts_of_run *f)
{
    for (int r = 0; r < f->nranks; r++)
        if (!f->gpus[r].can_share) return false;
    return true;
}

/* Why the strategy's weights cannot stay on the GPU; NULL: they can. */
static const char *find_obstacle(const eni_gpu_facts_of_run *f)
{
    const bool is_one = f->nranks == 1 && !f->has_store;
    if (f->backend == ENI_GPU_BACKEND_HOST) return "--backend=host";
    if (f->has_store) return "weights live on servers";
    if (!(f->strategy_flags & EN_SHARED_PARAMS) && !(is_one && f->is_solo))
        return "the strategy does more with weights than a step with the mean";
    if (f->is_shaped) return "--net emulates a network between hosts' memories";
    if (is_one) return f->accumulate > EN_GPU_SOURCES ? "more than 64 micro-batches make a step" : NULL;
    if (f->allreduce != ENI_COLL_AUTO) return "--allreduce says how host memory is reduced";
    if (f->no_shm != NULL && strcmp(f->no_shm, "--transport=tcp") == 0) return "--transport=tcp";
    return NULL;
}

/* ---- the choice ---- */

__attribute__((format(printf, 4, 5))) static void choose(eni_gpu_choice *choice, int vectors, int way,
                                                         const char *fmt, ...)
{
    va_list args;
    *choice = (eni_gpu_choice){.vectors = vectors, .way = way};
    va_start(args, fmt);
    vsnprintf(choice->why, sizeof choice->why, fmt, args);
    va_end(args);
}

static void choose_shared(const eni_gpu_facts_of_run *f, int first, int second, eni_gpu_choice *choice)
{
    int a, b;
    const char *gpu = f->gpus[first].uuid;
    const char *obstacle = !all_can_share(f) ? "CUDA IPC is refused here"
                           : find_two(f->gpus, f->nranks, have_other_hosts, &a, &b)
                               ? "they share no host memory"
                           : f->no_shm != NULL          ? f->no_shm
                           : f->nranks > EN_GPU_SOURCES ? "more than 64 ranks"
                                                        : NULL;
    if (find_two(f->gpus, f->nranks, have_other_gpus, &a, &b))
        choose(choice, ENI_VECTORS_STAGED, 0,
               "ranks %d and %d share %.12s, which NCCL refuses, and others do not", first, second, gpu);
    else if (obstacle != NULL)
        choose(choice, ENI_VECTORS_STAGED, 0, "%d ranks share %.12s, which NCCL refuses; %.80s", f->nranks,
               gpu, obstacle);
    else
        choose(choice, ENI_VECTORS_ON_GPU, ENI_GPU_SHARED,
               "%d ranks share %.12s, which NCCL refuses: CUDA IPC", f->nranks, gpu);
}

/* Says why --backend=nccl is impossible. Returns EN_EINVAL. */
static en_status refuse_nccl(const eni_gpu_facts_of_run *f, const char *obstacle)
{
    int a, b;
    if (obstacle != NULL) {
        eni_error("gpu", "--backend=nccl: %s; use --backend=auto", obstacle);
    } else if (eni_gpu_find_pair(f->gpus, f->nranks, &a, &b)) {
        eni_error("gpu",
                  "--backend=nccl: ranks %d and %d are both on cuda:%d of host %s (%s), and NCCL needs a GPU "
                  "for each rank: use --backend=auto, or start no more ranks than GPUs",
                  a, b, f->gpus[a].index, f->gpus[a].host, f->gpus[a].uuid);
    } else {
        a = first_without_group(f);
        eni_error("gpu",
                  "--backend=nccl: rank %d on host %s cannot load libnccl.so.2: install NCCL there, or use "
                  "--backend=auto",
                  a, f->gpus[a].host);
    }
    return EN_EINVAL;
}

en_status eni_gpu_choose(const eni_gpu_facts_of_run *f, eni_gpu_choice *choice_out)
{
    int a = 0, b = 0;
    const bool is_asked = f->backend == ENI_GPU_BACKEND_NCCL, is_one = f->nranks == 1;
    const bool has_pair = eni_gpu_find_pair(f->gpus, f->nranks, &a, &b);
    const bool has_group = first_without_group(f) == f->nranks;
    const char *obstacle = find_obstacle(f);
    if (is_asked && !f->is_solo && (obstacle != NULL || has_pair || !has_group))
        return refuse_nccl(f, obstacle);
    if (obstacle != NULL)
        choose(choice_out, ENI_VECTORS_STAGED, 0, "%s", obstacle);
    else if (is_one && (!is_asked || f->is_solo || f->accumulate > 1))
        choose(choice_out, ENI_VECTORS_ON_GPU, ENI_GPU_ALONE, "one rank: nothing to exchange");
    else if (has_pair)
        choose_shared(f, a, b, choice_out);
    else if (!is_asked && find_two(f->gpus, f->nranks, have_slices, &a, &b))
        choose(choice_out, ENI_VECTORS_STAGED, 0,
               "ranks %d and %d have slices of GPUs (MIG), which NCCL refuses", a, b);
    else if (has_group && is_one)
        choose(choice_out, ENI_VECTORS_ON_GPU, ENI_GPU_GROUP, "asked for");
    else if (has_group)
        choose(choice_out, ENI_VECTORS_ON_GPU, ENI_GPU_GROUP, "%d ranks, a GPU for each: NCCL", f->nranks);
    else
        choose(choice_out, ENI_VECTORS_STAGED, 0, "NCCL is not available");
    return EN_OK;
}
