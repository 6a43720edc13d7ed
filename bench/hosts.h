/* hosts.h - ranks of a benchmark in network namespaces (created by namespaces.sh), connected over TCP. */
#ifndef BENCH_HOSTS_H
#define BENCH_HOSTS_H

#include "tests/cluster.h"

/* Shared by the ranks before they are connected; zeroed, in shared memory. */
typedef struct hosts_board {
    _Atomic int port[CLUSTER_MAX]; /* 0: not listening yet */
} hosts_board;

/* Moves this process into PREFIX-RANK, before it has a thread. 0, or -1 with a sentence on stderr. */
int hosts_enter(const char *prefix, int rank);

/* Connects this process with all other ranks: in namespaces of that prefix, or over loopback if it is NULL.
 * sockets_out[r] (n) is the connection with rank r, -1 for this one; the caller closes them. All ranks call
 * it. 0, or -1 with a sentence on stderr. */
int hosts_connect(const char *prefix, int rank, int n, hosts_board *board, int *sockets_out);

#endif
