/* optimizer.h - one step of an optimizer on a range of weights: the same function in a worker and in psd.
 *
 * An optimizer is {name, slots, step(range)}: elementwise, so any range of the flat vector may be stepped
 * anywhere, and the slots (momentum, ...) are vectors of the same length. */
#ifndef OPS_OPTIMIZER_H
#define OPS_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/gpu.h"

enum { ENI_MAX_SLOTS = 3 };

/* Tensors with rates of their own. A group has a factor of the learning rate and a weight decay; edges say
 * from which element of the flat vector on a group's rates hold, the first one from 0. */
enum { ENI_PARAM_GROUPS_MAX = 16, ENI_GROUP_EDGES = 4096 };
typedef struct eni_param_group {
    float lr_factor, weight_decay;
} eni_param_group;
typedef struct eni_group_edge {
    uint64_t lo;
    uint32_t group;
} eni_group_edge;
typedef struct eni_param_groups {
    uint32_t ngroups, nedges;
    eni_param_group group[ENI_PARAM_GROUPS_MAX];
    eni_group_edge *edge; /* (nedges), rising */
} eni_param_groups;

/* The rates of one step. */
typedef struct eni_hyper {
    float lr;
    float momentum; /* sgd, as nesterov */
    float weight_decay;
    int nesterov;
    double beta1, beta2, eps; /* adam, adamw: in double, since 1 - 0.999f is 3e-5 off */
    uint64_t step; /* steps already taken on this range: 0 for the first (Adam's bias correction) */
    /* of a run: tensors with their own lr and weight_decay, or NULL. eni_step_range splits a range by them */
    const eni_param_groups *groups;
} eni_hyper;

/* The arguments of eni_mean: mean[i] = (sum over k of src[k][i] * scale[k]) * inv. n == 0: the mean is 0. */
typedef struct eni_sources {
    const float *const *src;
    const float *scale;
    int n;
    float inv;
    const int *rank; /* (n) the rank of each; NULL: not known. Not used here */
} eni_sources;

typedef struct eni_optimizer {
    const char *name;                      /* "sgd", "adam", "adamw" */
    int (*slots)(const eni_hyper *hyper);  /* slot vectors that these rates need (0: no momentum) */
    const char *slot_names[ENI_MAX_SLOTS]; /* "momentum_buffer", as PyTorch's state_dict calls it */
    /* w, slots: (count), stepped in place; g: (count), read only, gradient of the mean loss. */
    void (*step)(float *w, float *const *slots, const float *g, uint64_t count, const eni_hyper *hyper);
    /* The same with g = the mean of `from` (n > 0), in one loop: the bits of eni_mean, then step. May be
     * NULL */
    void (*mean_step)(float *w, float *const *slots, const eni_sources *from, uint64_t count,
                      const eni_hyper *hyper);
    /* Numbers that all elements of a step share, computed once in double, the same bits on every machine, and
     * given to a GPU. NULL: an optimizer without beta1, beta2 and eps */
    void (*adam)(const eni_hyper *hyper, en_gpu_adam *adam_out);
} eni_optimizer;

/* By name, or NULL. The table is static. */
const eni_optimizer *eni_optimizer_find(const char *name);

/* Their names, for messages. */
#define ENI_OPTIMIZERS "sgd, adam or adamw"

/* ---- groups ------------------------------------------------------------------------------------------------ */

/* The only function that splits ranges at the edges of groups: elements of the flat vector from `at` to the
 * returned end, at most hi, have the rates of one group. Without groups the end is hi. */
uint64_t eni_group_end(const eni_param_groups *groups, uint64_t at, uint64_t hi, uint32_t *group_out);
/* The run's rates with those of a group in place of its own; without groups. */
eni_hyper eni_group_rates(const eni_hyper *run, uint32_t group);

/* optimizer->step, split at the edges: w, slots (ENI_MAX_SLOTS of them, or NULL) and g begin with element
 * `at` of the flat vector. */
void eni_step_range(const eni_optimizer *optimizer, uint64_t at, float *w, float *const *slots,
                    const float *g, uint64_t count, const eni_hyper *hyper);

/* "1:0.0005,1:0/0:0,512:1": the table (factor:decay) and the edges (element:group). Freed with eni_free; NULL
 * if out of memory. And back, fully checked: NULL if invalid. free: safe on NULL. */
char *eni_groups_text(const eni_param_groups *groups);
eni_param_groups *eni_groups_parse(const char *text);
void eni_groups_free(eni_param_groups *groups);

/* Adds the edge of a tensor that begins at `lo`, after all others, if the group changes there. false: no room
 * for more than ENI_GROUP_EDGES. new: empty; NULL if out of memory. */
eni_param_groups *eni_groups_new(void);
bool eni_groups_add(eni_param_groups *groups, uint64_t lo, uint32_t group);

#endif
