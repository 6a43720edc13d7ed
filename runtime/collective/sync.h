/* sync.h - flags in shared memory: one rank sets, the others wait, and a dead rank ends the wait.
 *
 * A flag only grows. With the membership epoch in its upper bits and a sequence number in the lower, flags
 * left over from an earlier epoch are simply small. */
#ifndef COLLECTIVE_SYNC_H
#define COLLECTIVE_SYNC_H

#include <stdatomic.h>
#include <stdint.h>

#include "entrain/status.h"

#define ENI_ALIVE_SLICE_MS 20 /* the longest sleep between two looks at who is alive */

/* Liveness of the peers. `status` is called from any thread, at least every 20 ms during a wait, and must not
 * block: EN_OK, or the status that the wait is to return (EN_EPEER, EN_EMEMBER, EN_ESTOP, EN_EINTR). NULL:
 * all are alive. */
typedef struct eni_alive {
    en_status (*status)(void *user);
    void *user;
    int fd; /* becomes readable when status changes, so that a wait on sockets ends at once; -1: none */
} eni_alive;

static inline en_status eni_alive_status(const eni_alive *alive)
{
    return alive->status ? alive->status(alive->user) : EN_OK;
}

typedef struct eni_flag {
    _Atomic uint64_t value;    /* the futex word is its lower half */
    _Atomic uint32_t sleepers; /* to be woken; too high after a sleeper has died, which costs a call */
    uint32_t unused;
} eni_flag;

static inline uint64_t eni_flag_get(const eni_flag *flag)
{
    return atomic_load_explicit(&flag->value, memory_order_acquire);
}

/* Everything written before is visible to whoever sees `value`. Wakes the sleepers. */
void eni_flag_set(eni_flag *flag, uint64_t value);

/* The same, one more than before; several threads may do it at once. */
void eni_flag_add(eni_flag *flag);

/* Waits until the flag is at least `want`: spins for spin_ns (0 when ranks share cores: a spinning rank would
 * keep the other from arriving), yields for up to a millisecond, then sleeps. A negative spin_ns takes from
 * that millisecond: -ENI_MILLI sleeps at once. EN_OK, `alive`'s status, or EN_ETIMEOUT 20 ms after until_ns
 * at the latest (INT64_MAX: never). */
en_status eni_flag_await(eni_flag *flag, uint64_t want, int64_t spin_ns, int64_t until_ns,
                         const eni_alive *alive);

#endif
