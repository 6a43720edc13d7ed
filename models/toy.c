/* toy.c - the toy network of PyTorch's distributed tutorials: small enough to check by hand. */
#include "models/networks.h"

static const en_layer layers[] = {
    EN_LINEAR_RELU("net1", 10),
    EN_LINEAR("net2", 5),
    EN_MSE,
    EN_END,
};

const en_network eni_toy = {"toy", "10-10-5 with ReLU and MSE, for synthetic data", {1, 1, 1, 10}, layers};
