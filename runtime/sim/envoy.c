/* envoy.c - calls in bad weather: resent, retained, replayed. What runtime/client/client.c does on sockets, in
 * the form that a storm tries. */
#include <inttypes.h>
#include <string.h>

#include "core/log.h"
#include "core/mutation.h"
#include "core/try.h"
#include "runtime/sim/weather.h"

static eni_envoy **seat_of(const eni_sim *sim, int32_t rank, int32_t store, uint32_t bucket)
{
    return &sim->weather
                ->envoy[((uint64_t)rank * (uint64_t)sim->nstores + (uint64_t)store) * sim->buckets->n +
                        bucket];
}

eni_farewell *eni_envoy_farewell(const eni_sim *sim, int32_t rank, int32_t store)
{
    return &sim->weather->farewell[(uint64_t)rank * (uint64_t)sim->nstores + (uint64_t)store];
}

/* ---- alarms -------------------------------------------------------------------------------------------- */

typedef struct alarm {
    eni_envoy *envoy;       /* either this */
    eni_farewell *farewell; /* or this */
    int32_t rank, store;
    uint64_t attempt;
} alarm;

static void send_current(eni_envoy *e);
static void say_farewell(eni_sim *sim, int32_t rank, int32_t store);

static void alarm_rings(void *sim_, void *alarm_)
{
    eni_sim *sim = sim_;
    const alarm a = *(alarm *)alarm_;
    eni_sim_free(sim, alarm_);
    if (a.envoy && (a.envoy->is_dead || !a.envoy->current || a.envoy->attempt != a.attempt)) return;
    if (a.farewell && (a.farewell->is_said || a.farewell->attempt != a.attempt)) return;
    sim->weather->figures->resends++;
    if (a.envoy)
        send_current(a.envoy);
    else
        say_farewell(sim, a.rank, a.store);
}

static void set_alarm(eni_sim *sim, const alarm *like)
{
    alarm *a = eni_sim_alloc(sim, sizeof *a);
    en_status st = EN_ENOMEM;
    if (a) {
        *a = *like;
        st = eni_agenda_post(&sim->agenda, sim->agenda.now_ns + sim->weather->storm->resend_ns, alarm_rings,
                             sim, a);
    }
    if (st != EN_OK) eni_sim_fail(sim, st);
}

/* ---- FINISHED ------------------------------------------------------------------------------------------ */

static void say_farewell(eni_sim *sim, int32_t rank, int32_t store)
{
    eni_farewell *f = eni_envoy_farewell(sim, rank, store);
    const eni_letter like = {.type = ENI_LETTER_FINISHED,
                             .sim = sim,
                             .rank = rank,
                             .store = store,
                             .epoch = f->epoch,
                             .incarnation = sim->weather->member[rank].incarnation};
    f->attempt++;
    eni_weather_send(sim, &like, NULL);
    set_alarm(sim, &(alarm){.farewell = f, .rank = rank, .store = store, .attempt = f->attempt});
}

/* Once nothing is awaited any more: it must not overtake a call that is replayed. */
static void maybe_say_farewell(eni_sim *sim, int32_t rank, int32_t store)
{
    const eni_farewell *f = eni_envoy_farewell(sim, rank, store);
    if (!f->is_due || f->is_said) return;
    for (uint32_t b = 0; b < sim->buckets->n; b++) {
        const eni_envoy *e = *seat_of(sim, rank, store, b);
        if (e && e->current) return;
    }
    say_farewell(sim, rank, store);
}

void eni_envoy_finished(eni_rank *rank)
{
    eni_sim *sim = rank->sim;
    const int32_t r = rank->world.rank;
    eni_weather_tell(sim, ENI_NEWS_FINISHED, &(eni_envoy){.rank = r}, NULL);
    for (int32_t k = 0; k < sim->nstores; k++) {
        eni_envoy_farewell(sim, r, k)->is_due = 1;
        maybe_say_farewell(sim, r, k);
    }
}

/* ---- calls --------------------------------------------------------------------------------------------- */

static void send_current(eni_envoy *e)
{
    eni_retained *r = e->current;
    r->letter->epoch = e->epoch;
    r->letter->is_replay = r->base_epoch != e->epoch;
    e->attempt++;
    eni_weather_send(e->sim, r->letter, r->letter->data);
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
    const uint32_t epoch = eni_envoy_farewell(sim, r, store)->epoch;
    **seat = (eni_envoy){.sim = sim,
                         .rank = r,
                         .store = store,
                         .bucket = bucket,
                         .epoch = epoch,
                         .base_epoch = epoch,
                         .incarnation = sim->weather->member[r].incarnation};
    return *seat;
}

en_status eni_envoy_call(eni_rank *rank, const eni_envoy_order *order)
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
    eni_weather_tell(sim, ENI_NEWS_CALLED, e, r);
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
        eni_weather_tell(e->sim, ENI_NEWS_ANSWERED, e, r);
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
        maybe_say_farewell(e->sim, e->rank, e->store);
}

void eni_envoy_receive(eni_sim *sim, const eni_letter *letter)
{
    if (letter->type == ENI_LETTER_GOODBYE) {
        eni_farewell *f = eni_envoy_farewell(sim, letter->rank, letter->store);
        if (letter->epoch == f->epoch && f->is_due) f->is_said = 1;
        return;
    }
    eni_envoy *e = *seat_of(sim, letter->rank, letter->store, letter->bucket);
    if (e && e->incarnation == letter->incarnation) receive_answer(e, letter);
}

void eni_envoy_new_epoch(eni_sim *sim, int32_t rank, int32_t store, uint32_t epoch)
{
    eni_farewell *f = eni_envoy_farewell(sim, rank, store);
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
        sim->weather->figures->replays++;
        send_current(e);
    }
    maybe_say_farewell(sim, rank, store);
}

/* ---- the rank's end ------------------------------------------------------------------------------------ */

void eni_envoy_die(eni_sim *sim, int32_t rank)
{
    for (int32_t k = 0; k < sim->nstores; k++)
        for (uint32_t b = 0; b < sim->buckets->n; b++) {
            eni_envoy **seat = seat_of(sim, rank, k, b);
            for (eni_retained *r = *seat ? (*seat)->first : NULL; r; r = r->next)
                if (r->is_answered && r->letter->seq > (*seat)->stable)
                    eni_weather_tell(sim, ENI_NEWS_ORPHANED, *seat, r);
            if (*seat) (*seat)->is_dead = 1;
            *seat = NULL;
        }
}

int eni_envoy_is_done(const eni_sim *sim, int32_t rank)
{
    if (!eni_courier_is_client(&sim->ranks[rank])) return 1;
    for (int32_t k = 0; k < sim->nstores; k++) {
        const eni_farewell *f = eni_envoy_farewell(sim, rank, k);
        const eni_haven *haven = &sim->weather->haven[k];
        if (!f->is_said || haven->is_down || f->epoch != haven->epoch)
            return 0; /* an earlier life's GOODBYE */
    }
    return 1;
}
