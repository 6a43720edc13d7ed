/* envoy.c - calls under faults. Letters between ranks and stores are lost, doubled, delayed or cut off; calls
 * are resent, retained and replayed until they are through: what runtime/client/client.c does on sockets, in
 * the form that a storm tries.
 *
 * From top to bottom: a letter on its way, what a store does with it, and the client of a rank: its alarms,
 * FINISHED, its calls, their answers. */
#include <inttypes.h>
#include <string.h>

#include "core/log.h"
#include "core/mutation.h"
#include "core/try.h"
#include "runtime/sim/faults/faults_impl.h"
#include "runtime/store/store_save.h"

/* ---- letters ------------------------------------------------------------------------------------------- */

static void arrived(void *sim, void *letter);
static void receive(eni_sim *sim, const eni_letter *letter);

static int is_cut(const eni_sim *sim, const eni_letter *l)
{
    const eni_fault_state *w = sim->fault_state;
    const int way = l->type <= ENI_LETTER_FINISHED ? 1 : 2;
    for (int32_t i = 0; i < w->plan->cuts; i++) {
        const eni_cut *cut = &w->cut[i];
        if (cut->rank == l->rank && cut->store == l->store && cut->ways & way &&
            cut->from_ns <= sim->queue.now_ns && sim->queue.now_ns < cut->to_ns)
            return 1;
    }
    return 0;
}

static void send_copy(eni_sim *sim, const eni_letter *like, const float *data, int64_t delay_ns)
{
    const uint64_t bytes = data ? like->count * sizeof(float) : 0;
    eni_letter *letter = eni_sim_alloc(sim, sizeof *letter + bytes);
    if (!letter) {
        eni_sim_fail(sim, EN_ENOMEM);
        return;
    }
    *letter = *like;
    letter->sim = sim;
    if (data) memcpy(letter->data, data, bytes);
    eni_faults_post(sim, delay_ns, arrived, letter);
}

static void send_letter(eni_sim *sim, const eni_letter *like, const float *data)
{
    eni_fault_state *w = sim->fault_state;
    const eni_fault_plan *plan = w->plan;
    const int64_t latency = sim->network.latency_ns;
    w->figures->messages++;
    if (eni_faults_is_quiet(sim)) {
        send_copy(sim, like, data, latency);
        return;
    }
    if (is_cut(sim, like)) {
        w->figures->cut++;
        return;
    }
    if (eni_faults_happens(w, plan->drop)) {
        w->figures->dropped++;
        return;
    }
    const int copies = 1 + eni_faults_happens(w, plan->twice);
    w->figures->doubled += copies > 1;
    for (int i = 0; i < copies; i++) {
        const int is_slow = eni_faults_happens(w, plan->slow);
        w->figures->delayed += (uint64_t)is_slow;
        send_copy(sim, like, data,
                  latency + eni_faults_draw_ns(w, latency) +
                      (is_slow ? eni_faults_draw_ns(w, plan->slow_ns) : 0));
    }
}

/* ---- at a store ---------------------------------------------------------------------------------------- */

static void release_letter(void *letter_)
{
    eni_letter *letter = letter_;
    eni_sim_free(letter->sim, letter);
}

/* Tickets name the incarnation too: the answer to a dead one's call must not reach its successor. */
static uint64_t ticket_of(const eni_letter *letter)
{
    return letter->incarnation << 40 | letter->seq;
}

static en_status call_store(eni_sim_store *store, eni_letter *l)
{
    eni_fault_store *fault = &l->sim->fault_state->fault[l->store];
    const uint64_t before = eni_store_seq(store->core, l->rank, l->bucket);
    uint64_t version = 0;
    eni_store_weights(store->core, l->bucket, &version);
    eni_event_trace_add(&l->sim->events, &(eni_sim_event){.at_ns = l->sim->queue.now_ns,
                                                       .type = ENI_SIM_PUSH,
                                                       .rank = l->rank,
                                                       .peer = store->peer,
                                                       .bucket = l->bucket,
                                                       .clock = l->seq,
                                                       .version = version,
                                                       .base = l->base_version});
    const uint64_t base = l->base_version < version ? l->base_version : version, seq = l->seq;
    const int is_push = l->nsamples > 0;
    const int32_t rank = l->rank;
    const uint32_t bucket = l->bucket;
    const eni_store_event event = {.type = ENI_STORE_CALL,
                                   .client = l->rank,
                                   .incarnation = l->incarnation,
                                   .ticket = ticket_of(l),
                                   .bucket = l->bucket,
                                   .seq = l->seq,
                                   .kind = l->kind,
                                   .what = l->what,
                                   .base_version = l->base_version,
                                   .is_replay = l->is_replay,
                                   .nsamples = l->nsamples,
                                   .covered = l->covered,
                                   .payload = {.data = l->count ? l->data : NULL,
                                               .count = l->count,
                                               .release = l->count ? release_letter : NULL,
                                               .owner = l}};
    const int is_ours = l->count == 0;
    const en_status st = eni_delivery_handle(store, &event);
    if (is_push && seq == before + 1 && eni_store_seq(store->core, rank, bucket) == seq) {
        fault->behind += version - base;
        fault->counted++;
    }
    if (is_ours) release_letter(l);
    return st;
}

static en_status finish_at_store(eni_sim_store *store, eni_letter *l)
{
    const eni_letter goodbye = {.type = ENI_LETTER_GOODBYE,
                                .store = l->store,
                                .rank = l->rank,
                                .epoch = l->epoch,
                                .incarnation = l->incarnation};
    eni_sim *sim = l->sim;
    const en_status st = eni_faults_member(store, l->rank, l->incarnation, EN_MEMBER_FINISHED);
    release_letter(l);
    send_letter(sim, &goodbye, NULL);
    return st;
}

static void arrived(void *sim_, void *letter_)
{
    eni_sim *sim = sim_;
    eni_letter *l = letter_;
    if (l->type > ENI_LETTER_FINISHED) {
        receive(sim, l);
        release_letter(l);
        return;
    }
    const eni_fault_store *fault = &sim->fault_state->fault[l->store];
    if (fault->is_down || (fault->epoch != l->epoch &&
                           !eni_mutant("stale-epoch"))) { /* psd refuses it without a look at the store */
        sim->fault_state->figures->stale++;
        release_letter(l);
        return;
    }
    eni_sim_store *store = &sim->stores[l->store];
    const en_status st = l->type == ENI_LETTER_CALL ? call_store(store, l) : finish_at_store(store, l);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

void eni_envoy_reply(eni_sim_store *store, const eni_store_action *action)
{
    eni_sim *sim = store->sim;
    const int32_t k = (int32_t)(store - sim->stores);
    const eni_fault_store *fault = &sim->fault_state->fault[k];
    const eni_snapshot *safe = &fault->safe;
    eni_letter letter = {.type = action->type == ENI_STORE_REPLY ? ENI_LETTER_REPLY : ENI_LETTER_REFUSED,
                         .store = k,
                         .rank = action->client,
                         .epoch = fault->epoch,
                         .incarnation = action->ticket >> 40,
                         .bucket = action->bucket,
                         .seq = action->ticket & ((UINT64_C(1) << 40) - 1),
                         .version = action->version,
                         .status = action->status,
                         .count = action->data ? action->count : 0};
    const uint64_t at = (uint64_t)action->client * sim->buckets->n + action->bucket;
    if (safe->incarnation[action->client] == letter.incarnation) letter.stable = safe->seq[at];
    if (eni_mutant("ack-before-durable"))
        letter.stable = eni_store_seq(store->core, action->client, action->bucket);
    memcpy(letter.text, action->text, sizeof letter.text);
    send_letter(sim, &letter, action->data);
}

/* ---- the client of a rank -------------------------------------------------------------------------------
 */

static eni_envoy **seat_of(const eni_sim *sim, int32_t rank, int32_t store, uint32_t bucket)
{
    return &sim->fault_state
                ->envoy[((uint64_t)rank * (uint64_t)sim->nstores + (uint64_t)store) * sim->buckets->n +
                        bucket];
}

eni_finished_notice *eni_envoy_finished_notice(const eni_sim *sim, int32_t rank, int32_t store)
{
    return &sim->fault_state->finished[(uint64_t)rank * (uint64_t)sim->nstores + (uint64_t)store];
}

/* ---- alarms -------------------------------------------------------------------------------------------- */

typedef struct alarm {
    eni_envoy *envoy;       /* either this */
    eni_finished_notice *finished; /* or this */
    int32_t rank, store;
    uint64_t attempt;
} alarm;

static void send_current(eni_envoy *e);
static void say_finished(eni_sim *sim, int32_t rank, int32_t store);

static void alarm_rings(void *sim_, void *alarm_)
{
    eni_sim *sim = sim_;
    const alarm a = *(alarm *)alarm_;
    eni_sim_free(sim, alarm_);
    if (a.envoy && (a.envoy->is_dead || !a.envoy->current || a.envoy->attempt != a.attempt)) return;
    if (a.finished && (a.finished->is_said || a.finished->attempt != a.attempt)) return;
    sim->fault_state->figures->resends++;
    if (a.envoy)
        send_current(a.envoy);
    else
        say_finished(sim, a.rank, a.store);
}

static void set_alarm(eni_sim *sim, const alarm *like)
{
    alarm *a = eni_sim_alloc(sim, sizeof *a);
    en_status st = EN_ENOMEM;
    if (a) {
        *a = *like;
        st = eni_event_queue_post(&sim->queue, sim->queue.now_ns + sim->fault_state->plan->resend_ns,
                             alarm_rings, sim, a);
    }
    if (st != EN_OK) eni_sim_fail(sim, st);
}

/* ---- FINISHED ------------------------------------------------------------------------------------------ */

static void say_finished(eni_sim *sim, int32_t rank, int32_t store)
{
    eni_finished_notice *f = eni_envoy_finished_notice(sim, rank, store);
    const eni_letter like = {.type = ENI_LETTER_FINISHED,
                             .sim = sim,
                             .rank = rank,
                             .store = store,
                             .epoch = f->epoch,
                             .incarnation = sim->fault_state->member[rank].incarnation};
    f->attempt++;
    send_letter(sim, &like, NULL);
    set_alarm(sim, &(alarm){.finished = f, .rank = rank, .store = store, .attempt = f->attempt});
}

/* Once nothing is awaited any more: it must not overtake a call that is replayed. */
static void maybe_say_finished(eni_sim *sim, int32_t rank, int32_t store)
{
    const eni_finished_notice *f = eni_envoy_finished_notice(sim, rank, store);
    if (!f->is_due || f->is_said) return;
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        const eni_envoy *e = *seat_of(sim, rank, store, b);
        if (e && e->current) return;
    }
    say_finished(sim, rank, store);
}

void eni_envoy_finished(eni_rank *rank)
{
    eni_sim *sim = rank->sim;
    const int32_t r = rank->world.rank;
    eni_faults_tell(sim, ENI_NEWS_FINISHED, &(eni_envoy){.rank = r}, NULL);
    for (int32_t k = 0; k < sim->nstores; k++) {
        eni_envoy_finished_notice(sim, r, k)->is_due = 1;
        maybe_say_finished(sim, r, k);
    }
}

/* ---- calls --------------------------------------------------------------------------------------------- */

static void send_current(eni_envoy *e)
{
    eni_retained *r = e->current;
    r->letter->epoch = e->epoch;
    r->letter->is_replay = r->base_epoch != e->epoch;
    e->attempt++;
    send_letter(e->sim, r->letter, r->letter->data);
    set_alarm(e->sim, &(alarm){.envoy = e, .attempt = e->attempt});
}

static void free_retained(eni_envoy *e, eni_retained *r)
{
    eni_sim_free(e->sim, r->letter);
    eni_sim_free(e->sim, r);
}

/* Lets go of what is answered and survives the store's death. The last such call stays: a store that comes
 * back has it, but may have yet to make up the round that answered it, and what follows must not get into
 * that round. So a replay begins with asking for it again. */
static void prune(eni_envoy *e)
{
    while (e->first != e->last && e->first != e->current && e->first->is_answered &&
           e->first->letter->seq < e->stable + (uint64_t)eni_mutant("replay-after-stable")) {
        eni_retained *next = e->first->next;
        free_retained(e, e->first);
        e->first = next;
    }
}

static eni_envoy *envoy_for(eni_rank *rank, int32_t store, uint32_t bucket)
{
    eni_sim *sim = rank->sim;
    const int32_t r = rank->world.rank;
    eni_envoy **seat = seat_of(sim, r, store, bucket);
    if (*seat || !(*seat = eni_sim_alloc(sim, sizeof **seat))) return *seat;
    const uint32_t epoch = eni_envoy_finished_notice(sim, r, store)->epoch;
    **seat = (eni_envoy){.sim = sim,
                         .rank = r,
                         .store = store,
                         .bucket = bucket,
                         .epoch = epoch,
                         .base_epoch = epoch,
                         .incarnation = sim->fault_state->member[r].incarnation};
    return *seat;
}

en_status eni_envoy_call(eni_rank *rank, const eni_sim_call *order)
{
    eni_sim *sim = rank->sim;
    eni_envoy *e = envoy_for(rank, order->store, order->bucket);
    const uint64_t count = order->out ? order->count : 0;
    eni_retained *r = e ? eni_sim_alloc(sim, sizeof *r) : NULL;
    eni_letter *letter = r ? eni_sim_alloc(sim, sizeof *letter + count * sizeof(float)) : NULL;
    if (!letter) return EN_ENOMEM;
    *letter = (eni_letter){.type = ENI_LETTER_CALL,
                           .sim = sim,
                           .store = order->store,
                           .rank = e->rank,
                           .incarnation = e->incarnation,
                           .bucket = order->bucket,
                           .kind = order->kind,
                           .what = order->what,
                           .seq = ++e->seq,
                           .base_version = e->base_version,
                           .nsamples = order->nsamples,
                           .covered = order->covered,
                           .count = count};
    if (order->out) memcpy(letter->data, order->out, count * sizeof(float));
    *r = (eni_retained){.letter = letter,
                        .base_epoch = e->base_epoch,
                        .micro_batch = rank->first_batch,
                        .in = order->in,
                        .request = order->request};
    if (e->last)
        e->last->next = r;
    else
        e->first = r;
    e->last = r;
    rank->result->sent += count * sizeof(float);
    eni_faults_tell(sim, ENI_NEWS_CALLED, e, r);
    if (e->current) return EN_OK; /* behind a replay */
    e->current = r;
    send_current(e);
    return EN_OK;
}

/* ---- answers ------------------------------------------------------------------------------------------- */

/* The first answer is the rank's; those to replays only show that the store has the call. */
static void deliver(eni_envoy *e, eni_retained *r, const eni_letter *answer)
{
    eni_rank *rank = &e->sim->ranks[e->rank];
    r->is_answered = 1;
    if (answer->type == ENI_LETTER_REPLY) {
        e->base_version = answer->version;
        e->base_epoch = e->epoch;
        if (r->in && answer->count > 0) {
            memcpy(r->in, answer->data, answer->count * sizeof(float));
            rank->result->recv += answer->count * sizeof(float);
        }
        eni_faults_tell(e->sim, ENI_NEWS_ANSWERED, e, r);
    } else {
        eni_warn("envoy", "store %d refused rank %d: %s", e->store, e->rank, answer->text);
    }
    eni_rank_part_done(rank, r->request, answer->status);
}

static void receive_answer(eni_envoy *e, const eni_letter *answer)
{
    eni_retained *r = e->current;
    if (answer->epoch != e->epoch || !r || answer->seq != r->letter->seq) return; /* to an earlier question */
    if (!r->is_answered) deliver(e, r, answer);
    if (answer->stable > e->stable) e->stable = answer->stable;
    e->current = r->next;
    prune(e);
    if (e->current)
        send_current(e);
    else
        maybe_say_finished(e->sim, e->rank, e->store);
}

static void receive(eni_sim *sim, const eni_letter *letter)
{
    if (letter->type == ENI_LETTER_GOODBYE) {
        eni_finished_notice *f = eni_envoy_finished_notice(sim, letter->rank, letter->store);
        if (letter->epoch == f->epoch && f->is_due) f->is_said = 1;
        return;
    }
    eni_envoy *e = *seat_of(sim, letter->rank, letter->store, letter->bucket);
    if (e && e->incarnation == letter->incarnation) receive_answer(e, letter);
}

void eni_envoy_new_epoch(eni_sim *sim, int32_t rank, int32_t store, uint32_t epoch)
{
    eni_finished_notice *f = eni_envoy_finished_notice(sim, rank, store);
    if (epoch <= f->epoch) return;
    f->epoch = epoch;
    f->is_said = 0;
    f->attempt++; /* an alarm of the life before is void */
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        eni_envoy *e = *seat_of(sim, rank, store, b);
        if (!e || e->epoch >= epoch) continue;
        e->epoch = epoch;
        e->current = NULL;
        prune(e);
        if (!e->first) continue;
        e->current = e->first;
        sim->fault_state->figures->replays++;
        send_current(e);
    }
    maybe_say_finished(sim, rank, store);
}

/* ---- the rank's end ------------------------------------------------------------------------------------ */

void eni_envoy_die(eni_sim *sim, int32_t rank)
{
    for (int32_t k = 0; k < sim->nstores; k++)
        for (uint32_t b = 0; b < sim->buckets->n; b++) {
            eni_envoy **seat = seat_of(sim, rank, k, b);
            for (eni_retained *r = *seat ? (*seat)->first : NULL; r; r = r->next)
                if (r->is_answered && r->letter->seq > (*seat)->stable)
                    eni_faults_tell(sim, ENI_NEWS_ORPHANED, *seat, r);
            if (*seat) (*seat)->is_dead = 1;
            *seat = NULL;
        }
}

int eni_envoy_is_done(const eni_sim *sim, int32_t rank)
{
    if (!eni_delivery_is_client(&sim->ranks[rank])) return 1;
    for (int32_t k = 0; k < sim->nstores; k++) {
        const eni_finished_notice *f = eni_envoy_finished_notice(sim, rank, k);
        const eni_fault_store *fault = &sim->fault_state->fault[k];
        if (!f->is_said || fault->is_down || f->epoch != fault->epoch)
            return 0; /* an earlier life's GOODBYE */
    }
    return 1;
}
