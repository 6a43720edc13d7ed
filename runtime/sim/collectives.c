/* collectives.c - collectives and sendrecvs between ranks, in virtual time.
 *
 * A collective is complete when its last rank has joined and the time that a ring takes for it has passed.
 * Its arithmetic is that of real transport: eni_mean_ranks, in rank order (or the ring's, if so configured),
 * over [lo, hi) as each rank planned it. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/try.h"
#include "runtime/collective/group.h"
#include "runtime/sim/world.h"

/* ---- collectives --------------------------------------------------------------------------------------- */

enum { NOBODY = -2 }; /* for eni_sim_rank_begin: no rank in particular */

/* One rank's part in a collective. */
typedef struct rank_part {
    eni_sim_rank *rank; /* NULL: has not joined */
    eni_coll_op op;     /* as it joined */
    float *data;        /* (count) once all have */
    uint64_t ticket;
} rank_part;

struct eni_collective {
    eni_collective *next;
    int op, what;
    int group;       /* index of eni_sim_exchanges.groups */
    uint64_t number; /* the n-th of its group */
    uint32_t bucket;
    uint64_t count;
    int32_t first, n, joined; /* its lowest rank; ranks */
    int32_t lowest;           /* place of those that have joined */
    rank_part entries[];
};

static uint64_t samples_of(const eni_collective *c)
{
    uint64_t samples = 0;
    for (int32_t i = 0; i < c->n; i++)
        samples += c->entries[i].op.nsamples;
    return samples;
}

/* The mean of elements [lo, hi) of all entries; one without samples is left out. */
static void mean(const eni_sim *sim, const eni_collective *c, float *dst, uint64_t lo, uint64_t hi)
{
    for (int32_t i = 0; i < c->n; i++) {
        sim->means.from[i] = c->entries[i].data + lo;
        sim->means.weight[i] = c->what == EN_GRAD ? c->entries[i].op.nsamples : 1;
    }
    eni_mean_ranks(dst, sim->means.from, sim->means.weight, c->n, sim->config->sum_order, c->count, lo, hi);
}

static void reduce(eni_sim *sim, eni_collective *c)
{
    mean(sim, c, sim->means.scratch, 0, c->count);
    for (int32_t i = 0; i < c->n; i++) {
        rank_part *e = &c->entries[i];
        if (c->op == EN_REDUCE && i > 0) break;
        const uint64_t lo = c->op == EN_REDUCE_SCATTER ? e->op.lo : 0;
        const uint64_t hi = c->op == EN_REDUCE_SCATTER ? e->op.hi : c->count;
        memcpy(e->data + lo, sim->means.scratch + lo, (hi - lo) * sizeof(float));
    }
}

static void copy_parts(eni_collective *c)
{
    for (int32_t i = 0; i < c->n; i++) {
        const rank_part *from = &c->entries[i];
        const uint64_t lo = c->op == EN_BCAST ? 0 : from->op.lo;
        const uint64_t hi = c->op == EN_BCAST ? c->count : from->op.hi;
        for (int32_t k = 0; k < c->n; k++)
            if (k != i) memcpy(c->entries[k].data + lo, from->data + lo, (hi - lo) * sizeof(float));
        if (c->op == EN_BCAST) break;
    }
}

/* Payload of each rank by the direct algorithm: a slice from everyone, a slice to everyone. */
static void count_bytes(const eni_collective *c)
{
    for (int32_t i = 0; i < c->n; i++) {
        eni_sim_rank_result *r = c->entries[i].rank->result;
        const uint64_t own = eni_slice_lo(c->count, i + 1, c->n) - eni_slice_lo(c->count, i, c->n);
        const uint64_t others = (c->count - own) * sizeof(float);
        const uint64_t to_others = own * (uint64_t)(c->n - 1) * sizeof(float);
        const bool scatters = c->op != EN_ALLGATHER && c->op != EN_BCAST;
        const bool gathers = c->op == EN_ALLREDUCE || !scatters;
        r->sent += (scatters ? others : 0) + (gathers ? to_others : 0);
        r->recv += (scatters ? to_others : 0) + (gathers ? others : 0);
        if (c->op == EN_REDUCE && i > 0) r->sent += own * sizeof(float);
        if (c->op == EN_REDUCE && i == 0) r->recv += others;
    }
}

static void complete(void *sim_, void *collective)
{
    eni_sim *sim = sim_;
    eni_collective *c = collective;
    for (int32_t i = 0; i < c->n; i++) {
        rank_part *e = &c->entries[i];
        eni_gradients_await(e->rank);
        e->data = eni_sim_rank_at(e->rank, e->op.slot, e->op.bucket);
    }
    if (c->op == EN_ALLGATHER || c->op == EN_BCAST)
        copy_parts(c);
    else
        reduce(sim, c);
    count_bytes(c);
    eni_sim_log(sim, (eni_sim_event){.type = ENI_SIM_COLL,
                                     .rank = c->first,
                                     .peer = c->n,
                                     .bucket = c->bucket,
                                     .clock = (uint64_t)c->op,
                                     .version = c->number});
    for (int32_t i = 0; i < c->n; i++) {
        rank_part *e = &c->entries[i];
        eni_sim_pending *pending = eni_sim_rank_pending(e->rank, e->ticket);
        if (pending != NULL && eni_coll_is_reduction(&e->op)) pending->samples = samples_of(c);
        eni_sim_rank_part_done(e->rank, e->ticket, EN_OK);
    }
    eni_sim_free(sim, c);
    sim->in_flight--;
}

double eni_exchange_ns(const eni_sim *sim, int op, double bytes, const eni_collective *c)
{
    const int32_t n = c != NULL ? c->n : sim->nranks;
    double hop = 0;
    for (int32_t i = 0, from = 0, to; i <= n; i++, from = to) {
        to = c != NULL ? c->entries[i % n].rank->world.rank : i % n;
        if (i > 0) hop = fmax(hop, eni_network_hop(&sim->network, from, to, bytes / n));
    }
    return (op == EN_ALLREDUCE ? 2 : 1) * (double)(n - 1) * hop;
}

/* All have joined: the links of the group are busy for as long as a ring needs. */
static void begin(eni_sim *sim, eni_collective *c)
{
    eni_sim_meeting *group = &sim->exchanges.groups[c->group];
    eni_collective **at = &group->collectives;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    const double ns = eni_exchange_ns(sim, c->op, (double)c->count * sizeof(float), c);
    sim->in_flight++;
    eni_sim_post(sim, eni_virtual_occupy(&group->free_ns, sim->queue.now_ns, eni_virtual_span(ns)), complete,
                 c);
}

/* The ranks of a group: its index in groups, the lowest, their number; this rank's position. */
typedef struct circle {
    int index;
    int32_t first, n, place;
} circle;

static circle circle_of(const eni_sim_rank *rank, int group)
{
    const en_world *w = &rank->world;
    const int32_t first = rank->sim->groups[w->rank];
    if (group == EN_GROUP) return (circle){1 + first, first, w->ngroup, w->group_rank};
    if (group == EN_LEADERS) return (circle){1 + w->nranks, 0, w->ngroups, w->group};
    return (circle){0, 0, w->nranks, w->rank};
}

/* The n-th collective of a group, made by the first rank to join. */
static eni_collective *find_or_make(eni_sim_rank *rank, int group, const circle *who, const eni_coll_op *op)
{
    eni_sim *sim = rank->sim;
    const uint64_t number = rank->coll_calls[group]++;
    eni_collective **first = &sim->exchanges.groups[who->index].collectives;
    for (eni_collective *c = *first; c != NULL; c = c->next)
        if (c->number == number) return c;
    eni_collective *c = eni_sim_alloc(sim, sizeof *c + (size_t)who->n * sizeof(rank_part));
    if (c == NULL) return NULL;
    c->op = op->op;
    c->what = op->what;
    c->group = who->index;
    c->number = number;
    c->bucket = op->bucket;
    c->count = op->count;
    c->n = who->n;
    c->first = who->first;
    c->lowest = who->place;
    c->next = *first;
    *first = c;
    return c;
}

static en_status join(eni_sim_rank *rank, int group, const eni_coll_op *op, uint64_t *ticket_out)
{
    eni_sim *sim = rank->sim;
    const circle who = circle_of(rank, group);
    eni_collective *c = find_or_make(rank, group, &who, op);
    if (c == NULL) return EN_ENOMEM;
    const rank_part *other = &c->entries[c->lowest];
    if (other->rank != NULL) {
        const eni_call_position ours = eni_group_position(1, c->number, op),
                                theirs = eni_group_position(1, c->number, &other->op);
        const en_status st = eni_group_agree(rank->world.rank, &ours, other->rank->world.rank, &theirs);
        eni_sim_fail(sim, st); /* the others would wait without end */
        EN_TRY(st);
    }
    if (who.place < c->lowest) c->lowest = who.place;
    *ticket_out = eni_sim_rank_begin(rank, 1, "a collective", op->bucket, NOBODY);
    c->entries[who.place] = (rank_part){.rank = rank, .op = *op, .ticket = *ticket_out};
    if (++c->joined == c->n) begin(sim, c);
    return EN_OK;
}

/* ---- sendrecvs ----------------------------------------------------------------------------------------- */

/* Half of a sendrecv: a vector on its way or arrived, or a rank that waits for one. They meet in order on each
 * link (from, to). */
struct eni_sendrecv {
    eni_sendrecv *next;
    int32_t from, to;
    bool is_wanted; /* the receiver's half */
    eni_coll_op op;
    uint64_t after;   /* collectives before it */
    uint64_t request; /* ticket */
    float out[];      /* (op.count) the sender's */
};

/* The sender has waited for it, too: one that writes to its vector earlier, or needs more room on the way than
 * real links have, is not to succeed here. */
static void deliver(eni_sim *sim, eni_sendrecv *sent, eni_sendrecv *wanted)
{
    eni_sim_rank *to = &sim->ranks[wanted->to];
    const eni_call_position ours = eni_group_half(1, 0, wanted->after, &wanted->op),
                            theirs = eni_group_half(1, 0, sent->after, &sent->op);
    eni_sim_fail(sim, eni_group_agree(wanted->to, &ours, wanted->from, &theirs));
    if (sim->status == EN_OK) {
        eni_gradients_await(to);
        memcpy(eni_sim_rank_at(to, wanted->op.slot_in, wanted->op.bucket), sent->out,
               sent->op.count * sizeof(float));
        to->result->recv += sent->op.count * sizeof(float);
    }
    eni_sim_log(sim, (eni_sim_event){.type = ENI_SIM_SENDRECV,
                                     .rank = wanted->to,
                                     .peer = wanted->from,
                                     .bucket = wanted->op.bucket});
    eni_sim_rank_part_done(to, wanted->request, EN_OK);
    eni_sim_rank_part_done(&sim->ranks[sent->from], sent->request, EN_OK);
    eni_sim_free(sim, sent);
    eni_sim_free(sim, wanted);
}

/* Pairs a half with the first that fits, or appends it to the list. */
static void match(eni_sim *sim, eni_sendrecv *half)
{
    eni_sendrecv **at = &sim->exchanges.sendrecvs[half->to];
    for (; *at != NULL; at = &(*at)->next) {
        eni_sendrecv *other = *at;
        if (other->from != half->from || other->is_wanted == half->is_wanted) continue;
        *at = other->next;
        deliver(sim, half->is_wanted ? other : half, half->is_wanted ? half : other);
        return;
    }
    half->next = NULL;
    *at = half;
}

static void sendrecv_arrived(void *sim_, void *half)
{
    eni_sim *sim = sim_;
    sim->in_flight--;
    match(sim, half);
}

static void sendrecv_head(void *sim_, void *half_)
{
    eni_sim *sim = sim_;
    eni_sendrecv *half = half_;
    const int64_t at = eni_network_arrive(&sim->network, sim->queue.now_ns, half->from, half->to,
                                          half->op.count * sizeof(float));
    eni_sim_post(sim, at, sendrecv_arrived, half);
}

/* The vector as it is now leaves for op->to. */
static en_status send_half(eni_sim_rank *rank, const eni_sendrecv *half)
{
    eni_sim *sim = rank->sim;
    const uint64_t bytes = half->op.count * sizeof(float);
    eni_sendrecv *sent = eni_sim_alloc(sim, sizeof *sent + bytes);
    if (sent == NULL) return EN_ENOMEM;
    *sent = *half;
    sent->is_wanted = false;
    sent->from = rank->world.rank;
    sent->to = half->op.to;
    memcpy(sent->out, eni_sim_rank_at(rank, half->op.slot, half->op.bucket), bytes);
    rank->result->sent += bytes;
    sim->in_flight++;
    const int64_t at = eni_network_depart(&sim->network, sim->queue.now_ns, sent->from, sent->to, bytes);
    return eni_event_queue_post(&sim->queue, at, sendrecv_head, sim, sent);
}

/* A half with the rank itself is on no link. */
static en_status sendrecv(eni_sim_rank *rank, int group, const eni_coll_op *op, uint64_t *ticket_out)
{
    eni_sim *sim = rank->sim;
    const int32_t self = rank->world.rank;
    const uint32_t parts = (op->to != self) + (op->from != self);
    *ticket_out =
        eni_sim_rank_begin(rank, parts, "a sendrecv", op->bucket, op->from != self ? op->from : op->to);
    const eni_sendrecv half = {.from = op->from,
                               .to = self,
                               .is_wanted = true,
                               .op = *op,
                               .after = rank->coll_calls[group],
                               .request = *ticket_out};
    if (op->from == self && op->slot_in != op->slot)
        memcpy(eni_sim_rank_at(rank, op->slot_in, op->bucket), eni_sim_rank_at(rank, op->slot, op->bucket),
               op->count * sizeof(float));
    if (op->to != self) EN_TRY(send_half(rank, &half));
    if (op->from == self) return EN_OK;
    eni_sendrecv *wanted = eni_sim_alloc(sim, sizeof *wanted);
    if (wanted == NULL) return EN_ENOMEM;
    *wanted = half;
    match(sim, wanted);
    return EN_OK;
}

en_status eni_exchange_start(eni_sim_rank *rank, int group, const eni_coll_op *op, uint64_t *ticket_out)
{
    return op->op == ENI_COLL_SENDRECV ? sendrecv(rank, group, op, ticket_out)
                                       : join(rank, group, op, ticket_out);
}
