/* fiber.c - fibers by ucontext(3): each lies at the top of its stack, above a guard page; resume and leave swap
 * contexts, and announce it to the sanitizers. */
#include "runtime/sim/fiber.h"

#include <errno.h>
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
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#include <sanitizer/tsan_interface.h>
#endif

/* Guard pages by mprotect(2) take two mappings each, of which a Linux process has 65,530. */
enum { GUARD_INSTALL = 102 /* MADV_GUARD_INSTALL: Linux 6.13 */, MOST_PROTECTED = 8192 };

struct eni_stacks {
    char *memory; /* n times a guard page, then a stack */
    size_t stride, bytes, page;
};

struct eni_fiber {
    ucontext_t self, scheduler;
    void (*body)(void *user);
    void *user;
    char *bottom; /* of the stack */
    size_t bytes;
    bool is_running, has_ended;
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
    announce_switch(&scheduler_fake, fiber->bottom, fiber->bytes, fiber->tsan_self);
    fiber->is_running = true;
    swapcontext(&fiber->scheduler, &fiber->self);
    fiber->is_running = false;
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

bool eni_fiber_is_running(const eni_fiber *fiber)
{
    return fiber->is_running;
}

/* ---- new and free -------------------------------------------------------------------------------------- */

en_status eni_stacks_open(int32_t n, size_t bytes, eni_stacks **stacks_out)
{
    eni_stacks *s = eni_alloc(sizeof *s);
    if (s == NULL) return EN_ENOMEM;
    s->page = eni_page_bytes();
    s->stride = eni_round_up(bytes, s->page) + s->page;
    s->bytes = s->stride * (size_t)n;
    s->memory = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (s->memory == MAP_FAILED) {
        eni_error("fiber",
                  "cannot map the stacks of %d ranks, %zu MiB: %s; simulate fewer or raise ulimit -v", n,
                  s->bytes >> 20, strerror(errno));
        eni_free(s);
        return EN_ENOMEM;
    }
    madvise(s->memory, s->bytes, MADV_NOHUGEPAGE); /* one would be the memory of eight stacks */
    *stacks_out = s;
    return EN_OK;
}

void eni_stacks_close(eni_stacks *stacks)
{
    if (stacks == NULL) return;
    munmap(stacks->memory, stacks->bytes);
    eni_free(stacks);
}

eni_fiber *eni_fiber_new(eni_stacks *stacks, int32_t index, void (*body)(void *user), void *user)
{
    char *guard = stacks->memory + (size_t)index * stacks->stride;
    /* The fiber takes the top of its stack, whose page is in use in any case. */
    const size_t above = eni_round_up(sizeof(eni_fiber), ENI_LINE);
    eni_fiber *f = (eni_fiber *)(void *)(guard + stacks->stride - above);
    *f = (eni_fiber){.body = body, .user = user, .bottom = guard + stacks->page};
    f->bytes = stacks->stride - stacks->page - above;
    if (madvise(guard, stacks->page, GUARD_INSTALL) != 0 && index < MOST_PROTECTED)
        mprotect(guard, stacks->page, PROT_NONE);
    getcontext(&f->self);
    f->self.uc_stack.ss_sp = f->bottom;
    f->self.uc_stack.ss_size = f->bytes;
    f->self.uc_link = NULL; /* enter() leaves for good and never returns */
    const uintptr_t address = (uintptr_t)f;
    makecontext(&f->self, (void (*)(void))enter, 2, (unsigned)(address >> 32), (unsigned)address);
#ifdef HAS_TSAN
    f->tsan_self = __tsan_create_fiber(0);
#endif
    return f;
}

void eni_fiber_free(eni_fiber *fiber)
{
    if (fiber == NULL) return;
#ifdef HAS_TSAN
    if (fiber->tsan_self) __tsan_destroy_fiber(fiber->tsan_self);
#endif
#ifdef HAS_ASAN
    __asan_unpoison_memory_region(fiber->bottom, fiber->bytes);
#endif
}
