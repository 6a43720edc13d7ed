/* collect.c - one moment of all ranks, gathered at rank 0 (save.h).
 *
 * The ranks' weights and optimizer slots are not assumed equal but compared: every rank sends a fingerprint of
 * each of its vectors, and differing ones are saved per rank. So a strategy that keeps replicas has one copy in
 * the file, one whose ranks train alone has W, and neither has to declare it.
 *
 * A vector travels by a round of sendrecvs: in round k every rank sends to the rank k below and receives from
 * the rank k above, so that rank 0 gets each of the others' once. The other messages are waste that keeps
 * the calls equal on all ranks; checkpoints are rare. */
#include "rank/save.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/pack.h"
#include "runtime/store/store.h"

/* ---- the store's state, partition by partition of one moment ---- */

/* Notes the past of each partition. Later calls: EN_EMISMATCH if a partition has moved on, because a store
 * that was restarted in between has lost its copy of that moment. */
static en_status note_partitions(eni_rank *self, eni_checkpoint *c)
{
    const int shards = eni_client_shards(self->exchange.client);
    const size_t room = (size_t)self->job.buckets->n * (size_t)shards;
    uint32_t i = 0;
    if (c->spans == NULL) c->spans = eni_alloc_array(room, sizeof *c->spans);
    if (c->spans == NULL) return EN_ENOMEM;
    for (uint32_t b = 0; b < self->job.buckets->n; b++)
        for (int s = 0; s < shards; s++) {
            eni_partition_past past;
            eni_client_past(self->exchange.client, b, s, &past);
            if (past.count == 0) continue;
            eni_saved_span *span = &c->spans[i++];
            if (i <= c->nspans && span->version != past.version) return EN_EMISMATCH;
            if (i <= c->nspans) continue;
            *span = (eni_saved_span){past.lo, past.lo + past.count, past.version, past.steps, past.samples};
        }
    c->nspans = i;
    return EN_OK;
}

static en_status keep(const eni_rank *self, eni_checkpoint *c, const char *name, const float *flat)
{
    eni_saved_vector *vector = eni_checkpoint_add(c, &self->job.schema, name);
    if (vector == NULL) return EN_ENOMEM;
    memcpy(vector->flat, flat, self->job.schema.count * sizeof(float));
    return EN_OK;
}

static en_status look_once(eni_rank *self, eni_checkpoint *c)
{
    char name[ENI_CHECKPOINT_NAME];
    const float *eval = eni_rank_flat(self, ENI_SLOT_EVAL);
    EN_TRY(eni_rank_call_store(self, ENI_MSG_SNAPSHOT, ENI_VECTOR_FREEZE, ENI_SLOT_NONE, ENI_SLOT_EVAL));
    EN_TRY(keep(self, c, "", eval));
    EN_TRY(note_partitions(self, c));
    for (int i = 0; i < self->job.optimizer->slots(&self->job.hyper); i++) {
        eni_save_slot_name(self, i, name);
        EN_TRY(eni_rank_call_store(self, ENI_MSG_SNAPSHOT, ENI_VECTOR_SLOT + (uint32_t)i, ENI_SLOT_NONE,
                                   ENI_SLOT_EVAL));
        EN_TRY(note_partitions(self, c));
        EN_TRY(keep(self, c, name, eval));
    }
    return EN_OK;
}

static en_status collect_from_store(eni_rank *self, eni_checkpoint *c)
{
    enum { TRIES = 5 };
    en_status st = EN_EMISMATCH;
    for (int i = 0; i < TRIES && st == EN_EMISMATCH; i++) {
        eni_checkpoint_fini(c);
        st = look_once(self, c);
    }
    if (st == EN_EMISMATCH) eni_error("save", "psd lost its copy for this checkpoint %d times", TRIES);
    return st;
}

/* A rank's report of itself, and of each bucket: on the wire a summary, then a part for each bucket. */
typedef struct rank_summary {
    eni_rank_facts facts; /* without the state, which `state` has on the wire */
    eni_span state;
    bool writes_param;
    uint64_t prints[ENI_ARENA_NSLOTS]; /* param, optimizer slots */
} rank_summary;

typedef struct part {
    uint64_t lo, hi, steps;
} part;

#define ANY(record, name)  ENI_FIELD(ENI_FIELD_UINT, record, name, 0, UINT64_MAX, #name " is not a number")
#define BITS(record, name) ENI_FIELD(ENI_FIELD_BYTES, record, name, 0, 0, #name " has another size than here")

static const eni_field rank_fields[] = {
    ANY(rank_summary, facts.sum.steps),
    ANY(rank_summary, facts.sum.samples),
    ANY(rank_summary, facts.sum.last_samples),
    ANY(rank_summary, facts.sum.last_correct),
    BITS(rank_summary, facts.sum.last_loss),
    BITS(rank_summary, facts.scale.scale),
    ANY(rank_summary, facts.scale.good),
    ANY(rank_summary, facts.scale.overflows),
    ANY(rank_summary, facts.scale.samples),
    ENI_FIELD(ENI_FIELD_BOOL, rank_summary, writes_param, 0, 1, "writes_param is neither 0 nor 1"),
    BITS(rank_summary, prints),
    ENI_FIELD(ENI_FIELD_BLOB, rank_summary, state, 0, ENI_BLOB_MAX, "the state is too long"),
};
static const eni_field bucket_fields[] = {ANY(part, lo), ANY(part, hi), ANY(part, steps)};

enum {
    NRANK_FIELDS = sizeof rank_fields / sizeof *rank_fields,
    NBUCKET_FIELDS = sizeof bucket_fields / sizeof *bucket_fields,
    NUMBER_BYTES = 9, /* at most, in msgpack */
};

/* Collecting, in progress. */
typedef struct collection {
    eni_rank *self;
    eni_checkpoint *c;
    uint64_t samples;
    uint32_t first_slot; /* of the optimizer */
    int nslots;
    eni_host_vector vectors[ENI_ARENA_NSLOTS];
    int nvectors;
    bool is_shared; /* some buckets live in the store, the others in every rank alike */
    size_t state_bytes;
    rank_summary *summaries; /* (nranks) */
    part *parts;             /* (nranks, buckets) */
} collection;

static uint32_t nbuckets(const collection *k)
{
    return k->self->job.buckets->n;
}

/* ---- fingerprints ---- */

/* Four lanes of multiply and rotate over 8-byte words: equal vectors have equal prints, different ones differ
 * except with probability 2^-64. Not for protection: all of it is our own memory. */
static uint64_t fingerprint(const float *flat, uint64_t count)
{
    uint64_t lane[4] = {1, 2, 3, 4}, word;
    for (uint64_t i = 0; i + 2 <= count; i += 2) {
        memcpy(&word, flat + i, sizeof word);
        uint64_t *l = &lane[i / 2 % 4];
        *l = (*l ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        *l = *l << 29 | *l >> 35;
    }
    for (int i = 1; i < 4; i++)
        lane[0] = (lane[0] ^ lane[i]) * UINT64_C(0xff51afd7ed558ccd) + (lane[0] >> 32);
    return lane[0];
}

/* ---- who has what ---- */

/* The summary of this rank is no longer than this. */
static size_t summary_bytes(const collection *k)
{
    return sizeof(rank_summary) + NRANK_FIELDS * NUMBER_BYTES +
           nbuckets(k) * (1 + NBUCKET_FIELDS * NUMBER_BYTES) + k->state_bytes;
}

/* Without the strategy's state. */
static eni_rank_facts own_facts(const eni_rank *self)
{
    const eni_trainer *t = &self->trainer;
    return (eni_rank_facts){.sum = self->records.stats.sum,
                            .scale = t->ops->scale == NULL ? (eni_scale_facts){0} : t->ops->scale(t->self)};
}

static void put_summary(const collection *k, eni_pack *out)
{
    const eni_rank *self = k->self;
    rank_summary own = {.facts = own_facts(self), .writes_param = eni_host_writes_param(self->exchange.host)};
    own.state.data = eni_host_state(self->exchange.host, &own.state.bytes);
    own.prints[0] = fingerprint(eni_rank_flat(k->self, ENI_SLOT_PARAM), self->job.schema.count);
    for (int i = 0; i < k->nslots; i++)
        own.prints[1 + i] =
            fingerprint(eni_rank_flat(k->self, k->first_slot + (uint32_t)i), self->job.schema.count);
    eni_record_put(out, rank_fields, NRANK_FIELDS, &own);
    for (uint32_t b = 0; b < nbuckets(k); b++) {
        part range = {.steps = eni_host_steps_taken(self->exchange.host, b)};
        eni_host_range(self->exchange.host, b, &range.lo, &range.hi);
        eni_record_put(out, bucket_fields, NBUCKET_FIELDS, &range);
    }
}

static en_status take_summary(collection *k, int rank, const eni_blob *blob)
{
    rank_summary *own = &k->summaries[rank];
    eni_rank_facts *facts = &own->facts;
    eni_cursor in = eni_cursor_make(blob->data, blob->bytes);
    eni_record_get(&in, rank_fields, NRANK_FIELDS, own);
    for (uint32_t b = 0; b < nbuckets(k); b++) {
        const eni_bucket_range *whole = &k->self->job.buckets->bucket[b];
        part *range = &k->parts[(size_t)rank * nbuckets(k) + b];
        eni_record_get(&in, bucket_fields, NBUCKET_FIELDS, range);
        if (range->lo > range->hi || range->hi > whole->hi - whole->lo)
            eni_cursor_refuse(&in, "its part of a bucket lies outside of it");
    }
    if (in.why == NULL && own->state.bytes != k->state_bytes)
        eni_cursor_refuse(&in, "its strategy's state has another size");
    if (!eni_cursor_finish(&in))
        return eni_fail(
            EN_EMISMATCH, "save",
            "invalid summary of the state of rank %d: %s; check that all ranks run the same build", rank,
            in.why);
    facts->state_bytes = k->state_bytes;
    if (k->state_bytes == 0) return EN_OK;
    facts->state = eni_alloc(k->state_bytes);
    if (facts->state == NULL) return EN_ENOMEM;
    memcpy(facts->state, own->state.data, k->state_bytes);
    return EN_OK;
}

static en_status exchange_summaries(collection *k)
{
    eni_rank *self = k->self;
    eni_blobs blobs = {0};
    eni_pack out = {0};
    put_summary(k, &out);
    en_status st =
        out.is_failed ? eni_fail(EN_ENOMEM, "save", "out of memory for %zu bytes", summary_bytes(k)) : EN_OK;
    if (st == EN_OK)
        st = eni_member_gather(self->member, "checkpoint", out.data, out.bytes, &blobs, INT64_MAX);
    for (int r = 0; r < self->world.nranks && st == EN_OK; r++)
        st = take_summary(k, r, &blobs.blob[r]);
    eni_blobs_fini(&blobs);
    eni_pack_fini(&out);
    return st;
}

/* Whether the ranks' vectors of that print differ. */
static bool differs(const collection *k, int print)
{
    for (int r = 1; r < k->self->world.nranks; r++)
        if (k->summaries[r].prints[print] != k->summaries[0].prints[print]) return true;
    return false;
}

/* Whether some rank steps only a part of its buckets: then a slot is the ranks' parts put together. */
static bool is_parted(const collection *k)
{
    size_t n = (size_t)k->self->world.nranks * nbuckets(k);
    for (size_t i = 0; i < n; i++) {
        const eni_bucket_range *whole = &k->self->job.buckets->bucket[i % nbuckets(k)];
        if (k->parts[i].lo != 0 || k->parts[i].hi != whole->hi - whole->lo) return true;
    }
    return false;
}

/* ---- vectors ---- */

/* One vector of every rank, at rank 0: `take` gets rank 1's, rank 2's, .. in slot EVAL, and rank 0's first. */
typedef en_status (*take_fn)(collection *k, int rank, const char *name, const float *flat);

static en_status sendrecv_round(collection *k, int distance, uint32_t slot)
{
    eni_rank *self = k->self;
    const int n = self->world.nranks, rank = self->world.rank;
    const eni_coll_op op = {.op = ENI_COLL_SENDRECV,
                            .what = EN_WEIGHTS,
                            .slot = slot,
                            .to = (rank - distance + n) % n,
                            .from = (rank + distance) % n,
                            .slot_in = ENI_SLOT_EVAL};
    return eni_rank_collect(self, self->exchange.all.coll, &op);
}

static en_status for_each_rank(collection *k, uint32_t slot, const char *name, take_fn take)
{
    const bool is_first = k->self->world.rank == 0;
    if (eni_rank_has_leaders(k->self) && k->self->world.nranks > 1)
        return eni_fail(
            EN_EUNSUPPORTED, "save",
            "%s keeps %s in every rank, but its hosts meet only at the servers: it cannot be saved",
            k->self->job.strategy->name, name);
    if (is_first) EN_TRY(take(k, 0, name, eni_rank_flat(k->self, slot)));
    for (int r = 1; r < k->self->world.nranks; r++) {
        EN_TRY(sendrecv_round(k, r, slot));
        if (is_first) EN_TRY(take(k, r, name, eni_rank_flat(k->self, ENI_SLOT_EVAL)));
    }
    return EN_OK;
}

/* "rank.R/NAME" */
static en_status keep_of_rank(collection *k, int rank, const char *name, const float *flat)
{
    char full[2 * ENI_CHECKPOINT_NAME];
    snprintf(full, sizeof full, "rank.%d/%s", rank, name);
    return keep(k->self, k->c, full, flat);
}

/* Takes the rank's own parts of a slot that all ranks form together. */
static en_status keep_part(collection *k, int rank, const char *name, const float *flat)
{
    if (rank == 0) EN_TRY(keep(k->self, k->c, name, flat));
    float *whole = eni_checkpoint_find(k->c, name)->flat;
    for (uint32_t b = 0; b < nbuckets(k); b++) {
        const part *range = &k->parts[(size_t)rank * nbuckets(k) + b];
        const uint64_t lo = k->self->job.buckets->bucket[b].lo + range->lo;
        memcpy(whole + lo, flat + lo, (range->hi - range->lo) * sizeof(float));
    }
    return EN_OK;
}

/* ---- weights and optimizer, without servers ---- */

static en_status collect_weights(collection *k)
{
    eni_rank *self = k->self;
    if (!differs(k, 0))
        return self->world.rank == 0 ? keep(k->self, k->c, "", eni_rank_flat(k->self, ENI_SLOT_PARAM))
                                     : EN_OK;
    if (self->job.strategy->flags & EN_REPLICATED && !self->job.is_claiming)
        return eni_host_not_replicated(self->job.strategy);
    EN_TRY(eni_snapshot(self)); /* the model that the strategy names: a mean, mostly */
    return self->world.rank == 0 ? keep(k->self, k->c, "", eni_rank_flat(k->self, ENI_SLOT_EVAL)) : EN_OK;
}

static en_status collect_slot(collection *k, int i)
{
    eni_rank *self = k->self;
    char name[ENI_CHECKPOINT_NAME];
    const uint32_t slot = k->first_slot + (uint32_t)i;
    eni_save_slot_name(self, i, name);
    if (is_parted(k)) return for_each_rank(k, slot, name, keep_part);
    if (differs(k, 1 + i)) return for_each_rank(k, slot, name, keep_of_rank);
    return self->world.rank == 0 ? keep(k->self, k->c, name, eni_rank_flat(k->self, slot)) : EN_OK;
}

static en_status note_buckets(collection *k)
{
    eni_checkpoint *c = k->c;
    c->spans = eni_alloc_array(nbuckets(k), sizeof *c->spans);
    if (c->spans == NULL) return EN_ENOMEM;
    for (uint32_t b = 0; b < nbuckets(k); b++) {
        const eni_bucket_range *range = &k->self->job.buckets->bucket[b];
        const uint64_t steps = k->parts[b].steps;
        c->spans[b] = (eni_saved_span){range->lo, range->hi, steps, steps, k->samples};
    }
    c->nspans = nbuckets(k);
    return EN_OK;
}

/* ---- the whole ---- */

static int by_lo(const void *left, const void *right)
{
    const eni_saved_span *a = left, *b = right;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

/* Whether store and ranks share the model: the ranks have all weights, and all have the same. */
static en_status find_shared(collection *k)
{
    uint32_t slot;
    int which;
    bool is_same = !differs(k, 0);
    if (!eni_rank_has_store(k->self)) return EN_OK;
    EN_TRY(eni_host_eval(k->self->exchange.host, &which, &slot));
    for (int i = 0; i < k->nslots; i++)
        is_same = is_same && !differs(k, 1 + i);
    k->is_shared = which == EN_EVAL_PARAM && is_same;
    return EN_OK;
}

/* Rank 0's vectors replace the store's answers for buckets that the store has never been sent. */
static void lay_over(collection *k)
{
    eni_rank *self = k->self;
    char name[ENI_CHECKPOINT_NAME];
    for (uint32_t b = 0; b < nbuckets(k); b++) {
        const eni_bucket_range *range = &self->job.buckets->bucket[b];
        const uint64_t steps = k->parts[b].steps, bytes = (range->hi - range->lo) * sizeof(float);
        if (eni_host_is_called(self->exchange.host, b)) continue;
        memcpy(eni_checkpoint_find(k->c, "")->flat + range->lo,
               eni_rank_flat(k->self, ENI_SLOT_PARAM) + range->lo, bytes);
        for (int i = 0; i < k->nslots; i++) {
            eni_save_slot_name(self, i, name);
            memcpy(eni_checkpoint_find(k->c, name)->flat + range->lo,
                   eni_rank_flat(k->self, k->first_slot + (uint32_t)i) + range->lo, bytes);
        }
        for (uint32_t s = 0; s < k->c->nspans; s++) {
            eni_saved_span *span = &k->c->spans[s];
            if (span->lo < range->lo || span->hi > range->hi) continue;
            *span = (eni_saved_span){span->lo, span->hi, steps, steps, k->samples};
        }
    }
}

/* With a store, ranks have something of their own only if their strategy writes the weights itself, and these
 * are not saved with the store's already. */
static en_status collect_own(collection *k)
{
    const bool has_store = eni_rank_has_store(k->self);
    bool writes = false;
    for (int r = 0; r < k->self->world.nranks && !k->is_shared; r++)
        writes |= k->summaries[r].writes_param;
    if (has_store ? writes : differs(k, 0)) EN_TRY(for_each_rank(k, ENI_SLOT_PARAM, "param", keep_of_rank));
    for (int i = 0; i < k->nslots && has_store && writes; i++) {
        char name[ENI_CHECKPOINT_NAME];
        eni_save_slot_name(k->self, i, name);
        EN_TRY(for_each_rank(k, k->first_slot + (uint32_t)i, name, keep_of_rank));
    }
    for (int v = 0; v < k->nvectors; v++)
        EN_TRY(for_each_rank(k, k->vectors[v].slot, k->vectors[v].name, keep_of_rank));
    return EN_OK;
}

static en_status collect_all(collection *k)
{
    eni_rank *self = k->self;
    EN_TRY(find_shared(k));
    if (eni_rank_has_store(self)) {
        if (self->world.rank == 0) EN_TRY(collect_from_store(k->self, k->c));
        if (self->world.rank == 0 && k->is_shared) lay_over(k);
    } else {
        EN_TRY(collect_weights(k));
        for (int i = 0; i < k->nslots; i++)
            EN_TRY(collect_slot(k, i));
        if (self->world.rank == 0) EN_TRY(note_buckets(k));
    }
    return collect_own(k);
}

/* Claimed: the store knows its progress, and no other rank is needed. */
static en_status collect_claimed(collection *k)
{
    EN_TRY(collect_from_store(k->self, k->c));
    k->samples = UINT64_MAX;
    for (uint32_t i = 0; i < k->c->nspans; i++)
        if (k->c->spans[i].samples < k->samples) k->samples = k->c->spans[i].samples;
    return EN_OK;
}

static en_status note_ranks(collection *k)
{
    eni_checkpoint *c = k->c;
    const uint32_t n = k->self->job.is_claiming ? 1 : (uint32_t)k->self->world.nranks;
    c->ranks = eni_alloc_array(n, sizeof *c->ranks);
    if (c->ranks == NULL) return EN_ENOMEM;
    if (k->self->job.is_claiming) k->summaries[0].facts = own_facts(k->self);
    for (; c->nranks < n; c->nranks++) {
        c->ranks[c->nranks] = k->summaries[c->nranks].facts;
        k->summaries[c->nranks].facts.state = NULL; /* the checkpoint's now */
    }
    return EN_OK;
}

static en_status note_statistics(collection *k)
{
    eni_rank *self = k->self;
    const uint64_t n = self->job.schema.nstate;
    if (n == 0) return EN_OK;
    k->c->state = eni_alloc_array(n, sizeof *k->c->state);
    if (k->c->state == NULL) return EN_ENOMEM;
    memcpy(k->c->state, self->job.state, n * sizeof *k->c->state);
    if (self->job.states == NULL) return EN_OK;
    k->c->states = eni_alloc_array(n * self->job.plan.world, sizeof *k->c->states);
    if (k->c->states == NULL) return EN_ENOMEM;
    k->c->nstates = self->job.plan.world;
    memcpy(k->c->states, self->job.states, n * k->c->nstates * sizeof *k->c->states);
    return EN_OK;
}

static en_status note_history(collection *k)
{
    const eni_rank *self = k->self;
    eni_checkpoint *c = k->c;
    uint32_t n = self->saving.is_resumed ? self->saving.past.nhistory + 1 : 0;
    c->history = eni_alloc_array(n, sizeof *c->history);
    if (c->history == NULL) return EN_ENOMEM;
    for (; c->nhistory < n; c->nhistory++) {
        const char *path = c->nhistory < self->saving.past.nhistory ? self->saving.past.history[c->nhistory]
                                                                    : self->saving.past_path;
        if ((c->history[c->nhistory] = eni_strdup(path)) == NULL) return EN_ENOMEM;
    }
    return EN_OK;
}

static void note_position(collection *k)
{
    const eni_rank *self = k->self;
    eni_checkpoint *c = k->c;
    c->samples = k->samples;
    c->plan_samples = self->job.plan.samples;
    c->micro = eni_plan_micro_at(&self->job.plan, k->samples);
    c->step = c->micro / self->job.plan.world;
    c->epoch = k->samples / self->job.plan.epoch_samples;
    qsort(c->spans, c->nspans, sizeof *c->spans, by_lo);
    c->updates = c->nspans > 0 ? c->spans[0].version : 0;
}

/* Everything but the vectors. */
static en_status note_facts(collection *k)
{
    const eni_rank *self = k->self;
    const eni_stats *t = &self->records.stats;
    eni_checkpoint *c = k->c;
    note_position(k);
    c->nfacts = eni_resume_facts(self, c->facts);
    snprintf(c->version, sizeof c->version, "%s", self->version);
    snprintf(c->strategy, sizeof c->strategy, "%s", self->job.strategy->name);
    snprintf(c->options, sizeof c->options, "%s", eni_options_canonical(self->job.options));
    snprintf(c->device, sizeof c->device, "%s", self->trainer.about.computes);
    c->world = (uint64_t)self->nfirst;
    if (eni_rank_uses_groups(self))
        eni_rank_groups_text(self->groups, self->world.nranks, c->groups, sizeof c->groups);
    c->accumulate = (uint64_t)self->job.accumulate;
    c->batch = self->job.plan.batch;
    c->shards = self->exchange.client == NULL ? 0 : (uint64_t)eni_client_shards(self->exchange.client);
    memcpy(c->order_sha256, self->job.order_sha256, sizeof c->order_sha256);
    memcpy(c->init_sha256, self->job.init_sha256, sizeof c->init_sha256);
    c->train_ns = eni_train_clock(self);
    c->eval_ns = t->eval_ns;
    EN_TRY(note_ranks(k));
    EN_TRY(note_statistics(k));
    return note_history(k);
}

static en_status collect(collection *k)
{
    eni_rank *self = k->self;
    size_t n = (size_t)self->world.nranks;
    k->summaries = eni_alloc_array(n, sizeof *k->summaries);
    k->parts = eni_alloc_array(n * nbuckets(k), sizeof *k->parts);
    if (k->summaries == NULL || k->parts == NULL) return EN_ENOMEM;
    k->nslots = eni_host_optimizer_slots(self->exchange.host, &k->first_slot);
    k->nvectors = eni_host_vectors(self->exchange.host, k->vectors);
    eni_host_state(self->exchange.host, &k->state_bytes);
    if (self->job.is_claiming) {
        EN_TRY(collect_claimed(k));
    } else {
        EN_TRY(exchange_summaries(k));
        EN_TRY(collect_all(k));
    }
    EN_TRY(eni_snapshot_all_states(self));
    return self->world.rank == 0 ? note_facts(k) : EN_OK;
}

en_status eni_collect_moment(eni_rank *self, uint64_t samples, eni_checkpoint *checkpoint_out)
{
    eni_checkpoint c = {0};
    collection k = {.self = self, .c = &c, .samples = samples};
    en_status st = collect(&k);
    for (int r = 0; k.summaries != NULL && r < self->world.nranks; r++)
        eni_free(k.summaries[r].facts.state);
    eni_free(k.parts);
    eni_free(k.summaries);
    if (st == EN_OK && self->world.rank == 0)
        *checkpoint_out = c;
    else
        eni_checkpoint_fini(&c);
    return st;
}

/* ---- obstacles ---- */

const char *eni_collect_obstacle(const eni_rank *self)
{
    collection k = {.self = (eni_rank *)(uintptr_t)self}; /* only read */
    const bool is_claiming = self->job.is_claiming;
    k.nvectors = eni_host_vectors(self->exchange.host, k.vectors);
    eni_host_state(self->exchange.host, &k.state_bytes);
    if (is_claiming && (k.nvectors > 0 || eni_host_writes_param(self->exchange.host)))
        return "its ranks keep vectors of their own but share no common step";
    if (k.nvectors > 0 && eni_rank_has_leaders(self) && self->world.nranks > 1)
        return "it keeps vectors in every rank, but its hosts meet only at the servers";
    if (!is_claiming && summary_bytes(&k) > ENI_BLOB_MAX)
        return "its buckets and its state have too many bytes; use a larger --bucket-cap-mb for fewer "
               "buckets";
    return NULL;
}
