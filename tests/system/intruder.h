/* intruder.h - a process of this host that wants to do harm to a run: it knows all ports and sockets of the
 * run and the whole protocol, but not the job token; or, as a confused member, the token and nothing else. */
#ifndef TESTS_SYSTEM_INTRUDER_H
#define TESTS_SYSTEM_INTRUDER_H

#include <stdint.h>
#include <sys/types.h>

#include "runtime/net/token.h"

enum { INTRUDER_VICTIMS = 4, INTRUDER_IDLE = 1000 };

typedef struct intruder intruder;

typedef struct intruder_report {
    uint64_t attacks;     /* of any kind, on any port or socket */
    uint64_t connections; /* made */
    uint64_t bytes;       /* sent */
    int ports, sockets;   /* different ones that were attacked */
    uint64_t growth;      /* most that one victim's resident memory grew, in bytes, since it was added */
} intruder_report;

/* `token` is the confused member's; it never sends a HELLO in which rank, epoch, incarnation and shard are
 * all right. NULL: no one has it. Starts a thread. */
intruder *intruder_start(const eni_token *token);

/* A process whose TCP ports and abstract sockets are attacked from now on, those that it opens later too. */
void intruder_add(intruder *who, pid_t victim);

/* The number of attacks so far. */
uint64_t intruder_attacks(intruder *who);

intruder_report intruder_stop(intruder *who);

#endif
