/* rows.c - one walk over a tensor's row-major elements, which finds where each lies in the tensor's own order. */
#include "models/formats/rows.h"

#include <string.h>

#include "core/memory.h"
#include "entrain/tensor.h"

bool eni_rows_set_order(en_model_tensor *tensor, const uint8_t given[EN_MAX_DIMS])
{
    static const uint8_t rows[EN_MAX_DIMS] = {0};
    uint32_t seen = 0, n = 0;
    bool is_rows = true;
    memset(tensor->order, 0, sizeof tensor->order);
    if (memcmp(given, rows, tensor->ndim) == 0) return true;
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        const uint8_t d = given[i];
        if (d >= tensor->ndim || (seen >> d & 1) != 0) return false;
        seen |= 1u << d;
        if (tensor->shape[d] == 1) continue;
        is_rows = is_rows && (n == 0 || tensor->order[n - 1] < d);
        tensor->order[n++] = d;
    }
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 1) tensor->order[n++] = (uint8_t)d;
    if (is_rows) memset(tensor->order, 0, sizeof tensor->order);
    return true;
}

/* n elements, each so many bytes behind the one before. */
static void copy_line(char *to, size_t to_step, const char *from, size_t from_step, int64_t n, size_t bytes)
{
    for (int64_t i = 0; i < n; i++, to += to_step, from += from_step)
        if (bytes == sizeof(float))
            memcpy(to, from, sizeof(float));
        else
            memcpy(to, from, bytes);
}

/* Line by line of the last dimension. */
static void walk(const en_model_tensor *t, const char *from, char *to, bool is_to_rows)
{
    const size_t bytes = en_dtype_bytes(t->dtype);
    const uint32_t last = t->ndim - 1;
    int64_t index[EN_MAX_DIMS] = {0};
    size_t step[EN_MAX_DIMS], at = 0; /* bytes in its own order */
    for (size_t i = t->ndim, size = bytes; i-- > 0; size *= (size_t)t->shape[t->order[i]])
        step[t->order[i]] = size;
    for (uint64_t row = 0; row < t->count; row += (uint64_t)t->shape[last]) {
        if (is_to_rows)
            copy_line(to + row * bytes, bytes, from + at, step[last], t->shape[last], bytes);
        else
            copy_line(to + at, step[last], from + row * bytes, bytes, t->shape[last], bytes);
        for (uint32_t d = last; d-- > 0;) {
            at += step[d];
            if (++index[d] < t->shape[d]) break;
            at -= step[d] * (size_t)t->shape[d];
            index[d] = 0;
        }
    }
}

const void *eni_rows_of(const en_model_tensor *tensor, const void *own, void **copy_out)
{
    *copy_out = NULL;
    if (!eni_rows_differ(tensor)) return own;
    *copy_out = eni_alloc(tensor->count * en_dtype_bytes(tensor->dtype));
    if (*copy_out != NULL) walk(tensor, own, *copy_out, true);
    return *copy_out;
}

void eni_rows_to(const en_model_tensor *tensor, const void *rows, void *own)
{
    if (eni_rows_differ(tensor))
        walk(tensor, rows, own, false);
    else
        memcpy(own, rows, tensor->count * en_dtype_bytes(tensor->dtype));
}
