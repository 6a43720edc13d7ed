/* mlp.c - a multi-layer perceptron with one hidden layer for 28 x 28 images. */
#include "models/networks.h"

static const en_layer layers[] = {
    EN_FLATTEN, EN_LINEAR_RELU("fc1", 256), EN_LINEAR("fc2", 10), EN_CROSS_ENTROPY, EN_END,
};

const en_network eni_mlp = {"mlp", "784-256-10 with ReLU and cross-entropy", {1, 28, 28, 1}, layers};
