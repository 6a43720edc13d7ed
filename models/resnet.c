/* resnet.c - residual networks (He et al., CVPR'16) as in torchvision, with its names and initial values. */
#include "models/registry.h"

#include <stdbool.h>
#include <string.h>

static en_at conv(en_graph *g, en_at x, const char *name, int64_t channels, int64_t kernel, int64_t stride)
{
    return g->init(g, en_conv(g, x, name, channels, kernel, stride, kernel / 2), EN_INIT_NORMAL_FAN_OUT);
}

static en_at block(en_graph *g, en_at x, const char *name, int64_t channels, int64_t stride)
{
    en_at y = conv(g, x, g->name(g, "%s.conv1", name), channels, 3, stride);
    y = en_batchnorm_relu(g, y, g->name(g, "%s.bn1", name));
    y = conv(g, y, g->name(g, "%s.conv2", name), channels, 3, 1);
    if (stride != 1 || en_channels(g, x) != channels) {
        x = conv(g, x, g->name(g, "%s.downsample.0", name), channels, 1, stride);
        x = en_batchnorm(g, x, g->name(g, "%s.downsample.1", name));
    }
    return en_batchnorm_add_relu(g, y, x, g->name(g, "%s.bn2", name)); /* relu(bn2(y) + x) */
}

static en_at build(en_graph *g, en_at x)
{
    const bool is_cifar = strcmp(g->text(g, "stem"), "cifar") == 0;
    const int64_t width = (int64_t)g->num(g, "width"), classes = (int64_t)g->num(g, "classes");
    if (!is_cifar && strcmp(g->text(g, "stem"), "imagenet") != 0)
        return g->refuse(g, "invalid stem=%s; give imagenet (7x7, stride 2, max pool) or cifar (3x3)",
                         g->text(g, "stem"));
    x = is_cifar ? conv(g, x, "conv1", width, 3, 1) : conv(g, x, "conv1", width, 7, 2);
    x = en_batchnorm_relu(g, x, "bn1");
    if (!is_cifar) x = en_maxpool(g, x, 3, 2, 1);
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < 2; i++)
            x = block(g, x, g->name(g, "layer%d.%d", stage + 1, i), width << stage,
                      stage > 0 && i == 0 ? 2 : 1);
    return en_cross_entropy(g,
                            en_linear(g, en_global_mean(g, x), "fc", classes > 0 ? classes : en_classes(g)));
}

static const en_option options[] = {
    {sizeof(en_option), EN_OPT_TEXT, "stem", "imagenet: 7x7, stride 2, max pool; cifar: 3x3", 0, 0, 0,
     "imagenet"},
    {sizeof(en_option), EN_OPT_INT, "width",
     "channels of the first stage; the others have 2, 4, 8 times as many", 64, 1, 4096, NULL},
    {sizeof(en_option), EN_OPT_INT, "classes", "outputs; 0: as many as the data has classes", 0, 0, 1 << 20,
     NULL},
    {0},
};

const en_network eni_resnet18 = {
    .abi = EN_NETWORK_ABI,
    .size = sizeof(en_network),
    .name = "resnet18",
    .help = "residual network of 18 layers with batch normalisation, for colour images",
    .input = {1, 0, 0, 3},
    .build = build,
    .options = options};
