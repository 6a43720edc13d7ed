/* resume.c - which checkpoint a run goes on from, and whether it may; see save.h.
 *
 * Every rank reads and checks the file for itself, before it meets the others; that all have read the same
 * one is part of what they agree on (join.c). */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "config/outputs.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "worker/save.h"

enum { LISTED = 64 };

static en_status refuse(const eni_worker *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static en_status refuse(const eni_worker *w, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    eni_error("resume", "--resume=%s: %s", w->past_path, text);
    return EN_EINVAL;
}

/* ---- which ---- */

/* The newest whole one. Damaged ones are named and passed over; one of another network is no damage. */
static en_status read_newest(eni_worker *w)
{
    char dir[1000], why[ENI_ST_WHY];
    uint64_t found[LISTED];
    if (eni_out_checkpoints(w->config, dir, sizeof dir) != EN_OK) {
        eni_error("resume",
                  "--resume=auto: where from? Give --checkpoint-dir=FOLDER, or --out=FOLDER of the run");
        return EN_EINVAL;
    }
    size_t n = eni_checkpoint_list(dir, found, LISTED);
    for (size_t i = 0; i < n; i++) {
        eni_checkpoint_path(dir, found[i], w->past_path, sizeof w->past_path);
        en_status st = eni_checkpoint_read(w->past_path, &w->schema, &w->past, why);
        w->is_resumed = st == EN_OK;
        if (st == EN_OK) return EN_OK;
        if (st == EN_EMISMATCH || st == EN_EVERSION) return refuse(w, "%s", why);
        if (st == EN_ENOMEM) return st;
        eni_warn("resume", "%s is passed over: %s", w->past_path, why);
    }
    if (n == 0) return EN_OK; /* nothing yet: from the start */
    eni_error("resume",
              "--resume=auto: none of the %zu checkpoints in %s is whole: remove them to start over", n, dir);
    return EN_EFORMAT;
}

static en_status read_given(eni_worker *w)
{
    char why[ENI_ST_WHY];
    snprintf(w->past_path, sizeof w->past_path, "%s", w->config->resume);
    en_status st = eni_checkpoint_read(w->past_path, &w->schema, &w->past, why);
    w->is_resumed = st == EN_OK;
    if (st != EN_OK) refuse(w, "%s", why);
    return st;
}

/* ---- whether ---- */

static void add(eni_fact *facts, uint32_t *n, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void add(eni_fact *facts, uint32_t *n, const char *key, const char *fmt, ...)
{
    eni_fact *fact = &facts[(*n)++];
    va_list args;
    snprintf(fact->key, sizeof fact->key, "%s", key);
    va_start(args, fmt);
    vsnprintf(fact->value, sizeof fact->value, fmt, args);
    va_end(args);
}

uint32_t eni_resume_facts(const eni_worker *w, eni_fact facts_out[ENI_CHECKPOINT_FACTS])
{
    static const char *const kinds[] = {"constant", "step", "cosine"};
    const eni_schedule *s = &w->schedule;
    eni_fact *f = facts_out;
    uint32_t n = 0;
    add(f, &n, "seed", "%" PRId64, w->config->seed);
    add(f, &n, "model", "%s", w->schema.network->name);
    add(f, &n, "schema-sha256", "%s", w->schema_sha256);
    add(f, &n, "data", "%s", w->dataset->name);
    add(f, &n, "holdout", "%" PRIu64, w->dataset->split[ENI_HOLDOUT].count);
    add(f, &n, "limit-train-samples", "%" PRIu64, w->plan.train_samples); /* resolved */
    add(f, &n, "data-sha256", "%s", w->data_sha256);
    add(f, &n, "shuffle", "%s", w->config->shuffle ? "on" : "off");
    add(f, &n, "epoch-samples", "%" PRIu64, w->plan.epoch_samples); /* --drop-last */
    add(f, &n, "optimizer", "%s", w->optimizer->name);
    add(f, &n, "momentum", "%.9g", w->config->momentum);
    add(f, &n, "nesterov", "%s", w->hyper.nesterov ? "on" : "off");
    add(f, &n, "weight-decay", "%.9g", w->config->weight_decay);
    add(f, &n, "lr", "%.15g", s->base);
    add(f, &n, "lr-schedule", "%s", kinds[s->kind]);
    add(f, &n, "lr-warmup", "%" PRIu64, s->warmup);
    if (s->kind == ENI_LR_STEP) {
        add(f, &n, "lr-step", "%" PRIu64, s->step_samples);
        add(f, &n, "lr-gamma", "%.15g", s->gamma);
    }
    if (s->kind == ENI_LR_COSINE) add(f, &n, "samples-in-all", "%" PRIu64, s->total); /* --epochs, .. */
    return n;
}

static const char *value_of(const eni_fact *facts, uint32_t n, const char *key)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(facts[i].key, key) == 0) return facts[i].value;
    return strcmp(key, "holdout") == 0 ? "0" : NULL; /* written before there were any */
}

static en_status check_facts(const eni_worker *w)
{
    const eni_checkpoint *c = &w->past;
    eni_fact now[ENI_CHECKPOINT_FACTS];
    uint32_t n = eni_resume_facts(w, now);
    for (uint32_t i = 0; i < n; i++) {
        const char *then = value_of(c->facts, c->nfacts, now[i].key);
        if (then != NULL && strcmp(then, now[i].value) == 0) continue;
        return refuse(w,
                      "it was written with %s %.80s, and this run has %.80s: give the same, or start over in "
                      "another folder",
                      now[i].key, then == NULL ? "unknown" : then, now[i].value);
    }
    if (c->plan_samples == w->plan.samples && strcmp(c->order_sha256, w->order_sha256) != 0)
        return refuse(w, "its samples came in the order %.8s.., this run's come in %.8s..", c->order_sha256,
                      w->order_sha256);
    return EN_OK;
}

/* The first thing in the file that belongs to one rank, or NULL. */
static const char *rank_thing(const eni_checkpoint *c, char name_out[ENI_CHECKPOINT_NAME])
{
    for (uint32_t i = 0; i < c->nimages; i++)
        if (strncmp(c->images[i].name, "rank.", 5) == 0) {
            const char *slash = strchr(c->images[i].name, '/');
            snprintf(name_out, ENI_CHECKPOINT_NAME, "the vector \"%.60s\"", slash == NULL ? "" : slash + 1);
            return name_out;
        }
    for (uint32_t r = 0; r < c->nranks; r++)
        if (c->ranks[r].state_bytes > 0) return "the state of the strategy";
    return NULL;
}

static en_status check_strategy(const eni_worker *w)
{
    const eni_checkpoint *c = &w->past;
    char name[ENI_CHECKPOINT_NAME], device[sizeof c->device];
    const char *thing = rank_thing(c, name), *options = eni_options_canonical(w->options);
    int is_other = strcmp(c->strategy, w->strategy->name) != 0,
        has_options = strcmp(c->options, options) == 0;
    if (thing != NULL && (is_other || !has_options))
        return refuse(w, "it has %s for each rank of %s:%s, and this run is %s:%s", thing, c->strategy,
                      c->options, w->strategy->name, options);
    if (thing != NULL && c->world != (uint64_t)w->world.nranks)
        return refuse(w, "it has %s for each of %" PRIu64 " workers, and here are %d", thing, c->world,
                      w->world.nranks);
    if (w->strategy->state > 0 && thing == NULL && is_other)
        return refuse(w, "%s keeps state of its own, of which a run of %s has none", w->strategy->name,
                      c->strategy);
    if (is_other || !has_options)
        eni_info("resume", "a run of %s:%s goes on as %s:%s", c->strategy, c->options, w->strategy->name,
                 options);
    eni_save_device(w, device, sizeof device);
    if (strcmp(c->device, device) != 0)
        eni_info("resume", "written with --device=%s, goes on with %s: the bytes will differ", c->device, device);
    return EN_OK;
}

/* ---- where ---- */

/* "16, 32, 64": the batch sizes nearest to ours with which a step begins after `rest` samples of an epoch. */
static void batches_that_fit(const eni_worker *w, uint64_t rest, char *text, size_t bytes)
{
    enum { SHOWN = 3 };
    const uint64_t ours = w->plan.batch, world = w->plan.world, most = rest / world;
    size_t at = 0;
    int shown = 0;
    text[0] = 0;
    if (rest % world != 0) return;
    for (uint64_t b = ours < most ? ours : most; b > 0 && shown < SHOWN; b--)
        if (most % b == 0 && ++shown)
            at += (size_t)snprintf(text + at, bytes - at, "%s%" PRIu64, at > 0 ? ", " : "", b);
    for (uint64_t b = ours + 1; b <= most && shown < 2 * SHOWN; b++)
        if (most % b == 0 && ++shown)
            at += (size_t)snprintf(text + at, bytes - at, "%s%" PRIu64, at > 0 ? ", " : "", b);
}

static en_status find_position(eni_worker *w)
{
    const eni_checkpoint *c = &w->past;
    char fitting[160];
    if (c->samples > w->plan.samples)
        return refuse(w, "it is at sample %" PRIu64 ", beyond the %" PRIu64 " of this run: raise --epochs",
                      c->samples, w->plan.samples);
    if (w->is_claiming) {
        w->first_micro = eni_plan_micro_at(&w->plan, c->samples);
        w->first_step =
            w->first_micro / w->plan.world; /* random numbers of steps that were are not drawn again */
        return EN_OK;
    }
    if (eni_plan_step_at(&w->plan, c->samples, &w->first_step) == EN_OK) {
        w->first_micro = w->first_step * w->plan.world;
        return EN_OK;
    }
    batches_that_fit(w, c->samples % w->plan.epoch_samples, fitting, sizeof fitting);
    return refuse(w,
                  "it is at sample %" PRIu64 " of %" PRIu64 " x %" PRIu64
                  ", which is inside a step of %" PRIu64 " x %" PRIu64 "; with %" PRIu64
                  " workers these batch sizes fit: %s",
                  c->samples, c->world * c->accumulate, c->batch, w->plan.world, w->plan.batch, w->plan.world,
                  fitting[0] != 0 ? fitting : "none");
}

en_status eni_resume_find(eni_worker *w)
{
    if (w->config->resume == NULL) return EN_OK;
    EN_TRY(strcmp(w->config->resume, "auto") == 0 ? read_newest(w) : read_given(w));
    if (!w->is_resumed) return EN_OK;
    EN_TRY(check_facts(w));
    EN_TRY(check_strategy(w));
    return find_position(w);
}
