/* fiber.c - fibers by ucontext(3): each has a mapped stack above a guard page; resume and leave swap
 * contexts, and announce it to the sanitizers. */
#include "runtime/sim/fiber.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "core/log.h"
#include "core/memory.h"

#ifndef __has_feature /* gcc before 14 */
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define HAS_ASAN 1
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#include <sanitizer/tsan_interface.h>
#endif

struct eni_fiber {
    ucontext_t self, scheduler;
    void (*body)(void *user);
    void *user;
    char *memory; /* guard page, then the stack */
    size_t bytes, page;
    bool has_ended;
    void *tsan_self, *tsan_scheduler;
    void *asan_self;                 /* the fiber's fake stack while it is left */
    const void *asan_scheduler_base; /* the scheduler's stack, learnt at the first switch */
    size_t asan_scheduler_bytes;
};

/* ---- announcements to the sanitizers ------------------------------------------------------------------- */

/* Before a switch to `base`; fake_out NULL: the stack left behind is finished. */
static void announce_switch(void **fake_out, const void *base, size_t bytes, void *tsan_fiber)
{
#ifdef HAS_ASAN
    __sanitizer_start_switch_fiber(fake_out, base, bytes);
#endif
#ifdef HAS_TSAN
    __tsan_switch_to_fiber(tsan_fiber, 0);
#endif
    (void)fake_out, (void)base, (void)bytes, (void)tsan_fiber;
}

/* After a switch, on the new stack. */
static void confirm_switch(void *fake, const void **base_out, size_t *bytes_out)
{
#ifdef HAS_ASAN
    __sanitizer_finish_switch_fiber(fake, base_out, bytes_out);
#endif
    (void)fake, (void)base_out, (void)bytes_out;
}

/* ---- the switches -------------------------------------------------------------------------------------- */

static void leave(eni_fiber *f, bool for_good)
{
    announce_switch(for_good ? NULL : &f->asan_self, f->asan_scheduler_base, f->asan_scheduler_bytes,
                    f->tsan_scheduler);
    swapcontext(&f->self, &f->scheduler);
    confirm_switch(f->asan_self, &f->asan_scheduler_base, &f->asan_scheduler_bytes);
}

/* makecontext passes ints only: a pointer travels as two halves. */
static void enter(unsigned high, unsigned low)
{
    eni_fiber *f = (eni_fiber *)((uintptr_t)high << 32 | low);
    confirm_switch(NULL, &f->asan_scheduler_base, &f->asan_scheduler_bytes);
    f->body(f->user);
    f->has_ended = true;
    leave(f, true);
}

void eni_fiber_resume(eni_fiber *fiber)
{
    void *scheduler_fake = NULL;
#ifdef HAS_TSAN
    fiber->tsan_scheduler = __tsan_get_current_fiber();
#endif
    announce_switch(&scheduler_fake, fiber->memory + fiber->page, fiber->bytes - fiber->page,
                    fiber->tsan_self);
    swapcontext(&fiber->scheduler, &fiber->self);
    confirm_switch(scheduler_fake, NULL, NULL);
}

void eni_fiber_leave(eni_fiber *fiber)
{
    leave(fiber, false);
}

bool eni_fiber_has_ended(const eni_fiber *fiber)
{
    return fiber->has_ended;
}

/* ---- new and free -------------------------------------------------------------------------------------- */

en_status eni_fiber_new(void (*body)(void *user), void *user, size_t stack_bytes, eni_fiber **fiber_out)
{
    eni_fiber *f = eni_alloc(sizeof *f);
    if (f == NULL) return EN_ENOMEM;
    f->body = body;
    f->user = user;
    f->page = eni_page_bytes();
    f->bytes = eni_round_up(stack_bytes, f->page) + f->page;
    f->memory = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (f->memory == MAP_FAILED || mprotect(f->memory, f->page, PROT_NONE) != 0) {
        eni_error("fiber", "no stack of %zu bytes for a rank: %s", f->bytes, strerror(errno));
        if (f->memory == MAP_FAILED) f->memory = NULL;
        eni_fiber_free(f);
        return EN_ENOMEM;
    }
    getcontext(&f->self);
    f->self.uc_stack.ss_sp = f->memory + f->page;
    f->self.uc_stack.ss_size = f->bytes - f->page;
    f->self.uc_link = NULL; /* enter() leaves for good and never returns */
    const uintptr_t address = (uintptr_t)f;
    makecontext(&f->self, (void (*)(void))enter, 2, (unsigned)(address >> 32), (unsigned)address);
#ifdef HAS_TSAN
    f->tsan_self = __tsan_create_fiber(0);
#endif
    *fiber_out = f;
    return EN_OK;
}

void eni_fiber_free(eni_fiber *fiber)
{
    if (fiber == NULL) return;
#ifdef HAS_TSAN
    if (fiber->tsan_self) __tsan_destroy_fiber(fiber->tsan_self);
#endif
    if (fiber->memory != NULL) munmap(fiber->memory, fiber->bytes);
    eni_free(fiber);
}
