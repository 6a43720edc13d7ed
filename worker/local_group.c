/* local_group.c - the ranks of this host as a group of their own, for strategies whose hosts meet at the
 * servers only (EN_LEADERS_ARE_CLIENTS). Nobody connects to a rank of another host then: there is no group of
 * all. */
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "worker/worker.h"

/* The world as if this host's ranks were all: what mesh.h needs of it. */
static en_status describe(eni_worker *w)
{
    eni_local_group *g = &w->local;
    const eni_world_info *all = w->info;
    g->peers = eni_alloc_array((size_t)w->world.nlocal, sizeof *g->peers);
    if (g->peers == NULL) return EN_ENOMEM;
    g->info = *all;
    g->info.nranks = 0;
    for (int r = 0; r < all->nranks; r++) {
        if (strcmp(all->peers[r].host_id, all->peers[all->rank].host_id) != 0) continue;
        if (r == all->rank) g->info.rank = g->info.nranks;
        g->peers[g->info.nranks++] = all->peers[r];
    }
    g->info.peers = g->peers;
    return EN_OK;
}

static en_status reach(eni_worker *w, int64_t deadline)
{
    eni_local_group *g = &w->local;
    const size_t n = (size_t)g->info.nranks;
    const int abort_fd = eni_member_fd(w->member);
    g->arenas = eni_alloc_array(n, sizeof *g->arenas);
    if (g->arenas == NULL) return EN_ENOMEM;
    g->arenas[g->info.rank] = w->arena;
    if (g->choice.transport == ENI_OVER_SHM)
        return eni_mesh_arenas(&w->mesh, &g->info, &w->token, w->arena, deadline, abort_fd, g->arenas);
    g->sockets = eni_alloc_array(n, sizeof *g->sockets);
    if (g->sockets == NULL) return EN_ENOMEM;
    return eni_mesh_sockets(&w->mesh, &g->info, &w->token, deadline, abort_fd, g->sockets);
}

/* --net emulates what is between hosts: inside one it is not in the way. */
en_status eni_local_group_open(eni_worker *w, eni_coll_trace trace, int64_t deadline)
{
    eni_local_group *g = &w->local;
    if (w->world.nlocal < 2) return EN_OK;
    const eni_coll_facts facts = {.asked = ENI_COLL_AUTO,
                                  .nranks = w->world.nlocal,
                                  .nhosts = 1,
                                  .no_shm =
                                      w->config->transport == ENI_TRANSPORT_TCP ? "--transport=tcp" : NULL};
    EN_TRY(eni_coll_choose(&facts, &g->choice));
    EN_TRY(describe(w));
    EN_TRY(reach(w, deadline));
    const eni_coll_config config = {.rank = g->info.rank,
                                    .nranks = g->info.nranks,
                                    .epoch = w->world.epoch,
                                    .algorithm = g->choice.algorithm,
                                    .transport = g->choice.transport,
                                    .sum_order = (eni_sum_order)w->config->sum_order,
                                    .arenas = g->arenas,
                                    .area = ENI_AREA_LOCAL,
                                    .sockets = g->sockets,
                                    .trace = trace,
                                    .trace_user = w,
                                    .alive = {eni_worker_alive, w, eni_member_fd(w->member)}};
    EN_TRY(eni_coll_open(&config, &g->coll));
    eni_free(g->sockets); /* the group has them now */
    g->sockets = NULL;
    eni_debug("exchange", "inside this host %s: %s", eni_coll_algorithm_name(g->choice.algorithm),
              g->choice.why);
    return EN_OK;
}

en_status eni_local_group_spread(eni_worker *w)
{
    for (uint32_t b = 0; b < w->buckets->n && w->local.coll != NULL; b++) {
        const eni_bucket_range *range = &w->buckets->bucket[b];
        const eni_coll_op op = {.op = EN_BCAST,
                                .what = EN_WEIGHTS,
                                .bucket = b,
                                .slot = ENI_SLOT_PARAM,
                                .offset = range->lo,
                                .count = range->hi - range->lo};
        EN_TRY(eni_coll_run(w->local.coll, &op));
    }
    return EN_OK;
}

en_status eni_local_group_samples(const eni_worker *w, uint64_t step, uint64_t *samples_out)
{
    const eni_local_group *g = &w->local;
    eni_micro micro;
    *samples_out = 0;
    for (int i = 0; i < g->info.nranks; i++) {
        EN_TRY(eni_plan_micro(&w->plan, step * w->plan.world + (uint64_t)g->peers[i].rank, &micro));
        *samples_out += micro.count;
    }
    return EN_OK;
}

void eni_local_group_close(eni_worker *w)
{
    eni_local_group *g = &w->local;
    eni_coll_close(g->coll);
    for (int r = 0; g->sockets != NULL && r < g->info.nranks; r++)
        if (g->sockets[r] >= 0) close(g->sockets[r]);
    for (int r = 0; g->arenas != NULL && r < g->info.nranks; r++)
        if (r != g->info.rank) eni_arena_close(g->arenas[r]);
    eni_free(g->sockets);
    eni_free(g->arenas);
    eni_free(g->peers);
}
