/* timing.c - how long things take in a simulation, in words: neighbours that are alike are one group. */
#include <stdio.h>
#include <string.h>

#include "runtime/net/shaper.h"
#include "virtual/simulation.h"

enum { TEXT = 256 };

/* Appends [who, what], or adds who to the last pair where that has the same text. */
static void add(json_t *list, const char *owner, int32_t lo, int32_t hi, const char *what)
{
    const size_t n = json_array_size(list);
    json_t *last = n > 0 ? json_array_get(list, n - 1) : NULL;
    char who[64], both[TEXT];
    snprintf(who, sizeof who, lo == hi ? "%s %d" : "%ss %d-%d", owner, lo, hi);
    if (last == NULL || strcmp(json_string_value(json_array_get(last, 1)), what) != 0) {
        json_array_append_new(list, json_pack("[s, s]", who, what));
        return;
    }
    snprintf(both, sizeof both, "%s, %s", json_string_value(json_array_get(last, 0)), who);
    json_array_set_new(last, 0, json_string(both));
}

/* Adds each run of equal texts of 0 .. n - 1. */
static void add_groups(json_t *list, const char *owner, int32_t n, const void *all,
                       void (*describe)(const void *all, int32_t i, char text_out[TEXT]))
{
    char text[TEXT], next[TEXT];
    int32_t first = 0;
    describe(all, 0, text);
    for (int32_t i = 1; i <= n; i++) {
        if (i < n) describe(all, i, next);
        if (i < n && strcmp(text, next) == 0) continue;
        add(list, owner, first, i - 1, text);
        first = i;
        memcpy(text, next, TEXT);
    }
}

static void describe_law(const void *all, int32_t i, char text_out[TEXT])
{
    eni_law_text((const eni_law *)all + i, text_out, TEXT);
}

static void describe_link(const void *all, int32_t i, char text_out[TEXT])
{
    const eni_net_link *link = (const eni_net_link *)all + i;
    eni_net_describe((uint64_t)link->bytes_per_s, link->delay_ns, text_out, TEXT);
    if (link->bytes_per_s == 0 && link->delay_ns == 0) snprintf(text_out, TEXT, "no time");
}

static json_t *network(const eni_virtual *v)
{
    static const char *const owners[] = {"rank", "machine", "server"};
    json_t *list = json_array();
    for (int o = 0; o < ENI_NET_OWNERS; o++) {
        const bool is_used = o == ENI_NET_RANKS || (o == ENI_NET_MACHINES && v->links.has_machines) ||
                             (o == ENI_NET_SERVERS && v->sim.strategy->flags & EN_STORE_ON_SERVERS);
        if (is_used) add_groups(list, owners[o], v->links.n[o], v->links.of[o], describe_link);
    }
    return list;
}

static json_t *service(const eni_virtual *v)
{
    json_t *list = json_array();
    char text[TEXT];
    if (v->service != NULL) add_groups(list, "server", v->links.n[ENI_NET_SERVERS], v->service, describe_law);
    if (v->sim.service.ns_per_byte > 0) {
        snprintf(text, sizeof text, "%g ms/MB", v->sim.service.ns_per_byte);
        add(list, "server", 0, v->links.n[ENI_NET_SERVERS] - 1, text);
    }
    return list;
}

json_t *eni_virtual_timing(const eni_virtual *v)
{
    json_t *timing = json_object(), *compute = json_array(), *stragglers = json_array();
    char text[TEXT];
    add_groups(compute, "rank", v->sim.nranks, v->laws, describe_law);
    for (int i = 0; i < v->sim.compute.nslow; i++) {
        eni_slowdown_text(&v->slow[i], text, sizeof text);
        add(stragglers, "rank", v->slow[i].lo, v->slow[i].hi, text);
    }
    json_object_set_new(timing, "compute", compute);
    json_object_set_new(timing, "stragglers", stragglers);
    json_object_set_new(timing, "network", network(v));
    json_object_set_new(timing, "server_time", service(v));
    return timing;
}
