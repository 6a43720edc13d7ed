/* url.c - see url.h. */
#include "remote/url.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/log.h"
#include "core/options.h"
#include "core/try.h"

#define DIGITS "0123456789"
#define LOWER  "abcdefghijklmnopqrstuvwxyz"
#define UPPER  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* ---- the name of an object ---- */

/* Names that both services allow: 3 to 63 lower-case letters, digits, '-' and '.', a letter or digit at both
 * ends. OSS has no '.'. */
static bool is_bucket(const char *name, size_t length, bool may_have_dots)
{
    if (length < 3 || length >= ENI_REMOTE_NAME || name[0] == '-' || name[0] == '.' ||
        name[length - 1] == '-' || name[length - 1] == '.')
        return false;
    return strspn(name, may_have_dots ? DIGITS LOWER "-." : DIGITS LOWER "-") >= length;
}

/* Letters, digits, '-' and '.', as in DNS names. */
static bool is_host(const char *name, size_t length)
{
    return length > 0 && length < ENI_REMOTE_HOST && name[0] != '.' && name[0] != '-' &&
           strspn(name, DIGITS LOWER UPPER "-.") >= length;
}

const char *eni_url_scheme(int kind)
{
    return kind == ENI_S3 ? "s3" : "oss";
}

en_status eni_remote_url_parse(const char *flag, const char *text, eni_remote_url *url_out)
{
    eni_remote_url url = {0};
    if (strncmp(text, "s3://", 5) == 0)
        url.kind = ENI_S3;
    else if (strncmp(text, "oss://", 6) == 0)
        url.kind = ENI_OSS;
    else
        return eni_fail(EN_EINVAL, "remote",
                        "%s=%.200s: unknown kind of URL; use s3://BUCKET/PREFIX, oss://BUCKET.HOST/PREFIX, "
                        "or a path of files",
                        flag, text);
    const char *rest = strchr(text, ':') + 3, *slash = strchr(rest, '/');
    const size_t head = slash != NULL ? (size_t)(slash - rest) : strlen(rest);
    const char *dot = url.kind == ENI_OSS ? memchr(rest, '.', head) : NULL;
    const size_t name = dot != NULL ? (size_t)(dot - rest) : head;
    if (!is_bucket(rest, name, url.kind == ENI_S3))
        return eni_fail(EN_EINVAL, "remote",
                        "%s=%.200s: \"%.*s\" is not a valid bucket name (3 to 63 lower-case letters, digits "
                        "and '-'); expected %s",
                        flag, text, name < 80 ? (int)name : 80, rest,
                        url.kind == ENI_S3 ? "s3://BUCKET/PREFIX" : "oss://BUCKET.HOST/PREFIX");
    memcpy(url.bucket, rest, name);
    if (url.kind == ENI_OSS) {
        if (dot == NULL || !is_host(dot + 1, head - name - 1))
            return eni_fail(EN_EINVAL, "remote",
                            "%s=%.200s has no host: write oss://%s.HOST/PREFIX, with the HOST of its region, "
                            "such as oss-cn-hangzhou.aliyuncs.com",
                            flag, text, url.bucket);
        memcpy(url.host, dot + 1, head - name - 1);
    }
    const char *key = slash != NULL ? slash + 1 : "";
    if (strlen(key) >= ENI_REMOTE_KEY || !eni_is_text(key))
        return eni_fail(EN_EINVAL, "remote",
                        "%s=%.200s: a key has at most %d bytes of UTF-8 without control characters", flag,
                        text, ENI_REMOTE_KEY - 1);
    strcpy(url.key, key);
    *url_out = url;
    return EN_OK;
}

/* ---- the destination of requests ---- */

/* A host of this machine, with or without a port. */
static bool is_loopback(const char *host)
{
    static const char *const names[] = {"localhost", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t length = strlen(names[i]);
        if (strncasecmp(host, names[i], length) == 0 && (host[length] == '\0' || host[length] == ':'))
            return true;
    }
    char number[INET_ADDRSTRLEN] = "";
    struct in_addr address;
    const size_t length = strcspn(host, ":");
    if (length < sizeof number) memcpy(number, host, length);
    return inet_pton(AF_INET, number, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

/* "HOST", "HOST:PORT", "[::1]:PORT". */
static bool is_host_and_port(const char *text, size_t length)
{
    const char *bracket = text[0] == '[' ? memchr(text, ']', length) : NULL;
    const char *after = bracket != NULL ? bracket + 1 : text, *end = text + length;
    const char *colon = memchr(after, ':', (size_t)(end - after));
    const char *name_end = colon != NULL ? colon : end;
    if (name_end == text || (text[0] == '[' && (bracket == NULL || name_end != bracket + 1))) return false;
    if (colon == NULL) return true;
    const size_t digits = strspn(colon + 1, DIGITS);
    const long port = strtol(colon + 1, NULL, 10);
    return colon + 1 + digits == end && digits > 0 && digits <= 5 && port > 0 && port < 65536;
}

static en_status read_endpoint(const char *by, const char *endpoint, eni_remote_endpoint *place)
{
    const char *host = strstr(endpoint, "://");
    place->is_plain = strncmp(endpoint, "http://", 7) == 0;
    if (host == NULL || (!place->is_plain && strncmp(endpoint, "https://", 8) != 0))
        return eni_fail(EN_EINVAL, "remote",
                        "%s=%.200s is invalid: expected https://HOST or https://HOST:PORT", by, endpoint);
    host += 3;
    const size_t length = strcspn(host, "/");
    const char *end = host + length;
    if (length == 0 || length >= sizeof place->host || (end[0] != '\0' && end[1] != '\0') ||
        strcspn(host, "@?#%\\ \t\"'<>{}|^`") < length || !eni_is_text(host) ||
        !is_host_and_port(host, length))
        return eni_fail(EN_EINVAL, "remote",
                        "%s=%.200s is invalid: expected only a host and a port, such as https://HOST:PORT; "
                        "no path, no user",
                        by, endpoint);
    memcpy(place->host, host, length);
    place->host[length] = '\0';
    if (!place->is_plain || is_loopback(place->host)) return EN_OK;
    return eni_fail(EN_EINVAL, "remote",
                    "%s=%.200s: http:// is allowed for this host only, since others could read the data on "
                    "its way; use https://%.200s",
                    by, endpoint, place->host);
}

/* "oss-cn-hangzhou-internal.aliyuncs.com" is in cn-hangzhou; "oss-accelerate.aliyuncs.com" leads to any region. */
static void region_of_host(const char *host, char region_out[ENI_REGION])
{
    static const char internal[] = "-internal", anywhere[] = "oss-accelerate";
    enum { FRONT = 4, INTERNAL = sizeof internal - 1 };
    size_t length = strcspn(host, ".");
    if (strncmp(host, "oss-", FRONT) != 0 || length >= ENI_REGION) return;
    if (strncmp(host, anywhere, sizeof anywhere - 1) == 0) return;
    if (length > INTERNAL && memcmp(host + length - INTERNAL, internal, INTERNAL) == 0) length -= INTERNAL;
    if (length <= FRONT) return;
    memcpy(region_out, host + FRONT, length - FRONT);
    region_out[length - FRONT] = '\0';
}

en_status eni_remote_endpoint_find(const eni_remote_url *url, const char *by, const char *endpoint,
                                   const char *region, eni_remote_endpoint *place_out)
{
    eni_remote_endpoint place = {0};
    if (endpoint != NULL) {
        EN_TRY(read_endpoint(by, endpoint, &place));
        place.has_bucket_in_path = true;
    }
    if (url->kind == ENI_OSS) region_of_host(url->host, place.region);
    if (region != NULL && (url->kind == ENI_S3 || place.region[0] == '\0')) {
        if (!is_host(region, strlen(region)) || strlen(region) >= sizeof place.region)
            return eni_fail(EN_EINVAL, "remote", "%s has \"%.80s\", which is not a valid region name",
                            url->kind == ENI_S3 ? "AWS_REGION, AWS_DEFAULT_REGION or the profile"
                                                : "OSS_REGION or the profile",
                            region);
        strcpy(place.region, region);
    }
    if (place.region[0] == '\0' && url->kind == ENI_OSS)
        return eni_fail(EN_EINVAL, "remote",
                        "oss://%s.%s: the host's name has no region; set OSS_REGION, such as cn-hangzhou",
                        url->bucket, url->host);
    if (place.region[0] == '\0') strcpy(place.region, "us-east-1");
    if (endpoint == NULL) {
        char host[2 * ENI_REMOTE_HOST];
        /* The wildcard in the certificates of S3 does not match a name with dots. */
        place.has_bucket_in_path = url->kind == ENI_S3 && strchr(url->bucket, '.') != NULL;
        if (url->kind == ENI_OSS)
            snprintf(host, sizeof host, "%s.%s", url->bucket, url->host);
        else
            snprintf(host, sizeof host, "%s%ss3.%s.amazonaws.com%s",
                     place.has_bucket_in_path ? "" : url->bucket, place.has_bucket_in_path ? "" : ".",
                     place.region, strncmp(place.region, "cn-", 3) == 0 ? ".cn" : "");
        if (strlen(host) >= sizeof place.host)
            return eni_fail(EN_EINVAL, "remote", "the host name \"%.200s\" is too long", host);
        strcpy(place.host, host);
    }
    *place_out = place;
    return EN_OK;
}

/* ---- encoding in URLs ---- */

bool eni_url_add(char *out, size_t bytes, const char *text, bool keeps_slash)
{
    size_t at = strlen(out);
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        const bool stays = strchr(DIGITS LOWER UPPER "-._~", c) != NULL || (keeps_slash && c == '/');
        if (at + (stays ? 1 : 3) >= bytes) return false;
        at += (size_t)snprintf(out + at, bytes - at, stays ? "%c" : "%%%02X", c);
    }
    return true;
}

bool eni_url_decode(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; from++) {
        char c = *from == '+' ? ' ' : *from;
        if (c == '%') {
            if (strspn(from + 1, DIGITS "abcdefABCDEF") < 2 ||
                sscanf(from + 1, "%2hhx", (unsigned char *)&c) != 1 || c == '\0')
                return false;
            from += 2;
        }
        *to++ = c;
    }
    *to = '\0';
    return true;
}
