/* registry.c - the networks that are built in: a new one is a list of layers here, or a builder in a file of its
 * own, and a name in `networks`; and those that a user brings as a file. */
#include "models/registry.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/options.h"
#include "core/try.h"
#include "plugin/elf_file.h"
#include "plugin/hook.h"

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

const en_network *eni_network_find(const char *name)
{
    for (int i = 0; i < NNETWORKS; i++) {
        if (strcmp(networks[i]->name, name) == 0) return networks[i];
    }
    return NULL;
}

/* ---- a network in a file ----------------------------------------------------------------------------- */

enum { TABLE_LEAST = offsetof(en_network, next), TABLES_MAX = 256, WORD_MAX = 4096 };

/* Nothing beyond abi and size is read before both are found good. */
static en_status check_table(const char *path, const en_network *n)
{
    if (n->abi != EN_NETWORK_ABI || n->size < TABLE_LEAST)
        return eni_fail(
            EN_EVERSION, "models",
            "%s has a network of ABI %u in %u bytes, this program reads ABI %u from %d bytes on; build it "
            "again with this program's include folder, and .size = sizeof(en_network)",
            path, n->abi, n->size, EN_NETWORK_ABI, (int)TABLE_LEAST);
    const size_t length = n->name != NULL ? strspn(n->name, "abcdefghijklmnopqrstuvwxyz0123456789-") : 0;
    if (length == 0 || length >= EN_MAX_TENSOR_NAME || n->name[length] != '\0')
        return eni_fail(EN_EINVAL, "models",
                        "%s calls a network '%.40s'; a name is 1 to %d characters of a-z, 0-9, '-'", path,
                        n->name != NULL ? n->name : "", EN_MAX_TENSOR_NAME - 1);
    if (n->help == NULL)
        return eni_fail(EN_EINVAL, "models", "%s: network %s has no help; say in a line what it is", path,
                        n->name);
    for (const en_option *o = n->options; o != NULL && o->size != 0; o = eni_option_next(o))
        EN_TRY(eni_option_check(path, "model", n->name, n->options, o));
    return EN_OK;
}

static const en_network *next_of(const en_network *n)
{
    return n->size >= sizeof *n ? n->next : NULL;
}

/* "./mine.so", or "./mine.so@second" for another than the first of its networks. */
static en_status load(const char *word, const en_network **network_out)
{
    static const eni_elf_words words = {.subsystem = "models",
                                        .what = "model",
                                        .place = "give the path of a shared object",
                                        .build = "build one: cc -shared -fPIC -I<include> mine.c -o mine.so"};
    char path[WORD_MAX];
    const char *at = strstr(word, ".so@"), *name = at != NULL ? at + 4 : NULL;
    snprintf(path, sizeof path, "%.*s", at != NULL ? (int)(at - word) + 3 : WORD_MAX - 1, word);
    void *symbol;
    en_network_entry_fn entry;
    EN_TRY(eni_elf_open(path, &words, EN_NETWORK_ENTRY,
                        "const en_network *" EN_NETWORK_ENTRY "(uint32_t host_abi)", &symbol));
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no conversion from an object to a function pointer */
    int n = 0;
    eni_hook_enter_named(EN_NETWORK_ENTRY, path);
    const en_network *first = entry(EN_NETWORK_ABI);
    eni_hook_leave_named();
    for (const en_network *network = first; network != NULL; network = next_of(network)) {
        if (++n > TABLES_MAX)
            return eni_fail(EN_EINVAL, "models", "%s chains more than %d networks: does `next` form a loop?",
                            path, TABLES_MAX);
        EN_TRY(check_table(path, network));
        *network_out = network;
        if (name == NULL || strcmp(network->name, name) == 0) return EN_OK;
    }
    return n == 0 ? eni_fail(
                        EN_EVERSION, "models",
                        "%s does not serve network ABI %u; build it again with this program's include folder",
                        path, EN_NETWORK_ABI)
                  : eni_fail(EN_ENOENT, "models",
                             "%s has no network %s; `entrain models %s` lists what it has", path, name, path);
}

/* ---- what a user named ------------------------------------------------------------------------------- */

en_status eni_network_get(const char *place, const char *spec, const en_network **network_out)
{
    char name[WORD_MAX];
    const size_t length = eni_spec_head(spec);
    if (length == 0 || length >= sizeof name)
        return eni_fail(EN_EINVAL, "models",
                        "%s=%.80s names no model: write a name such as convnet, or a path such as "
                        "./mine.so",
                        place, spec);
    snprintf(name, sizeof name, "%.*s", (int)length, spec);
    if (strchr(name, '/') != NULL || strstr(name, ".so") != NULL) return load(name, network_out);
    const char *nearest = NULL;
    *network_out = eni_network_find(name);
    if (*network_out != NULL) return EN_OK;
    for (int i = 0; i < NNETWORKS; i++)
        if (eni_is_nearer(name, networks[i]->name, nearest)) nearest = networks[i]->name;
    return eni_fail(EN_EINVAL, "models", "%s=%.80s: there is no such model; %s%s%s`entrain models` lists all",
                    place, name, nearest ? "the nearest is " : "", nearest ? nearest : "",
                    nearest ? ", and " : "");
}

en_status eni_network_schema(const char *place, const char *spec, const en_data_shape *data,
                             en_schema *schema_out)
{
    const en_network *network;
    EN_TRY(eni_network_get(place, spec, &network));
    return en_schema_init_for(network, eni_spec_options(spec), data, schema_out);
}
