/* env.c - see env.h. */
#include "config/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "config/checks.h"
#include "config/keys.h"
#include "config/units.h"
#include "runtime/core/log.h"
#include "runtime/core/try.h"

const char *eni_env(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

const char *eni_env_plugin_path(void)
{
    return eni_env("ENTRAIN_PLUGIN_PATH");
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

/* MASTER_ADDR and MASTER_PORT as an endpoint; found_out false if neither is set. */
static en_status master(char *text_out, size_t bytes, bool *found_out)
{
    const char *host = eni_env("MASTER_ADDR"), *port_text = eni_env("MASTER_PORT");
    *found_out = host != NULL || port_text != NULL;
    if (!*found_out) return EN_OK;
    if (host == NULL || port_text == NULL) {
        eni_error("env", "%s is set in the environment but %s is not; set both, or give --rendezvous",
                  host != NULL ? "MASTER_ADDR" : "MASTER_PORT", host != NULL ? "MASTER_PORT" : "MASTER_ADDR");
        return EN_EINVAL;
    }
    int64_t port;
    if (!eni_parse_i64(port_text, &port) || port < 1 || port > 65534) {
        eni_error("env",
                  "MASTER_PORT in the environment: \"%s\" is not a port; give a number from 1 to 65534",
                  port_text);
        return EN_EINVAL;
    }
    const char *agent = eni_env("TORCHELASTIC_USE_AGENT_STORE");
    if (agent != NULL && strcasecmp(agent, "true") == 0) port++; /* torchrun itself listens on MASTER_PORT */
    bool is_ipv6 = strchr(host, ':') != NULL && host[0] != '[';
    int length = snprintf(text_out, bytes, is_ipv6 ? "tcp://[%s]:%d" : "tcp://%s:%d", host, (int)port);
    if (length > 0 && (size_t)length < bytes && eni_check_endpoint(text_out) == NULL) return EN_OK;
    eni_error("env", "MASTER_ADDR in the environment: \"%.200s\" is not a host; give a name or an address",
              host);
    return EN_EINVAL;
}

en_status eni_env_rendezvous(eni_config *config)
{
    char endpoint[300];
    bool found;
    EN_TRY(master(endpoint, sizeof endpoint, &found));
    int k = eni_key_find("rendezvous", 10);
    if (found) return eni_key_set(config, k, endpoint, "MASTER_ADDR", config->origin[k]);
    eni_error("env",
              "--rendezvous: \"env://\" needs MASTER_ADDR and MASTER_PORT in the environment; set both, or "
              "give tcp://HOST:PORT");
    return EN_EINVAL;
}

en_status eni_config_env(eni_config *config)
{
    static const struct {
        const char *variable, *key;
    } map[] = {{"RANK", "rank"},
               {"WORLD_SIZE", "world-size"},
               {"LOCAL_RANK", "local-rank"},
               {"LOCAL_WORLD_SIZE", "local-size"}};
    if (config->program != ENI_WORKER) return EN_OK;
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++) {
        char place[64];
        const char *value = eni_env(map[i].variable);
        if (value == NULL) continue;
        snprintf(place, sizeof place, "%s in the environment", map[i].variable);
        EN_TRY(eni_key_set(config, eni_key_find(map[i].key, strlen(map[i].key)), value, place, ENI_FROM_ENV));
    }
    char endpoint[300];
    bool found;
    EN_TRY(master(endpoint, sizeof endpoint, &found));
    if (!found) return EN_OK;
    return eni_key_set(config, eni_key_find("rendezvous", 10), endpoint, "MASTER_ADDR in the environment",
                       ENI_FROM_ENV);
}
