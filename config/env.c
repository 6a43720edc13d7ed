/* env.c - see env.h. */
#include "config/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "config/checks.h"
#include "config/keys.h"
#include "config/launcher.h"
#include "config/units.h"
#include "core/log.h"
#include "core/try.h"

const char *eni_env(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

const char *eni_env_plugin_path(void)
{
    return eni_env("ENTRAIN_PLUGIN_PATH");
}

const char *eni_env_lease_dir(void)
{
    const char *given = eni_env("ENTRAIN_LEASE_DIR");
    return given != NULL ? given : "/tmp";
}

en_status eni_env_runtime_dir(char *path_out, size_t bytes)
{
    const char *base = eni_env("XDG_RUNTIME_DIR");
    int length = base != NULL ? snprintf(path_out, bytes, "%s/entrain", base)
                              : snprintf(path_out, bytes, "/tmp/entrain-%lu", (unsigned long)getuid());
    if (length > 0 && (size_t)length < bytes) return EN_OK;
    eni_error("env", "XDG_RUNTIME_DIR is longer than %zu bytes; shorten or unset it", bytes);
    return EN_EINVAL;
}

static int find_key(const char *name)
{
    return eni_key_find(name, strlen(name));
}

/* Where a launcher says that the run meets. */
typedef struct master {
    bool is_found;
    char endpoint[300];
    char place[64]; /* which variables say so */
} master;

/* torchrun's agent serves its own store on MASTER_PORT. */
static bool has_agent_store(void)
{
    const char *agent = eni_env("TORCHELASTIC_USE_AGENT_STORE");
    return agent != NULL && strcasecmp(agent, "true") == 0;
}

static en_status read_port(const char *text, int *port_out)
{
    int64_t port;
    if (!eni_parse_i64(text, &port) || port < 1 || port > 65534) {
        eni_error("env",
                  "MASTER_PORT in the environment: \"%.200s\" is not a port; give a number from 1 to 65534",
                  text);
        return EN_EINVAL;
    }
    *port_out = (int)port + has_agent_store();
    return EN_OK;
}

static en_status format_master(const char *host, int port, master *master_out)
{
    bool is_ipv6 = strchr(host, ':') != NULL && host[0] != '[';
    int length = snprintf(master_out->endpoint, sizeof master_out->endpoint,
                          is_ipv6 ? "tcp://[%s]:%d" : "tcp://%s:%d", host, port);
    master_out->is_found = length > 0 && (size_t)length < sizeof master_out->endpoint &&
                           eni_check_endpoint(master_out->endpoint) == NULL;
    if (master_out->is_found) return EN_OK;
    eni_error("env", "%s in the environment: \"%.200s\" is not a host; give a name or an address",
              master_out->place, host);
    return EN_EINVAL;
}

/* MASTER_ADDR and MASTER_PORT; where Slurm has started us, it has an answer for each. Where all ranks are on
 * one host they meet on its loopback, whatever its name means: nobody else has to reach it. */
static en_status find_master(const eni_config *config, master *master_out)
{
    const char *host = eni_env("MASTER_ADDR"), *port_text = eni_env("MASTER_PORT");
    char slurm_host[256];
    int port = 0;
    bool has_slurm = eni_slurm_speaks() && config->origin[find_key("rank")] == ENI_FROM_ENV &&
                     eni_slurm_master(slurm_host, sizeof slurm_host, &port);
    *master_out = (master){.place = "MASTER_ADDR"};
    if (host == NULL && port_text == NULL && !has_slurm) return EN_OK;
    if (!has_slurm && (host == NULL || port_text == NULL)) {
        eni_error("env", "%s is set in the environment but %s is not; set both, or give --rendezvous",
                  host != NULL ? "MASTER_ADDR" : "MASTER_PORT", host != NULL ? "MASTER_PORT" : "MASTER_ADDR");
        return EN_EINVAL;
    }
    if (host == NULL) {
        snprintf(master_out->place, sizeof master_out->place, "SLURM_STEP_NODELIST");
        host = slurm_host;
    }
    if (port_text != NULL) EN_TRY(read_port(port_text, &port));
    EN_TRY(format_master(host, port, master_out));
    bool is_alone = eni_config_is_from_env(config, "local-size") && config->world_size == config->local_size;
    return is_alone ? format_master("127.0.0.1", port, master_out) : EN_OK;
}

en_status eni_env_rendezvous(eni_config *config)
{
    master found;
    EN_TRY(find_master(config, &found));
    int k = find_key("rendezvous");
    if (found.is_found) return eni_key_set(config, k, found.endpoint, found.place, config->origin[k]);
    eni_error("env",
              "--rendezvous: \"env://\" needs MASTER_ADDR and MASTER_PORT in the environment; set both, or "
              "give tcp://HOST:PORT");
    return EN_EINVAL;
}

int eni_config_is_from_env(const eni_config *config, const char *key)
{
    int k = find_key(key);
    return k >= 0 && config->origin[k] == ENI_FROM_ENV;
}

const char *eni_env_rendezvous_note(const eni_config *config)
{
    if (!eni_config_is_from_env(config, "rendezvous")) return "";
    return eni_env("MASTER_PORT") != NULL && has_agent_store()
               ? "; the port after MASTER_PORT, which torchrun's agent holds"
               : "";
}

static en_status set_from_env(eni_config *config, const char *key, const char *value, const char *variable)
{
    char place[96];
    int k = find_key(key);
    if (config->origin[k] == ENI_FROM_FLAG) return EN_OK;
    snprintf(place, sizeof place, "%s in the environment", variable);
    return eni_key_set(config, k, value, place, ENI_FROM_ENV);
}

static en_status set_ranks(eni_config *config)
{
    eni_said said[ENI_LAUNCHERS];
    bool is_decided[ENI_SAID];
    int count = eni_launchers_read(said);
    for (int what = 0; what < ENI_SAID; what++)
        is_decided[what] = config->origin[find_key(eni_said_keys[what])] == ENI_FROM_FLAG;
    EN_TRY(eni_launchers_agree(said, count, is_decided));
    for (int what = 0; what < ENI_SAID; what++)
        for (int i = count - 1; i >= 0; i--)
            if (said[i].variable[what] != NULL)
                EN_TRY(set_from_env(config, eni_said_keys[what], said[i].text[what], said[i].variable[what]));
    return EN_OK;
}

en_status eni_config_env(eni_config *config)
{
    const char *token_file = eni_env("ENTRAIN_TOKEN_FILE");
    master found;
    if (token_file != NULL && eni_key_applies(&eni_keys[find_key("token-file")], config->program))
        EN_TRY(set_from_env(config, "token-file", token_file, "ENTRAIN_TOKEN_FILE"));
    if (config->program != ENI_WORKER) return EN_OK;
    EN_TRY(set_ranks(config));
    if (config->origin[find_key("rendezvous")] == ENI_FROM_FLAG) return EN_OK;
    EN_TRY(find_master(config, &found));
    return found.is_found ? set_from_env(config, "rendezvous", found.endpoint, found.place) : EN_OK;
}
