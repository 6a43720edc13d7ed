/* statistics.c - where the running statistics of a rank lie, and their way to the host. */
#include "worker/statistics.h"

#include "core/memory.h"
#include "core/try.h"

struct eni_statistics {
    int64_t n;     /* of `state`: one, or one for each rank that this process plays */
    float **state; /* (n) device memory */
    float *host;   /* for eni_state_on_host */
};

static en_status start(const eni_worker *w, eni_statistics *s)
{
    const en_schema *schema = &w->rank.job.schema;
    const uint64_t bytes = schema->nstate * sizeof(float);
    en_schema_init_state(schema, s->host);
    for (int64_t i = 0; i < s->n; i++) {
        EN_TRY(w->device.ops->alloc(w->device.ctx, bytes, (void **)&s->state[i]));
        EN_TRY(w->device.ops->copy(w->device.ctx, s->state[i], s->host, bytes, EN_COPY_IN));
    }
    return EN_OK;
}

en_status eni_statistics_open(eni_worker *w)
{
    const en_schema *schema = &w->rank.job.schema;
    if (schema->nstate == 0) return EN_OK;
    eni_statistics *s = w->statistics = eni_alloc(sizeof *s);
    if (s == NULL) return EN_ENOMEM;
    s->n = w->rank.job.accumulate;
    s->state = eni_alloc_array((size_t)s->n, sizeof *s->state);
    s->host = eni_alloc_array(schema->nstate, sizeof *s->host);
    return s->state != NULL && s->host != NULL ? start(w, s) : EN_ENOMEM;
}

void eni_statistics_close(eni_worker *w)
{
    eni_statistics *s = w->statistics;
    if (s == NULL) return;
    for (int64_t i = 0; s->state != NULL && i < s->n && !w->gpu.is_stuck; i++)
        w->device.ops->free(w->device.ctx, s->state[i]);
    eni_free(s->state);
    eni_free(s->host);
    eni_free(s);
    w->statistics = NULL;
}

float *eni_state_of(const eni_worker *w, int64_t micro)
{
    return w->statistics == NULL ? NULL : w->statistics->state[micro];
}

en_status eni_state_on_host(eni_worker *w, const float **state_out)
{
    eni_statistics *s = w->statistics;
    *state_out = NULL;
    if (s == NULL) return EN_OK;
    EN_TRY(w->device.ops->copy(w->device.ctx, s->host, s->state[0], w->rank.job.schema.nstate * sizeof(float),
                               EN_COPY_OUT));
    EN_TRY(w->device.ops->sync(w->device.ctx));
    *state_out = s->host;
    return EN_OK;
}
