/* weights_tool.c - our side of test_safetensors.py.
 *
 *     weights_tool save FILE [MODEL]     writes MODEL's initial weights of seed 1, prints their sha256
 *     weights_tool load FILE [MODEL]     reads MODEL's weights, prints their sha256
 *     weights_tool outputs FILE MODEL    and in eval mode, for two images that count up, a line each with what the
 *                                        loss would be with each class as the label: -log_softmax of the outputs
 *
 * MODEL: convnet, or with options, for images of 32 x 32 in three colours and 10 classes. Where it has running
 * statistics their sha256 follows; `save` counts the batches of each up, and moves its variances. */
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "models/registry.h"
#include "models/formats/weights.h"
#include "ops/device.h"

enum { SIDE = 32, IMAGES = 2, PIXELS = IMAGES * SIDE * SIDE * 3 };

static void move_state(const en_schema *schema, float *state)
{
    for (uint32_t b = 0; b < schema->nbuffers; b++) {
        const en_model_tensor *buffer = &schema->buffers[b];
        const int64_t batches = b;
        if (buffer->dtype == EN_I64) memcpy(state + buffer->offset, &batches, sizeof batches);
        for (uint64_t i = 0; i < buffer->count && buffer->dtype == EN_F32; i++)
            state[buffer->offset + i] += (float)(i % 8) / 16;
    }
}

static en_status print_outputs(const en_schema *schema, const float *flat, const float *state)
{
    static float x[PIXELS];
    eni_device device;
    en_model *model = NULL;
    en_score score;
    for (int i = 0; i < PIXELS; i++)
        x[i] = (float)(i % 251) / 125 - 1;
    EN_TRY(eni_device_open("ref", NULL, 1, &device));
    en_status st = en_model_new(schema, device.ops, device.ctx, NULL, &model);
    for (int i = 0; i < IMAGES; i++)
        for (int32_t label = 0; label < schema->outputs && st == EN_OK; label++) {
            const en_batch batch = {.n = 1, .x = x + (ptrdiff_t)i * PIXELS / IMAGES, .target = &label};
            st = en_model_evaluate(model, flat, state, &batch, &score);
            printf("%.9g%c", score.loss, label + 1 < schema->outputs ? ' ' : '\n');
        }
    en_model_free(model);
    eni_device_close(&device);
    return st;
}

static en_status run(const char *verb, const char *path, const en_schema *schema, float *flat, float *state)
{
    char hex[ENI_DIGEST_HEX];
    if (strcmp(verb, "save") != 0) {
        EN_TRY(eni_weights_load(path, schema, flat, state));
    } else {
        en_schema_init_param(schema, 1, flat);
        en_schema_init_state(schema, state);
        move_state(schema, state);
        EN_TRY(eni_weights_save(path, schema, flat, state));
    }
    EN_TRY(eni_weights_digest(schema, flat, hex));
    puts(hex);
    if (schema->nstate > 0) {
        eni_buffers_digest(schema, state, hex);
        puts(hex);
    }
    return strcmp(verb, "outputs") == 0 ? print_outputs(schema, flat, state) : EN_OK;
}

int main(int argc, char **argv)
{
    const char *model = argc == 4 ? argv[3] : "convnet";
    const bool is_convnet = strcmp(model, "convnet") == 0;
    const en_data_shape shape = is_convnet ? (en_data_shape){0} : (en_data_shape){SIDE, SIDE, 3, 10};
    en_schema schema;
    if (argc < 3 || eni_network_schema("--model", model, &shape, &schema) != EN_OK) return 2;
    float *flat = eni_alloc_array(schema.count, sizeof *flat);
    float *state = eni_alloc_array(schema.nstate, sizeof *state);
    const en_status st =
        flat == NULL || state == NULL ? EN_ENOMEM : run(argv[1], argv[2], &schema, flat, state);
    eni_free(flat);
    eni_free(state);
    en_schema_fini(&schema);
    return st == EN_OK ? 0 : 1;
}
