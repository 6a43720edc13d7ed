/* machine.h - what other processes did on the machine during a run (docs/measurement.md, "The machine"). */
#ifndef CLI_LAUNCHER_MACHINE_H
#define CLI_LAUNCHER_MACHINE_H

#include <stdint.h>

/* At one moment: the processor seconds that all processes have used since the machine started, stolen time
 * included, and those of this process with the children that it has waited for. */
typedef struct eni_machine {
    double used, own;
    int64_t ns;
    int cores; /* of the whole machine; 0: /proc/stat does not say */
} eni_machine;

eni_machine eni_machine_now(void);

/* The share of all cores that processes outside this one's tree took between two moments, from 0 to 1. NAN if
 * unknown: /proc/stat does not say, or the time is too short for its counters (six, each rounded to 10 ms),
 * under 1.2 s on one core or 0.6 s on two. */
double eni_machine_outside(const eni_machine *before, const eni_machine *after);

/* The load average of the last minute; negative when the system does not say. */
double eni_machine_load(void);

#endif
