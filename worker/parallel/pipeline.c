/* pipeline.c - see pipeline.h. */
#include "worker/parallel/pipeline.h"

#include "core/memory.h"

int eni_pipeline_turns(eni_pipeline_kind kind, int nstages, int nchunks, int stage, eni_turn *turns_out)
{
    /* forwards before the first backward; then both alternate until only backwards are left */
    const int ahead = eni_pipeline_in_flight(kind, nstages, nchunks, stage);
    int n = 0, forward = 0, backward = 0;
    while (backward < nchunks) {
        const bool goes_back = forward == nchunks || forward - backward == ahead;
        turns_out[n++] = (eni_turn){goes_back, goes_back ? backward++ : forward++};
    }
    return n;
}

int eni_pipeline_in_flight(eni_pipeline_kind kind, int nstages, int nchunks, int stage)
{
    const int ahead = nstages - stage; /* of 1F1B */
    if (kind == ENI_GPIPE || nchunks < ahead) return nchunks;
    return ahead;
}

double eni_pipeline_bubble(int nstages, int nchunks)
{
    return nchunks < 1 ? 0 : (double)(nstages - 1) / (double)(nchunks + nstages - 1);
}

/* A stage while a schedule is played. */
typedef struct stage {
    eni_turn *turns;
    int at, nturns;
    double now;                 /* when it is free */
    double *forward, *backward; /* (nchunks) when each was done; below 0: not yet */
} stage;

/* When the input of this turn is there; below 0: not known yet. */
static double ready_at(const stage *stages, int nstages, int s, const eni_turn *turn)
{
    if (!turn->is_backward) return s == 0 ? 0 : stages[s - 1].forward[turn->chunk];
    return s == nstages - 1 ? stages[s].forward[turn->chunk] : stages[s + 1].backward[turn->chunk];
}

/* Plays the turns of a stage as far as possible; returns how many. */
static int play_stage(stage *stages, int nstages, int s, const double *f, const double *b)
{
    stage *g = &stages[s];
    int n = 0;
    for (; g->at < g->nturns; g->at++, n++) {
        const eni_turn *turn = &g->turns[g->at];
        const double ready = ready_at(stages, nstages, s, turn);
        if (ready < 0) break;
        g->now = (ready > g->now ? ready : g->now) + (turn->is_backward ? b[s] : f[s]);
        (turn->is_backward ? g->backward : g->forward)[turn->chunk] = g->now;
    }
    return n;
}

en_status eni_pipeline_play(eni_pipeline_kind kind, int nstages, int nchunks, const double *f,
                            const double *b, double *bubble_out, double *seconds_out)
{
    const size_t cells = (size_t)nstages * (size_t)nchunks;
    stage *stages = eni_alloc_array((size_t)nstages, sizeof *stages);
    eni_turn *turns = eni_alloc_array(2 * cells + 1, sizeof *turns);
    double *done = eni_alloc_array(2 * cells + 1, sizeof *done);
    const bool has_all = stages != NULL && turns != NULL && done != NULL;
    double busy = 0, end = 0;
    for (int s = 0; has_all && s < nstages; s++) {
        const size_t at = (size_t)s * (size_t)nchunks;
        stages[s] =
            (stage){.turns = turns + 2 * at, .forward = done + 2 * at, .backward = done + 2 * at + nchunks};
        stages[s].nturns = eni_pipeline_turns(kind, nstages, nchunks, s, stages[s].turns);
        for (int c = 0; c < nchunks; c++)
            stages[s].forward[c] = stages[s].backward[c] = -1;
    }
    for (int played = 1; has_all && played > 0;) {
        played = 0;
        for (int s = 0; s < nstages; s++)
            played += play_stage(stages, nstages, s, f, b);
    }
    for (int s = 0; has_all && s < nstages; s++) {
        busy += nchunks * (f[s] + b[s]);
        end = stages[s].now > end ? stages[s].now : end;
    }
    *bubble_out = end > 0 ? 1 - busy / (nstages * end) : 0;
    if (seconds_out != NULL) *seconds_out = end;
    eni_free(stages);
    eni_free(turns);
    eni_free(done);
    return has_all ? EN_OK : EN_ENOMEM;
}
