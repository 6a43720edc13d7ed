/* devices.c - checks that --device, --parallel, --stages, --split, --micro-batches and similar keys fit each other; the network,
 * the data and the GPUs are checked later. */
#include <stdio.h>
#include <string.h>

#include "config/keys.h"
#include "core/try.h"
#include "entrain/device.h"
#include "run/device_list.h"
#include "run/units.h"

static bool has_stages(const eni_config *c)
{
    return c->parallel == ENI_PARALLEL_MODEL || c->parallel == ENI_PARALLEL_PIPELINE;
}

/* The batch that one rank splits; for `entrain scale`, whose rows share a global batch, that of the row with most ranks. */
static int64_t batch_of(const eni_config *c)
{
    int64_t most = 1, n;
    if (c->program != ENI_SCALE || c->global_batch_size == 0) return c->batch_size;
    for (int i = 0; i < c->ranks.count; i++)
        if (eni_parse_i64(c->ranks.item[i], &n) && n > most) most = n;
    return c->global_batch_size / most;
}

static int count_stages(const char *split)
{
    int n = 1;
    for (; split != NULL && *split != '\0'; split += strcspn(split, ",+"), split += *split != '\0')
        n++;
    return n;
}

int eni_config_ndevices(const eni_config *config)
{
    eni_device_list list = {0};
    if (config->parallel == ENI_PARALLEL_NONE) return 1;
    if (has_stages(config) && config->stages > 0) return (int)config->stages;
    if (has_stages(config) && config->split != NULL) return count_stages(config->split);
    return eni_device_list_read(config->device, &list) == NULL ? list.n : 0; /* checked with the key */
}

static bool rounds_factors(const eni_config *c)
{
    eni_device_list list = {0};
    const bool is_known = eni_device_list_read(c->device, &list) == NULL; /* checked with the key; or auto */
    return c->precision == ENI_PRECISION_BF16 && !(is_known && eni_device_list_is_gpu(&list));
}

uint32_t eni_config_dtype(const eni_config *config)
{
    static const uint32_t types[] = {
        [ENI_PRECISION_FP32] = EN_F32, [ENI_PRECISION_BF16] = EN_BF16, [ENI_PRECISION_FP16] = EN_F16};
    return rounds_factors(config) ? (uint32_t)EN_F32 : types[config->precision];
}

uint32_t eni_config_open_flags(const eni_config *config)
{
    return (config->tf32 ? EN_OPEN_TF32 : 0U) | (config->deterministic ? EN_OPEN_DETERMINISTIC : 0U) |
           (rounds_factors(config) ? EN_OPEN_BF16 : 0U);
}

/* Drops stages from a config.yaml if the command line has --parallel=none or data. */
static void forget_stages(eni_config *c)
{
    const int parallel = eni_key_named("parallel"), stages = eni_key_named("stages"),
              split = eni_key_named("split");
    if (has_stages(c) || c->origin[parallel] < ENI_FROM_FLAG) return;
    if (c->origin[stages] == ENI_FROM_FILE) c->stages = 0, c->origin[stages] = ENI_FROM_DEFAULT;
    if (c->origin[split] != ENI_FROM_FILE) return;
    eni_key_clear(c, &eni_keys[split]);
    c->origin[split] = ENI_FROM_DEFAULT;
}

/* Drops a --pipeline from the config.yaml of a run without one, and refuses one given by the user. */
static en_status check_schedule(eni_config *c)
{
    const int k = eni_key_named("pipeline");
    if (c->parallel == ENI_PARALLEL_PIPELINE || c->origin[k] == ENI_FROM_DEFAULT) return EN_OK;
    if (c->pipeline == ENI_PIPELINE_1F1B && c->origin[k] == ENI_FROM_FILE) {
        c->origin[k] = ENI_FROM_DEFAULT; /* so it is not passed to the workers */
        return EN_OK;
    }
    char room[64];
    return eni_config_refuse("--pipeline: \"%s\" is a pipeline's schedule; give --parallel=pipeline too",
                             eni_key_text(c, &eni_keys[k], room));
}

/* Without --parallel: one device, and no split. */
static en_status check_one(const eni_config *c, const eni_device_list *list)
{
    if (list->n < 2 && !list->is_all) return EN_OK;
    if (!eni_config_takes(c, "parallel"))
        return eni_config_refuse(
            "--device: \"%s\" is several devices, but %s computes on one; give one of them", c->device,
            eni_program_name(c->program));
    return eni_config_refuse("--device: \"%s\" is several devices; to use them give "
                             "--parallel=data, --parallel=model or --parallel=pipeline, or one device",
                             c->device);
}

static en_status check_split(const eni_config *c)
{
    char stages[32];
    snprintf(stages, sizeof stages, "%lld", (long long)c->stages);
    if (c->stages == 0 && c->split == NULL) return EN_OK;
    if (!has_stages(c))
        return eni_config_refuse("--%s: \"%s\" splits the network, but --parallel=%s does not; give "
                                 "--parallel=pipeline or --parallel=model",
                                 c->split != NULL ? "split" : "stages", c->split != NULL ? c->split : stages,
                                 c->parallel == ENI_PARALLEL_DATA ? "data" : "none");
    if (c->stages > 0 && c->split != NULL && c->stages != count_stages(c->split))
        return eni_config_refuse(
            "--stages: \"%lld\" contradicts --split=%s, which makes %d; give only one of them",
            (long long)c->stages, c->split, count_stages(c->split));
    return EN_OK;
}

static en_status check_stages(const eni_config *c, const eni_device_list *list, const char *parallel)
{
    const int n = eni_config_ndevices(c);
    if (n == 0 && !list->is_all)
        return eni_config_refuse(
            "--parallel: \"%s\" splits the network, but the number of stages is missing; give "
            "--stages=2, the devices, such as --device=cpu:0,cpu:1, or --split=NAME,..",
            parallel);
    if (list->n > 0 && list->n != n)
        return eni_config_refuse("--device: \"%s\" is %d device%s for %d stages; give one for each, or "
                                 "--device=%s without numbers",
                                 c->device, list->n, list->n == 1 ? "" : "s", n, list->kind);
    if (n == 1)
        return eni_config_refuse("--parallel: \"%s\" needs several stages; give --stages=2 or more",
                                 parallel);
    if (c->parallel == ENI_PARALLEL_MODEL && c->micro_batches > 1)
        return eni_config_refuse("--micro-batches: \"%lld\" needs stages that work at the same time; those "
                                 "of --parallel=model take turns; give --parallel=pipeline",
                                 (long long)c->micro_batches);
    return EN_OK;
}

static en_status check_replicas(const eni_config *c, const eni_device_list *list)
{
    const int n = eni_config_ndevices(c);
    if (n == 0 && !eni_device_list_is_gpu(list))
        return eni_config_refuse("--parallel: \"data\" needs several devices of this host; name them, such "
                                 "as --device=cpu:0,cpu:1");
    if (c->micro_batches > 0)
        return eni_config_refuse(
            "--micro-batches: \"%lld\" conflicts with --parallel=data, which already splits the batch "
            "among the devices; omit one of them",
            (long long)c->micro_batches);
    if (n > batch_of(c))
        return eni_config_refuse(
            "--device: \"%s\" is %d devices for a batch of %lld samples; give a --batch-size of %d or more",
            c->device, n, (long long)batch_of(c), n);
    return EN_OK;
}

static en_status check_cuts(const eni_config *c)
{
    if (c->micro_batches > batch_of(c))
        return eni_config_refuse(
            "--micro-batches: \"%lld\" exceeds the %lld samples of %s; give %lld at most",
            (long long)c->micro_batches, (long long)batch_of(c),
            c->program == ENI_SCALE && c->global_batch_size > 0 ? "a worker in the row with most"
                                                                : "--batch-size",
            (long long)batch_of(c));
    if (c->precision == ENI_PRECISION_FP16 && (c->micro_batches > 1 || c->parallel != ENI_PARALLEL_NONE))
        return eni_config_refuse("--precision: \"fp16\" scales the gradients of a whole batch on one device; "
                                 "give --precision=bf16, or omit %s",
                                 c->parallel != ENI_PARALLEL_NONE ? "--parallel" : "--micro-batches");
    if (c->backend == ENI_BACKEND_NCCL && (c->micro_batches > 1 || c->parallel != ENI_PARALLEL_NONE))
        return eni_config_refuse("--backend: \"nccl\" is for gradients that stay on one GPU, but %s copies "
                                 "them to the host; give --backend=host, or omit it",
                                 c->parallel != ENI_PARALLEL_NONE ? "--parallel" : "--micro-batches");
    return EN_OK;
}

static en_status check_data_on_device(const eni_config *c, const eni_device_list *list)
{
    if (c->data_on_device != ENI_ON_DEVICE_ON) return EN_OK;
    if (!eni_device_list_is_gpu(list))
        return eni_config_refuse(
            "--data-on-device=on keeps images on a GPU, but --device=%s is not a GPU; give "
            "--device=cuda, or omit it",
            c->device);
    const char *flag = c->resize > 0                      ? "resize"
                       : c->parallel != ENI_PARALLEL_NONE ? "parallel"
                       : c->micro_batches > 1             ? "micro-batches"
                                                          : NULL;
    return flag == NULL
               ? EN_OK
               : eni_config_refuse("--data-on-device=on makes whole batches of stored images on one GPU, "
                                   "but --%s does not; omit one of the two",
                                   flag);
}

en_status eni_config_check_devices(eni_config *c)
{
    static const char *const words[] = {"none", "data", "model", "pipeline"};
    eni_device_list list = {0};
    if (!eni_config_takes(c, "device")) return EN_OK;
    (void)eni_device_list_read(c->device, &list); /* checked with the key */
    if (c->parallel == ENI_PARALLEL_NONE) EN_TRY(check_one(c, &list));
    if (!eni_config_takes(c, "parallel")) return EN_OK;
    forget_stages(c);
    EN_TRY(check_split(c));
    EN_TRY(check_schedule(c));
    if (has_stages(c)) EN_TRY(check_stages(c, &list, words[c->parallel]));
    if (c->parallel == ENI_PARALLEL_DATA) EN_TRY(check_replicas(c, &list));
    if (c->gpu_sharing && !eni_device_list_is_gpu(&list))
        return eni_config_refuse(
            "--gpu-sharing distributes GPUs, but --device=%s is not a GPU; give --device=cuda, or omit it",
            c->device);
    EN_TRY(check_data_on_device(c, &list));
    return check_cuts(c);
}
