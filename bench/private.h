/* private.h - the all-reduce of a vector that lies in the caller's own memory, as MPI's contract has it: what
 * bench_allreduce --contract=private times. The product has no use for it: its vectors lie in arenas. */
#ifndef BENCH_PRIVATE_H
#define BENCH_PRIVATE_H

#include "runtime/collective/coll.h"

/* EN_ALLREDUCE of op->count elements at `data`, in place: through a staging place in the arena, op->slot from
 * op->offset on, of which at most PRIVATE_STAGE elements are overwritten (fewer where the slot ends; at least
 * 48 must be there). Pieces of it are operations like any other: counted, traced and compared with the peers'
 * one by one. Blocks; nothing is allocated. After a failure `data` is undefined. As eni_coll_run. */
#define PRIVATE_STAGE 98304u /* 384 KiB: with the peers' it stays in the second-level cache */
en_status private_allreduce(eni_coll *coll, const eni_coll_op *op, float *data);

#endif
