/* ask.h - what somebody outside a run wants of it: one message to its leader on a connection of its own, and one
 * answer. Who asks needs the run's token (`entrain join`, `entrain leave`). */
#ifndef CONTROL_ASK_H
#define CONTROL_ASK_H

#include "runtime/control/control.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

typedef enum eni_ask_kind {
    ENI_ASK_RESIZE = 1, /* an elastic run: so many more workers; below 0: one fewer */
    ENI_ASK_LEAVE = 2   /* a run with places: the rank that is to leave */
} eni_ask_kind;

/* Blocks until the deadline at most. EN_OK: it will be so, and why_out says with how many workers, and why
 * with fewer than were asked for ("": nothing changes). What the leader said, not logged: its status, with its
 * sentence in why_out. Logged: EN_ETIMEOUT and others, when it could not be asked. */
en_status eni_ask(const eni_address *leader, const eni_token *token, eni_ask_kind kind, int64_t number,
                  int64_t deadline_ns, char why_out[ENI_REASON_MAX]);

#endif
