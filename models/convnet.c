/* convnet.c - the MNIST network of PyTorch's examples (after LeNet-5, LeCun et al. 1998). */
#include "models/networks.h"

static const en_layer layers[] = {
    EN_CONV2D("conv1", 20, 5),
    EN_RELU_MAXPOOL(2),
    EN_CONV2D("conv2", 50, 5),
    EN_RELU_MAXPOOL(2),
    EN_FLATTEN,
    EN_LINEAR_RELU("fc1", 500),
    EN_LINEAR("fc2", 10),
    EN_LOG_SOFTMAX,
    EN_NLL,
    EN_END,
};

const en_network eni_convnet = {"convnet",
                                "conv 20 5x5, pool, conv 50 5x5, pool, 500, 10 with log-softmax and NLL",
                                {1, 28, 28, 1},
                                layers};
