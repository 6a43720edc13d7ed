/* env.h - the environment: the only folder that calls getenv. */
#ifndef CONFIG_ENV_H
#define CONFIG_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

/* A private folder of this user for token files: $XDG_RUNTIME_DIR/entrain, else /tmp/entrain-UID. It may
 * not exist yet. EN_EINVAL, logged, when it does not fit. */
en_status eni_env_runtime_dir(char *path_out, size_t bytes);

/* The same for who can do without it: false, and "", when it does not fit; nothing is logged. */
bool eni_env_has_runtime_dir(char *path_out, size_t bytes);

/* Where copies of what lies in buckets go: $XDG_CACHE_HOME/entrain, else $HOME/.cache/entrain; it may not exist yet.
 * EN_EINVAL, logged: neither is set, or it does not fit. */
en_status eni_env_cache_dir(char *path_out, size_t bytes);

/* Takes the keys to buckets out of the environment, and overwrites where they stood: neither children, nor a core, nor
 * /proc/PID/environ has them from now on. Main thread, before any other starts. */
void eni_env_forget_keys(void);

/* Any other variable that is only shown or passed on (NO_COLOR, TERM, COLUMNS); NULL if unset or empty. */
const char *eni_env(const char *name);

/* CUDA_VISIBLE_DEVICES; NULL: all GPUs are; "": none is. */
const char *eni_env_visible_gpus(void);

/* What the environment says, on everything that no flag has set before: ENTRAIN_TOKEN_FILE for every program
 * that has --token-file, and for a worker what launchers say: rank, world size, and where the
 * run meets, MASTER_ADDR with MASTER_PORT or Slurm's first host. Where torchrun's agent itself listens on
 * MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), the next port is taken. EN_EINVAL, logged: a variable that is
 * wrong, or launchers that disagree. */
en_status eni_config_env(eni_config *config);

/* Once all keys are known. EN_EINVAL, logged: a command that starts ranks itself on one host, started by a launcher several
 * times, so that each would be a run of its own; a worker outside of a step in a Slurm job of several tasks, but for solo. */
en_status eni_env_check_tasks(const eni_config *config);

/* Replaces `rendezvous` by MASTER_ADDR and MASTER_PORT: what env:// asks for. EN_EINVAL, logged, when they
 * are not set. */
en_status eni_env_rendezvous(eni_config *config);

/* Whether a launcher's variable has set the key, and neither file nor flag. */
bool eni_config_is_from_env(const eni_config *config, const char *key);

/* What a reader may wonder about a rendezvous that came from the environment: "" or "; the port after .." */
const char *eni_env_rendezvous_note(const eni_config *config);

/* ---- Slurm's texts; exposed for their test ---- */

/* The first name of a host list, "a[03-5,9]-ib,b" gives "a03-ib". false when it is malformed or too long. */
bool eni_slurm_first_host(const char *list, char *host_out, size_t bytes);

/* Tasks on the host number `node` (from 0), "2(x3),1" gives 2, 2, 2, 1. false when it is malformed or has
 * fewer hosts. */
bool eni_slurm_tasks_on(const char *text, int64_t node, int64_t *tasks_out);

#endif
