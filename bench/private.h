/* private.h - the all-reduce of a vector in the caller's own memory, as MPI's contract has it, for
 * bench_allreduce --contract=private. The product does not need it: its vectors are in arenas. */
#ifndef BENCH_PRIVATE_H
#define BENCH_PRIVATE_H

#include "runtime/collective/coll.h"

/* EN_ALLREDUCE of op->count elements at `data`, in place: through a staging area in the arena, op->slot from
 * op->offset on, of which at most PRIVATE_STAGE elements are overwritten (fewer if the slot ends; at least 48
 * must exist). Its pieces are ordinary operations: counted, traced and compared with the peers' one by one.
 * EN_GRAD: some rank has samples. Blocks; allocates nothing. After a failure `data` is undefined. Returns as
 * eni_coll_run. */
#define PRIVATE_STAGE 98304u /* 384 KiB: with the peers' it fits the second-level cache */
en_status private_allreduce(eni_coll *coll, const eni_coll_op *op, float *data);

#endif
