/* registry.h - the networks that --model accepts, built in or from a file, and their schemas without a device. */
#ifndef MODELS_REGISTRY_H
#define MODELS_REGISTRY_H

#include "entrain/model.h"

extern const en_network eni_resnet18;

/* Finds a network by the user's name: "convnet", "resnet18:width=8", "./mine.so:depth=3", "./mine.so@second"; ignores
 * options (see eni_spec_options). Errors as of eni_plugin_find, logged with `place` ("--model") or the file. A file stays
 * loaded until the process ends. */
en_status eni_network_get(const char *place, const char *spec, const en_network **network_out);

/* The same, with its schema for such data. */
en_status eni_network_schema(const char *place, const char *spec, const en_data_shape *data,
                             en_schema *schema_out);

/* The built-in networks by index from 0; NULL after the last. */
const en_network *eni_network_at(int index);

#endif
