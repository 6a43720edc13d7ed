/* scores.c - see scores.h. */
#include "worker/scores.h"

#include "core/memory.h"
#include "core/try.h"
#include "worker/vectors.h"

typedef struct score_set {
    float (*pair)[2];   /* (accumulate) registered: mean loss, hits */
    uint64_t *nsamples; /* (accumulate) behind each */
    int n;
    en_event *event;
} score_set;

struct eni_scores {
    const en_gpu *gpu;
    score_set set[2];
    int at;
};

en_status eni_scores_open(eni_worker *w)
{
    if (w->device.ops->gpu == NULL) return EN_OK;
    const uint64_t n = (uint64_t)w->rank.job.accumulate;
    eni_scores *scores = eni_alloc(sizeof *scores);
    if (scores == NULL) return EN_ENOMEM;
    w->gpu.scores = scores;
    scores->gpu = w->device.ops->gpu;
    for (int i = 0; i < 2; i++) {
        score_set *set = &scores->set[i];
        set->nsamples = eni_alloc_array(n, sizeof *set->nsamples);
        set->pair = eni_gpu_host_alloc(w, n * sizeof *set->pair);
        if (set->pair == NULL || set->nsamples == NULL) return EN_ENOMEM;
        EN_TRY(scores->gpu->event_new(w->device.ctx, &set->event));
    }
    return EN_OK;
}

void eni_scores_close(eni_worker *w)
{
    eni_scores *scores = w->gpu.scores;
    if (scores == NULL || w->gpu.is_stuck) return;
    for (int i = 0; i < 2; i++) {
        eni_gpu_host_free(w, scores->set[i].pair);
        eni_free(scores->set[i].nsamples);
        scores->gpu->event_free(scores->set[i].event);
    }
    eni_free(scores);
    w->gpu.scores = NULL;
}

void eni_scores_begin(eni_scores *scores, int set)
{
    scores->at = set;
    scores->set[set].n = 0;
}

float *eni_scores_pair(eni_scores *scores, uint64_t nsamples)
{
    score_set *set = &scores->set[scores->at];
    set->nsamples[set->n] = nsamples;
    return set->pair[set->n++];
}

en_status eni_scores_end(eni_scores *scores)
{
    return scores->gpu->event_record(scores->set[scores->at].event, EN_STREAM_COMPUTE);
}

int eni_scores_are_there(const eni_worker *w, int set)
{
    return w->gpu.scores->gpu->poll(w->gpu.scores->set[set].event) == EN_OK;
}

en_status eni_scores_read(eni_worker *w, int at, double *loss_out, uint64_t *correct_out)
{
    const score_set *set = &w->gpu.scores->set[at];
    *loss_out = 0;
    *correct_out = 0;
    EN_TRY(eni_gpu_wait(w, set->event, "its loss"));
    for (int i = 0; i < set->n; i++) {
        *loss_out += (double)set->pair[i][0] * (double)set->nsamples[i];
        *correct_out += (uint64_t)set->pair[i][1];
    }
    return EN_OK;
}
