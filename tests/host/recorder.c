/* recorder.c - the worker half first: the table of the host with a note behind each call; then the store half, with a
 * note before each hook; then the strategy that has both. */
#include "tests/host/recorder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 1 << 17 };

static const en_strategy *real;
static en_strategy wrapped;

/* ---- the worker half ----------------------------------------------------------------------------------- */

typedef struct recorder {
    en_host table; /* first */
    en_host *real;
    size_t length;
    char text[TEXT];
} recorder;

static recorder *recorders; /* (RECORDER_RANKS + 1) the last is the store's */

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

static en_host *store_notes(void)
{
    return &recorders[RECORDER_RANKS].table;
}

static void note_call(const char *hook, const en_partition *part, const en_msg *msg)
{
    note(store_notes(),
         "%s of rank %d, bucket %u: clock %llu, kind %u, what %u, base %llu, %llu samples, %s\n", hook,
         msg->src, part->bucket, (unsigned long long)msg->clock, msg->kind, msg->what,
         (unsigned long long)msg->base_version, (unsigned long long)msg->nsamples,
         msg->data != NULL ? "data" : "no data");
}

static en_status rec_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    note_call("push", part, msg);
    if (real->on_push) return real->on_push(store, state, part, msg);
    const en_status st = store->absorb(store, part, msg, 1);
    return st == EN_OK ? store->step(store, part) : st;
}

static int rec_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    note_call("pull", part, msg);
    return real->on_pull ? real->on_pull(store, state, part, msg) : EN_REPLY_WEIGHTS;
}

static void rec_timer(en_store *store, void *state, const en_partition *part)
{
    note(store_notes(), "timer of bucket %u\n", part->bucket);
    real->on_timer(store, state, part);
}

static void rec_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    note(store_notes(), "member %d: %d of bucket %u\n", who, event, part->bucket);
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
    recorders = calloc(RECORDER_RANKS + 1, sizeof *recorders);
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
