/* outputs.h - the folder of --out: one run or study at a time writes into it, and what it holds is not
 * replaced unless the command says so.
 *
 * Who writes it takes it first: the launcher for a run that it starts, rank 0 for one that was started by
 * hand, `entrain compare`, `scale` and `advise` for their studies. A lock on the folder itself leaves no file
 * behind, and is gone with its process. (Where a network file system cannot lock a folder, two hosts are not
 * kept apart.) */
#ifndef CONFIG_OUTPUTS_H
#define CONFIG_OUTPUTS_H

#include "config/config.h"

typedef enum eni_out_use { ENI_OUT_RUN, ENI_OUT_STUDY, ENI_OUT_TRIALS } eni_out_use;

/* Makes the folder, locks it, and looks at what it holds; nothing in it is touched. The lock lasts until
 * fd_out is closed by all who have it. EN_OK: this command may write there. What is of no use to it any more
 * is still there: eni_out_clear, once nothing can be refused.
 *
 * EN_EINVAL, logged: another run writes there, or it holds a run or study, and the command neither replaces
 * it (--overwrite) nor goes on with it (--resume).
 * EN_ESTOP, and said: what --resume=auto would go on with is finished. */
en_status eni_out_take(const eni_config *config, const char *dir, eni_out_use use, int *fd_out);

/* For who writes there beside the one that has taken it (another host's ranks): EN_ESTOP as above, else
 * EN_OK. */
en_status eni_out_ask(const eni_config *config, const char *dir);

/* Removes the files of an earlier run or study, by their names: no file that is not Entrain's, and nothing
 * behind a link. `fd` is the folder. EN_EIO, logged. */
en_status eni_out_clear(int fd, const char *dir);

/* The path of the newest checkpoint there, whole or not. EN_ENOENT, not logged: there is none. */
en_status eni_out_newest(const eni_config *config, char *path_out, size_t bytes);

/* Where this run's checkpoints lie: --checkpoint-dir, else OUT/checkpoints. EN_ENOENT: nowhere. */
en_status eni_out_checkpoints(const eni_config *config, char *dir_out, size_t bytes);

#endif
