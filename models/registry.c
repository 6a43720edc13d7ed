/* registry.c - see registry.h. */
#include "models/registry.h"

#include <string.h>

#include "core/edit_distance.h"
#include "core/log.h"
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

en_status eni_network_get(const char *place, const char *name, const en_network **network_out)
{
    const char *nearest = networks[0]->name;
    *network_out = eni_network_find(name);
    if (*network_out != NULL) return EN_OK;
    for (int i = 1; i < NNETWORKS; i++)
        if (eni_edit_distance(name, networks[i]->name) < eni_edit_distance(name, nearest))
            nearest = networks[i]->name;
    eni_error("models", "%s=%.80s: there is no such model; the nearest is %s, and `entrain models` lists all",
              place, name, nearest);
    return EN_EINVAL;
}

const char *eni_loss_name(uint32_t loss)
{
    return eni_layer_op_name(loss);
}
