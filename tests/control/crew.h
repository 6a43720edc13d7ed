/* crew.h - a leader and its members in one process: each member joins in a thread of its own. Also catches
 * log lines. */
#ifndef TESTS_NET_CREW_H
#define TESTS_NET_CREW_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "runtime/control/leader.h"
#include "runtime/control/member.h"

#define CREW_MAX 8

typedef struct crew_hand {
    eni_member_config config;
    eni_member *member;
    en_status status; /* of open */
    uint64_t samples; /* noted; see crew_note */
    pthread_t thread;
} crew_hand;

typedef struct crew {
    eni_leader_config config; /* fill before crew_start */
    eni_leader *leader;
    int n;
    crew_hand hand[CREW_MAX]; /* configs are preset by crew_init: change before crew_join */
    uint64_t samples;         /* of all */
} crew;

/* Presets for n ranks on 127.0.0.1, join within 10 s, and starts catching log lines. */
void crew_init(crew *c, int n);

/* Starts the leader and points all hands at it. Returns whether it started. */
bool crew_start(crew *c);

/* Opens hands [first, first + n) at the same time and waits for all. */
void crew_join(crew *c, int first, int n);

/* All members say BYE; returns whether all could and the leader ended well. */
bool crew_bye(crew *c);

/* Closes whatever is open. */
void crew_fini(crew *c);

/* A minute from now. */
int64_t crew_soon(void);

/* Whether a text has these words, which '*' separates, in this order. */
bool crew_has(const char *text, const char *words);

/* Whether a line with these words was logged since crew_init; the same, waited for; how often a text was. */
bool crew_logged(const char *words);
bool crew_await_logged(const char *words);
int crew_count(const char *text);

/* The number right after that text, which is waited for; -1: none was logged. */
double crew_await_number(const char *text);

/* Sets that rank's step and phase, and waits until the leader knows. */
bool crew_note(crew *c, int hand, int64_t step, const char *phase);

/* A fork that joins as hand `rank` at a leader that listens on `listener` already (crew_listen), reports step
 * 41 in backward, and works until it is killed. Before any thread. With is_held a child of its own also holds
 * its connection. *ready_out becomes readable once it has joined and reported. */
pid_t crew_fork_victim(crew *c, int rank, int listener, bool is_held, int *ready_out);
int crew_listen(crew *c);
/* Closes it. Returns the child that holds the connection, or 0; -1: it has not joined, or the crew's leader,
 * if it has one here, does not know of step 41. */
pid_t crew_await_ready(crew *c, int ready);

#endif
