/* registry.c - the networks that are built in: a new one is a list of layers here, and a name in `networks`.
 */
#include "models/registry.h"

#include <string.h>

#include "core/options.h"
#include "core/log.h"

/* The toy network of PyTorch's distributed tutorials: small enough to check by hand. */
static const en_layer toy_layers[] = {
    EN_LINEAR_RELU("net1", 10),
    EN_LINEAR("net2", 5),
    EN_MSE,
    EN_END,
};

static const en_network toy = {
    "toy", "10-10-5 with ReLU and MSE, for synthetic data", {1, 1, 1, 10}, toy_layers};

/* A multi-layer perceptron with one hidden layer for 28 x 28 images. */
static const en_layer mlp_layers[] = {
    EN_FLATTEN, EN_LINEAR_RELU("fc1", 256), EN_LINEAR("fc2", 10), EN_CROSS_ENTROPY, EN_END,
};

static const en_network mlp = {"mlp", "784-256-10 with ReLU and cross-entropy", {1, 28, 28, 1}, mlp_layers};

/* The MNIST network of PyTorch's examples (after LeNet-5, LeCun et al. 1998). */
static const en_layer convnet_layers[] = {
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

static const en_network convnet = {"convnet",
                                   "conv 20 5x5, pool, conv 50 5x5, pool, 500, 10 with log-softmax and NLL",
                                   {1, 28, 28, 1},
                                   convnet_layers};

static const en_network *const networks[] = {&toy, &mlp, &convnet};
enum { NNETWORKS = sizeof networks / sizeof networks[0] };

const en_network *eni_network_at(int index)
{
    return index >= 0 && index < NNETWORKS ? networks[index] : NULL;
}

const en_network *eni_network_find(const char *name)
{
    for (int i = 0; i < NNETWORKS; i++) {
        if (strcmp(networks[i]->name, name) == 0) return networks[i];
    }
    return NULL;
}

en_status eni_network_get(const char *place, const char *name, const en_network **network_out)
{
    const char *nearest = NULL;
    *network_out = eni_network_find(name);
    if (*network_out != NULL) return EN_OK;
    for (int i = 0; i < NNETWORKS; i++)
        if (eni_is_nearer(name, networks[i]->name, nearest)) nearest = networks[i]->name;
    return eni_fail(EN_EINVAL, "models", "%s=%.80s: there is no such model; %s%s%s`entrain models` lists all",
                    place, name, nearest ? "the nearest is " : "", nearest ? nearest : "",
                    nearest ? ", and " : "");
}
