/* servers.h - the psds of a run: how many, and how one that was killed is started again.
 *
 * The launcher keeps the leader's listening socket, so that the address stays, and a folder for the state: in
 * --out if there is one, else a private one that is removed. */
#ifndef CLI_SERVERS_H
#define CLI_SERVERS_H

#include "cli/launch_impl.h"
#include "entrain/strategy.h"

/* EN_EINVAL, logged: flags about servers that do not go together, or with this strategy. */
en_status eni_servers_check(const eni_config *config, const en_strategy *strategy);

/* With --server-restarts: the folder for psd's state, empty. */
en_status eni_servers_open(eni_launcher *launcher);
/* Takes it away. */
void eni_servers_close(eni_launcher *launcher);

/* Whether this child, which was killed, is a psd that may be started again; then it has been. */
int eni_servers_restart(eni_launcher *launcher, const eni_child *child);

/* A psd that came back when all workers had left in good order waits for nobody. */
void eni_servers_end_with_workers(eni_launcher *launcher);

#endif
