/* run_facts.c - the members of result.json that every run has; see run_facts.h. */
#include "rank/run_facts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/try.h"
#include "models/formats/weights.h"

enum { RESULT_SCHEMA = 2 }; /* incremented when a key changes name or meaning: report/ reads only this one */

/* ---- the reports of the roles ---- */

const json_t *eni_facts_of_role(const json_t *reports, const char *role)
{
    size_t i;
    json_t *r;
    json_array_foreach(reports, i, r) if (eni_json_says(r, "role", role)) return r;
    return NULL;
}

const json_t *eni_facts_of_rank(const json_t *reports, int rank)
{
    char role[32];
    snprintf(role, sizeof role, "rank %d", rank);
    return eni_facts_of_role(reports, role);
}

static double sum_over(const json_t *reports, const char *key, bool of_ranks)
{
    double sum = 0;
    size_t i;
    json_t *r;
    json_array_foreach(reports, i, r)
    {
        if (!of_ranks || json_object_get(r, "rank") != NULL)
            sum += json_number_value(json_object_get(r, key));
    }
    return sum;
}

double eni_facts_sum(const json_t *reports, const char *key)
{
    return sum_over(reports, key, true);
}

/* The mean over all workers' samples of a sum that each reports; null when one of them is not finite. */
static json_t *mean_over_ranks(const json_t *reports, const char *key, double n)
{
    size_t i;
    json_t *r;
    json_array_foreach(reports, i, r)
    {
        if (json_is_null(json_object_get(r, key))) return json_null();
    }
    return n > 0 ? json_real(eni_facts_sum(reports, key) / n) : json_null();
}

/* ---- identity ---- */

static void add_environment(const eni_facts *f, json_t *result)
{
    json_t *env = json_object(), *emulated = json_array();
    char text[160];
    eni_host_info_facts(f->version, eni_json_tell, env);
    eni_json_set_text(env, "host", f->host);
    eni_json_set_int(env, "cores", (uint64_t)eni_host_info_cores());
    eni_json_set_int(env, "memory", eni_host_info_memory());
    eni_json_set_text(env, "device", f->about->machine);
    for (int i = 0; i < f->asked->nstragglers; i++) {
        snprintf(text, sizeof text, "straggler %s", f->asked->stragglers[i]);
        json_array_append_new(emulated, json_string(text));
    }
    if (f->net != NULL) {
        snprintf(text, sizeof text, "net %s", f->net);
        json_array_append_new(emulated, json_string(text));
    }
    json_object_set_new(env, "emulated", emulated);
    json_object_set_new(result, "environment", env);
}

static void add_job(const eni_facts *f, json_t *result)
{
    const eni_record_options *c = f->asked;
    const eni_about *about = f->about;
    const eni_job *job = f->job;
    eni_json_set_text(result, "model", about->model);
    eni_json_set_text(result, "data", about->data);
    eni_json_set_text(result, "data_sha256", job->data_sha256);
    eni_json_set_text(result, "resize", about->pixels.resize);
    eni_json_set_text(result, "augment", about->pixels.augment);
    eni_json_set_text(result, "augment_test", about->pixels.augment_test);
    eni_json_set_text(result, "normalize", about->pixels.normalize);
    eni_json_set_int(result, "holdout", about->holdout);
    const bool has_target = eni_target_is_set(&c->target);
    json_object_set_new(result, "target",
                        has_target && !c->target.is_loss ? json_real(c->target.value) : json_null());
    if (c->target.is_loss) eni_json_set_number(result, "target_loss", c->target.value);
    eni_json_set_int(result, "seed", job->seed);
    json_object_set_new(result, "budget",
                        json_pack("{s:I, s:I, s:I}", "epochs", (json_int_t)c->epochs, "steps",
                                  (json_int_t)c->steps, "max_samples", (json_int_t)c->max_samples));
    eni_json_set_text(result, "device", about->device);
    eni_json_set_int(result, "threads", (uint64_t)about->threads);
    const uint64_t batch = job->plan.batch, global_batch = job->plan.global_batch;
    const uint64_t behind_client = job->strategy->flags & EN_LEADERS_ARE_CLIENTS ? (uint64_t)f->nlocal : 1;
    const bool is_of_all = eni_options_are_synchronous(job->strategy, job->options);
    ENI_JSON_SET_INTS(result, {"shards", (uint64_t)f->shards}, {"buckets", job->buckets->n},
                      {"batch_size", batch}, {"global_batch_size", global_batch},
                      {"samples_per_update", is_of_all ? global_batch : batch * behind_client});
    eni_json_set_number(result, "lr", job->schedule.base);
    eni_json_set_number(result, "momentum", job->momentum);
    eni_json_set_text(result, "assign", job->is_claiming ? "claim" : "fixed");
}

void eni_facts_identity(const eni_facts *f, json_t *result)
{
    eni_json_set_int(result, "schema", RESULT_SCHEMA);
    json_object_set_new(result, "argv", eni_json_texts(f->asked->argv, f->asked->argc));
    eni_json_set_text(result, "version", f->version);
    eni_json_set_text(result, "strategy", f->job->strategy->name);
    eni_json_set_text(result, "strategy_options", eni_options_canonical(f->job->options));
    eni_json_set_int(result, "workers", (uint64_t)f->nfirst);
    if (f->groups != NULL) {
        char groups[ENI_RANK_GROUPS_TEXT];
        eni_rank_groups_text(f->groups, f->nranks, groups, sizeof groups);
        eni_json_set_text(result, "groups", groups);
    }
    add_job(f, result);
    eni_json_set_text(result, "transport", f->transport);
    add_environment(f, result);
}

/* ---- outcome ---- */

void eni_facts_samples(json_t *o, double computed, double applied, double dropped)
{
    ENI_JSON_SET_INTS(o, {"samples_computed", (uint64_t)computed}, {"samples_applied", (uint64_t)applied},
                      {"samples_dropped", (uint64_t)dropped});
}

void eni_facts_present(json_t *result, int rank, double from_s, double to_s, const char *end)
{
    if (json_object_get(result, "presence") == NULL) json_object_set_new(result, "presence", json_array());
    json_array_append_new(
        json_object_get(result, "presence"),
        json_pack("{s:i, s:f, s:f, s:s}", "rank", rank, "from_s", from_s, "to_s", to_s, "end", end));
}

static void add_results(const eni_facts *f, json_t *result)
{
    const eni_stats *t = f->stats;
    const double n = eni_facts_sum(f->reports, "last_samples"), seconds = (double)t->train_ns * 1e-9;
    eni_json_set_int(result, "steps", t->sum.steps);
    eni_json_set_int(result, "updates", f->updates);
    eni_json_set_number(result, "train_seconds", seconds);
    eni_json_set_number(result, "eval_seconds", (double)t->eval_ns * 1e-9);
    eni_json_set_number(result, "samples_per_s", seconds > 0 ? f->computed / seconds : 0);
    eni_json_set_int(result, "warmup_samples", 0); /* no sample of a run is off its clock */
    eni_json_set_number(result, "cpu_seconds", sum_over(f->reports, "cpu_seconds", false));
    eni_json_set_int(result, "max_rss", eni_json_int_of(json_array_get(f->reports, 0), "max_rss"));
    eni_json_set_int(result, "data_bytes", f->about->data_bytes); /* of max_rss */
    eni_json_set_number(result, "startup_seconds", (double)t->startup_ns * 1e-9);
    json_object_set_new(result, "train_loss", mean_over_ranks(f->reports, "last_loss", n));
    json_object_set_new(result, "train_accuracy",
                        f->about->has_accuracy ? mean_over_ranks(f->reports, "last_correct", n)
                                               : json_null());
    eni_json_set_number(result, "test_loss", f->loss);
    eni_json_set_number(result, "test_accuracy", f->accuracy);
    eni_json_set_text(result, "init_sha256", f->job->init_sha256);
    eni_json_set_text(result, "order_sha256", f->job->order_sha256);
    /* On the clock of rank 0's host; "paused": the intervals that do not count. */
    json_object_set_new(result, "clock",
                        json_pack("{s:I, s:I, s:[]}", "begin_ns", (json_int_t)t->clock_begin_ns, "end_ns",
                                  (json_int_t)t->clock_end_ns, "paused"));
}

/* Whether training went uphill with finite losses: the last epoch's mean and the last step's loss are ten
 * times the first step's, and ten times that of guessing, below which a trained model begins. */
static bool has_grown(const eni_facts *f, const json_t *result)
{
    const eni_stats *t = f->stats;
    const double mean = json_number_value(json_object_get(result, "train_loss")),
                 guess = f->about->has_accuracy ? log((double)f->job->schema.outputs) : 0;
    if (!(fmin(mean, t->newest_loss) > 10 * fmax(t->first_loss, guess))) return false;
    eni_warn("train",
             "the training loss has grown from %.4g in the first step to %.4g in the last one: training has "
             "diverged; try a smaller --lr than %g, and check the signs in a strategy of your own",
             t->first_loss, t->newest_loss, f->job->schedule.base);
    return true;
}

/* Every rank that was slowed down on request, and the effect. */
static void add_stragglers(const eni_facts *f, json_t *result)
{
    json_t *list = json_array(), *report;
    size_t i;
    json_array_foreach(f->reports, i, report)
    {
        json_t *asked = json_object_get(report, "straggler_asked");
        if (asked == NULL) continue;
        json_t *o = json_pack("{s:O, s:O}", "rank", json_object_get(report, "rank"), "factor", asked);
        json_object_set(o, "factor_measured", json_object_get(report, "straggler_factor"));
        json_object_set(o, "pieces", json_object_get(report, "straggler_pieces"));
        json_object_set(o, "late", json_object_get(report, "straggler_late"));
        json_array_append_new(list, o);
    }
    json_object_set_new(result, "stragglers", list);
}

static en_status add_hashes(const eni_facts *f, json_t *result)
{
    char params_sha256[ENI_DIGEST_HEX], buffers_sha256[ENI_DIGEST_HEX];
    EN_TRY(eni_weights_digest(&f->job->schema, f->weights, params_sha256));
    eni_json_set_text(result, "params_sha256", params_sha256);
    if (f->job->state == NULL) return EN_OK;
    EN_TRY(eni_buffers_digest(&f->job->schema, f->job->state, buffers_sha256));
    eni_json_set_text(result, "buffers_sha256", buffers_sha256);
    eni_json_set_text(result, "bn_stats", f->job->bn_stats);
    return EN_OK;
}

/* As counted by the store; zeros without one. */
static void add_staleness(const eni_facts *f, json_t *result)
{
    static const char *const keys[] = {"staleness", "staleness_steady", "holds", "max_clocks_ahead"};
    const json_int_t steps = (json_int_t)(f->stats->sum.steps * (uint64_t)f->nfirst);
    if (json_object_get(f->store, "staleness") == NULL)
        json_object_set_new(result, "staleness",
                            json_pack("{s:f, s:i, s:i, s:i, s:i, s:[[i, I]]}", "mean", 0.0, "p50", 0, "p95",
                                      0, "p99", 0, "max", 0, "histogram", 0, steps));
    else
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) /* absent ones are left out */
            json_object_set(result, keys[i], json_object_get(f->store, keys[i]));
    eni_json_set_number(result, "staleness_theory", f->staleness);
}

static void add_bytes(const eni_facts *f, json_t *result)
{
    const eni_buckets *buckets = f->job->buckets;
    uint64_t padded = 0, real = 0;
    for (uint32_t b = 0; b < buckets->n; b++) {
        const eni_bucket_range *bucket = &buckets->bucket[b];
        padded += bucket->hi - bucket->lo;
        for (uint32_t i = 0; i < bucket->nparams; i++)
            real += bucket->params[i].count;
    }
    double steps = eni_facts_sum(f->reports, "all_steps") - /* bytes are this process's */
                   (double)f->stats->begin_steps * f->nfirst;
    double payload =
        eni_facts_sum(f->reports, "payload_sent") + eni_facts_sum(f->reports, "payload_received");
    eni_json_set_int(result, "payload_bytes", (uint64_t)payload);
    const double models = (f->theory.sent + f->theory.recv) * sizeof(float) * steps;
    eni_json_set_int(result, "theory_bytes", (uint64_t)(models * (double)real + 0.5));
    /* Tensors are aligned to 64 bytes; the padding before them travels too, in payload_bytes. */
    ENI_JSON_SET_INTS(result, {"padding_bytes", (uint64_t)(models * (double)(padded - real) + 0.5)},
                      {"wire_bytes", (uint64_t)eni_facts_sum(f->reports, "wire_bytes")},
                      {"tcp_info_bytes", (uint64_t)eni_facts_sum(f->reports, "tcp_info_bytes")},
                      {"shm_bytes", (uint64_t)eni_facts_sum(f->reports, "shm_bytes")});
}

en_status eni_facts_outcome(const eni_facts *f, json_t *result)
{
    add_results(f, result);
    json_object_set_new(result, "diverged", json_boolean(f->stats->has_diverged || has_grown(f, result)));
    add_stragglers(f, result);
    EN_TRY(add_hashes(f, result));
    add_staleness(f, result);
    add_bytes(f, result);
    json_object_set(result, "roles", (json_t *)(uintptr_t)f->reports);
    return EN_OK;
}

en_status eni_facts_write(const char *who, const char *dir, const json_t *result)
{
    char path[1024], *text = eni_json_dump(result, JSON_INDENT(2));
    snprintf(path, sizeof path, "%s/result.json", dir);
    const en_status st = eni_file_replace_text(who, path, text);
    free(text); /* jansson's */
    return st;
}
