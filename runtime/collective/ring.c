/* ring.c - collectives around a ring (Patarasuk and Yuan 2009). Rank r sends to r + 1, receives from r - 1.
 *
 *     step      rank r sends chunk (r - step) mod n and receives chunk (r - 1 - step) mod n
 *     -1        the range of a chunk, to the rank that begins its sum        reduce-scatter only
 *     0 .. n-2  sums: chunk c starts at rank c, each rank adds its share, rank c - 1 is the last
 *     n-1 .. 2n-3  means: chunk c starts at rank c - 1 and goes round
 *
 *     all-reduce 0 .. 2n-3 · reduce-scatter -1 .. n-2 · all-gather, broadcast n-1 .. 2n-3 · reduce 0 .. n-2
 *
 * Rank c - 1 owns chunk c. Reduce and broadcast are the case that the one chunk owned by rank 0 is
 * everything. A chunk moves in segments, and segment s of a step can be sent as soon as segment s of the step
 * before has arrived. An empty chunk is one frame without payload, so that ranks always hear of each other.
 *
 * The segments of a step go in order, those of different steps in any: a rank sends the one that is farthest
 * on its way, because that has just arrived and is still in the cache. Nothing is overwritten too early: the
 * mean of a segment comes after everybody's share of it has been sent.
 *
 * A sum is made in place: what arrives plus my share overwrites my share, which nobody needs again. The bits
 * are those of eni_mean in the order c, c + 1, .. */
#include <string.h>

#include "core/clock.h"
#include "runtime/collective/progress_engine.h"

static int ring_mod(int rank, int n)
{
    return ((rank % n) + n) % n;
}

static eni_chunk *chunk_sent_at(const eni_coll *coll, const eni_inflight *inflight, int step)
{
    return &inflight->chunks[ring_mod(coll->config.rank - step, coll->config.nranks)];
}

static eni_chunk *chunk_received_at(const eni_coll *coll, const eni_inflight *inflight, int step)
{
    return chunk_sent_at(coll, inflight, step + 1);
}

/* Step -1 is the first. */
static eni_hop *hop_at(const eni_inflight *inflight, int step)
{
    return &inflight->hops[step + 1];
}

/* Elements that travel in a step: step -1 carries ranges only. */
static uint64_t payload_of(const eni_chunk *chunk, int step)
{
    return step < 0 ? 0 : chunk->hi - chunk->lo;
}

static void ring_start(eni_coll *coll, eni_inflight *inflight)
{
    const eni_coll_op *op = inflight->op;
    const int n = coll->config.nranks;
    const int first = op->op == EN_REDUCE_SCATTER                    ? -1
                      : op->op == EN_ALLGATHER || op->op == EN_BCAST ? n - 1
                                                                     : 0;
    const bool has_means = op->op != EN_REDUCE_SCATTER && op->op != EN_REDUCE;
    inflight->first_step = inflight->nearest_step = inflight->farthest_step = first;
    inflight->last_step = has_means ? 2 * n - 3 : n - 2;
    inflight->out[ring_mod(coll->config.rank + 1, n)].nleft = inflight->last_step - first + 1;
    inflight->in[ring_mod(coll->config.rank - 1, n)].nleft = inflight->last_step - first + 1;
    for (int step = first; step <= inflight->last_step; step++)
        *hop_at(inflight, step) = (eni_hop){0};
    for (int c = 0; c < n; c++) {
        eni_chunk *chunk = &inflight->chunks[c];
        *chunk = (eni_chunk){0};
        if (op->op == EN_REDUCE || op->op == EN_BCAST) chunk->hi = c == 1 % n ? op->count : 0;
        if (op->op == EN_ALLREDUCE || op->op == ENI_COLL_BARRIER)
            *chunk = (eni_chunk){eni_slice_lo(op->count, c, n), eni_slice_lo(op->count, c + 1, n), 0};
    }
    if (op->op == EN_REDUCE_SCATTER || op->op == EN_ALLGATHER) {
        eni_chunk *own = chunk_sent_at(coll, inflight, first); /* the others' ranges arrive with the frames */
        own->lo = op->lo;
        own->hi = op->hi;
    }
}

/* Whether the next segment of this step can go: there is one, and it has come from the left. */
static bool can_send(const eni_inflight *inflight, int step)
{
    const eni_hop *hop = hop_at(inflight, step);
    if (hop->is_sent) return false;
    if (step == inflight->first_step) return true;
    const eni_hop *before = hop_at(inflight, step - 1);
    return before->is_received || before->received > hop->sent;
}

/* The step farthest on its way that can send; false if no step can. */
static bool step_to_send(eni_inflight *inflight, int *step_out)
{
    while (inflight->nearest_step < inflight->last_step && hop_at(inflight, inflight->nearest_step)->is_sent)
        inflight->nearest_step++;
    for (int step = inflight->farthest_step; step >= inflight->nearest_step; step--)
        if (can_send(inflight, step)) {
            *step_out = step;
            return true;
        }
    return false;
}

static bool ring_next(eni_coll *coll, eni_inflight *inflight, int peer, eni_frame *frame,
                      const float **data_out)
{
    int step;
    if (peer != ring_mod(coll->config.rank + 1, coll->config.nranks) || !step_to_send(inflight, &step))
        return false;
    eni_hop *hop = hop_at(inflight, step);
    const uint64_t at = hop->sent;
    eni_chunk *chunk = chunk_sent_at(coll, inflight, step);
    const uint64_t length = payload_of(chunk, step), n = eni_segment_at(coll, length, at);
    if (step == 0) chunk->nsamples = eni_group_weight(inflight->op); /* a sum begins here */
    frame->step = step;
    frame->lo = chunk->lo;
    frame->hi = chunk->hi;
    frame->at = at;
    frame->n = (uint32_t)n;
    frame->nsamples = chunk->nsamples;
    *data_out = inflight->vector + chunk->lo + at;
    hop->sent += n;
    hop->is_sent = hop->sent == length; /* an empty chunk is one segment */
    inflight->out[peer].nleft -= hop->is_sent;
    return true;
}

static bool ring_accept(eni_coll *coll, eni_inflight *inflight, int peer, const eni_frame *frame,
                        float **data_out)
{
    const int n = coll->config.nranks, step = frame->step;
    if (peer != ring_mod(coll->config.rank - 1, n) || step < inflight->first_step ||
        step > inflight->last_step)
        return false;
    const eni_hop *hop = hop_at(inflight, step);
    if (hop->is_received) return false;

    eni_chunk *chunk = chunk_received_at(coll, inflight, step);
    const bool is_learnt = inflight->op->op == EN_REDUCE_SCATTER || inflight->op->op == EN_ALLGATHER;
    if (is_learnt && hop->received == 0 && frame->lo <= frame->hi && frame->hi <= inflight->op->count) {
        chunk->lo = frame->lo;
        chunk->hi = frame->hi;
    }
    const uint64_t length = payload_of(chunk, step);
    if (frame->lo != chunk->lo || frame->hi != chunk->hi || frame->at != hop->received ||
        frame->n != eni_segment_at(coll, length, frame->at))
        return false;
    *data_out = step < n - 1 ? NULL : inflight->vector + chunk->lo + frame->at;
    return true;
}

/* own = sum + own * weight, in one pass with everything else: a sum begins with its first rank's unweighted
 * share, so that no rank reads a vector only to multiply it; and the last rank makes the mean. */
static void add_share(eni_coll *coll, eni_inflight *inflight, const eni_frame *frame, const float *sum)
{
    eni_chunk *chunk = chunk_received_at(coll, inflight, frame->step);
    const uint64_t weight = eni_group_weight(inflight->op), total = frame->nsamples + weight;
    const bool is_last = frame->step == coll->config.nranks - 2;
    float *own = inflight->vector + chunk->lo + frame->at;
    const float *src[2];
    float scale[2];
    int n = 0;
    chunk->nsamples = total;
    if (frame->nsamples > 0) {
        src[n] = sum;
        scale[n++] = frame->step == 0 ? (float)frame->nsamples : 1.0f; /* 1 * x is x */
    }
    if (weight > 0) {
        src[n] = own;
        scale[n++] = (float)weight;
    }
    if (n > 0)
        eni_mean(own, src, scale, n, is_last ? 1.0f / (float)total : 1.0f, frame->n);
    else if (is_last)
        memset(own, 0, frame->n * sizeof *own);
}

static void ring_arrived(eni_coll *coll, eni_inflight *inflight, int peer, const eni_frame *frame,
                         float *data)
{
    const bool is_sum = frame->step >= 0 && frame->step < coll->config.nranks - 1;
    if (is_sum) {
        const int64_t begin_ns = eni_now_ns();
        add_share(coll, inflight, frame, data);
        eni_group_trace(coll, "add", begin_ns, eni_now_ns(), frame->bucket, eni_frame_payload(frame));
    }
    eni_hop *hop = hop_at(inflight, frame->step);
    hop->received += frame->n;
    hop->is_received =
        hop->received == payload_of(chunk_received_at(coll, inflight, frame->step), frame->step);
    inflight->in[peer].nleft -= hop->is_received;
    if (frame->step >= inflight->farthest_step && frame->step < inflight->last_step)
        inflight->farthest_step = frame->step + 1;
}

/* The chunk whose sum ends here has counted all ranks' samples. */
static void ring_end(eni_coll *coll, eni_inflight *inflight)
{
    if (eni_coll_is_reduction(inflight->op))
        eni_group_note_samples(coll, inflight->seq,
                               chunk_received_at(coll, inflight, coll->config.nranks - 2)->nsamples);
}

const eni_algorithm eni_ring_algorithm = {
    .start = ring_start,
    .next = ring_next,
    .accept = ring_accept,
    .arrived = ring_arrived,
    .end = ring_end,
};
