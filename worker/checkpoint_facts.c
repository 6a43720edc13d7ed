/* checkpoint_facts.c - a checkpoint's facts as JSON text, and back; see checkpoint.h. */
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "runtime/control/control.h"
#include "worker/checkpoint.h"

enum { HISTORY_MAX = 1000, STATE_MAX = 1 << 20 };

/* ---- writing ------------------------------------------------------------------------------------------- */

static void set_int(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void set_text(json_t *object, const char *key, const char *value)
{
    json_object_set_new(object, key, json_string(value));
}

static json_t *rank_json(const eni_rank_facts *rank)
{
    json_t *o = json_object();
    set_int(o, "steps", rank->steps);
    set_int(o, "samples", rank->samples);
    set_int(o, "last_samples", rank->last_samples);
    set_int(o, "last_correct", rank->last_correct);
    json_object_set_new(o, "last_loss", isfinite(rank->last_loss) ? json_real(rank->last_loss) : json_null());
    set_int(o, "state", rank->state_bytes);
    if (rank->scale.scale > 0)
        json_object_set_new(o, "loss_scale",
                            json_pack("[f, I, I, I]", rank->scale.scale, (json_int_t)rank->scale.good,
                                      (json_int_t)rank->scale.overflows, (json_int_t)rank->scale.samples));
    return o;
}

static void write_lists(const eni_checkpoint *c, json_t *o)
{
    json_t *same = json_object(), *history = json_array(), *vectors = json_array(), *ranks = json_array(),
           *stretches = json_array();
    for (uint32_t i = 0; i < c->nfacts; i++)
        set_text(same, c->facts[i].key, c->facts[i].value);
    for (uint32_t i = 0; i < c->nhistory; i++)
        json_array_append_new(history, json_string(c->history[i]));
    for (uint32_t i = 0; i < c->nimages; i++)
        json_array_append_new(vectors, json_string(c->images[i].name));
    for (uint32_t i = 0; i < c->nranks; i++)
        json_array_append_new(ranks, rank_json(&c->ranks[i]));
    for (uint32_t i = 0; i < c->nstretches; i++) {
        const eni_stretch *s = &c->stretches[i];
        json_array_append_new(stretches, json_pack("[I, I, I, I, I]", (json_int_t)s->lo, (json_int_t)s->hi,
                                                   (json_int_t)s->version, (json_int_t)s->steps,
                                                   (json_int_t)s->samples));
    }
    json_object_set_new(o, "same", same);
    json_object_set_new(o, "history", history);
    json_object_set_new(o, "vectors", vectors);
    json_object_set_new(o, "stretches", stretches);
    json_object_set_new(o, "ranks", ranks);
}

char *eni_checkpoint_facts(const eni_checkpoint *c)
{
    json_t *o = json_object();
    set_int(o, "format", ENI_CHECKPOINT_FORMAT);
    set_text(o, "version", c->version);
    set_text(o, "strategy", c->strategy);
    set_text(o, "options", c->options);
    set_text(o, "device", c->device);
    set_int(o, "world", c->world);
    set_int(o, "accumulate", c->accumulate);
    set_int(o, "batch", c->batch);
    set_int(o, "shards", c->shards);
    set_int(o, "samples", c->samples);
    set_int(o, "step", c->step);
    set_int(o, "epoch", c->epoch);
    set_int(o, "micro", c->micro);
    set_int(o, "plan_samples", c->plan_samples);
    set_text(o, "order_sha256", c->order_sha256);
    set_text(o, "init_sha256", c->init_sha256);
    set_int(o, "updates", c->updates);
    set_int(o, "dropped", c->dropped);
    set_int(o, "train_ns", (uint64_t)c->train_ns);
    set_int(o, "eval_ns", (uint64_t)c->eval_ns);
    write_lists(c, o);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static en_status bad(char why_out[ENI_ST_WHY], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static en_status bad(char why_out[ENI_ST_WHY], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why_out, ENI_ST_WHY, fmt, args);
    va_end(args);
    return EN_EFORMAT;
}

static en_status whole(const json_t *o, const char *key, uint64_t *value_out, char *why_out)
{
    const json_t *value = json_object_get(o, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return bad(why_out, "its fact \"%s\" is no whole number", key);
    *value_out = (uint64_t)json_integer_value(value);
    return EN_OK;
}

static en_status text(const json_t *o, const char *key, char *value_out, size_t bytes, char *why_out)
{
    const char *value = json_string_value(json_object_get(o, key));
    if (value == NULL || strlen(value) >= bytes)
        return bad(why_out, "its fact \"%s\" is no text of at most %zu bytes", key, bytes - 1);
    memcpy(value_out, value, strlen(value) + 1);
    return EN_OK;
}

static en_status list(const json_t *o, const char *key, size_t max, size_t size, void **items_out,
                      const json_t **list_out, char *why_out)
{
    const json_t *found = json_object_get(o, key);
    if (!json_is_array(found) || json_array_size(found) > max)
        return bad(why_out, "its fact \"%s\" is no list of at most %zu", key, max);
    *items_out = eni_alloc_array(json_array_size(found), size);
    if (*items_out == NULL) return EN_ENOMEM;
    *list_out = found;
    return EN_OK;
}

static en_status take_same(const json_t *o, eni_checkpoint *c, char *why_out)
{
    json_t *same = json_object_get(o, "same"), *value;
    const char *key;
    if (!json_is_object(same) || json_object_size(same) > ENI_CHECKPOINT_FACTS)
        return bad(why_out, "its fact \"same\" is no object of at most %d", ENI_CHECKPOINT_FACTS);
    json_object_foreach(same, key, value)
    {
        eni_fact *fact = &c->facts[c->nfacts];
        if (strlen(key) >= sizeof fact->key) return bad(why_out, "it has a fact of an unknown name");
        memcpy(fact->key, key, strlen(key) + 1);
        EN_TRY(text(same, key, fact->value, sizeof fact->value, why_out));
        c->nfacts++;
    }
    return EN_OK;
}

static en_status take_history(const json_t *o, eni_checkpoint *c, char *why_out)
{
    const json_t *found = NULL;
    size_t i;
    json_t *item;
    EN_TRY(list(o, "history", HISTORY_MAX, sizeof *c->history, (void **)&c->history, &found, why_out));
    json_array_foreach(found, i, item)
    {
        if (!json_is_string(item)) return bad(why_out, "its history is no list of texts");
        if ((c->history[c->nhistory++] = eni_strdup(json_string_value(item))) == NULL) return EN_ENOMEM;
    }
    return EN_OK;
}

static en_status take_stretches(const json_t *o, const en_schema *schema, eni_checkpoint *c, char *why_out)
{
    const json_t *found = NULL, *item;
    uint64_t end = 0;
    EN_TRY(
        list(o, "stretches", schema->count, sizeof *c->stretches, (void **)&c->stretches, &found, why_out));
    for (size_t i = 0; i < json_array_size(found); i++) {
        uint64_t v[5];
        item = json_array_get(found, i);
        if (json_array_size(item) != 5) return bad(why_out, "stretch %zu is no list of five numbers", i);
        for (size_t k = 0; k < 5; k++) {
            const json_t *number = json_array_get(item, k);
            if (!json_is_integer(number) || json_integer_value(number) < 0)
                return bad(why_out, "stretch %zu is no list of five numbers", i);
            v[k] = (uint64_t)json_integer_value(number);
        }
        if (v[0] < end || v[1] <= v[0] || v[1] > schema->count)
            return bad(why_out,
                       "stretch %zu, elements %llu to %llu, is out of order or beyond the %llu of the model",
                       i, (unsigned long long)v[0], (unsigned long long)v[1],
                       (unsigned long long)schema->count);
        end = v[1];
        c->stretches[c->nstretches++] = (eni_stretch){v[0], v[1], v[2], v[3], v[4]};
    }
    return EN_OK;
}

/* A rank without fp16 has none. */
static en_status take_scale(const json_t *found, eni_scale_facts *scale, char *why_out)
{
    json_int_t good = 0, overflows = 0, samples = 0;
    int exponent;
    if (found == NULL) return EN_OK;
    const int is_read =
        json_unpack((json_t *)(uintptr_t)found, "[F, I, I, I]", &scale->scale, &good, &overflows, &samples) == 0;
    if (!is_read || !(scale->scale >= 1 && scale->scale <= 0x1p127) || frexp(scale->scale, &exponent) != 0.5 ||
        good < 0 || overflows < 0 || samples < 0)
        return bad(why_out, "a rank's loss scale is none");
    scale->good = (uint64_t)good;
    scale->overflows = (uint64_t)overflows;
    scale->samples = (uint64_t)samples;
    return EN_OK;
}

static en_status take_rank(const json_t *o, eni_rank_facts *rank, char *why_out)
{
    uint64_t bytes = 0;
    const json_t *loss = json_object_get(o, "last_loss");
    EN_TRY(whole(o, "steps", &rank->steps, why_out));
    EN_TRY(whole(o, "samples", &rank->samples, why_out));
    EN_TRY(whole(o, "last_samples", &rank->last_samples, why_out));
    EN_TRY(whole(o, "last_correct", &rank->last_correct, why_out));
    EN_TRY(whole(o, "state", &bytes, why_out));
    EN_TRY(take_scale(json_object_get(o, "loss_scale"), &rank->scale, why_out));
    if (bytes > STATE_MAX) return bad(why_out, "a rank's state has %llu bytes", (unsigned long long)bytes);
    rank->last_loss = json_is_number(loss) ? json_number_value(loss) : NAN;
    rank->state_bytes = (size_t)bytes;
    return EN_OK;
}

static en_status take_ranks(const json_t *o, eni_checkpoint *c, char *why_out)
{
    const json_t *found = NULL;
    EN_TRY(list(o, "ranks", ENI_RANKS_MAX, sizeof *c->ranks, (void **)&c->ranks, &found, why_out));
    for (size_t i = 0; i < json_array_size(found); i++)
        EN_TRY(take_rank(json_array_get(found, i), &c->ranks[c->nranks++], why_out));
    return EN_OK;
}

/* Names only: the vectors come with the tensors. */
static en_status take_vectors(const json_t *o, eni_checkpoint *c, char *why_out)
{
    const json_t *found = NULL;
    size_t i;
    json_t *item;
    EN_TRY(list(o, "vectors", 1 << 18, sizeof *c->images, (void **)&c->images, &found, why_out));
    json_array_foreach(found, i, item)
    {
        const char *name = json_string_value(item);
        if (name == NULL || strlen(name) >= ENI_CHECKPOINT_NAME || (i == 0) != (name[0] == 0))
            return bad(why_out, "vector %zu has no name that a vector may have", i);
        memcpy(c->images[c->nimages++].name, name, strlen(name) + 1);
    }
    return c->nimages > 0 ? EN_OK : bad(why_out, "it has no weights");
}

static en_status take_scalars(const json_t *o, eni_checkpoint *c, char *why_out)
{
    uint64_t train_ns = 0, eval_ns = 0;
    EN_TRY(text(o, "version", c->version, sizeof c->version, why_out));
    EN_TRY(text(o, "strategy", c->strategy, sizeof c->strategy, why_out));
    EN_TRY(text(o, "options", c->options, sizeof c->options, why_out));
    EN_TRY(text(o, "device", c->device, sizeof c->device, why_out));
    EN_TRY(text(o, "order_sha256", c->order_sha256, sizeof c->order_sha256, why_out));
    EN_TRY(text(o, "init_sha256", c->init_sha256, sizeof c->init_sha256, why_out));
    EN_TRY(whole(o, "world", &c->world, why_out));
    EN_TRY(whole(o, "accumulate", &c->accumulate, why_out));
    EN_TRY(whole(o, "batch", &c->batch, why_out));
    EN_TRY(whole(o, "shards", &c->shards, why_out));
    EN_TRY(whole(o, "samples", &c->samples, why_out));
    EN_TRY(whole(o, "step", &c->step, why_out));
    EN_TRY(whole(o, "epoch", &c->epoch, why_out));
    EN_TRY(whole(o, "micro", &c->micro, why_out));
    EN_TRY(whole(o, "plan_samples", &c->plan_samples, why_out));
    EN_TRY(whole(o, "updates", &c->updates, why_out));
    EN_TRY(whole(o, "dropped", &c->dropped, why_out));
    EN_TRY(whole(o, "train_ns", &train_ns, why_out));
    EN_TRY(whole(o, "eval_ns", &eval_ns, why_out));
    c->train_ns = (int64_t)train_ns;
    c->eval_ns = (int64_t)eval_ns;
    return EN_OK;
}

/* Said before its sizes are looked at, which would be told as damage. */
static en_status check_model(const eni_checkpoint *c, const en_schema *schema, char *why_out)
{
    for (uint32_t i = 0; i < c->nfacts; i++) {
        if (strcmp(c->facts[i].key, "model") != 0 || strcmp(c->facts[i].value, schema->network->name) == 0)
            continue;
        snprintf(why_out, ENI_ST_WHY, "it is of --model=%s, and this run has %s", c->facts[i].value,
                 schema->network->name);
        return EN_EMISMATCH;
    }
    return EN_OK;
}

static en_status take_all(const json_t *o, const en_schema *schema, eni_checkpoint *c, char *why_out)
{
    uint64_t format = 0;
    EN_TRY(whole(o, "format", &format, why_out));
    if (format != ENI_CHECKPOINT_FORMAT) {
        bad(why_out, "it has format %llu, and this build reads %d", (unsigned long long)format,
            ENI_CHECKPOINT_FORMAT);
        return EN_EVERSION;
    }
    EN_TRY(take_scalars(o, c, why_out));
    EN_TRY(take_same(o, c, why_out));
    EN_TRY(check_model(c, schema, why_out));
    EN_TRY(take_history(o, c, why_out));
    EN_TRY(take_stretches(o, schema, c, why_out));
    EN_TRY(take_ranks(o, c, why_out));
    return take_vectors(o, c, why_out);
}

en_status eni_checkpoint_take_facts(const char *facts, const en_schema *schema,
                                    eni_checkpoint *checkpoint_out, char why_out[ENI_ST_WHY])
{
    json_error_t error;
    eni_checkpoint c = {0};
    json_t *o = json_loads(facts, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(o)) {
        json_decref(o);
        return bad(why_out, "its facts are no JSON object: %s", error.text);
    }
    snprintf(why_out, ENI_ST_WHY, "out of memory");
    en_status st = take_all(o, schema, &c, why_out);
    json_decref(o);
    if (st == EN_OK)
        *checkpoint_out = c;
    else
        eni_checkpoint_fini(&c);
    return st;
}
