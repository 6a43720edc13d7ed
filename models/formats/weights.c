/* weights.c - converts between a schema's tensors and the entries of a file, and hashes them. */
#include "models/formats/weights.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/rows.h"
#include "ops/mean.h"

/* ---- save -------------------------------------------------------------------------------------------- */

en_status eni_weights_entry(const en_schema *schema, uint32_t i, const float *flat, const float *state,
                            eni_st_tensor *entry_out)
{
    const en_model_tensor *from = eni_schema_tensor(schema, i);
    const float *data = (i < schema->ntensors ? flat : state) + from->offset;
    *entry_out = (eni_st_tensor){
        .name = from->name, .dtype = from->dtype, .ndim = from->ndim, .count = from->count, .data = data};
    memcpy(entry_out->shape, from->shape, sizeof entry_out->shape);
    if (eni_rows_differ(from)) entry_out->own = from;
    return from->dtype != EN_F32 || eni_all_finite(data, from->count) ? EN_OK : EN_ENONFINITE;
}

en_status eni_weights_save(const char *path, const en_schema *schema, const float *flat, const float *state)
{
    static const eni_st_meta format = {"format", "pt"};
    const uint32_t n = schema->ntensors + schema->nbuffers;
    eni_st_tensor *tensors = eni_alloc_array(n, sizeof *tensors);
    if (tensors == NULL) return EN_ENOMEM;
    en_status st = EN_OK;
    for (uint32_t i = 0; i < n && st == EN_OK; i++) {
        st = eni_weights_entry(schema, i, flat, state, &tensors[i]);
        if (st != EN_OK)
            eni_error("weights", "%s was not written: tensor %s has values that are not finite", path,
                      tensors[i].name);
    }
    if (st == EN_OK) st = eni_st_write(path, tensors, n, &format, 1);
    eni_free(tensors);
    return st;
}

/* ---- load -------------------------------------------------------------------------------------------- */

static bool same_shape(const eni_st_tensor *got, const en_model_tensor *want)
{
    return got->ndim == want->ndim &&
           memcmp(got->shape, want->shape, want->ndim * sizeof want->shape[0]) == 0;
}

bool eni_weights_fits(const eni_st_tensor *found, const en_model_tensor *want)
{
    return found->dtype == want->dtype && same_shape(found, want);
}

/* Finds the tensor behind prefixes "module." and "_orig_mod.", in any order; NULL if not found. */
static const eni_st_tensor *find_wrapped(const eni_st_file *file, const char *name)
{
    for (uint32_t t = 0; t < file->ntensors; t++) {
        const char *rest = file->tensors[t].name;
        while (strncmp(rest, "module.", 7) == 0 || strncmp(rest, "_orig_mod.", 10) == 0) {
            rest = strchr(rest, '.') + 1;
            if (strcmp(rest, name) == 0) return &file->tensors[t];
        }
    }
    return NULL;
}

/* Training never makes a negative variance, and its root would be NaN. */
static en_status check_variances(const char *name, const eni_st_tensor *found)
{
    const char *dot = strrchr(found->name, '.');
    const float *variance = found->data;
    if (found->dtype != EN_F32 || dot == NULL || strcmp(dot, ".running_var") != 0) return EN_OK;
    for (uint64_t i = 0; i < found->count; i++)
        if (variance[i] < 0)
            return eni_fail(EN_EFORMAT, "weights", "%s: tensor %s: element %llu is %g, a negative variance",
                            name, found->name, (unsigned long long)i, (double)variance[i]);
    return EN_OK;
}

/* Checks both ways: the file has every tensor of the schema, and no others, except a checkpoint's own, whose names have a
 * slash. */
static en_status file_matches(const char *name, const eni_st_file *file, const en_schema *schema)
{
    char got[ENI_ST_SHAPE_TEXT], want[ENI_ST_SHAPE_TEXT];
    const uint32_t ntensors = schema->ntensors + schema->nbuffers;
    const bool is_checkpoint = eni_st_find_meta(file, "entrain") != NULL;
    for (uint32_t t = 0; t < ntensors; t++) {
        const en_model_tensor *tensor = eni_schema_tensor(schema, t);
        const eni_st_tensor *found = eni_st_find(file, tensor->name);
        eni_st_shape_text(tensor->shape, tensor->ndim, want);
        if (found == NULL && tensor->dtype == EN_I64 && tensor->ndim == 0) continue;
        if (found == NULL && find_wrapped(file, tensor->name) != NULL)
            return eni_fail(EN_EMISMATCH, "weights",
                            "%s: tensor %s is named %s there, as DistributedDataParallel (module.) and "
                            "torch.compile (_orig_mod.) name it: save the state_dict of the inner model, "
                            "such as model.module.state_dict() or model._orig_mod.state_dict()",
                            name, tensor->name, find_wrapped(file, tensor->name)->name);
        if (found == NULL)
            return eni_fail(
                EN_EMISMATCH, "weights",
                "%s: tensor %s is missing; %s has it with shape %s; give the weights of this --model", name,
                tensor->name, schema->network->name, want);
        if (found->dtype != EN_F32 && tensor->dtype == EN_F32)
            return eni_fail(EN_EFORMAT, "weights",
                            "%s: tensor %s has dtype %s; only F32 is supported: convert it with .float()",
                            name, tensor->name, eni_st_dtype_text(found->dtype));
        if (eni_weights_fits(found, tensor)) {
            EN_TRY(check_variances(name, found));
            continue;
        }
        if (same_shape(found, tensor))
            return eni_fail(EN_EFORMAT, "weights", "%s: tensor %s has dtype %s; save it as %s", name,
                            tensor->name, eni_st_dtype_text(found->dtype), eni_st_dtype_text(tensor->dtype));
        return eni_fail(EN_EMISMATCH, "weights",
                        "%s: tensor %s has shape %s, but %s has %s; give the weights of this --model", name,
                        tensor->name, eni_st_shape_text(found->shape, found->ndim, got),
                        schema->network->name, want);
    }
    for (uint32_t t = 0; t < file->ntensors; t++) {
        const eni_st_tensor *extra = &file->tensors[t];
        uint32_t k = 0;
        while (k < ntensors && strcmp(eni_schema_tensor(schema, k)->name, extra->name) != 0)
            k++;
        if (k < ntensors || (is_checkpoint && strchr(extra->name, '/') != NULL)) continue;
        return eni_fail(EN_EMISMATCH, "weights",
                        "%s: unexpected tensor %s %s, which %s lacks; give the weights of this --model", name,
                        extra->name, eni_st_shape_text(extra->shape, extra->ndim, got),
                        schema->network->name);
    }
    return EN_OK;
}

/* Checks everything before copying anything. */
static en_status file_copy(const char *name, const eni_st_file *file, const en_schema *schema, float *flat,
                           float *state)
{
    EN_TRY(file_matches(name, file, schema));
    memset(flat, 0, schema->count * sizeof *flat);
    if (state != NULL) memset(state, 0, schema->nstate * sizeof *state);
    for (uint32_t t = 0; t < schema->ntensors + schema->nbuffers; t++) {
        const en_model_tensor *tensor = eni_schema_tensor(schema, t);
        const eni_st_tensor *found = eni_st_find(file, tensor->name);
        float *into = (t < schema->ntensors ? flat : state) + tensor->offset;
        if (found != NULL) eni_rows_to(tensor, found->data, into);
    }
    return EN_OK;
}

en_status eni_weights_parse(const char *name, const void *data, size_t bytes, const en_schema *schema,
                            float *flat, float *state)
{
    eni_st_file file;
    EN_TRY(eni_st_parse(name, data, bytes, &file));
    en_status st = file_copy(name, &file, schema, flat, state);
    eni_st_close(&file);
    return st;
}

en_status eni_weights_load(const char *path, const en_schema *schema, float *flat, float *state)
{
    /* Room for a checkpoint of four ranks with a slot and a vector each, or a file for another network, which is read to
     * name the difference; a much larger file is refused unread. */
    const uint64_t max_bytes = 16 * (schema->count + schema->nstate) * sizeof *flat + ENI_ST_MAX_HEADER;
    eni_st_file file;
    EN_TRY(eni_st_read(path, max_bytes, &file));
    en_status st = file_copy(path, &file, schema, flat, state);
    eni_st_close(&file);
    return st;
}

/* ---- digest ------------------------------------------------------------------------------------------ */

static en_status digest_tensors(const en_model_tensor *tensors, uint32_t n, const float *flat,
                                char hex_out[ENI_DIGEST_HEX])
{
    eni_digest digest;
    eni_digest_begin(&digest);
    for (uint32_t t = 0; t < n; t++) {
        void *copy;
        const void *rows = eni_rows_of(&tensors[t], flat + tensors[t].offset, &copy);
        if (rows == NULL) return EN_ENOMEM;
        eni_digest_add(&digest, rows, tensors[t].count * en_dtype_bytes(tensors[t].dtype));
        eni_free(copy);
    }
    eni_digest_end(&digest, hex_out);
    return EN_OK;
}

en_status eni_weights_digest(const en_schema *schema, const float *flat, char hex_out[ENI_DIGEST_HEX])
{
    return digest_tensors(schema->tensors, schema->ntensors, flat, hex_out);
}

en_status eni_buffers_digest(const en_schema *schema, const float *state, char hex_out[ENI_DIGEST_HEX])
{
    return digest_tensors(schema->buffers, schema->nbuffers, state, hex_out);
}

/* As text: a line for each node, with its inputs if they are not the node before; a line for each tensor. */
en_status eni_schema_digest(const en_schema *schema, char hex_out[ENI_DIGEST_HEX])
{
    char line[512];
    eni_digest digest;
    eni_digest_begin(&digest);
    const en_extent *input = &schema->input;
    int n = snprintf(line, sizeof line, "input %lld %lld %lld\n", (long long)input->h, (long long)input->w,
                     (long long)input->c);
    eni_digest_add(&digest, line, (size_t)n);
    for (uint32_t i = 1; i < schema->nnodes; i++) {
        const en_node *node = &schema->nodes[i];
        const en_op *op = &node->op;
        n = snprintf(line, sizeof line, "layer %u %u %lld %lld %lld %lld\n", op->kind, op->flags,
                     (long long)op->channels, (long long)op->kernel_h, (long long)op->stride_h,
                     (long long)op->pad_h);
        if (node->x != (int32_t)i - 1 || node->x2 >= 0)
            n += snprintf(line + n, sizeof line - (size_t)n, "reads %d %d\n", node->x, node->x2);
        if (op->kernel_w != op->kernel_h || op->stride_w != op->stride_h || op->pad_w != op->pad_h)
            n += snprintf(line + n, sizeof line - (size_t)n, "wide %lld %lld %lld\n", (long long)op->kernel_w,
                          (long long)op->stride_w, (long long)op->pad_w);
        if (op->kind == EN_OP_BATCHNORM)
            n += snprintf(line + n, sizeof line - (size_t)n, "eps %a momentum %a\n", (double)op->eps,
                          (double)op->momentum);
        eni_digest_add(&digest, line, (size_t)n);
    }
    for (uint32_t t = 0; t < schema->ntensors + schema->nbuffers; t++) {
        const en_model_tensor *tensor = eni_schema_tensor(schema, t);
        char shape[ENI_ST_SHAPE_TEXT];
        n = snprintf(line, sizeof line, "tensor %s %u %s at %llu\n", tensor->name, tensor->kind,
                     eni_st_shape_text(tensor->shape, tensor->ndim, shape),
                     (unsigned long long)tensor->offset);
        if (schema->nnodes == 0 && t >= schema->ntensors)
            n += snprintf(line + n, sizeof line - (size_t)n, "type %s\n", eni_st_dtype_text(tensor->dtype));
        eni_digest_add(&digest, line, (size_t)n);
    }
    eni_digest_end(&digest, hex_out);
    return EN_OK;
}
