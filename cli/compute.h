/* compute.h - opens the device and the model that a command's options name. */
#ifndef CLI_COMPUTE_H
#define CLI_COMPUTE_H

#include "config/config.h"
#include "entrain/model.h"
#include "ops/device.h"

typedef struct eni_compute {
    eni_device device;
    en_model *model;
} eni_compute;

/* --device, --precision, --tf32, --deterministic. "cuda" without a number is the GPU of process `local_rank`
 * among the `nlocal` of this host (ops/device.h). The schema outlives it. Returns the errors of
 * eni_device_open_with, and EN_EINVAL for fp16 on a device of the host (logged). */
en_status eni_compute_open(const eni_config *config, const char *plugin_dir, int threads, int local_rank,
                           int nlocal, const en_schema *schema, eni_compute *compute_out);

void eni_compute_close(eni_compute *compute); /* safe on a zeroed struct and twice */

#endif
