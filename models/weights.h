/* weights.h - a model's tensors in a safetensors file, as PyTorch's load_state_dict and save_file know them.
 *
 * The file holds every tensor of the schema, weights and buffers, in declaration order, under its name and
 * shape, without the flat vector's padding, and __metadata__ {"format": "pt"}. All functions work on host
 * memory, from any thread, and block on the disk. */
#ifndef MODELS_WEIGHTS_H
#define MODELS_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "entrain/model.h"

/* Writes `flat` (schema->count) to `path`: the old file or the whole new one is there, also after a crash.
 * EN_ENONFINITE names the tensor: such a file could not be read back. EN_EIO. */
en_status eni_weights_save(const char *path, const en_schema *schema, const float *flat);

/* Overwrites all of `flat` (schema->count; padding becomes 0) from `path`. The file must hold exactly the
 * schema's tensors, finite; of a checkpoint (rank/checkpoint.h) the weights are taken. On failure `flat` is
 * untouched. EN_ENOENT, EN_EIO, EN_EFORMAT (not a safetensors file that we accept), EN_EMISMATCH (another
 * network: the tensor and both shapes are named), EN_ENONFINITE. */
en_status eni_weights_load(const char *path, const en_schema *schema, float *flat);

/* The same from memory; `name` is what messages call it. */
en_status eni_weights_parse(const char *name, const void *data, size_t bytes, const en_schema *schema,
                            float *flat);

/* params_sha256: SHA-256 of the tensors of kind weight as the file stores them (float32, little endian), in
 * declaration order, concatenated, no padding. EN_ENOMEM. */
en_status eni_weights_digest(const en_schema *schema, const float *flat, char hex_out[ENI_DIGEST_HEX]);

/* schema_sha256, what "the same network" means: its input, its nodes in order, and the tensors with names,
 * shapes and places in the flat vector; not what it is called. EN_ENOMEM. */
en_status eni_schema_digest(const en_schema *schema, char hex_out[ENI_DIGEST_HEX]);

#endif
