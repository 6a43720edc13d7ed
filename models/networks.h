/* networks.h - the networks that are built in; a new one is a file like convnet.c and a line here and in
 * registry.c. */
#ifndef MODELS_NETWORKS_H
#define MODELS_NETWORKS_H

#include "entrain/model.h"

extern const en_network eni_toy;
extern const en_network eni_mlp;
extern const en_network eni_convnet;

#endif
