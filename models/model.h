/* model.h - what the rest of this folder asks of an en_model (entrain/model.h). */
#ifndef MODELS_MODEL_H
#define MODELS_MODEL_H

#include "entrain/model.h"
#include "ops/device.h"

/* Enqueues forward and loss of one batch in a size of its own for evaluation. The result: en_model_fetch. */
en_status eni_model_forward_only(en_model *model, const float *param, const en_batch *batch);

/* Its schema, and where it runs; both borrowed. */
const en_schema *eni_model_device(const en_model *model, eni_device *device_out);

#endif
