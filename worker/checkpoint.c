/* checkpoint.c - contents to file and back; see checkpoint.h. */
#include "worker/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/mean.h"
#include "core/memory.h"
#include "core/try.h"

enum { TENSOR_NAME = ENI_CHECKPOINT_NAME + EN_MAX_TENSOR_NAME + 2 };
#define VECTORS_MAX 4096 /* flat vectors that a file may hold: more is no checkpoint of ours */

void eni_checkpoint_fini(eni_checkpoint *c)
{
    for (uint32_t i = 0; i < c->nhistory; i++)
        eni_free(c->history[i]);
    for (uint32_t i = 0; i < c->nranks; i++)
        eni_free(c->ranks[i].state);
    for (uint32_t i = 0; i < c->nimages; i++)
        eni_free(c->images[i].flat);
    eni_free(c->history);
    eni_free(c->stretches);
    eni_free(c->ranks);
    eni_free(c->images);
    *c = (eni_checkpoint){0};
}

const eni_image *eni_checkpoint_find(const eni_checkpoint *c, const char *name)
{
    for (uint32_t i = 0; i < c->nimages; i++)
        if (strcmp(c->images[i].name, name) == 0) return &c->images[i];
    return NULL;
}

eni_image *eni_checkpoint_add(eni_checkpoint *c, const en_schema *schema, const char *name)
{
    eni_image *grown = eni_alloc_array((size_t)c->nimages + 1, sizeof *grown);
    float *flat = eni_alloc_array(schema->count, sizeof *flat);
    if (grown == NULL || flat == NULL) {
        eni_free(grown);
        eni_free(flat);
        return NULL;
    }
    if (c->nimages > 0) memcpy(grown, c->images, c->nimages * sizeof *grown);
    eni_free(c->images);
    c->images = grown;
    eni_image *image = &grown[c->nimages++];
    snprintf(image->name, sizeof image->name, "%s", name);
    image->flat = flat;
    return image;
}

/* ---- the file's tensors -------------------------------------------------------------------------------- */

/* "conv1.weight" of image "": itself; of any other: "IMAGE/conv1.weight". */
static void tensor_name(const eni_image *image, const en_model_tensor *tensor, char name_out[TENSOR_NAME])
{
    snprintf(name_out, TENSOR_NAME, "%s%s%s", image->name, image->name[0] != 0 ? "/" : "", tensor->name);
}

static void state_name(uint32_t rank, char name_out[TENSOR_NAME])
{
    snprintf(name_out, TENSOR_NAME, "rank.%u/state", rank);
}

/* The tensors of a file under construction, with the names that they point at. */
typedef struct table {
    eni_st_tensor *tensors;
    char (*names)[TENSOR_NAME];
    uint32_t n;
} table;

static en_status add_image(table *t, const en_schema *schema, const eni_image *image, char *why_out)
{
    for (uint32_t i = 0; i < schema->ntensors; i++) {
        const en_model_tensor *from = &schema->tensors[i];
        eni_st_tensor *to = &t->tensors[t->n];
        tensor_name(image, from, t->names[t->n]);
        if (!eni_all_finite(image->flat + from->offset, from->count)) {
            snprintf(why_out, ENI_ST_WHY, "tensor %s holds values that are not finite", t->names[t->n]);
            return EN_ENONFINITE;
        }
        *to = (eni_st_tensor){.name = t->names[t->n],
                              .ndim = from->ndim,
                              .count = from->count,
                              .data = image->flat + from->offset};
        memcpy(to->shape, from->shape, sizeof to->shape);
        t->n++;
    }
    return EN_OK;
}

/* Bytes come last, so that every float lies on four. */
static void add_states(table *t, const eni_checkpoint *c)
{
    for (uint32_t r = 0; r < c->nranks; r++) {
        const eni_rank_facts *rank = &c->ranks[r];
        if (rank->state_bytes == 0) continue;
        state_name(r, t->names[t->n]);
        t->tensors[t->n] = (eni_st_tensor){.name = t->names[t->n],
                                           .dtype = ENI_ST_U8,
                                           .ndim = 1,
                                           .shape = {(int64_t)rank->state_bytes},
                                           .count = rank->state_bytes,
                                           .data = rank->state};
        t->n++;
    }
}

static en_status fill_table(table *t, const eni_checkpoint *c, const en_schema *schema, char *why_out)
{
    size_t room = (size_t)c->nimages * schema->ntensors + c->nranks;
    t->tensors = eni_alloc_array(room, sizeof *t->tensors);
    t->names = eni_alloc_array(room, sizeof *t->names);
    if (t->tensors == NULL || t->names == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < c->nimages; i++)
        EN_TRY(add_image(t, schema, &c->images[i], why_out));
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

/* ---- back ---------------------------------------------------------------------------------------------- */

static en_status read_image(const eni_st_file *file, const en_schema *schema, eni_image *image, char *why_out)
{
    image->flat = eni_alloc_array(schema->count, sizeof *image->flat);
    if (image->flat == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < schema->ntensors; i++) {
        const en_model_tensor *want = &schema->tensors[i];
        char name[TENSOR_NAME], shape[ENI_ST_SHAPE_TEXT];
        tensor_name(image, want, name);
        const eni_st_tensor *found = eni_st_find(file, name);
        if (found == NULL || found->dtype != ENI_ST_F32 || found->ndim != want->ndim ||
            memcmp(found->shape, want->shape, want->ndim * sizeof want->shape[0]) != 0) {
            snprintf(why_out, ENI_ST_WHY, "it has no tensor %s %s, which %s has", name,
                     eni_st_shape_text(want->shape, want->ndim, shape), schema->network->name);
            return EN_EMISMATCH;
        }
        memcpy(image->flat + want->offset, found->data, want->count * sizeof(float));
    }
    return EN_OK;
}

static en_status read_state(const eni_st_file *file, uint32_t r, eni_rank_facts *rank, char *why_out)
{
    char name[TENSOR_NAME];
    if (rank->state_bytes == 0) return EN_OK;
    state_name(r, name);
    const eni_st_tensor *found = eni_st_find(file, name);
    if (found == NULL || found->dtype != ENI_ST_U8 || found->count != rank->state_bytes) {
        snprintf(why_out, ENI_ST_WHY, "the state of rank %u is not there as its facts say", r);
        return EN_EFORMAT;
    }
    rank->state = eni_alloc(rank->state_bytes);
    if (rank->state == NULL) return EN_ENOMEM;
    memcpy(rank->state, found->data, rank->state_bytes);
    return EN_OK;
}

static en_status take_file(const eni_st_file *file, const en_schema *schema, eni_checkpoint *c, char *why_out)
{
    const char *facts = eni_st_find_meta(file, "entrain");
    uint64_t tensors = 0;
    if (facts == NULL) {
        snprintf(why_out, ENI_ST_WHY, "it has no facts of a run");
        return EN_EFORMAT;
    }
    EN_TRY(eni_checkpoint_take_facts(facts, schema, c, why_out));
    snprintf(why_out, ENI_ST_WHY, "out of memory");
    for (uint32_t i = 0; i < c->nimages; i++, tensors += schema->ntensors)
        EN_TRY(read_image(file, schema, &c->images[i], why_out));
    for (uint32_t r = 0; r<c->nranks; r++, tensors += c->ranks[r - 1].state_bytes> 0)
        EN_TRY(read_state(file, r, &c->ranks[r], why_out));
    if (tensors == file->ntensors) return EN_OK;
    snprintf(why_out, ENI_ST_WHY, "it has %u tensors, where %s would have %llu", file->ntensors,
             schema->network->name, (unsigned long long)tensors);
    return EN_EMISMATCH;
}

en_status eni_checkpoint_parse(const char *name, const void *data, size_t bytes, const en_schema *schema,
                               eni_checkpoint *checkpoint_out, char why_out[ENI_ST_WHY])
{
    char digest[ENI_DIGEST_HEX];
    eni_st_file file;
    eni_checkpoint c = {0};
    EN_TRY(eni_st_check_seal(data, bytes, digest, why_out));
    snprintf(why_out, ENI_ST_WHY, "it is sealed, but is no safetensors file that is read here");
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
    uint64_t most = schema->count * sizeof(float) * VECTORS_MAX + ENI_ST_MAX_HEADER;
    EN_TRY(eni_st_contents(path, most, &bytes, &size, why_out));
    en_status st = eni_checkpoint_parse(path, bytes, size, schema, checkpoint_out, why_out);
    eni_free(bytes);
    return st;
}
