/* net_links.h - the links of a network in virtual time: --net. Pure functions, apart from logging.
 *
 *     rate:1Gbit,delay:50us                     the link of every rank and server
 *     ..;8-15=rate:100Mbit,delay:20ms           another one for ranks 8 to 15
 *     ..;servers=rate:25Gbit,delay:50us         for the servers, or servers:0-1=.. for some
 *     ..;machines=rate:10Gbit,delay:50us        for each machine (--local-size), or machines:0=..: its ranks share it on the
 *                                               way to others, and use their own among themselves */
#ifndef RUN_NET_LINKS_H
#define RUN_NET_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"

typedef struct eni_net_link {
    int64_t delay_ns;
    double bytes_per_s; /* each way; 0: unlimited */
} eni_net_link;

enum { ENI_NET_RANKS, ENI_NET_MACHINES, ENI_NET_SERVERS, ENI_NET_OWNERS };

/* The links of n[ENI_NET_RANKS] ranks, and so on. */
typedef struct eni_net_links {
    int32_t n[ENI_NET_OWNERS];
    eni_net_link *of[ENI_NET_OWNERS]; /* (n) */
    bool has_machines;                /* the text gives machines links */
} eni_net_links;

/* NULL if `text` has the form above, else the expected form. */
const char *eni_net_links_check(const char *text);

/* Overwrites the links of the owners that the text names; a number goes before all of a kind, which goes before a link without
 * owners. EN_EINVAL, logged: a number beyond n, or an owner given twice. */
en_status eni_net_links_read(const char *text, eni_net_links *links);

#endif
