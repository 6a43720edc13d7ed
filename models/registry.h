/* registry.h - the networks that --model takes, and what can be said about one without a device. */
#ifndef MODELS_REGISTRY_H
#define MODELS_REGISTRY_H

#include "entrain/model.h"

/* By name, or NULL. Static data. */
const en_network *eni_network_find(const char *name);

/* The same for a user's word: EN_EINVAL, logged with `place` ("--model") and the nearest name. */
en_status eni_network_get(const char *place, const char *name, const en_network **network_out);

/* All networks: index 0.. until NULL. */
const en_network *eni_network_at(int index);

#endif
