/* kv_schema.c - named tensors of a client as one flat vector, and that as buckets. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/client/kv.h"

enum { NAME_MAX_BYTES = 200 };
#define ELEMENTS_MAX (UINT64_C(1) << 40)

const en_client_tensor *eni_kv_declared(const en_client_options *options, uint32_t i)
{
    const char *table = (const char *)options->tensors;
    return (const en_client_tensor *)(const void *)(table + (size_t)i * options->tensors->size);
}

/* The product of the shape; 0 if it is more than ELEMENTS_MAX. */
static uint64_t count_of(const en_client_tensor *tensor)
{
    uint64_t count = 1;
    for (int i = 0; i < EN_CLIENT_DIMS && tensor->shape[i] > 0; i++) {
        if (tensor->shape[i] > ELEMENTS_MAX / count) return 0;
        count *= tensor->shape[i];
    }
    return count;
}

static en_status check_name(const en_client *client, uint32_t i, const char *name)
{
    if (name == NULL || name[0] == 0 || strnlen(name, NAME_MAX_BYTES + 1) > NAME_MAX_BYTES) {
        eni_error("kv", "tensor %u has no name, or one of more than %d bytes", i, NAME_MAX_BYTES);
        return EN_EINVAL;
    }
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(client->tensors[k].name, name) == 0) {
            eni_error("kv", "tensors %u and %u are both called %s", k, i, name);
            return EN_EINVAL;
        }
    return EN_OK;
}

static en_status lay_out(en_client *client, const en_client_options *options)
{
    uint32_t nbuckets = 0;
    for (uint32_t i = 0; i < client->ntensors; i++) {
        const en_client_tensor *declared = eni_kv_declared(options, i);
        eni_kv_tensor *tensor = &client->tensors[i];
        EN_TRY(check_name(client, i, declared->name));
        tensor->name = eni_strdup(declared->name);
        if (tensor->name == NULL) return EN_ENOMEM;
        tensor->offset = client->elements;
        tensor->count = count_of(declared);
        if (tensor->count == 0 || tensor->count > ELEMENTS_MAX - tensor->offset) {
            eni_error("kv", "tensor %s is too large: a run has at most %" PRIu64 " elements", tensor->name,
                      ELEMENTS_MAX);
            return EN_EINVAL;
        }
        tensor->first_bucket = nbuckets;
        tensor->nbuckets = (uint32_t)((tensor->count + ENI_KV_PIECE - 1) / ENI_KV_PIECE);
        nbuckets += tensor->nbuckets;
        client->elements = eni_round_up(tensor->offset + tensor->count, ENI_LINE_FLOATS);
    }
    client->buckets.n = nbuckets;
    client->buckets.count = client->elements;
    return EN_OK;
}

static void cut(en_client *client)
{
    for (uint32_t i = 0; i < client->ntensors; i++) {
        const eni_kv_tensor *tensor = &client->tensors[i];
        uint64_t at = tensor->offset, end = tensor->offset + tensor->count;
        for (uint32_t b = 0; b < tensor->nbuckets; b++, at += ENI_KV_PIECE)
            client->buckets.bucket[tensor->first_bucket + b] = (eni_bucket_range){
                .lo = at, .hi = end - at < ENI_KV_PIECE ? end : at + ENI_KV_PIECE, .first = i, .last = i};
    }
}

en_status eni_kv_schema_make(en_client *client, const en_client_options *options)
{
    if (options->tensors == NULL || options->ntensors < 1 || options->ntensors > EN_CLIENT_TENSORS) {
        eni_error("kv", "%u tensors: declare 1 to %d", options->ntensors, EN_CLIENT_TENSORS);
        return EN_EINVAL;
    }
    if (options->tensors->size < sizeof(en_client_tensor)) {
        eni_error("kv",
                  "the first tensor says that it has %u bytes: set size to sizeof(en_client_tensor), %zu",
                  options->tensors->size, sizeof(en_client_tensor));
        return EN_EINVAL;
    }
    client->tensors = eni_alloc_array(options->ntensors, sizeof *client->tensors);
    if (client->tensors == NULL) return EN_ENOMEM;
    client->ntensors = options->ntensors;
    EN_TRY(lay_out(client, options));
    client->buckets.bucket = eni_alloc_array(client->buckets.n, sizeof *client->buckets.bucket);
    if (client->buckets.bucket == NULL) return EN_ENOMEM;
    cut(client);
    return EN_OK;
}

void eni_kv_schema_fini(en_client *client)
{
    for (uint32_t i = 0; i < client->ntensors; i++)
        eni_free(client->tensors[i].name);
    eni_free(client->tensors);
    eni_free(client->buckets.bucket);
}

en_status eni_kv_schema_agree(const en_client_options *options, eni_run_spec *spec)
{
    for (uint32_t i = 0; i < options->ntensors; i++) {
        const en_client_tensor *tensor = eni_kv_declared(options, i);
        char key[NAME_MAX_BYTES + 16], shape[EN_CLIENT_DIMS * 22 + 32];
        int at = snprintf(shape, sizeof shape, "number %u, shape (", i);
        for (int d = 0; d < EN_CLIENT_DIMS && tensor->shape[d] > 0; d++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%" PRIu64, d > 0 ? ", " : "",
                           tensor->shape[d]);
        snprintf(shape + at, sizeof shape - (size_t)at, ")");
        snprintf(key, sizeof key, "tensor %s", tensor->name);
        EN_TRY(eni_run_spec_add(spec, key, shape));
    }
    return EN_OK;
}
