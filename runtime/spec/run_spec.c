/* run_spec.c - appends the run's key-values to a JOIN, one function per kind of value. */
#include "runtime/spec/run_spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "entrain/strategy.h"
#include "runtime/net/wire.h"

en_status eni_run_spec_add(eni_run_spec *spec, const char *key, const char *value)
{
    size_t key_bytes = strlen(key) + 1, value_bytes = strlen(value) + 1;
    if (spec->n == ENI_RUN_SPEC_MAX || spec->used + key_bytes + value_bytes > ENI_RUN_SPEC_BYTES)
        return eni_fail(EN_EINVAL, "join",
                        "the run's settings and buckets are too long for a message to the leader: use a "
                        "larger --bucket-cap-mb");
    char *k = spec->text + spec->used, *v = k + key_bytes;
    memcpy(k, key, key_bytes);
    memcpy(v, value, value_bytes);
    spec->used += key_bytes + value_bytes;
    spec->key_value[spec->n++] = (eni_key_value){k, v};
    return EN_OK;
}

en_status eni_run_spec_add_number(eni_run_spec *spec, const char *key, double value)
{
    char text[40];
    eni_format_real(value, text, sizeof text);
    return eni_run_spec_add(spec, key, text);
}

en_status eni_run_spec_add_whole(eni_run_spec *spec, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return eni_run_spec_add(spec, key, text);
}

static en_status add_buckets(eni_run_spec *spec, const eni_buckets *buckets)
{
    size_t room = (size_t)buckets->n * 22 + 1;
    char *counts = eni_alloc(room), *offsets = eni_alloc(room);
    en_status st = counts == NULL || offsets == NULL ? EN_ENOMEM : EN_OK;
    size_t c = 0, o = 0;
    for (uint32_t b = 0; st == EN_OK && b < buckets->n; b++) {
        const eni_bucket_range *range = &buckets->bucket[b];
        c += (size_t)snprintf(counts + c, room - c, "%s%" PRIu64, b ? "," : "", range->hi - range->lo);
        o += (size_t)snprintf(offsets + o, room - o, "%s%" PRIu64, b ? "," : "", range->lo);
    }
    if (st == EN_OK) st = eni_run_spec_add(spec, "buckets", counts);
    if (st == EN_OK) st = eni_run_spec_add(spec, "bucket-offsets", offsets);
    eni_free(counts);
    eni_free(offsets);
    return st;
}

static en_status add_milestones(eni_run_spec *spec, const eni_schedule *schedule)
{
    char text[ENI_MILESTONES * 21] = "";
    if (schedule->kind != ENI_LR_MULTISTEP) return EN_OK;
    eni_schedule_milestones(schedule, text, sizeof text);
    return eni_run_spec_add(spec, "lr-milestones", text);
}

/* Frees the text; NULL: out of memory. */
static en_status add_own(eni_run_spec *spec, const char *key, char *text)
{
    const en_status st = text == NULL ? EN_ENOMEM : eni_run_spec_add(spec, key, text);
    eni_free(text);
    return st;
}

en_status eni_run_spec_add_method(eni_run_spec *spec, const eni_run_attributes *attributes)
{
    EN_TRY(eni_run_spec_add(spec, "strategy-name", attributes->strategy));
    EN_TRY(eni_run_spec_add(spec, "strategy-options", attributes->strategy_options));
    EN_TRY(eni_run_spec_add(spec, "optimizer", attributes->optimizer->name));
    EN_TRY(eni_run_spec_add_number(spec, "momentum", (double)attributes->hyper.momentum));
    EN_TRY(eni_run_spec_add_whole(spec, "nesterov", attributes->hyper.nesterov != 0));
    EN_TRY(eni_run_spec_add_number(spec, "weight-decay", (double)attributes->hyper.weight_decay));
    if (attributes->optimizer->adam != NULL) {
        EN_TRY(eni_run_spec_add_number(spec, "beta1", attributes->hyper.beta1));
        EN_TRY(eni_run_spec_add_number(spec, "beta2", attributes->hyper.beta2));
        EN_TRY(eni_run_spec_add_number(spec, "eps", attributes->hyper.eps));
    }
    return eni_run_spec_add_number(spec, "lr", attributes->schedule.base);
}

static en_status add_schedule(eni_run_spec *spec, const eni_schedule *schedule)
{
    EN_TRY(eni_run_spec_add(spec, "lr-schedule", eni_schedule_names[schedule->kind]));
    EN_TRY(eni_run_spec_add_whole(spec, "lr-warmup", schedule->warmup));
    EN_TRY(eni_run_spec_add_whole(spec, "lr-step", schedule->step_samples));
    EN_TRY(add_milestones(spec, schedule));
    if (schedule->points != NULL) EN_TRY(add_own(spec, "lr-points", eni_rate_points_text(schedule->points)));
    return eni_run_spec_add_number(spec, "lr-gamma", schedule->gamma);
}

en_status eni_run_spec_add_protocol(eni_run_spec *spec)
{
    EN_TRY(eni_run_spec_add_whole(spec, "protocol", ENI_WIRE_VERSION));
    return eni_run_spec_add_whole(spec, "strategy-abi", EN_STRATEGY_ABI);
}

en_status eni_run_spec_add_run(eni_run_spec *spec, const eni_run_attributes *attributes)
{
    if (attributes->hyper.groups != NULL)
        EN_TRY(add_own(spec, "groups", eni_groups_text(attributes->hyper.groups)));
    EN_TRY(add_schedule(spec, &attributes->schedule));
    EN_TRY(eni_run_spec_add(spec, "sum-order", attributes->sum_order == ENI_SUM_RING ? "ring" : "rank"));
    if (eni_key_value_find(spec->key_value, spec->n, "seed") == NULL)
        EN_TRY(eni_run_spec_add_whole(spec, "seed", attributes->seed));
    EN_TRY(eni_run_spec_add_whole(spec, "total-samples", attributes->schedule.total));
    EN_TRY(eni_run_spec_add_whole(spec, "budget", attributes->budget));
    EN_TRY(eni_run_spec_add_whole(spec, "elements", attributes->elements));
    EN_TRY(eni_run_spec_add_whole(spec, "net-rate", attributes->net_bytes_per_s));
    EN_TRY(eni_run_spec_add_whole(spec, "net-delay", (uint64_t)attributes->net_delay_ns));
    return add_buckets(spec, attributes->buckets);
}
