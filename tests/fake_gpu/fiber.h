/* fiber.h - a stack that can be left and gone on with: a thread of a block that waits for the others.
 *
 * On x86-64 a switch saves six registers (a block of 256 threads that sums by shuffles makes thousands);
 * elsewhere, and under sanitizers, which must be told, runtime/sim/fiber.h does it. */
#ifndef FAKE_GPU_FIBER_H
#define FAKE_GPU_FIBER_H

#include <cstddef>

namespace fake_gpu
{

struct Fiber;

/* It begins with the first resume; body never returns. */
Fiber *fiber_new(void (*body)(void *user), void *user);
void fiber_resume(Fiber *fiber); /* until it leaves */
void fiber_leave(Fiber *fiber);  /* within it */

} // namespace fake_gpu

#endif
