/* evaluate.c - evaluates a model: the points of the curve, and the final model on the test set. Rank 0 does
 * it after all have trained. A host computes nothing else then, so the evaluation takes all its cores,
 * whatever --threads says, with its own device context and model, since a context's number of threads is
 * fixed. */
#include "models/evaluation.h"

#include <math.h>

#include "core/memory.h"
#include "core/try.h"
#include "worker/gpu/gpus.h"
#include "worker/parallel/team.h"
#include "worker/gpu/vectors.h"
#include "worker/worker.h"

typedef struct eni_judge {
    eni_device device;
    en_model *model;
} eni_judge;

/* Many points may wait at the end; a run that is to end does not wait for them. */
static en_status may_evaluate(void *worker)
{
    eni_worker *w = worker;
    if (w->rank.records.is_concluding && eni_shutdown_is_asked(w->rank.shutdown)) return EN_EINTR;
    return eni_rank_alive(&w->rank);
}

static eni_set set_of(eni_worker *w, int split)
{
    const eni_dataset *d = w->dataset;
    const eni_gpu_timeout timeout = eni_gpu_timeout_of(w);
    return (eni_set){.count = d->split[split].count,
                     .batch = (uint64_t)w->config->eval_batch_size,
                     .sample_bytes = d->sample_floats * sizeof(float),
                     .fill = split == ENI_TEST ? eni_dataset_fill_test : eni_dataset_fill_holdout,
                     .user = w->dataset,
                     .alive = may_evaluate,
                     .alive_user = w,
                     .timeout_ns = w->gpu.gpus == NULL ? 0 : timeout.ns,
                     .tell = timeout.tell,
                     .target_bytes = eni_dataset_target_bytes(d)};
}

static en_status open_on_gpu(eni_worker *w, int split)
{
    const eni_set set = set_of(w, split);
    const uint64_t rest = set.count % set.batch;
    if (set.count == 0) return EN_OK;
    EN_TRY(en_model_prepare(w->model, (int64_t)(set.count < set.batch ? set.count : set.batch),
                            EN_MODEL_EVALUATE));
    if (set.count > set.batch && rest != 0)
        EN_TRY(en_model_prepare(w->model, (int64_t)rest, EN_MODEL_EVALUATE));
    return eni_evaluation_open(w->model, &set, 1, &w->gpu.evaluation[split]);
}

en_status eni_evaluate_open(eni_worker *w)
{
    if (w->device.ops->gpu == NULL) return EN_OK;
    EN_TRY(open_on_gpu(w, ENI_TEST));
    return open_on_gpu(w, ENI_HOLDOUT);
}

static en_status open_judge(eni_worker *w)
{
    const en_device_config config = {.size = sizeof config,
                                     .threads = eni_host_info_cores(),
                                     .host = eni_device_host(),
                                     .flags = eni_config_open_flags(w->config)};
    if (w->judge != NULL || w->device.ops->gpu != NULL || config.threads <= w->threads) return EN_OK;
    w->judge = eni_alloc(sizeof *w->judge);
    if (w->judge == NULL) return EN_ENOMEM;
    w->judge->device.ops = w->device.ops;
    EN_TRY(w->device.ops->open(&config, &w->judge->device.ctx));
    return en_model_new(&w->rank.job.schema, w->judge->device.ops, w->judge->device.ctx, NULL,
                        &w->judge->model);
}

void eni_evaluate_close(eni_worker *w)
{
    if (w->judge == NULL) return;
    en_model_free(w->judge->model);
    eni_device_close(&w->judge->device);
    eni_free(w->judge);
    w->judge = NULL;
}

en_status eni_evaluate_weights(void *worker, eni_judged on, const float *flat, const float *state,
                               double *loss_out, double *accuracy_out)
{
    eni_worker *w = worker;
    const int split = on == ENI_JUDGED_TEST || w->rank.trainer.about.holdout == 0 ? ENI_TEST : ENI_HOLDOUT;
    const eni_set set = set_of(w, split);
    eni_set_score score;
    if (w->team != NULL) {
        EN_TRY(eni_team_evaluate(w, flat, state, &set, &score));
    } else if (w->gpu.evaluation[split] != NULL) {
        EN_TRY(eni_evaluation_run(w->gpu.evaluation[split], flat, state, &score));
    } else {
        EN_TRY(open_judge(w));
        EN_TRY(
            eni_model_evaluate_set(w->judge != NULL ? w->judge->model : w->model, flat, state, &set, &score));
    }
    *loss_out = score.loss;
    *accuracy_out =
        w->rank.trainer.about.has_accuracy ? score.accuracy : NAN; /* a regression has no accuracy */
    return EN_OK;
}
