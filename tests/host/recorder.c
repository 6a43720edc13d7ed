/* recorder.c - the worker half first: the table of the host with a note behind each call; then the script of
 * arrivals, and the store half, which writes or follows it; then the strategy that has both. */
#include "tests/host/recorder.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TEXT = 1 << 17, ARRIVALS = 4096, BUCKETS = 64, GATE_S = 20, NOBODY = -2 };

static const en_strategy *real;
static en_strategy wrapped;

/* ---- the script of arrivals ---------------------------------------------------------------------------- */

enum { CALL = 1, TIMER, FINISHED };

typedef struct arrival {
    uint32_t type, bucket;        /* FINISHED: of bucket 0 */
    int32_t rank;                 /* TIMER: -1 */
    uint32_t kind, what, is_push; /* CALL: as the store saw it; the gate does not look at these */
    uint64_t clock, base_version, nsamples;
} arrival;

static struct script {
    script_mode mode;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    arrival item[ARRIVALS];
    int n, next;
    int called[RECORDER_RANKS];              /* calls that the gate has let through */
    uint64_t clock[RECORDER_RANKS][BUCKETS]; /* of the last call that has arrived */
} script = {.lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER};

static void give_up(const char *why, const arrival *got)
{
    const arrival *due = script.next < script.n ? &script.item[script.next] : &(arrival){.rank = NOBODY};
    fprintf(stderr,
            "the script of arrivals of %s, line %d of %d: %s: is rank %d type %u bucket %u clock %llu, not "
            "rank %d type %u bucket %u clock %llu\n",
            real->name, script.next, script.n, why, got->rank, got->type, got->bucket,
            (unsigned long long)got->clock, due->rank, due->type, due->bucket,
            (unsigned long long)due->clock);
    abort();
}

static bool is_next(const arrival *a)
{
    const arrival *due = &script.item[script.next];
    return script.next < script.n && due->type == a->type && due->rank == a->rank && due->bucket == a->bucket;
}

/* Where the script has this arrival: its next line, or, of calls alone that one rank has there, a later one. A
 * call behind an all-reduce leaves when its bucket is reduced, and which of a rank's buckets is reduced first
 * depends on the other ranks' pace; no bucket's weights depend on it. -1: the script has another. */
static int line_of(const arrival *a)
{
    for (int i = script.next; i < script.n; i++) {
        const arrival *due = &script.item[i];
        if (memcmp(due, a, sizeof *a) == 0) return i;
        if (a->type != CALL || due->type != CALL || due->rank != a->rank || due->bucket == a->bucket) break;
    }
    return -1;
}

/* On the store's thread. */
static void arrived(arrival a)
{
    pthread_mutex_lock(&script.lock);
    if (script.mode == SCRIPT_WRITE) {
        if (script.n == ARRIVALS) give_up("no room", &a);
        script.item[script.n++] = a;
    } else if (script.mode == SCRIPT_FOLLOW) {
        const int line = line_of(&a);
        if (line < 0) give_up("arrived", &a);
        arrival *due = &script.item[script.next];
        memmove(due + 1, due, (size_t)(line - script.next) * sizeof *due);
        *due = a;
        script.next++;
        pthread_cond_broadcast(&script.turn);
    }
    pthread_mutex_unlock(&script.lock);
}

/* Where the script has the next call of this rank, or its end; its length: nowhere. */
static int place_of(uint32_t type, int rank)
{
    int i = 0;
    for (int calls = 0; i < script.n; i++) {
        const arrival *a = &script.item[i];
        if (a->rank == rank && a->type == type && (type != CALL || calls++ == script.called[rank])) break;
    }
    return i;
}

/* Nobody else is before this place: what the rank has sent itself arrives in the order of sending. */
static bool is_free(int place, int rank)
{
    for (int i = script.next; i < place; i++)
        if (script.item[i].rank != rank) return false;
    return true;
}

/* On the rank's thread: waits until what the script has before `place` is there, or is this rank's own. */
static void await(int place, int rank, const char *why)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += GATE_S;
    while (!is_free(place, rank))
        if (pthread_cond_timedwait(&script.turn, &script.lock, &until) != 0)
            give_up(why, &(arrival){.rank = rank});
}

static void gate(uint32_t type, int rank)
{
    pthread_mutex_lock(&script.lock);
    if (script.mode == SCRIPT_FOLLOW) {
        await(place_of(type, rank), rank, "waits at the gate");
        script.called[rank] += type == CALL;
    }
    pthread_mutex_unlock(&script.lock);
}

void script_await_turn(int rank)
{
    gate(FINISHED, rank);
}

int script_await_end(void)
{
    pthread_mutex_lock(&script.lock);
    if (script.mode == SCRIPT_FOLLOW) await(script.n, NOBODY, "waits for the end");
    pthread_mutex_unlock(&script.lock);
    return script.n;
}

void script_set(script_mode mode)
{
    script.mode = mode;
    script.next = 0;
    if (mode == SCRIPT_WRITE) script.n = 0;
    memset(script.called, 0, sizeof script.called);
    memset(script.clock, 0, sizeof script.clock);
}

/* ---- the worker half ----------------------------------------------------------------------------------- */

typedef struct recorder {
    en_host table; /* first */
    en_host *real;
    size_t length;
    char text[TEXT];
} recorder;

static recorder *recorders; /* (RECORDER_RANKS) */

static en_host *record_for(en_host *host)
{
    recorder *r = &recorders[host->world->rank];
    r->real = host;
    r->table.world = host->world;
    return &r->table;
}

static recorder *of(en_host *table)
{
    return (recorder *)(void *)table;
}

__attribute__((format(printf, 2, 3))) static void note(en_host *table, const char *fmt, ...)
{
    recorder *r = of(table);
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(r->text + r->length, TEXT - r->length, fmt, args);
    va_end(args);
    r->length += r->length + (size_t)n < TEXT ? (size_t)n : 0;
}

static double rec_num(en_host *h, const char *key)
{
    return of(h)->real->num(of(h)->real, key);
}

static const char *rec_text(en_host *h, const char *key)
{
    return of(h)->real->text(of(h)->real, key);
}

static uint64_t rec_rand(en_host *h)
{
    const uint64_t value = of(h)->real->rand(of(h)->real);
    note(h, "rand %llx\n", (unsigned long long)value);
    return value;
}

static int64_t rec_now(en_host *h)
{
    return of(h)->real->now_ns(of(h)->real);
}

__attribute__((format(printf, 3, 4))) static void rec_log(en_host *h, int level, const char *fmt, ...)
{
    (void)h, (void)level, (void)fmt;
}

static en_vec rec_vec(en_host *h, const char *name, const en_bucket *like)
{
    const en_vec v = of(h)->real->vec(of(h)->real, name, like);
    note(h, "vec %s of %u: %u\n", name, like->id, v);
    return v;
}

static en_vec rec_slot(en_host *h, const en_bucket *b, int i)
{
    const en_vec v = of(h)->real->slot(of(h)->real, b, i);
    note(h, "slot %d of %u: %u\n", i, b->id, v);
    return v;
}

static en_status rec_lin(en_host *h, en_vec y, double a, en_vec x, double b)
{
    const en_status st = of(h)->real->lin(of(h)->real, y, a, x, b);
    note(h, "lin %u %g %u %g: %d\n", y, a, x, b, st);
    return st;
}

static en_status rec_step(en_host *h, const en_bucket *b)
{
    const en_status st = of(h)->real->step(of(h)->real, b);
    note(h, "step %u at %.9g: %d\n", b->id, of(h)->real->lr(of(h)->real), st);
    return st;
}

static double rec_lr(en_host *h)
{
    return of(h)->real->lr(of(h)->real);
}

static double rec_cost(en_host *h, int op, const en_bucket *b)
{
    return of(h)->real->cost(of(h)->real, op, b);
}

static double rec_coll_bytes(en_host *h, int op, int group)
{
    const double bytes = of(h)->real->coll_bytes(of(h)->real, op, group);
    note(h, "coll_bytes %d %d: %.9g\n", op, group, bytes);
    return bytes;
}

static en_req rec_mean_step(en_host *h, const en_bucket *b)
{
    const en_req r = of(h)->real->mean_step(of(h)->real, b);
    note(h, "mean_step %u: %llu\n", b->id, (unsigned long long)r);
    return r;
}

static en_req rec_coll(en_host *h, int op, int group, int what, const en_bucket *b, en_vec inout)
{
    const en_req r = of(h)->real->coll(of(h)->real, op, group, what, b, inout);
    note(h, "coll %d %d %d of %u on %u: %llu\n", op, group, what, b->id, inout, (unsigned long long)r);
    return r;
}

static en_req rec_sendrecv(en_host *h, int group, int what, const en_bucket *b, int to, en_vec out, int from,
                           en_vec in)
{
    const en_req r = of(h)->real->sendrecv(of(h)->real, group, what, b, to, out, from, in);
    note(h, "sendrecv %d %d %d %u %d %u of %u: %llu\n", group, what, to, out, from, in, b->id,
         (unsigned long long)r);
    return r;
}

static en_req rec_call(en_host *h, int dest, uint32_t kind, int what, const en_bucket *b, en_vec out,
                       en_vec in, uint64_t word)
{
    if (dest == EN_SERVERS) gate(CALL, h->world->rank);
    const en_req r = of(h)->real->call(of(h)->real, dest, kind, what, b, out, in, word);
    note(h, "call %d %u %d of %u, %u %u: %llu\n", dest, kind, what, b->id, out, in, (unsigned long long)r);
    return r;
}

static en_status rec_wait(en_host *h, en_req r)
{
    const en_status st = of(h)->real->wait(of(h)->real, r);
    note(h, "wait %llu: %d\n", (unsigned long long)r, st);
    return st;
}

static uint64_t rec_answer(en_host *h, en_req r)
{
    return of(h)->real->answer(of(h)->real, r);
}

static en_status rec_open(en_host *h, void *state)
{
    return real->open(record_for(h), state);
}

static en_status rec_plan(en_host *h, void *state, const en_bucket *b, uint64_t *lo, uint64_t *hi)
{
    const en_status st = real->plan(record_for(h), state, b, lo, hi);
    note(record_for(h), "plan %u: %llu %llu\n", b->id, (unsigned long long)*lo, (unsigned long long)*hi);
    return st;
}

static en_status rec_before(en_host *h, void *state, uint64_t step)
{
    return real->before_step(record_for(h), state, step);
}

static en_status rec_submit(en_host *h, void *state, const en_bucket *b, en_req *req)
{
    note(record_for(h), "submit %u of step %llu: %llu samples, rate %.9g\n", b->id,
         (unsigned long long)b->step, (unsigned long long)b->nsamples, h->lr(h));
    return real->submit(record_for(h), state, b, req);
}

static en_status rec_finish(en_host *h, void *state, const en_bucket *b, const en_req *req)
{
    return real->finish(record_for(h), state, b, req);
}

static en_status rec_after(en_host *h, void *state, uint64_t step)
{
    return real->after_step(record_for(h), state, step);
}

static int rec_eval(en_host *h, void *state, const en_bucket *b, en_vec *vec_out)
{
    return real->eval(record_for(h), state, b, vec_out);
}

static void rec_theory(en_host *h, void *state, en_theory *out)
{
    real->theory(record_for(h), state, out);
}

/* ---- the store half ---------------------------------------------------------------------------------------
 */

static void call_arrived(const en_partition *part, const en_msg *msg)
{
    script.clock[msg->src][part->bucket] = msg->clock;
    arrived((arrival){.type = CALL,
                      .bucket = part->bucket,
                      .rank = msg->src,
                      .kind = msg->kind,
                      .what = msg->what,
                      .is_push = msg->data != NULL,
                      .clock = msg->clock,
                      .base_version = msg->base_version,
                      .nsamples = msg->nsamples});
}

static en_status rec_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    call_arrived(part, msg);
    if (real->on_push) return real->on_push(store, state, part, msg);
    const en_status st = store->absorb(store, part, msg, 1);
    return st == EN_OK ? store->step(store, part) : st;
}

/* Every call is asked for here, at once and while it is held; a pull has not been seen before. */
static int rec_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    if (msg->clock > script.clock[msg->src][part->bucket]) call_arrived(part, msg);
    return real->on_pull ? real->on_pull(store, state, part, msg) : EN_REPLY_WEIGHTS;
}

/* A timer that rings before its turn is set again. */
static void rec_timer(en_store *store, void *state, const en_partition *part)
{
    const arrival a = {.type = TIMER, .bucket = part->bucket, .rank = -1};
    pthread_mutex_lock(&script.lock);
    const bool is_early = script.mode == SCRIPT_FOLLOW && !is_next(&a);
    pthread_mutex_unlock(&script.lock);
    if (is_early) {
        store->timer(store, part, 100000);
        return;
    }
    arrived(a);
    real->on_timer(store, state, part);
}

static void rec_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    if (event == EN_MEMBER_FINISHED && part->bucket == 0) arrived((arrival){.type = FINISHED, .rank = who});
    if (real->on_member) real->on_member(store, state, part, who, event);
}

/* ---- both
 * -------------------------------------------------------------------------------------------------- */

const en_strategy *recorder_open(const en_strategy *strategy)
{
    real = strategy;
    wrapped = *strategy;
    wrapped.next = NULL;
    if (real->open) wrapped.open = rec_open;
    if (real->plan) wrapped.plan = rec_plan;
    if (real->before_step) wrapped.before_step = rec_before;
    wrapped.submit = rec_submit;
    if (real->finish) wrapped.finish = rec_finish;
    if (real->after_step) wrapped.after_step = rec_after;
    if (real->eval) wrapped.eval = rec_eval;
    if (real->theory) wrapped.theory = rec_theory;
    wrapped.on_push = rec_push;
    wrapped.on_pull = rec_pull;
    if (real->on_timer) wrapped.on_timer = rec_timer;
    wrapped.on_member = rec_member;
    recorders = calloc(RECORDER_RANKS, sizeof *recorders);
    if (recorders == NULL) abort();
    for (int r = 0; r < RECORDER_RANKS; r++)
        recorders[r].table = (en_host){.abi = EN_STRATEGY_ABI,
                                       .size = sizeof(en_host),
                                       .num = rec_num,
                                       .text = rec_text,
                                       .rand = rec_rand,
                                       .now_ns = rec_now,
                                       .log = rec_log,
                                       .vec = rec_vec,
                                       .slot = rec_slot,
                                       .lin = rec_lin,
                                       .step = rec_step,
                                       .lr = rec_lr,
                                       .cost = rec_cost,
                                       .coll_bytes = rec_coll_bytes,
                                       .mean_step = rec_mean_step,
                                       .coll = rec_coll,
                                       .sendrecv = rec_sendrecv,
                                       .call = rec_call,
                                       .wait = rec_wait,
                                       .answer = rec_answer};
    return &wrapped;
}

void recorder_close(void)
{
    free(recorders);
}

char *recorder_take(int rank)
{
    char *text = strdup(recorders[rank].text);
    recorders[rank].length = 0;
    recorders[rank].text[0] = 0;
    return text;
}
