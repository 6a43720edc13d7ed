/* branches.c - a custom network with branches: two readers of an output, and a sum (docs/models.md).
 *
 *     cc -shared -fPIC -I../include branches.c -o branches.so
 *     entrain run -n 2 --strategy=ring --model=./branches.so:width=8 */
#include "entrain/graph.h"

static en_at build(en_graph *g, en_at x) /* x: the batch */
{
    const int64_t width = (int64_t)g->num(g, "width");
    en_at y = en_batchnorm_relu(g, en_conv(g, x, "conv1", width, 3, 1, 1), "bn1");
    en_at wide = en_conv(g, y, "conv2", width, 3, 1, 1); /* y is read twice: here, and */
    y = en_batchnorm_add_relu(g, wide, y, "bn2");        /* here: relu(bn2(wide) + y) */
    y = en_maxpool(g, y, 3, 2, 1);
    return en_cross_entropy(g, en_linear(g, en_global_mean(g, y), "fc", en_classes(g)));
}

static const en_option options[] = {
    {.size = sizeof(en_option),
     .type = EN_OPT_INT,
     .key = "width",
     .help = "channels",
     .value = 16,
     .min = 1,
     .max = 512},
    {.size = 0},
};

static const en_network branches = {.abi = EN_NETWORK_ABI,
                                    .size = sizeof(en_network),
                                    .name = "branches",
                                    .help = "two convolutions with batch normalisation, one around the other",
                                    .input = {1, 0, 0, 0},
                                    .build = build,
                                    .options = options};

EN_EXPORT const en_network *en_network_entry(uint32_t host_abi)
{
    return host_abi == EN_NETWORK_ABI ? &branches : 0;
}
