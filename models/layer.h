/* layer.h - a layer of a network as an operation of a device: the one place that translates. */
#ifndef MODELS_LAYER_H
#define MODELS_LAYER_H

#include "entrain/model.h"

/* The operation of `layer` on an input of extent x; flags as in the list. */
en_op eni_layer_op(const en_layer *layer, en_extent x);

/* 1 if the layer is a loss, the end of a network. */
int eni_layer_is_loss(const en_layer *layer);

/* 1 if the layer moves no byte: flattening what has one channel or one pixel. */
int eni_layer_is_view(const en_layer *layer, en_extent x);

/* "conv2d", "relu", ...; "unknown" for what this file does not know. */
const char *eni_layer_op_name(uint32_t op);

#endif
