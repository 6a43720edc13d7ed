/* resume.c - which checkpoint a run resumes, and whether it may; see save.h.
 *
 * Every rank reads and checks the file for itself, before it meets the others; that all have read the same
 * one is part of what they agree on (join.c). */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/checkpoint_name.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "rank/rank.h"
#include "rank/save.h"
#include "runtime/store/store.h"

enum { LISTED = 64 };

static __attribute__((format(printf, 2, 3))) en_status refuse(const eni_rank *self, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return eni_fail(EN_EINVAL, "resume", "--resume=%s: %s", self->saving.past_path, text);
}

/* ---- finding the checkpoint ---- */

/* The newest whole one. Damaged ones are logged and skipped; one of another network is not damaged. */
static en_status read_newest(eni_rank *self)
{
    const char *dir = self->saving.asked.dir;
    char why[ENI_ST_WHY];
    uint64_t found[LISTED];
    if (dir[0] == 0)
        return eni_fail(EN_EINVAL, "resume",
                        "--resume=auto: no folder to resume from; use --checkpoint-dir=FOLDER, or "
                        "--out=FOLDER of the run");
    size_t n = eni_checkpoint_list(dir, "", found, LISTED);
    for (size_t i = 0; i < n; i++) {
        eni_checkpoint_path(dir, found[i], self->saving.past_path, sizeof self->saving.past_path);
        en_status st =
            eni_checkpoint_read(self->saving.past_path, &self->job.schema, &self->saving.past, why);
        self->saving.is_resumed = st == EN_OK;
        if (st == EN_OK) return EN_OK;
        if (st == EN_EMISMATCH || st == EN_EVERSION) return refuse(self, "%s", why);
        if (st == EN_ENOMEM) return st;
        eni_warn("resume", "%s is skipped: %s", self->saving.past_path, why);
    }
    if (n == 0) return EN_OK; /* nothing yet: from the start */
    return eni_fail(EN_EFORMAT, "resume",
                    "--resume=auto: none of the %zu checkpoints in %s is complete: remove them to start over",
                    n, dir);
}

static en_status read_given(eni_rank *self)
{
    char why[ENI_ST_WHY];
    snprintf(self->saving.past_path, sizeof self->saving.past_path, "%s", self->saving.asked.resume);
    en_status st = eni_checkpoint_read(self->saving.past_path, &self->job.schema, &self->saving.past, why);
    self->saving.is_resumed = st == EN_OK;
    if (st != EN_OK) refuse(self, "%s", why);
    return st;
}

/* ---- checks ---- */

static __attribute__((format(printf, 4, 5))) void add(eni_fact *facts, uint32_t *n, const char *key,
                                                      const char *fmt, ...)
{
    eni_fact *fact = &facts[(*n)++];
    va_list args;
    snprintf(fact->key, sizeof fact->key, "%s", key);
    va_start(args, fmt);
    vsnprintf(fact->value, sizeof fact->value, fmt, args);
    va_end(args);
}

/* A program's schedule, with a few of its factors for people. */
static void add_points(eni_fact *facts, uint32_t *n, const eni_job *job)
{
    const eni_schedule factor = {.kind = ENI_LR_POINTS, .base = 1, .points = job->points};
    char text[64] = "";
    for (uint64_t quarter = 0; quarter <= 4; quarter++)
        eni_text_add(text, sizeof text, "%s%.3g", quarter > 0 ? ", " : "",
                     (double)eni_schedule_lr(&factor, job->plan.samples / 4 * quarter));
    add(facts, n, "lr-points", "%s at the quarters, sha256 %s", text, job->points_sha256);
}

uint32_t eni_resume_facts(const eni_rank *self, eni_fact facts_out[ENI_CHECKPOINT_FACTS])
{
    const eni_schedule *s = &self->job.schedule;
    eni_fact *f = facts_out;
    uint32_t n = 0;
    add(f, &n, "seed", "%" PRIu64, self->job.seed);
    add(f, &n, "model", "%s", self->trainer.about.model);
    add(f, &n, "schema-sha256", "%s", self->job.schema_sha256);
    add(f, &n, "data", "%s", self->trainer.about.data);
    add(f, &n, "holdout", "%" PRIu64, self->trainer.about.holdout);
    add(f, &n, "limit-train-samples", "%" PRIu64, self->job.plan.train_samples); /* resolved */
    add(f, &n, "data-sha256", "%s", self->job.data_sha256);
    add(f, &n, "resize", "%s", self->trainer.about.pixels.resize);
    add(f, &n, "augment", "%s", self->trainer.about.pixels.augment);
    add(f, &n, "augment-test", "%s", self->trainer.about.pixels.augment_test);
    add(f, &n, "normalize", "%s", self->trainer.about.pixels.normalize);
    add(f, &n, "shuffle", "%s", self->job.order == ENI_ORDER_FILE ? "off" : "on");
    add(f, &n, "reshuffle", "%s", self->job.order == ENI_ORDER_ONCE ? "off" : "on");
    add(f, &n, "epoch-samples", "%" PRIu64, self->job.plan.epoch_samples); /* --drop-last */
    if (self->job.state != NULL) add(f, &n, "bn-stats", "%s", self->job.bn_stats);
    add(f, &n, "optimizer", "%s", self->job.optimizer->name);
    if (self->job.optimizer->adam != NULL) {
        add(f, &n, "beta1", "%.15g", self->job.hyper.beta1);
        add(f, &n, "beta2", "%.15g", self->job.hyper.beta2);
        add(f, &n, "eps", "%.15g", self->job.hyper.eps);
    } else {
        add(f, &n, "momentum", "%.9g", self->job.momentum);
        add(f, &n, "nesterov", "%s", self->job.hyper.nesterov ? "on" : "off");
    }
    add(f, &n, "weight-decay", "%.9g", self->job.weight_decay);
    add(f, &n, "decay", "%s", self->job.groups != NULL ? "weights" : "all");
    add(f, &n, "lr", "%.15g", s->base);
    add(f, &n, "lr-schedule", "%s", eni_schedule_names[s->kind]);
    add(f, &n, "lr-warmup", "%" PRIu64, s->warmup);
    if (s->kind == ENI_LR_STEP) {
        add(f, &n, "lr-step", "%" PRIu64, s->step_samples);
        add(f, &n, "lr-gamma", "%.15g", s->gamma);
    }
    if (s->kind == ENI_LR_MULTISTEP) {
        char text[ENI_MILESTONES * 21];
        eni_schedule_milestones(s, text, sizeof text);
        add(f, &n, "lr-milestones", "%s", text);
        add(f, &n, "lr-gamma", "%.15g", s->gamma);
    }
    if (s->kind == ENI_LR_POINTS) add_points(f, &n, &self->job);
    add(f, &n, "clip-norm", "%.15g", self->job.clip_norm);
    if (s->kind == ENI_LR_COSINE || s->kind == ENI_LR_LINEAR)
        add(f, &n, "samples-in-all", "%" PRIu64, s->total); /* --epochs, .. */
    return n;
}

static en_status check_facts(const eni_rank *self)
{
    const eni_checkpoint *c = &self->saving.past;
    eni_fact now[ENI_CHECKPOINT_FACTS];
    uint32_t n = eni_resume_facts(self, now);
    for (uint32_t i = 0; i < n; i++) {
        const char *then = eni_checkpoint_fact(c, now[i].key);
        if (then == NULL && strcmp(now[i].key, "clip-norm") == 0) then = "0"; /* of a version without it */
        const bool is_hash =
            then != NULL && strcmp(now[i].key, "lr-points") == 0 &&
            strcmp(then, self->job.points_sha256) == 0; /* of one that has no factors beside it */
        if (is_hash) continue;
        if (then != NULL && strcmp(then, now[i].value) == 0) continue;
        return refuse(self,
                      "it was written with %s %.80s, but this run has %.80s: use the same, or start over in "
                      "another folder",
                      now[i].key, then == NULL ? "unknown" : then, now[i].value);
    }
    if (c->plan_samples == self->job.plan.samples && strcmp(c->order_sha256, self->job.order_sha256) != 0)
        return refuse(self, "its samples came in the order %.8s.., but this run's come in %.8s..",
                      c->order_sha256, self->job.order_sha256);
    return EN_OK;
}

/* The first thing in the file that belongs to one rank, or NULL. */
static const char *rank_thing(const eni_checkpoint *c, char name_out[ENI_CHECKPOINT_NAME])
{
    for (uint32_t i = 0; i < c->nvectors; i++)
        if (strncmp(c->vectors[i].name, "rank.", 5) == 0) {
            const char *slash = strchr(c->vectors[i].name, '/');
            snprintf(name_out, ENI_CHECKPOINT_NAME, "the vector \"%.60s\"", slash == NULL ? "" : slash + 1);
            return name_out;
        }
    for (uint32_t r = 0; r < c->nranks; r++)
        if (c->ranks[r].state_bytes > 0) return "the state of the strategy";
    return NULL;
}

static en_status check_strategy(const eni_rank *self)
{
    const eni_checkpoint *c = &self->saving.past;
    char name[ENI_CHECKPOINT_NAME];
    const char *device = self->trainer.about.computes;
    const char *thing = rank_thing(c, name), *options = eni_options_canonical(self->job.options);
    const bool is_other = strcmp(c->strategy, self->job.strategy->name) != 0,
               has_options = strcmp(c->options, options) == 0;
    if (thing != NULL && (is_other || !has_options))
        return refuse(self, "it has %s for each rank of %s:%s, but this run is %s:%s", thing, c->strategy,
                      c->options, self->job.strategy->name, options);
    if (thing != NULL && c->world != (uint64_t)self->nfirst)
        return refuse(self, "it has %s for each of %" PRIu64 " worker%s, but this run has %d", thing,
                      c->world, c->world == 1 ? "" : "s", self->nfirst);
    if (self->job.has_own && c->nstates != self->job.plan.world)
        return refuse(self, "it has memories of each of %" PRIu64 " workers, but this run has %" PRIu64,
                      c->nstates, self->job.plan.world);
    if (self->job.strategy->state > 0 && thing == NULL && is_other)
        return refuse(self, "%s keeps state of its own, which a run of %s does not have",
                      self->job.strategy->name, c->strategy);
    if (is_other || !has_options)
        eni_info("resume", "a run of %s:%s is resumed as %s:%s", c->strategy, c->options,
                 self->job.strategy->name, options);
    if (strcmp(c->device, device) != 0)
        eni_info("resume", "written with --device=%s, goes on with %s: the bytes will differ", c->device,
                 device);
    return EN_OK;
}

en_status eni_resume_groups(const eni_rank *self)
{
    const eni_checkpoint *c = &self->saving.past;
    char name[ENI_CHECKPOINT_NAME], now[ENI_RANK_GROUPS_TEXT];
    const char *thing = self->saving.is_resumed && eni_rank_uses_groups(self) ? rank_thing(c, name) : NULL;
    if (thing == NULL) return EN_OK;
    eni_rank_groups_text(self->groups, self->world.nranks, now, sizeof now);
    if (strcmp(c->groups, now) == 0) return EN_OK;
    return refuse(
        self, "it has %s for each rank of the groups %.100s, but this run's are %.100s: use --groups=%.100s",
        thing, c->groups, now, c->groups);
}

/* ---- the position ---- */

/* "16, 32, 64": the batch sizes nearest to ours with which a step begins after `rest` samples of an epoch. */
static void batches_that_fit(const eni_rank *self, uint64_t rest, char *text, size_t bytes)
{
    enum { SHOWN = 3 };
    const uint64_t ours = self->job.plan.batch, world = self->job.plan.world, most = rest / world;
    int shown = 0;
    text[0] = 0;
    if (rest % world != 0) return;
    for (uint64_t b = ours < most ? ours : most; b > 0 && shown < SHOWN; b--)
        if (most % b == 0) eni_text_add(text, bytes, "%s%" PRIu64, shown++ > 0 ? ", " : "", b);
    for (uint64_t b = ours + 1; b <= most && shown < 2 * SHOWN; b++)
        if (most % b == 0) eni_text_add(text, bytes, "%s%" PRIu64, shown++ > 0 ? ", " : "", b);
}

static en_status find_position(eni_rank *self)
{
    const eni_checkpoint *c = &self->saving.past;
    char fitting[160];
    if (c->samples > self->job.plan.samples)
        return refuse(self, "it is at sample %" PRIu64 ", beyond the %" PRIu64 " of this run: raise --epochs",
                      c->samples, self->job.plan.samples);
    if (self->job.is_claiming) {
        self->saving.first_micro = eni_plan_micro_at(&self->job.plan, c->samples);
        /* random numbers of past steps are not drawn again */
        self->saving.first_step = self->saving.first_micro / self->job.plan.world;
        return EN_OK;
    }
    if (eni_plan_step_at(&self->job.plan, c->samples, &self->saving.first_step) == EN_OK) {
        self->saving.first_micro = self->saving.first_step * self->job.plan.world;
        return EN_OK;
    }
    batches_that_fit(self, c->samples % self->job.plan.epoch_samples, fitting, sizeof fitting);
    return refuse(self,
                  "it is at sample %" PRIu64 " of %" PRIu64 " x %" PRIu64
                  ", which is inside a step of %" PRIu64 " x %" PRIu64 "; with %" PRIu64
                  " workers these batch sizes fit: %s",
                  c->samples, c->world * c->accumulate, c->batch, self->job.plan.world, self->job.plan.batch,
                  self->job.plan.world, fitting[0] != 0 ? fitting : "none");
}

en_status eni_resume_find(eni_rank *self)
{
    if (self->saving.asked.resume == NULL) return EN_OK;
    EN_TRY(strcmp(self->saving.asked.resume, "auto") == 0 ? read_newest(self) : read_given(self));
    if (!self->saving.is_resumed) return EN_OK;
    EN_TRY(check_facts(self));
    EN_TRY(check_strategy(self));
    return find_position(self);
}

/* ---- restoring ---- */

static void put(const eni_rank *self, uint32_t slot, const eni_saved_vector *vector)
{
    memcpy(eni_rank_flat(self, slot), vector->flat, self->job.schema.count * sizeof(float));
}

/* "rank.R/NAME" of this rank, or NULL. */
static const eni_saved_vector *of_rank(const eni_rank *self, const char *name)
{
    char full[2 * ENI_CHECKPOINT_NAME];
    snprintf(full, sizeof full, "rank.%d/%s", self->world.rank, name);
    return eni_checkpoint_find(&self->saving.past, full);
}

en_status eni_resume_weights(eni_rank *self)
{
    const eni_checkpoint *c = &self->saving.past;
    if (!self->saving.is_resumed) return EN_OK;
    put(self, ENI_SLOT_PARAM, eni_checkpoint_find(c, ""));
    if (c->state != NULL) memcpy(self->job.state, c->state, self->job.schema.nstate * sizeof(float));
    return EN_OK;
}

/* ---- the store ---- */

/* The progress of elements [lo, hi): the least of its spans. Partitions may differ from the saved ones. */
static eni_saved_span behind(const eni_checkpoint *c, uint64_t lo, uint64_t hi)
{
    eni_saved_span least = {lo, hi, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    for (uint32_t i = 0; i < c->nspans; i++) {
        const eni_saved_span *s = &c->spans[i];
        if (s->hi <= lo || s->lo >= hi) continue;
        if (s->version < least.version) least.version = s->version;
        if (s->steps < least.steps) least.steps = s->steps;
        if (s->samples < least.samples) least.samples = s->samples;
    }
    if (least.samples == UINT64_MAX) least = (eni_saved_span){lo, hi, 0, 0, c->samples};
    return least;
}

static void tell_past(eni_rank *self)
{
    for (uint32_t b = 0; b < self->job.buckets->n; b++)
        for (int s = 0; s < eni_client_shards(self->exchange.client); s++) {
            eni_partition_past past;
            eni_client_past(self->exchange.client, b, s, &past);
            eni_saved_span is = behind(&self->saving.past, past.lo, past.lo + past.count);
            past.version = is.version;
            past.steps = is.steps;
            past.samples = is.samples;
            eni_client_set_past(self->exchange.client, b, s, &past);
        }
}

en_status eni_resume_store(eni_rank *self)
{
    char name[ENI_CHECKPOINT_NAME];
    if (!self->saving.is_resumed) return EN_OK;
    for (int i = 0; i < self->job.optimizer->slots(&self->job.hyper); i++) {
        eni_save_slot_name(self, i, name);
        const eni_saved_vector *vector = eni_checkpoint_find(&self->saving.past, name);
        if (vector == NULL) return refuse(self, "it has no %s for the server", name);
        put(self, ENI_SLOT_EVAL, vector);
        EN_TRY(eni_rank_call_store(self, ENI_MSG_INIT, ENI_VECTOR_SLOT + (uint32_t)i, ENI_SLOT_EVAL,
                                   ENI_SLOT_NONE));
    }
    tell_past(self);
    return EN_OK;
}

/* ---- a rank ---- */

static en_status missing(const eni_rank *self, const char *what)
{
    return refuse(self, "%s keeps %.60s in every rank, but a run of %s has not saved it",
                  self->job.strategy->name, what, self->saving.past.strategy);
}

static en_status restore_slots(eni_rank *self)
{
    char name[ENI_CHECKPOINT_NAME];
    uint32_t first;
    const int n = eni_host_optimizer_slots(self->exchange.host, &first);
    int which;
    uint32_t slot;
    EN_TRY(eni_host_eval(self->exchange.host, &which, &slot));
    for (int i = 0; i < n; i++) {
        eni_save_slot_name(self, i, name);
        const eni_saved_vector *vector = of_rank(self, name);
        if (vector == NULL && eni_rank_has_store(self) && which != EN_EVAL_PARAM) continue; /* the server's */
        if (vector == NULL) vector = eni_checkpoint_find(&self->saving.past, name);
        if (vector == NULL) return missing(self, name);
        put(self, first + (uint32_t)i, vector);
    }
    return EN_OK;
}

static en_status restore_vectors(eni_rank *self)
{
    eni_host_vector vectors[ENI_ARENA_NSLOTS];
    const int n = eni_host_vectors(self->exchange.host, vectors);
    const eni_saved_vector *param = of_rank(self, "param");
    if (param != NULL) put(self, ENI_SLOT_PARAM, param);
    for (int v = 0; v < n; v++) {
        const eni_saved_vector *vector = of_rank(self, vectors[v].name);
        if (vector == NULL) return missing(self, vectors[v].name);
        put(self, vectors[v].slot, vector);
    }
    return EN_OK;
}

/* A state may refer to buckets: then they must be the same. */
static en_status check_buckets(const eni_rank *self)
{
    const eni_checkpoint *c = &self->saving.past;
    bool is_same = eni_rank_has_store(self) || c->nspans == self->job.buckets->n;
    for (uint32_t b = 0; b < self->job.buckets->n && is_same && !eni_rank_has_store(self); b++) {
        const eni_bucket_range *range = &self->job.buckets->bucket[b]; /* from the end of the vector */
        const eni_saved_span *span = &c->spans[c->nspans - 1 - b];
        is_same = span->lo == range->lo && span->hi == range->hi;
    }
    if (is_same) return EN_OK;
    return refuse(
        self,
        "%s keeps state for each of %zu buckets, but this run has %u others: use the same --bucket-cap-mb",
        self->job.strategy->name, c->nspans, self->job.buckets->n);
}

static en_status restore_state(eni_rank *self)
{
    size_t bytes;
    void *state = eni_host_state(self->exchange.host, &bytes);
    const eni_checkpoint *c = &self->saving.past;
    const uint32_t r = (uint32_t)self->world.rank;
    if (bytes == 0) return EN_OK;
    if (r >= c->nranks || c->ranks[r].state_bytes != bytes) return missing(self, "state");
    EN_TRY(check_buckets(self));
    memcpy(state, c->ranks[r].state, bytes);
    return EN_OK;
}

/* The rank's own loss scale; with another number of workers, rank 0's. */
static en_status restore_scale(eni_rank *self)
{
    const eni_checkpoint *c = &self->saving.past;
    const bool is_same_world = c->world == (uint64_t)self->nfirst;
    const uint32_t r = is_same_world ? (uint32_t)self->world.rank : 0;
    if (r >= c->nranks) return EN_OK;
    eni_scale_facts facts = c->ranks[r].scale;
    if (!is_same_world) facts.overflows = facts.samples = 0; /* not of a rank here */
    const eni_trainer *t = &self->trainer;
    return t->ops->set_scale == NULL ? EN_OK : t->ops->set_scale(t->self, &facts);
}

/* Sums go to the ranks that had them; with another number of workers rank 0 gets them. */
static void restore_tally(eni_rank *self)
{
    const eni_checkpoint *c = &self->saving.past;
    eni_stats *t = &self->records.stats;
    const uint32_t r = (uint32_t)self->world.rank;
    uint64_t known = 0;
    const bool is_same_world = c->world == (uint64_t)self->nfirst;
    for (uint32_t i = 0; is_same_world && i < c->nranks; i++)
        known += c->ranks[i].sum.samples;
    if (is_same_world && r < c->nranks) t->sum = c->ranks[r].sum;
    self->saving.carried = c->samples > known ? c->samples - known : 0;
    t->sum.steps = t->begin_steps = self->saving.first_step;
    t->before_ns = c->train_ns;
    t->eval_ns = c->eval_ns;
    memcpy(self->job.init_sha256, c->init_sha256, sizeof self->job.init_sha256);
}

en_status eni_resume_state(eni_rank *self)
{
    if (!self->saving.is_resumed) return EN_OK;
    EN_TRY(restore_slots(self));
    EN_TRY(restore_vectors(self));
    EN_TRY(restore_state(self));
    EN_TRY(restore_scale(self));
    for (uint32_t b = 0; b < self->job.buckets->n; b++) {
        const eni_bucket_range *range = &self->job.buckets->bucket[b];
        eni_host_set_steps_taken(self->exchange.host, b,
                                 behind(&self->saving.past, range->lo, range->hi).steps);
    }
    restore_tally(self);
    if (self->world.rank == 0)
        eni_info("resume", "resumes at sample %" PRIu64 " of %" PRIu64 " (%s)", self->saving.past.samples,
                 self->job.plan.samples, self->saving.past_path);
    for (uint32_t i = 0; i < self->saving.past.nvectors; i++) { /* as much as the model, several times */
        eni_free(self->saving.past.vectors[i].flat);
        self->saving.past.vectors[i].flat = NULL;
    }
    return EN_OK;
}
