/* judge.c - replays a recorded run through a reference, partition by partition, and finds the first difference in the
 * order of the log. */
#include "conform/conform.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ops/mean.h"

/* Weights agree within this, relative to 1 or the weight: float32 rounds each step by up to 6e-8, and descent forgets. */
static const double tolerance = 1e-6;

/* One partition of a run. */
typedef struct partition {
    const eni_recording *r;
    eni_judgement *out;
    eni_paper p;
    uint32_t bucket;
    int32_t shard; /* -1: all of the bucket, in rounds */
    uint64_t lo;   /* its first element */
    bool is_over;  /* a difference was found: what follows it proves nothing */
    bool in_step[ENI_PAPER_RANKS];
    uint32_t called[ENI_PAPER_RANKS];       /* messages in its step */
    char weighed[ENI_FINDING_TEXT / 2 - 4]; /* the first push whose weight is not the paper's */
} partition;

/* The plugin's decision on an event. */
typedef struct outcome {
    uint32_t answered; /* bit r: rank r */
    bool is_known;     /* the next two are: not where the run failed in it */
    uint64_t version;
    double weight; /* NAN: not absorbed */
} outcome;

/* ---- findings ---- */

static void print_event(const eni_sim_event *e, uint64_t at, char *text_out, size_t bytes)
{
    const int n = snprintf(text_out, bytes, "event %" PRIu64 ", %.3f ms: rank %d ", at,
                           (double)e->at_ns / 1e6, e->rank);
    text_out += n;
    bytes -= (size_t)n;
    switch (e->type) {
    case ENI_SIM_STEP:
        snprintf(text_out, bytes, "begins step %" PRIu64 " on micro-batch %" PRIu64, e->clock, e->version);
        break;
    case ENI_SIM_PUSH:
        snprintf(text_out, bytes, "pushes at version %" PRIu64 ", base %" PRIu64, e->version, e->base);
        break;
    case ENI_SIM_REPLY: snprintf(text_out, bytes, "is answered with version %" PRIu64, e->version); break;
    case ENI_SIM_TAKEN:
        snprintf(text_out, bytes, "has been taken: version %" PRIu64 ", weight %g", e->version, e->weight);
        break;
    case ENI_SIM_COLL: snprintf(text_out, bytes, "and others end a collective"); break;
    case ENI_SIM_SENDRECV: snprintf(text_out, bytes, "receives from rank %d", e->peer); break;
    default: snprintf(text_out, bytes, "has finished"); break;
    }
}

static bool is_of(const partition *t, const eni_sim_event *e)
{
    if (e->type == ENI_SIM_STEP) return true;
    if (t->shard >= 0 && e->peer != t->shard) return false;
    return e->type == ENI_SIM_FINISHED || e->bucket == t->bucket;
}

/* The last events before `at` that this partition saw. */
static void print_before(const partition *t, uint64_t at)
{
    int line = ENI_FINDING_LINES;
    memset(t->out->before, 0, sizeof t->out->before);
    for (uint64_t i = at; i-- > 0 && line > 0;)
        if (is_of(t, &t->r->event[i]))
            print_event(&t->r->event[i], i, t->out->before[--line], sizeof t->out->before[0]);
}

/* Notes a difference at an event, unless another partition went astray earlier. */
__attribute__((format(printf, 3, 4))) static void find(partition *t, uint64_t at, const char *fmt, ...)
{
    eni_judgement *out = t->out;
    t->is_over = true;
    if (!out->agrees && out->event <= at) return;
    out->agrees = false;
    out->event = at;
    int n = snprintf(out->finding, sizeof out->finding, "event %" PRIu64 ": ", at);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out->finding + n, sizeof out->finding - (size_t)n, fmt, args);
    va_end(args);
    print_before(t, at);
}

/* ", delay 5 >= 4": the end of a sentence, or nothing. */
static const char *because(const char *why, char text_out[ENI_FINDING_TEXT / 2])
{
    snprintf(text_out, ENI_FINDING_TEXT / 2, "%s%s", why[0] != '\0' ? ", " : "", why);
    return text_out;
}

/* ---- weights ---- */

/* Compares `weights`, the whole vector, with the paper's x. `who`: "rank 2 begins step 5", for people. */
static void compare(partition *t, uint64_t at, const double *paper, const float *weights, const char *who)
{
    char why[ENI_FINDING_TEXT / 2];
    for (uint64_t e = 0; e < t->p.n; e++) {
        const double actual = (double)weights[t->lo + e], scale = fmax(1, fabs(paper[e]));
        const double gap = fabs(actual - paper[e]) / scale;
        if (gap <= tolerance * fmax(1, t->p.reference->rounding)) {
            t->out->worst = fmax(t->out->worst, gap);
            continue;
        }
        find(t, at, "%s with %.8g in element %" PRIu64 " of bucket %u; the paper has %.8g%s", who, actual, e,
             t->bucket, paper[e], because(t->weighed[0] != '\0' ? t->weighed : t->p.why, why));
        return;
    }
    t->out->vectors++;
}

/* The samples in all micro-batches before this one. */
static uint64_t samples_before(const eni_recording *r, uint64_t micro_batch)
{
    uint64_t samples = 0;
    for (uint64_t i = 0; i < micro_batch && i < r->micro_batches; i++)
        samples += r->samples(r->user, i);
    return samples;
}

/* A rank begins a step: its weights must be the paper's. Its gradient follows from them and from its micro-batch. */
static void begin_step(partition *t, uint64_t at)
{
    const eni_recording *r = t->r;
    const eni_sim_event *e = &r->event[at];
    eni_paper_worker *worker = &t->p.worker[e->rank];
    char who[64];
    snprintf(who, sizeof who, "rank %d begins step %" PRIu64, e->rank, e->clock);
    if (r->seen[at] != NULL) compare(t, at, worker->x, r->seen[at], who);
    const bool has_batch = e->version < r->micro_batches;
    const uint64_t round = r->claims ? e->version : e->clock * (uint64_t)r->nranks;
    worker->step = e->clock;
    worker->samples = has_batch ? r->samples(r->user, e->version) : 0;
    worker->rate = eni_paper_rate(&t->p, r->rates.falls ? samples_before(r, round) : 0);
    for (uint64_t i = 0; i < t->p.n; i++)
        worker->g[i] =
            has_batch ? (double)r->gradient(r->user, e->version, t->lo + i, (float)worker->x[i]) : 0;
}

static void compare_model(partition *t)
{
    const eni_reference *reference = t->p.reference;
    eni_paper_vec mean;
    const double *model = t->p.w;
    if (t->is_over || t->r->model == NULL || !t->r->has_ended) return;
    if (reference->model != NULL) model = reference->model(&t->p);
    if (reference->model == NULL && reference->round != NULL) {
        eni_paper_mean_weights(&t->p, eni_paper_all(&t->p), mean);
        model = mean;
    }
    if (model != NULL) compare(t, t->r->nevents, model, t->r->model, "the run ends");
}

/* ---- a server ---- */

static const char *list_ranks(uint32_t who, char text_out[64])
{
    int n = snprintf(text_out, 64, "%s", who == 0 ? "nobody" : (who & (who - 1)) == 0 ? "rank" : "ranks");
    for (int r = 0; r < ENI_PAPER_RANKS; r++)
        if (who & eni_paper_one(r)) n += snprintf(text_out + n, 64 - (size_t)n, " %d", r);
    return text_out;
}

/* The last event of the log that is part of what a store does with event `at`: its answers, and what a push has made. */
static uint64_t last_of(const eni_recording *r, uint64_t at)
{
    const bool is_push = r->event[at].type == ENI_SIM_PUSH,
               is_handled = is_push || r->event[at].type == ENI_SIM_FINISHED;
    uint64_t last = at;
    while (
        is_handled && last + 1 < r->nevents && r->event[last].type != ENI_SIM_TAKEN &&
        (r->event[last + 1].type == ENI_SIM_REPLY || (is_push && r->event[last + 1].type == ENI_SIM_TAKEN)))
        last++;
    return last;
}

static outcome gather(const partition *t, uint64_t at)
{
    outcome o = {.weight = NAN};
    for (uint64_t i = at + 1; i <= last_of(t->r, at); i++) {
        const eni_sim_event *e = &t->r->event[i];
        if (e->bucket != t->bucket) continue; /* FINISHED concerns all buckets */
        if (e->type == ENI_SIM_REPLY)
            o.answered |= eni_paper_one(e->rank);
        else
            o = (outcome){
                .answered = o.answered, .is_known = true, .version = e->version, .weight = e->weight};
    }
    return o;
}

/* Says what happened to a push, or ("the paper ..") what should have happened. */
static void tell(bool is_paper, bool was_kept, bool has_stepped, double weight, char text_out[64])
{
    if (!was_kept)
        snprintf(text_out, 64, is_paper ? "drops it" : "dropped");
    else if (!has_stepped)
        snprintf(text_out, 64, is_paper ? "keeps it for a later step" : "kept for a later step");
    else if (isnan(weight) || weight == 0)
        snprintf(text_out, 64, is_paper ? "writes it into the weights" : "written into the weights");
    else
        snprintf(text_out, 64, "%s with weight %g", is_paper ? "applies it" : "applied", weight);
}

static void compare_answers(partition *t, uint64_t at, const outcome *o, const char *event)
{
    char actual[64], expected[64], why[ENI_FINDING_TEXT / 2];
    if (t->is_over || o->answered == t->p.answered) return;
    find(t, at, "%s: answers %s; the paper answers %s%s", event, list_ranks(o->answered, actual),
         list_ranks(t->p.answered, expected), because(t->p.why, why));
}

static void compare_push(partition *t, uint64_t at, const outcome *o, uint64_t version)
{
    const eni_sim_event *e = &t->r->event[at];
    const eni_paper *p = &t->p;
    const bool has_stepped = o->version != e->version, must_step = p->version != version;
    const bool was_kept = has_stepped || !isnan(o->weight);
    char event[96], actual[64], expected[64], why[ENI_FINDING_TEXT / 2];
    snprintf(event, sizeof event,
             "rank %d pushed bucket %u to shard %d at version %" PRIu64 ", base %" PRIu64, e->rank, t->bucket,
             t->shard, e->version, e->base);
    tell(false, was_kept, has_stepped, o->weight, actual);
    tell(true, !p->drops, must_step, p->weight, expected);
    if (o->is_known && (was_kept == p->drops || has_stepped != must_step))
        find(t, at, "%s: %s; the paper %s%s", event, actual, expected, because(p->why, why));
    else if (o->is_known && o->version != p->version)
        find(t, at, "%s: makes version %" PRIu64 "; the paper makes %" PRIu64, event, o->version, p->version);
    if (t->weighed[0] == '\0' && was_kept && !isnan(o->weight) && p->weight > 0 &&
        fabs(o->weight - p->weight) > tolerance * p->weight)
        snprintf(t->weighed, sizeof t->weighed,
                 "which weighs the push of event %" PRIu64 " with %g, not %g: %.60s", at, p->weight,
                 o->weight, p->why);
    compare_answers(t, at, o, event);
}

static void push(partition *t, uint64_t at)
{
    const eni_sim_event *e = &t->r->event[at];
    const eni_reference *reference = t->p.reference;
    eni_paper_worker *worker = &t->p.worker[e->rank];
    const uint64_t version = t->p.version;
    const outcome o = gather(t, at);
    if (reference->calls != NULL && !reference->calls(&t->p, e->rank))
        find(t, at, "rank %d calls the server in step %" PRIu64 "; the paper does not", e->rank,
             worker->step);
    else if (t->called[e->rank]++ > 0)
        find(t, at, "rank %d calls the server a second time in step %" PRIu64, e->rank, worker->step);
    else if (e->version != version)
        find(t, at, "rank %d's push meets version %" PRIu64 "; the paper is at %" PRIu64, e->rank, e->version,
             version);
    else if (e->base != worker->base)
        find(t, at, "rank %d's push says base %" PRIu64 "; the paper sent it version %" PRIu64, e->rank,
             e->base, worker->base);
    if (t->is_over) return;
    worker->clock++;
    reference->push(&t->p, e->rank);
    compare_push(t, at, &o, version);
}

static void gone(partition *t, uint64_t at)
{
    const int rank = t->r->event[at].rank;
    char event[64];
    const outcome o = gather(t, at);
    t->p.worker[rank].is_client = false;
    if (t->p.reference->gone != NULL) t->p.reference->gone(&t->p, rank);
    snprintf(event, sizeof event, "rank %d makes no more calls", rank);
    compare_answers(t, at, &o, event);
}

/* A rank's step is over: it has made its call, and it goes on. */
static void end_step(partition *t, uint64_t at, int rank)
{
    const eni_reference *reference = t->p.reference;
    if (!t->in_step[rank]) return;
    const bool must_call =
        t->p.worker[rank].is_client && (reference->calls == NULL || reference->calls(&t->p, rank));
    if (must_call && t->called[rank] == 0)
        find(t, at,
             "rank %d has made no call of bucket %u in step %" PRIu64 "; the paper's worker calls the server",
             rank, t->bucket, t->p.worker[rank].step);
    else if (must_call && t->p.worker[rank].waits)
        find(t, at, "rank %d goes on from step %" PRIu64 " before the paper answers it", rank,
             t->p.worker[rank].step);
    if (reference->finish != NULL) reference->finish(&t->p, rank);
    t->in_step[rank] = false;
    t->called[rank] = 0;
}

static void judge_server(partition *t)
{
    const eni_recording *r = t->r;
    for (uint64_t i = 0; i < r->nevents && !t->is_over; i++) {
        const eni_sim_event *e = &r->event[i];
        if (!is_of(t, e)) continue;
        t->p.answered = 0;
        t->p.drops = false;
        t->p.weight = 0;
        t->p.why[0] = '\0';
        switch (e->type) {
        case ENI_SIM_STEP:
            end_step(t, i, e->rank);
            if (!t->is_over) begin_step(t, i);
            t->in_step[e->rank] = true;
            break;
        case ENI_SIM_PUSH: push(t, i); break;
        case ENI_SIM_FINISHED:
            end_step(t, i, e->rank);
            if (!t->is_over) gone(t, i);
            break;
        case ENI_SIM_REPLY: /* those of pushes and members were gathered */
            find(t, i, "rank %d is answered by a timer; the paper has none", e->rank);
            break;
        default: continue;
        }
        t->out->decisions += e->type != ENI_SIM_STEP;
        i = last_of(r, i);
    }
    for (int rank = 0; rank < r->nranks && r->has_ended && !t->is_over; rank++)
        end_step(t, r->nevents, rank);
}

/* ---- rounds ---- */

/* The event with which the rank begins this step; nevents: it does not. `from`: not before it. */
static uint64_t step_event(const eni_recording *r, int rank, uint64_t step, uint64_t from)
{
    while (from < r->nevents && (r->event[from].type != ENI_SIM_STEP || r->event[from].rank != rank ||
                                 r->event[from].clock != step))
        from++;
    return from;
}

static void judge_rounds(partition *t)
{
    const eni_recording *r = t->r;
    uint64_t at[ENI_PAPER_RANKS] = {0}, last = 0;
    for (uint64_t step = 0; !t->is_over; step++) {
        int begun = 0;
        for (int rank = 0; rank < r->nranks; rank++) {
            at[rank] = step_event(r, rank, step, at[rank]);
            if (at[rank] == r->nevents) continue;
            begun++;
            last = at[rank];
            begin_step(t, at[rank]);
        }
        if (begun < r->nranks) {
            if (begun > 0 && r->has_ended)
                find(t, last, "only %d of %d ranks take part in step %" PRIu64, begun, r->nranks, step);
            return;
        }
        t->p.why[0] = '\0';
        if (!t->is_over) t->p.reference->round(&t->p);
        t->out->decisions++;
    }
}

/* ---- both ---- */

static void open_partition(partition *t, const eni_reference *reference, const char *options)
{
    const eni_recording *r = t->r;
    eni_paper *p = &t->p;
    *p = (eni_paper){.reference = reference,
                     .options = options,
                     .rates = r->rates,
                     .nranks = r->nranks,
                     .per_host = r->per_host};
    memcpy(p->group, r->group, sizeof p->group);
    const uint64_t count = r->bucket[t->bucket].hi - r->bucket[t->bucket].lo;
    const uint64_t lo = t->shard < 0 ? 0 : eni_slice_lo(count, t->shard, r->nshards);
    p->n = (t->shard < 0 ? count : eni_slice_lo(count, t->shard + 1, r->nshards)) - lo;
    t->lo = r->bucket[t->bucket].lo + lo;
    for (uint64_t e = 0; e < p->n; e++) {
        p->w[e] = p->before[e] = (double)r->init[t->lo + e];
        for (int i = 0; i < r->nranks; i++)
            p->worker[i].x[e] = p->worker[i].own[e] = p->w[e];
    }
    for (int i = 0; i < r->nranks; i++)
        p->worker[i].is_client = i % r->per_host == 0;
}

void eni_judge(const eni_recording *recording, const eni_reference *reference, const char *options,
               eni_judgement *judgement)
{
    const bool has_rounds = reference->round != NULL;
    judgement->agrees = true;
    for (uint32_t b = 0; b < recording->nbuckets; b++)
        for (int32_t k = has_rounds ? -1 : 0; k < (has_rounds ? 0 : recording->nshards); k++) {
            partition t = {.r = recording, .out = judgement, .bucket = b, .shard = k};
            open_partition(&t, reference, options);
            if (t.p.n == 0) continue;
            if (has_rounds)
                judge_rounds(&t);
            else
                judge_server(&t);
            compare_model(&t);
        }
}
