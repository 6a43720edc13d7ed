/* address.c - the text of addresses; see tcp.h. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "runtime/net/tcp.h"

/* Splits "host:port" and "[v6]:port"; false when it is neither. The pointers are into `text`. */
static bool split(const char *text, const char **host, size_t *host_bytes, const char **port)
{
    if (text[0] == '[') {
        const char *close = strchr(text, ']');
        if (close == NULL || close[1] != ':') return false;
        *host = text + 1;
        *host_bytes = (size_t)(close - text - 1);
        *port = close + 2;
    } else {
        const char *colon = strchr(text, ':');
        if (colon == NULL || strchr(colon + 1, ':') != NULL) return false;
        *host = text;
        *host_bytes = (size_t)(colon - text);
        *port = colon + 1;
    }
    for (size_t i = 0; i < *host_bytes; i++) { /* names, numbers, IPv6 with %scope; or * for all */
        const char c = (*host)[i];
        bool is_word = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
        if (!is_word && memchr(".-_:%*", c, 6) == NULL) return false;
    }
    return *host_bytes > 0 && *host_bytes < ENI_HOST_MAX;
}

static bool parse_port(const char *text, uint16_t *port_out)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0') return false;
    long port = strtol(text, NULL, 10);
    if (port > UINT16_MAX) return false;
    *port_out = (uint16_t)port;
    return true;
}

en_status eni_address_parse(const char *text, eni_address *address_out)
{
    static const char scheme[] = "tcp://";
    const char *rest = strncmp(text, scheme, strlen(scheme)) == 0 ? text + strlen(scheme) : text;
    const char *host, *port_text;
    size_t host_bytes;
    uint16_t port;
    if (!split(rest, &host, &host_bytes, &port_text) || !parse_port(port_text, &port)) {
        eni_error("address",
                  "'%.300s' is not an address: write tcp://HOST:PORT, for example tcp://127.0.0.1:5555",
                  text);
        return EN_EINVAL;
    }
    if (host_bytes == 1 && host[0] == '*') { /* ZeroMQ's way to say all interfaces */
        host = "0.0.0.0";
        host_bytes = strlen(host);
    }
    eni_address address = {.port = port};
    memcpy(address.host, host, host_bytes);
    struct in_addr short_form, full;
    if (inet_aton(address.host, &short_form) != 0 && inet_pton(AF_INET, address.host, &full) != 1) {
        char read_as[INET_ADDRSTRLEN];
        inet_ntop(AF_INET, &short_form, read_as, sizeof read_as);
        eni_error("address",
                  "'%.300s': the host '%.64s' would be read as the address %s; write an address with four "
                  "numbers, or a name",
                  text, address.host, read_as);
        return EN_EINVAL;
    }
    *address_out = address;
    return EN_OK;
}

void eni_address_format(const eni_address *address, char text_out[ENI_ADDRESS_TEXT])
{
    bool is_v6 = strchr(address->host, ':') != NULL;
    snprintf(text_out, ENI_ADDRESS_TEXT, is_v6 ? "tcp://[%s]:%u" : "tcp://%s:%u", address->host,
             address->port);
}

bool eni_address_is_loopback(const eni_address *address)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address->host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, address->host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
    return strcmp(address->host, "localhost") == 0;
}

bool eni_address_is_anywhere(const eni_address *address)
{
    return strcmp(address->host, "0.0.0.0") == 0 || strcmp(address->host, "::") == 0;
}
