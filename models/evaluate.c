/* evaluate.c - see evaluate.h. */
#include "models/evaluate.h"

#include "runtime/core/memory.h"
#include "runtime/core/try.h"

static en_status evaluate_all(en_model *model, const float *param, const eni_set *set, float *x, void *target,
                              eni_set_score *sum)
{
    for (uint64_t first = 0; first < set->count; first += set->batch) {
        uint64_t n = set->count - first < set->batch ? set->count - first : set->batch;
        en_score score;
        if (set->alive != NULL) EN_TRY(set->alive(set->alive_user));
        set->fill(set->user, first, n, x, target);
        en_batch batch = {.n = (int64_t)n, .x = x, .target = target};
        EN_TRY(en_model_evaluate(model, param, &batch, &score));
        sum->loss += score.loss;
        sum->correct += (uint64_t)score.correct;
    }
    return EN_OK;
}

en_status eni_model_evaluate_set(en_model *model, const float *param, const eni_set *set,
                                 eni_set_score *score_out)
{
    eni_set_score sum = {.count = set->count};
    float *x = eni_alloc_array(set->batch, set->sample_bytes);
    void *target = eni_alloc_array(set->batch, set->target_bytes);
    en_status st = x == NULL || target == NULL ? EN_ENOMEM : evaluate_all(model, param, set, x, target, &sum);
    eni_free(target);
    eni_free(x);
    if (st != EN_OK) return st;
    double n = set->count > 0 ? (double)set->count : 1;
    sum.loss /= n;
    sum.accuracy = (double)sum.correct / n;
    *score_out = sum;
    return EN_OK;
}
