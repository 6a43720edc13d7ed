/* registry.h - the networks that --model takes, built in or in a file, and what can be said about one without a
 * device. */
#ifndef MODELS_REGISTRY_H
#define MODELS_REGISTRY_H

#include <stdbool.h>

#include "entrain/model.h"

extern const en_network eni_resnet18;

/* What a user named: "convnet", "resnet18:width=8", "./mine.so:depth=3", "./mine.so@second"; options are not looked
 * at (eni_spec_options has them). Errors as of eni_plugin_find, logged with `place` ("--model") or the file. A file stays
 * loaded until the process ends. */
en_status eni_network_get(const char *place, const char *spec, const en_network **network_out);

/* The same, and its schema for such data: what a run needs. */
en_status eni_network_schema(const char *place, const char *spec, const en_data_shape *data,
                             en_schema *schema_out);

/* All built-in networks: index 0.. until NULL. */
const en_network *eni_network_at(int index);

#endif
