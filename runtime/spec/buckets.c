/* buckets.c - fills buckets from the end of the table to its start, up to the cap. */
#include "runtime/spec/buckets.h"

#include <inttypes.h>
#include <stdbool.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* The plan under construction. */
typedef struct plan {
    const en_model_tensor *tensors;
    uint32_t ntensors;
    uint64_t count, cap; /* elements */
    eni_buckets *out;
    bool is_open;
    eni_bucket_range open; /* it grows downward */
} plan;

/* Where the padding behind tensor t ends. */
static uint64_t end_of(const plan *p, uint32_t t)
{
    return t + 1 < p->ntensors ? p->tensors[t + 1].offset : p->count;
}

static en_status check(const en_model_tensor *tensors, uint32_t n, uint64_t count, uint64_t cap_bytes)
{
    uint64_t end = 0;
    uint32_t weights = 0;
    if (cap_bytes < ENI_LINE)
        return eni_fail(EN_EINVAL, "buckets",
                        "a bucket of %" PRIu64 " bytes is too small: expected at least %u", cap_bytes,
                        ENI_LINE);
    for (uint32_t t = 0; t < n; t++) {
        const en_model_tensor *e = &tensors[t];
        if (e->offset < end || e->offset % ENI_LINE_FLOATS || e->count == 0 || e->count > count ||
            e->offset > count - e->count || (t == 0 && e->offset != 0))
            return eni_fail(EN_EINVAL, "buckets",
                            "tensor %s lies at %" PRIu64 " with %" PRIu64 " elements in a vector of %" PRIu64
                            "; tensors start at 0, ascend from %" PRIu64
                            " on multiples of %u and are not empty",
                            e->name, e->offset, e->count, count, end, ENI_LINE_FLOATS);
        end = e->offset + e->count;
        weights += e->kind == EN_TENSOR_WEIGHT;
    }
    if (weights == 0)
        return eni_fail(EN_EINVAL, "buckets", "none of the model's %" PRIu32 " tensors is a weight", n);
    return EN_OK;
}

/* Adds a bucket, with the part of each tensor that lies in it, except a tensor of which only padding does. */
static en_status add_bucket(plan *p, eni_bucket_range range)
{
    eni_bucket_range *b = &p->out->bucket[p->out->n++];
    *b = range;
    b->params = eni_alloc_array(b->last - b->first + 1, sizeof *b->params);
    if (b->params == NULL) return EN_ENOMEM;
    for (uint32_t t = b->first; t <= b->last; t++) {
        const en_model_tensor *e = &p->tensors[t];
        const uint64_t lo = e->offset > b->lo ? e->offset : b->lo;
        const uint64_t end = e->offset + e->count, hi = end < b->hi ? end : b->hi;
        const uint64_t rows = e->ndim > 0 ? (uint64_t)e->shape[e->order[0]] : 1;
        if (lo >= hi) continue;
        b->params[b->nparams++] = (en_param){.size = sizeof(en_param),
                                             .kind = e->kind,
                                             .name = e->name,
                                             .offset = lo - b->lo,
                                             .count = hi - lo,
                                             .rows = rows,
                                             .cols = e->count / rows};
    }
    return EN_OK;
}

static en_status close_bucket(plan *p)
{
    if (!p->is_open) return EN_OK;
    p->is_open = false;
    return add_bucket(p, p->open);
}

/* A tensor over the cap: the fewest pieces that fit, the longest at most one line longer than the shortest. */
static en_status add_pieces(plan *p, uint32_t t)
{
    const uint64_t lo = p->tensors[t].offset, hi = end_of(p, t);
    const uint64_t lines = (hi - lo + ENI_LINE_FLOATS - 1) / ENI_LINE_FLOATS;
    const uint64_t cap_lines = p->cap / ENI_LINE_FLOATS, pieces = (lines + cap_lines - 1) / cap_lines;
    uint64_t end = hi;
    for (uint64_t i = pieces; i-- > 0;) {
        const uint64_t from = lo + (lines / pieces * i + lines % pieces * i / pieces) * ENI_LINE_FLOATS;
        EN_TRY(add_bucket(p, (eni_bucket_range){.lo = from, .hi = end, .first = t, .last = t}));
        end = from;
    }
    return EN_OK;
}

static en_status add_tensor(plan *p, uint32_t t)
{
    const uint64_t lo = p->tensors[t].offset, hi = end_of(p, t);
    if (p->tensors[t].kind == EN_TENSOR_BUFFER) return close_bucket(p);
    if (hi - lo > p->cap) {
        EN_TRY(close_bucket(p));
        return add_pieces(p, t);
    }
    if (p->is_open && p->open.hi - lo > p->cap) EN_TRY(close_bucket(p));
    if (!p->is_open) p->open = (eni_bucket_range){.hi = hi, .last = t};
    p->is_open = true;
    p->open.lo = lo;
    p->open.first = t;
    return EN_OK;
}

en_status eni_buckets_new(const en_model_tensor *tensors, uint32_t ntensors, uint64_t count,
                          uint64_t cap_bytes, eni_buckets **buckets_out)
{
    EN_TRY(check(tensors, ntensors, count, cap_bytes));
    const uint64_t cap = cap_bytes / ENI_LINE * ENI_LINE_FLOATS;
    eni_buckets *b = eni_alloc(sizeof *b);
    if (b == NULL) return EN_ENOMEM;
    plan p = {.tensors = tensors, .ntensors = ntensors, .count = count, .cap = cap, .out = b};
    en_status st;
    b->count = count;
    b->bucket = eni_alloc_array(ntensors + 1 + count / cap, sizeof *b->bucket); /* at most */
    EN_TRY_GOTO(b->bucket != NULL ? EN_OK : EN_ENOMEM, free_buckets);
    for (uint32_t t = ntensors; t-- > 0;)
        EN_TRY_GOTO(add_tensor(&p, t), free_buckets);
    EN_TRY_GOTO(close_bucket(&p), free_buckets);
    *buckets_out = b;
    return EN_OK;
free_buckets:
    eni_buckets_free(b);
    return st;
}

void eni_buckets_free(eni_buckets *buckets)
{
    if (buckets == NULL) return;
    for (uint32_t i = 0; buckets->bucket != NULL && i < buckets->n; i++)
        eni_free(buckets->bucket[i].params);
    eni_free(buckets->bucket);
    eni_free(buckets);
}

void eni_buckets_fill(const eni_buckets *buckets, uint32_t id, en_bucket *bucket_out)
{
    const eni_bucket_range *range = &buckets->bucket[id];
    const uint64_t count = range->hi - range->lo;
    *bucket_out = (en_bucket){.size = sizeof(en_bucket),
                              .id = id,
                              .nparams = range->nparams,
                              .params = range->params,
                              .count = count,
                              .hi = count};
}
