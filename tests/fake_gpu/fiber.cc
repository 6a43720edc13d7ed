#include "tests/fake_gpu/fiber.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

/* switch_stack(&save, to): pushes what a callee must keep, changes stacks, pops. */
asm(".text\n"
    ".p2align 4\n"
    ".type fake_gpu_switch_stack, @function\n"
    "fake_gpu_switch_stack:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size fake_gpu_switch_stack, .-fake_gpu_switch_stack\n");
extern "C" __attribute__((visibility("hidden"))) void fake_gpu_switch_stack(void **save, void *to);

namespace fake_gpu
{

namespace
{
constexpr size_t page = 4096, stack_bytes = 64 << 10;
}

struct Fiber {
    void *self, *caller; /* stack pointers of who is away */
    void (*body)(void *user);
    void *user;
};

static Fiber *starting;

static void enter()
{
    Fiber *fiber = starting;
    fiber->body(fiber->user);
    abort();
}

Fiber *fiber_new(void (*body)(void *user), void *user)
{
    char *memory = (char *)mmap(NULL, page + stack_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
        perror("fake_gpu: a stack for a thread");
        abort();
    }
    /* as if enter had been left: six registers, where to go on, a slot that keeps the stack aligned */
    void **top = (void **)(memory + page + stack_bytes) - 8;
    for (int i = 0; i < 8; i++)
        top[i] = NULL;
    top[6] = (void *)enter;
    return new Fiber{top, NULL, body, user};
}

void fiber_resume(Fiber *fiber)
{
    starting = fiber;
    fake_gpu_switch_stack(&fiber->caller, fiber->self);
}

void fiber_leave(Fiber *fiber)
{
    fake_gpu_switch_stack(&fiber->self, fiber->caller);
}

} // namespace fake_gpu

#else

extern "C" {
#include "runtime/sim/fiber.h"
}

namespace fake_gpu
{

struct Fiber {
    eni_stacks *stacks; /* of one stack: kernels come in blocks of any number of threads */
    eni_fiber *fiber;
};

Fiber *fiber_new(void (*body)(void *user), void *user)
{
    Fiber *fiber = new Fiber;
    if (eni_stacks_open(1, 256 << 10, &fiber->stacks) != EN_OK) abort();
    fiber->fiber = eni_fiber_new(fiber->stacks, 0, body, user);
    return fiber;
}

void fiber_resume(Fiber *fiber)
{
    eni_fiber_resume(fiber->fiber);
}

void fiber_leave(Fiber *fiber)
{
    eni_fiber_leave(fiber->fiber);
}

} // namespace fake_gpu

#endif
