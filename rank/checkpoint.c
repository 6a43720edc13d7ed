/* checkpoint.c - a checkpoint as one safetensors file: its facts as JSON text in the metadata, its vectors as
 * tensors; then the folder that holds several. */
#include "rank/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/checkpoint_name.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/rows.h"
#include "models/formats/weights.h"
#include "runtime/control/control.h"

enum { TENSOR_NAME = ENI_CHECKPOINT_NAME + EN_MAX_TENSOR_NAME + 2 };
#define VECTORS_MAX 4096 /* flat vectors of a file, at most */

void eni_checkpoint_fini(eni_checkpoint *c)
{
    for (uint32_t i = 0; i < c->nhistory; i++)
        eni_free(c->history[i]);
    for (uint32_t i = 0; i < c->nranks; i++)
        eni_free(c->ranks[i].state);
    for (uint32_t i = 0; i < c->nvectors; i++)
        eni_free(c->vectors[i].flat);
    eni_free(c->history);
    eni_free(c->spans);
    eni_free(c->ranks);
    eni_free(c->vectors);
    eni_free(c->state);
    eni_free(c->states);
    *c = (eni_checkpoint){0};
}

const char *eni_checkpoint_fact(const eni_checkpoint *c, const char *key)
{
    for (uint32_t i = 0; i < c->nfacts; i++)
        if (strcmp(c->facts[i].key, key) == 0) return c->facts[i].value;
    return NULL;
}

const eni_saved_vector *eni_checkpoint_find(const eni_checkpoint *c, const char *name)
{
    for (uint32_t i = 0; i < c->nvectors; i++)
        if (strcmp(c->vectors[i].name, name) == 0) return &c->vectors[i];
    return NULL;
}

eni_saved_vector *eni_checkpoint_add(eni_checkpoint *c, const en_schema *schema, const char *name)
{
    eni_saved_vector *grown = eni_alloc_array((size_t)c->nvectors + 1, sizeof *grown);
    float *flat = eni_alloc_array(schema->count, sizeof *flat);
    if (grown == NULL || flat == NULL) {
        eni_free(grown);
        eni_free(flat);
        return NULL;
    }
    if (c->nvectors > 0) memcpy(grown, c->vectors, c->nvectors * sizeof *grown);
    eni_free(c->vectors);
    c->vectors = grown;
    eni_saved_vector *vector = &grown[c->nvectors++];
    snprintf(vector->name, sizeof vector->name, "%s", name);
    vector->flat = flat;
    return vector;
}

_Static_assert(sizeof(size_t) == sizeof(uint64_t), "state_bytes is a field of 64 bits");
enum { HISTORY_MAX = 1000, STATE_MAX = 1 << 20 };

/* ---- the facts, as JSON text --------------------------------------------------------------------------- */

/* A text or a whole number in the JSON, and its location in memory. */
typedef struct field {
    const char *key;
    size_t at, text; /* bytes of a text; 0: 64 bits that are not negative */
} field;

#define WHOLE(type, name) #name, offsetof(type, name), 0
#define TEXT(type, name)  #name, offsetof(type, name), sizeof(((type *)0)->name)

static const field checkpoint_fields[] = {
    {TEXT(eni_checkpoint, version)},       {TEXT(eni_checkpoint, strategy)},
    {TEXT(eni_checkpoint, options)},       {TEXT(eni_checkpoint, device)},
    {WHOLE(eni_checkpoint, world)},        {WHOLE(eni_checkpoint, accumulate)},
    {WHOLE(eni_checkpoint, batch)},        {WHOLE(eni_checkpoint, shards)},
    {WHOLE(eni_checkpoint, samples)},      {WHOLE(eni_checkpoint, step)},
    {WHOLE(eni_checkpoint, epoch)},        {WHOLE(eni_checkpoint, micro)},
    {WHOLE(eni_checkpoint, plan_samples)}, {TEXT(eni_checkpoint, order_sha256)},
    {TEXT(eni_checkpoint, init_sha256)},   {WHOLE(eni_checkpoint, updates)},
    {WHOLE(eni_checkpoint, dropped)},      {WHOLE(eni_checkpoint, train_ns)},
    {WHOLE(eni_checkpoint, eval_ns)},
};
#define SUM(name) #name, offsetof(eni_rank_facts, sum.name), 0
static const field rank_fields[] = {
    {SUM(steps)},
    {SUM(samples)},
    {SUM(last_samples)},
    {SUM(last_correct)},
    {"state", offsetof(eni_rank_facts, state_bytes), 0},
};
enum {
    CHECKPOINT_FIELDS = sizeof checkpoint_fields / sizeof *checkpoint_fields,
    RANK_FIELDS = sizeof rank_fields / sizeof *rank_fields
};

static void write_fields(json_t *o, const void *from, const field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *at = (const char *)from + fields[i].at;
        int64_t whole = 0;
        if (fields[i].text == 0) memcpy(&whole, at, sizeof whole);
        json_object_set_new(o, fields[i].key, fields[i].text > 0 ? json_string(at) : json_integer(whole));
    }
}

static json_t *rank_json(const eni_rank_facts *rank)
{
    json_t *o = json_object();
    write_fields(o, rank, rank_fields, RANK_FIELDS);
    eni_json_set_number(o, "last_loss", rank->sum.last_loss);
    if (rank->scale.scale > 0)
        json_object_set_new(o, "loss_scale",
                            json_pack("[f, I, I, I]", rank->scale.scale, (json_int_t)rank->scale.good,
                                      (json_int_t)rank->scale.overflows, (json_int_t)rank->scale.samples));
    return o;
}

static void write_lists(const eni_checkpoint *c, json_t *o)
{
    json_t *same = json_object(), *history = json_array(), *vectors = json_array(), *ranks = json_array(),
           *spans = json_array();
    for (uint32_t i = 0; i < c->nfacts; i++)
        json_object_set_new(same, c->facts[i].key, json_string(c->facts[i].value));
    for (uint32_t i = 0; i < c->nhistory; i++)
        json_array_append_new(history, json_string(c->history[i]));
    for (uint32_t i = 0; i < c->nvectors; i++)
        json_array_append_new(vectors, json_string(c->vectors[i].name));
    for (uint32_t i = 0; i < c->nranks; i++)
        json_array_append_new(ranks, rank_json(&c->ranks[i]));
    for (uint32_t i = 0; i < c->nspans; i++) {
        const eni_saved_span *s = &c->spans[i];
        json_array_append_new(spans, json_pack("[I, I, I, I, I]", (json_int_t)s->lo, (json_int_t)s->hi,
                                               (json_int_t)s->version, (json_int_t)s->steps,
                                               (json_int_t)s->samples));
    }
    json_object_set_new(o, "same", same);
    json_object_set_new(o, "history", history);
    json_object_set_new(o, "vectors", vectors);
    json_object_set_new(o, "spans", spans);
    json_object_set_new(o, "ranks", ranks);
}

char *eni_checkpoint_facts(const eni_checkpoint *c)
{
    json_t *o = json_object();
    json_object_set_new(o, "format", json_integer(ENI_CHECKPOINT_FORMAT));
    write_fields(o, c, checkpoint_fields, CHECKPOINT_FIELDS);
    if (c->groups[0] != 0) json_object_set_new(o, "groups", json_string(c->groups));
    write_lists(c, o);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

/* ---- reading the facts: nothing is trusted ------------------------------------------------------------- */

/* Describes what is wrong with the file, and returns `st`. */
static __attribute__((format(printf, 3, 4))) en_status wrong(char why_out[ENI_ST_WHY], en_status st,
                                                             const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why_out, ENI_ST_WHY, fmt, args);
    va_end(args);
    return st;
}

static void read_fields(eni_json *in, const json_t *o, void *into, const field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *at = (char *)into + fields[i].at;
        if (fields[i].text > 0) {
            eni_json_copy_text(in, o, fields[i].key, at, fields[i].text);
            continue;
        }
        const uint64_t whole = eni_json_need_whole(in, o, fields[i].key);
        memcpy(at, &whole, sizeof whole);
    }
}

static void take_same(eni_json *in, const json_t *o, eni_checkpoint *c)
{
    json_t *same = json_object_get(o, "same"), *value;
    const char *key;
    if (!json_is_object(same) || json_object_size(same) > ENI_CHECKPOINT_FACTS)
        eni_json_fail(in, "same should be an object of at most %d texts", ENI_CHECKPOINT_FACTS);
    eni_json_at(in, "same");
    json_object_foreach(same, key, value)
    {
        eni_fact *fact = &c->facts[c->nfacts];
        if (strlen(key) >= sizeof fact->key)
            eni_json_fail(in, "same.%.40s should have a name of at most %zu bytes", key,
                          sizeof fact->key - 1);
        if (in->status != EN_OK) return;
        memcpy(fact->key, key, strlen(key) + 1);
        eni_json_copy_text(in, same, key, fact->value, sizeof fact->value);
        c->nfacts++;
    }
    in->where[0] = 0;
}

static void take_past(eni_json *in, const json_t *entry, void *into)
{
    const char *path = eni_json_need_text(in, entry, NULL);
    if (path != NULL && (*(char **)into = eni_strdup(path)) == NULL) in->status = EN_ENOMEM;
}

/* The list's `n` whole numbers from index `first` on, which must be its last. */
static bool read_wholes(const json_t *list, size_t first, size_t n, uint64_t *values_out)
{
    bool is_read = json_array_size(list) == first + n;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, first + i);
        is_read = is_read && json_is_integer(value) && json_integer_value(value) >= 0;
        values_out[i] = (uint64_t)json_integer_value(value);
    }
    return is_read;
}

static void take_span(eni_json *in, const json_t *entry, void *into)
{
    uint64_t v[5];
    if (!read_wholes(entry, 0, 5, v))
        eni_json_fail(in, "%s should be [from, to, version, steps, samples]", in->where);
    *(eni_saved_span *)into = (eni_saved_span){v[0], v[1], v[2], v[3], v[4]};
}

/* Absent without fp16. */
static void take_scale(eni_json *in, const json_t *list, eni_scale_facts *scale)
{
    int exponent;
    uint64_t v[3];
    if (list == NULL) return;
    const bool is_read = read_wholes(list, 1, 3, v);
    *scale = (eni_scale_facts){json_number_value(json_array_get(list, 0)), v[0], v[1], v[2]};
    if (is_read && scale->scale >= 1 && scale->scale <= 0x1p127 && frexp(scale->scale, &exponent) == 0.5)
        return;
    eni_json_fail(in, "%s.loss_scale should be [a power of two, good, overflows, samples]", in->where);
}

static void take_rank(eni_json *in, const json_t *o, void *into)
{
    eni_rank_facts *rank = into;
    read_fields(in, o, rank, rank_fields, RANK_FIELDS);
    take_scale(in, json_object_get(o, "loss_scale"), &rank->scale);
    rank->sum.last_loss = eni_json_number(in, o, "last_loss");
    if (rank->state_bytes > STATE_MAX)
        eni_json_fail(in, "%s.state should be at most %d bytes, not %zu", in->where, STATE_MAX,
                      rank->state_bytes);
}

/* Its name only: the vector comes with the tensors. */
static void take_vector(eni_json *in, const json_t *entry, void *into)
{
    eni_saved_vector *vector = into;
    eni_json_copy_text(in, entry, NULL, vector->name, sizeof vector->name);
}

static void take_lists(eni_json *in, const json_t *o, const en_schema *schema, eni_checkpoint *c)
{
    uint64_t end = 0;
    eni_json_list(in, o, "history", HISTORY_MAX, sizeof *c->history, take_past, &c->history, &c->nhistory);
    eni_json_list(in, o, "spans", schema->count, sizeof *c->spans, take_span, &c->spans, &c->nspans);
    eni_json_list(in, o, "ranks", ENI_RANKS_MAX, sizeof *c->ranks, take_rank, &c->ranks, &c->nranks);
    eni_json_list(in, o, "vectors", 1 << 18, sizeof *c->vectors, take_vector, &c->vectors, &c->nvectors);
    for (size_t i = 0; i < c->nspans; end = c->spans[i++].hi) {
        const eni_saved_span *s = &c->spans[i];
        if (s->lo < end || s->hi <= s->lo || s->hi > schema->count)
            eni_json_fail(in, "spans[%zu], %llu to %llu, is out of order or beyond the model's %llu elements",
                          i, (unsigned long long)s->lo, (unsigned long long)s->hi,
                          (unsigned long long)schema->count);
    }
    for (size_t i = 0; i < c->nvectors || i == 0; i++)
        if (i == c->nvectors || (i == 0) != (c->vectors[i].name[0] == 0))
            eni_json_fail(in, "vectors should begin with the weights, without a name, and name all others");
}

/* Checked before the sizes, whose mismatch would be reported as damage. */
static void check_model(eni_json *in, const eni_checkpoint *c, const en_schema *schema)
{
    const char *model = eni_checkpoint_fact(c, "model");
    if (in->status != EN_OK || model == NULL || strcmp(model, schema->spec) == 0) return;
    eni_json_fail(in, "it is of --model=%s, but this run has %s", model, schema->network->name);
    in->status = EN_EMISMATCH;
}

static void take_all(eni_json *in, const json_t *o, const en_schema *schema, eni_checkpoint *c)
{
    const uint64_t format = eni_json_need_whole(in, o, "format");
    if (in->status == EN_OK && format != ENI_CHECKPOINT_FORMAT) {
        eni_json_fail(in, "it has format %llu, but this build reads format %d", (unsigned long long)format,
                      ENI_CHECKPOINT_FORMAT);
        in->status = EN_EVERSION;
    }
    read_fields(in, o, c, checkpoint_fields, CHECKPOINT_FIELDS);
    if (json_object_get(o, "groups") != NULL)
        eni_json_copy_text(in, o, "groups", c->groups, sizeof c->groups);
    take_same(in, o, c);
    check_model(in, c, schema);
    take_lists(in, o, schema, c);
}

en_status eni_checkpoint_take_facts(const char *facts, const en_schema *schema,
                                    eni_checkpoint *checkpoint_out, char why_out[ENI_ST_WHY])
{
    eni_json in = {.path = "its facts"};
    eni_checkpoint c = {0};
    json_t *o = eni_json_parse(&in, facts, strlen(facts));
    take_all(&in, o, schema, &c);
    json_decref(o);
    if (in.status == EN_OK)
        *checkpoint_out = c;
    else
        eni_checkpoint_fini(&c);
    snprintf(why_out, ENI_ST_WHY, "%s%s", in.status == EN_EFORMAT ? "its facts: " : "",
             in.why[0] != 0 ? in.why : "out of memory");
    return in.status;
}

/* ---- the file's tensors -------------------------------------------------------------------------------- */

/* "conv1.weight" of vector "": itself; of any other: "VECTOR/conv1.weight". */
static void tensor_name(const char *vector, const char *tensor, char name_out[TENSOR_NAME])
{
    snprintf(name_out, TENSOR_NAME, "%s%s%s", vector, vector[0] != 0 ? "/" : "", tensor);
}

/* "rank.R/state": the strategy's bytes of a rank, and the prefix of the rank's own running statistics. */
static void state_name(uint64_t rank, char name_out[ENI_CHECKPOINT_NAME])
{
    snprintf(name_out, ENI_CHECKPOINT_NAME, "rank.%llu/state", (unsigned long long)rank);
}

/* The state goes with the weights, vector "". */
static uint32_t tensors_of(const eni_saved_vector *vector, const en_schema *schema)
{
    return schema->ntensors + (vector->name[0] == 0 ? schema->nbuffers : 0);
}

/* The tensors of a file under construction, with the names that they point at. */
typedef struct table {
    eni_st_tensor *tensors;
    char (*names)[TENSOR_NAME];
    uint32_t n;
} table;

/* Entry `i` of the network (eni_weights_entry), as it is in this vector. */
static en_status add_entry(table *t, const en_schema *schema, uint32_t i, const float *flat,
                           const float *state, const char *vector, char *why_out)
{
    eni_st_tensor *to = &t->tensors[t->n];
    char *name = t->names[t->n++];
    const en_status st = eni_weights_entry(schema, i, flat, state, to);
    tensor_name(vector, to->name, name);
    to->name = name;
    return st == EN_OK ? EN_OK : wrong(why_out, st, "tensor %s holds values that are not finite", name);
}

static en_status add_vector(table *t, const en_schema *schema, const eni_saved_vector *vector,
                            const float *state, char *why_out)
{
    for (uint32_t i = 0; i < tensors_of(vector, schema); i++)
        EN_TRY(add_entry(t, schema, i, vector->flat, state, vector->name, why_out));
    return EN_OK;
}

static en_status add_buffers(table *t, const en_schema *schema, const eni_checkpoint *c, char *why_out)
{
    char vector[ENI_CHECKPOINT_NAME];
    for (uint64_t r = 0; r < c->nstates; r++) {
        const float *state = c->states + r * schema->nstate;
        state_name(r, vector);
        for (uint32_t i = schema->ntensors; i < schema->ntensors + schema->nbuffers; i++)
            EN_TRY(add_entry(t, schema, i, NULL, state, vector, why_out));
    }
    return EN_OK;
}

static void add_states(table *t, const eni_checkpoint *c)
{
    for (uint32_t r = 0; r < c->nranks; r++) {
        const eni_rank_facts *rank = &c->ranks[r];
        if (rank->state_bytes == 0) continue;
        state_name(r, t->names[t->n]);
        t->tensors[t->n] = (eni_st_tensor){.name = t->names[t->n],
                                           .dtype = EN_U8,
                                           .ndim = 1,
                                           .shape = {(int64_t)rank->state_bytes},
                                           .count = rank->state_bytes,
                                           .data = rank->state};
        t->n++;
    }
}

static en_status fill_table(table *t, const eni_checkpoint *c, const en_schema *schema, char *why_out)
{
    size_t room = (size_t)c->nvectors * schema->ntensors + (1 + c->nstates) * schema->nbuffers + c->nranks;
    t->tensors = eni_alloc_array(room, sizeof *t->tensors);
    t->names = eni_alloc_array(room, sizeof *t->names);
    if (t->tensors == NULL || t->names == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < c->nvectors; i++)
        EN_TRY(add_vector(t, schema, &c->vectors[i], c->state, why_out));
    EN_TRY(add_buffers(t, schema, c, why_out));
    add_states(t, c);
    return EN_OK;
}

en_status eni_checkpoint_write(eni_checkpoint *c, const en_schema *schema, const char *dir,
                               char why_out[ENI_ST_WHY])
{
    char path[1024];
    table t = {0};
    char *facts = eni_checkpoint_facts(c);
    snprintf(why_out, ENI_ST_WHY, "out of memory");
    en_status st = facts == NULL ? EN_ENOMEM : fill_table(&t, c, schema, why_out);
    if (st == EN_OK) {
        const eni_st_meta meta[] = {{"format", "pt"}, {"entrain", facts}};
        eni_checkpoint_path(dir, c->samples, path, sizeof path);
        st = eni_st_write_sealed(path, t.tensors, t.n, meta, 2, c->digest, why_out);
    }
    free(facts); /* jansson's */
    eni_free(t.tensors);
    eni_free(t.names);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* The reverse of add_entry. */
static en_status read_entry(const eni_st_file *file, const en_schema *schema, uint32_t i, float *flat,
                            float *state, const char *vector, char *why_out)
{
    const en_model_tensor *want = eni_schema_tensor(schema, i);
    char name[TENSOR_NAME], shape[ENI_ST_SHAPE_TEXT];
    tensor_name(vector, want->name, name);
    const eni_st_tensor *found = eni_st_find(file, name);
    if (found == NULL || !eni_weights_fits(found, want))
        return wrong(why_out, EN_EMISMATCH, "it has no tensor %s %s, which %s has", name,
                     eni_st_shape_text(want->shape, want->ndim, shape), schema->network->name);
    eni_rows_to(want, found->data, (i < schema->ntensors ? flat : state) + want->offset);
    return EN_OK;
}

static en_status read_vector(const eni_st_file *file, const en_schema *schema, eni_saved_vector *vector,
                             float *state, char *why_out)
{
    vector->flat = eni_alloc_array(schema->count, sizeof *vector->flat);
    if (vector->flat == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < tensors_of(vector, schema); i++)
        EN_TRY(read_entry(file, schema, i, vector->flat, state, vector->name, why_out));
    return EN_OK;
}

static en_status read_state(const eni_st_file *file, uint32_t r, eni_rank_facts *rank, char *why_out)
{
    char name[ENI_CHECKPOINT_NAME];
    if (rank->state_bytes == 0) return EN_OK;
    state_name(r, name);
    const eni_st_tensor *found = eni_st_find(file, name);
    if (found == NULL || found->dtype != EN_U8 || found->count != rank->state_bytes)
        return wrong(why_out, EN_EFORMAT,
                     "the state of rank %u is missing, or its size differs from its facts", r);
    rank->state = eni_alloc(rank->state_bytes);
    if (rank->state == NULL) return EN_ENOMEM;
    memcpy(rank->state, found->data, rank->state_bytes);
    return EN_OK;
}

/* The running statistics of each rank: the file has all or none. */
static en_status read_buffers(const eni_st_file *file, const en_schema *schema, eni_checkpoint *c,
                              char *why_out)
{
    char vector[ENI_CHECKPOINT_NAME], name[TENSOR_NAME];
    if (schema->nbuffers == 0) return EN_OK;
    state_name(0, vector);
    tensor_name(vector, schema->buffers[0].name, name);
    if (eni_st_find(file, name) == NULL) return EN_OK;
    if (c->world > file->ntensors || c->accumulate > file->ntensors ||
        c->world * c->accumulate > file->ntensors)
        return wrong(why_out, EN_EFORMAT, "it lacks the running statistics of %llu x %llu ranks",
                     (unsigned long long)c->world, (unsigned long long)c->accumulate);
    c->nstates = c->world * c->accumulate;
    c->states = eni_alloc_array(c->nstates * schema->nstate, sizeof *c->states);
    if (c->states == NULL) return EN_ENOMEM;
    for (uint64_t i = 0; i < c->nstates * schema->nbuffers; i++) {
        const uint64_t r = i / schema->nbuffers;
        state_name(r, vector);
        EN_TRY(read_entry(file, schema, schema->ntensors + (uint32_t)(i % schema->nbuffers), NULL,
                          c->states + r * schema->nstate, vector, why_out));
    }
    return EN_OK;
}

static en_status take_file(const eni_st_file *file, const en_schema *schema, eni_checkpoint *c, char *why_out)
{
    const char *facts = eni_st_find_meta(file, "entrain");
    uint64_t tensors = schema->nbuffers;
    if (facts == NULL) return wrong(why_out, EN_EFORMAT, "it has no facts of a run");
    EN_TRY(eni_checkpoint_take_facts(facts, schema, c, why_out));
    snprintf(why_out, ENI_ST_WHY, "out of memory");
    if (schema->nstate > 0 && (c->state = eni_alloc_array(schema->nstate, sizeof *c->state)) == NULL)
        return EN_ENOMEM;
    for (uint32_t i = 0; i < c->nvectors; i++, tensors += schema->ntensors)
        EN_TRY(read_vector(file, schema, &c->vectors[i], c->state, why_out));
    EN_TRY(read_buffers(file, schema, c, why_out));
    tensors += c->nstates * schema->nbuffers;
    for (uint32_t r = 0; r < c->nranks; r++) {
        tensors += c->ranks[r].state_bytes > 0;
        EN_TRY(read_state(file, r, &c->ranks[r], why_out));
    }
    if (tensors == file->ntensors) return EN_OK;
    return wrong(why_out, EN_EMISMATCH, "it has %u tensors, but %s would have %llu", file->ntensors,
                 schema->network->name, (unsigned long long)tensors);
}

en_status eni_checkpoint_parse(const char *name, const void *data, size_t bytes, const en_schema *schema,
                               eni_checkpoint *checkpoint_out, char why_out[ENI_ST_WHY])
{
    char digest[ENI_DIGEST_HEX];
    eni_st_file file;
    eni_checkpoint c = {0};
    EN_TRY(eni_st_check_seal(data, bytes, digest, why_out));
    snprintf(why_out, ENI_ST_WHY, "it is sealed, but not a safetensors file that this build reads");
    EN_TRY(eni_st_parse(name, data, bytes, &file));
    en_status st = take_file(&file, schema, &c, why_out);
    eni_st_close(&file);
    if (st == EN_OK) {
        *checkpoint_out = c;
        memcpy(checkpoint_out->digest, digest, sizeof digest);
    } else {
        eni_checkpoint_fini(&c);
    }
    return st;
}

en_status eni_checkpoint_read(const char *path, const en_schema *schema, eni_checkpoint *checkpoint_out,
                              char why_out[ENI_ST_WHY])
{
    unsigned char *bytes;
    size_t size;
    uint64_t most = (schema->count + schema->nstate) * sizeof(float) * VECTORS_MAX + ENI_ST_MAX_HEADER;
    EN_TRY(eni_st_contents(path, most, &bytes, &size, why_out));
    en_status st = eni_checkpoint_parse(path, bytes, size, schema, checkpoint_out, why_out);
    eni_free(bytes);
    return st;
}

/* ---- the folder ---------------------------------------------------------------------------------------- */

enum { GENERATIONS = 2, RETIRED_MAX = 8, LISTED = 4096 };

int eni_checkpoint_sweep(const char *dir)
{
    DIR *folder = opendir(dir);
    int swept = 0;
    for (const struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;)
        swept += eni_checkpoint_is_left(e->d_name) && unlinkat(dirfd(folder), e->d_name, 0) == 0;
    if (folder != NULL) closedir(folder);
    return swept;
}

static bool has_mirror(const char *dir)
{
    char path[1024];
    snprintf(path, sizeof path, "%.1000s/" ENI_MIRROR_LOCK, dir);
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const bool is_held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return is_held;
}

/* Uploads slower than the writes would fill the disk. `room` has LISTED elements. */
static void bound_retired(const char *dir, uint64_t *room)
{
    char path[1024 + sizeof ENI_RETIRED];
    size_t left = eni_checkpoint_list(dir, ENI_RETIRED, room, LISTED);
    for (size_t i = left; i-- > 0 && left > RETIRED_MAX;) {
        eni_checkpoint_path(dir, room[i], path, 1024);
        strcat(path, ENI_RETIRED);
        const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        const bool is_going_up = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (!is_going_up && unlink(path) == 0) {
            left--;
            eni_warn("save",
                     "the checkpoint of sample %llu is removed without an upload: uploads are slower "
                     "than checkpoints are written, and %d newer ones wait; use a larger "
                     "--checkpoint-every",
                     (unsigned long long)room[i], RETIRED_MAX);
        }
        if (fd >= 0) close(fd);
    }
}

void eni_checkpoint_retire(const char *dir, uint64_t samples)
{
    uint64_t *found = eni_alloc_array(LISTED, sizeof *found);
    char path[1024], retired[1024 + sizeof ENI_RETIRED];
    int kept = 0;
    if (found == NULL) return; /* they stay until the next time */
    const bool is_mirrored = has_mirror(dir);
    size_t n = eni_checkpoint_list(dir, "", found, LISTED);
    for (size_t i = 0; i < n; i++) {
        if (found[i] > samples || kept++ < GENERATIONS) continue;
        eni_checkpoint_path(dir, found[i], path, sizeof path - sizeof ENI_RETIRED);
        snprintf(retired, sizeof retired, "%s" ENI_RETIRED, path);
        if (is_mirrored && rename(path, retired) == 0) continue;
        unlink(path);
    }
    if (is_mirrored) bound_retired(dir, found);
    eni_free(found);
}
