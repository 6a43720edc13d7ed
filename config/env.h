/* env.h - the environment: only this folder calls getenv. */
#ifndef CONFIG_ENV_H
#define CONFIG_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

/* A private folder of this user for token files: $XDG_RUNTIME_DIR/entrain, else /tmp/entrain-UID. May not exist yet. EN_EINVAL,
 * logged, if it does not fit. */
en_status eni_env_runtime_dir(char *path_out, size_t bytes);

/* The same for optional use: false, and "", if it does not fit; logs nothing. */
bool eni_env_has_runtime_dir(char *path_out, size_t bytes);

/* The same with the value of that variable; NULL: not set. */
bool eni_env_runtime_dir_in(const char *base, char *path_out, size_t bytes);

/* The folder for local copies of object storage: $XDG_CACHE_HOME/entrain, else $HOME/.cache/entrain; may not exist yet.
 * EN_EINVAL, logged: neither is set, or it does not fit. */
en_status eni_env_cache_dir(char *path_out, size_t bytes);

/* Removes the keys of object storage from the environment and overwrites their memory: neither children, nor a core, nor
 * /proc/PID/environ have them from now on. Main thread, before any other starts. */
void eni_env_forget_keys(void);

/* Another variable that is only shown or passed on (NO_COLOR, TERM, COLUMNS); NULL if unset or empty. */
const char *eni_env(const char *name);

/* The variable by which our launcher passes settings to a program, one a line. */
#define ENI_ENV_SETTINGS "ENTRAIN_SETTINGS"

/* CUDA_VISIBLE_DEVICES; NULL: all GPUs are visible; "": none. */
const char *eni_env_visible_gpus(void);

/* Applies the environment to all keys not set by a flag: ENTRAIN_TOKEN_FILE for every program with --token-file, and for a
 * worker its launchers' values: rank, world size, and the meeting point, MASTER_ADDR with MASTER_PORT or Slurm's first host. If
 * torchrun's agent itself listens on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), takes the next port. EN_EINVAL, logged: an
 * invalid variable, or launchers that disagree. */
en_status eni_config_env(eni_config *config);

/* Call it once all keys are known. EN_EINVAL, logged: a command that starts ranks on one host, itself started several times by
 * a launcher, so that each would be a separate run; a worker outside of a step in a Slurm job of several tasks, except solo. */
en_status eni_env_check_tasks(const eni_config *config);

/* Replaces `rendezvous` by MASTER_ADDR and MASTER_PORT, as env:// requests. EN_EINVAL, logged, if they are not set. */
en_status eni_env_rendezvous(eni_config *config);

/* Whether the key comes from a launcher's variable, not from a file or flag. */
bool eni_config_is_from_env(const eni_config *config, const char *key);

/* An explanation of a rendezvous from the environment: "" or "; the port after .." */
const char *eni_env_rendezvous_note(const eni_config *config);

/* ---- Slurm's formats; public for their test ---- */

/* The first name of a host list: "a[03-5,9]-ib,b" gives "a03-ib". false if it is malformed or too long. */
bool eni_slurm_first_host(const char *list, char *host_out, size_t bytes);

/* Tasks on host number `node` (from 0): "2(x3),1" gives 2, 2, 2, 1. false if it is malformed or has fewer hosts. */
bool eni_slurm_tasks_on(const char *text, int64_t node, int64_t *tasks_out);

#endif
