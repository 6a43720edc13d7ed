/* gpus_json.c - see gpus.h. */
#include <string.h>

#include "cli/gpus.h"
#include "ops/gpu_of_rank.h"

static const char *link_word(int link)
{
    static const char *const words[] = {[EN_LINK_NONE] = "none",
                                        [EN_LINK_HOST] = "host",
                                        [EN_LINK_PCIE] = "pcie",
                                        [EN_LINK_NVLINK] = "nvlink",
                                        [EN_LINK_SAME] = "same"};
    return link >= EN_LINK_NONE && link <= EN_LINK_SAME ? words[link] : "none";
}

static json_t *bytes_or_null(uint64_t bytes)
{
    return bytes > 0 ? json_integer((json_int_t)bytes) : json_null();
}

/* A process may call itself by bytes that are no text. */
static json_t *name_or_null(const char *name)
{
    json_t *text = name[0] != 0 ? json_string(name) : NULL;
    return text != NULL ? text : json_null();
}

static json_t *users_of(const eni_gpus_one *g)
{
    if (g->nusers < 0) return json_null();
    json_t *users = json_array();
    for (int i = 0; i < g->nusers && i < ENI_GPUS_USERS; i++)
        json_array_append_new(users, json_pack("{s:I, s:o, s:o}", "pid", (json_int_t)g->users[i].user.pid,
                                               "program", name_or_null(g->users[i].program), "bytes",
                                               bytes_or_null(g->users[i].user.bytes)));
    return users;
}

static json_t *gpu(const eni_gpus_one *g, int index)
{
    const en_gpu_facts *f = &g->facts;
    char capability[24];
    snprintf(capability, sizeof capability, "%d.%d", (int)f->major, (int)f->minor);
    return json_pack("{s:i, s:o, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "index", index, "name",
                     name_or_null(f->name), "uuid", f->uuid, "bus", f->bus, "compute_capability", capability,
                     "memory_bytes", bytes_or_null(f->memory_bytes), "free_bytes",
                     bytes_or_null(f->free_bytes), "nusers",
                     g->nusers < 0 ? json_null() : json_integer(g->nusers), "users", users_of(g));
}

static json_t *links(const eni_gpus *gpus)
{
    json_t *rows = json_array();
    for (int a = 0; a < gpus->n; a++) {
        json_t *row = json_array();
        for (int b = 0; b < gpus->n; b++)
            json_array_append_new(row, json_string(link_word(a == b ? EN_LINK_SAME : gpus->link[a][b])));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *ranks(const eni_gpus *gpus)
{
    json_t *all = json_array();
    for (int r = 0; r < gpus->nranks; r++)
        json_array_append_new(
            all, json_pack("{s:i, s:i}", "rank", r, "gpu", eni_gpu_of_rank(r, gpus->nranks, gpus->n)));
    return all;
}

json_t *eni_gpus_json(const eni_gpus *gpus)
{
    char verdict[ENI_GPUS_VERDICT];
    json_t *list = json_array();
    for (int i = 0; i < gpus->n; i++)
        json_array_append_new(list, gpu(&gpus->gpu[i], i));
    json_t *all = json_pack("{s:i, s:o, s:o, s:o}", "schema", 1, "gpus", list, "links", links(gpus),
                            "collectives", name_or_null(gpus->group));
    if (gpus->nranks == 0) return all;
    eni_gpus_verdict(gpus, verdict, sizeof verdict);
    json_object_set_new(all, "ranks", ranks(gpus));
    json_object_set_new(all, "verdict", json_string(verdict));
    return all;
}
