/* save_store.c - what the store holds, partition by partition of one moment; see save.h. */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store.h"
#include "worker/save.h"

/* All buckets of one kind, into slot EVAL. */
static en_status look(eni_worker *w, uint32_t kind)
{
    for (uint32_t b = 0; b < w->buckets->n; b++)
        EN_TRY(eni_client_call(w->client, ENI_MSG_SNAPSHOT, b, kind, EN_WEIGHTS, ENI_SLOT_NONE, ENI_SLOT_EVAL,
                               0, 0));
    for (uint32_t b = 0; b < w->buckets->n; b++)
        EN_TRY(eni_client_wait(w->client, b));
    return EN_OK;
}

/* What is behind each partition. */
static en_status note_partitions(eni_worker *w, eni_checkpoint *c)
{
    const int shards = eni_client_shards(w->client);
    c->stretches = eni_alloc_array((size_t)w->buckets->n * (size_t)shards, sizeof *c->stretches);
    if (c->stretches == NULL) return EN_ENOMEM;
    for (uint32_t b = 0; b < w->buckets->n; b++)
        for (int s = 0; s < shards; s++) {
            eni_partition_past past;
            eni_client_past(w->client, b, s, &past);
            if (past.count == 0) continue;
            c->stretches[c->nstretches++] =
                (eni_stretch){past.lo, past.lo + past.count, past.version, past.steps, past.samples};
        }
    return EN_OK;
}

/* A store that was restarted in between has forgotten what it kept aside. */
static en_status check_same_moment(eni_worker *w, const eni_checkpoint *c)
{
    uint32_t i = 0;
    for (uint32_t b = 0; b < w->buckets->n; b++)
        for (int s = 0; s < eni_client_shards(w->client); s++) {
            eni_partition_past past;
            eni_client_past(w->client, b, s, &past);
            if (past.count > 0 && c->stretches[i++].version != past.version) return EN_EMISMATCH;
        }
    return EN_OK;
}

/* Slot EVAL as an image. */
static en_status keep(eni_worker *w, eni_checkpoint *c, const char *name)
{
    eni_image *image = eni_checkpoint_add(c, &w->schema, name);
    if (image == NULL) return EN_ENOMEM;
    memcpy(image->flat, eni_arena_at(w->arena, ENI_SLOT_EVAL, 0), w->schema.count * sizeof(float));
    return EN_OK;
}

static en_status look_once(eni_worker *w, eni_checkpoint *c)
{
    char name[ENI_CHECKPOINT_NAME];
    EN_TRY(look(w, ENI_VECTOR_FREEZE));
    EN_TRY(keep(w, c, ""));
    EN_TRY(note_partitions(w, c));
    for (int i = 0; i < w->optimizer->slots(&w->hyper); i++) {
        snprintf(name, sizeof name, "optimizer.%s", w->optimizer->slot_names[i]);
        EN_TRY(look(w, ENI_VECTOR_SLOT + (uint32_t)i));
        EN_TRY(check_same_moment(w, c));
        EN_TRY(keep(w, c, name));
    }
    return EN_OK;
}

en_status eni_save_store(eni_worker *w, eni_checkpoint *c)
{
    enum { TRIES = 5 };
    en_status st = EN_EMISMATCH;
    for (int i = 0; i < TRIES && st == EN_EMISMATCH; i++) {
        eni_checkpoint_fini(c);
        st = look_once(w, c);
    }
    if (st == EN_EMISMATCH) eni_error("save", "psd forgot what it kept aside, %d times", TRIES);
    return st;
}
