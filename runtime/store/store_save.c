/* store_save.c - a store as bytes, and back (store_save.h).
 *
 * One list of fields for both ways: `field` writes it when a store is saved, and reads it when one is loaded.
 * The bytes come from a file and are not trusted: every length is checked against the bytes left, every number
 * against the store's invariants. `expect` makes such a check; saving makes none. */
#include "runtime/store/store_save.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

enum { PIECE = 64 * 1024 };

typedef struct stream {
    /* saving: small fields are gathered into pieces; after a failed write nothing more is written */
    eni_store_write write; /* NULL: this is loading */
    void *user;
    en_status status;
    size_t n;
    uint8_t piece[PIECE];
    /* loading: the bytes left. The first error is kept, and all later reads give 0 */
    const uint8_t *at, *end, *begin;
    const char *why;
    int64_t saved_ns, now_ns;
} stream;

static bool is_loading(const stream *s)
{
    return s->write == NULL;
}

static void expect(stream *s, bool is_right, const char *why)
{
    if (is_right || !is_loading(s)) return;
    if (s->why == NULL) s->why = why;
    s->end = s->at;
}

static en_status verdict(const stream *s)
{
    if (s->why == NULL) return s->status;
    return eni_fail(EN_EFORMAT, "store", "invalid saved state: %s (at byte %lld)", s->why,
                    (long long)(s->at - s->begin));
}

static void flush(stream *s)
{
    if (s->status == EN_OK && s->n > 0) s->status = s->write(s->user, s->piece, s->n);
    s->n = 0;
}

static void put(stream *s, const void *data, uint64_t bytes)
{
    const uint8_t *at = data;
    while (bytes > 0 && s->status == EN_OK) {
        const size_t room = PIECE - s->n, n = bytes < room ? bytes : room;
        memcpy(s->piece + s->n, at, n);
        s->n += n;
        at += n;
        bytes -= n;
        if (s->n == PIECE) flush(s);
    }
}

static const uint8_t *get(stream *s, uint64_t bytes)
{
    expect(s, bytes <= (uint64_t)(s->end - s->at), "it is truncated");
    if (s->why != NULL) return NULL;
    s->at += bytes;
    return s->at - bytes;
}

/* Bytes as they lie in memory: both sides are little-endian machines, as on the wire. */
static void raw(stream *s, void *data, uint64_t bytes)
{
    if (!is_loading(s)) {
        put(s, data, bytes);
        return;
    }
    const uint8_t *from = get(s, bytes);
    if (from != NULL && bytes > 0) memcpy(data, from, bytes);
}

static void floats(stream *s, float *data, uint64_t count)
{
    raw(s, data, count * sizeof(float)); /* count is the store's own: no overflow */
}

/* A number of `size` bytes in memory and `bytes` in the state, at most `max`. */
static void number(stream *s, void *value, size_t size, size_t bytes, uint64_t max, const char *why)
{
    if (is_loading(s)) memset(value, 0, size);
    raw(s, value, bytes);
    if (max == UINT64_MAX || !is_loading(s)) return;
    uint64_t read = 0;
    memcpy(&read, value, bytes);
    expect(s, read <= max, why);
    if (read > max) memset(value, 0, size);
}

#define FIELD(s, x, bytes)              number(s, &(x), sizeof(x), bytes, UINT64_MAX, NULL)
#define FIELD_TO(s, x, bytes, max, why) number(s, &(x), sizeof(x), bytes, max, why)
#define FLAG(s, x)                      FIELD_TO(s, x, 1, 1, "a flag is neither 0 nor 1")

/* Converts a deadline to the present clock; an overdue one stays so, to keep the order. */
static void deadline(stream *s, int64_t *when)
{
    FIELD(s, *when, 8);
    const int64_t then = *when, now = s->now_ns;
    if (!is_loading(s) || then == INT64_MAX) return;
    if (then < s->saved_ns) {
        const uint64_t late = (uint64_t)s->saved_ns - (uint64_t)then;
        *when = late < (uint64_t)now ? now - (int64_t)late : 0;
        return;
    }
    const uint64_t rest = (uint64_t)then - (uint64_t)s->saved_ns;
    *when = rest < (uint64_t)(INT64_MAX - 1 - now) ? now + (int64_t)rest : INT64_MAX - 1;
}

/* ---- header -------------------------------------------------------------------------------------------- */

/* The line that begins at `at`, as far as it fits, without control characters. */
static void copy_line(const char *at, const char *end, char *line_out, size_t bytes)
{
    size_t n = 0;
    for (; at < end && *at != '\n' && n + 1 < bytes; at++)
        line_out[n++] = *at >= ' ' && *at <= '~' ? *at : '?';
    line_out[n] = 0;
}

/* Names the first line in which two configurations differ. */
static en_status compare_text(const char *saved, size_t saved_bytes, const char *own, size_t own_bytes)
{
    if (saved_bytes == own_bytes && memcmp(saved, own, own_bytes) == 0) return EN_OK;
    char theirs[120], mine[120];
    size_t line = 0;
    for (size_t i = 0; i < saved_bytes && i < own_bytes && saved[i] == own[i]; i++)
        if (own[i] == '\n') line = i + 1;
    copy_line(saved + line, saved + saved_bytes, theirs, sizeof theirs);
    copy_line(own + line, own + own_bytes, mine, sizeof mine);
    return eni_fail(EN_EMISMATCH, "store",
                    "the saved state belongs to another run: it has '%s', this one '%s'", theirs, mine);
}

static en_status header(stream *s, char *own, size_t own_bytes)
{
    char magic[8] = ENI_STATE_MAGIC;
    uint32_t version = ENI_STATE_VERSION, bytes = (uint32_t)own_bytes;
    raw(s, magic, sizeof magic);
    if (s->why != NULL || memcmp(magic, ENI_STATE_MAGIC, sizeof magic) != 0) {
        s->why = "it does not begin like the state of a store";
        return verdict(s);
    }
    FIELD(s, version, 4);
    if (version != ENI_STATE_VERSION && s->why == NULL)
        return eni_fail(EN_EVERSION, "store", "the saved state has version %u, this build reads version %d",
                        version, ENI_STATE_VERSION);
    FIELD(s, bytes, 4);
    if (!is_loading(s)) {
        put(s, own, own_bytes);
        return EN_OK;
    }
    const char *text = (const char *)get(s, bytes);
    return text != NULL ? compare_text(text, bytes, own, own_bytes) : verdict(s);
}

/* ---- store and clients --------------------------------------------------------------------------------- */

static void store_fields(stream *s, eni_store *store)
{
    eni_store_stats *stats = &store->stats;
    int64_t now_ns = store->now_ns;
    FIELD(s, now_ns, 8);
    if (is_loading(s)) {
        s->saved_ns = now_ns;
        store->now_ns = s->now_ns;
    }
    deadline(s, &store->timer_told);
    FLAG(s, store->has_timers);
    FIELD(s, store->rand_index, 8);
    FIELD(s, stats->updates, 8);
    FIELD(s, stats->touches, 8);
    FIELD(s, stats->nonfinite, 8);
    FIELD(s, stats->repeats, 8);
    FIELD(s, stats->refused, 8);
    FIELD(s, stats->detached, 8);
}

/* eni_histogram_bins */
static bool are_bins(uint64_t bins)
{
    return bins == 0 || (bins >= 8 && bins <= ENI_HISTOGRAM_MAX + 1 && (bins & (bins - 1)) == 0);
}

static en_status histogram(stream *s, eni_histogram *h)
{
    static const char *const odd = "a histogram is inconsistent";
    uint32_t bins = eni_histogram_bins(h);
    FIELD(s, h->count, 8);
    FIELD(s, h->sum, 8);
    FIELD(s, h->max, 8);
    FIELD(s, bins, 4);
    expect(s, are_bins(bins), "a histogram has an invalid number of bins");
    expect(s, bins * UINT64_C(8) <= (uint64_t)(s->end - s->at), "it is truncated");
    EN_TRY(verdict(s));
    uint64_t left = h->count;
    for (uint32_t i = 0; i < bins; i++) {
        uint64_t n = eni_histogram_at(h, i);
        FIELD_TO(s, n, 8, left, odd);
        if (is_loading(s)) EN_TRY(eni_histogram_put(h, i, n));
        left -= n;
    }
    expect(s, left == 0, odd);
    expect(s, bins == 0 || h->max < bins || bins > ENI_HISTOGRAM_MAX, "a histogram's maximum has no bin");
    return verdict(s);
}

static en_status client_fields(stream *s, eni_store *store, eni_client_record *client)
{
    eni_store_client_stats *stats = &client->stats;
    FIELD(s, client->incarnation, 8);
    FIELD_TO(s, client->presence, 1, ENI_LEFT, "a client's presence is invalid");
    FIELD(s, stats->pushes, 8);
    FIELD(s, stats->pulls, 8);
    FIELD(s, stats->applied, 8);
    FIELD(s, stats->dropped, 8);
    FIELD(s, stats->holds, 8);
    FIELD(s, stats->bytes_in, 8);
    FIELD(s, stats->bytes_out, 8);
    FIELD(s, stats->bytes_beside, 8);
    FIELD(s, stats->clocks_ahead, 8);
    EN_TRY(histogram(s, &stats->staleness));
    EN_TRY(histogram(s, &stats->steady));
    if (!is_loading(s)) return EN_OK;
    store->nactive += client->presence == ENI_ACTIVE;
    store->nleft += client->presence == ENI_FINISHED || client->presence == ENI_LEFT;
    return EN_OK;
}

/* ---- partitions ---------------------------------------------------------------------------------------- */

static en_status dedupe_fields(stream *s, const eni_store *store, const eni_partition *part,
                               eni_dedupe *dedupe)
{
    const uint32_t vecs = store->config.strategy->peer_vecs;
    FIELD(s, dedupe->seq, 8);
    FIELD(s, dedupe->clock, 8);
    expect(s, dedupe->clock != UINT64_MAX, "a clock is out of range");
    FIELD(s, dedupe->pushes, 8);
    FIELD_TO(s, dedupe->outcome, 1, ENI_REFUSED, "a call's outcome is invalid");
    FIELD_TO(s, dedupe->status, 4, EN_EBUG, "a client's status is invalid");
    for (uint32_t i = 0; i < vecs && s->why == NULL; i++) {
        uint8_t is_there = dedupe->peer != NULL && dedupe->peer[i] != NULL;
        FLAG(s, is_there);
        if (!is_there) continue;
        if (dedupe->peer == NULL && (dedupe->peer = eni_alloc_array(vecs, sizeof *dedupe->peer)) == NULL)
            return EN_ENOMEM;
        if (dedupe->peer[i] == NULL &&
            (dedupe->peer[i] = eni_alloc_array(part->pub.count, sizeof(float))) == NULL)
            return EN_ENOMEM;
        floats(s, dedupe->peer[i], part->pub.count);
    }
    return verdict(s);
}

/* The payload follows if there is one. */
static uint8_t call_fields(stream *s, eni_call *call)
{
    bool *const flag[] = {&call->is_held,   &call->is_staged, &call->is_snapshot, &call->is_counted,
                          &call->is_steady, &call->was_asked, &call->was_absorbed};
    enum { FLAGS = sizeof flag / sizeof *flag };
    uint8_t flags = (uint8_t)((call->msg.data != NULL) << FLAGS);
    for (int i = 0; i < FLAGS; i++)
        flags |= (uint8_t)(*flag[i] << i);
    FIELD(s, flags, 1);
    for (int i = 0; i < FLAGS && is_loading(s); i++)
        *flag[i] = flags >> i & 1;
    FIELD_TO(s, call->pending_error, 4, EN_EBUG, "a call's status is invalid");
    FIELD(s, call->msg.src, 4);
    FIELD(s, call->msg.kind, 4);
    FIELD(s, call->msg.what, 4);
    FIELD(s, call->msg.clock, 8);
    FIELD(s, call->msg.base_version, 8);
    FIELD(s, call->msg.nsamples, 8);
    FIELD(s, call->covered, 8);
    FIELD(s, call->ticket, 8);
    FIELD(s, call->seq, 8);
    FIELD(s, call->met, 8);
    FIELD(s, call->weight, 8);
    return flags >> FLAGS;
}

static void put_call(stream *s, eni_call *call)
{
    if (call_fields(s, call)) put(s, call->msg.data, call->payload.count * sizeof(float));
}

/* Calls that are only staged, then the held ones, both in their order: staging them again gives the same
 * order of the sum, even if a client that joined again has reached a clock of its predecessor. */
static void put_calls(stream *s, const eni_partition *part)
{
    uint32_t n = 0;
    for (const eni_call *call = part->held.first; call != NULL; call = call->next)
        n++;
    for (uint32_t i = 0; i < part->nstaged; i++)
        n += !part->staged[i]->is_held;
    FIELD(s, n, 4);
    for (uint32_t i = 0; i < part->nstaged; i++)
        if (!part->staged[i]->is_held) put_call(s, part->staged[i]);
    for (eni_call *call = part->held.first; call != NULL; call = call->next)
        put_call(s, call);
}

/* Checks a call against its partition and its client. */
static void check_call(stream *s, const eni_store *store, const eni_partition *part, const eni_call *call,
                       bool has_data)
{
    const en_msg *msg = &call->msg;
    if (msg->src < 0 || msg->src >= store->config.world) {
        expect(s, false, "a call's client is invalid");
        return;
    }
    expect(s, call->is_held || call->is_staged, "a call is neither held nor staged");
    expect(s, !call->is_staged || has_data, "a contribution has no payload");
    expect(s, !call->is_staged || call->pending_error == EN_OK,
           "a contribution that was refused waits for a step");
    if (call->is_snapshot) {
        expect(s, !call->is_staged && !has_data, "a snapshot has a contribution");
        expect(s, eni_partition_vector(part, msg->kind) != NULL,
               "a snapshot of a vector that the store does not have");
        return;
    }
    const eni_dedupe *dedupe = &part->dedupe[msg->src];
    expect(s, part->is_initialised, "a partition without weights was called");
    expect(s, !call->is_held || (call->seq <= dedupe->seq && msg->clock <= dedupe->clock),
           "a call is newer than its client"); /* one that is only staged may be of an incarnation before */
    expect(s, msg->base_version <= part->pub.version && call->met <= part->pub.version,
           "a call has a version above the partition's");
    expect(s, msg->nsamples <= ENI_STORE_SAMPLES_MAX && call->covered <= ENI_STORE_SAMPLES_MAX,
           "a call has too many samples");
    expect(s, !call->is_held || dedupe->outstanding < ENI_STORE_OUTSTANDING,
           "a client waits for too many answers");
}

/* Puts a call into the lists of its partition: the store owns it from here on. */
static en_status place_call(eni_store *store, eni_partition *part, eni_call *call)
{
    const bool is_staged = call->is_staged, was_absorbed = call->was_absorbed;
    call->is_staged = false;
    if (store->config.old_ticket != NULL) call->ticket = store->config.old_ticket(call->ticket);
    if (call->is_held) {
        eni_partition_hold(part, call);
        if (!call->is_snapshot) part->dedupe[call->msg.src].outstanding++;
    }
    if (!is_staged) return EN_OK;
    const en_status st = eni_partition_stage(store, part, call, call->weight);
    call->was_absorbed = was_absorbed;
    if (st != EN_OK && !call->is_held) eni_store_call_give(store, call);
    return st;
}

static en_status get_call(stream *s, eni_store *store, eni_partition *part)
{
    eni_call *call = eni_store_call_take(store);
    if (call == NULL) return EN_ENOMEM;
    call->msg.size = sizeof call->msg;
    const bool has_data = call_fields(s, call);
    check_call(s, store, part, call, has_data);
    const uint8_t *payload = has_data ? get(s, part->pub.count * sizeof(float)) : NULL;
    en_status st = verdict(s);
    if (st == EN_OK && has_data) st = eni_store_call_fill(store, call, payload, part->pub.count);
    if (st == EN_OK) return place_call(store, part, call);
    eni_store_call_give(store, call);
    return st;
}

static en_status get_calls(stream *s, eni_store *store, eni_partition *part)
{
    uint32_t n = 0;
    FIELD(s, n, 4);
    for (; n > 0 && s->why == NULL; n--)
        EN_TRY(get_call(s, store, part));
    EN_TRY(verdict(s));
    eni_partition_recount(store, part);
    return EN_OK;
}

static en_status partition_fields(stream *s, eni_store *store, eni_partition *part)
{
    const uint64_t count = part->pub.count;
    const uint64_t own_state = store->config.strategy->partition_state;
    uint64_t state = own_state;
    FLAG(s, part->is_initialised);
    FIELD(s, part->pub.version, 8);
    FIELD(s, part->steps, 8);
    FIELD(s, part->samples, 8);
    FLAG(s, part->has_timer);
    deadline(s, &part->timer_ns);
    floats(s, part->pub.w, count);
    for (int i = 0; i < ENI_MAX_SLOTS; i++)
        if (part->slot[i] != NULL) floats(s, part->slot[i], count);
    if (part->first != NULL) floats(s, part->first, count);
    FIELD(s, state, 8);
    expect(s, state == own_state, "the strategy's state per partition has another size");
    raw(s, part->state, own_state);
    EN_TRY(verdict(s));
    for (int32_t r = 0; r < store->config.world; r++) {
        EN_TRY(dedupe_fields(s, store, part, &part->dedupe[r]));
        if (part->dedupe[r].seq > 0 && is_loading(s)) eni_partition_used(store, part);
    }
    if (is_loading(s)) return get_calls(s, store, part);
    put_calls(s, part);
    return verdict(s);
}

/* ---- the configuration --------------------------------------------------------------------------------- */

static size_t write_scalars(const eni_store_config *c, char *text, size_t room)
{
    char adam[100] = "", milestones[ENI_MILESTONES * 21] = "";
    eni_schedule_milestones(&c->schedule, milestones, sizeof milestones);
    if (c->optimizer->adam != NULL)
        snprintf(adam, sizeof adam, "beta1=%.17g\nbeta2=%.17g\neps=%.17g\n", c->hyper.beta1, c->hyper.beta2,
                 c->hyper.eps);
    return (size_t)snprintf(
        text, room,
        "strategy=%s\noptions=%s\noptimizer=%s\nmomentum=%.17g\nweight-decay=%.17g\nnesterov=%d\n%slr=%.17g\n"
        "lr-schedule=%d\nlr-gamma=%.17g\n%s%s%slr-step=%" PRIu64 "\nlr-warmup=%" PRIu64
        "\ntotal-samples=%" PRIu64 "\nsum-order=%d\nshard=%d\nshards=%d\nworld=%d\nseed=%" PRIu64
        "\nstream=%u\nbuckets=",
        c->strategy->name, c->options != NULL ? eni_options_canonical(c->options) : "", c->optimizer->name,
        (double)c->hyper.momentum, (double)c->hyper.weight_decay, c->hyper.nesterov, adam, c->schedule.base,
        (int)c->schedule.kind, c->schedule.gamma, milestones[0] ? "lr-milestones=" : "", milestones,
        milestones[0] ? "\n" : "", c->schedule.step_samples, c->schedule.warmup, c->schedule.total,
        (int)c->sum_order, c->shard, c->nshards, c->world, c->seed, c->stream);
}

char *eni_store_config_text(const eni_store_config *config, size_t *bytes_out)
{
    const eni_rate_points *rates = config->schedule.points;
    char *groups = config->hyper.groups != NULL ? eni_groups_text(config->hyper.groups) : eni_strdup("");
    char *points = rates != NULL ? eni_rate_points_text(rates) : eni_strdup(""), *text = NULL;
    size_t room = write_scalars(config, NULL, 0) + (size_t)config->nbuckets * 21 + 32, n = 0;
    if (groups != NULL && points != NULL) text = eni_alloc(room += strlen(groups) + strlen(points));
    if (text != NULL && groups[0]) n = (size_t)snprintf(text, room, "groups=%s\n", groups);
    if (text != NULL && points[0]) n += (size_t)snprintf(text + n, room - n, "lr-points=%s\n", points);
    eni_free(groups);
    eni_free(points);
    if (text == NULL) return NULL;
    n += write_scalars(config, text + n, room - n);
    for (uint32_t b = 0; b < config->nbuckets; b++)
        n += (size_t)snprintf(text + n, room - n, "%s%" PRIu64, b ? "," : "", config->bucket_counts[b]);
    text[n++] = '\n';
    *bytes_out = n;
    return text;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

static en_status whole(stream *s, eni_store *store)
{
    size_t bytes;
    char *text = eni_store_config_text(&store->config, &bytes);
    if (text == NULL) return EN_ENOMEM;
    const en_status st = header(s, text, bytes);
    eni_free(text);
    EN_TRY(st);
    store_fields(s, store);
    for (int32_t r = 0; r < store->config.world; r++)
        EN_TRY(client_fields(s, store, &store->client[r]));
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->part[b].pub.count > 0) EN_TRY(partition_fields(s, store, &store->part[b]));
    char end[4];
    memcpy(end, ENI_STATE_END, sizeof end);
    raw(s, end, sizeof end);
    expect(s, memcmp(end, ENI_STATE_END, sizeof end) == 0, "its end mark is missing");
    expect(s, s->at == s->end, "it has bytes after its end mark");
    return verdict(s);
}

en_status eni_store_save(const eni_store *store, eni_store_write write, void *user)
{
    stream *s = eni_alloc(sizeof *s);
    if (s == NULL) return EN_ENOMEM;
    s->write = write;
    s->user = user;
    const en_status st = whole(s, (eni_store *)(uintptr_t)store); /* saving changes nothing */
    flush(s);
    const en_status written = s->status;
    eni_free(s);
    return st != EN_OK ? st : written;
}

en_status eni_store_load(eni_store *store, const void *bytes, size_t length, int64_t now_ns)
{
    if (store->nevents > 0)
        return eni_fail(EN_EBUG, "store", "a saved state needs a new store, this one has seen %llu events",
                        (unsigned long long)store->nevents);
    stream *s = eni_alloc(sizeof *s);
    if (s == NULL) return EN_ENOMEM;
    s->at = s->begin = bytes;
    s->end = s->at + length;
    s->now_ns = now_ns < 0 ? 0 : now_ns;
    const en_status st = whole(s, store);
    eni_free(s);
    return st;
}

void eni_store_past(const eni_store *store, uint32_t bucket, uint64_t *steps_out, uint64_t *samples_out)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    *steps_out = part != NULL ? part->steps : 0;
    *samples_out = part != NULL ? part->samples : 0;
}
