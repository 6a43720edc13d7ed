/* process.h - another process of this machine, from outside: does it live, is it stopped.
 *
 * A number alone may mean another process later, or in another pid namespace. Together with the time of birth
 * (clock ticks after boot, field 22 of /proc/PID/stat) it means one. */
#ifndef NET_PROCESS_H
#define NET_PROCESS_H

#include <stdint.h>

typedef enum eni_process_state {
    ENI_PROCESS_UNKNOWN, /* not on this machine, or not to be seen from here */
    ENI_PROCESS_RUNS,
    ENI_PROCESS_STOPPED, /* SIGSTOP, Ctrl-Z, a debugger */
    ENI_PROCESS_ENDED    /* there is no such process any more, or it is a zombie */
} eni_process_state;

/* When this process was born; 0: not known. */
uint64_t eni_process_born(int64_t pid);

/* `born` 0: ENI_PROCESS_UNKNOWN. Reads one small file. */
eni_process_state eni_process_look(int64_t pid, uint64_t born);

/* A descriptor that becomes readable when this very process ends, whoever else holds its sockets; -1: it
 * has ended, or it cannot be watched, which eni_process_look tells apart. The caller closes it. (pidfd_open(2), which old
 * kernels do not have and filters of containers refuse) */
int eni_process_watch(int64_t pid, uint64_t born);

#endif
