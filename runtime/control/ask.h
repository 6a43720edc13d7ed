/* ask.h - a request from outside a run: one message to its leader on a connection of its own, and one answer.
 * The sender needs the run's token (`entrain join`, `entrain leave`, and a launcher whose ranks are programs). */
#ifndef CONTROL_ASK_H
#define CONTROL_ASK_H

#include "runtime/control/control.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

typedef enum eni_ask_kind {
    ENI_ASK_RESIZE = 1, /* an elastic run: this many more workers; below 0: one fewer */
    ENI_ASK_LEAVE = 2,  /* a run with seats: the rank that is to leave */
    ENI_ASK_STOP = 3    /* an early end in good order; the number is not used */
} eni_ask_kind;

/* `leader`: where it listens, 0.0.0.0 too if that is here. Blocks until the deadline at most. EN_OK: accepted; why_out says how many workers the run will have, and
 * why if they are fewer than asked for ("": nothing changes). A refusal is returned with the leader's status,
 * its sentence in why_out, and is not logged. Logged: EN_ETIMEOUT and others, when the leader could not be
 * asked. */
en_status eni_ask(const eni_address *leader, const eni_token *token, eni_ask_kind kind, int64_t number,
                  int64_t deadline_ns, char why_out[ENI_REASON_MAX]);

#endif
