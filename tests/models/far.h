/* far.h - the reference device with its memory out of the host's reach: what a GPU demands of models, on a
 * machine that has neither a GPU nor the tools for one.
 *
 *     - work is done late: when somebody synchronises, or polls an event for the second time;
 *     - device memory can be touched in work and nowhere else: a host access faults;
 *     - copies from or to host memory that is not registered, operations on host memory, and memory, plans,
 *       waiting or polling while work is captured end the test;
 *     - captured work is done as often as it is launched, and not when it is captured. */
#ifndef TESTS_MODELS_FAR_H
#define TESTS_MODELS_FAR_H

#include "entrain/device.h"

/* One context at a time. */
const en_device *far_device(void);

/* Allocations, plans and registered ranges so far, and how many of them there are now. */
typedef struct far_counts {
    int allocations, plans, live_allocations, live_plans, live_registered, live_events;
} far_counts;
far_counts far_count(void);

#endif
