/* psd.h - the parameter server as one call: leads the run, opens the shards, waits for the end.
 *
 *     main.c        flags, signals, exit code
 *     psd.c         the run: its shards, token, leader or member, end; how psd comes back
 *     setup.c       the run as described by rank 0's JOIN, and whether psd's own command agrees
 *     shard.c       one shard: a thread around the store (runtime/store/store.h)
 *     serve.c       a shard's messages, its answers, and the way they take
 *     shard_save.c  a shard's state on disk, and the promises it allows
 *     arenas.c      memory shared with the workers of this host
 *     state.c       the folder of --state: the run, the claims, two generations of each shard
 *     psd_report.c  psd's measurements */
#ifndef SERVER_PSD_H
#define SERVER_PSD_H

#include "config/config.h"
#include "server/shard.h"

/* Serves one run until every worker has left. `version` is this program's, which the workers' must equal
 * (NULL: not checked); `plugins` is the folder of strategies. signal_fd becomes readable when the user
 * interrupts; `hooks` watches the strategy's hooks (NULL: unwatched). EN_OK; EN_EINTR; EN_EINVAL, EN_ENOENT
 * (wrong use); else the run failed, and the reason has been logged in one line. Leaves no file, socket or
 * thread behind. */
en_status eni_psd_run(const eni_config *config, const char *version, const char *plugins, int signal_fd,
                      eni_hook_guard *hooks);

/* psd_report.c: asks every shard and writes their counts as text, freed with free(). `server` 0: the whole
 * report, `others` (nothers) are the parts of psd 1, 2, ..; else a part for psd 0. NULL (logged): a shard did
 * not answer, a part is invalid, or memory is short. Any thread but a shard's. */
char *eni_psd_report(eni_shard *const *shards, int32_t nshards, int32_t nranks, int32_t server,
                     const eni_blob *others, size_t nothers);

#endif
