/* psd.h - the parameter server as one call: leads the run, opens the lanes, waits for the end.
 *
 *     main.c     flags, signals, exit code
 *     psd.c      the run: token, leader, lanes, report
 *     setup.c    what rank 0's JOIN says about it
 *     agree.c    whether psd's own command says the same
 *     lane.c     one shard: a thread around the store (runtime/comm/store.h)
 *     serve.c    what a lane does with a message
 *     arenas.c   the workers' memory, on this host
 *     report.c   what psd measured */
#ifndef SERVER_PSD_H
#define SERVER_PSD_H

#include "config/config.h"

/* Serves one run until every worker has left. `version` is this program's, which the workers' must equal (NULL:
 * any will do); `plugins` is the folder of strategies. signal_fd becomes
 * readable when the user interrupts. EN_OK; EN_EINTR; EN_EINVAL, EN_ENOENT (wrong use); else the run failed:
 * the one line that says why has been logged. Leaves no file, socket or thread behind. */
en_status eni_psd_run(const eni_config *config, const char *version, const char *plugins, int signal_fd);

#endif
