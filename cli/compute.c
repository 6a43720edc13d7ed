/* compute.c - see compute.h. */
#include "cli/compute.h"

#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "ops/device.h"

/* Which GPU, where --device does not say. */
static en_status choose_gpu(const char *spec, const char *plugin_dir, int local_rank, int nlocal,
                            int *index_out)
{
    const en_device *table;
    int32_t count = 0;
    *index_out = 0;
    if (strcmp(spec, "cuda") != 0) return EN_OK;
    EN_TRY(eni_device_load(spec, plugin_dir, &table));
    EN_TRY(table->gpu->count(eni_device_host(), &count));
    const int index = eni_gpu_of_rank(local_rank, nlocal, count);
    *index_out = index > 0 ? index : 0;
    return EN_OK;
}

static en_status options_of(const eni_config *c, const eni_device *device, en_model_options *options_out)
{
    static const uint32_t dtypes[] = {
        [ENI_PRECISION_FP32] = EN_F32, [ENI_PRECISION_BF16] = EN_BF16, [ENI_PRECISION_FP16] = EN_F16};
    *options_out = (en_model_options){.size = sizeof *options_out, .dtype = dtypes[c->precision]};
    if (options_out->dtype == EN_F32 || !(device->ops->flags & EN_DEVICE_HOST)) return EN_OK;
    eni_error("device", "--precision=%s: %s computes in fp32; leave it out, or use --device=cuda",
              c->precision == ENI_PRECISION_BF16 ? "bf16" : "fp16", device->ops->name);
    return EN_EINVAL;
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
