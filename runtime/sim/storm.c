/* storm.c - what goes wrong: letters, links, stores that die and come back from what they had saved, ranks.
 */
#include "runtime/sim/storm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/store/store_save.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/mutation.h"
#include "core/try.h"
#include "runtime/sim/weather.h"

enum { STREAM = 0x570a3000 }; /* of the random numbers: no rank's */

uint64_t eni_weather_draw(eni_weather *weather, uint64_t below)
{
    return below == 0 ? 0 : eni_rng_below(&weather->key, weather->draws++, below);
}

int64_t eni_weather_draw_ns(eni_weather *weather, int64_t below)
{
    return (int64_t)eni_weather_draw(weather, (uint64_t)below);
}

static int happens(eni_weather *weather, double share)
{
    return eni_rng_unit(&weather->key, weather->draws++) < share;
}

int eni_weather_is_calm(const eni_sim *sim)
{
    return sim->agenda.now_ns >= sim->weather->storm->calm_ns;
}

void eni_weather_post(eni_sim *sim, int64_t delay_ns, void (*happen)(void *, void *), void *subject)
{
    const en_status st = eni_agenda_post(&sim->agenda, sim->agenda.now_ns + delay_ns, happen, sim, subject);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

void eni_weather_tell(eni_sim *sim, int type, const eni_envoy *envoy, const eni_retained *retained)
{
    const eni_storm *storm = sim->weather->storm;
    eni_news news = {.type = type, .rank = envoy->rank, .store = envoy->store, .bucket = envoy->bucket};
    if (retained) {
        news.seq = retained->letter->seq;
        news.nsamples = retained->letter->nsamples;
        news.micro_batch = retained->micro_batch;
    }
    if (storm->news) storm->news(storm->user, &news);
}

/* ---- letters ------------------------------------------------------------------------------------------- */

static void arrived(void *sim, void *letter);

static int is_cut(const eni_sim *sim, const eni_letter *l)
{
    const eni_weather *w = sim->weather;
    const int way = l->type <= ENI_LETTER_FINISHED ? 1 : 2;
    for (int32_t i = 0; i < w->storm->cuts; i++) {
        const eni_cut *cut = &w->cut[i];
        if (cut->rank == l->rank && cut->store == l->store && cut->ways & way &&
            cut->from_ns <= sim->agenda.now_ns && sim->agenda.now_ns < cut->to_ns)
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
    eni_weather_post(sim, delay_ns, arrived, letter);
}

void eni_weather_send(eni_sim *sim, const eni_letter *like, const float *data)
{
    eni_weather *w = sim->weather;
    const eni_storm *storm = w->storm;
    const int64_t latency = sim->network.latency_ns;
    w->figures->letters++;
    if (eni_weather_is_calm(sim)) {
        send_copy(sim, like, data, latency);
        return;
    }
    if (is_cut(sim, like)) {
        w->figures->cut++;
        return;
    }
    if (happens(w, storm->drop)) {
        w->figures->dropped++;
        return;
    }
    const int copies = 1 + happens(w, storm->twice);
    w->figures->doubled += copies > 1;
    for (int i = 0; i < copies; i++) {
        const int is_slow = happens(w, storm->slow);
        w->figures->late += (uint64_t)is_slow;
        send_copy(sim, like, data,
                  latency + eni_weather_draw_ns(w, latency) +
                      (is_slow ? eni_weather_draw_ns(w, storm->slow_ns) : 0));
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
    eni_haven *haven = &l->sim->weather->haven[l->store];
    const uint64_t before = eni_store_seq(store->core, l->rank, l->bucket);
    uint64_t version = 0;
    eni_store_weights(store->core, l->bucket, &version);
    eni_journal_add(&l->sim->journal, &(eni_sim_event){.at_ns = l->sim->agenda.now_ns,
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
    const en_status st = eni_courier_handle(store, &event);
    if (is_push && seq == before + 1 && eni_store_seq(store->core, rank, bucket) == seq) {
        haven->behind += version - base;
        haven->counted++;
    }
    if (is_ours) release_letter(l);
    return st;
}

en_status eni_weather_member(eni_sim_store *store, int32_t rank, uint64_t incarnation, uint32_t member)
{
    return eni_courier_handle(store, &(eni_store_event){.type = ENI_STORE_MEMBER,
                                                        .client = rank,
                                                        .incarnation = incarnation,
                                                        .member = member,
                                                        .kind = ENI_JOIN_AT_CLOCK,
                                                        .seq = store->sim->weather->member[rank].clock});
}

static en_status finish_at_store(eni_sim_store *store, eni_letter *l)
{
    const eni_letter goodbye = {.type = ENI_LETTER_GOODBYE,
                                .store = l->store,
                                .rank = l->rank,
                                .epoch = l->epoch,
                                .incarnation = l->incarnation};
    eni_sim *sim = l->sim;
    const en_status st = eni_weather_member(store, l->rank, l->incarnation, EN_MEMBER_FINISHED);
    release_letter(l);
    eni_weather_send(sim, &goodbye, NULL);
    return st;
}

static void arrived(void *sim_, void *letter_)
{
    eni_sim *sim = sim_;
    eni_letter *l = letter_;
    if (l->type > ENI_LETTER_FINISHED) {
        eni_envoy_receive(sim, l);
        release_letter(l);
        return;
    }
    const eni_haven *haven = &sim->weather->haven[l->store];
    if (haven->is_down || (haven->epoch != l->epoch &&
                           !eni_mutant("stale-epoch"))) { /* psd refuses it without a look at the store */
        sim->weather->figures->stale++;
        release_letter(l);
        return;
    }
    eni_sim_store *store = &sim->stores[l->store];
    const en_status st = l->type == ENI_LETTER_CALL ? call_store(store, l) : finish_at_store(store, l);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

void eni_storm_reply(eni_sim_store *store, const eni_store_action *action)
{
    eni_sim *sim = store->sim;
    const int32_t k = (int32_t)(store - sim->stores);
    const eni_haven *haven = &sim->weather->haven[k];
    const eni_kept *safe = &haven->safe;
    eni_letter letter = {.type = action->type == ENI_STORE_REPLY ? ENI_LETTER_REPLY : ENI_LETTER_REFUSED,
                         .store = k,
                         .rank = action->client,
                         .epoch = haven->epoch,
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
    eni_weather_send(sim, &letter, action->data);
}

/* ---- a storm's life ------------------------------------------------------------------------------------ */

static void time_is_up(void *sim_, void *unused)
{
    eni_sim *sim = sim_;
    (void)unused;
    eni_sim_fail(sim, EN_ETIMEOUT);
}

/* Draws the faults that have a time of their own. */
static void plan(eni_sim *sim)
{
    eni_weather *w = sim->weather;
    const eni_storm *storm = w->storm;
    for (int32_t i = 0; i < storm->cuts; i++) {
        const int64_t from = eni_weather_draw_ns(w, storm->calm_ns);
        w->cut[i] = (eni_cut){.rank = (int32_t)eni_weather_draw(w, (uint64_t)sim->nranks),
                              .store = (int32_t)eni_weather_draw(w, (uint64_t)sim->nstores),
                              .ways = 1 + (int32_t)eni_weather_draw(w, 3),
                              .from_ns = from,
                              .to_ns = from + eni_weather_draw_ns(w, storm->outage_ns)};
    }
    for (int32_t i = 0; i < storm->store_deaths; i++)
        eni_weather_post(sim, eni_weather_draw_ns(w, storm->calm_ns), eni_weather_store_dies,
                         &sim->stores[eni_weather_draw(w, (uint64_t)sim->nstores)]);
    for (int32_t i = 0; i < storm->rank_deaths; i++)
        eni_weather_post(sim, eni_weather_draw_ns(w, storm->calm_ns), eni_weather_rank_dies,
                         &sim->ranks[eni_weather_draw(w, (uint64_t)sim->nranks)]);
    eni_weather_post(sim, storm->calm_ns + storm->limit_ns, time_is_up, NULL);
}

static en_status open_kept(const eni_sim *sim, eni_kept *kept)
{
    kept->seq = eni_alloc_array((size_t)sim->nranks * sim->buckets->n, sizeof *kept->seq);
    kept->incarnation = eni_alloc_array((size_t)sim->nranks, sizeof *kept->incarnation);
    return kept->seq && kept->incarnation ? EN_OK : EN_ENOMEM;
}

en_status eni_storm_open(eni_sim *sim)
{
    if (!sim->config->storm) return EN_OK;
    const size_t stores = (size_t)sim->nstores, ranks = (size_t)sim->nranks;
    eni_weather *w = sim->weather = eni_alloc(sizeof *w);
    if (!w) return EN_ENOMEM;
    w->storm = sim->config->storm;
    w->figures = &sim->result->storm;
    w->key = (eni_rng_key){.seed = w->storm->seed, .purpose = ENI_RNG_SIM, .rank = STREAM};
    w->haven = eni_alloc_array(stores, sizeof *w->haven);
    w->member = eni_alloc_array(ranks, sizeof *w->member);
    w->envoy = eni_alloc_array(ranks * stores * sim->buckets->n, sizeof(eni_envoy *));
    w->farewell = eni_alloc_array(ranks * stores, sizeof *w->farewell);
    w->cut = eni_alloc_array((size_t)w->storm->cuts, sizeof *w->cut);
    if (!w->haven || !w->member || !w->envoy || !w->farewell || !w->cut) return EN_ENOMEM;
    for (size_t r = 0; r < ranks; r++)
        w->member[r] = (eni_presence_of){.incarnation = ENI_SIM_INCARNATION, .is_in = 1};
    for (int32_t k = 0; k < sim->nstores; k++) {
        eni_saving *s = eni_sim_alloc(sim, sizeof *s);
        if (!s) return EN_ENOMEM;
        *s = (eni_saving){.store = k};
        EN_TRY(open_kept(sim, &w->haven[k].safe));
        EN_TRY(open_kept(sim, &w->haven[k].pending));
        EN_TRY(
            eni_weather_keep(sim, k, &w->haven[k].safe)); /* as psd does once all initial weights are there */
        eni_weather_post(sim, eni_weather_draw_ns(w, w->storm->save_ns), eni_weather_save, s);
    }
    plan(sim);
    return sim->status;
}

static void close_kept(eni_kept *kept)
{
    free(kept->bytes);
    eni_free(kept->seq);
    eni_free(kept->incarnation);
}

void eni_storm_close(eni_sim *sim)
{
    eni_weather *w = sim->weather;
    if (!w) return;
    for (int32_t k = 0; w->haven && k < sim->nstores; k++) {
        close_kept(&w->haven[k].safe);
        close_kept(&w->haven[k].pending);
    }
    eni_free(w->haven);
    eni_free(w->member);
    eni_free(w->envoy);
    eni_free(w->farewell);
    eni_free(w->cut);
    eni_free(w);
    sim->weather = NULL;
}

int eni_storm_is_over(const eni_sim *sim)
{
    for (int32_t r = 0; r < sim->nranks; r++)
        if (sim->ranks[r].is_running || sim->ranks[r].is_dead || !eni_envoy_is_done(sim, r)) return 0;
    return 1;
}

en_status eni_storm_check(eni_sim *sim)
{
    for (int32_t k = 0; sim->weather && k < sim->nstores; k++) {
        const eni_haven *haven = &sim->weather->haven[k];
        uint64_t behind = 0, counted = 0;
        for (int32_t r = 0; r < sim->nranks; r++) {
            const eni_store_client_stats *stats = eni_store_client(sim->stores[k].core, r);
            behind += stats->staleness.sum;
            counted += stats->staleness.count;
            sim->weather->figures->applied += stats->applied;
        }
        if (!sim->weather->storm->steps_at_once || (behind == haven->behind && counted == haven->counted))
            continue;
        eni_error("storm",
                  "store %d counted staleness %" PRIu64 " over %" PRIu64 " pushes, seen from outside %" PRIu64
                  " over %" PRIu64,
                  k, behind, counted, haven->behind, haven->counted);
        return EN_EBUG;
    }
    return EN_OK;
}
