/* private.c - the all-reduce of a vector in the caller's own memory (private.h).
 *
 * Ranks cannot read each other's private memory, so the vector goes through a staging area in the arena, piece
 * by piece. The pieces are small enough for the staging area to stay in the caches: memory sees one read and
 * one write of the vector per rank, as if it were shared. Several are under way, so that a rank can start the
 * next one before the others have finished the last:
 *
 *     piece k        copied in, submitted
 *     piece k - LAG  done by now, copied out
 *
 * A rank's own slice of a piece stays in private memory where the owner of a slice may do the work itself
 * (ENI_COLL_MEAN_STEP): it reads the others' shares from their staging areas and writes the mean there, and
 * reads and writes its own where it is. So a rank copies only the others' slices, and a staged line crosses to
 * the other core with a share and back with the mean.
 */
#include "bench/private.h"

#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/collective/group.h"

enum {
    LAG = 2,
    PIECES = LAG + 1, /* slots for pieces: the one being copied in is no longer under way */
    PIECE_MIN = 16
};
_Static_assert(PRIVATE_STAGE % (PIECES * PIECE_MIN) == 0, "pieces begin on a line");

typedef struct piece {
    eni_coll *coll;
    float *data;    /* in private memory */
    eni_coll_op op; /* where it is staged */
    uint64_t request;
} piece;

static float *staged(const piece *part, int rank)
{
    return eni_arena_at(part->coll->arenas[rank], part->op.slot, part->op.offset);
}

/* The mean of this rank's slice, to all ranks. Scales are numbers of samples. */
static void average_own(void *user, uint64_t lo, uint64_t hi, const eni_sources *from)
{
    const piece *part = user;
    const eni_coll_config *config = &part->coll->config;
    float *vectors[ENI_MEAN_MAX];
    uint64_t nsamples[ENI_MEAN_MAX] = {0};
    for (int r = 0; r < config->nranks; r++)
        vectors[r] = (r == config->rank ? part->data : staged(part, r)) + lo;
    for (int k = 0; k < from->n; k++)
        nsamples[from->rank[k]] = (uint64_t)from->scale[k];
    eni_mean_all(vectors, nsamples, config->nranks, config->sum_order, part->op.count, lo, hi);
}

/* Copies a piece into the staging area (is_in) or out of it; without the own slice where that stays private. */
static void copy(const piece *part, bool is_in)
{
    const eni_coll_config *config = &part->coll->config;
    const uint64_t count = part->op.count;
    const bool is_whole = part->op.op == EN_ALLREDUCE;
    const uint64_t lo = is_whole ? count : eni_slice_lo(count, config->rank, config->nranks);
    const uint64_t hi = is_whole ? count : eni_slice_lo(count, config->rank + 1, config->nranks);
    float *stage = staged(part, config->rank);
    float *to = is_in ? stage : part->data, *from = is_in ? part->data : stage;
    memcpy(to, from, lo * sizeof *to);
    memcpy(to + hi, from + hi, (count - hi) * sizeof *to);
}

/* Elements of a piece: an even share of the staging area, at most the vector. */
static uint64_t size_of_piece(const eni_coll *coll, const eni_coll_op *op)
{
    uint64_t room = eni_arena_count(coll->arenas[coll->config.rank]) - op->offset;
    if (room > PRIVATE_STAGE) room = PRIVATE_STAGE;
    return op->count <= room / PIECES ? op->count : room / PIECES / PIECE_MIN * PIECE_MIN;
}

en_status private_allreduce(eni_coll *coll, const eni_coll_op *op, float *data)
{
    const eni_arena *own = coll->arenas[coll->config.rank];
    const int fits = op->slot < eni_arena_nslots(own) && op->offset <= eni_arena_count(own);
    const uint64_t size = fits ? size_of_piece(coll, op) : 0;
    if (op->op != EN_ALLREDUCE || (size == 0 && op->count > 0)) {
        eni_error("coll",
                  "a private vector can be all-reduced through %d elements of an arena, and vector %u "
                  "has none at %llu",
                  PIECES * PIECE_MIN, op->slot, (unsigned long long)op->offset);
        return EN_EINVAL;
    }
    const uint64_t npieces = op->count == 0 ? 0 : (op->count + size - 1) / size;
    piece pieces[PIECES];
    for (uint64_t k = 0; k < npieces + LAG; k++) {
        if (k < npieces) {
            piece *next = &pieces[k % PIECES];
            *next = (piece){.coll = coll, .data = data + k * size, .op = *op};
            next->op.offset = op->offset + k % PIECES * size;
            next->op.count = op->count - k * size < size ? op->count - k * size : size;
            next->op.on_reduced = average_own;
            next->op.on_reduced_user = next;
            if (eni_coll_can_share(coll)) next->op.op = ENI_COLL_MEAN_STEP;
            copy(next, true);
            EN_TRY(eni_coll_submit(coll, &next->op, &next->request));
        }
        if (k < LAG) continue;
        const piece *done = &pieces[(k - LAG) % PIECES];
        EN_TRY(eni_coll_wait(coll, done->request));
        copy(done, false);
    }
    return EN_OK;
}
