/* fuzz_safetensors.c - bytes of any kind as a safetensors file, and as the weights of two networks: the toy,
 * and one with running statistics.
 *
 * What is accepted must be whole: tensors inside the input, one behind the other, and finite. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "models/formats/safetensors.h"
#include "models/formats/weights.h"
#include "tests/fuzz/must.h"
#include "tests/network.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void accepted_files_are_whole(const uint8_t *data, size_t bytes, const eni_st_file *file)
{
    const uint8_t *end = file->ntensors > 0 ? file->tensors[0].data : NULL;
    for (uint32_t t = 0; t < file->ntensors; t++) {
        const eni_st_tensor *tensor = &file->tensors[t];
        must((const uint8_t *)tensor->data == end && end >= data);
        if (tensor->dtype != EN_F32) {
            must(tensor->dtype == EN_U8 || tensor->ndim == 0 || eni_st_find_meta(file, "types") != NULL);
            must(eni_st_bytes(tensor) <= (uint64_t)(data + bytes - end));
            end += eni_st_bytes(tensor);
            continue;
        }
        for (uint64_t i = 0; i < tensor->count; i++, end += sizeof(float)) {
            float value;
            must(end + sizeof value <= data + bytes);
            memcpy(&value, end, sizeof value);
            must(isfinite(value));
        }
        must(eni_st_find(file, tensor->name) == tensor);
    }
    must(file->ntensors == 0 || end == data + bytes);
}

static en_at build_normed(en_graph *g, en_at x)
{
    return en_cross_entropy(g, en_linear(g, en_batchnorm(g, x, "bn"), "fc", 2));
}

static const en_network normed = {.abi = EN_NETWORK_ABI,
                                  .size = sizeof(en_network),
                                  .name = "normed",
                                  .help = "",
                                  .input = {1, 1, 1, 2},
                                  .build = build_normed};

static void accepted_weights_are_finite(const uint8_t *data, size_t bytes, const en_network *network)
{
    en_schema schema;
    must(en_schema_init(network, &schema) == EN_OK);
    float *flat = eni_alloc_array(schema.count, sizeof *flat);
    float *state = eni_alloc_array(schema.nstate, sizeof *state);
    if (eni_weights_parse("input", data, bytes, &schema, flat, state) == EN_OK)
        for (uint64_t i = 0; i < schema.count; i++)
            must(isfinite(flat[i]));
    eni_free(flat);
    eni_free(state);
    en_schema_fini(&schema);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    eni_st_file file;
    eni_log_set_level(-1);
    if (eni_st_parse("input", data, bytes, &file) == EN_OK) {
        accepted_files_are_whole(data, bytes, &file);
        eni_st_close(&file);
    }
    accepted_weights_are_finite(data, bytes, network_named("toy"));
    accepted_weights_are_finite(data, bytes, &normed);
    return 0;
}
