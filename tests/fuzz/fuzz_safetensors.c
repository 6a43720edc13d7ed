/* fuzz_safetensors.c - bytes of any kind as a safetensors file, and as the weights of the toy network.
 *
 * What is accepted must be whole: tensors inside the input, one behind the other, and finite. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "models/registry.h"
#include "models/safetensors.h"
#include "models/weights.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void accepted_files_are_whole(const uint8_t *data, size_t bytes, const eni_st_file *file)
{
    const uint8_t *end = file->ntensors > 0 ? file->tensors[0].data : NULL;
    for (uint32_t t = 0; t < file->ntensors; t++) {
        const eni_st_tensor *tensor = &file->tensors[t];
        must((const uint8_t *)tensor->data == end && end >= data);
        if (tensor->dtype == ENI_ST_U8) {
            must(tensor->count <= (uint64_t)(data + bytes - end));
            end += tensor->count;
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    eni_st_file file;
    en_schema schema;
    eni_log_set_level(-1);
    if (eni_st_parse("input", data, bytes, &file) == EN_OK) {
        accepted_files_are_whole(data, bytes, &file);
        eni_st_close(&file);
    }
    must(en_schema_init(eni_network_find("toy"), &schema) == EN_OK);
    float *flat = eni_alloc_array(schema.count, sizeof *flat);
    if (eni_weights_parse("input", data, bytes, &schema, flat) == EN_OK)
        for (uint64_t i = 0; i < schema.count; i++)
            must(isfinite(flat[i]));
    eni_free(flat);
    en_schema_fini(&schema);
    return 0;
}
