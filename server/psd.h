/* psd.h - the parameter server as one call: leads the run, opens the shards, waits for the end.
 *
 *     main.c        flags, signals, exit code
 *     psd.c         the run: its shards, token, leader or member, end; how psd comes back
 *     setup.c       what rank 0's JOIN says about the run, and whether psd's own command says the same
 *     shard.c       one shard: a thread around the store (runtime/store/store.h)
 *     serve.c       what a shard does with a message, what it answers, and by which way
 *     shard_save.c  what a shard keeps on disk, and may promise because of it
 *     arenas.c      memory shared with the workers of this host
 *     state.c       the folder of --state: the run, the claims, two generations of each shard
 *     psd_report.c  what psd measured */
#ifndef SERVER_PSD_H
#define SERVER_PSD_H

#include "config/config.h"
#include "server/shard.h"

/* Serves one run until every worker has left. `version` is this program's, which the workers' must equal
 * (NULL: any will do); `plugins` is the folder of strategies. signal_fd becomes readable when the user
 * interrupts; `hooks` hears of the strategy's hooks (NULL: nobody does). EN_OK; EN_EINTR; EN_EINVAL,
 * EN_ENOENT (wrong use); else the run failed: the one line that says why has been logged. Leaves no file,
 * socket or thread behind. */
en_status eni_psd_run(const eni_config *config, const char *version, const char *plugins, int signal_fd,
                      eni_hook_guard *hooks);

/* psd_report.c: asks every shard and writes what they counted as text, freed with free(). `server` 0: the
 * whole report, `others` (nothers) are the parts of psd 1, 2, ..; else a part for psd 0. NULL (logged): a
 * shard did not answer, a part is none, or memory is short. Any thread but a shard's. */
char *eni_psd_report(eni_shard *const *shards, int32_t nshards, int32_t nranks, int32_t server,
                     const eni_blob *others, size_t nothers);

#endif
