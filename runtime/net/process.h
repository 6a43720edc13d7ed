/* process.h - another process of this machine, seen from outside: whether it lives, whether it is stopped.
 *
 * A pid alone may mean another process later, or in another pid namespace. Together with the start time
 * (clock ticks after boot, field 22 of /proc/PID/stat) it is unique. */
#ifndef NET_PROCESS_H
#define NET_PROCESS_H

#include <stdint.h>

typedef enum eni_process_state {
    ENI_PROCESS_UNKNOWN, /* not on this machine, or not visible from here */
    ENI_PROCESS_RUNS,
    ENI_PROCESS_STOPPED, /* SIGSTOP, Ctrl-Z, a debugger */
    ENI_PROCESS_ENDED    /* it no longer exists, or is a zombie */
} eni_process_state;

/* When this process started; 0: not known. */
uint64_t eni_process_born(int64_t pid);

/* `born` 0: ENI_PROCESS_UNKNOWN. Reads one small file. */
eni_process_state eni_process_look(int64_t pid, uint64_t born);

/* A descriptor that becomes readable when this very process ends, whoever else holds its sockets. -1 if it
 * has ended or cannot be watched; eni_process_look says which. The caller closes it. (pidfd_open(2), which
 * old kernels lack and container filters refuse.) */
int eni_process_watch(int64_t pid, uint64_t born);

#endif
