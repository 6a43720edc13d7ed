/* result_rank.c - what one rank reports of itself at the end; result.c makes the run's result of all. */
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/net/tcp.h"
#include "worker/result_gpu.h"

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static uint64_t max_rss_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

/* "0-1": the cores this process may run on. */
static void format_cores(char *text, size_t bytes)
{
    cpu_set_t set;
    size_t used = 0;
    text[0] = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (int c = 0; c < CPU_SETSIZE && used + 16 < bytes; c++) {
        if (!CPU_ISSET(c, &set)) continue;
        int last = c;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set))
            last++;
        used += (size_t)snprintf(text + used, bytes - used, last > c ? "%s%d-%d" : "%s%d", used ? "," : "", c,
                                 last);
        c = last;
    }
}

static void set_int(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void add_transport(const eni_worker *w, json_t *o)
{
    const eni_moved *steps = &w->tally.moved;
    eni_moved all = eni_count_moved(w);
    eni_tcp_totals kernel = {0};
    eni_tcp_count(&kernel);
    set_int(o, "payload_sent", steps->payload_sent);
    set_int(o, "payload_received", steps->payload_received);
    /* The weights' way at the start, snapshots, checkpoints. */
    set_int(o, "payload_beside_steps",
            all.payload_sent + all.payload_received - steps->payload_sent - steps->payload_received);
    set_int(o, "wire_bytes", steps->wire);
    set_int(o, "shm_bytes", steps->shm);
    set_int(o, "wire_bytes_with_start", all.wire); /* the broadcast and snapshots too: what TCP_INFO sees */
    set_int(o, "tcp_info_bytes", kernel.sent + kernel.received);
}

static void add_straggler(const eni_straggler *s, json_t *o)
{
    set_int(o, "straggler_slept_ns", (uint64_t)s->slept_ns);
    set_int(o, "straggler_pieces", s->npieces);
    set_int(o, "straggler_late", s->nlate);
    if (s->factor <= 1) return;
    const double factor = eni_straggler_factor(s);
    json_object_set_new(o, "straggler_asked", json_real(s->factor));
    json_object_set_new(o, "straggler_factor", factor > 0 ? json_real(factor) : json_null());
}

char *eni_rank_report(const eni_worker *w)
{
    const eni_tally *t = &w->tally;
    eni_host_counters host;
    char role[32], cores[128];
    snprintf(role, sizeof role, "rank %d", w->world.rank);
    format_cores(cores, sizeof cores);
    eni_host_count(w->strategy_host, &host);
    json_t *o = json_object();
    json_object_set_new(o, "role", json_string(role));
    set_int(o, "rank", (uint64_t)w->world.rank);
    set_int(o, "pid", (uint64_t)getpid());
    json_object_set_new(o, "host", json_string(w->host));
    json_object_set_new(o, "cores", json_string(cores));
    set_int(o, "steps", t->steps - t->begin_steps);
    set_int(o, "all_steps", t->steps);
    set_int(o, "samples_computed", t->samples);
    set_int(o, "data_ns", (uint64_t)t->data_ns);
    set_int(o, "compute_ns", (uint64_t)t->compute_ns);
    set_int(o, "send_ns", (uint64_t)t->send_ns);
    set_int(o, "wait_ns", (uint64_t)t->wait_ns);
    set_int(o, "update_ns", (uint64_t)t->update_ns);
    set_int(o, "hidden_ns", (uint64_t)t->hidden_ns);
    set_int(o, "step_ns", (uint64_t)t->step_ns);
    set_int(o, "clock_begin_ns", (uint64_t)t->clock_begin_ns);
    add_straggler(&w->straggler, o);
    set_int(o, "last_samples", t->last_samples);
    set_int(o, "last_correct", t->last_correct);
    json_object_set_new(o, "last_loss", isfinite(t->last_loss) ? json_real(t->last_loss) : json_null());
    set_int(o, "own_steps", host.steps);
    json_object_set_new(o, "cpu_seconds", json_real(cpu_seconds()));
    set_int(o, "max_rss", max_rss_bytes());
    set_int(o, "data_bytes", eni_dataset_bytes(w->dataset));
    json_object_set_new(o, "startup_seconds", json_real((double)t->startup_ns * 1e-9));
    add_transport(w, o);
    eni_result_gpu_rank(w, o);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}
