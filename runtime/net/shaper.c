/* shaper.c - two time stamps, one per direction: when the emulated wire is free again. */
#include "runtime/net/shaper.h"

#include <pthread.h>
#include <stdio.h>

#include "core/memory.h"

struct eni_shaper {
    pthread_mutex_t lock; /* held for a few additions only */
    uint64_t bytes_per_s;
    int64_t delay_ns;
    int64_t egress_free_ns, ingress_free_ns;
};

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

void eni_net_describe(uint64_t bytes_per_s, int64_t delay_ns, char *text_out, size_t bytes)
{
    const double mb = (double)bytes_per_s / 1e6;
    snprintf(text_out, bytes, "%s", bytes_per_s == 0 && delay_ns == 0 ? "unchanged" : "");
    if (bytes_per_s > 0)
        eni_text_add(text_out, bytes, "%g MB/s (%g Mbit/s) each way%s", mb, 8 * mb, delay_ns > 0 ? ", " : "");
    if (delay_ns > 0) eni_text_add(text_out, bytes, "%g us more latency", (double)delay_ns / 1e3);
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

int64_t eni_shaper_first(const eni_shaper *shaper, int64_t deliver_ns, uint64_t bytes)
{
    return deliver_ns - airtime(shaper, bytes);
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
