/* setup.c - psd's knowledge of a run: rank 0's key-values, each of which is checked, and their agreement with
 * psd's own command line. */
#include "server/setup.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "run/units.h"
#include "runtime/net/wire.h"

/* ---- rank 0's description of the run
 * -------------------------------------------------------------------- */

enum { MAX_BUCKETS = 1 << 20 };

static const char *const orders[] = {"rank", "ring"}; /* eni_sum_order, ENI_ORDER_* */

/* The key-values being read, and the place for an error. */
typedef struct key_reader {
    const eni_key_value *key_values;
    size_t nkey_values;
    char *why; /* (ENI_REASON_MAX) */
} key_reader;

static __attribute__((format(printf, 3, 4))) en_status refuse(const key_reader *r, en_status status,
                                                              const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->why, ENI_REASON_MAX, fmt, args);
    va_end(args);
    return status;
}

static en_status text_of(const key_reader *r, const char *key, const char **value_out)
{
    *value_out = eni_key_value_find(r->key_values, r->nkey_values, key);
    if (*value_out) return EN_OK;
    return refuse(r, EN_EPROTO, "rank 0's JOIN has no '%s', which psd needs", key);
}

static en_status real_of(const key_reader *r, const char *key, double *value_out)
{
    const char *text;
    char *end;
    EN_TRY(text_of(r, key, &text));
    const double value = strtod(text, &end);
    if (end == text || *end != 0 || !isfinite(value) || value < 0)
        return refuse(r, EN_EPROTO, "'%s' is %.60s, which is not a number of at least 0", key, text);
    *value_out = value;
    return EN_OK;
}

/* Parses decimal digits that fit 64 bits, at the start of a text; NULL, or the rest of it. */
static const char *parse_whole(const char *text, uint64_t *value_out)
{
    char *end;
    errno = 0;
    *value_out = strtoull(text, &end, 10);
    return *text < '0' || *text > '9' || errno != 0 ? NULL : end;
}

static en_status whole_of(const key_reader *r, const char *key, uint64_t *value_out)
{
    const char *text;
    EN_TRY(text_of(r, key, &text));
    const char *end = parse_whole(text, value_out);
    if (end && *end == 0) return EN_OK;
    return refuse(r, EN_EPROTO, "'%s' is %.60s, which is not a whole number of at least 0", key, text);
}

/* The emulated network; absent if the client does not send it (libentrain). */
static en_status read_net(const key_reader *r, eni_setup *setup)
{
    uint64_t delay = 0;
    if (!eni_key_value_find(r->key_values, r->nkey_values, "net-rate")) return EN_OK;
    EN_TRY(whole_of(r, "net-rate", &setup->net_bytes_per_s));
    EN_TRY(whole_of(r, "net-delay", &delay));
    if (delay > INT64_MAX / 2)
        return refuse(r, EN_EPROTO, "'net-delay' of %llu ns is too long", (unsigned long long)delay);
    setup->net_delay_ns = (int64_t)delay;
    return EN_OK;
}

/* The position of a word in a list, as in an enum. */
static en_status word_of(const key_reader *r, const char *key, const char *const *words, int n,
                         int *index_out)
{
    const char *text;
    EN_TRY(text_of(r, key, &text));
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], text) == 0) {
            *index_out = i;
            return EN_OK;
        }
    return refuse(r, EN_EPROTO, "'%s' is %.60s, which this psd does not know", key, text);
}

/* "100,200,300" into a new array. */
static en_status list_of(const key_reader *r, const char *key, uint64_t **list_out, uint32_t *n_out)
{
    const char *text;
    EN_TRY(text_of(r, key, &text));
    uint32_t n = 1;
    for (const char *p = text; *p; p++)
        n += *p == ',';
    if (n > MAX_BUCKETS)
        return refuse(r, EN_EPROTO, "'%s' has %u entries: the limit is %d", key, n, MAX_BUCKETS);
    uint64_t *list = eni_alloc_array(n, sizeof *list);
    if (list == NULL) return refuse(r, EN_ENOMEM, "psd is out of memory");
    for (uint32_t i = 0; i < n; i++) {
        const char *end = parse_whole(text, &list[i]);
        if (end == NULL || *end != (i + 1 < n ? ',' : 0)) {
            eni_free(list);
            return refuse(r, EN_EPROTO, "entry %u of '%s' is not a whole number", i, key);
        }
        text = end + 1;
    }
    *list_out = list;
    *n_out = n;
    return EN_OK;
}

/* Shards write their buckets' weights into one vector (arenas.h). */
static int by_offset(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

static en_status check_overlap(const key_reader *r, const eni_setup *setup)
{
    uint64_t(*range)[2] = eni_alloc_array(setup->store.nbuckets, sizeof *range), end = 0;
    bool is_apart = true;
    if (range == NULL) return refuse(r, EN_ENOMEM, "psd is out of memory");
    for (uint32_t b = 0; b < setup->store.nbuckets; b++) {
        range[b][0] = setup->offsets[b];
        range[b][1] = setup->offsets[b] + setup->counts[b];
    }
    qsort(range, setup->store.nbuckets, sizeof *range, by_offset);
    for (uint32_t b = 0; b < setup->store.nbuckets && is_apart; b++) {
        is_apart = range[b][0] >= end;
        end = range[b][1];
    }
    eni_free(range);
    return is_apart ? EN_OK : refuse(r, EN_EPROTO, "two buckets overlap");
}

static en_status read_buckets(const key_reader *r, eni_setup *setup)
{
    uint32_t noffsets;
    EN_TRY(whole_of(r, "elements", &setup->elements));
    EN_TRY(list_of(r, "buckets", &setup->counts, &setup->store.nbuckets));
    EN_TRY(list_of(r, "bucket-offsets", &setup->offsets, &noffsets));
    if (noffsets != setup->store.nbuckets)
        return refuse(r, EN_EPROTO, "the numbers of buckets (%u) and offsets (%u) differ",
                      setup->store.nbuckets, noffsets);
    for (uint32_t b = 0; b < setup->store.nbuckets; b++) {
        const uint64_t count = setup->counts[b], offset = setup->offsets[b];
        if (count == 0 || count > ENI_BUCKET_MAX / sizeof(float))
            return refuse(r, EN_EPROTO, "bucket %u has %llu elements: 1 to %llu are allowed", b,
                          (unsigned long long)count, (unsigned long long)(ENI_BUCKET_MAX / sizeof(float)));
        if (offset > setup->elements || count > setup->elements - offset)
            return refuse(r, EN_EPROTO, "bucket %u ends beyond the %llu elements of the model", b,
                          (unsigned long long)setup->elements);
    }
    return check_overlap(r, setup);
}

static en_status read_milestones(const key_reader *r, eni_schedule *schedule)
{
    uint64_t *list;
    uint32_t n;
    EN_TRY(list_of(r, "lr-milestones", &list, &n));
    for (uint32_t i = 0; i < n && i < ENI_MILESTONES; i++)
        schedule->milestone[i] = list[i];
    schedule->nmilestones = (int)n;
    eni_free(list);
    if (n <= ENI_MILESTONES) return EN_OK;
    return refuse(r, EN_EPROTO, "'lr-milestones' has %u entries: the limit is %d", n, ENI_MILESTONES);
}

/* Parameter groups; none if the key is absent. */
static en_status read_groups(const key_reader *r, eni_setup *setup)
{
    const char *text = eni_key_value_find(r->key_values, r->nkey_values, "groups");
    if (text == NULL) return EN_OK;
    setup->groups = eni_groups_parse(text);
    setup->store.hyper.groups = setup->groups;
    if (setup->groups != NULL) return EN_OK;
    return refuse(r, EN_EPROTO, "'groups' is invalid: %.60s", text);
}

static en_status read_points(const key_reader *r, eni_setup *setup)
{
    const char *text;
    EN_TRY(text_of(r, "lr-points", &text));
    setup->points = eni_rate_points_parse(text);
    setup->store.schedule.points = setup->points;
    if (setup->points != NULL) return EN_OK;
    return refuse(r, EN_EPROTO, "'lr-points' is invalid: %.60s", text);
}

static en_status read_adam(const key_reader *r, eni_hyper *hyper)
{
    EN_TRY(real_of(r, "beta1", &hyper->beta1));
    EN_TRY(real_of(r, "beta2", &hyper->beta2));
    EN_TRY(real_of(r, "eps", &hyper->eps));
    if (hyper->beta1 < 1 && hyper->beta2 < 1) return EN_OK;
    return refuse(r, EN_EPROTO, "'beta1' and 'beta2' are %g and %g: both must be below 1", hyper->beta1,
                  hyper->beta2);
}

static en_status read_optimizer(const key_reader *r, eni_setup *setup)
{
    const char *name;
    double momentum = 0, decay = 0, nesterov = 0;
    int kind = 0;
    EN_TRY(text_of(r, "optimizer", &name));
    setup->store.optimizer = eni_optimizer_find(name);
    if (setup->store.optimizer == NULL)
        return refuse(r, EN_EPROTO, "this psd does not know the optimizer %.60s", name);
    EN_TRY(real_of(r, "momentum", &momentum));
    EN_TRY(real_of(r, "weight-decay", &decay));
    EN_TRY(real_of(r, "nesterov", &nesterov));
    setup->store.hyper =
        (eni_hyper){.momentum = (float)momentum, .weight_decay = (float)decay, .nesterov = nesterov != 0};
    if (setup->store.optimizer->adam != NULL) EN_TRY(read_adam(r, &setup->store.hyper));
    EN_TRY(read_groups(r, setup));
    EN_TRY(word_of(r, "lr-schedule", eni_schedule_names, ENI_SCHEDULES, &kind));
    setup->store.schedule.kind = (eni_schedule_kind)kind;
    if (setup->store.schedule.kind == ENI_LR_MULTISTEP) EN_TRY(read_milestones(r, &setup->store.schedule));
    if (setup->store.schedule.kind == ENI_LR_POINTS) EN_TRY(read_points(r, setup));
    EN_TRY(real_of(r, "lr", &setup->store.schedule.base));
    EN_TRY(real_of(r, "lr-gamma", &setup->store.schedule.gamma));
    EN_TRY(whole_of(r, "lr-warmup", &setup->store.schedule.warmup));
    EN_TRY(whole_of(r, "lr-step", &setup->store.schedule.step_samples));
    return whole_of(r, "total-samples", &setup->store.schedule.total);
}

static en_status read_strategy(const key_reader *r, const en_strategy *strategy, eni_setup *setup)
{
    const char *name, *options;
    EN_TRY(text_of(r, "strategy-name", &name));
    if (strcmp(name, strategy->name) != 0)
        return refuse(r, EN_EMISMATCH,
                      "psd was started with --strategy=%s, the workers with --strategy=%.60s", strategy->name,
                      name);
    EN_TRY(text_of(r, "strategy-options", &options));
    setup->store.strategy = strategy;
    if (eni_options_new(strategy, options, &setup->options) != EN_OK)
        return refuse(r, EN_EMISMATCH, "the options '%.200s' are not valid for psd's strategy %s", options,
                      strategy->name);
    return EN_OK;
}

static en_status read_all(const key_reader *r, const en_strategy *strategy, eni_setup *setup)
{
    int order = 0;
    EN_TRY(read_strategy(r, strategy, setup));
    EN_TRY(read_buckets(r, setup));
    EN_TRY(read_optimizer(r, setup));
    EN_TRY(word_of(r, "sum-order", orders, 2, &order));
    setup->store.sum_order = (eni_sum_order)order;
    EN_TRY(whole_of(r, "seed", &setup->store.seed));
    EN_TRY(whole_of(r, "budget", &setup->budget));
    return read_net(r, setup);
}

en_status eni_setup_read(const en_strategy *strategy, const eni_key_value *key_values, size_t nkey_values,
                         eni_setup *setup_out, char why_out[ENI_REASON_MAX])
{
    const key_reader r = {key_values, nkey_values, why_out};
    eni_setup setup = {0};
    const en_status st = read_all(&r, strategy, &setup);
    setup.store.options = setup.options;
    setup.store.bucket_counts = setup.counts;
    setup.store.weight_offsets = setup.offsets;
    if (st == EN_OK)
        *setup_out = setup;
    else
        eni_setup_fini(&setup);
    return st;
}

void eni_setup_fini(eni_setup *setup)
{
    eni_free(setup->counts);
    eni_free(setup->offsets);
    eni_options_free(setup->options);
    eni_groups_free(setup->groups);
    eni_rate_points_free(setup->points);
    *setup = (eni_setup){0};
}

/* ---- psd's own command line ---------------------------------------------------------------------------- */

static en_status compare(const char *key, const char *ours, const char *theirs, char *why)
{
    if (strcmp(ours, theirs) == 0) return EN_OK;
    snprintf(why, ENI_REASON_MAX, "%s differs: psd has %.150s, rank 0 has %.150s", key, ours, theirs);
    return EN_EMISMATCH;
}

static en_status compare_net(const char *net, const eni_setup *setup, char *why)
{
    char ours[80], theirs[80];
    uint64_t rate;
    int64_t delay;
    if (!eni_net_parse(net, &rate, &delay)) return EN_EINVAL; /* config/ has checked it */
    snprintf(ours, sizeof ours, "rate:%" PRIu64 "B,delay:%" PRId64 "ns", rate, delay);
    snprintf(theirs, sizeof theirs, "rate:%" PRIu64 "B,delay:%" PRId64 "ns", setup->net_bytes_per_s,
             setup->net_delay_ns);
    return compare("net", ours, theirs, why);
}

en_status eni_psd_agree(const eni_config *c, const eni_options *options, const eni_key_value *key_values,
                        size_t nkey_values, const eni_setup *setup, char why_out[ENI_REASON_MAX])
{
    static const char *const transports[] = {"auto", "shm", "tcp"}; /* ENI_TRANSPORT_* */
    char protocol[16], abi[16];
    snprintf(protocol, sizeof protocol, "%u", ENI_WIRE_VERSION);
    snprintf(abi, sizeof abi, "%u", EN_STRATEGY_ABI);
    const eni_key_value own[] = {
        {"protocol", protocol},
        {"strategy-abi", abi},
        {"sum-order", eni_config_is_given(c, "sum-order") ? orders[c->sum_order] : NULL},
        {"transport", eni_config_is_given(c, "transport") ? transports[c->transport] : NULL}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        const char *theirs = eni_key_value_find(key_values, nkey_values, own[i].key);
        if (own[i].value != NULL && theirs != NULL) /* libentrain sends few */
            EN_TRY(compare(own[i].key, own[i].value, theirs, why_out));
    }
    if (options != NULL)
        EN_TRY(compare("strategy-options", eni_options_canonical(options),
                       eni_options_canonical(setup->options), why_out));
    return c->net != NULL ? compare_net(c->net, setup, why_out) : EN_OK;
}
