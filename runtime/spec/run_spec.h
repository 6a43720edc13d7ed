/* run_spec.h - the settings that the ranks of a run must agree on, and that psd needs to hold its weights: the
 * key-values of a JOIN. server/setup.c reads them back. */
#ifndef SPEC_RUN_SPEC_H
#define SPEC_RUN_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "ops/mean.h"
#include "ops/optimizer.h"
#include "ops/schedule.h"
#include "runtime/control/control.h"
#include "runtime/spec/buckets.h"

enum { ENI_RUN_SPEC_MAX = 1024, ENI_RUN_SPEC_BYTES = 1 << 18 };

/* Pairs under construction, in the order of adding: texts live in one block. Zeroed memory is empty. Large:
 * not for a stack. */
typedef struct eni_run_spec {
    eni_key_value key_value[ENI_RUN_SPEC_MAX];
    size_t n, used;
    char text[ENI_RUN_SPEC_BYTES];
} eni_run_spec;

/* Copies both texts. EN_EINVAL, logged: no room. */
en_status eni_run_spec_add(eni_run_spec *spec, const char *key, const char *value);

/* The same for a number, exact; whole numbers separately, since a double cannot hold 2^53 + 1. */
en_status eni_run_spec_add_number(eni_run_spec *spec, const char *key, double value);
en_status eni_run_spec_add_whole(eni_run_spec *spec, const char *key, uint64_t value);

/* The number of the protocol (net/wire.h) and the ABI of strategies: processes of different builds form one run if
 * both are equal. Add it first: of several key-values that differ only the first is reported, so causes come
 * before effects. */
en_status eni_run_spec_add_protocol(eni_run_spec *spec);

/* A run as its store sees it. */
typedef struct eni_run_attributes {
    const char *strategy, *strategy_options; /* a name, never a path; canonical options */
    const eni_optimizer *optimizer;
    eni_hyper hyper;       /* all but lr and step */
    eni_schedule schedule; /* the rate, resolved; total: the run's samples */
    eni_sum_order sum_order;
    uint64_t seed;            /* unless "seed" was added before: synthetic data depend on it */
    uint64_t budget;          /* micro-batches that ranks may claim */
    uint64_t elements;        /* of the flat vector */
    uint64_t net_bytes_per_s; /* the emulated network; 0, 0: none */
    int64_t net_delay_ns;
    const eni_buckets *buckets;
} eni_run_attributes;

/* Adds them under the keys that psd looks for. Method: the strategy and the optimizer with their settings; run: what else
 * there is, which may follow from the tensors and the data, as buckets and a schedule in samples do. EN_EINVAL as above;
 * EN_ENOMEM. */
en_status eni_run_spec_add_method(eni_run_spec *spec, const eni_run_attributes *attributes);
en_status eni_run_spec_add_run(eni_run_spec *spec, const eni_run_attributes *attributes);

#endif
