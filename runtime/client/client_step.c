/* client_step.c - the client's state machine (client_step.h): calls and answers of one partition, its
 * retransmit queue, replays to a shard that came back, the end. Nothing here blocks, reads a clock or logs,
 * except errors. */
#include "runtime/client/client_step.h"

#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* ---- actions ---- */

static eni_client_action *act(eni_client_actions *actions, eni_client_action_type type, uint32_t bucket,
                              int shard)
{
    if (eni_grow((void **)&actions->item, &actions->room, actions->n + 1, sizeof *actions->item) != EN_OK)
        return NULL;
    eni_client_action *action = &actions->item[actions->n++];
    action->type = type;
    action->bucket = bucket;
    action->shard = shard;
    action->is_call = action->is_first = action->is_replay = false;
    action->payload = NULL;
    return action;
}

void eni_client_actions_fini(eni_client_actions *actions)
{
    eni_free(actions->item);
    *actions = (eni_client_actions){0};
}

/* Every field that all messages of this client share. */
static eni_header header_of(const eni_client_state *state, uint32_t type, uint32_t bucket, int shard)
{
    return (eni_header){.type = type,
                        .rank = state->rank,
                        .bucket = bucket,
                        .shard = (uint32_t)shard,
                        .dtype = ENI_DTYPE_F32,
                        .codec = ENI_CODEC_NONE,
                        .incarnation = state->incarnation};
}

static en_status send(const eni_client_state *state, eni_client_actions *actions, const eni_header *header,
                      float *payload, bool is_first, bool is_replay)
{
    const int shard = (int)header->shard;
    eni_client_action *action = act(actions, ENI_CLIENT_SEND, header->bucket, shard);
    if (action == NULL) return EN_ENOMEM;
    action->header = *header;
    action->header.epoch = state->shards[shard].epoch;
    action->payload = payload;
    action->is_first = is_first;
    action->is_replay = is_replay;
    return EN_OK;
}

/* Flags a base_version from an incarnation that may have known more than this one. */
static uint32_t replay_flag(const eni_client_state *state, int shard, uint32_t base_epoch)
{
    return base_epoch == state->shards[shard].epoch ? 0 : ENI_FLAG_REPLAY;
}

static en_status send_kept(const eni_client_state *state, eni_client_actions *actions,
                           const eni_client_kept *kept)
{
    eni_header header = kept->header;
    header.flags |= replay_flag(state, (int)header.shard, kept->base_epoch);
    return send(state, actions, &header, header.bytes > 0 ? kept->data : NULL, false, true);
}

static en_status send_finished(const eni_client_state *state, eni_client_actions *actions, int shard)
{
    const eni_client_shard *s = &state->shards[shard];
    if (!state->is_finishing || s->replaying > 0 || s->goodbye == ENI_CLIENT_GOODBYE_DURABLE) return EN_OK;
    const eni_header header = header_of(state, ENI_MSG_FINISHED, 0, shard);
    return send(state, actions, &header, NULL, false, false);
}

/* ---- the retransmit queue ---- */

void eni_client_drop_first(eni_client_partition *c)
{
    eni_client_kept *kept = c->first;
    c->first = kept->next;
    if (c->first == NULL) c->last = NULL;
    kept->next = c->idle;
    c->idle = kept;
    c->nkept--;
}

bool eni_client_has_room(const eni_client_state *state, const eni_client_partition *c, uint32_t type)
{
    return state->keep == 0 || type == ENI_MSG_SNAPSHOT || c->nkept < state->keep;
}

/* An INIT is durable when any call is: the store takes none before it. */
static bool is_durable(const eni_client_kept *kept, uint64_t durable)
{
    return kept->header.type == ENI_MSG_CALL ? kept->header.seq <= durable : durable > 0;
}

/* The last durable call stays (client_step.h). */
static void trim(eni_client_partition *c, uint64_t durable)
{
    if (durable > c->durable) c->durable = durable;
    while (c->first != c->last && c->first != c->replay && is_durable(c->first->next, durable))
        eni_client_drop_first(c);
}

static eni_client_kept *kept_new(eni_client_partition *c, bool has_data)
{
    eni_client_kept *kept = c->idle;
    if (kept != NULL)
        c->idle = kept->next;
    else if ((kept = eni_alloc(sizeof *kept)) == NULL)
        return NULL;
    if (has_data && kept->data == NULL) kept->data = eni_alloc_array(c->count, sizeof *kept->data);
    if (!has_data || kept->data != NULL) return kept;
    eni_free(kept);
    return NULL;
}

static en_status keep(const eni_client_state *state, eni_client_partition *c, const eni_header *header,
                      const float *payload)
{
    if (state->keep == 0) return EN_OK;
    if (header->type == ENI_MSG_SNAPSHOT) {
        c->snapshot = *header;
        return EN_OK;
    }
    eni_client_kept *kept = kept_new(c, payload != NULL);
    if (kept == NULL) return EN_ENOMEM;
    if (payload != NULL) memcpy(kept->data, payload, c->count * sizeof *payload);
    kept->header = *header;
    kept->base_epoch = c->base_epoch;
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

/* ---- calls ---- */

static en_status on_call(eni_client_state *state, const eni_client_event *event, eni_client_actions *actions)
{
    eni_client_partition *c = eni_client_partition_at(state, event->bucket, event->shard);
    eni_header header = *event->message;
    if (c->in_flight)
        return eni_fail(EN_EBUG, "client", "bucket %u has a call in progress: wait for it first",
                        event->bucket);
    header.rank = state->rank;
    header.incarnation = state->incarnation;
    header.dtype = ENI_DTYPE_F32;
    header.codec = ENI_CODEC_NONE;
    header.bucket = event->bucket;
    header.shard = (uint32_t)event->shard;
    header.count = c->count;
    header.bytes = event->payload == NULL ? 0 : c->count * sizeof(float);
    header.base_version = c->version;
    if (header.type == ENI_MSG_CALL) header.seq = c->seq + 1;
    if (header.type == ENI_MSG_INIT) {
        header.base_version = c->past_version;
        header.step = c->past_steps;
        header.nsamples = c->past_samples;
    }
    EN_TRY(keep(state, c, &header, event->payload));
    if (header.type == ENI_MSG_CALL) c->seq++;
    c->awaited = header.seq;
    c->is_push = header.type == ENI_MSG_CALL && event->payload != NULL;
    c->is_snapshot = header.type == ENI_MSG_SNAPSHOT;
    c->is_aside = event->is_aside;
    c->in_flight = true;
    if (c->replay != NULL) return EN_OK; /* sent when its turn comes */
    header.flags |= replay_flag(state, event->shard, c->base_epoch);
    return send(state, actions, &header, event->payload, true, false);
}

/* The answer is a REPLY with seq 0, and the shard makes the partition durable soon. */
static en_status on_ask(eni_client_state *state, const eni_client_event *event, eni_client_actions *actions)
{
    eni_client_partition *c = eni_client_partition_at(state, event->bucket, event->shard);
    eni_header header = header_of(state, ENI_MSG_CALL, event->bucket, event->shard);
    if (c->is_asking || c->replay != NULL) return EN_OK;
    header.flags = ENI_FLAG_REPLAY;
    header.count = c->count;
    c->is_asking = true;
    return send(state, actions, &header, NULL, false, false);
}

static en_status on_finish(eni_client_state *state, eni_client_actions *actions)
{
    state->is_finishing = true;
    for (int k = 0; k < state->nshards; k++)
        EN_TRY(send_finished(state, actions, k));
    return EN_OK;
}

static en_status on_keep(eni_client_state *state, const eni_client_event *event, eni_client_actions *actions)
{
    for (int k = 0; k < state->nshards && state->replaying == 0; k++) {
        eni_header header = header_of(state, ENI_MSG_SNAPSHOT, 0, k);
        header.kind = event->message->kind;
        header.step = event->message->step;
        /* like a call, or calls could overtake it */
        EN_TRY(send(state, actions, &header, NULL, true, false));
    }
    return EN_OK;
}

/* ---- replays ---- */

static en_status recovered(eni_client_actions *actions)
{
    return act(actions, ENI_CLIENT_RECOVERED, 0, 0) == NULL ? EN_ENOMEM : EN_OK;
}

/* Sends what a partition replays next, or the snapshot that waited for the last replay. */
static en_status send_next(const eni_client_state *state, eni_client_actions *actions,
                           const eni_client_partition *c)
{
    if (c->replay != NULL) return send_kept(state, actions, c->replay);
    return c->snapshot.type == 0 ? EN_OK : send(state, actions, &c->snapshot, NULL, false, false);
}

/* A replayed call is answered: continues with the next one kept. */
static en_status replay_next(eni_client_state *state, eni_client_partition *c, const eni_header *answer,
                             eni_client_actions *actions)
{
    const uint64_t order = c->replay->order;
    eni_client_shard *s = &state->shards[answer->shard];
    c->replay = NULL;
    trim(c, answer->stable);
    for (eni_client_kept *kept = c->first; kept != NULL && c->replay == NULL; kept = kept->next)
        if (kept->order > order) c->replay = kept;
    EN_TRY(send_next(state, actions, c));
    if (c->replay != NULL) return EN_OK;
    s->replaying--;
    if (--state->replaying == 0) EN_TRY(recovered(actions));
    return send_finished(state, actions, (int)answer->shard);
}

static en_status on_returned(eni_client_state *state, const eni_client_event *event,
                             eni_client_actions *actions)
{
    eni_client_shard *s = &state->shards[event->shard];
    const bool is_first = s->parts == NULL;
    if (is_first && (s->parts = eni_alloc_array(state->nbuckets, sizeof *s->parts)) == NULL) return EN_ENOMEM;
    state->replaying -= s->replaying;
    s->replaying = 0;
    s->epoch = event->epoch;
    if (s->goodbye != ENI_CLIENT_GOODBYE_DURABLE) s->goodbye = ENI_CLIENT_NO_GOODBYE;
    for (uint32_t b = 0; b < state->nbuckets; b++) {
        eni_client_partition *c = eni_client_partition_at(state, b, event->shard);
        if (is_first) c->base_epoch = event->epoch;
        c->is_asking = false;
        c->replay = c->first;
        s->replaying += c->replay != NULL;
        EN_TRY(send_next(state, actions, c));
    }
    state->replaying += s->replaying;
    EN_TRY(send_finished(state, actions, event->shard));
    return state->replaying == 0 ? recovered(actions) : EN_OK;
}

static en_status on_overdue(eni_client_state *state, const eni_client_event *event,
                            eni_client_actions *actions)
{
    if (event->bucket == ENI_CLIENT_ALL)
        return state->shards[event->shard].goodbye == ENI_CLIENT_NO_GOODBYE
                   ? send_finished(state, actions, event->shard)
                   : EN_OK;
    const eni_client_partition *c = eni_client_partition_at(state, event->bucket, event->shard);
    if (c->replay != NULL || (c->in_flight && c->is_snapshot)) return send_next(state, actions, c);
    return c->in_flight && c->last != NULL ? send_kept(state, actions, c->last) : EN_OK;
}

/* ---- answers ---- */

static bool is_known(const eni_client_state *state, uint32_t shard)
{
    return shard < (uint32_t)state->nshards && state->shards[shard].parts != NULL;
}

static eni_client_partition *partition_of(const eni_client_state *state, const eni_header *h)
{
    if (h->bucket >= state->nbuckets || !is_known(state, h->shard)) return NULL;
    return eni_client_partition_at(state, h->bucket, (int)h->shard);
}

/* The seq that a partition waits for; UINT64_MAX: none. */
static uint64_t awaited_by(const eni_client_partition *c)
{
    if (c->replay != NULL) return c->replay->header.seq;
    return c->in_flight ? c->awaited : UINT64_MAX;
}

/* A refusal without a seq concerns the connection, or a message that is not a call. */
static en_status on_refused(const eni_client_state *state, const eni_header *h, eni_client_actions *actions)
{
    eni_client_partition *c = partition_of(state, h);
    const bool is_of_call = c != NULL && h->seq > 0;
    if (is_of_call && state->keep > 0 &&
        (h->epoch != state->shards[h->shard].epoch || h->seq != awaited_by(c)))
        return EN_OK; /* of an earlier call */
    eni_client_action *action = act(actions, ENI_CLIENT_REFUSED, h->bucket, (int)h->shard);
    if (action == NULL) return EN_ENOMEM;
    action->is_call = is_of_call && c->in_flight && h->seq == c->awaited;
    if (action->is_call) c->in_flight = false;
    return EN_OK;
}

static en_status complete(eni_client_partition *c, const eni_header *h, eni_client_actions *actions)
{
    if (c->is_push) c->behind = h->base_version > c->version ? h->base_version - c->version : 0;
    if (!c->is_aside) {
        c->version = h->version;
        c->base_epoch = h->epoch;
    }
    if (c->is_snapshot) {
        c->past_version = h->version;
        c->past_steps = h->step;
        c->past_samples = h->nsamples;
        c->least_clock = h->covered;
    }
    c->in_flight = false;
    return act(actions, ENI_CLIENT_COMPLETE, h->bucket, (int)h->shard) == NULL ? EN_ENOMEM : EN_OK;
}

static en_status on_reply(eni_client_state *state, const eni_header *h, eni_client_actions *actions)
{
    eni_client_partition *c = partition_of(state, h);
    if (c == NULL)
        return eni_fail(EN_EPROTO, "client", "shard %u of psd answered for bucket %u, but there are only %u",
                        h->shard, h->bucket, state->nbuckets);
    if (h->epoch != state->shards[h->shard].epoch) return EN_OK; /* of the previous incarnation */
    const bool is_awaited = c->in_flight && h->seq == c->awaited;
    if (h->kind == ENI_SNAPSHOT_KEEP) return EN_OK; /* nobody waits for it */
    if (c->replay != NULL) {
        if (h->seq != c->replay->header.seq) return EN_OK;
        if (is_awaited && c->replay == c->last && c->snapshot.type == 0) EN_TRY(complete(c, h, actions));
        return replay_next(state, c, h, actions);
    }
    if (state->keep > 0) trim(c, h->stable);
    if (c->is_asking && h->seq == 0) {
        c->is_asking = false;
        return EN_OK;
    }
    if (h->seq == 0) c->snapshot.type = 0;
    return is_awaited ? complete(c, h, actions) : EN_OK;
}

static en_status on_goodbye(eni_client_state *state, const eni_header *h)
{
    if (!is_known(state, h->shard))
        return eni_fail(EN_EPROTO, "client", "shard %u of psd said goodbye, but psd has only %d", h->shard,
                        state->nshards);
    eni_client_shard *s = &state->shards[h->shard];
    if (h->epoch != s->epoch) return EN_OK;
    s->goodbye = h->stable > 0 ? ENI_CLIENT_GOODBYE_DURABLE : ENI_CLIENT_GOODBYE;
    for (uint32_t b = 0; b < state->nbuckets && h->stable > 0; b++) {
        eni_client_partition *c = eni_client_partition_at(state, b, (int)h->shard);
        while (c->first != NULL && c->replay == NULL)
            eni_client_drop_first(c);
    }
    return EN_OK;
}

en_status eni_client_step(eni_client_state *state, const eni_client_event *event, eni_client_actions *actions)
{
    actions->n = 0;
    switch (event->type) {
    case ENI_CLIENT_CALL: return on_call(state, event, actions);
    case ENI_CLIENT_RETURNED: return on_returned(state, event, actions);
    case ENI_CLIENT_OVERDUE: return on_overdue(state, event, actions);
    case ENI_CLIENT_ASK: return on_ask(state, event, actions);
    case ENI_CLIENT_KEEP: return on_keep(state, event, actions);
    case ENI_CLIENT_FINISH: return on_finish(state, actions);
    case ENI_CLIENT_ANSWER: break;
    }
    switch (event->message->type) {
    case ENI_MSG_REPLY: return on_reply(state, event->message, actions);
    case ENI_MSG_REFUSED: return on_refused(state, event->message, actions);
    case ENI_MSG_GOODBYE: return on_goodbye(state, event->message);
    default:
        eni_error("client", "unexpected message of type %u from psd: only workers send it",
                  event->message->type);
        return EN_EPROTO;
    }
}

/* ---- state ---- */

en_status eni_client_state_init(eni_client_state *state, uint32_t nbuckets, int nshards, int32_t rank,
                                uint64_t incarnation, uint32_t keep)
{
    *state = (eni_client_state){
        .rank = rank, .incarnation = incarnation, .nbuckets = nbuckets, .nshards = nshards, .keep = keep};
    state->shards = eni_alloc_array((size_t)nshards, sizeof *state->shards);
    return state->shards != NULL ? EN_OK : EN_ENOMEM;
}

static void free_partition(eni_client_partition *c)
{
    while (c->first != NULL)
        eni_client_drop_first(c);
    for (eni_client_kept *kept = c->idle, *next; kept != NULL; kept = next) {
        next = kept->next;
        eni_free(kept->data);
        eni_free(kept);
    }
}

void eni_client_state_fini(eni_client_state *state)
{
    for (int k = 0; state->shards != NULL && k < state->nshards; k++) {
        eni_client_shard *s = &state->shards[k];
        for (uint32_t b = 0; s->parts != NULL && b < state->nbuckets; b++)
            free_partition(&s->parts[b]);
        eni_free(s->parts);
    }
    eni_free(state->shards);
    *state = (eni_client_state){0};
}

eni_client_answer eni_client_state_answered(const eni_client_state *state, uint32_t bucket)
{
    eni_client_answer answer = {.version = UINT64_MAX};
    int n = 0;
    for (int k = 0; k < state->nshards; k++) {
        const eni_client_partition *c =
            state->shards[k].parts == NULL ? NULL : eni_client_partition_at(state, bucket, k);
        if (c == NULL || c->count == 0) continue;
        if (c->version < answer.version) answer.version = c->version;
        answer.staleness += (double)c->behind;
        n++;
    }
    return n > 0 ? (eni_client_answer){answer.version, answer.staleness / n} : (eni_client_answer){0};
}
