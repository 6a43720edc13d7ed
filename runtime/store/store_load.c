/* store_load.c - reads what store_save.c wrote. The bytes come from a file, so nothing in them is believed:
 * every length is checked against what is left, every number against what the store rests on. */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"
#include "runtime/store/store_save.h"

/* What is left of the bytes. The first thing that is wrong is kept, and from then on all reads give 0. */
typedef struct source {
    const uint8_t *at, *end, *begin;
    const char *why;
    int64_t saved_ns, now_ns;
} source;

static void wrong(source *in, const char *why)
{
    if (!in->why) in->why = why;
    in->end = in->at;
}

static const uint8_t *get_bytes(source *in, uint64_t bytes)
{
    if (bytes > (uint64_t)(in->end - in->at)) {
        wrong(in, "it is cut off");
        return NULL;
    }
    in->at += bytes;
    return in->at - bytes;
}

static uint64_t get(source *in, int bytes)
{
    const uint8_t *raw = get_bytes(in, (uint64_t)bytes);
    uint64_t value = 0;
    for (int i = bytes; raw && i-- > 0;)
        value = value << 8 | raw[i];
    return value;
}

/* A number of at most `max`. */
static uint64_t get_to(source *in, int bytes, uint64_t max, const char *why)
{
    const uint64_t value = get(in, bytes);
    if (value <= max) return value;
    wrong(in, why);
    return 0;
}

static void get_floats(source *in, float *to, uint64_t count)
{
    const uint8_t *raw = get_bytes(in, count * sizeof(float)); /* count is the store's own: no overflow */
    if (raw) memcpy(to, raw, count * sizeof(float));
}

static en_status verdict(const source *in)
{
    if (!in->why) return EN_OK;
    eni_error("store", "the saved state cannot be used: %s (at byte %lld)", in->why,
              (long long)(in->at - in->begin));
    return EN_EFORMAT;
}

/* A deadline of the clock at the save as one of the clock of now; what was overdue stays so, for the order.
 */
static int64_t get_deadline(source *in)
{
    const int64_t then = (int64_t)get(in, 8), now = in->now_ns;
    if (then == INT64_MAX) return INT64_MAX;
    if (then < in->saved_ns) {
        const uint64_t late = (uint64_t)in->saved_ns - (uint64_t)then;
        return late < (uint64_t)now ? now - (int64_t)late : 0;
    }
    const uint64_t rest = (uint64_t)then - (uint64_t)in->saved_ns;
    return rest < (uint64_t)(INT64_MAX - 1 - now) ? now + (int64_t)rest : INT64_MAX - 1;
}

/* ---- header -------------------------------------------------------------------------------------------- */

/* The line that begins at `at`, as far as it fits, without what a terminal would obey. */
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
    eni_error("store", "the saved state is of another run: it has '%s', this one '%s'", theirs, mine);
    return EN_EMISMATCH;
}

static en_status get_header(source *in, const eni_store *store)
{
    const uint8_t *magic = get_bytes(in, 8);
    if (!magic || memcmp(magic, ENI_STATE_MAGIC, 8) != 0) {
        in->why = "it does not begin as the state of a store";
        return verdict(in);
    }
    const uint64_t version = get(in, 4);
    if (version != ENI_STATE_VERSION && !in->why) {
        eni_error("store", "the saved state has version %llu, this build reads %d",
                  (unsigned long long)version, ENI_STATE_VERSION);
        return EN_EVERSION;
    }
    const uint64_t bytes = get(in, 4);
    const char *text = (const char *)get_bytes(in, bytes);
    if (!text) return verdict(in);
    size_t own_bytes;
    char *own = eni_store_config_text(&store->config, &own_bytes);
    if (!own) return EN_ENOMEM;
    const en_status st = compare_text(text, (size_t)bytes, own, own_bytes);
    eni_free(own);
    return st;
}

/* ---- store and clients --------------------------------------------------------------------------------- */

static void get_store(source *in, eni_store *store)
{
    eni_store_stats *stats = &store->stats;
    in->saved_ns = (int64_t)get(in, 8);
    store->timer_told = get_deadline(in);
    store->has_timers = (int)get_to(in, 1, 1, "a flag is neither 0 nor 1");
    store->rand_index = get(in, 8);
    stats->updates = get(in, 8);
    stats->touches = get(in, 8);
    stats->nonfinite = get(in, 8);
    stats->repeats = get(in, 8);
    stats->refused = get(in, 8);
    stats->detached = get(in, 8);
    store->now_ns = in->now_ns;
}

/* Bins are doubled from 8 on, see staleness.c. */
static int are_bins(uint64_t bins)
{
    return bins == 0 || (bins >= 8 && bins <= ENI_HISTOGRAM_MAX + 1 && (bins & (bins - 1)) == 0);
}

static en_status get_histogram(source *in, eni_histogram *histogram)
{
    histogram->count = get(in, 8);
    histogram->sum = get(in, 8);
    histogram->max = get(in, 8);
    const uint64_t bins = get(in, 4);
    if (!are_bins(bins)) wrong(in, "a histogram has an odd number of bins");
    const uint8_t *raw = get_bytes(in, bins * 8);
    uint64_t left = histogram->count;
    if (!raw || bins == 0) {
        if (left > 0) wrong(in, "a histogram does not add up");
        return verdict(in);
    }
    in->at = raw;
    histogram->bin = eni_alloc_array(bins, sizeof *histogram->bin);
    if (!histogram->bin) return EN_ENOMEM;
    histogram->bins = (uint32_t)bins;
    for (uint64_t i = 0; i < bins; i++)
        left -= histogram->bin[i] = get_to(in, 8, left, "a histogram does not add up");
    if (left > 0) wrong(in, "a histogram does not add up");
    if (histogram->max >= bins && bins <= ENI_HISTOGRAM_MAX) wrong(in, "a histogram's maximum has no bin");
    return verdict(in);
}

static en_status get_client(source *in, eni_store *store, eni_client_record *client)
{
    eni_store_client_stats *stats = &client->stats;
    client->incarnation = get(in, 8);
    client->presence = (eni_presence)get_to(in, 1, ENI_LEFT, "a client is in no known condition");
    stats->pushes = get(in, 8);
    stats->pulls = get(in, 8);
    stats->applied = get(in, 8);
    stats->dropped = get(in, 8);
    stats->holds = get(in, 8);
    stats->bytes_in = get(in, 8);
    stats->bytes_out = get(in, 8);
    stats->bytes_beside = get(in, 8);
    stats->clocks_ahead = get(in, 8);
    EN_TRY(get_histogram(in, &stats->staleness));
    EN_TRY(get_histogram(in, &stats->steady));
    store->nactive += client->presence == ENI_ACTIVE;
    store->nleft += client->presence == ENI_FINISHED || client->presence == ENI_LEFT;
    return EN_OK;
}

/* ---- partitions
 * --------------------------------------------------------------------------------------------- */

static en_status get_dedupe(source *in, const eni_store *store, const eni_partition *part, eni_dedupe *dedupe)
{
    const uint32_t vecs = store->config.strategy->peer_vecs;
    dedupe->seq = get(in, 8);
    dedupe->clock = get(in, 8);
    if (dedupe->clock == UINT64_MAX) wrong(in, "a clock is beyond all clocks");
    dedupe->pushes = get(in, 8);
    dedupe->outcome = (eni_outcome)get_to(in, 1, ENI_REFUSED, "a call ended in no known way");
    dedupe->status = (en_status)get_to(in, 4, EN_EBUG, "a status is none");
    for (uint32_t i = 0; i < vecs && !in->why; i++) {
        if (!get_to(in, 1, 1, "a flag is neither 0 nor 1")) continue;
        if (!dedupe->peer && !(dedupe->peer = eni_alloc_array(vecs, sizeof *dedupe->peer))) return EN_ENOMEM;
        if (!(dedupe->peer[i] = eni_alloc_array(part->pub.count, sizeof(float)))) return EN_ENOMEM;
        get_floats(in, dedupe->peer[i], part->pub.count);
    }
    return verdict(in);
}

/* What a SNAPSHOT may ask for. */
static int is_vector(const eni_partition *part, uint32_t kind)
{
    if (kind == ENI_VECTOR_WEIGHTS || kind == ENI_VECTOR_FREEZE) return 1;
    return kind - ENI_VECTOR_SLOT < ENI_MAX_SLOTS && part->slot[kind - ENI_VECTOR_SLOT] != NULL;
}

/* Whether a call may lie in this partition as it says that it does. */
static void check_call(source *in, const eni_store *store, const eni_partition *part, const eni_call *call,
                       int has_data)
{
    const en_msg *msg = &call->msg;
    if (msg->src < 0 || msg->src >= store->config.world) {
        wrong(in, "a call is of a client that cannot be");
        return;
    }
    if (!call->is_held && !call->is_staged) wrong(in, "a call is neither held nor staged");
    if (call->is_staged && !has_data) wrong(in, "a contribution has no content");
    if (call->is_staged && call->pending_error != EN_OK)
        wrong(in, "a contribution that was refused waits for a step");
    if (call->is_snapshot) {
        if (call->is_staged || has_data) wrong(in, "a look at the weights brings a contribution");
        if (!is_vector(part, msg->kind)) wrong(in, "a look at a vector that the store does not have");
        return;
    }
    const eni_dedupe *dedupe = &part->dedupe[msg->src];
    if (!part->is_initialised) wrong(in, "a partition without weights was called");
    if (call->is_held && (call->seq > dedupe->seq || msg->clock > dedupe->clock)) /* else of one before it */
        wrong(in, "a call is newer than its client");
    if (msg->base_version > part->pub.version || call->met > part->pub.version)
        wrong(in, "a call knows a version that has not been");
    if (msg->nsamples > ENI_STORE_SAMPLES_MAX || call->covered > ENI_STORE_SAMPLES_MAX)
        wrong(in, "a call stands for too many samples");
    if (call->is_held && dedupe->outstanding >= ENI_STORE_OUTSTANDING)
        wrong(in, "a client waits for too many answers");
}

static int get_call_head(source *in, eni_call *call)
{
    const int flags = (int)get(in, 1);
    call->is_held = flags & 1;
    call->is_staged = flags >> 1 & 1;
    call->is_snapshot = flags >> 2 & 1;
    call->is_counted = flags >> 3 & 1;
    call->is_steady = flags >> 4 & 1;
    call->was_asked = flags >> 5 & 1;
    call->was_absorbed = flags >> 6 & 1;
    call->pending_error = (en_status)get_to(in, 4, EN_EBUG, "a status is none");
    call->msg = (en_msg){.size = sizeof(en_msg), .src = (int32_t)(uint32_t)get(in, 4)};
    call->msg.kind = (uint32_t)get(in, 4);
    call->msg.what = (uint32_t)get(in, 4);
    call->msg.clock = get(in, 8);
    call->msg.base_version = get(in, 8);
    call->msg.nsamples = get(in, 8);
    call->covered = get(in, 8);
    call->ticket = get(in, 8);
    call->seq = get(in, 8);
    call->met = get(in, 8);
    const uint64_t weight = get(in, 8);
    memcpy(&call->weight, &weight, sizeof call->weight);
    return flags >> 7 & 1;
}

/* Into the lists of its partition: from here on the store owns it. */
static en_status place_call(eni_store *store, eni_partition *part, eni_call *call)
{
    const int is_staged = call->is_staged, was_absorbed = call->was_absorbed;
    call->is_staged = 0;
    if (store->config.old_ticket) call->ticket = store->config.old_ticket(call->ticket);
    if (call->is_held) {
        eni_partition_hold(part, call);
        if (!call->is_snapshot) part->dedupe[call->msg.src].outstanding++;
    }
    if (!is_staged) return EN_OK;
    const en_status st = eni_partition_stage(store, part, call, call->weight);
    call->was_absorbed = was_absorbed != 0;
    if (st != EN_OK && !call->is_held) eni_store_call_give(store, call);
    return st;
}

static en_status get_call(source *in, eni_store *store, eni_partition *part)
{
    eni_call *call = eni_store_call_take(store);
    if (!call) return EN_ENOMEM;
    const int has_data = get_call_head(in, call);
    check_call(in, store, part, call, has_data);
    en_status st = verdict(in);
    const uint8_t *raw = has_data ? get_bytes(in, part->pub.count * sizeof(float)) : NULL;
    if (st == EN_OK) st = verdict(in);
    if (st == EN_OK && has_data) st = eni_store_call_fill(store, part, call, raw);
    if (st == EN_OK) return place_call(store, part, call);
    eni_store_call_give(store, call);
    return st;
}

static en_status get_partition(source *in, eni_store *store, eni_partition *part)
{
    const uint64_t count = part->pub.count, state = store->config.strategy->partition_state;
    part->is_initialised = (int)get_to(in, 1, 1, "a flag is neither 0 nor 1");
    part->pub.version = get(in, 8);
    part->steps = get(in, 8);
    part->samples = get(in, 8);
    part->has_timer = (int)get_to(in, 1, 1, "a flag is neither 0 nor 1");
    part->timer_ns = get_deadline(in);
    get_floats(in, part->pub.w, count);
    for (int i = 0; i < ENI_MAX_SLOTS; i++)
        if (part->slot[i]) get_floats(in, part->slot[i], count);
    if (part->first) get_floats(in, part->first, count);
    if (get(in, 8) != state) wrong(in, "the strategy keeps another number of bytes per partition");
    const uint8_t *raw = get_bytes(in, state);
    EN_TRY(verdict(in));
    if (state > 0) memcpy(part->state, raw, state);
    for (int32_t r = 0; r < store->config.world; r++) {
        EN_TRY(get_dedupe(in, store, part, &part->dedupe[r]));
        if (part->dedupe[r].seq > 0) eni_partition_used(store, part);
    }
    for (uint64_t n = get(in, 4); n > 0 && !in->why; n--)
        EN_TRY(get_call(in, store, part));
    EN_TRY(verdict(in));
    eni_partition_recount(store, part);
    return EN_OK;
}

en_status eni_store_load(eni_store *store, const void *bytes, size_t length, int64_t now_ns)
{
    const uint8_t *at = bytes;
    source in = {.at = at, .begin = at, .end = at + length, .now_ns = now_ns < 0 ? 0 : now_ns};
    if (store->nevents > 0) {
        eni_error("store", "a saved state belongs into a new store, this one has seen %llu events",
                  (unsigned long long)store->nevents);
        return EN_EBUG;
    }
    EN_TRY(get_header(&in, store));
    get_store(&in, store);
    for (int32_t r = 0; r < store->config.world; r++)
        EN_TRY(get_client(&in, store, &store->client[r]));
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->part[b].pub.count > 0) EN_TRY(get_partition(&in, store, &store->part[b]));
    const uint8_t *end = get_bytes(&in, 4);
    if (end && memcmp(end, ENI_STATE_END, 4) != 0) wrong(&in, "it does not end where it should");
    if (in.at != in.end) wrong(&in, "it goes on after its end");
    return verdict(&in);
}
