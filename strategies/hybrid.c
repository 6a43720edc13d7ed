/* hybrid.c - each bucket goes where it is cheaper: to the parameter server, or into the all-reduce.
 *
 *     bucket 0   gradient --push--> server: mean, step --weights--> everybody       both ways at once, over
 *     bucket 1   gradient --> all-reduce --> mean --> everybody steps               different resources
 *
 * Both ways take one step on the mean of all ranks, added in rank order, so the result does not depend on the
 * way: hybrid ends with the bytes of ring and of ps-sync. Only the time does. A rule names the tensors that go
 * to the server (hybrid:ps=fc1.*); without one the measured cost of both decides (hybrid:auto).
 *
 * A bucket holds several tensors and goes where its largest one goes; a smaller --bucket-cap-mb is finer. All
 * is decided once, before step 0, from figures that are equal on all ranks. */
#include <fnmatch.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "entrain/strategy.h"

enum { PUSH = 1, BUCKETS_MAX = 256, NAME = 32, TEXT = 160 };

enum { BY_ALLREDUCE = 0, BY_SERVER = 1, WAYS = 2 };

typedef struct hybrid {
    uint32_t nbuckets;
    uint32_t is_decided, has_rule;
    struct {
        uint64_t count;       /* elements */
        double seconds[WAYS]; /* of an exchange; NaN: not measured */
        uint32_t way;
        char name[NAME]; /* of the largest tensor */
    } bucket[BUCKETS_MAX];
} hybrid;

/* ---- the rule ------------------------------------------------------------------------------------------ */

/* "fc1.*+conv?.weight": any of the patterns. */
static bool any_matches(const char *rule, const char *name)
{
    char pattern[256];
    for (;;) {
        const size_t length = strcspn(rule, "+");
        snprintf(pattern, sizeof pattern, "%.*s", (int)length, rule);
        if (fnmatch(pattern, name, FNM_NOESCAPE) == 0) return true;
        if (rule[length] == 0) return false;
        rule += length + 1;
    }
}

static const en_param *largest(const en_bucket *bucket)
{
    const en_param *most = &bucket->params[0];
    for (uint32_t i = 1; i < bucket->nparams; i++)
        if (bucket->params[i].count > most->count) most = &bucket->params[i];
    return most;
}

/* ---- the balance --------------------------------------------------------------------------------------- */

typedef struct load {
    double seconds[WAYS];
} load;

static load load_of(const hybrid *self)
{
    load sum = {{0}};
    for (uint32_t b = 0; b < self->nbuckets; b++)
        sum.seconds[self->bucket[b].way] += self->bucket[b].seconds[self->bucket[b].way];
    return sum;
}

/* Both ways are used at once: the step waits for the longer one. */
static double span(load sum)
{
    const double ring = sum.seconds[BY_ALLREDUCE], server = sum.seconds[BY_SERVER];
    return ring > server ? ring : server; /* no fmax: a plugin links to nothing */
}

static load moved(load sum, const hybrid *self, uint32_t b)
{
    const uint32_t from = self->bucket[b].way, to = !from;
    sum.seconds[from] -= self->bucket[b].seconds[from];
    sum.seconds[to] += self->bucket[b].seconds[to];
    return sum;
}

/* Sorts by the server's advantage: seconds there over seconds in the all-reduce. */
static void sort_by_advantage(const hybrid *self, uint32_t *order)
{
    for (uint32_t i = 0; i < self->nbuckets; i++) {
        uint32_t at = i;
        const double *now = self->bucket[i].seconds;
        for (; at > 0; at--) {
            const double *before = self->bucket[order[at - 1]].seconds;
            if (before[BY_SERVER] * now[BY_ALLREDUCE] <= now[BY_SERVER] * before[BY_ALLREDUCE]) break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
}

/* One bucket moved, or two exchanged, so that the longer way gets shorter. False: no such change helps. */
static bool improve(hybrid *self, load *sum)
{
    const double enough = span(*sum) * (1 - 1e-9);
    for (uint32_t a = 0; a < self->nbuckets; a++) {
        const load one = moved(*sum, self, a);
        for (uint32_t b = a; b < self->nbuckets; b++) {
            const bool is_pair = b > a && self->bucket[a].way != self->bucket[b].way;
            const load now = is_pair ? moved(one, self, b) : one;
            if (span(now) >= enough) continue;
            self->bucket[a].way = !self->bucket[a].way;
            if (is_pair) self->bucket[b].way = !self->bucket[b].way;
            *sum = now;
            return true;
        }
    }
    return false;
}

/* Minimises the longer way. For divisible buckets the best split would be one point in the order of
 * advantage; they are not divisible, so from the best such point single moves and exchanges go on while they
 * help. */
static void balance(hybrid *self)
{
    uint32_t order[BUCKETS_MAX], best = 0;
    for (uint32_t b = 0; b < self->nbuckets; b++)
        self->bucket[b].way = BY_ALLREDUCE;
    load sum = load_of(self);
    double least = span(sum);
    sort_by_advantage(self, order);
    for (uint32_t i = 0; i < self->nbuckets; i++) {
        sum = moved(sum, self, order[i]);
        self->bucket[order[i]].way = BY_SERVER;
        if (span(sum) >= least) continue;
        least = span(sum);
        best = i + 1;
    }
    for (uint32_t i = best; i < self->nbuckets; i++)
        self->bucket[order[i]].way = BY_ALLREDUCE;
    sum = load_of(self);
    for (uint32_t rounds = 0; rounds < 4 * BUCKETS_MAX && improve(self, &sum);)
        rounds++;
}

/* Where both ways use the same cores or the same cable, overlap gains nothing: the cheaper one, each time. */
static void take_cheaper(hybrid *self)
{
    for (uint32_t b = 0; b < self->nbuckets; b++) {
        const double *seconds = self->bucket[b].seconds;
        self->bucket[b].way = seconds[BY_SERVER] < seconds[BY_ALLREDUCE] ? BY_SERVER : BY_ALLREDUCE;
    }
}

/* ---- the decision -------------------------------------------------------------------------------------- */

static bool is_measured(const hybrid *self)
{
    for (uint32_t b = 0; b < self->nbuckets; b++)
        if (isnan(self->bucket[b].seconds[0]) || isnan(self->bucket[b].seconds[1])) return false;
    return true;
}

static uint32_t number_of(const hybrid *self, uint32_t way)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < self->nbuckets; b++)
        n += self->bucket[b].way == way;
    return n;
}

/* "0, 2-4 (fc1.weight, ..)"; "none". */
static void list(const hybrid *self, uint32_t way, char text[TEXT])
{
    size_t n = 0;
    const char *first = NULL;
    snprintf(text, TEXT, "none");
    for (uint32_t b = 0; b < self->nbuckets && n + NAME + 24 < TEXT; b++) {
        uint32_t last = b;
        if (self->bucket[b].way != way) continue;
        while (last + 1 < self->nbuckets && self->bucket[last + 1].way == way)
            last++;
        n += (size_t)snprintf(text + n, TEXT - n, last > b ? "%s%u-%u" : "%s%u", first != NULL ? ", " : "", b,
                              last);
        if (first == NULL) first = self->bucket[b].name;
        b = last;
    }
    if (first != NULL) snprintf(text + n, TEXT - n, " (%s%s)", first, number_of(self, way) > 1 ? ", .." : "");
}

static void say(en_host *host, const hybrid *self)
{
    char server[TEXT], ring[TEXT], times[TEXT] = "";
    double all[WAYS] = {0};
    const load sum = load_of(self);
    for (uint32_t b = 0; b < self->nbuckets; b++)
        for (int way = 0; way < WAYS; way++)
            all[way] += self->bucket[b].seconds[way];
    list(self, BY_SERVER, server);
    list(self, BY_ALLREDUCE, ring);
    if (is_measured(self))
        snprintf(times, sizeof times, "; %.3g + %.3g ms instead of %.3g by the server or %.3g by all-reduce",
                 1e3 * sum.seconds[BY_SERVER], 1e3 * sum.seconds[BY_ALLREDUCE], 1e3 * all[BY_SERVER],
                 1e3 * all[BY_ALLREDUCE]);
    host->log(host, 2, "buckets to the server: %s; all-reduced: %s%s", server, ring, times);
}

static en_status decide(en_host *host, hybrid *self)
{
    if (self->is_decided) return EN_OK;
    if (!self->has_rule) {
        if (!is_measured(self)) {
            host->log(host, 0,
                      "the costs of server and all-reduce were not measured here: name the "
                      "tensors that go to the server, as in hybrid:ps=fc1.*");
            return EN_EUNSUPPORTED;
        }
        if (host->world->nhosts > 1 && host->num(host, "apart") != 0)
            balance(self);
        else
            take_cheaper(self);
    } else if (number_of(self, BY_SERVER) == 0) {
        host->log(
            host, 0,
            "ps=%s matches no bucket's largest tensor (there %s %u): name one, as in --strategy=hybrid:ps=%s",
            host->text(host, "ps"), self->nbuckets == 1 ? "is" : "are", self->nbuckets, self->bucket[0].name);
        return EN_EINVAL;
    }
    self->is_decided = 1;
    if (host->world->rank == 0) say(host, self);
    return EN_OK;
}

/* ---- worker half --------------------------------------------------------------------------------------- */

static const en_option hybrid_options[] = {
    {sizeof(en_option), EN_OPT_TEXT, "ps",
     "tensors that go to the server: names with * and ?, several with + between them", 0, 0, 0, ""},
    {sizeof(en_option), EN_OPT_BOOL, "auto",
     "the measured cost of both ways decides, as it does without ps=", 0, 0, 1, NULL},
    {sizeof(en_option), EN_OPT_BOOL, "apart",
     "with auto, on several hosts: the two ways share no link, so their times overlap", 1, 0, 1, NULL},
    {0},
};

static en_status hybrid_open(en_host *host, void *state)
{
    hybrid *self = state;
    self->has_rule = host->text(host, "ps")[0] != 0;
    if (!self->has_rule || host->num(host, "auto") == 0) return EN_OK;
    host->log(host, 0, "ps=%s and auto exclude each other: give only one, as in --strategy=hybrid:auto",
              host->text(host, "ps"));
    return EN_EINVAL;
}

static en_status hybrid_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)hi, (void)lo;
    hybrid *self = state;
    const en_param *param = largest(bucket);
    if (bucket->id >= BUCKETS_MAX) {
        host->log(host, 0, "more than %d buckets: use a larger --bucket-cap-mb", BUCKETS_MAX);
        return EN_EUNSUPPORTED;
    }
    self->nbuckets = bucket->id + 1;
    self->bucket[bucket->id].count = bucket->count;
    self->bucket[bucket->id].way =
        self->has_rule && any_matches(host->text(host, "ps"), param->name) ? BY_SERVER : BY_ALLREDUCE;
    /* a rule need not wait for measurements */
    self->bucket[bucket->id].seconds[BY_SERVER] = self->has_rule ? NAN : host->cost(host, 0, bucket);
    self->bucket[bucket->id].seconds[BY_ALLREDUCE] =
        self->has_rule ? NAN : host->cost(host, EN_ALLREDUCE, bucket);
    snprintf(self->bucket[bucket->id].name, NAME, "%s", param->name);
    return EN_OK;
}

static en_status hybrid_before_step(en_host *host, void *state, uint64_t step)
{
    (void)step;
    return decide(host, state);
}

/* A decision from a checkpoint fits only the buckets that it was made for. */
static en_status hybrid_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    const hybrid *self = state;
    if (bucket->id >= self->nbuckets || bucket->count != self->bucket[bucket->id].count) {
        host->log(host, 0, "the checkpoint has other buckets than this run: use the same --bucket-cap-mb");
        return EN_EINVAL;
    }
    req[0] = self->bucket[bucket->id].way == BY_SERVER
                 ? host->call(host, EN_SERVERS, PUSH, EN_GRAD, bucket, bucket->grad, bucket->param, 0)
                 : host->mean_step(host, bucket);
    return EN_OK;
}

/* Every rank has the whole model; the server has only its own buckets. */
static int hybrid_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)host, (void)state, (void)bucket, (void)vec_out;
    return EN_EVAL_PARAM;
}

static void hybrid_theory(en_host *host, void *state, en_theory *theory_out)
{
    const hybrid *self = state;
    const double ring = host->coll_bytes(host, EN_ALLREDUCE, EN_WORLD);
    double elements[WAYS] = {0};
    for (uint32_t b = 0; b < self->nbuckets; b++)
        elements[self->bucket[b].way] += (double)self->bucket[b].count;
    const double all = elements[BY_SERVER] + elements[BY_ALLREDUCE];
    theory_out->sent = theory_out->recv =
        all > 0 ? (elements[BY_SERVER] + ring * elements[BY_ALLREDUCE]) / all : 0;
    theory_out->max_clocks_behind = theory_out->staleness = 0;
}

/* ---- store half: that of ps-sync ----------------------------------------------------------------------- */

static en_status hybrid_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    en_status status = store->absorb(store, part, msg, 1);
    if (status != EN_OK || part->pending < part->nclients) return status;
    return store->step(store, part);
}

static int hybrid_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store, (void)state;
    return part->version > msg->base_version ? EN_REPLY_WEIGHTS : EN_HOLD_VERSION;
}

static void hybrid_member(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    (void)state;
    if (event == EN_MEMBER_JOINED || part->pending == 0 || part->pending < part->nclients) return;
    if (store->step(store, part) != EN_OK)
        store->log(store, 0, "bucket %u shard %u: the step after worker %d ended has failed", part->bucket,
                   part->shard, who);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static const en_strategy hybrid_table = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "hybrid",
    .help = "each bucket by the server or by all-reduce: by a rule, or by what both cost",
    .paper = "Zhang'17, Poseidon, sec. 3 (hybrid communication); Kim'19, Parallax, sec. 3",
    .flags = EN_STORE_ON_SERVERS | EN_SYNCHRONOUS | EN_REPLICATED | EN_STATIC | EN_PUSH_READ_ONLY,
    .state = sizeof(hybrid),
    .options = hybrid_options,
    .open = hybrid_open,
    .plan = hybrid_plan,
    .before_step = hybrid_before_step,
    .submit = hybrid_submit,
    .eval = hybrid_eval,
    .theory = hybrid_theory,
    .on_push = hybrid_push,
    .on_pull = hybrid_pull,
    .on_member = hybrid_member,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &hybrid_table : NULL;
}
