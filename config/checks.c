/* checks.c - what the texts of some keys must look like (keys.h), and where a strategy's options begin. */
#include "config/keys.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/units.h"
#include "core/options.h"
#include "core/log.h"

en_status eni_strategy_split(const char *text, char *word_out, size_t bytes, const char **options_out)
{
    const char *colon = text + eni_spec_head(text);
    size_t length = (size_t)(colon - text);
    if (length == 0 || length >= bytes)
        return eni_fail(EN_EINVAL, "config",
                        "strategy \"%s\": its name is %s; give NAME or ./FILE.so, then :KEY=VALUE,..", text,
                        length == 0 ? "empty" : "too long");
    memcpy(word_out, text, length);
    word_out[length] = '\0';
    *options_out = *colon == ':' ? colon + 1 : colon;
    return EN_OK;
}

/* A key alone may be a boolean that is on: the strategy knows. */
const char *eni_check_strategy(const char *text)
{
    static const char expected[] = "NAME or ./FILE.so, then :KEY=VALUE,.., as ssp:bound=3";
    const char *colon = text + eni_spec_head(text);
    if (colon == text || strcmp(colon, ":") == 0) return expected;
    for (const char *part = *colon == ':' ? colon + 1 : colon; *part != '\0';) {
        size_t length = strcspn(part, ",");
        const char *mark = memchr(part, '=', length);
        if (length == 0 || mark == part || (mark != NULL && mark == part + length - 1)) return expected;
        part += length;
        if (*part == ',' && *++part == '\0') return expected;
    }
    return NULL;
}

const char *eni_check_name(const char *text)
{
    return strpbrk(text, ":=") == NULL ? NULL
                                       : "names only, as ring,ps-sync; options go with --arm=NAME:KEY=VALUE";
}

const char *eni_check_device(const char *text)
{
    int64_t index;
    if (strcmp(text, "auto") == 0 || strcmp(text, "ref") == 0 || strcmp(text, "cpu") == 0 ||
        strcmp(text, "cuda") == 0)
        return NULL;
    if (strncmp(text, "cuda:", 5) == 0 && eni_parse_i64(text + 5, &index) && index >= 0 && index < 1024)
        return NULL;
    return "auto, ref, cpu, cuda or cuda:INDEX";
}

const char *eni_check_endpoint(const char *text)
{
    static const char expected[] = "tcp://HOST:PORT with a port of 0 to 65535, as tcp://127.0.0.1:5555";
    int64_t port;
    if (strncmp(text, "tcp://", 6) != 0) return expected;
    const char *host = text + 6, *colon = strrchr(host, ':');
    if (colon == NULL || colon == host || strcspn(host, " \t/") != strlen(host)) return expected;
    bool is_bracketed = host[0] == '[' && colon[-1] == ']' && colon - host > 2;
    if (!is_bracketed && memchr(host, ':', (size_t)(colon - host)) != NULL)
        return "an IPv6 address in brackets, as tcp://[::1]:5555";
    return colon[1] != '+' && eni_parse_i64(colon + 1, &port) && port >= 0 && port <= 65535 ? NULL : expected;
}

const char *eni_check_rendezvous(const char *text)
{
    if (strcmp(text, "env://") == 0) return NULL;
    if (strncmp(text, "file:///", 8) == 0 && text[8] != '\0' && text[strlen(text) - 1] != '/') return NULL;
    const char *expected = eni_check_endpoint(text);
    return expected == NULL
               ? NULL
               : "tcp://HOST:PORT, as tcp://127.0.0.1:23456, file:///PATH of a file that all hosts "
                 "see, or env:// for MASTER_ADDR and MASTER_PORT";
}

const char *eni_check_straggler(const char *text)
{
    int64_t rank;
    double factor;
    return eni_straggler_parse(text, &rank, &factor) ? NULL
                                                     : "RANK:FACTOR with a factor of 1 to 1000, as 1:3";
}

const char *eni_check_net(const char *text)
{
    uint64_t rate;
    int64_t delay;
    const char *wrong;
    return eni_net_parse(text, &rate, &delay, &wrong)
               ? NULL
               : "rate:RATE,delay:TIME, or one of them, as rate:200MB,delay:50us or rate:1Gbit";
}

const char *eni_check_count(const char *text)
{
    int64_t count;
    return eni_parse_i64(text, &count) && count >= 1 && count <= 1024
               ? NULL
               : "whole numbers from 1 to 1024, as 1,2,4";
}

const char *eni_check_seed(const char *text)
{
    int64_t seed;
    return eni_parse_i64(text, &seed) && seed >= 0 ? NULL : "whole numbers from 0, as 1,2,3";
}

const char *eni_check_setting(const char *text)
{
    const char *seeds = strchr(text, '@');
    size_t length = seeds == NULL ? strlen(text) : (size_t)(seeds - text);
    int64_t n = 1;
    int is_known = length == 4 && (strncmp(text, "even", 4) == 0 || strncmp(text, "slow", 4) == 0);
    if (is_known && (seeds == NULL || (eni_parse_i64(seeds + 1, &n) && n >= 1))) return NULL;
    return "even, slow, even,slow, or slow@1 for the first seed only";
}

const char *eni_check_primary(const char *text)
{
    char setting[32];
    int64_t a, b;
    return eni_primary_parse(text, setting, &a, &b)
               ? NULL
               : "SETTING:ARM:ARM, two arms by their order from 1, as even:1:2";
}
