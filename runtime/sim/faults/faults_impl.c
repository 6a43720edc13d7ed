/* faults_impl.c - what the files of this folder share and which calls none of them: draws from the seed,
 * events for the queue, members for a store. */
#include "runtime/sim/faults/faults_impl.h"

uint64_t eni_faults_draw(eni_fault_state *state, uint64_t below)
{
    return below == 0 ? 0 : eni_rng_below(&state->key, state->draws++, below);
}

int64_t eni_faults_draw_ns(eni_fault_state *state, int64_t below)
{
    return (int64_t)eni_faults_draw(state, (uint64_t)below);
}

int eni_faults_happens(eni_fault_state *state, double share)
{
    return eni_rng_unit(&state->key, state->draws++) < share;
}

int eni_faults_is_quiet(const eni_sim *sim)
{
    return sim->queue.now_ns >= sim->fault_state->plan->quiet_ns;
}

void eni_faults_post(eni_sim *sim, int64_t delay_ns, void (*happen)(void *, void *), void *subject)
{
    const en_status st =
        eni_event_queue_post(&sim->queue, sim->queue.now_ns + delay_ns, happen, sim, subject);
    if (st != EN_OK) eni_sim_fail(sim, st);
}

en_status eni_faults_member(eni_sim_store *store, int32_t rank, uint64_t incarnation, uint32_t member)
{
    return eni_delivery_handle(store, &(eni_store_event){.type = ENI_STORE_MEMBER,
                                                         .client = rank,
                                                         .incarnation = incarnation,
                                                         .member = member,
                                                         .kind = ENI_JOIN_AT_CLOCK,
                                                         .seq = store->sim->fault_state->member[rank].clock});
}
