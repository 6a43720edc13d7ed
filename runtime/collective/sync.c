/* sync.c - spins for a while, then sleeps on a futex; checks now and then whether to give up. */
#include "runtime/collective/sync.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the futex word is the lower half of the value");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "flags between processes need lock-free atomics");

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wake(eni_flag *flag)
{
    syscall(SYS_futex, (uint32_t *)&flag->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps while the lower half is still `seen`, for one slice at most. */
static void futex_sleep(eni_flag *flag, uint32_t seen)
{
    const struct timespec slice = {0, ENI_ALIVE_SLICE_MS * ENI_MILLI};
    syscall(SYS_futex, (uint32_t *)&flag->value, FUTEX_WAIT, seen, &slice, NULL, 0);
}

/* Store, then look for sleepers; a sleeper counts itself, then looks at the value. Both sequentially
 * consistent, so at least one of the two sees the other. */
void eni_flag_set(eni_flag *flag, uint64_t value)
{
    atomic_store(&flag->value, value);
    if (atomic_load(&flag->sleepers) != 0) futex_wake(flag);
}

void eni_flag_add(eni_flag *flag)
{
    atomic_fetch_add(&flag->value, 1);
    if (atomic_load(&flag->sleepers) != 0) futex_wake(flag);
}

en_status eni_flag_await(eni_flag *flag, uint64_t want, int64_t spin_ns, int64_t until_ns,
                         const eni_alive *alive)
{
    enum { LOOKS = 16 }; /* between two looks at the clock */
    const int64_t begin_ns = eni_now_ns();
    for (int64_t now_ns = begin_ns; now_ns < begin_ns + spin_ns; now_ns = eni_now_ns())
        for (int i = 0; i < LOOKS; i++) {
            if (eni_flag_get(flag) >= want) return EN_OK;
            cpu_relax();
        }
    do {
        if (eni_flag_get(flag) >= want) return EN_OK;
        sched_yield();
    } while (eni_now_ns() < begin_ns + spin_ns + ENI_MILLI);

    for (;;) {
        if (eni_flag_get(flag) >= want) return EN_OK;
        en_status st = eni_alive_status(alive);
        if (st == EN_OK && until_ns != INT64_MAX && eni_now_ns() >= until_ns) st = EN_ETIMEOUT;
        if (st != EN_OK)
            return eni_flag_get(flag) >= want ? EN_OK : st; /* a dying peer's last set still counts */
        atomic_fetch_add(&flag->sleepers, 1);
        const uint64_t seen = atomic_load(&flag->value);
        if (seen < want) futex_sleep(flag, (uint32_t)seen);
        atomic_fetch_sub(&flag->sleepers, 1);
    }
}
