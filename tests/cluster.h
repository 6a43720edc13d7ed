/* cluster.h - N ranks as N processes: run a function in each, let one die, collect how all ended.
 *
 * Ranks are forked from the test, before it has any thread, and inherit what the test prepared: arenas,
 * sockets, memory. A rank fails by returning non-zero (CLUSTER_CHECK), never by a cmocka assertion. */
#ifndef TESTS_CLUSTER_H
#define TESTS_CLUSTER_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "entrain/status.h"

#define CLUSTER_MAX 16

typedef struct cluster_board { /* shared by the test and all ranks */
    _Atomic int victim;        /* the first rank that was killed; -1: none */
    _Atomic int64_t killed_ns; /* when the test noticed */
    _Atomic uint64_t word[8];  /* the test's own */
} cluster_board;

struct cluster {
    int n;
    cluster_board *board;
    int exit_code[CLUSTER_MAX]; /* 0 .. 255; 128 + signal; -1: stopped at the deadline */
};

typedef int (*cluster_main)(int rank, int n, cluster_board *board, void *user);

/* Forks n ranks, runs `main` in each and waits for all, at most deadline_ms; who is left then is killed.
 * Returns the number of ranks that did not exit with 0. */
int cluster_run(struct cluster *cluster, int n, cluster_main main, void *user, int deadline_ms);

void cluster_close(struct cluster *cluster);

/* A stand-in for the control plane: EN_EPEER once a rank was killed. `user` is the board. */
en_status cluster_alive(void *user);

/* Whether the word becomes at least `want` within 20 s. What a rank does next is then not too early. */
int cluster_await(const _Atomic uint64_t *word, uint64_t want);

/* pairs[a][b] is rank a's end of a TCP connection over loopback between a and b; [a][a] is -1. 0 on success.
 */
int cluster_connect(int n, int pairs[CLUSTER_MAX][CLUSTER_MAX]);

/* Closes the ends of all ranks but `rank` (-1: of all): every rank does it first, so that a death is seen. */
void cluster_keep(int n, int pairs[CLUSTER_MAX][CLUSTER_MAX], int rank);

#define CLUSTER_CHECK(claim)                                                                                 \
    do {                                                                                                     \
        if (!(claim)) {                                                                                      \
            fprintf(stderr, "%s:%d: rank %d: not so: %s\n", __FILE__, __LINE__, rank, #claim);               \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

#endif
