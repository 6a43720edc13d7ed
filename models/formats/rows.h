/* rows.h - a tensor between its order in a flat vector (en_model_tensor.order) and row-major order, which files have. */
#ifndef FORMATS_ROWS_H
#define FORMATS_ROWS_H

#include <stdbool.h>

#include "entrain/model.h"

/* Whether the tensor lies otherwise than row-major: an order is all zeros, or has each dimension once (eni_rows_set_order). */
static inline bool eni_rows_differ(const en_model_tensor *tensor)
{
    return tensor->order[0] != tensor->order[1];
}

/* Sets tensor->order to the one given: dimensions from the outermost to the innermost; all 0: row-major. Those of one
 * element lie anywhere: they become the innermost ones, so that equal layouts have equal orders. False: some dimension is
 * missing. */
bool eni_rows_set_order(en_model_tensor *tensor, const uint8_t given[EN_MAX_DIMS]);

/* The row-major elements of a tensor that begins at `own` in a flat vector: these themselves, or a copy, which *copy_out
 * gets, freed with eni_free. NULL: out of memory. */
const void *eni_rows_of(const en_model_tensor *tensor, const void *own, void **copy_out);

/* The reverse: copies row-major elements to `own`. */
void eni_rows_to(const en_model_tensor *tensor, const void *rows, void *own);

#endif
