/* networks.c - files of networks for test_plugin.c, one per value of FILE_OF. */
#include <stddef.h>

#include "entrain/graph.h"

enum { GOOD = 1, SAME_NAME, SHORT_TEXT };

static const en_option options[] = {
    {.size = sizeof(en_option), .type = EN_OPT_INT, .key = "depth", .help = "layers", .value = 3, .max = 9},
    {.size = FILE_OF == SHORT_TEXT ? offsetof(en_option, text) : 0,
     .type = EN_OPT_TEXT,
     .key = "stem",
     .help = "whose default lies behind its end"},
    {0}};

/* Its header's en_network ended before `next`: what is there is not for this program. */
static const en_network last = {.abi = EN_NETWORK_ABI,
                                .size = offsetof(en_network, next),
                                .name = FILE_OF == SAME_NAME ? "first" : "last",
                                .help = "which ends before `next`",
                                .options = options,
                                .next = &last};
static const en_network first = {.abi = EN_NETWORK_ABI,
                                 .size = sizeof first,
                                 .name = "first",
                                 .help = "with another behind it",
                                 .next = &last};

EN_EXPORT const en_network *en_network_entry(uint32_t host_abi)
{
    return host_abi == EN_NETWORK_ABI ? &first : 0;
}
