/* snapshot.c - the models of the curve: copies on each rank and psd while the clock runs, whole models after.
 *
 *     on the clock   no tensor moves. Rank 0 copies its weights, if they are the model; if the model is the mean
 *                    of all ranks', each copies its own; if it is the store's, psd copies its partitions on
 *                    rank 0's message (a header); with --bn-stats=mean each rank copies its statistics
 *     after it       rank 0 makes whole models of these, the oldest first: all-reduce, pull, gather. A point of
 *                    which a part is lost is left out, and counted
 *
 * A checkpoint makes whole models too, of the copies so far: else a resumed run would lack them. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/copies.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/mean.h"
#include "rank/rank.h"

/* ---- running statistics ---- */

/* Whether the statistics to evaluate are made of those of all ranks (or of all its micro-batches, where it is alone). Otherwise
 * they are rank 0's, also where a checkpoint has those of all. */
static bool judges_all(const eni_rank *self)
{
    return self->job.states != NULL && self->job.is_mean;
}

/* Where this rank's running statistics are among those of all (or of its micro-batches, where it is alone). */
static float *own_of_all(const eni_rank *self)
{
    return self->job.states + (uint64_t)self->world.rank * self->job.schema.nstate;
}

/* Where those to evaluate are made. */
static float *own_state(const eni_rank *self)
{
    return judges_all(self) ? own_of_all(self) : self->job.state;
}

/* Their number of elements; 0: not needed of this rank, or the network has none. */
static uint64_t own_states(const eni_rank *self)
{
    const eni_job *job = &self->job;
    if (judges_all(self)) return job->schema.nstate * (uint64_t)job->accumulate;
    return job->state != NULL && self->world.rank == 0 ? job->schema.nstate : 0;
}

/* Copies the present ones, `n` elements, into `to`. */
static en_status copy_states(const eni_rank *self, uint64_t n, float *to)
{
    const uint64_t nstate = self->job.schema.nstate;
    for (uint64_t at = 0; at < n; at += nstate)
        EN_TRY(self->trainer.ops->state(self->trainer.self, (int64_t)(at / nstate), to + at));
    return EN_OK;
}

/* Gathers those of all ranks, by the control plane, into job.states. */
static en_status gather_states(eni_rank *self)
{
    eni_job *job = &self->job;
    const size_t bytes = job->schema.nstate * sizeof(float);
    const float *own = own_of_all(self);
    for (size_t at = 0; at < bytes && self->world.nranks > 1; at += ENI_BLOB_MAX) {
        const size_t n = bytes - at < ENI_BLOB_MAX ? bytes - at : ENI_BLOB_MAX;
        eni_blobs blobs = {0};
        EN_TRY(eni_member_gather(self->member, "statistics", (const char *)own + at, n, &blobs, INT64_MAX));
        en_status st = EN_OK;
        for (int r = 0; r < self->world.nranks && st == EN_OK; r++) {
            st = blobs.blob[r].bytes == n ? EN_OK : EN_EPROTO;
            if (st == EN_OK) memcpy((char *)job->states + (size_t)r * bytes + at, blobs.blob[r].data, n);
        }
        eni_blobs_fini(&blobs);
        EN_TRY(st);
    }
    return EN_OK;
}

void eni_snapshot_mean_of_states(eni_job *job)
{
    const int n = (int)job->plan.world;
    const float *src[ENI_MEAN_MAX];
    float ones[ENI_MEAN_MAX];
    for (uint32_t b = 0; b < job->schema.nbuffers; b++) {
        const en_model_tensor *buffer = &job->schema.buffers[b];
        float *into = job->state + buffer->offset;
        for (int r = 0; r < n; r++) {
            src[r] = job->states + (uint64_t)r * job->schema.nstate + buffer->offset;
            ones[r] = 1;
        }
        if (!job->is_mean || buffer->dtype != EN_F32 || buffer->kind == EN_TENSOR_OWN)
            memcpy(into, src[0], buffer->count * en_dtype_bytes(buffer->dtype));
        else
            eni_mean(into, src, ones, n, 1 / (float)n, buffer->count);
    }
}

/* Makes the statistics to evaluate, at rank 0, from own_state's. With those of all ranks all together. */
static en_status judge_states(eni_rank *self)
{
    if (!judges_all(self)) return EN_OK;
    EN_TRY(gather_states(self));
    eni_snapshot_mean_of_states(&self->job);
    return EN_OK;
}

/* ---- a model at once: at the end, and of a checkpoint ---- */

en_status eni_snapshot_state(eni_rank *self)
{
    EN_TRY(copy_states(self, own_states(self), own_state(self)));
    return judge_states(self);
}

en_status eni_snapshot_all_states(eni_rank *self)
{
    eni_job *job = &self->job;
    if (job->states == NULL) return eni_snapshot_state(self);
    EN_TRY(copy_states(self, job->schema.nstate * (uint64_t)job->accumulate, own_of_all(self)));
    EN_TRY(gather_states(self));
    eni_snapshot_mean_of_states(job);
    return EN_OK;
}

/* Turns this rank's weights in slot ENI_SLOT_EVAL into the strategy's model. */
static en_status mean_of_weights(eni_rank *self)
{
    const eni_coll_op mean = {.op = EN_ALLREDUCE, .what = EN_WEIGHTS, .slot = ENI_SLOT_EVAL, .nsamples = 1};
    return eni_rank_collect(self, self->exchange.all.coll, &mean);
}

en_status eni_snapshot(eni_rank *self)
{
    uint32_t slot;
    int which;
    EN_TRY(eni_snapshot_state(self));
    EN_TRY(eni_host_eval(self->exchange.host, &which, &slot));
    EN_TRY(eni_trainer_bring(&self->trainer, false));
    memcpy(eni_rank_flat(self, ENI_SLOT_EVAL), eni_rank_flat(self, slot),
           self->job.schema.count * sizeof(float));
    if (which == EN_EVAL_MEAN) return mean_of_weights(self);
    if (which != EN_EVAL_STORE || self->exchange.client == NULL) return EN_OK;
    return eni_rank_call_store(self, ENI_MSG_SNAPSHOT, 0, ENI_SLOT_NONE, ENI_SLOT_EVAL);
}

/* ---- while the clock runs ---- */

/* The shares of a snapshot. */
typedef struct portion {
    uint32_t slot;
    bool is_first, is_store, is_mean;
    bool is_whole;              /* rank 0 has all of it */
    uint64_t nstates, nweights; /* elements of this rank's copy; 0: not needed */
} portion;

static en_status portion_of(const eni_rank *self, portion *s)
{
    int which;
    EN_TRY(eni_host_eval(self->exchange.host, &which, &s->slot));
    s->is_first = self->world.rank == 0;
    s->is_store = which == EN_EVAL_STORE && self->exchange.client != NULL;
    s->is_mean = which == EN_EVAL_MEAN && self->exchange.all.coll != NULL;
    s->is_whole = s->is_first && !s->is_store && !s->is_mean && !judges_all(self);
    s->nstates = own_states(self);
    s->nweights = s->is_mean || (s->is_first && !s->is_store) ? self->job.schema.count : 0;
    return EN_OK;
}

static bool needs_all(const eni_rank *self, const portion *s)
{
    return self->world.nranks > 1 && (s->is_mean || judges_all(self));
}

/* A rank that only watches has neither. */
static bool takes_part(const portion *s)
{
    return s->is_first || s->nstates + s->nweights > 0;
}

en_status eni_snapshots_open(eni_rank *self)
{
    const uint64_t points = self->records.looks.points, half = ENI_COPIES_HOST_BYTES / 2,
                   nlocal = self->world.nlocal > 0 ? (uint64_t)self->world.nlocal : 1;
    portion s;
    EN_TRY(portion_of(self, &s));
    eni_curve_expect(self->records.curve, s.is_whole ? points : 0, s.is_whole ? 2 * half : half);
    if (s.is_whole || !takes_part(&s)) return EN_OK;
    EN_TRY(eni_copies_open("", self->records.asked.out, (s.nstates + s.nweights) * sizeof(float),
                           &self->records.looks.own));
    eni_copies_expect(self->records.looks.own, points, half / nlocal);
    return EN_OK;
}

/* This rank's part, to be made whole later. */
static en_status keep_own(eni_rank *self, const portion *s, const eni_copy_note *note)
{
    void *room;
    if (!eni_copies_takes(self->records.looks.own, note->number)) return EN_OK;
    if (s->is_store && s->is_first) EN_TRY(eni_client_keep(self->exchange.client, note->number));
    EN_TRY(eni_copies_add(self->records.looks.own, note, &room));
    if (room == NULL) return EN_OK;
    float *copy = room;
    EN_TRY(copy_states(self, s->nstates, copy));
    if (s->nweights > 0) memcpy(copy + s->nstates, eni_rank_flat(self, s->slot), s->nweights * sizeof(float));
    return EN_OK;
}

static en_status keep_whole(eni_rank *self, const portion *s, const eni_copy_note *note)
{
    EN_TRY(copy_states(self, s->nstates, own_state(self)));
    return eni_curve_add(self->records.curve, note, eni_rank_flat(self, s->slot), self->job.state);
}

en_status eni_snapshot_if_due(eni_rank *self, uint64_t samples)
{
    eni_records *records = &self->records;
    const int64_t begin = eni_now_ns(); /* the end of the step: what follows is on the clock too */
    eni_host_counters now;
    portion s;
    if (!eni_curve_is_due(records->curve, samples)) return EN_OK;
    eni_curve_skip(records->curve, samples);
    EN_TRY(portion_of(self, &s));
    if (!takes_part(&s)) return EN_OK;
    eni_member_note(self->member, (int64_t)records->stats.sum.steps, "snapshot");
    eni_host_count(self->exchange.host, &now);
    const eni_copy_note note = {.samples = samples,
                                .update = now.version,
                                .t = eni_train_seconds(self, begin),
                                .number = eni_curve_number(records->curve, samples)};
    if (s.nweights > 0) EN_TRY(eni_trainer_bring(&self->trainer, false));
    EN_TRY(s.is_whole ? keep_whole(self, &s, &note) : keep_own(self, &s, &note));
    records->looks.taken++;
    records->looks.clock_ns += eni_now_ns() - begin;
    return EN_OK;
}

/* ---- after it ---- */

/* With claims the store counts: rank 0's own batch may be far behind the others' later pushes. */
static void note_of_store(const eni_rank *self, eni_copy_note *note)
{
    eni_partition_past past;
    if (!self->job.is_claiming) return;
    eni_client_past(self->exchange.client, 0, 0, &past);
    note->samples = past.samples < self->job.plan.samples ? past.samples : self->job.plan.samples;
}

/* Pulls psd's copy into slot ENI_SLOT_EVAL. EN_ENOENT: some partition of it is gone. */
static en_status pull_kept(eni_rank *self, uint32_t number)
{
    eni_client *client = self->exchange.client;
    const eni_header kept = {
        .type = ENI_MSG_SNAPSHOT, .kind = ENI_SNAPSHOT_KEPT, .what = EN_WEIGHTS, .step = number};
    for (uint32_t b = 0; b < self->job.buckets->n; b++)
        EN_TRY(eni_client_call(client, b, ENI_SLOT_NONE, ENI_SLOT_EVAL, &kept));
    for (uint32_t b = 0; b < self->job.buckets->n; b++)
        EN_TRY(eni_client_wait(client, b));
    for (uint32_t b = 0; b < self->job.buckets->n; b++)
        for (int k = 0; k < eni_client_shards(client); k++) {
            eni_partition_past past;
            eni_client_past(client, b, k, &past);
            if (past.count > 0 && past.version == ENI_KEPT_NOWHERE) return EN_ENOENT;
        }
    return EN_OK;
}

/* Makes a point of the oldest copy. */
static en_status make_whole(eni_rank *self, const portion *s, float *room)
{
    eni_copies *own = self->records.looks.own;
    const float *copy = eni_copies_read(own, 0, room);
    eni_copy_note note = *eni_copies_note(own, 0);
    en_status st = EN_OK;
    if (copy == NULL)
        return eni_fail(EN_EIO, "snapshots", "cannot read %s: its contents have changed",
                        eni_copies_path(own));
    if (s->nstates > 0) memcpy(own_state(self), copy, s->nstates * sizeof(float));
    if (s->nweights > 0)
        memcpy(eni_rank_flat(self, ENI_SLOT_EVAL), copy + s->nstates, s->nweights * sizeof(float));
    eni_copies_forget(own, 0, 1);
    EN_TRY(judge_states(self));
    if (s->is_mean) EN_TRY(mean_of_weights(self));
    if (!s->is_first) return EN_OK;
    if (s->is_store) st = pull_kept(self, note.number);
    if (st == EN_OK && s->is_store) note_of_store(self, &note);
    if (st == EN_OK)
        return eni_curve_add(self->records.curve, &note, eni_rank_flat(self, ENI_SLOT_EVAL), self->job.state);
    self->records.looks.lost += st == EN_ENOENT;
    return st == EN_ENOENT ? EN_OK : st;
}

static int by_number(const void *left, const void *right)
{
    const uint32_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* psd's blob is ignored. */
static bool is_with_all(const eni_blobs *blobs, uint32_t number)
{
    for (size_t r = 0; r + 1 < blobs->count; r++) {
        const eni_blob *blob = &blobs->blob[r];
        if (bsearch(&number, blob->data, blob->bytes / sizeof number, sizeof number, by_number) == NULL)
            return false;
    }
    return true;
}

/* Drops the copies from `begin` up to `end`, which make no points. */
static void lose(eni_rank *self, uint32_t begin, uint32_t end)
{
    eni_copies_forget(self->records.looks.own, begin, end);
    self->records.looks.lost += end - begin;
}

/* If a rank lacks its part of a point, or gives it up, the others drop theirs. psd reports its own. */
static en_status agree(eni_rank *self)
{
    eni_copies *own = self->records.looks.own;
    const uint32_t most = ENI_BLOB_MAX / sizeof(uint32_t), n = eni_copies_count(own);
    uint32_t *numbers = eni_alloc_array(n, sizeof *numbers), told = n < most ? n : most;
    eni_blobs blobs = {0};
    if (numbers == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < told; i++)
        numbers[i] = eni_copies_note(own, i)->number;
    en_status st =
        eni_member_gather(self->member, "snapshots", numbers, told * sizeof *numbers, &blobs, INT64_MAX);
    eni_free(numbers);
    for (uint32_t i = n; st == EN_OK && i-- > 0;)
        if (!is_with_all(&blobs, eni_copies_note(own, i)->number)) lose(self, i, i + 1);
    eni_blobs_fini(&blobs);
    return st;
}

static en_status make_all_whole(eni_rank *self, const portion *s, bool is_called_off)
{
    eni_copies *own = self->records.looks.own;
    float *room = eni_alloc_array(s->nstates + s->nweights, sizeof *room);
    if (room == NULL) return EN_ENOMEM;
    if (is_called_off) lose(self, 0, eni_copies_count(own));
    for (uint32_t i = eni_copies_count(own); i-- > 0;) /* before others count on it */
        if (eni_copies_read(own, i, room) == NULL) lose(self, i, i + 1);
    en_status st = needs_all(self, s) ? agree(self) : EN_OK;
    while (st == EN_OK && eni_copies_count(own) > 0)
        st = make_whole(self, s, room);
    eni_free(room);
    return st;
}

en_status eni_snapshots_finish(eni_rank *self, bool is_called_off)
{
    eni_looks *looks = &self->records.looks;
    const int64_t begin = eni_now_ns();
    const eni_moved before = eni_count_moved(self);
    const uint64_t lost = looks->lost;
    portion s;
    if (looks->own == NULL) return EN_OK;
    EN_TRY(portion_of(self, &s));
    if (self->job.is_claiming && !self->records.is_concluding && needs_all(self, &s))
        return EN_OK; /* at a checkpoint of ranks without a common step */
    EN_TRY(make_all_whole(self, &s, is_called_off));
    if (looks->lost > lost && !is_called_off && self->world.rank == 0)
        eni_warn(
            "snapshots",
            "%llu points of the accuracy curve are left out: a rank or psd has lost its part of them, or "
            "had no room for it",
            (unsigned long long)(looks->lost - lost));
    const eni_moved after = eni_count_moved(self);
    *(self->records.is_concluding ? &looks->after_bytes : &looks->clock_bytes) +=
        after.payload_sent + after.payload_received - before.payload_sent - before.payload_received;
    *(self->records.is_concluding ? &looks->after_ns : &looks->clock_ns) += eni_now_ns() - begin;
    return EN_OK;
}

uint64_t eni_snapshots_left_out(const eni_rank *self)
{
    const eni_records *records = &self->records;
    return records->looks.lost + eni_curve_left_out(records->curve) +
           (records->looks.own != NULL ? eni_copies_thinned(records->looks.own) : 0);
}
