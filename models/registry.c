/* registry.c - the built-in networks, and those from a file: a new one is a list of layers here, or a builder in a file of
 * its own, and an entry in `networks`. */
#include "models/registry.h"

#include <stddef.h>
#include <stdio.h>

#include "core/log.h"
#include "core/options.h"
#include "core/try.h"
#include "plugin/plugin.h"

/* The toy network of PyTorch's distributed tutorials: small enough to check by hand. */
static const en_layer toy_layers[] = {
    EN_LINEAR_RELU("net1", 10),
    EN_LINEAR("net2", 5),
    EN_MSE,
    EN_END,
};

static const en_network toy = {.abi = EN_NETWORK_ABI,
                               .size = sizeof(en_network),
                               .name = "toy",
                               .help = "10-10-5 with ReLU and MSE, for synthetic data",
                               .input = {1, 1, 1, 10},
                               .layers = toy_layers};

/* A multi-layer perceptron with one hidden layer for 28 x 28 images. */
static const en_layer mlp_layers[] = {
    EN_FLATTEN, EN_LINEAR_RELU("fc1", 256), EN_LINEAR("fc2", EN_CLASSES), EN_CROSS_ENTROPY, EN_END,
};

static const en_network mlp = {.abi = EN_NETWORK_ABI,
                               .size = sizeof(en_network),
                               .name = "mlp",
                               .help = "784-256-10 with ReLU and cross-entropy",
                               .input = {1, 28, 28, 1},
                               .layers = mlp_layers};

/* The MNIST network of PyTorch's examples (after LeNet-5, LeCun et al. 1998). */
static const en_layer convnet_layers[] = {
    EN_CONV2D("conv1", 20, 5),
    EN_RELU_MAXPOOL(2),
    EN_CONV2D("conv2", 50, 5),
    EN_RELU_MAXPOOL(2),
    EN_FLATTEN,
    EN_LINEAR_RELU("fc1", 500),
    EN_LINEAR("fc2", EN_CLASSES),
    EN_LOG_SOFTMAX,
    EN_NLL,
    EN_END,
};

static const en_network convnet = {
    .abi = EN_NETWORK_ABI,
    .size = sizeof(en_network),
    .name = "convnet",
    .help = "conv 20 5x5, pool, conv 50 5x5, pool, 500, 10 with log-softmax and NLL",
    .input = {1, 28, 28, 1},
    .layers = convnet_layers};

static const en_network *const networks[] = {&toy, &mlp, &convnet, &eni_resnet18};
enum { NNETWORKS = sizeof networks / sizeof networks[0] };

const en_network *eni_network_at(int index)
{
    return index >= 0 && index < NNETWORKS ? networks[index] : NULL;
}

/* ---- looking up a user's name ------------------------------------------------------------------------ */

static en_status check(const char *path, const void *table)
{
    const en_network *n = table;
    if (n->help != NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "plugin", "%s: network %s has no help; describe it in one line", path,
                    n->name);
}

ENI_PLUGIN_KIND(en_network, EN_NETWORK, offsetof(en_network, next), .what = "model", .plural = "models",
                .options = offsetof(en_network, options), .next = offsetof(en_network, next),
                .name_max = EN_MAX_TENSOR_NAME, .check = check, .remedy = ENI_PLUGIN_REMEDY);

en_status eni_network_get(const char *place, const char *spec, const en_network **network_out)
{
    char word[ENI_PLUGIN_WORD_MAX], said[120];
    const char *options;
    const void *table;
    EN_TRY(eni_plugin_split(place, spec, word, &options));
    if (eni_plugin_is_path(word)) {
        EN_TRY(eni_plugin_find(&kind, word, &table));
    } else {
        eni_plugin_search search = {.kind = &kind, .name = word, .place = said};
        snprintf(said, sizeof said, "%s=%.80s", place, spec);
        for (int i = 0; i < NNETWORKS; i++)
            eni_plugin_look(&search, networks[i]);
        EN_TRY(eni_plugin_answer(&search, &table));
    }
    *network_out = table;
    return EN_OK;
}

en_status eni_network_schema(const char *place, const char *spec, const en_data_shape *data,
                             en_schema *schema_out)
{
    const en_network *network;
    EN_TRY(eni_network_get(place, spec, &network));
    return en_schema_init_for(network, eni_spec_options(spec), data, schema_out);
}
