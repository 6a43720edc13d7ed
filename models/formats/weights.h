/* weights.h - a model's tensors in a safetensors file, as PyTorch's load_state_dict and save_file know them.
 *
 * The file has every tensor of the schema, weights, then the state, in declaration order (wider types first,
 * safetensors.h), under its name and shape, without the flat vectors' padding, and __metadata__ {"format": "pt"}.
 * `state` (schema->nstate) always accompanies the flat weights; NULL for a network without state. All functions work on
 * host memory, from any thread, and block on the disk. */
#ifndef FORMATS_WEIGHTS_H
#define FORMATS_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "entrain/model.h"
#include "models/formats/safetensors.h"

/* Writes `flat` (schema->count) to `path`, atomically and durably. EN_ENONFINITE names the tensor: such a file could not
 * be read back. EN_EIO. */
en_status eni_weights_save(const char *path, const en_schema *schema, const float *flat, const float *state);

/* Overwrites all of `flat` and `state` (padding becomes 0) from `path`. The file must have exactly the schema's tensors,
 * finite; num_batches_tracked, which converters omit, may be absent: 0. Takes the weights and the state of a checkpoint
 * (rank/checkpoint.h). On failure neither is touched. EN_ENOENT, EN_EIO, EN_EFORMAT (not a safetensors file that we
 * accept), EN_EMISMATCH (another network: names the tensor and both shapes), EN_ENONFINITE. */
en_status eni_weights_load(const char *path, const en_schema *schema, float *flat, float *state);

/* The same from memory; messages call it `name`. */
en_status eni_weights_parse(const char *name, const void *data, size_t bytes, const en_schema *schema,
                            float *flat, float *state);

/* params_sha256: SHA-256 of the tensors of kind weight as the file stores them (float32, little endian), in
 * declaration order, concatenated, no padding. EN_ENOMEM. */
en_status eni_weights_digest(const en_schema *schema, const float *flat, char hex_out[ENI_DIGEST_HEX]);

/* buffers_sha256: the same of the state, in the order of schema->buffers, of any type. EN_ENOMEM. */
en_status eni_buffers_digest(const en_schema *schema, const float *state, char hex_out[ENI_DIGEST_HEX]);

/* Tensor i of a network, the weights and then the state: i < ntensors + nbuffers. */
static inline const en_model_tensor *eni_schema_tensor(const en_schema *schema, uint32_t i)
{
    return i < schema->ntensors ? &schema->tensors[i] : &schema->buffers[i - schema->ntensors];
}

/* Fills the entry of tensor i, which points into
 * `flat` or `state`. EN_ENONFINITE: it cannot be written; the entry has its name. */
en_status eni_weights_entry(const en_schema *schema, uint32_t i, const float *flat, const float *state,
                            eni_st_tensor *entry_out);

/* Whether `found` matches the schema's tensor `want`. */
bool eni_weights_fits(const eni_st_tensor *found, const en_model_tensor *want);

/* schema_sha256 defines "the same network": its input, its nodes in order, and the tensors with names, shapes and
 * offsets; not the network's name. EN_ENOMEM. */
en_status eni_schema_digest(const en_schema *schema, char hex_out[ENI_DIGEST_HEX]);

#endif
