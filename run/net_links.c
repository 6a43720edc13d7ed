/* net_links.c - --net with links by rank, machine and server (net_links.h). */
#include "run/net_links.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "run/units.h"

static const char EXPECTED[] =
    "rate:RATE,delay:TIME, or either, such as rate:200MB,delay:50us or rate:1Gbit; a rate ends in B (bytes a "
    "second) or bit, a delay in s, ms or us; for some links after ';', as ..;8-15=rate:100Mbit, "
    "..;servers=.. or ..;machines=..";

static const char *const owners[] = {"ranks", "machines", "servers"};

/* The owners that a part names. */
typedef struct owner_range {
    int owner, last_owner; /* one kind, or all */
    int32_t lo, hi;        /* hi -1: all of them */
    uint8_t level;         /* a part replaces those of lower levels; 0: nothing has been said yet */
} owner_range;

/* "8-15", "servers", "servers:0-1", or NULL. */
static bool read_owners(const char *who, owner_range *out)
{
    *out = (owner_range){.last_owner = ENI_NET_OWNERS - 1, .hi = -1, .level = 1};
    if (who == NULL) return true;
    const size_t length = strcspn(who, ":");
    for (int i = 0; i < ENI_NET_OWNERS; i++) {
        if (strncmp(who, owners[i], length) != 0 || owners[i][length] != '\0') continue;
        out->owner = out->last_owner = i;
        out->level = who[length] == ':' ? 3 : 2;
        return who[length] == '\0' || eni_parse_range(who + length + 1, &out->lo, &out->hi);
    }
    out->last_owner = ENI_NET_RANKS;
    out->level = 3;
    return eni_parse_range(who, &out->lo, &out->hi);
}

/* Reads each part; without links, checks only. */
typedef struct link_reader {
    eni_net_links *links;
    uint8_t *level[ENI_NET_OWNERS]; /* (n) of what has been said of each */
    int owner;                      /* with `number` wrong: named twice, or beyond n; else -1 */
    int32_t number;
    bool is_twice;
} link_reader;

static const char *take(void *user, char *who, const char *what)
{
    link_reader *r = user;
    uint64_t rate;
    eni_net_link link;
    owner_range range;
    if (!read_owners(who, &range) || !eni_net_parse(what, &rate, &link.delay_ns)) return EXPECTED;
    link.bytes_per_s = (double)rate;
    if (r->links == NULL) return NULL;
    if (who != NULL && range.owner == ENI_NET_MACHINES) r->links->has_machines = true;
    for (int o = range.owner; o <= range.last_owner; o++) {
        const int32_t n = r->links->n[o], hi = range.hi < 0 ? n - 1 : range.hi;
        for (int32_t i = range.lo; i <= hi; i++) {
            r->is_twice = i < n && r->level[o][i] == range.level;
            r->owner = o;
            r->number = i;
            if (i >= n || r->is_twice) return "";
            if (r->level[o][i] > range.level) continue;
            r->level[o][i] = range.level;
            r->links->of[o][i] = link;
        }
    }
    return NULL;
}

const char *eni_net_links_check(const char *text)
{
    return eni_each_part(text, take, &(link_reader){0}, EXPECTED);
}

en_status eni_net_links_read(const char *text, eni_net_links *links)
{
    link_reader r = {.links = links};
    const char *why = NULL;
    en_status st = EN_OK;
    for (int o = 0; o < ENI_NET_OWNERS; o++)
        if ((r.level[o] = calloc((size_t)links->n[o] + 1, 1)) == NULL)
            st = eni_fail(EN_ENOMEM, "net", "out of memory");
    if (st == EN_OK) why = eni_each_part(text, take, &r, EXPECTED);
    for (int o = 0; o < ENI_NET_OWNERS; o++)
        free(r.level[o]);
    if (why == NULL) return st;
    if (*why != '\0') return eni_fail(EN_EINVAL, "net", "--net=%s: give %s", text, why);
    if (r.is_twice)
        return eni_fail(EN_EINVAL, "net", "--net=%s: number %d of the %s has two links; give it one", text,
                        r.number, owners[r.owner]);
    return eni_fail(EN_EINVAL, "net", "--net=%s: there are %s 0 to %d; give one of them", text,
                    owners[r.owner], links->n[r.owner] - 1);
}
