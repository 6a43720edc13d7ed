/* save.c - when a run is saved, what of it, and the thread that writes; see save.h. */
#include "rank/save.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "rank/shutdown.h"
#include "runtime/store/store.h"

struct eni_saver {
    uint64_t every, next; /* global samples */
    uint64_t last;        /* samples of the last boundary that was saved, here or in the past */
    char dir[1024];
    int folder; /* rank 0: open, and locked against a second run; -1 */

    /* the write under way: the thread's until it is joined */
    pthread_t thread;
    int is_writing;
    eni_checkpoint job;
    const en_schema *schema;
    en_status status;
    uint64_t next_try; /* for the message of a failure */
};

/* ---- whether it can be ---- */

/* What a checkpoint has no place for. NULL: nothing. */
static const char *obstacle(const eni_rank *self)
{
    const en_strategy *s = self->job.strategy;
    if (s->partition_state > 0) return "its store keeps state beside the weights";
    if (s->peer_vecs > 0) return "its store keeps vectors for every worker";
    if (s->flags & EN_STORE_ON_RANKS) return "its ranks keep stores of their own";
    if (self->job.is_claiming && s->state > 0) return "its ranks keep state and are at no common step";
    if (s->flags & EN_STORE_ON_SERVERS && !(s->flags & EN_SYNCHRONOUS) && !self->job.is_claiming)
        return "with --assign=fixed its ranks are at no common step: leave --assign away";
    return NULL;
}

static en_status refuse(const eni_rank *self, const char *why)
{
    if (why == NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "save", "--checkpoint-every=%lld: %s cannot be saved: %s",
                    (long long)self->saving.asked.every, self->job.strategy->name, why);
}

static en_status refuse_mixing(const char *dir)
{
    return eni_fail(EN_EINVAL, "save",
                    "%s holds checkpoints of an earlier run: give --resume=auto to go on from the newest, or "
                    "another --checkpoint-dir or --out to start over",
                    dir);
}

en_status eni_save_check(const eni_rank *self)
{
    const eni_save_options *asked = &self->saving.asked;
    const char *dir = asked->dir;
    uint64_t newest;
    if (asked->every == 0) return EN_OK;
    if (dir[0] == 0)
        return eni_fail(EN_EINVAL, "save",
                        "--checkpoint-every=%lld: where to? Give --checkpoint-dir=FOLDER, or --out=FOLDER",
                        (long long)asked->every);
    EN_TRY(refuse(self, obstacle(self)));
    if (eni_checkpoint_list(dir, &newest, 1) == 0) return EN_OK;
    if (self->saving.is_resumed &&
        (newest <= self->saving.past.samples || strcmp(asked->resume, "auto") == 0))
        return EN_OK;
    if (self->saving.is_resumed)
        return eni_fail(
            EN_EINVAL, "save",
            "%s holds a newer checkpoint (sample %llu) than the one to go on from (%llu), which the next "
            "--resume=auto would take: give another --checkpoint-dir or --out, or remove what is newer",
            dir, (unsigned long long)newest, (unsigned long long)self->saving.past.samples);
    return asked->may_replace ? EN_OK : refuse_mixing(dir);
}

/* ---- open ---- */

/* A lock on the folder itself leaves no file behind, and is gone with its process. */
static en_status take_folder(eni_saver *s)
{
    s->folder = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->folder < 0 || access(s->dir, W_OK) != 0)
        return eni_fail(EN_EINVAL, "save", "cannot write into %s: %s; choose another --checkpoint-dir",
                        s->dir, strerror(errno));
    if (flock(s->folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return eni_fail(EN_EINVAL, "save",
                        "another run writes its checkpoints into %s: choose another --checkpoint-dir",
                        s->dir);
    int swept = eni_checkpoint_sweep(s->dir);
    if (swept > 0) eni_info("save", "%d unfinished file(s) of a killed run removed from %s", swept, s->dir);
    return EN_OK;
}

en_status eni_save_open(eni_rank *self)
{
    if (self->saving.asked.every == 0) return EN_OK;
    eni_saver *s = eni_alloc(sizeof *s);
    if (s == NULL) return EN_ENOMEM;
    self->saving.saver = s;
    s->folder = -1;
    s->schema = &self->job.schema;
    s->every = self->saving.asked.every;
    s->last = self->saving.is_resumed ? self->saving.past.samples : 0;
    s->next = (s->last / s->every + 1) * s->every;
    memcpy(s->dir, self->saving.asked.dir, sizeof s->dir);
    if (self->world.rank != 0) return EN_OK;
    uint64_t left; /* behind a link they were not removed */
    if (!self->saving.is_resumed && eni_checkpoint_list(s->dir, &left, 1) > 0) return refuse_mixing(s->dir);
    return take_folder(s);
}

/* ---- the write ---- */

/* Training goes on whatever happens here; the older ones stay as long as this one is not durable. */
static void *write_main(void *user)
{
    eni_saver *s = user;
    char why[ENI_ST_WHY];
    s->status = eni_checkpoint_write(&s->job, s->schema, s->dir, why);
    if (s->status == EN_OK) {
        eni_checkpoint_retire(s->dir, s->job.samples);
        return NULL;
    }
    const char *remedy = s->status == EN_ENONFINITE
                             ? "training has diverged: resume an earlier one with a smaller --lr"
                             : "make room there, or choose another --checkpoint-dir";
    eni_warn("save",
             "no checkpoint at sample %llu: %s; training goes on, earlier checkpoints are kept, the next is "
             "tried at sample %llu; %s",
             (unsigned long long)s->job.samples, why, (unsigned long long)s->next_try, remedy);
    return NULL;
}

/* Waits for the write under way, and books it. */
static void end_write(eni_saving *saving)
{
    eni_saver *s = saving->saver;
    if (!s->is_writing) return;
    pthread_join(s->thread, NULL);
    s->is_writing = 0;
    if (s->status == EN_OK) {
        saving->nwritten++;
        eni_checkpoint_path(s->dir, s->job.samples, saving->last_path, sizeof saving->last_path);
    } else {
        saving->nfailed++;
    }
    eni_checkpoint_fini(&s->job);
}

static void begin_write(eni_saving *saving)
{
    eni_saver *s = saving->saver;
    s->next_try = s->next;
    int code = pthread_create(&s->thread, NULL, write_main, s);
    s->is_writing = code == 0;
    if (code == 0) return;
    eni_warn("save", "no checkpoint at sample %llu: no thread to write it: %s",
             (unsigned long long)s->job.samples, strerror(code));
    saving->nfailed++;
    eni_checkpoint_fini(&s->job);
}

/* ==== one moment of all ranks, gathered at rank 0 ====
 *
 * Whether the ranks' weights and optimizer slots are equal is not believed but looked at: every rank sends a
 * fingerprint of each of its vectors, and what differs is saved per rank. So a strategy that keeps replicas
 * has one copy in the file, one whose ranks train alone has W, and nobody had to declare which it is.
 *
 * A vector travels by a round of sendrecvs: in round k everybody sends to the rank k below and receives from
 * the rank k above, so that rank 0 gets each of the others' once. The others' transfers are waste that keeps
 * the calls equal on all ranks; checkpoints are rare. */

/* ---- what the store holds, partition by partition of one moment ---- */

/* What is behind each partition; once that is noted, EN_EMISMATCH where it is another moment's by now: a store
 * that was restarted in between has forgotten what it kept aside. */
static en_status note_partitions(eni_rank *self, eni_checkpoint *c)
{
    const int shards = eni_client_shards(self->exchange.client);
    const size_t room = (size_t)self->job.buckets->n * (size_t)shards;
    uint32_t i = 0;
    if (c->stretches == NULL) c->stretches = eni_alloc_array(room, sizeof *c->stretches);
    if (c->stretches == NULL) return EN_ENOMEM;
    for (uint32_t b = 0; b < self->job.buckets->n; b++)
        for (int s = 0; s < shards; s++) {
            eni_partition_past past;
            eni_client_past(self->exchange.client, b, s, &past);
            if (past.count == 0) continue;
            eni_stretch *stretch = &c->stretches[i++];
            if (i <= c->nstretches && stretch->version != past.version) return EN_EMISMATCH;
            if (i <= c->nstretches) continue;
            *stretch = (eni_stretch){past.lo, past.lo + past.count, past.version, past.steps, past.samples};
        }
    c->nstretches = i;
    return EN_OK;
}

static en_status keep(const eni_rank *self, eni_checkpoint *c, const char *name, const float *flat)
{
    eni_image *image = eni_checkpoint_add(c, &self->job.schema, name);
    if (image == NULL) return EN_ENOMEM;
    memcpy(image->flat, flat, self->job.schema.count * sizeof(float));
    return EN_OK;
}

static en_status look_once(eni_rank *self, eni_checkpoint *c)
{
    char name[ENI_CHECKPOINT_NAME];
    const float *eval = eni_arena_at(self->exchange.arena, ENI_SLOT_EVAL, 0);
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
    if (st == EN_EMISMATCH) eni_error("save", "psd forgot what it kept aside, %d times", TRIES);
    return st;
}

/* What a rank says of itself: a card, then `buckets` triples (lo, hi, steps), then the strategy's state. */
typedef struct card {
    eni_rank_facts facts; /* its state follows, and is put in place by who reads */
    uint64_t writes_param;
    uint64_t prints[ENI_ARENA_NSLOTS]; /* param, optimizer slots */
} card;

typedef struct triple {
    uint64_t lo, hi, steps;
} triple;

/* Collecting, in progress. */
typedef struct collection {
    eni_rank *self;
    eni_checkpoint *c;
    uint64_t samples;
    uint32_t first_slot; /* of the optimizer */
    int nslots;
    eni_host_vector vectors[ENI_ARENA_NSLOTS];
    int nvectors;
    int is_shared; /* some buckets live in the store, the others in every rank alike */
    size_t state_bytes;
    card *cards;     /* (nranks) */
    triple *triples; /* (nranks, buckets) */
} collection;

static uint32_t nbuckets(const collection *k)
{
    return k->self->job.buckets->n;
}

/* ---- fingerprints ---- */

/* Four lanes of multiply and rotate over 8-byte words: equal vectors have equal prints, different ones
 * differ but for one chance in 2^64. No defence against anybody: all of it is our own memory. */
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

static const float *own_flat(const collection *k, uint32_t slot)
{
    return eni_arena_at(k->self->exchange.arena, slot, 0);
}

/* ---- who has what ---- */

static size_t blob_bytes(const collection *k)
{
    return sizeof(card) + nbuckets(k) * sizeof(triple) + k->state_bytes;
}

/* But for the strategy's state. */
static eni_rank_facts own_facts(const eni_rank *self)
{
    return (eni_rank_facts){.sum = self->records.stats.sum, .scale = eni_trainer_scale(&self->trainer)};
}

static void fill_blob(const collection *k, uint8_t *blob)
{
    const eni_rank *self = k->self;
    card own = {.facts = own_facts(self),
                .writes_param = (uint64_t)eni_host_writes_param(self->exchange.host)};
    own.prints[0] = fingerprint(own_flat(k, ENI_SLOT_PARAM), self->job.schema.count);
    for (int i = 0; i < k->nslots; i++)
        own.prints[1 + i] = fingerprint(own_flat(k, k->first_slot + (uint32_t)i), self->job.schema.count);
    memcpy(blob, &own, sizeof own);
    blob += sizeof own;
    for (uint32_t b = 0; b < nbuckets(k); b++, blob += sizeof(triple)) {
        triple range = {.steps = eni_host_steps_taken(self->exchange.host, b)};
        eni_host_range(self->exchange.host, b, &range.lo, &range.hi);
        memcpy(blob, &range, sizeof range);
    }
    size_t bytes;
    const void *state = eni_host_state(self->exchange.host, &bytes);
    if (bytes > 0) memcpy(blob, state, bytes);
}

static en_status take_blob(collection *k, int rank, const eni_blob *blob)
{
    const size_t triples = nbuckets(k) * sizeof(triple);
    if (blob->bytes != blob_bytes(k))
        return eni_fail(EN_EMISMATCH, "save",
                        "rank %d described its state in %zu bytes, rank %d in %zu: not the same program?",
                        rank, blob->bytes, k->self->world.rank, blob_bytes(k));
    memcpy(&k->cards[rank], blob->data, sizeof(card));
    memcpy(&k->triples[(size_t)rank * nbuckets(k)], blob->data + sizeof(card), triples);
    eni_rank_facts *facts = &k->cards[rank].facts;
    facts->state = k->state_bytes > 0 ? eni_alloc(k->state_bytes) : NULL;
    facts->state_bytes = k->state_bytes;
    if (k->state_bytes == 0) return EN_OK;
    if (facts->state == NULL) return EN_ENOMEM;
    memcpy(facts->state, blob->data + sizeof(card) + triples, k->state_bytes);
    return EN_OK;
}

static en_status exchange_cards(collection *k)
{
    eni_rank *self = k->self;
    eni_blobs blobs = {0};
    uint8_t *blob = eni_alloc(blob_bytes(k));
    if (blob == NULL) return EN_ENOMEM;
    fill_blob(k, blob);
    en_status st = eni_member_gather(self->member, "checkpoint", blob, blob_bytes(k), &blobs, INT64_MAX);
    for (int r = 0; r < self->world.nranks && st == EN_OK; r++)
        st = take_blob(k, r, &blobs.blob[r]);
    eni_blobs_fini(&blobs);
    eni_free(blob);
    return st;
}

/* 1 if the ranks' vectors of that print are not all equal. */
static int differs(const collection *k, int print)
{
    for (int r = 1; r < k->self->world.nranks; r++)
        if (k->cards[r].prints[print] != k->cards[0].prints[print]) return 1;
    return 0;
}

/* 1 if some rank steps only a part of its buckets: then a slot is the ranks' parts put together. */
static int is_parted(const collection *k)
{
    size_t n = (size_t)k->self->world.nranks * nbuckets(k);
    for (size_t i = 0; i < n; i++) {
        const eni_bucket_range *whole = &k->self->job.buckets->bucket[i % nbuckets(k)];
        if (k->triples[i].lo != 0 || k->triples[i].hi != whole->hi - whole->lo) return 1;
    }
    return 0;
}

/* ---- vectors ---- */

/* One vector of every rank, at rank 0: `take` gets rank 1's, rank 2's, .. in slot EVAL, and rank 0's first.
 */
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
    int is_first = k->self->world.rank == 0;
    if (eni_rank_has_leaders(k->self) && k->self->world.nranks > 1)
        return eni_fail(
            EN_EUNSUPPORTED, "save",
            "%s keeps %s in every rank, and its hosts meet at the servers only: it cannot be saved",
            k->self->job.strategy->name, name);
    if (is_first) EN_TRY(take(k, 0, name, own_flat(k, slot)));
    for (int r = 1; r < k->self->world.nranks; r++) {
        EN_TRY(sendrecv_round(k, r, slot));
        if (is_first) EN_TRY(take(k, r, name, own_flat(k, ENI_SLOT_EVAL)));
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

/* The rank's own parts of a slot that all ranks make up together. */
static en_status keep_part(collection *k, int rank, const char *name, const float *flat)
{
    if (rank == 0) EN_TRY(keep(k->self, k->c, name, flat));
    float *whole = eni_checkpoint_find(k->c, name)->flat;
    for (uint32_t b = 0; b < nbuckets(k); b++) {
        const triple *range = &k->triples[(size_t)rank * nbuckets(k) + b];
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
        return self->world.rank == 0 ? keep(k->self, k->c, "", own_flat(k, ENI_SLOT_PARAM)) : EN_OK;
    if (self->job.strategy->flags & EN_REPLICATED && !self->job.is_claiming)
        return eni_host_not_replicated(self->job.strategy);
    EN_TRY(eni_snapshot(self)); /* the model that the strategy names: a mean, mostly */
    return self->world.rank == 0 ? keep(k->self, k->c, "", own_flat(k, ENI_SLOT_EVAL)) : EN_OK;
}

static en_status collect_slot(collection *k, int i)
{
    eni_rank *self = k->self;
    char name[ENI_CHECKPOINT_NAME];
    const uint32_t slot = k->first_slot + (uint32_t)i;
    eni_save_slot_name(self, i, name);
    if (is_parted(k)) return for_each_rank(k, slot, name, keep_part);
    if (differs(k, 1 + i)) return for_each_rank(k, slot, name, keep_of_rank);
    return self->world.rank == 0 ? keep(k->self, k->c, name, own_flat(k, slot)) : EN_OK;
}

static en_status note_buckets(collection *k)
{
    eni_checkpoint *c = k->c;
    c->stretches = eni_alloc_array(nbuckets(k), sizeof *c->stretches);
    if (c->stretches == NULL) return EN_ENOMEM;
    for (uint32_t b = 0; b < nbuckets(k); b++) {
        const eni_bucket_range *range = &k->self->job.buckets->bucket[b];
        const uint64_t steps = k->triples[b].steps;
        c->stretches[b] = (eni_stretch){range->lo, range->hi, steps, steps, k->samples};
    }
    c->nstretches = nbuckets(k);
    return EN_OK;
}

/* ---- the whole ---- */

static int by_lo(const void *left, const void *right)
{
    const eni_stretch *a = left, *b = right;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

/* Whether store and ranks share the model: the ranks have all weights, and all have the same. */
static en_status find_shared(collection *k)
{
    uint32_t slot;
    int which, is_same = !differs(k, 0);
    if (!eni_rank_has_store(k->self)) return EN_OK;
    EN_TRY(eni_host_eval(k->self->exchange.host, &which, &slot));
    for (int i = 0; i < k->nslots; i++)
        is_same = is_same && !differs(k, 1 + i);
    k->is_shared = which == EN_EVAL_PARAM && is_same;
    return EN_OK;
}

/* Over what the store said of buckets that it has never been sent: what rank 0 has of them. */
static void lay_over(collection *k)
{
    eni_rank *self = k->self;
    char name[ENI_CHECKPOINT_NAME];
    for (uint32_t b = 0; b < nbuckets(k); b++) {
        const eni_bucket_range *range = &self->job.buckets->bucket[b];
        const uint64_t steps = k->triples[b].steps, bytes = (range->hi - range->lo) * sizeof(float);
        if (eni_host_is_called(self->exchange.host, b)) continue;
        memcpy(eni_checkpoint_find(k->c, "")->flat + range->lo, own_flat(k, ENI_SLOT_PARAM) + range->lo,
               bytes);
        for (int i = 0; i < k->nslots; i++) {
            eni_save_slot_name(self, i, name);
            memcpy(eni_checkpoint_find(k->c, name)->flat + range->lo,
                   own_flat(k, k->first_slot + (uint32_t)i) + range->lo, bytes);
        }
        for (uint32_t s = 0; s < k->c->nstretches; s++) {
            eni_stretch *stretch = &k->c->stretches[s];
            if (stretch->lo < range->lo || stretch->hi > range->hi) continue;
            *stretch = (eni_stretch){stretch->lo, stretch->hi, steps, steps, k->samples};
        }
    }
}

/* With a store, ranks have something of their own only if their strategy writes the weights itself, and is
 * not saved with the store's already. */
static en_status collect_own(collection *k)
{
    int writes = 0;
    for (int r = 0; r < k->self->world.nranks && !k->is_shared; r++)
        writes |= k->cards[r].writes_param != 0;
    int is_own = !eni_rank_has_store(k->self) ? differs(k, 0) : writes;
    if (is_own) EN_TRY(for_each_rank(k, ENI_SLOT_PARAM, "param", keep_of_rank));
    for (int i = 0; i < k->nslots && eni_rank_has_store(k->self) && writes; i++) {
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

/* Claimed: the store knows how far it is, and there is nobody else to ask. */
static en_status collect_claimed(collection *k)
{
    EN_TRY(collect_from_store(k->self, k->c));
    k->samples = UINT64_MAX;
    for (uint32_t i = 0; i < k->c->nstretches; i++)
        if (k->c->stretches[i].samples < k->samples) k->samples = k->c->stretches[i].samples;
    return EN_OK;
}

static en_status note_ranks(collection *k)
{
    eni_checkpoint *c = k->c;
    const uint32_t n = k->self->job.is_claiming ? 1 : (uint32_t)k->self->world.nranks;
    c->ranks = eni_alloc_array(n, sizeof *c->ranks);
    if (c->ranks == NULL) return EN_ENOMEM;
    if (k->self->job.is_claiming) k->cards[0].facts = own_facts(k->self);
    for (; c->nranks < n; c->nranks++) {
        c->ranks[c->nranks] = k->cards[c->nranks].facts;
        k->cards[c->nranks].facts.state = NULL; /* the checkpoint's now */
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
    qsort(c->stretches, c->nstretches, sizeof *c->stretches, by_lo);
    c->updates = c->nstretches > 0 ? c->stretches[0].version : 0;
}

/* Everything that is no vector. */
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
    k->cards = eni_alloc_array(n, sizeof *k->cards);
    k->triples = eni_alloc_array(n * nbuckets(k), sizeof *k->triples);
    if (k->cards == NULL || k->triples == NULL) return EN_ENOMEM;
    k->nslots = eni_host_optimizer_slots(self->exchange.host, &k->first_slot);
    k->nvectors = eni_host_vectors(self->exchange.host, k->vectors);
    eni_host_state(self->exchange.host, &k->state_bytes);
    if (self->job.is_claiming) {
        EN_TRY(collect_claimed(k));
    } else {
        EN_TRY(exchange_cards(k));
        EN_TRY(collect_all(k));
    }
    EN_TRY(eni_snapshot_state(self));
    return self->world.rank == 0 ? note_facts(k) : EN_OK;
}

/* Fills an empty checkpoint at rank 0; the other ranks give what is theirs. */
static en_status collect_moment(eni_rank *self, uint64_t samples, eni_checkpoint *checkpoint_out)
{
    eni_checkpoint c = {0};
    collection k = {.self = self, .c = &c, .samples = samples};
    en_status st = collect(&k);
    for (int r = 0; k.cards != NULL && r < self->world.nranks; r++)
        eni_free(k.cards[r].facts.state);
    eni_free(k.triples);
    eni_free(k.cards);
    if (st == EN_OK && self->world.rank == 0)
        *checkpoint_out = c;
    else
        eni_checkpoint_fini(&c);
    return st;
}

/* ---- whether what its strategy does can be saved ---- */

/* NULL: nothing, as far as it has come. */
static const char *own_obstacle(const eni_rank *self)
{
    collection k = {.self = (eni_rank *)(uintptr_t)self}; /* to be asked, not changed */
    const bool is_claiming = self->job.is_claiming;
    k.nvectors = eni_host_vectors(self->exchange.host, k.vectors);
    eni_host_state(self->exchange.host, &k.state_bytes);
    if (is_claiming && (k.nvectors > 0 || eni_host_writes_param(self->exchange.host)))
        return "its ranks keep vectors of their own and are at no common step";
    if (k.nvectors > 0 && eni_rank_has_leaders(self) && self->world.nranks > 1)
        return "it keeps vectors in every rank, and its hosts meet at the servers only";
    return !is_claiming && blob_bytes(&k) > ENI_BLOB_MAX
               ? "its buckets and its state are too many bytes; a larger --bucket-cap-mb makes fewer buckets"
               : NULL;
}

en_status eni_save_check_strategy(const eni_rank *self)
{
    return self->saving.asked.every == 0 ? EN_OK : refuse(self, own_obstacle(self));
}

/* ---- a boundary ---- */

/* What only this process has would be lost with it. */
static void keep_records(eni_rank *self)
{
    eni_recorder_flush(self->records.recorder);
    if (self->world.rank == 0) eni_curve_keep(self->records.curve);
}

/* Points of the curve are made whole too, for this moves tensors anyway. At the end of a run that is called off, which has
 * little time, only once the checkpoint is there; else before it is, for who goes on from it has them all. */
static en_status save_at(eni_rank *self, uint64_t samples, bool is_end)
{
    eni_saver *s = self->saving.saver;
    const bool is_first = self->world.rank == 0;
    eni_member_note(self->member, (int64_t)self->records.stats.sum.steps, "checkpoint");
    EN_TRY(eni_save_check_strategy(self)); /* since its first step too */
    EN_TRY(eni_step_settle(self, true));
    EN_TRY(eni_trainer_bring(&self->trainer, true));
    if (is_first) end_write(&self->saving);
    s->last = samples;
    if (is_first || !self->job.is_claiming) { /* claimed: rank 0 asks the store, nobody else is needed */
        const int64_t begin = eni_now_ns();
        EN_TRY(collect_moment(self, samples, &s->job));
        eni_debug("save", "sample %llu copied in %.1f ms", (unsigned long long)samples,
                  (double)(eni_now_ns() - begin) * 1e-6);
    }
    if (is_first && is_end) begin_write(&self->saving), end_write(&self->saving);
    const en_status st = eni_snapshots_finish(self, false);
    keep_records(self);
    if (is_first && !is_end) begin_write(&self->saving); /* whatever became of the points */
    return st;
}

en_status eni_save_step(eni_rank *self, uint64_t samples)
{
    eni_saver *s = self->saving.saver;
    const bool has_shown = self->records.stats.sum.steps == self->records.stats.begin_steps + 1;
    if (has_shown) EN_TRY(eni_save_check_strategy(self)); /* in its first step, what it did not declare */
    if (s == NULL || samples < s->next) return EN_OK;
    s->next = (samples / s->every + 1) * s->every;
    return save_at(self, samples, false);
}

/* Where the run was called off: all ranks are at the same step, or done with the store. */
static uint64_t end_samples(const eni_rank *self)
{
    return self->job.is_claiming ? 0
                                 : eni_plan_samples_before(&self->job.plan, self->records.stats.sum.steps);
}

en_status eni_save_wish(eni_rank *self)
{
    const eni_saver *s = self->saving.saver;
    const uint64_t samples = end_samples(self);
    if (self->job.is_claiming && self->world.rank != 0) return EN_OK;
    if (s == NULL && self->world.rank == 0)
        eni_warn("save", "a signal asks for a checkpoint: without --checkpoint-every this run has none");
    if (s == NULL || (!self->job.is_claiming && samples == s->last)) return EN_OK; /* it is there */
    if (self->world.rank == 0) eni_info("save", "a checkpoint, as a signal asks: training goes on");
    return save_at(self, samples, false);
}

en_status eni_save_finish(eni_rank *self)
{
    eni_saver *s = self->saving.saver;
    if (s == NULL) return EN_OK;
    uint64_t samples = end_samples(self);
    int is_early = self->job.is_claiming ? eni_shutdown_is_asked(self->shutdown)
                                         : samples < self->job.plan.samples && samples > s->last;
    if (is_early) EN_TRY(save_at(self, samples, true));
    if (self->world.rank == 0) end_write(&self->saving);
    return EN_OK;
}

void eni_save_close(eni_rank *self)
{
    eni_saver *s = self->saving.saver;
    if (s != NULL) end_write(&self->saving);
    if (s != NULL && s->folder >= 0) close(s->folder);
    eni_free(s);
    self->saving.saver = NULL;
    eni_checkpoint_fini(&self->saving.past);
}
