/* fiber.h - a function that can be left in the middle and resumed later: a rank in virtual time.
 *
 * One scheduler, the thread that calls eni_fiber_resume, and any number of fibers on stacks of their own, which lie side
 * by side in one mapping, each above a guard page: an overflow is a fault, not a wrong number. (Before Linux 6.13 only the
 * first 8,192 stacks have one; all ranks run the same hooks.) Address and thread sanitizer know of every switch. By
 * ucontext(3). */
#ifndef SIM_FIBER_H
#define SIM_FIBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

typedef struct eni_stacks eni_stacks;
typedef struct eni_fiber eni_fiber;

/* `n` stacks of at least `bytes` each (memory is used as it is touched). EN_ENOMEM, logged. */
en_status eni_stacks_open(int32_t n, size_t bytes, eni_stacks **stacks_out);

/* After the last fiber was freed. NULL is fine. */
void eni_stacks_close(eni_stacks *stacks);

/* A fiber that will run body(user) on stack `index`, which no other fiber uses. It starts with the first resume. Does
 * not fail. */
eni_fiber *eni_fiber_new(eni_stacks *stacks, int32_t index, void (*body)(void *user), void *user);

/* Scheduler: runs the fiber until it leaves or ends. Must not be called for a fiber that has ended. */
void eni_fiber_resume(eni_fiber *fiber);

/* Within the fiber: back to the scheduler; returns with the next resume. */
void eni_fiber_leave(eni_fiber *fiber);

/* Whether body has returned. */
bool eni_fiber_has_ended(const eni_fiber *fiber);

/* Whether the caller runs in it, and so may leave. */
bool eni_fiber_is_running(const eni_fiber *fiber);

/* Scheduler: the stack may serve another fiber; also of an unfinished one, whose body's resources are then lost. NULL is
 * fine. */
void eni_fiber_free(eni_fiber *fiber);

#endif
