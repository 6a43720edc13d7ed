/* client_return.c - a psd that comes back: what is kept for it, and how it is sent again.
 *
 * A cell is in one of two states. Normally a call is kept, sent and answered. When psd has come back, `again`
 * is the kept call whose answer is awaited; each answer sends the next one, and a new call only joins the
 * queue. The answer to the last kept one, if a call of the user's still waits for it, is that call's answer.
 *
 *     kept:   #7 -> #8 -> #9 -> #10      stable 6 before psd died
 *                   ^again      ^last, in flight
 *
 * The idea is upstream backup (Hwang'05): what a consumer has not secured, its producers keep. */
#include <string.h>

#include "runtime/client/client_impl.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/mutation.h"
#include "core/try.h"

enum {
    REST_MS = 20,  /* the thread looks so often whether psd came back */
    BUSY_MS = 1,   /* and leaves the client to others for so long while it sends again */
    RETURN_S = 10, /* a psd that is back answers within this time, or has died again */
    STALLED_S = 5  /* psd answers, but gets nothing onto its disk: then the oldest call is let go */
};

/* ---- the lock ------------------------------------------------------------------------------------------ */

void eni_client_enter(const eni_client *client)
{
    if (client->has_thread) pthread_mutex_lock((pthread_mutex_t *)&client->lock);
}

void eni_client_exit(const eni_client *client)
{
    if (client->has_thread) pthread_mutex_unlock((pthread_mutex_t *)&client->lock);
}

int eni_client_is_outdated(const eni_client *client)
{
    return client->config.keep > 0 && client->config.generation(client->config.user) != client->generation;
}

/* ---- keeping ------------------------------------------------------------------------------------------- */

static void drop_first(eni_client_cell *c)
{
    eni_kept *kept = c->first;
    c->first = kept->next;
    if (c->first == NULL) c->last = NULL;
    kept->next = c->idle;
    c->idle = kept;
    c->nkept--;
}

/* An INIT is stable when any call is: the store takes none before it. */
static int is_stable(const eni_kept *kept, uint64_t stable)
{
    return kept->header.type == ENI_MSG_CALL ? kept->header.seq <= stable : stable > 0;
}

/* The last stable one stays, and is asked again before the others: the state may have it in a round that is
 * yet to be made up, and what follows must not get into that round (store_save.h). */
static void let_go_stable(eni_client_cell *c, uint64_t stable)
{
    while (c->first != c->last && c->first != c->again &&
           is_stable(eni_mutant("replay-after-stable") ? c->first : c->first->next, stable))
        drop_first(c);
}

void eni_client_let_go(eni_client *client, int shard)
{
    for (uint32_t b = 0; b < client->config.buckets->n; b++) {
        eni_client_cell *c = eni_client_cell_at(client, b, shard);
        while (c->first != NULL)
            drop_first(c);
    }
}

/* How far the cell is stable: the answer is a REPLY with seq 0, and psd sees to it that it soon is. */
static en_status ask(eni_client *client, eni_client_cell *c, const eni_header *about)
{
    eni_header header = eni_client_header(client, ENI_MSG_CALL);
    header.flags = ENI_FLAG_REPLAY;
    header.bucket = about->bucket;
    header.count = c->count;
    c->is_asking = 1;
    return eni_client_send(client, (int)about->shard, &header, NULL, 0);
}

static void warn_of_loss(eni_client *client)
{
    if (!client->has_warned)
        eni_warn("client",
                 "psd has not got its state onto its disk for a while: not all calls since then are "
                 "kept, and if psd is lost now it cannot come back");
    client->has_warned = 1;
}

static en_status make_room(eni_client *client, eni_client_cell *c, const eni_header *about)
{
    int64_t stalled_ns = 0;
    while (c->nkept >= client->config.keep) {
        const int was_asking = c->is_asking;
        if (!was_asking && c->again == NULL) EN_TRY(ask(client, c, about));
        EN_TRY(eni_client_slice(client));
        EN_TRY(eni_client_tend(client));
        EN_TRY(eni_client_take(client));
        if (c->is_asking || c->again != NULL || c->nkept < client->config.keep) continue;
        const int64_t now = eni_now_ns();
        if (stalled_ns == 0) stalled_ns = now;
        if (now - stalled_ns > STALLED_S * ENI_SECOND) {
            warn_of_loss(client);
            drop_first(c);
        }
        eni_sleep_until(now + ENI_MILLI);
    }
    return EN_OK;
}

static eni_kept *kept_new(eni_client_cell *c, int has_data)
{
    eni_kept *kept = c->idle;
    if (kept != NULL)
        c->idle = kept->next;
    else if ((kept = eni_alloc(sizeof *kept)) == NULL)
        return NULL;
    if (has_data && kept->data == NULL) kept->data = eni_alloc_array(c->count, sizeof *kept->data);
    if (!has_data || kept->data != NULL) return kept;
    eni_free(kept);
    return NULL;
}

en_status eni_client_keep(eni_client *client, eni_client_cell *c, const eni_header *header,
                          const float *payload)
{
    if (client->config.keep == 0) return EN_OK;
    if (header->type == ENI_MSG_SNAPSHOT) {
        c->snapshot = *header;
        return EN_OK;
    }
    EN_TRY(make_room(client, c, header));
    eni_kept *kept = kept_new(c, payload != NULL);
    if (kept == NULL) return EN_ENOMEM;
    if (payload != NULL) memcpy(kept->data, payload, c->count * sizeof *payload);
    kept->header = *header;
    kept->order = ++c->order;
    kept->next = NULL;
    if (c->last != NULL)
        c->last->next = kept;
    else
        c->first = kept;
    c->last = kept;
    c->nkept++;
    return EN_OK;
}

/* ---- sending again ------------------------------------------------------------------------------------- */

static en_status send_kept(eni_client *client, int shard, const eni_kept *kept)
{
    eni_header header = kept->header;
    header.flags |= ENI_FLAG_REPLAY;
    client->counters.replayed++;
    return eni_client_send(client, shard, &header, header.bytes > 0 ? kept->data : NULL, 0);
}

en_status eni_client_say_finished(eni_client *client, int shard)
{
    eni_header header = eni_client_header(client, ENI_MSG_FINISHED);
    if (client->nagain[shard] > 0 || client->farewell[shard] == ENI_FAREWELL_STABLE) return EN_OK;
    return eni_client_send(client, shard, &header, NULL, 0);
}

static void note_returned(eni_client *client)
{
    const int64_t took = eni_now_ns() - client->return_begin_ns;
    if (took > client->counters.return_ns) client->counters.return_ns = took;
    eni_debug("client", "psd has all calls again after %.0f ms", (double)took / 1e6);
}

/* Sends kept call c->again, or what waits for the end of these. */
static en_status send_next(eni_client *client, eni_client_cell *c, int shard)
{
    if (c->again != NULL) return send_kept(client, shard, c->again);
    if (c->snapshot.type == 0) return EN_OK;
    eni_header header = c->snapshot;
    return eni_client_send(client, shard, &header, NULL, 0);
}

/* A cell has nothing more to send again. */
static en_status cell_is_back(eni_client *client, int shard)
{
    client->nagain[shard]--;
    if (--client->nagain_all == 0) note_returned(client);
    return client->is_finishing ? eni_client_say_finished(client, shard) : EN_OK;
}

/* The answer to a kept call that was sent again. */
static en_status heard_again(eni_client *client, eni_client_cell *c, const eni_header *header,
                             int *is_awaited)
{
    const eni_kept *done = c->again;
    const uint64_t order = done->order;
    *is_awaited = c->in_flight && done == c->last && c->snapshot.type == 0;
    c->again = NULL;
    let_go_stable(c, header->stable);
    for (eni_kept *kept = c->first; kept != NULL && c->again == NULL; kept = kept->next)
        if (kept->order > order) c->again = kept;
    EN_TRY(send_next(client, c, (int)header->shard));
    return c->again == NULL ? cell_is_back(client, (int)header->shard) : EN_OK;
}

en_status eni_client_heard(eni_client *client, eni_client_cell *c, const eni_header *header,
                           int *is_awaited_out)
{
    if (client->config.keep == 0) return EN_OK;
    if (c->again != NULL) {
        *is_awaited_out = 0;
        return header->seq == c->again->header.seq ? heard_again(client, c, header, is_awaited_out) : EN_OK;
    }
    let_go_stable(c, header->stable);
    if (c->is_asking && header->seq == 0) {
        c->is_asking = *is_awaited_out = 0;
        return EN_OK;
    }
    if (header->seq == 0) c->snapshot.type = 0;
    return EN_OK;
}

/* ---- psd is back --------------------------------------------------------------------------------------- */

static void forget_way(eni_client *client)
{
    eni_client_disconnect(client);
    client->nagain_all = 0;
    for (int k = 0; k < client->shards; k++) {
        client->nagain[k] = 0;
        for (uint32_t b = 0; b < client->config.buckets->n; b++) {
            eni_client_cell *c = eni_client_cell_at(client, b, k);
            c->again = NULL;
            c->is_asking = 0;
            c->is_older = 1;
        }
    }
}

static en_status send_all_again(eni_client *client)
{
    for (int k = 0; k < client->shards; k++) {
        for (uint32_t b = 0; b < client->config.buckets->n; b++) {
            eni_client_cell *c = eni_client_cell_at(client, b, k);
            c->again = c->first;
            client->nagain[k] += c->again != NULL;
            client->nagain_all += c->again != NULL;
        }
        for (uint32_t b = 0; b < client->config.buckets->n; b++)
            EN_TRY(send_next(client, eni_client_cell_at(client, b, k), k));
        if (client->is_finishing) EN_TRY(eni_client_say_finished(client, k));
    }
    if (client->nagain_all == 0) note_returned(client);
    return EN_OK;
}

/* It may have died again while we connected: then it comes back again. */
static en_status await_another(eni_client *client, en_status status, int64_t deadline_ns)
{
    while (!eni_client_is_outdated(client)) {
        if (client->config.alive != NULL) EN_TRY(client->config.alive(client->config.user));
        if (eni_now_ns() > deadline_ns) return status;
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    }
    return EN_OK;
}

static en_status come_back(eni_client *client)
{
    const int64_t deadline = eni_now_ns() + RETURN_S * ENI_SECOND;
    eni_client_place place;
    client->return_begin_ns = eni_now_ns();
    client->generation = client->config.generation(client->config.user);
    forget_way(client);
    EN_TRY(eni_client_unmap_weights(client));
    EN_TRY(client->config.locate(client->config.user, &place));
    if (place.shards != client->shards) {
        eni_error("client", "psd came back with %d lanes, it had %d", place.shards, client->shards);
        return EN_EPROTO;
    }
    const en_status st = eni_client_connect(client, &place, deadline);
    if (st != EN_OK) return await_another(client, st, deadline);
    if (eni_client_is_outdated(client)) return EN_OK;
    client->counters.returns++;
    return send_all_again(client);
}

en_status eni_client_tend(eni_client *client)
{
    EN_TRY(client->failure);
    while (eni_client_is_outdated(client))
        EN_TRY(come_back(client));
    return EN_OK;
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

static en_status look_after(eni_client *client)
{
    EN_TRY(eni_client_tend(client));
    if (client->nagain_all == 0) return EN_OK;
    EN_TRY(eni_client_slice(client));
    return eni_client_take(client);
}

static void *run_thread(void *user)
{
    eni_client *client = user;
    pthread_mutex_lock(&client->lock);
    while (!client->is_stopping) {
        const int64_t rest = (client->nagain_all > 0 ? BUSY_MS : REST_MS) * ENI_MILLI,
                      until = eni_now_ns() + rest;
        const struct timespec at = {until / ENI_SECOND, until % ENI_SECOND};
        pthread_cond_timedwait(&client->stop, &client->lock, &at);
        if (!client->is_stopping && client->failure == EN_OK) client->failure = look_after(client);
    }
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

en_status eni_client_return_open(eni_client *client)
{
    pthread_condattr_t clock;
    if (client->config.keep == 0) return EN_OK;
    client->generation = 0;
    pthread_mutex_init(&client->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&client->stop, &clock);
    pthread_condattr_destroy(&clock);
    client->has_thread = 1;
    if (pthread_create(&client->thread, NULL, run_thread, client) == 0) return EN_OK;
    client->has_thread = 0;
    pthread_cond_destroy(&client->stop);
    pthread_mutex_destroy(&client->lock);
    eni_error("client", "cannot start the thread that watches for psd's return");
    return EN_EIO;
}

void eni_client_return_close(eni_client *client)
{
    if (client->has_thread) {
        pthread_mutex_lock(&client->lock);
        client->is_stopping = 1;
        pthread_cond_signal(&client->stop);
        pthread_mutex_unlock(&client->lock);
        pthread_join(client->thread, NULL);
        client->has_thread = 0;
        pthread_cond_destroy(&client->stop);
        pthread_mutex_destroy(&client->lock);
    }
    const uint64_t n =
        client->cells == NULL ? 0 : (uint64_t)client->config.buckets->n * (uint64_t)client->shards;
    for (uint64_t i = 0; i < n; i++) {
        eni_client_cell *c = &client->cells[i];
        while (c->first != NULL)
            drop_first(c);
        for (eni_kept *kept = c->idle, *next; kept != NULL; kept = next) {
            next = kept->next;
            eni_free(kept->data);
            eni_free(kept);
        }
    }
}
