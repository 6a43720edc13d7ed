/* graph.c - see graph.h. */
#include "worker/graph.h"
#include "worker/vectors.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { EAGER_STEPS = 3 };

struct eni_graphs {
    const en_gpu *gpu;
    en_graph *graph[2]; /* by input buffer */
    int neager;         /* full batches so far that were put in call by call */
    uint64_t nlaunched;
    const char *why_not; /* "" as long as it may be */
};

static const char *obstacle(const eni_worker *w)
{
    if (!w->config->graph) return "--no-graph";
    if (w->config->straggler.count > 0) return "--straggler"; /* its time is that of compute alone */
    if (w->rank.job.accumulate > 1) return "--accumulate";    /* a gradient of its own for each micro-batch */
    if (!eni_vectors_are_on_gpu(w) && w->rank.world.nranks == 1 && !eni_rank_has_store(&w->rank))
        return "the host averages its gradient"; /* staged, as with --accumulate */
    return "";
}

en_status eni_graphs_open(eni_worker *w)
{
    if (w->device.ops->gpu == NULL) return EN_OK;
    w->gpu.graphs = eni_alloc(sizeof *w->gpu.graphs);
    if (w->gpu.graphs == NULL) return EN_ENOMEM;
    w->gpu.graphs->gpu = w->device.ops->gpu;
    w->gpu.graphs->why_not = obstacle(w);
    return EN_OK;
}

void eni_graphs_close(eni_worker *w)
{
    if (w->gpu.graphs == NULL || w->gpu.is_stuck) return;
    for (int i = 0; i < 2; i++)
        w->gpu.graphs->gpu->graph_free(w->gpu.graphs->graph[i]);
    eni_free(w->gpu.graphs);
    w->gpu.graphs = NULL;
}

int eni_graphs_is_due(eni_worker *w, int is_full_batch)
{
    eni_graphs *g = w->gpu.graphs;
    if (!is_full_batch || g->why_not[0] != 0) return 0;
    if (g->neager == EAGER_STEPS) return 1;
    g->neager++;
    return 0;
}

/* The capture ends in any case: what follows is done and not captured. */
static en_status record(eni_worker *w, int buffer, en_status (*enqueue)(void *user), void *user)
{
    eni_graphs *g = w->gpu.graphs;
    const int64_t begin = eni_now_ns();
    EN_TRY(g->gpu->capture_begin(w->device.ctx));
    const en_status put_in = enqueue(user);
    const en_status ended = g->gpu->capture_end(w->device.ctx, &g->graph[buffer]);
    if (put_in == EN_OK && ended == EN_OK) {
        eni_debug("graph", "input buffer %d: the step was captured in %.1f ms", buffer,
                  (double)(eni_now_ns() - begin) * 1e-6);
        return EN_OK;
    }
    if (ended == EN_OK) g->gpu->graph_free(g->graph[buffer]); /* a piece of a step */
    g->graph[buffer] = NULL;
    return put_in != EN_OK && put_in != EN_EUNSUPPORTED ? put_in : ended != EN_OK ? ended : put_in;
}

en_status eni_graphs_launch(eni_worker *w, int buffer, en_status (*enqueue)(void *user), void *user,
                            int *is_launched_out)
{
    eni_graphs *g = w->gpu.graphs;
    *is_launched_out = 0;
    if (g->graph[buffer] == NULL) {
        const en_status st = record(w, buffer, enqueue, user);
        if (st == EN_EUNSUPPORTED) {
            g->why_not = "the device cannot capture this step";
            eni_info("graph",
                     "rank %d: the device cannot capture a step of this model: its calls are made one by one",
                     w->rank.world.rank);
            return EN_OK;
        }
        EN_TRY(st);
    }
    EN_TRY(g->gpu->launch(g->graph[buffer]));
    g->nlaunched++;
    *is_launched_out = 1;
    return EN_OK;
}

uint64_t eni_graphs_count(const eni_worker *w)
{
    return w->gpu.graphs == NULL ? 0 : w->gpu.graphs->nlaunched;
}

const char *eni_graphs_why_not(const eni_worker *w)
{
    return w->gpu.graphs == NULL ? "" : w->gpu.graphs->why_not;
}
