/* gpu_choose.c - first what forbids NCCL and CUDA IPC, each with its reason, then the choice. */
#include "runtime/collective/gpu_choose.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "entrain/gpu.h"
#include "entrain/strategy.h"
#include "runtime/collective/coll.h"
#include "runtime/collective/gpu_steps.h"

static int is_same(const eni_gpu_seat *a, const eni_gpu_seat *b)
{
    return strcmp(a->uuid, b->uuid) == 0;
}

int eni_gpu_find_pair(const eni_gpu_seat *seats, int nranks, int *first_out, int *second_out)
{
    for (int a = 0; a < nranks; a++)
        for (int b = a + 1; b < nranks; b++)
            if (is_same(&seats[a], &seats[b])) {
                *first_out = a;
                *second_out = b;
                return 1;
            }
    return 0;
}

static int is_slice(const eni_gpu_seat *seat)
{
    return strncmp(seat->uuid, "MIG-", 4) == 0;
}

/* Two slices in one host: NCCL knows GPUs by their place on the bus, which slices of one GPU share. */
static int find_slices(const eni_gpu_facts_of_run *f, int *first_out, int *second_out)
{
    for (int a = 0; a < f->nranks; a++)
        for (int b = a + 1; b < f->nranks; b++)
            if (is_slice(&f->seats[a]) && is_slice(&f->seats[b]) &&
                strcmp(f->seats[a].host_id, f->seats[b].host_id) == 0) {
                *first_out = a;
                *second_out = b;
                return 1;
            }
    return 0;
}

/* ---- why not NCCL, why not IPC ---- */

static int all_have_group(const eni_gpu_facts_of_run *f)
{
    for (int r = 0; r < f->nranks; r++)
        if (!f->seats[r].has_group) return 0;
    return 1;
}

static int all_can_share(const eni_gpu_facts_of_run *f)
{
    for (int r = 0; r < f->nranks; r++)
        if (!f->seats[r].can_share) return 0;
    return 1;
}

static int all_on_one_host(const eni_gpu_facts_of_run *f)
{
    for (int r = 1; r < f->nranks; r++)
        if (strcmp(f->seats[0].host_id, f->seats[r].host_id) != 0) return 0;
    return 1;
}

static int all_same(const eni_gpu_facts_of_run *f)
{
    for (int r = 1; r < f->nranks; r++)
        if (!is_same(&f->seats[0], &f->seats[r])) return 0;
    return 1;
}

/* What must be as it is, for the strategy's weights to stay on the GPU; NULL: nothing is in the way. */
static const char *find_obstacle(const eni_gpu_facts_of_run *f)
{
    const int is_one = f->nranks == 1 && !f->has_store;
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

static void stage(eni_gpu_choice *choice, const char *why)
{
    choice->vectors = ENI_VECTORS_STAGED;
    snprintf(choice->why, sizeof choice->why, "%s", why);
}

static void keep(eni_gpu_choice *choice, int way)
{
    choice->vectors = ENI_VECTORS_ON_GPU;
    choice->way = way;
}

static void choose_shared(const eni_gpu_facts_of_run *f, int first, int second, eni_gpu_choice *choice)
{
    const eni_gpu_seat *seat = &f->seats[first];
    const char *obstacle = !all_can_share(f)            ? "CUDA IPC is refused here"
                           : !all_on_one_host(f)        ? "they share no host memory"
                           : f->no_shm != NULL          ? f->no_shm
                           : f->nranks > EN_GPU_SOURCES ? "more than 64 ranks"
                                                        : NULL;
    if (!all_same(f)) {
        choice->vectors = ENI_VECTORS_STAGED;
        snprintf(choice->why, sizeof choice->why,
                 "ranks %d and %d share %.12s, which NCCL refuses, and others do not", first, second,
                 seat->uuid);
    } else if (obstacle != NULL) {
        choice->vectors = ENI_VECTORS_STAGED;
        snprintf(choice->why, sizeof choice->why, "%d ranks share %.12s, which NCCL refuses; %.80s",
                 f->nranks, seat->uuid, obstacle);
    } else {
        keep(choice, ENI_GPU_SHARED);
        snprintf(choice->why, sizeof choice->why, "%d ranks share %.12s, which NCCL refuses: CUDA IPC",
                 f->nranks, seat->uuid);
    }
}

/* What was asked for by name and cannot be. */
static en_status refuse_nccl(const eni_gpu_facts_of_run *f, const char *obstacle)
{
    int a, b;
    if (obstacle != NULL) {
        eni_error("gpu", "--backend=nccl: %s; give --backend=auto", obstacle);
    } else if (eni_gpu_find_pair(f->seats, f->nranks, &a, &b)) {
        eni_error("gpu",
                  "--backend=nccl: ranks %d and %d are both on cuda:%d of host %s (%s), and NCCL needs a GPU "
                  "for each "
                  "rank: give --backend=auto, or start no more ranks than GPUs",
                  a, b, f->seats[a].index, f->seats[a].host, f->seats[a].uuid);
    } else {
        for (a = 0; a < f->nranks && f->seats[a].has_group;)
            a++;
        eni_error("gpu",
                  "--backend=nccl: rank %d on host %s finds no libnccl.so.2: install NCCL there, or give "
                  "--backend=auto",
                  a, f->seats[a].host);
    }
    return EN_EINVAL;
}

en_status eni_gpu_choose(const eni_gpu_facts_of_run *f, eni_gpu_choice *choice_out)
{
    eni_gpu_choice choice = {.vectors = ENI_VECTORS_STAGED};
    int a = 0, b = 0;
    const int is_asked = f->backend == ENI_GPU_BACKEND_NCCL, is_one = f->nranks == 1;
    const int has_pair = eni_gpu_find_pair(f->seats, f->nranks, &a, &b);
    const char *obstacle = find_obstacle(f);
    if (is_asked && !f->is_solo && (obstacle != NULL || has_pair || !all_have_group(f)))
        return refuse_nccl(f, obstacle);
    if (obstacle != NULL) {
        stage(&choice, obstacle);
    } else if (is_one && (!is_asked || f->is_solo || f->accumulate > 1)) {
        keep(&choice, ENI_GPU_ALONE);
        snprintf(choice.why, sizeof choice.why, "one rank: nothing to exchange");
    } else if (has_pair) {
        choose_shared(f, a, b, &choice);
    } else if (!is_asked && find_slices(f, &a, &b)) {
        choice.vectors = ENI_VECTORS_STAGED;
        snprintf(choice.why, sizeof choice.why,
                 "ranks %d and %d have slices of GPUs (MIG), which NCCL refuses", a, b);
    } else if (all_have_group(f)) {
        keep(&choice, ENI_GPU_GROUP);
        snprintf(choice.why, sizeof choice.why, is_one ? "asked for" : "%d ranks, a GPU for each: NCCL",
                 f->nranks);
    } else {
        stage(&choice, "NCCL is not there");
    }
    *choice_out = choice;
    return EN_OK;
}
