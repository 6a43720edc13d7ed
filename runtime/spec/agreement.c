/* agreement.c - see agreement.h. */
#include "runtime/spec/agreement.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "entrain/strategy.h"

en_status eni_agreement_add(eni_agreement *agreement, const char *key, const char *value)
{
    size_t key_bytes = strlen(key) + 1, value_bytes = strlen(value) + 1;
    if (agreement->n == ENI_AGREEMENT_PAIRS ||
        agreement->used + key_bytes + value_bytes > ENI_AGREEMENT_BYTES) {
        eni_error("join", "the configuration is too long for a JOIN: give --bucket-cap-mb a larger value");
        return EN_EINVAL;
    }
    char *k = agreement->text + agreement->used, *v = k + key_bytes;
    memcpy(k, key, key_bytes);
    memcpy(v, value, value_bytes);
    agreement->used += key_bytes + value_bytes;
    agreement->pair[agreement->n++] = (eni_pair){k, v};
    return EN_OK;
}

en_status eni_agreement_add_number(eni_agreement *agreement, const char *key, double value)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) { /* the shortest that reads back: as the user wrote it */
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return eni_agreement_add(agreement, key, text);
}

en_status eni_agreement_add_whole(eni_agreement *agreement, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return eni_agreement_add(agreement, key, text);
}

static en_status add_buckets(eni_agreement *agreement, const eni_buckets *buckets)
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
    if (st == EN_OK) st = eni_agreement_add(agreement, "buckets", counts);
    if (st == EN_OK) st = eni_agreement_add(agreement, "bucket-offsets", offsets);
    eni_free(counts);
    eni_free(offsets);
    return st;
}

static en_status add_optimizer(eni_agreement *agreement, const eni_run_facts *facts)
{
    static const char *const schedules[] = {"constant", "step", "cosine"}; /* eni_schedule_kind */
    const eni_schedule *schedule = &facts->schedule;
    EN_TRY(eni_agreement_add(agreement, "optimizer", facts->optimizer->name));
    EN_TRY(eni_agreement_add_number(agreement, "momentum", (double)facts->hyper.momentum));
    EN_TRY(eni_agreement_add_whole(agreement, "nesterov", facts->hyper.nesterov != 0));
    EN_TRY(eni_agreement_add_number(agreement, "weight-decay", (double)facts->hyper.weight_decay));
    EN_TRY(eni_agreement_add_number(agreement, "lr", schedule->base));
    EN_TRY(eni_agreement_add(agreement, "lr-schedule", schedules[schedule->kind]));
    EN_TRY(eni_agreement_add_whole(agreement, "lr-warmup", schedule->warmup));
    EN_TRY(eni_agreement_add_whole(agreement, "lr-step", schedule->step_samples));
    return eni_agreement_add_number(agreement, "lr-gamma", schedule->gamma);
}

en_status eni_agreement_add_build(eni_agreement *agreement, const char *version)
{
    EN_TRY(eni_agreement_add(agreement, "version", version));
    return eni_agreement_add_whole(agreement, "strategy-abi", EN_STRATEGY_ABI);
}

en_status eni_agreement_add_run(eni_agreement *agreement, const eni_run_facts *facts)
{
    EN_TRY(eni_agreement_add(agreement, "strategy-name", facts->strategy));
    EN_TRY(eni_agreement_add(agreement, "strategy-options", facts->strategy_options));
    EN_TRY(add_optimizer(agreement, facts));
    EN_TRY(eni_agreement_add(agreement, "sum-order", facts->sum_order == ENI_SUM_RING ? "ring" : "rank"));
    if (eni_pair_find(agreement->pair, agreement->n, "seed") == NULL)
        EN_TRY(eni_agreement_add_whole(agreement, "seed", facts->seed));
    EN_TRY(eni_agreement_add_whole(agreement, "total-samples", facts->schedule.total));
    EN_TRY(eni_agreement_add_whole(agreement, "budget", facts->budget));
    EN_TRY(eni_agreement_add_whole(agreement, "elements", facts->elements));
    EN_TRY(eni_agreement_add_whole(agreement, "net-rate", facts->net_bytes_per_s));
    EN_TRY(eni_agreement_add_whole(agreement, "net-delay", (uint64_t)facts->net_delay_ns));
    return add_buckets(agreement, facts->buckets);
}
