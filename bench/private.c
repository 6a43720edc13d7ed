/* private.c - the all-reduce of a vector in the caller's own memory (private.h).
 *
 * Ranks cannot read each other's private memory, so the vector goes through a staging area in the arena, piece
 * by piece. The pieces are small enough for the staging area to stay in the caches: memory sees one read and
 * one write of the vector per rank, as if it were shared. Several are under way, so that a rank can start the
 * next one before the others have finished the last:
 *
 *     piece k        copied in, submitted
 *     piece k - LAG  done by now, copied out
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

/* Elements of a piece: an even share of the staging area, at most the vector. */
static uint64_t piece_of(const eni_coll *coll, const eni_coll_op *op)
{
    uint64_t room = eni_arena_count(coll->arenas[coll->config.rank]) - op->offset;
    if (room > PRIVATE_STAGE) room = PRIVATE_STAGE;
    return op->count <= room / PIECES ? op->count : room / PIECES / PIECE_MIN * PIECE_MIN;
}

en_status private_allreduce(eni_coll *coll, const eni_coll_op *op, float *data)
{
    const eni_arena *own = coll->arenas[coll->config.rank];
    const int fits = op->slot < eni_arena_nslots(own) && op->offset <= eni_arena_count(own);
    const uint64_t piece = fits ? piece_of(coll, op) : 0;
    if (op->op != EN_ALLREDUCE || (piece == 0 && op->count > 0)) {
        eni_error("coll",
                  "a private vector can be all-reduced through %d elements of an arena, and vector %u "
                  "has none at %llu",
                  PIECES * PIECE_MIN, op->slot, (unsigned long long)op->offset);
        return EN_EINVAL;
    }
    const uint64_t npieces = op->count == 0 ? 0 : (op->count + piece - 1) / piece;
    uint64_t requests[PIECES];
    for (uint64_t k = 0; k < npieces + LAG; k++) {
        eni_coll_op part = *op;
        if (k < npieces) {
            part.offset = op->offset + k % PIECES * piece;
            part.count = op->count - k * piece < piece ? op->count - k * piece : piece;
            memcpy(eni_group_vector(coll, &part), data + k * piece, part.count * sizeof *data);
            EN_TRY(eni_coll_submit(coll, &part, &requests[k % PIECES]));
        }
        if (k < LAG) continue;
        const uint64_t done = k - LAG;
        if (done >= npieces) break;
        part.offset = op->offset + done % PIECES * piece;
        part.count = op->count - done * piece < piece ? op->count - done * piece : piece;
        EN_TRY(eni_coll_wait(coll, requests[done % PIECES]));
        memcpy(data + done * piece, eni_group_vector(coll, &part), part.count * sizeof *data);
    }
    return EN_OK;
}
