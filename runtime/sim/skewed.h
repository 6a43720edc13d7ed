/* skewed.h - the problem of `entrain sim` without --model: made-up data that differ from rank to rank, and a loss that is
 * not quadratic, so that an averaging that does not average shows in the loss.
 *
 *     loss(w) = mean over parts p of sum_i h_pi (sqrt(1 + (w_i - b_pi)^2) - 1), less its minimum
 *
 * Micro-batch m belongs to part m mod P, so rank r of P has part r where micro-batches are assigned. A part whose b_pi is
 * far from the others' has a small h_pi: the mean of the parts' optima is not the optimum of their mean, and a rank that
 * trains alone approaches its own at its own speed. (A quadratic with one h for all hides both: averaging commutes with its
 * steps.) The noise of a micro-batch is added to the gradient; it is a function of (seed, m, i). Three tensors, so that
 * there are buckets. Only operations that IEEE 754 rounds: the same bits everywhere. */
#ifndef SIM_SKEWED_H
#define SIM_SKEWED_H

#include "runtime/sim/sim.h"

enum { ENI_SKEWED_KINDS = 16 }; /* pairs of h and b */

typedef struct eni_skewed {
    uint64_t seed, parts;
    double noise;
    double share[ENI_SKEWED_KINDS]; /* of the parts, by their kind at element 0 */
    double least[ENI_SKEWED_KINDS]; /* the minimum at elements i, by i mod ENI_SKEWED_KINDS */
    en_model_tensor tensors[3];
    float *init;             /* (count) zeros; owned */
    eni_sim_problem problem; /* for eni_sim_config */
} eni_skewed;

/* A problem of `count` elements (at least 48) and `parts` parts, one per micro-batch of a step over all ranks. The object must
 * not move afterwards. EN_EINVAL (too few elements), EN_ENOMEM, logged. */
en_status eni_skewed_init(eni_skewed *skewed, uint64_t count, uint64_t seed, uint64_t parts);

/* Safe on zeroed memory. */
void eni_skewed_fini(eni_skewed *skewed);

/* The loss without noise; 0 at the optimum. */
double eni_skewed_loss(const eni_skewed *skewed, const float *param);

#endif
