/* resume_state.c - everything of a checkpoint back in its place; see save.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store.h"
#include "worker/save.h"
#include "worker/scaler.h"

static void put(const eni_worker *w, uint32_t slot, const eni_image *image)
{
    memcpy(eni_arena_at(w->arena, slot, 0), image->flat, w->schema.count * sizeof(float));
}

/* "rank.R/NAME" of this rank, or NULL. */
static const eni_image *of_rank(const eni_worker *w, const char *name)
{
    char full[2 * ENI_CHECKPOINT_NAME];
    snprintf(full, sizeof full, "rank.%d/%s", w->world.rank, name);
    return eni_checkpoint_find(&w->past, full);
}

en_status eni_resume_weights(eni_worker *w)
{
    if (w->is_resumed) put(w, ENI_SLOT_PARAM, eni_checkpoint_find(&w->past, ""));
    return EN_OK;
}

/* ---- the store ---- */

/* What is behind elements [lo, hi): of stretches that had come unequally far, the least. Partitions may be
 * cut differently from the ones that were saved. */
static eni_stretch behind(const eni_checkpoint *c, uint64_t lo, uint64_t hi)
{
    eni_stretch least = {lo, hi, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    for (uint32_t i = 0; i < c->nstretches; i++) {
        const eni_stretch *s = &c->stretches[i];
        if (s->hi <= lo || s->lo >= hi) continue;
        if (s->version < least.version) least.version = s->version;
        if (s->steps < least.steps) least.steps = s->steps;
        if (s->samples < least.samples) least.samples = s->samples;
    }
    if (least.samples == UINT64_MAX) least = (eni_stretch){lo, hi, 0, 0, c->samples};
    return least;
}

static void tell_past(eni_worker *w)
{
    for (uint32_t b = 0; b < w->buckets->n; b++)
        for (int s = 0; s < eni_client_shards(w->client); s++) {
            eni_partition_past past;
            eni_client_past(w->client, b, s, &past);
            eni_stretch is = behind(&w->past, past.lo, past.lo + past.count);
            past.version = is.version;
            past.steps = is.steps;
            past.samples = is.samples;
            eni_client_set_past(w->client, b, s, &past);
        }
}

en_status eni_resume_store(eni_worker *w)
{
    char name[ENI_CHECKPOINT_NAME];
    if (!w->is_resumed) return EN_OK;
    for (int i = 0; i < w->optimizer->slots(&w->hyper); i++) {
        snprintf(name, sizeof name, "optimizer.%s", w->optimizer->slot_names[i]);
        const eni_image *image = eni_checkpoint_find(&w->past, name);
        if (image == NULL) {
            eni_error("resume", "--resume=%s: it has no %s for the server", w->past_path, name);
            return EN_EINVAL;
        }
        put(w, ENI_SLOT_EVAL, image);
        for (uint32_t b = 0; b < w->buckets->n; b++)
            EN_TRY(eni_client_call(w->client, ENI_MSG_INIT, b, ENI_VECTOR_SLOT + (uint32_t)i, EN_WEIGHTS,
                                   ENI_SLOT_EVAL, ENI_SLOT_NONE, 0, 0));
        for (uint32_t b = 0; b < w->buckets->n; b++)
            EN_TRY(eni_client_wait(w->client, b));
    }
    tell_past(w);
    return EN_OK;
}

/* ---- a rank ---- */

static en_status missing(const eni_worker *w, const char *what)
{
    eni_error("resume", "--resume=%s: %s keeps %.60s in every rank, which a run of %s has not saved",
              w->past_path, w->strategy->name, what, w->past.strategy);
    return EN_EINVAL;
}

static en_status restore_slots(eni_worker *w)
{
    char name[ENI_CHECKPOINT_NAME];
    uint32_t first;
    const int n = eni_host_optimizer_slots(w->strategy_host, &first);
    int which;
    uint32_t slot;
    EN_TRY(eni_host_eval(w->strategy_host, &which, &slot));
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "optimizer.%s", w->optimizer->slot_names[i]);
        const eni_image *image = of_rank(w, name);
        if (image == NULL && eni_worker_has_store(w) && which != EN_EVAL_PARAM) continue; /* the server's */
        if (image == NULL) image = eni_checkpoint_find(&w->past, name);
        if (image == NULL) return missing(w, name);
        put(w, first + (uint32_t)i, image);
    }
    return EN_OK;
}

static en_status restore_vectors(eni_worker *w)
{
    eni_host_vector vectors[ENI_ARENA_NSLOTS];
    const int n = eni_host_vectors(w->strategy_host, vectors);
    const eni_image *param = of_rank(w, "param");
    if (param != NULL) put(w, ENI_SLOT_PARAM, param);
    for (int v = 0; v < n; v++) {
        const eni_image *image = of_rank(w, vectors[v].name);
        if (image == NULL) return missing(w, vectors[v].name);
        put(w, vectors[v].slot, image);
    }
    return EN_OK;
}

/* A state may name buckets: then they must be cut as they were. */
static en_status check_buckets(const eni_worker *w)
{
    const eni_checkpoint *c = &w->past;
    int is_same = eni_worker_has_store(w) || c->nstretches == w->buckets->n;
    for (uint32_t b = 0; b < w->buckets->n && is_same && !eni_worker_has_store(w); b++) {
        const eni_bucket_range *range = &w->buckets->bucket[b]; /* numbered from the end of the vector */
        const eni_stretch *stretch = &c->stretches[c->nstretches - 1 - b];
        is_same = stretch->lo == range->lo && stretch->hi == range->hi;
    }
    if (is_same) return EN_OK;
    eni_error("resume",
              "--resume=%s: %s keeps state for each of %u buckets, and here are %u others: give the same "
              "--bucket-cap-mb",
              w->past_path, w->strategy->name, c->nstretches, w->buckets->n);
    return EN_EINVAL;
}

static en_status restore_state(eni_worker *w)
{
    size_t bytes;
    void *state = eni_host_state(w->strategy_host, &bytes);
    const eni_checkpoint *c = &w->past;
    const uint32_t r = (uint32_t)w->world.rank;
    if (bytes == 0) return EN_OK;
    if (r >= c->nranks || c->ranks[r].state_bytes != bytes) return missing(w, "state");
    EN_TRY(check_buckets(w));
    memcpy(state, c->ranks[r].state, bytes);
    return EN_OK;
}

/* As the rank had it; of another number of workers, rank 0's. */
static en_status restore_scale(eni_worker *w)
{
    const eni_checkpoint *c = &w->past;
    const int is_same_world = c->world == (uint64_t)w->world.nranks;
    const uint32_t r = is_same_world ? (uint32_t)w->world.rank : 0;
    if (r >= c->nranks) return EN_OK;
    eni_scale_facts facts = c->ranks[r].scale;
    if (!is_same_world) facts.overflows = facts.samples = 0; /* nobody's here */
    return eni_scaler_resume(w, &facts);
}

/* Sums go to the ranks that had them; with another number of workers rank 0 carries them. */
static void restore_tally(eni_worker *w)
{
    const eni_checkpoint *c = &w->past;
    eni_tally *t = &w->tally;
    const uint32_t r = (uint32_t)w->world.rank;
    uint64_t known = 0;
    int is_same_world = c->world == (uint64_t)w->world.nranks;
    for (uint32_t i = 0; is_same_world && i < c->nranks; i++)
        known += c->ranks[i].samples;
    if (is_same_world && r < c->nranks) {
        t->samples = c->ranks[r].samples;
        t->last_samples = c->ranks[r].last_samples;
        t->last_correct = c->ranks[r].last_correct;
        t->last_loss = c->ranks[r].last_loss;
    }
    w->carried = c->samples > known ? c->samples - known : 0;
    t->steps = t->begin_steps = w->first_step;
    t->before_ns = c->train_ns;
    t->eval_ns = c->eval_ns;
    memcpy(w->init_sha256, c->init_sha256, sizeof w->init_sha256);
}

en_status eni_resume_state(eni_worker *w)
{
    if (!w->is_resumed) return EN_OK;
    EN_TRY(restore_slots(w));
    EN_TRY(restore_vectors(w));
    EN_TRY(restore_state(w));
    EN_TRY(restore_scale(w));
    for (uint32_t b = 0; b < w->buckets->n; b++) {
        const eni_bucket_range *range = &w->buckets->bucket[b];
        eni_host_set_steps_taken(w->strategy_host, b, behind(&w->past, range->lo, range->hi).steps);
    }
    restore_tally(w);
    if (w->world.rank == 0)
        eni_info("resume", "goes on from sample %" PRIu64 " of %" PRIu64 " (%s)", w->past.samples,
                 w->plan.samples, w->past_path);
    for (uint32_t i = 0; i < w->past.nimages; i++) { /* as much as the model, several times */
        eni_free(w->past.images[i].flat);
        w->past.images[i].flat = NULL;
    }
    return EN_OK;
}
