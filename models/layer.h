/* layer.h - a layer of a network as an operation of a device: the one place that translates. */
#ifndef MODELS_LAYER_H
#define MODELS_LAYER_H

#include "entrain/model.h"

/* The operation of `layer` on an input of extent x and type dtype; flags as in the list. */
en_op eni_layer_op(const en_layer *layer, en_extent x, uint32_t dtype);

/* What makes a batch, which is float32, the first layer's input of another type. */
en_op eni_cast_op(en_extent x, uint32_t dtype);

/* The types of an operation's input and output: its dtype, but where device.h says float32. */
uint32_t eni_op_x_dtype(const en_op *op);
uint32_t eni_op_y_dtype(const en_op *op);

/* 1 if the layer is a loss, the end of a network. */
int eni_layer_is_loss(const en_layer *layer);

/* 1 if the layer moves no byte: flattening what has one channel or one pixel. */
int eni_layer_is_view(const en_layer *layer, en_extent x);

/* "conv2d", "relu", ...; "unknown" for what this file does not know. */
const char *eni_layer_op_name(uint32_t op);

#endif
