/* network.h - a built-in network by its name. */
#ifndef TESTS_NETWORK_H
#define TESTS_NETWORK_H

#include <string.h>

#include "models/registry.h"

/* NULL: none is called so. */
static inline const en_network *network_named(const char *name)
{
    const en_network *network;
    for (int i = 0; (network = eni_network_at(i)) != NULL && strcmp(network->name, name) != 0;)
        i++;
    return network;
}

#endif
