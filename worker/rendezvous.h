/* rendezvous.h - where a run meets, and with which token; private to join.c. */
#ifndef WORKER_RENDEZVOUS_H
#define WORKER_RENDEZVOUS_H

#include "worker/worker.h"

/* Whose word it is: psd at --server when the strategy keeps its store on servers, else rank 0 at
 * --rendezvous, which starts its leader here. Fills w->token, and as leader w->leader and w->token_path.
 * *leader_out is where this rank connects. Blocks until the token is there, at most until the deadline. */
en_status eni_worker_rendezvous(eni_worker *worker, int64_t deadline_ns, eni_address *leader_out);

/* Whether rank 0 leads on all interfaces: then others reach it where they reached the leader. */
int eni_worker_leads_everywhere(const eni_worker *worker);

#endif
