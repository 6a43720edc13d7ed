/* env.h - the environment: the only folder that calls getenv. */
#ifndef CONFIG_ENV_H
#define CONFIG_ENV_H

#include <stddef.h>

#include "config/config.h"

/* ENTRAIN_PLUGIN_PATH: a folder of strategies, before the built-in one; NULL if unset or empty. */
const char *eni_env_plugin_path(void);

/* A private folder of this user for token files: $XDG_RUNTIME_DIR/entrain, else /tmp/entrain-UID. It may
 * not exist yet. EN_EINVAL, logged, when it does not fit. */
en_status eni_env_runtime_dir(char *path_out, size_t bytes);

/* Any other variable that is only shown or passed on (NO_COLOR, TERM, COLUMNS); NULL if unset or empty. */
const char *eni_env(const char *name);

/* torchrun's variables: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR with MASTER_PORT (as
 * `rendezvous`). Sets what they say on a worker's configuration; other programs are left alone. Where
 * torchrun's agent itself listens on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), the next port is taken. */
en_status eni_config_env(eni_config *config);

/* Replaces `rendezvous` by MASTER_ADDR and MASTER_PORT: what env:// asks for. EN_EINVAL, logged, when they
 * are not set. */
en_status eni_env_rendezvous(eni_config *config);

#endif
