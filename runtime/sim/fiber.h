/* fiber.h - a function that can be left in the middle and resumed later: a rank in virtual time.
 *
 * One scheduler, the thread that calls eni_fiber_resume, and any number of fibers on stacks of their own
 * (mmap, with a guard page below: an overflow is a fault, not a wrong number). Address and thread sanitizer
 * know of every switch. By ucontext(3). */
#ifndef SIM_FIBER_H
#define SIM_FIBER_H

#include <stdbool.h>
#include <stddef.h>

#include "entrain/status.h"

typedef struct eni_fiber eni_fiber;

/* A fiber that will run body(user) on a stack of at least stack_bytes (memory is used as it is touched).
 * It starts with the first resume. EN_ENOMEM, logged. */
en_status eni_fiber_new(void (*body)(void *user), void *user, size_t stack_bytes, eni_fiber **fiber_out);

/* Scheduler: runs the fiber until it leaves or ends. Must not be called for a fiber that has ended. */
void eni_fiber_resume(eni_fiber *fiber);

/* Within the fiber: back to the scheduler; returns with the next resume. */
void eni_fiber_leave(eni_fiber *fiber);

/* Whether body has returned. */
bool eni_fiber_has_ended(const eni_fiber *fiber);

/* Scheduler: frees the stack, also of an unfinished fiber, whose body's resources are then lost. NULL is
 * fine. */
void eni_fiber_free(eni_fiber *fiber);

#endif
