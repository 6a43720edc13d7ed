/* slice.c - sets this thread's time slice by sched_setattr(2), if the kernel supports it. */
#include "core/slice.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"

/* sched_setattr(2). glibc has had the struct only since 2.41. */
typedef struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns; /* SCHED_OTHER: length of a slice; 0: default */
    uint64_t deadline_ns, period_ns;
} attributes;

void eni_slice_ask(bool is_short)
{
    attributes a;
    memset(&a, 0, sizeof a);
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || a.policy != SCHED_OTHER) return;
    a.size = sizeof a;
    a.runtime_ns = is_short ? ENI_MILLI / 10 : 0; /* the minimum */
    syscall(SYS_sched_setattr, 0, &a, 0);
}
