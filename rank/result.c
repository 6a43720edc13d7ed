/* result.c - the end of a run: rank 0 gathers all ranks' figures, evaluates, saves, and writes
 * result.json (architecture: "Files in --out"). psd adds its own blob to the gather "result". */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/weights.h"
#include "rank/run_facts.h"
#include "rank/rank.h"
#include "runtime/net/tcp.h"

/* ---- this rank's report ---- */

/* "0-1": the cores this process may run on. */
static void format_cores(char *text, size_t bytes)
{
    cpu_set_t set;
    text[0] = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (int c = 0; c < CPU_SETSIZE && strlen(text) + 16 < bytes; c++) {
        if (!CPU_ISSET(c, &set)) continue;
        int last = c;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set))
            last++;
        eni_text_add(text, bytes, last > c ? "%s%d-%d" : "%s%d", text[0] != 0 ? "," : "", c, last);
        c = last;
    }
}

static void add_transport(const eni_rank *self, json_t *o)
{
    const eni_moved *steps = &self->records.stats.moved;
    eni_moved all = eni_count_moved(self);
    eni_tcp_totals kernel = {0};
    eni_tcp_count(&kernel);
    /* besides the steps: the initial weights, snapshots, checkpoints; TCP_INFO counts them, too */
    ENI_JSON_SET_INTS(o, {"payload_sent", steps->payload_sent}, {"payload_received", steps->payload_received},
                      {"payload_beside_steps", all.payload_sent + all.payload_received - steps->payload_sent -
                                                   steps->payload_received},
                      {"wire_bytes", steps->wire}, {"shm_bytes", steps->shm},
                      {"wire_bytes_with_start", all.wire}, {"tcp_info_bytes", kernel.sent + kernel.received});
}

static char *report_of_this_rank(const eni_rank *self)
{
    const eni_stats *t = &self->records.stats;
    eni_host_counters host;
    char role[32], cores[128];
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    snprintf(role, sizeof role, "rank %d", self->world.rank);
    format_cores(cores, sizeof cores);
    eni_host_count(self->exchange.host, &host);
    json_t *o = json_object();
    eni_json_set_text(o, "role", role);
    eni_json_set_text(o, "host", self->host);
    eni_json_set_text(o, "cores", cores);
    ENI_JSON_SET_INTS(o, {"rank", (uint64_t)self->world.rank}, {"pid", (uint64_t)getpid()},
                      {"steps", t->sum.steps - t->begin_steps}, {"all_steps", t->sum.steps},
                      {"samples_computed", t->sum.samples}, {"data_ns", (uint64_t)t->data_ns},
                      {"compute_ns", (uint64_t)t->compute_ns}, {"send_ns", (uint64_t)t->send_ns},
                      {"wait_ns", (uint64_t)t->wait_ns}, {"update_ns", (uint64_t)t->update_ns},
                      {"hidden_ns", (uint64_t)t->hidden_ns}, {"step_ns", (uint64_t)t->step_ns},
                      {"snapshot_ns", (uint64_t)self->records.looks.clock_ns},
                      {"snapshot_bytes_on_clock", self->records.looks.clock_bytes},
                      {"snapshot_bytes_after", self->records.looks.after_bytes},
                      {"clock_begin_ns", (uint64_t)t->clock_begin_ns}, {"last_samples", t->sum.last_samples},
                      {"last_correct", t->sum.last_correct}, {"own_steps", host.steps},
                      {"max_rss", (uint64_t)usage.ru_maxrss * 1024},
                      {"data_bytes", self->trainer.about.data_bytes}, {"param_crc", host.param_crc},
                      {"is_unchanged", host.is_unchanged});
    eni_json_set_number(o, "last_loss", t->sum.last_loss);
    eni_json_set_number(o, "cpu_seconds",
                        (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                            (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
    eni_json_set_number(o, "startup_seconds", (double)t->startup_ns * 1e-9);
    add_transport(self, o);
    if (self->trainer.ops->report_rank != NULL) self->trainer.ops->report_rank(self->trainer.self, o);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

/* The evaluation of the final model, and the result of the curve. */
typedef struct evaluated {
    double loss, accuracy; /* on the test set; a regression has no accuracy */
    bool is_there;
    eni_curve_end curve;
} evaluated;

/* ---- the run's result ---- */

/* Whether the curve is of the test set, for lack of a holdout. */
static bool is_judged_by_test(const eni_rank *self)
{
    return self->trainer.about.holdout == 0;
}

/* All reports as one array; psd's is last if there is one. */
static en_status parse_reports(const eni_blobs *blobs, json_t **reports_out)
{
    json_t *reports = json_array();
    for (size_t i = 0; i < blobs->count; i++) {
        json_error_t error;
        if (blobs->blob[i].bytes == 0) continue;
        json_t *report = json_loadb((const char *)blobs->blob[i].data, blobs->blob[i].bytes, 0, &error);
        if (report == NULL) {
            eni_error("result", "the report of rank %zu is not JSON: %s", i, error.text);
            json_decref(reports);
            return EN_EPROTO;
        }
        json_array_append_new(reports, report);
    }
    *reports_out = reports;
    return EN_OK;
}

/* psd's, if it counts what was applied: it was sent something, or the strategy evaluates its weights. */
static const json_t *store_report(const eni_rank *self, const json_t *reports)
{
    const json_t *psd = eni_facts_of_role(reports, "psd");
    uint32_t slot;
    int which;
    if (psd == NULL || json_integer_value(json_object_get(psd, "parts")) > 0) return psd;
    return eni_host_eval(self->exchange.host, &which, &slot) == EN_OK && which == EN_EVAL_STORE ? psd : NULL;
}

/* A rank's samples in the checkpoint: a store only counts those it was sent since. */
static uint64_t own_samples_before(const eni_rank *self, int rank)
{
    const bool is_known =
        self->saving.past.world == (uint64_t)self->nfirst && (uint32_t)rank < self->saving.past.nranks;
    return is_known ? self->saving.past.ranks[rank].sum.samples : 0;
}

/* Samples whose gradients overflowed in fp16: computed, but applied nowhere. */
static double overflown(const json_t *report)
{
    return json_number_value(json_object_get(json_object_get(report, "gpu"), "samples_overflown"));
}

/* The samples of one rank: computed, applied, dropped; the rest lies behind its last push. */
typedef struct share {
    double computed, applied, dropped;
} share;

/* A store counts the samples covered by the pushes that it applied; elsewhere all computed samples are
 * applied. For a lost rank we know those it has pushed. Before a resume everything counts as applied. */
static share share_of(const eni_rank *self, const json_t *report, const json_t *client, int rank)
{
    const double before = (double)own_samples_before(self, rank);
    share s = {.computed = json_number_value(json_object_get(report, "samples_computed")),
               .dropped = overflown(report)};
    if (client == NULL) {
        s.applied = s.computed - s.dropped;
        return s;
    }
    s.dropped += json_number_value(json_object_get(client, "samples_dropped"));
    s.applied = json_number_value(json_object_get(client, "samples_applied")) + before;
    if (before > 0 && !eni_rank_has_leaders(self)) /* a leader's pushes cover its whole host */
        s.applied = fmin(s.applied, s.computed - s.dropped);
    if (report == NULL) s.computed = s.applied + s.dropped;
    return s;
}

/* The mean staleness of a push by the strategy's theory for each number of ranks present, weighted by the
 * pushes of that many in that time. NAN: it has no theory. */
static double theory_of_staleness(const eni_rank *self)
{
    const eni_stats *t = &self->records.stats;
    double sum = 0, weight = 0;
    int64_t since = t->clock_begin_ns;
    int living = self->nfirst;
    eni_presence_event p;
    en_theory theory;
    for (size_t i = 0; since < t->clock_end_ns; i++) {
        const bool is_event = eni_member_presence(self->member, i, &p) && p.at_ns < t->clock_end_ns;
        const int64_t until = is_event && p.at_ns > since ? p.at_ns : is_event ? since : t->clock_end_ns;
        eni_host_theory(self->exchange.host, living, &theory);
        if (theory.staleness < 0) return NAN;
        sum += theory.staleness * living * (double)(until - since);
        weight += living * (double)(until - since);
        living += !is_event ? 0 : p.kind == ENI_CAME ? 1 : -1;
        since = until;
        if (living < 1) break;
    }
    return weight > 0 ? sum / weight : NAN;
}

/* With --max-workers most ranks may never have come. */
static bool was_there(const eni_rank *self, int rank)
{
    eni_presence_event p;
    for (size_t i = 0; rank >= self->nfirst && eni_member_presence(self->member, i, &p); i++)
        if (p.rank == rank && p.kind == ENI_CAME) return true;
    return rank < self->nfirst;
}

/* The ranks that took part, from when to when on the training clock, and how they ended. */
static void add_presence(const eni_rank *self, json_t *result)
{
    static const char *const ends[] = {[ENI_CAME] = "came", [ENI_LOST] = "lost", [ENI_WENT] = "left"};
    const eni_stats *t = &self->records.stats;
    for (int r = 0; r < self->world.nranks && eni_rank_has_seats(self); r++) {
        double from = 0, to = (double)t->train_ns * 1e-9;
        const char *end = "stayed";
        eni_presence_event p;
        if (!was_there(self, r)) continue;
        for (size_t i = 0; eni_member_presence(self->member, i, &p); i++) {
            if (p.rank != r) continue;
            const double at = (double)(t->before_ns + p.at_ns - t->clock_begin_ns) * 1e-9;
            if (p.kind == ENI_CAME)
                from = at;
            else
                to = at, end = ends[p.kind];
        }
        eni_facts_present(result, r, from, to, end);
    }
}

static void add_per_worker(const eni_rank *self, const eni_facts *facts, json_t *result)
{
    const json_t *reports = facts->reports, *clients = json_object_get(facts->store, "per_worker");
    const double carried = (double)self->saving.carried;
    json_t *list = json_array();
    share all = {0};
    for (int r = 0; r < self->world.nranks; r++) {
        if (!was_there(self, r)) continue;
        const json_t *report = eni_facts_of_rank(reports, r), *client = json_array_get(clients, (size_t)r);
        const share own = share_of(self, report, client, r);
        json_t *o = json_object();
        eni_json_set_int(o, "rank", (uint64_t)r);
        eni_json_set_int(o, "steps", eni_json_int_of(report, "all_steps"));
        eni_facts_samples(o, own.computed, own.applied, own.dropped);
        all.computed += own.computed;
        all.applied += own.applied;
        all.dropped += own.dropped;
        json_array_append_new(list, o);
    }
    json_object_set_new(result, "per_worker", list);
    eni_facts_samples(result, all.computed + carried, all.applied + carried, all.dropped);
}

/* The lost ranks, and the samples lost with them. */
static void add_lost(const eni_rank *self, json_t *result)
{
    const double applied = json_number_value(json_object_get(result, "samples_applied"));
    json_t *list = json_array();
    eni_death death;
    for (int r = 0; r < self->world.nranks; r++)
        if (eni_member_has_left(self->member, r, &death))
            json_array_append_new(list,
                                  json_pack("{s:i, s:I, s:s, s:s}", "rank", r, "step", (json_int_t)death.step,
                                            "phase", death.phase, "cause", death.cause));
    if (json_array_size(list) > 0) {
        json_object_set(result, "lost", list);
        if (!eni_shutdown_is_asked(self->shutdown))
            eni_json_set_int(result, "samples_lost", (uint64_t)((double)self->job.plan.samples - applied));
    }
    json_decref(list);
}

static void print_lost(const json_t *result)
{
    size_t i;
    json_t *lost;
    json_array_foreach(json_object_get(result, "lost"), i, lost) printf(
        "rank %" JSON_INTEGER_FORMAT " was lost at step %" JSON_INTEGER_FORMAT "\n",
        json_integer_value(json_object_get(lost, "rank")), json_integer_value(json_object_get(lost, "step")));
    const json_t *samples = json_object_get(result, "samples_lost");
    if (samples != NULL)
        printf("%" JSON_INTEGER_FORMAT " samples were claimed but not applied\n",
               json_integer_value(samples));
}

static void print_not_applied(const json_t *result)
{
    const json_int_t computed = json_integer_value(json_object_get(result, "samples_computed")),
                     applied = json_integer_value(json_object_get(result, "samples_applied")),
                     dropped = json_integer_value(json_object_get(result, "samples_dropped"));
    if (applied < computed)
        printf("%" JSON_INTEGER_FORMAT " samples computed, %" JSON_INTEGER_FORMAT
               " of them applied, %" JSON_INTEGER_FORMAT " dropped, %" JSON_INTEGER_FORMAT
               " behind the last push of their rank\n",
               computed, applied, dropped, computed - applied - dropped);
}

/* The carrier of the exchange: of pushes, else of collectives. */
static const char *transport_of(const eni_rank *self)
{
    const eni_exchange *e = &self->exchange;
    if (e->client != NULL) return eni_client_is_shared(e->client) ? "shm" : "tcp";
    if (e->all.coll == NULL) return "none";
    if (self->trainer.carrier != NULL) return self->trainer.carrier;
    return e->all.choice.transport == ENI_OVER_SHM ? "shm" : "tcp";
}

static void add_collective(const eni_rank *self, json_t *result)
{
    const char *carrier = self->trainer.carrier;
    const bool is_nccl = carrier != NULL && strcmp(carrier, "nccl") == 0;
    if (self->exchange.all.coll != NULL && self->exchange.client == NULL)
        json_object_set_new(
            result, "collective",
            json_pack("{s:s, s:s, s:s}", "algorithm",
                      is_nccl ? "nccl" : eni_coll_algorithm_name(self->exchange.all.choice.algorithm),
                      "transport", transport_of(self), "why",
                      carrier != NULL ? self->trainer.why : self->exchange.all.choice.why));
    if (is_nccl)
        json_object_set_new(json_object_get(result, "collective"), "bytes",
                            json_string("payload is the algorithm's; NCCL's own traffic cannot be seen"));
}

static eni_facts facts_of(const eni_rank *self)
{
    return (eni_facts){.version = self->version,
                       .host = self->host,
                       .transport = transport_of(self),
                       .job = &self->job,
                       .about = &self->trainer.about,
                       .asked = &self->records.asked,
                       .stats = &self->records.stats,
                       .nranks = self->world.nranks,
                       .nfirst = self->nfirst,
                       .groups = eni_rank_uses_groups(self) ? self->groups : NULL,
                       .nlocal = self->world.nlocal,
                       .shards = self->exchange.client == NULL ? 0 : eni_client_shards(self->exchange.client),
                       .net = self->exchange.shaper == NULL ? NULL : self->exchange.asked.net};
}

static void add_identity(const eni_rank *self, const eni_facts *facts, json_t *result)
{
    eni_facts_identity(facts, result);
    if (eni_rank_has_seats(self))
        eni_json_set_int(result, "max_workers", (uint64_t)(self->world.nranks / ENI_RANKS_PER_PLACE));
    add_collective(self, result);
}

static void add_checkpoints(const eni_rank *self, json_t *result)
{
    const eni_saving *saving = &self->saving;
    json_t *from = json_array();
    json_object_set_new(result, "checkpoints",
                        json_pack("{s:I, s:I, s:s}", "written", (json_int_t)saving->nwritten, "failed",
                                  (json_int_t)saving->nfailed, "last", saving->last_path));
    for (uint32_t i = 0; i < saving->past.nhistory; i++)
        json_array_append_new(from, json_string(saving->past.history[i]));
    if (saving->is_resumed) json_array_append_new(from, json_string(saving->past_path));
    json_object_set_new(result, "resumed_from", from);
}

/* A run that resumes a finished one knows only the end of its curve: `entrain report` reads all of it. */
static void print_reached(const eni_rank *self, const eni_curve_end *curve)
{
    const eni_target *target = &self->records.asked.target;
    char samples[32], what[ENI_TARGET_TEXT];
    const char *set = is_judged_by_test(self) ? "Test set" : "Holdout";
    if (!curve->is_whole) return;
    eni_text_grouped(curve->reach.samples, ",", samples, sizeof samples);
    eni_target_text(target, " %", ' ', what);
    if (isfinite(curve->reach.t))
        printf("%s: %s reached after %.2f s (%.2f to %.2f), %s samples\n", set, what, curve->reach.t,
               curve->reach.low, curve->reach.high, samples);
    else
        printf("%s: %s not reached for three points of the curve in a row; %.*f%s at the end\n", set, what,
               target->is_loss ? 6 : 2, target->is_loss ? curve->last.loss : curve->last.accuracy * 100,
               target->is_loss ? "" : " %");
}

/* The share of time that the devices of one rank wait for each other. */
static void print_bubble(const json_t *result)
{
    const json_t *pipeline = json_object_get(result, "pipeline");
    const json_t *predicted = json_object_get(pipeline, "bubble_predicted");
    if (json_integer_value(json_object_get(pipeline, "stages")) < 2) return;
    printf("bubble: measured %.1f %%", 100 * json_number_value(json_object_get(pipeline, "bubble")));
    if (predicted != NULL)
        printf(", predicted %.1f %%, ideal %.1f %%", 100 * json_number_value(predicted),
               100 * json_number_value(json_object_get(pipeline, "bubble_ideal")));
    printf("\n");
}

static void print_last_lines(const eni_rank *self, const evaluated *last, const json_t *result)
{
    const eni_about *about = &self->trainer.about;
    const eni_target *target = &self->records.asked.target;
    if (self->records.asked.is_mute || eni_member_outcome(self->member).has_time) return; /* it goes on */
    if (!last->is_there)
        printf("Test set: not evaluated%s\n",
               self->trainer.ops->evaluate != NULL ? ", the run was interrupted" : "");
    else if (about->has_accuracy && about->test_samples == 0) /* a program's own set */
        printf("Test set: Average loss: %.4f, Accuracy: %.2f%%\n", last->loss, last->accuracy * 100);
    else if (about->has_accuracy)
        printf("Test set: Average loss: %.4f, Accuracy: %.0f/%" PRIu64 " (%.2f%%)\n", last->loss,
               last->accuracy * (double)about->test_samples, about->test_samples, last->accuracy * 100);
    else
        printf("Test set: Average loss: %.6f%s\n", last->loss,
               eni_target_is_set(target) && !target->is_loss
                   ? "; without classes it has no accuracy, so no target is reached"
                   : "");
    if (target->is_loss || (isfinite(last->accuracy) && eni_target_is_set(target) && about->has_accuracy))
        print_reached(self, &last->curve);
    print_lost(result);
    print_not_applied(result);
    printf("%s: %" JSON_INTEGER_FORMAT " updates, %.0f samples/s, %.2f s on the training clock\n",
           self->job.strategy->name, json_integer_value(json_object_get(result, "updates")),
           json_real_value(json_object_get(result, "samples_per_s")),
           (double)self->records.stats.train_ns * 1e-9);
    print_bubble(result);
}

/* The costs of the snapshots: copies on the clock, making points of the ranks' parts after it. */
static void add_measuring(const eni_rank *self, const json_t *reports, json_t *result)
{
    const eni_looks *looks = &self->records.looks;
    double slowest = 0;
    size_t i;
    json_t *r;
    json_array_foreach(reports, i, r) slowest =
        fmax(slowest, json_number_value(json_object_get(r, "snapshot_ns")));
    json_object_set_new(result, "snapshots",
                        json_pack("{s:I, s:I, s:f, s:f, s:f, s:f}", "taken", (json_int_t)looks->taken,
                                  "left_out", (json_int_t)eni_snapshots_left_out(self), "clock_seconds",
                                  slowest * 1e-9, "after_seconds", (double)looks->after_ns * 1e-9,
                                  "bytes_on_clock", eni_facts_sum(reports, "snapshot_bytes_on_clock"),
                                  "bytes_after", eni_facts_sum(reports, "snapshot_bytes_after")));
}

/* Rank 0: what it knows of the outcome, but not the samples. */
static void tell_outcome(const eni_rank *self, const json_t *reports, const evaluated *last, eni_facts *facts)
{
    facts->reports = reports;
    facts->store = store_report(self, reports);
    eni_host_theory(self->exchange.host, self->nfirst, &facts->theory);
    facts->staleness = theory_of_staleness(self);
    facts->updates = facts->store != NULL
                         ? eni_json_int_of(facts->store, "updates") + self->saving.past.updates
                         : self->records.stats.sum.steps;
    facts->weights = eni_rank_flat(self, ENI_SLOT_EVAL);
    facts->loss = last->loss;
    facts->accuracy = last->accuracy;
}

static en_status fill_result(eni_rank *self, json_t *reports, const evaluated *last, json_t *result)
{
    eni_facts facts = facts_of(self);
    tell_outcome(self, reports, last, &facts);
    add_identity(self, &facts, result);
    add_per_worker(self, &facts, result);
    facts.computed = json_number_value(json_object_get(result, "samples_computed"));
    add_lost(self, result);
    add_presence(self, result);
    EN_TRY(eni_facts_outcome(&facts, result));
    add_measuring(self, reports, result);
    eni_trainer_report_run(&self->trainer, reports, result);
    add_checkpoints(self, result);
    eni_json_set_text(result, "exit", eni_shutdown_is_asked(self->shutdown) ? "interrupted" : "ok");
    return EN_OK;
}

/* Rank 0: the final model is in slot ENI_SLOT_EVAL, and its state in job.state. */
static en_status conclude(eni_rank *self, json_t *reports, const evaluated *last)
{
    if (self->records.asked.save != NULL)
        EN_TRY(eni_weights_save(self->records.asked.save, &self->job.schema,
                                eni_rank_flat(self, ENI_SLOT_EVAL), self->job.state));
    json_t *result = json_object();
    en_status st = fill_result(self, reports, last, result);
    if (st == EN_OK && self->records.asked.out != NULL)
        st = eni_facts_write("result", self->records.asked.out, result);
    self->records.has_result = st == EN_OK;
    if (st == EN_OK) print_last_lines(self, last, result);
    json_decref(result);
    return st;
}

void eni_result_clear(const eni_rank *self)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/result.json", self->records.asked.out);
    unlink(path);
}

void eni_result_cut_short(const eni_rank *self, const char *exit, const char *cause)
{
    if (self->world.rank != 0 || self->records.asked.out == NULL || self->records.curve == NULL ||
        self->records.has_result)
        return;
    const eni_facts facts = facts_of(self);
    json_t *result = json_object();
    add_identity(self, &facts, result);
    eni_trainer_report_run(&self->trainer, NULL, result);
    eni_json_set_text(result, "exit", exit);
    if (cause[0] != 0) eni_json_set_text(result, "cause", cause);
    (void)eni_facts_write(NULL, self->records.asked.out, result);
    json_decref(result);
}

/* The curve and the final model: on the test set, even if the curve is of another one. */
static en_status evaluate_all(eni_rank *self, uint64_t version, evaluated *j)
{
    const float *flat = eni_rank_flat(self, ENI_SLOT_EVAL);
    const eni_copy_note last = {.samples = self->job.plan.samples,
                                .update = version,
                                .t = (double)self->records.stats.train_ns * 1e-9};
    EN_TRY(eni_curve_add(self->records.curve, &last, flat, self->job.state));
    EN_TRY(eni_curve_finish(self->records.curve, &j->curve));
    if (self->job.state != NULL && self->job.is_recomputed)
        EN_TRY(self->trainer.ops->recompute(self->trainer.self, flat, self->job.state));
    j->loss = j->curve.last.loss;
    j->accuracy = j->curve.last.accuracy;
    if (!is_judged_by_test(self))
        EN_TRY(self->trainer.ops->evaluate(self->trainer.self, ENI_JUDGED_TEST, flat, self->job.state,
                                           &j->loss, &j->accuracy));
    j->is_there = true;
    return EN_OK;
}

/* Checks the weights of the ranks that have reported. */
static en_status check_weights(const eni_rank *self, const json_t *reports)
{
    const json_t *first = eni_facts_of_rank(reports, 0);
    int unchanged = 0;
    for (int r = 0; r < self->world.nranks; r++)
        unchanged += json_integer_value(json_object_get(eni_facts_of_rank(reports, r), "is_unchanged")) == 1;
    if (unchanged == self->world.nranks) return eni_host_unchanged(self->job.strategy);
    if (!(self->job.strategy->flags & EN_REPLICATED) || self->job.is_claiming || first == NULL) return EN_OK;
    for (int r = 1; r < self->world.nranks; r++) {
        const json_t *other = eni_facts_of_rank(reports, r);
        if (other != NULL && json_integer_value(json_object_get(other, "param_crc")) !=
                                 json_integer_value(json_object_get(first, "param_crc")))
            return eni_host_not_replicated(self->job.strategy);
    }
    return EN_OK;
}

/* NAN if the user does not wait for it. */
static en_status evaluate_last(eni_rank *self, uint64_t version, evaluated *j)
{
    *j = (evaluated){.loss = NAN, .accuracy = NAN, .curve.last = {.loss = NAN, .accuracy = NAN}};
    if (eni_shutdown_is_asked(self->shutdown) || self->trainer.ops->evaluate == NULL) return EN_OK;
    eni_member_note(self->member, (int64_t)self->records.stats.sum.steps, "evaluation");
    const en_status st = evaluate_all(self, version, j);
    return st == EN_EINTR && eni_shutdown_status(self->shutdown) == EN_OK ? EN_OK : st;
}

en_status eni_result(eni_rank *self)
{
    eni_blobs blobs = {0};
    evaluated last;
    int64_t begin = eni_now_ns();
    eni_host_counters now;
    uint32_t slot;
    int which;
    EN_TRY(eni_snapshots_finish(self, eni_shutdown_is_asked(self->shutdown)));
    EN_TRY(eni_host_eval(self->exchange.host, &which, &slot));
    if (self->world.rank == 0 || which == EN_EVAL_MEAN)
        EN_TRY(eni_snapshot(self));
    else
        EN_TRY(eni_snapshot_state(self));
    eni_host_count(self->exchange.host, &now);
    char *report = report_of_this_rank(self); /* before the last evaluation: that is not training */
    if (report == NULL) return EN_ENOMEM;
    en_status st = eni_member_gather(self->member, "result", report, strlen(report), &blobs, INT64_MAX);
    free(report);
    json_t *reports = NULL;
    if (st == EN_OK && self->world.rank == 0) st = parse_reports(&blobs, &reports);
    eni_blobs_fini(&blobs);
    if (st != EN_OK || self->world.rank != 0) return st;
    EN_TRY_GOTO(check_weights(self, reports), free_reports);
    st = evaluate_last(self, now.version, &last);
    self->records.stats.eval_ns += eni_now_ns() - begin;
    if (st == EN_OK && last.is_there) st = eni_step_check_loss(self, ENI_STEP_FINAL, last.loss);
    if (st == EN_OK) st = conclude(self, reports, &last);
free_reports:
    json_decref(reports);
    return st;
}
