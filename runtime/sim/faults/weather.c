/* weather.c - what the files of this folder share and which calls none of them: draws from the seed, entries for
 * the agenda, news for who listens, members for a store. */
#include "runtime/sim/faults/weather.h"

uint64_t eni_weather_draw(eni_weather *weather, uint64_t below)
{
    return below == 0 ? 0 : eni_rng_below(&weather->key, weather->draws++, below);
}

int64_t eni_weather_draw_ns(eni_weather *weather, int64_t below)
{
    return (int64_t)eni_weather_draw(weather, (uint64_t)below);
}

int eni_weather_happens(eni_weather *weather, double share)
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

en_status eni_weather_member(eni_sim_store *store, int32_t rank, uint64_t incarnation, uint32_t member)
{
    return eni_courier_handle(store, &(eni_store_event){.type = ENI_STORE_MEMBER,
                                                        .client = rank,
                                                        .incarnation = incarnation,
                                                        .member = member,
                                                        .kind = ENI_JOIN_AT_CLOCK,
                                                        .seq = store->sim->weather->member[rank].clock});
}
