/* registry.c - see registry.h. */
#include "models/registry.h"

#include <string.h>

#include "models/layer.h"
#include "models/networks.h"

static const en_network *const networks[] = {&eni_toy, &eni_mlp, &eni_convnet};
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

const char *eni_loss_name(uint32_t loss)
{
    return eni_layer_op_name(loss);
}
