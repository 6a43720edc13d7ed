/* eval.c - `entrain eval --init=FILE`: saved weights on the whole test set; and the model on a device that it
 * takes (compute.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/compute.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "data/dataset.h"
#include "models/evaluation.h"
#include "models/registry.h"
#include "models/weights.h"
#include "ops/device.h"
#include "runtime/net/host_info.h"

/* Which GPU, where --device does not say. */
static en_status choose_gpu(const char *spec, const char *plugin_dir, int local_rank, int nlocal,
                            int *index_out)
{
    const en_device *table;
    int32_t count = 0;
    if (!eni_device_is_gpu(spec)) return EN_OK;
    EN_TRY(eni_device_load("cuda", plugin_dir, &table));
    EN_TRY(table->gpu->count(eni_device_host(), &count));
    return eni_gpu_pick(spec, count, local_rank, nlocal, index_out);
}

static en_status options_of(const eni_config *c, const eni_device *device, en_model_options *options_out)
{
    static const uint32_t dtypes[] = {
        [ENI_PRECISION_FP32] = EN_F32, [ENI_PRECISION_BF16] = EN_BF16, [ENI_PRECISION_FP16] = EN_F16};
    *options_out = (en_model_options){.size = sizeof *options_out, .dtype = dtypes[c->precision]};
    if (options_out->dtype == EN_F32 || !(device->ops->flags & EN_DEVICE_HOST)) return EN_OK;
    return eni_fail(EN_EINVAL, "device",
                    "--precision=%s: %s computes in fp32; leave it out, or use --device=cuda",
                    c->precision == ENI_PRECISION_BF16 ? "bf16" : "fp16", device->ops->name);
}

en_status eni_compute_open(const eni_config *config, const char *plugin_dir, int threads, int local_rank,
                           int nlocal, const en_schema *schema, eni_compute *compute_out)
{
    eni_compute compute = {0};
    en_model_options options;
    eni_device_options how = {.plugin_dir = plugin_dir,
                              .threads = threads,
                              .flags = (config->tf32 ? EN_OPEN_TF32 : 0U) |
                                       (config->deterministic ? EN_OPEN_DETERMINISTIC : 0U)};
    EN_TRY(choose_gpu(config->device, plugin_dir, local_rank, nlocal, &how.index));
    EN_TRY(eni_device_open_with(config->device, &how, &compute.device));
    en_status st = options_of(config, &compute.device, &options);
    if (st == EN_OK)
        st = en_model_new(schema, compute.device.ops, compute.device.ctx, &options, &compute.model);
    if (st != EN_OK)
        eni_device_close(&compute.device);
    else
        *compute_out = compute;
    return st;
}

void eni_compute_close(eni_compute *compute)
{
    en_model_free(compute->model);
    compute->model = NULL;
    eni_device_close(&compute->device);
}

typedef struct evaluation {
    const eni_config *config;
    en_schema schema;
    eni_dataset *dataset;
    eni_compute compute;
    float *flat; /* the weights, then the state */
} evaluation;

static en_status open_all(evaluation *e, const char *plugin_dir)
{
    const eni_config *c = e->config;
    eni_data_options options = {.name = c->data,
                                .folder = c->data_dir,
                                .limit_test = (uint64_t)c->limit_test_samples,
                                .seed = (uint64_t)c->seed};
    en_data_shape shape;
    EN_TRY(eni_dataset_shape(&options, &shape));
    EN_TRY(eni_network_schema("--model", c->model, &shape, &e->schema));
    options.want = eni_data_want_of(&e->schema);
    EN_TRY(eni_dataset_open(&options, &e->dataset));
    e->flat = eni_alloc_array(e->schema.count + e->schema.nstate, sizeof(float));
    if (e->flat == NULL) return EN_ENOMEM;
    EN_TRY(eni_weights_load(c->init, &e->schema, e->flat, e->flat + e->schema.count));
    const int threads = c->threads > 0 ? (int)c->threads : eni_host_info_cores();
    return eni_compute_open(c, plugin_dir, threads, 0, 1, &e->schema, &e->compute);
}

static en_status evaluate(evaluation *e)
{
    const eni_dataset *d = e->dataset;
    eni_set set = {.count = d->split[ENI_TEST].count,
                   .batch = (uint64_t)e->config->eval_batch_size,
                   .fill = eni_dataset_fill_test,
                   .sample_bytes = d->sample_floats * sizeof(float),
                   .user = e->dataset,
                   .target_bytes = eni_dataset_target_bytes(d)};
    eni_set_score score;
    int64_t begin = eni_now_ns();
    EN_TRY(eni_model_evaluate_set(e->compute.model, e->flat, e->flat + e->schema.count, &set, &score));
    double seconds = (double)(eni_now_ns() - begin) * 1e-9;
    if (d->classes > 0)
        printf("Test set: Average loss: %.4f, Accuracy: %" PRIu64 "/%" PRIu64 " (%.2f%%)\n", score.loss,
               score.correct, score.count, score.accuracy * 100);
    else
        printf("Test set: Average loss: %.6f\n", score.loss);
    printf("Time elapsed: %.2f s, %.0f samples/s on %s\n", seconds, (double)score.count / seconds,
           e->compute.device.ops->describe(e->compute.device.ctx));
    return EN_OK;
}

en_status eni_command_eval(const eni_command_context *context)
{
    evaluation e = {.config = context->config};
    en_status st = open_all(&e, context->plugin_dir);
    if (st == EN_EIO || st == EN_ENONFINITE || st == EN_ENOMEM) st = EN_EINVAL; /* a file, or the machine */
    if (st == EN_OK) st = evaluate(&e);
    eni_compute_close(&e.compute);
    eni_free(e.flat);
    eni_dataset_close(e.dataset);
    en_schema_fini(&e.schema);
    return st;
}
