/* client.c - the client on real transport: it drives the state machine of client_step.h with messages by
 * socket and by ring (client_wire.h) and a thread that notices psd's return.
 *
 * From top to bottom: actions, psd's return, calls, waits, open and close. Every wait and every send first
 * checks whether psd came back; so does the thread while the compute thread is elsewhere: others may wait for
 * calls that we keep. Then everything is reconnected, and the state machine replays. */
#include "runtime/client/client.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "ops/mean.h"
#include "runtime/client/client_wire.h"

enum {
    REST_MS = 20,  /* between two checks of the thread whether psd came back */
    BUSY_MS = 1,   /* between two rounds of its replay, in which others may use the client */
    RETURN_S = 10, /* a psd that is back answers within this time, or has died again */
    STALLED_S = 5  /* psd answers, but saves nothing: then the oldest call is dropped */
};

typedef struct bucket_call {
    int pending; /* incomplete partitions */
    int in_slot;
} bucket_call;

struct eni_client {
    eni_client_config config;
    int shards;
    eni_client_state state;
    eni_client_actions actions;
    eni_client_wire wire;
    bucket_call *calls; /* (buckets) */
    bool is_mapped;     /* psd's weights are mapped over our ENI_SLOT_PARAM */
    eni_client_counters counters;

    /* with `keep` */
    int64_t return_begin_ns;
    bool has_warned;
    en_status failure; /* of the thread, for the next call */
    pthread_t thread;
    pthread_mutex_t lock; /* protects everything above */
    pthread_cond_t stop;
    bool is_stopping, has_thread;
};

static void enter(const eni_client *client)
{
    if (client->has_thread) pthread_mutex_lock((pthread_mutex_t *)&client->lock);
}

static void leave(const eni_client *client)
{
    if (client->has_thread) pthread_mutex_unlock((pthread_mutex_t *)&client->lock);
}

/* The address of a partition in a vector of the arena. */
static float *address_of(const eni_client *client, int slot, uint32_t bucket,
                         const eni_client_partition *partition)
{
    return eni_arena_at(client->config.arena, (uint32_t)slot,
                        client->config.buckets->bucket[bucket].lo + partition->lo);
}

/* ---- messages out ---- */

/* A new call goes through the arena if psd has it. A replayed one travels as a message: its answer may come
 * when nobody waits for it. */
static en_status send_action(eni_client *client, eni_client_action *action)
{
    eni_header *header = &action->header;
    const int in_slot = client->calls[action->bucket].in_slot;
    if (action->is_first && client->wire.is_shared) {
        header->flags |= ENI_FLAG_SHM;
        header->into = in_slot == ENI_SLOT_NONE ? ENI_INTO_NOTHING : (uint32_t)in_slot;
        if (client->is_mapped && in_slot == ENI_SLOT_PARAM) header->flags |= ENI_FLAG_MAPPED;
        client->counters.shm_bytes += header->bytes;
        action->payload = NULL;
    }
    return eni_client_wire_send(&client->wire, action->shard, header, action->payload, action->is_first);
}

/* ---- messages in ---- */

/* Copies an answer's weights to where the call wants them, unless they are there already. */
static en_status take_vector(eni_client *client, const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    const eni_client_partition *c = eni_client_partition_at(&client->state, h->bucket, (int)h->shard);
    const int in_slot = client->calls[h->bucket].in_slot;
    const bool is_in_arena = (h->flags & ENI_FLAG_SHM) != 0;
    const uint32_t into = in_slot == ENI_SLOT_NONE ? ENI_INTO_NOTHING : (uint32_t)in_slot;
    const bool is_read_there = client->is_mapped && in_slot == ENI_SLOT_PARAM,
               was_left_there = (h->flags & ENI_FLAG_MAPPED) != 0;
    if (h->bytes != c->count * sizeof(float))
        return eni_fail(EN_EPROTO, "client", "shard %u of psd sent %llu bytes of bucket %u, expected %llu",
                        h->shard, (unsigned long long)h->bytes, h->bucket,
                        (unsigned long long)(c->count * sizeof(float)));
    if (is_in_arena && (!client->wire.is_shared || (!was_left_there && h->slot != into)))
        return eni_fail(EN_EPROTO, "client",
                        "shard %u of psd answered through shared memory that this rank did not pass to it",
                        h->shard);
    if (is_read_there != was_left_there)
        return eni_fail(EN_EPROTO, "client", "shard %u of psd %s", h->shard,
                        was_left_there ? "left its weights in place, but this rank has not mapped them"
                                       : "sent a copy of weights that this rank reads in place: with "
                                         "EN_ROUNDS on_pull must answer EN_REPLY_WEIGHTS or EN_HOLD");
    if (!is_in_arena && in_slot != ENI_SLOT_NONE)
        memcpy(address_of(client, in_slot, h->bucket, c), packet->payload, h->bytes);
    client->counters.payload_received += h->bytes;
    if (is_in_arena) client->counters.shm_bytes += h->bytes;
    return EN_OK;
}

static en_status complete(eni_client *client, const eni_packet *answer)
{
    const eni_header *h = &answer->header;
    if (answer->is_damaged)
        return eni_fail(EN_EPROTO, "client",
                        "the weights of bucket %u from shard %u were damaged in transit (checksum): check "
                        "memory, network card and cable",
                        h->bucket, h->shard);
    if (h->bytes > 0) EN_TRY(take_vector(client, answer));
    client->calls[h->bucket].pending--;
    return EN_OK;
}

static void note_recovered(eni_client *client)
{
    const int64_t took = eni_now_ns() - client->return_begin_ns;
    if (client->counters.returns == 0) return; /* the first psd */
    if (took > client->counters.return_ns) client->counters.return_ns = took;
    eni_debug("client", "psd has all calls again after %.0f ms", (double)took / 1e6);
}

/* One event into the state machine, its actions out. `answer`: the packet of an ANSWER. */
static en_status step(eni_client *client, const eni_client_event *event, const eni_packet *answer)
{
    EN_TRY(eni_client_step(&client->state, event, &client->actions));
    for (uint32_t i = 0; i < client->actions.n; i++) {
        eni_client_action *action = &client->actions.item[i];
        switch (action->type) {
        case ENI_CLIENT_SEND: EN_TRY(send_action(client, action)); break;
        case ENI_CLIENT_COMPLETE: EN_TRY(complete(client, answer)); break;
        case ENI_CLIENT_REFUSED: return eni_client_wire_refused(&answer->header);
        case ENI_CLIENT_RECOVERED: note_recovered(client); break;
        }
    }
    return EN_OK;
}

/* Handles the answers that have arrived. */
static en_status take(eni_client *client)
{
    eni_packet packet;
    en_status st;
    while ((st = eni_client_wire_next(&client->wire, &packet)) == EN_OK) {
        st = step(client, &(eni_client_event){.type = ENI_CLIENT_ANSWER, .message = &packet.header}, &packet);
        eni_packet_release(&packet);
        EN_TRY(st);
    }
    return st == EN_ETIMEOUT ? EN_OK : st;
}

/* All shards are connected: replays begin, unless this psd is the first. */
static en_status tell_state(eni_client *client)
{
    for (int k = 0; k < client->shards; k++)
        EN_TRY(step(client,
                    &(eni_client_event){.type = ENI_CLIENT_RETURNED, .shard = k, .epoch = client->wire.epoch},
                    NULL));
    return EN_OK;
}

/* ---- psd's own weights in place of ours ---- */

en_status eni_client_map_weights(eni_client *client, bool *is_mapped_out)
{
    en_status st = EN_OK;
    enter(client);
    if (client->wire.weights_fd >= 0) {
        st = eni_arena_cover(client->config.arena, ENI_SLOT_PARAM, client->wire.weights_fd);
        client->is_mapped = st == EN_OK;
    }
    eni_client_wire_forget_weights(&client->wire);
    *is_mapped_out = client->is_mapped;
    leave(client);
    return st;
}

/* Only buckets with a call in progress can have changed since we read them, and those are answered again: so
 * it does not matter that psd may have died in the middle of a step. */
static en_status unmap_weights(eni_client *client)
{
    eni_client_wire_forget_weights(&client->wire);
    client->wire.wants_weights = false;
    if (!client->is_mapped) return EN_OK;
    client->is_mapped = false;
    eni_info("client", "psd came back: its weights are copied here from now on");
    return eni_arena_uncover(client->config.arena, ENI_SLOT_PARAM);
}

/* ---- a psd that came back ---- */

/* psd may have died again while we connected: waits for its next return. */
static en_status await_another(eni_client *client, en_status status, int64_t deadline_ns)
{
    while (!eni_client_wire_is_outdated(&client->wire)) {
        EN_TRY(eni_client_wire_alive(&client->wire));
        if (eni_now_ns() > deadline_ns) return status;
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    }
    return EN_OK;
}

static en_status reconnect_once(eni_client *client)
{
    const int64_t deadline = eni_now_ns() + RETURN_S * ENI_SECOND;
    const eni_endpoints *psd;
    client->return_begin_ns = eni_now_ns();
    client->wire.generation = client->config.generation(client->config.user);
    eni_client_wire_disconnect(&client->wire);
    EN_TRY(unmap_weights(client));
    EN_TRY(client->config.locate(client->config.user, &psd));
    if (psd->shards != client->shards)
        return eni_fail(EN_EPROTO, "client", "psd came back with %d shard%s, but had %d before", psd->shards,
                        psd->shards == 1 ? "" : "s", client->shards);
    const en_status st = eni_client_wire_connect(&client->wire, psd, deadline);
    if (st != EN_OK) return await_another(client, st, deadline);
    if (eni_client_wire_is_outdated(&client->wire)) return EN_OK;
    client->counters.returns++;
    return tell_state(client);
}

static en_status reconnect(eni_client *client)
{
    EN_TRY(client->failure);
    while (eni_client_wire_is_outdated(&client->wire))
        EN_TRY(reconnect_once(client));
    return EN_OK;
}

/* One round of a wait. */
static en_status wait_more(eni_client *client)
{
    EN_TRY(eni_client_wire_wait(&client->wire));
    EN_TRY(reconnect(client));
    return take(client);
}

static en_status look_after(eni_client *client)
{
    EN_TRY(reconnect(client));
    return client->state.replaying > 0 ? wait_more(client) : EN_OK;
}

/* Notices psd's return while the compute thread is elsewhere. */
static void *run_thread(void *user)
{
    eni_client *client = user;
    pthread_mutex_lock(&client->lock);
    while (!client->is_stopping) {
        const int64_t rest_ns = (client->state.replaying > 0 ? BUSY_MS : REST_MS) * ENI_MILLI;
        const struct timespec at = eni_timespec(eni_now_ns() + rest_ns);
        pthread_cond_clockwait(&client->stop, &client->lock, CLOCK_MONOTONIC, &at);
        if (!client->is_stopping && client->failure == EN_OK) client->failure = look_after(client);
    }
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

static en_status start_thread(eni_client *client)
{
    if (client->config.keep == 0) return EN_OK;
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->stop, NULL);
    client->has_thread = true;
    const int error = eni_thread_start(&client->thread, run_thread, client);
    if (error == 0) return EN_OK;
    client->has_thread = false;
    pthread_cond_destroy(&client->stop);
    pthread_mutex_destroy(&client->lock);
    return eni_fail(EN_EIO, "client", "cannot start the thread that watches for psd's return: %s",
                    strerror(error));
}

static void stop_thread(eni_client *client)
{
    if (!client->has_thread) return;
    pthread_mutex_lock(&client->lock);
    client->is_stopping = true;
    pthread_cond_signal(&client->stop);
    pthread_mutex_unlock(&client->lock);
    pthread_join(client->thread, NULL);
    client->has_thread = false;
    pthread_cond_destroy(&client->stop);
    pthread_mutex_destroy(&client->lock);
}

/* ---- joining a run in progress ---- */

/* A psd that dies and comes back meanwhile learns of it when we reconnect. */
static en_status join(eni_client *client, int64_t deadline_ns)
{
    uint64_t clock = 0;
    for (uint32_t b = 0; b < client->config.buckets->n; b++)
        for (int k = 0; k < client->shards; k++) {
            const eni_client_partition *c = eni_client_partition_at(&client->state, b, k);
            if (c->count > 0 && c->least_clock > clock) clock = c->least_clock;
        }
    client->wire.joins_at = 1 + clock;
    EN_TRY(reconnect(client));
    EN_TRY(eni_client_wire_greet(&client->wire, deadline_ns));
    return reconnect(client);
}

en_status eni_client_join(eni_client *client, int64_t deadline_ns)
{
    enter(client);
    const en_status st = join(client, deadline_ns);
    leave(client);
    return st;
}

/* ---- calls ---- */

static void warn_of_loss(eni_client *client)
{
    if (!client->has_warned)
        eni_warn("client",
                 "psd has not saved its state for so long that calls since then are no longer kept: if it is "
                 "lost now it cannot come back; check the space on its disk (--state)");
    client->has_warned = true;
}

/* Waits until one more call can be kept. */
static en_status make_room(eni_client *client, uint32_t type, uint32_t bucket, int shard)
{
    eni_client_partition *c = eni_client_partition_at(&client->state, bucket, shard);
    int64_t stalled_ns = 0;
    while (!eni_client_has_room(&client->state, c, type)) {
        EN_TRY(step(client, &(eni_client_event){.type = ENI_CLIENT_ASK, .bucket = bucket, .shard = shard},
                    NULL));
        EN_TRY(wait_more(client));
        if (c->is_asking || c->replay != NULL || eni_client_has_room(&client->state, c, type)) continue;
        const int64_t now = eni_now_ns();
        if (stalled_ns == 0) stalled_ns = now;
        if (now - stalled_ns > STALLED_S * ENI_SECOND) {
            warn_of_loss(client);
            eni_client_drop_first(c);
        }
        eni_sleep_until(now + ENI_MILLI);
    }
    return EN_OK;
}

static en_status call(eni_client *client, const eni_header *header, uint32_t bucket, int out_slot,
                      int in_slot)
{
    bucket_call *waiting = &client->calls[bucket];
    if (waiting->pending > 0)
        return eni_fail(EN_EBUG, "client", "bucket %u has a call in progress: wait for it first", bucket);
    EN_TRY(reconnect(client));
    waiting->in_slot = in_slot;
    for (int k = 0; k < client->shards; k++) {
        const eni_client_partition *c = eni_client_partition_at(&client->state, bucket, k);
        if (c->count == 0) continue;
        EN_TRY(make_room(client, header->type, bucket, k));
        if (out_slot != ENI_SLOT_NONE) client->counters.payload_sent += c->count * sizeof(float);
        waiting->pending++;
        EN_TRY(step(client,
                    &(eni_client_event){
                        .type = ENI_CLIENT_CALL,
                        .bucket = bucket,
                        .shard = k,
                        .message = header,
                        .payload = out_slot == ENI_SLOT_NONE ? NULL : address_of(client, out_slot, bucket, c),
                        .is_aside = header->type == ENI_MSG_SNAPSHOT && in_slot != ENI_SLOT_PARAM},
                    NULL));
    }
    return EN_OK;
}

en_status eni_client_call(eni_client *client, uint32_t bucket, int out_slot, int in_slot,
                          const eni_header *header)
{
    eni_header with = *header;
    with.slot = out_slot == ENI_SLOT_NONE ? 0 : (uint32_t)out_slot;
    enter(client);
    const en_status st = call(client, &with, bucket, out_slot, in_slot);
    leave(client);
    return st;
}

en_status eni_client_keep(eni_client *client, uint32_t number)
{
    const eni_header header = {.kind = ENI_SNAPSHOT_KEEP, .step = number};
    enter(client);
    en_status st = reconnect(client);
    if (st == EN_OK)
        st = step(client, &(eni_client_event){.type = ENI_CLIENT_KEEP, .message = &header}, NULL);
    leave(client);
    return st;
}

en_status eni_client_wait(eni_client *client, uint32_t bucket)
{
    enter(client);
    en_status st = reconnect(client);
    if (st == EN_OK) st = take(client);
    while (st == EN_OK && client->calls[bucket].pending > 0)
        st = wait_more(client);
    leave(client);
    return st;
}

static int goodbyes(const eni_client *client)
{
    int n = 0;
    for (int k = 0; k < client->shards; k++)
        n += client->state.shards[k].goodbye != ENI_CLIENT_NO_GOODBYE;
    return n;
}

static en_status finish(eni_client *client)
{
    const int64_t deadline = eni_now_ns() + 60 * ENI_SECOND;
    EN_TRY(reconnect(client));
    EN_TRY(step(client, &(eni_client_event){.type = ENI_CLIENT_FINISH}, NULL));
    while (goodbyes(client) < client->shards) {
        EN_TRY(wait_more(client));
        /* With `keep` psd may be away, which alive() bounds, or wait for a slow disk. */
        if (client->config.keep == 0 && eni_now_ns() > deadline)
            return eni_fail(EN_ETIMEOUT, "client",
                            "only %d of %d shards of psd said goodbye within 60 s: check the load of its "
                            "host and the network",
                            goodbyes(client), client->shards);
    }
    return EN_OK;
}

en_status eni_client_finished(eni_client *client)
{
    enter(client);
    const en_status st = finish(client);
    leave(client);
    return st;
}

/* ---- open and close ---- */

static void lay_out_partitions(eni_client *client)
{
    for (uint32_t b = 0; b < client->config.buckets->n; b++) {
        const uint64_t count = client->config.buckets->bucket[b].hi - client->config.buckets->bucket[b].lo;
        for (int k = 0; k < client->shards; k++) {
            eni_client_partition *c = eni_client_partition_at(&client->state, b, k);
            c->lo = eni_slice_lo(count, k, client->shards);
            c->count = eni_slice_lo(count, k + 1, client->shards) - c->lo;
        }
    }
}

/* A psd that dies meanwhile comes back. */
static en_status connect_first(eni_client *client)
{
    const eni_client_config *c = &client->config;
    en_status st = eni_client_wire_connect(&client->wire, c->psd, c->join_deadline_ns);
    const bool may_be_gone = st == EN_ENOENT || st == EN_EPEER || st == EN_ETIMEOUT;
    if (c->keep > 0 && may_be_gone) st = await_another(client, st, eni_now_ns() + RETURN_S * ENI_SECOND);
    EN_TRY(st);
    return eni_client_wire_is_outdated(&client->wire) ? reconnect(client) : tell_state(client);
}

en_status eni_client_open(const eni_client_config *config, eni_client **client_out)
{
    eni_client *client = eni_alloc(sizeof *client);
    if (client == NULL) return EN_ENOMEM;
    client->config = *config;
    client->shards = config->psd->shards;
    en_status st = EN_OK;
    client->calls = eni_alloc_array(config->buckets->n, sizeof *client->calls);
    EN_TRY_GOTO(eni_client_wire_init(&client->wire, &client->config), close_client);
    EN_TRY_GOTO(client->calls == NULL ? EN_ENOMEM : EN_OK, close_client);
    EN_TRY_GOTO(eni_client_state_init(&client->state, config->buckets->n, client->shards, config->rank,
                                      config->incarnation, config->keep),
                close_client);
    EN_TRY_GOTO(connect_first(client), close_client);
    lay_out_partitions(client);
    EN_TRY_GOTO(start_thread(client), close_client);
    *client_out = client;
    return EN_OK;
close_client:
    eni_client_close(client);
    return st;
}

void eni_client_close(eni_client *client)
{
    if (client == NULL) return;
    stop_thread(client);
    eni_client_wire_fini(&client->wire);
    eni_client_state_fini(&client->state);
    eni_client_actions_fini(&client->actions);
    eni_free(client->calls);
    eni_free(client);
}

/* ---- queries ---- */

void eni_client_count(const eni_client *client, eni_client_counters *counters_out)
{
    enter(client);
    *counters_out = client->counters;
    counters_out->wire_bytes = eni_client_wire_bytes(&client->wire);
    counters_out->wait_ns = client->wire.wait_ns;
    leave(client);
}

int64_t eni_client_waited(const eni_client *client)
{
    enter(client);
    const int64_t wait_ns = client->wire.wait_ns;
    leave(client);
    return wait_ns;
}

int eni_client_shards(const eni_client *client)
{
    return client->shards;
}

void eni_client_past(const eni_client *client, uint32_t bucket, int shard, eni_partition_past *past_out)
{
    enter(client);
    const eni_client_partition *c = eni_client_partition_at(&client->state, bucket, shard);
    *past_out = (eni_partition_past){client->config.buckets->bucket[bucket].lo + c->lo, c->count,
                                     c->past_version, c->past_steps, c->past_samples};
    leave(client);
}

void eni_client_set_past(eni_client *client, uint32_t bucket, int shard, const eni_partition_past *past)
{
    enter(client);
    eni_client_partition *c = eni_client_partition_at(&client->state, bucket, shard);
    c->past_version = past->version;
    c->past_steps = past->steps;
    c->past_samples = past->samples;
    leave(client);
}

eni_client_answer eni_client_answered(const eni_client *client, uint32_t bucket)
{
    enter(client);
    const eni_client_answer answer = eni_client_state_answered(&client->state, bucket);
    leave(client);
    return answer;
}

bool eni_client_is_shared(const eni_client *client)
{
    return client->wire.is_shared;
}

/* ---- the shards' addresses ---- */

static const char *find_text(const eni_peer *psd, const char *what, int number)
{
    char key[32];
    snprintf(key, sizeof key, "%s.%d", what, number);
    return eni_key_value_find(psd->member_data, psd->nmember_data, key);
}

static int find_count(const eni_peer *psd, const char *key, int most)
{
    const char *text = eni_key_value_find(psd->member_data, psd->nmember_data, key);
    const int n = text == NULL ? 0 : atoi(text);
    return n >= 1 && n <= most ? n : 0;
}

en_status eni_endpoints_find(const eni_peer *psd, uint32_t epoch, const char *host_id,
                             eni_endpoints *endpoints_out)
{
    const char *every = eni_key_value_find(psd->member_data, psd->nmember_data, "state-every");
    const int servers = find_count(psd, "servers", ENI_SERVERS_MAX);
    *endpoints_out = (eni_endpoints){.epoch = epoch,
                                     .shards = find_count(psd, "shards", ENI_SHARDS_MAX),
                                     .servers = host_id != NULL ? servers : 0,
                                     .state_every = every == NULL ? 0 : strtoull(every, NULL, 10)};
    if (endpoints_out->shards == 0 || servers == 0)
        return eni_fail(EN_EPROTO, "endpoints",
                        "the leader at %s is not a psd: use the address that psd prints", psd->host);
    for (int k = 0; k < endpoints_out->shards; k++) {
        endpoints_out->tcp[k] = find_text(psd, "shard", k);
        if (endpoints_out->tcp[k] != NULL) continue;
        return eni_fail(EN_EPROTO, "endpoints",
                        "psd announced no address for its shard %d: check that it runs the same version", k);
    }
    for (int s = 0; s < endpoints_out->servers; s++) {
        const char *at = find_text(psd, "host-id", s);
        endpoints_out->arena_sockets[s] = find_text(psd, "arena", s);
        if (endpoints_out->arena_sockets[s] == NULL || at == NULL || strcmp(at, host_id) != 0)
            endpoints_out->servers = 0;
    }
    return EN_OK;
}
