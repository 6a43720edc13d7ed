/* shaper.c - see shaper.h. */
#include "runtime/net/shaper.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/core/log.h"
#include "runtime/core/memory.h"

struct eni_shaper {
    pthread_mutex_t lock; /* held for a few additions only */
    uint64_t bytes_per_s;
    int64_t delay_ns;
    int64_t egress_free_ns, ingress_free_ns;
};

typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit rate_units[] = {
    {"B", 1},         {"kB", 1e3},         {"MB", 1e6},       {"GB", 1e9},       {"KiB", 1024},
    {"MiB", 1048576}, {"GiB", 1073741824}, {"kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8},
    {NULL, 0}};
static const unit delay_units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};

/* "200MB" in units of the table; false when it is not a positive number with a known unit. */
static bool parse_quantity(const char *text, size_t bytes, const unit *units, double *value_out)
{
    char copy[32];
    if (bytes == 0 || bytes >= sizeof copy) return false;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    char *end;
    double value = strtod(copy, &end);
    if (end == copy || !isfinite(value) || value < 0) return false;
    for (; units->name != NULL; units++)
        if (strcmp(end, units->name) == 0) {
            *value_out = value * units->factor;
            return *value_out < 9e18;
        }
    return false;
}

static en_status refuse(const char *part, size_t bytes)
{
    eni_error(
        "shaper",
        "--net: '%.*s' is not understood: write rate:200MB,delay:1ms (rates per second in kB MB GB Mbit "
        "Gbit, delays in us ms s), or none",
        (int)bytes, part);
    return EN_EINVAL;
}

en_status eni_shaper_parse(const char *text, uint64_t *bytes_per_s_out, int64_t *delay_ns_out)
{
    double rate = 0, delay = 0;
    for (const char *part = text; strcmp(text, "none") != 0;) {
        size_t bytes = strcspn(part, ",");
        bool is_rate = strncmp(part, "rate:", 5) == 0, is_delay = strncmp(part, "delay:", 6) == 0;
        bool is_good = (is_rate && parse_quantity(part + 5, bytes - 5, rate_units, &rate) && rate >= 1) ||
                       (is_delay && parse_quantity(part + 6, bytes - 6, delay_units, &delay));
        if (!is_good) return refuse(part, bytes < 60 ? bytes : 60);
        if (part[bytes] == '\0') break;
        part += bytes + 1;
    }
    *bytes_per_s_out = (uint64_t)llround(rate);
    *delay_ns_out = (int64_t)llround(delay);
    return EN_OK;
}

eni_shaper *eni_shaper_new(uint64_t bytes_per_s, int64_t delay_ns)
{
    eni_shaper *shaper = eni_alloc(sizeof *shaper);
    if (shaper == NULL) return NULL;
    pthread_mutex_init(&shaper->lock, NULL);
    shaper->bytes_per_s = bytes_per_s;
    shaper->delay_ns = delay_ns;
    return shaper;
}

void eni_shaper_free(eni_shaper *shaper)
{
    if (shaper == NULL) return;
    pthread_mutex_destroy(&shaper->lock);
    eni_free(shaper);
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Nanoseconds that `bytes` occupy the NIC. */
static int64_t airtime(const eni_shaper *shaper, uint64_t bytes)
{
    return shaper->bytes_per_s == 0 ? 0 : (int64_t)((double)bytes * 1e9 / (double)shaper->bytes_per_s);
}

int64_t eni_shaper_send(eni_shaper *shaper, int64_t now_ns, uint64_t bytes)
{
    if (shaper == NULL) return 0;
    pthread_mutex_lock(&shaper->lock);
    shaper->egress_free_ns = later(now_ns, shaper->egress_free_ns) + airtime(shaper, bytes);
    int64_t deliver_ns = shaper->egress_free_ns + shaper->delay_ns;
    pthread_mutex_unlock(&shaper->lock);
    return deliver_ns;
}

int64_t eni_shaper_recv(eni_shaper *shaper, int64_t deliver_ns, uint64_t bytes)
{
    if (shaper == NULL || deliver_ns == 0) return deliver_ns;
    int64_t in = airtime(shaper, bytes);
    pthread_mutex_lock(&shaper->lock);
    int64_t ready_ns = later(shaper->ingress_free_ns, deliver_ns - in) + in;
    shaper->ingress_free_ns = ready_ns;
    pthread_mutex_unlock(&shaper->lock);
    return ready_ns;
}
