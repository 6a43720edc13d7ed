/* outputs.h - the folder of --out: only one run or study at a time writes to it, and its contents are not replaced unless the
 * command says so.
 *
 * The writer locks it first: the launcher for a run that it starts, rank 0 for one that was started by hand, `entrain compare`,
 * `scale` and `advise` for their studies. The lock is on the folder itself, leaves no file behind, and ends with its process.
 * (If a network file system cannot lock a folder, two hosts are not kept apart.) */
#ifndef CONFIG_OUTPUTS_H
#define CONFIG_OUTPUTS_H

#include "config/config.h"

typedef enum eni_out_use { ENI_OUT_RUN, ENI_OUT_STUDY, ENI_OUT_TRIALS } eni_out_use;

/* Makes the folder, locks it, and checks its contents without changing them. The lock lasts until all holders have closed
 * fd_out. EN_OK: this command may write there. Old files are still there: call eni_out_clear once nothing can be refused.
 *
 * EN_EINVAL, logged: another run is writing there, or it has a run or study, which the command neither replaces (--overwrite)
 * nor resumes (--resume).
 * EN_ESTOP, logged: --resume=auto on a finished run. */
en_status eni_out_take(const eni_config *config, const char *dir, eni_out_use use, int *fd_out);

/* For other writers beside the lock's holder (another host's ranks): EN_ESTOP as above, else EN_OK. */
en_status eni_out_ask(const eni_config *config, const char *dir);

/* Removes the files of an earlier run or study, by their names: no file that is not Entrain's, and nothing behind a link. `fd`
 * is the folder. EN_EIO, logged. */
en_status eni_out_clear(int fd, const char *dir);

/* The path of the newest checkpoint there, complete or not. EN_ENOENT, not logged, without one. */
en_status eni_out_newest(const eni_config *config, char *path_out, size_t bytes);

/* The folder of this run's checkpoints: --checkpoint-dir, else OUT/checkpoints. EN_ENOENT: neither is set. */
en_status eni_out_checkpoints(const eni_config *config, char *dir_out, size_t bytes);

#endif
