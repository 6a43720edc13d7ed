/* hosts.h - ranks of a bench in network namespaces (namespaces.sh makes them), connected over TCP. */
#ifndef BENCH_HOSTS_H
#define BENCH_HOSTS_H

#include "tests/cluster.h"

/* What the ranks tell each other before they are connected; zeroed, in memory that all share. */
typedef struct hosts_board {
    _Atomic int port[CLUSTER_MAX]; /* 0: does not listen yet */
} hosts_board;

/* Moves this process into PREFIX-RANK, before it has a thread. 0, or -1 with a sentence on stderr. */
int hosts_enter(const char *prefix, int rank);

/* Connects this process with all other ranks: in namespaces of that prefix, or over loopback if it is NULL.
 * sockets_out[r] (n) is the connection with rank r, -1 for oneself; the caller's to close. All ranks call it.
 * 0, or -1 with a sentence on stderr. */
int hosts_connect(const char *prefix, int rank, int n, hosts_board *board, int *sockets_out);

#endif
