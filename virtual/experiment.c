/* experiment.c - records steps and the curve while a simulation runs, and describes its outcome as rank 0 of real ranks does. */
#include "virtual/experiment.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/outputs.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/weights.h"
#include "rank/run_facts.h"
#include "rank/snapshot.h"

enum {
    DETAILED = 64
}; /* ranks; of more there is one file of metrics, and result.json has sums and the first ones */

struct eni_experiment {
    eni_experiment_config asked;
    eni_about about;
    eni_record_options records;
    eni_curve *curve;
    eni_recorder *recorders[DETAILED];
    int nrecorders;
    eni_stats *ranks;        /* (nranks) of each */
    float *model;            /* (schema.count) of a point */
    uint64_t version;        /* of rank 0's weights */
    uint64_t samples;        /* of steps that have ended: with claims of any rank, else of all ranks */
    uint64_t round, nbehind; /* without claims: the first step that some ranks have not ended; how many */
    bool has_begun, has_result;
    eni_set_score first;
    int out_fd; /* of --out, locked; -1 */
    char host[ENI_HOST_MAX];
};

/* ---- while it runs --------------------------------------------------------------------------------------------- */

/* Keeps the running statistics that a rank has after its step: those of rank 0, or of all for their mean. */
static void keep_state(eni_virtual_network *n, int32_t rank)
{
    const uint64_t nstate = n->job.schema.nstate, own = nstate * (uint64_t)n->job.accumulate;
    if (n->job.states != NULL)
        memcpy(n->job.states + own * (uint64_t)rank, n->states + own * (uint64_t)rank, own * sizeof(float));
    else if (n->states != NULL && rank == 0)
        memcpy(n->job.state, n->states, nstate * sizeof(float));
}

/* The statistics to evaluate a point with; before the first step they are those at the start. */
static const float *judged_state(const eni_experiment *e)
{
    eni_job *job = &e->asked.network->job;
    if (job->states != NULL && e->ranks[0].sum.steps > 0) eni_snapshot_mean_of_states(job);
    return job->state;
}

static en_status add_point(eni_experiment *e, uint64_t samples, int64_t at_ns, const float *param)
{
    const eni_copy_note note = {.samples = samples,
                                .update = e->version,
                                .t = (double)at_ns * 1e-9,
                                .number = eni_curve_number(e->curve, samples)};
    return eni_curve_add(e->curve, &note, param, judged_state(e));
}

/* At the start and at the end. */
static en_status evaluate(void *user, uint64_t samples, int64_t virtual_ns, const float *param)
{
    eni_experiment *e = user;
    const bool is_first = !e->has_begun;
    e->has_begun = true;
    if (is_first) EN_TRY(eni_virtual_network_evaluate(e->asked.network, param, judged_state(e), &e->first));
    if (is_first && !eni_target_is_set(&e->records.target) && !e->records.eval_first) return EN_OK;
    return add_point(e, samples, virtual_ns, param);
}

/* Counts the samples as the curve does: points of synchronous strategies lie at the ends of whole steps. */
static void count_samples(eni_experiment *e, const eni_sim_step *step)
{
    const eni_job *job = &e->asked.network->job;
    const int32_t nranks = e->asked.simulation->sim.nranks;
    if (job->is_claiming) {
        e->samples += step->nsamples;
        return;
    }
    if (step->step != e->round || --e->nbehind > 0) return;
    while (e->nbehind == 0) {
        e->round++;
        for (int32_t r = 0; r < nranks; r++)
            e->nbehind += e->ranks[r].sum.steps <= e->round;
    }
    e->samples = eni_plan_samples_before(&job->plan, e->round);
}

static uint64_t epoch_of(const eni_job *job, uint64_t micro_batch)
{
    eni_micro micro = {0};
    if (eni_plan_micro(&job->plan, micro_batch, &micro) != EN_OK)
        (void)eni_plan_micro(&job->plan, job->plan.micro_batches - 1, &micro);
    return micro.epoch;
}

/* A line of metrics, and its part in the sums. */
static void record(eni_experiment *e, const eni_sim_step *step, const eni_virtual_score *score)
{
    const eni_job *job = &e->asked.network->job;
    const double n = (double)step->nsamples;
    eni_stats *t = &e->ranks[step->rank];
    const eni_step line = {.t = (double)step->end_ns * 1e-9,
                           .rank = step->rank,
                           .step = step->step,
                           .epoch = epoch_of(job, step->micro_batch),
                           .micro_batch = step->micro_batch,
                           .samples = step->samples,
                           .nsamples = step->nsamples,
                           .update = step->version,
                           .base_version = step->base_version,
                           .loss = n > 0 ? (float)(score->loss / n) : 0,
                           .correct = score->correct,
                           .accuracy = n > 0 && e->about.has_accuracy ? (double)score->correct / n : NAN,
                           .lr = step->lr,
                           .step_ns = step->end_ns - step->begin_ns,
                           .compute_ns = step->end_ns - step->begin_ns - step->send_ns - step->wait_ns -
                                         step->update_ns,
                           .send_ns = step->send_ns,
                           .wait_ns = step->wait_ns,
                           .update_ns = step->update_ns,
                           .payload_bytes = step->payload_bytes,
                           .staleness = step->staleness};
    if (t->sum.steps++ == 0 && step->rank > 0) t->clock_begin_ns = step->begin_ns;
    t->clock_end_ns = step->end_ns;
    t->sum.samples += step->nsamples;
    t->step_ns += line.step_ns;
    t->compute_ns += line.compute_ns;
    t->send_ns += line.send_ns;
    t->wait_ns += line.wait_ns;
    t->update_ns += line.update_ns;
    if (line.epoch + 1 >= (job->plan.samples + job->plan.epoch_samples - 1) / job->plan.epoch_samples) {
        t->sum.last_loss += score->loss;
        t->sum.last_correct += score->correct;
        t->sum.last_samples += step->nsamples;
    }
    if (e->nrecorders > 0) eni_recorder_add(e->recorders[e->nrecorders > 1 ? step->rank : 0], &line);
    if (n > 0 && t->first_loss == 0) t->first_loss = (double)line.loss;
    if (n > 0) t->newest_loss = (double)line.loss;
    if (step->rank != 0) return;
    e->version = step->version;
}

static en_status stepped(void *user, const eni_sim_step *step)
{
    eni_experiment *e = user;
    eni_virtual_network *n = e->asked.network;
    eni_virtual_score *score = &n->scores[step->rank];
    record(e, step, score);
    EN_TRY(eni_step_check_finite(step->step, score->loss, n->job.schedule.base));
    *score = (eni_virtual_score){0};
    keep_state(n, step->rank);
    count_samples(e, step);
    if (!eni_curve_is_due(e->curve, e->samples) || e->samples >= n->job.plan.samples) return EN_OK;
    eni_sim_model(step->sim, e->model);
    return add_point(e, e->samples, step->end_ns, e->model);
}

/* ---- open ------------------------------------------------------------------------------------------------------- */

static void describe(eni_experiment *e)
{
    const eni_config *c = e->asked.config;
    const eni_virtual_network *n = e->asked.network;
    e->about = (eni_about){.model = n->job.schema.spec,
                           .data = n->dataset->name,
                           .data_bytes = eni_dataset_bytes(n->dataset),
                           .holdout = n->dataset->split[ENI_HOLDOUT].count,
                           .test_samples = n->dataset->split[ENI_TEST].count,
                           .has_accuracy = n->dataset->classes > 0,
                           .set = n->split == ENI_HOLDOUT ? "holdout" : "test",
                           .device = n->threads[0].device.ops->name,
                           .machine = n->threads[0].device.ops->describe(n->threads[0].device.ctx),
                           .threads = c->threads > 0 ? (int)c->threads : 1};
    eni_pixels_describe(&n->dataset->pixels.asked, &e->about.pixels);
    e->records = (eni_record_options){.argv = e->asked.argv, .argc = e->asked.argc};
    eni_job_records(c, &e->records);
    eni_host_info_name(e->host);
}

static en_status evaluate_point(void *user, const float *flat, const float *state, double *loss_out,
                                double *accuracy_out)
{
    eni_experiment *e = user;
    eni_set_score score;
    EN_TRY(eni_virtual_network_evaluate(e->asked.network, flat, state, &score));
    *loss_out = score.loss;
    *accuracy_out = score.accuracy;
    return EN_OK;
}

static void show_point(void *user, const eni_point *point)
{
    const eni_experiment *e = user;
    if (e->asked.on_point != NULL) e->asked.on_point(e->asked.user, point);
}

static en_status open_curve(eni_experiment *e)
{
    const eni_config *c = e->asked.config;
    const eni_job *job = &e->asked.network->job;
    const uint64_t samples = job->plan.samples,
                   every =
                       eni_curve_every(eni_job_samples(job, c->eval_every), (uint64_t)c->eval_points, samples,
                                       e->about.has_accuracy || c->target.is_loss ? &c->target : NULL);
    const eni_curve_config curve = {.dir = c->out,
                                    .set = e->about.set,
                                    .count = job->schema.count,
                                    .nstate = job->schema.nstate,
                                    .every = every,
                                    .target = c->target,
                                    .evaluate = evaluate_point,
                                    .on_point = show_point,
                                    .user = e};
    EN_TRY(eni_curve_open(&curve, &e->curve));
    eni_curve_expect(e->curve, every > 0 ? (samples + every - 1) / every : 0, ENI_COPIES_HOST_BYTES / 2);
    return EN_OK;
}

/* The files of --out, once nothing else can be refused. */
static en_status open_folder(eni_experiment *e)
{
    const eni_config *c = e->asked.config;
    const int32_t nranks = e->asked.simulation->sim.nranks;
    EN_TRY(eni_out_take(c, c->out, ENI_OUT_RUN, &e->out_fd));
    EN_TRY(eni_out_clear(e->out_fd, c->out));
    EN_TRY(eni_config_write(c, c->out));
    EN_TRY(eni_dataset_sha256(e->asked.network->dataset, e->asked.network->job.data_sha256));
    const int nfiles = nranks > DETAILED ? 1 : nranks;
    for (; e->nrecorders < nfiles; e->nrecorders++)
        EN_TRY(eni_recorder_open(c->out, nranks > DETAILED ? ENI_RECORDER_ALL : e->nrecorders, 0, 0,
                                 &e->recorders[e->nrecorders]));
    return EN_OK;
}

static en_status open_all(eni_experiment *e)
{
    eni_virtual_network *n = e->asked.network;
    eni_sim_config *sim = &e->asked.simulation->sim;
    const en_schema *schema = &n->job.schema;
    e->nbehind = (uint64_t)sim->nranks;
    e->ranks = eni_alloc_array((size_t)sim->nranks, sizeof *e->ranks);
    e->model = eni_alloc_array(schema->count, sizeof *e->model);
    if (e->ranks == NULL || e->model == NULL) return EN_ENOMEM;
    EN_TRY(eni_weights_digest(schema, n->init, n->job.init_sha256));
    EN_TRY(eni_buckets_new(schema->tensors, schema->ntensors, schema->count, sim->bucket_cap_bytes,
                           &n->job.buckets));
    describe(e);
    if (e->asked.config->out != NULL) EN_TRY(open_folder(e));
    EN_TRY(open_curve(e));
    sim->eval_every = 0; /* points come after steps */
    sim->evaluate = evaluate;
    sim->evaluate_user = e;
    sim->stepped = stepped;
    sim->stepped_user = e;
    return EN_OK;
}

en_status eni_experiment_open(const eni_experiment_config *config, eni_experiment **experiment_out)
{
    eni_experiment *e = eni_alloc(sizeof *e);
    if (e == NULL) return EN_ENOMEM;
    e->asked = *config;
    e->out_fd = -1;
    const en_status st = open_all(e);
    if (st == EN_OK)
        *experiment_out = e;
    else
        eni_experiment_close(e);
    return st;
}

/* ---- the outcome ------------------------------------------------------------------------------------------------- */

/* By how much --straggler slows a rank down in every step. */
static double slowness_of(const eni_sim_compute *compute, int rank)
{
    double factor = 1;
    for (int i = 0; i < compute->nslow; i++) {
        const eni_slowdown *slow = &compute->slow[i];
        if (slow->kind == ENI_SLOW_ALWAYS && rank >= slow->lo && rank <= slow->hi) factor *= slow->factor;
    }
    return factor;
}

static json_t *report_of_rank(const eni_experiment *e, const eni_sim_result *r, int rank)
{
    const eni_stats *t = &e->ranks[rank];
    const double factor = slowness_of(&e->asked.simulation->sim.compute, rank);
    char role[32];
    json_t *o = json_object();
    snprintf(role, sizeof role, "rank %d", rank);
    eni_json_set_text(o, "role", role);
    ENI_JSON_SET_INTS(o, {"rank", (uint64_t)rank}, {"steps", t->sum.steps}, {"all_steps", t->sum.steps},
                      {"samples_computed", t->sum.samples}, {"data_ns", 0},
                      {"compute_ns", (uint64_t)t->compute_ns}, {"send_ns", (uint64_t)t->send_ns},
                      {"wait_ns", (uint64_t)t->wait_ns}, {"update_ns", (uint64_t)t->update_ns},
                      {"step_ns", (uint64_t)t->step_ns}, {"last_samples", t->sum.last_samples},
                      {"last_correct", t->sum.last_correct}, {"payload_sent", r->rank[rank].sent},
                      {"payload_received", r->rank[rank].recv});
    eni_json_set_number(o, "last_loss", t->sum.last_loss);
    if (!(factor > 1)) return o;
    eni_json_set_number(o, "straggler_asked", factor);
    eni_json_set_number(o, "straggler_factor", factor);
    eni_json_set_int(o, "straggler_slept_ns", (uint64_t)((double)t->compute_ns * (1 - 1 / factor)));
    return o;
}

/* The simulator counts per partition; a count per model. */
static uint64_t per_model(const eni_sim_result *r, uint64_t sum)
{
    return r->parts > 0 ? (uint64_t)llround((double)sum / (double)r->parts) : 0;
}

static json_t *report_of_store(const eni_sim_result *r)
{
    json_t *o = json_object(), *workers = json_array();
    eni_json_set_text(o, "role", "psd");
    ENI_JSON_SET_INTS(o, {"parts", r->parts}, {"updates", per_model(r, r->updates)}, {"holds", r->holds},
                      {"max_clocks_ahead", r->clocks_ahead}, {"pushes", per_model(r, r->pushes)});
    json_object_set_new(o, "staleness", eni_histogram_json(&r->staleness, true));
    json_object_set_new(o, "staleness_steady",
                        eni_histogram_json(&r->staleness, true)); /* it counts no others */
    for (int32_t i = 0; i < r->nranks && i < DETAILED; i++) {
        const eni_sim_rank_result *rank = &r->rank[i];
        json_t *worker = json_object();
        ENI_JSON_SET_INTS(worker, {"rank", (uint64_t)i}, {"pushes", per_model(r, rank->pushes)},
                          {"samples_applied", per_model(r, rank->applied)},
                          {"samples_dropped", per_model(r, rank->dropped)}, {"holds", rank->holds},
                          {"max_clocks_ahead", rank->clocks_ahead});
        json_object_set_new(worker, "staleness", eni_histogram_json(&rank->staleness, true));
        json_array_append_new(workers, worker);
    }
    json_object_set_new(o, "per_worker", workers);
    return o;
}

/* Without servers all samples are applied. Returns those computed. */
static double add_per_worker(const eni_experiment *e, const eni_sim_result *r, bool has_store, json_t *result)
{
    double computed = 0, applied = 0, dropped = 0;
    json_t *list = json_array();
    for (int32_t i = 0; i < r->nranks; i++) {
        const double own = (double)e->ranks[i].sum.samples,
                     its = has_store ? (double)per_model(r, r->rank[i].applied) : own,
                     lost = has_store ? (double)per_model(r, r->rank[i].dropped) : 0;
        computed += own;
        applied += its;
        dropped += lost;
        if (i >= DETAILED) continue;
        json_t *o = json_object();
        eni_json_set_int(o, "rank", (uint64_t)i);
        eni_json_set_int(o, "steps", e->ranks[i].sum.steps);
        eni_facts_samples(o, own, its, lost);
        json_array_append_new(list, o);
    }
    json_object_set_new(result, "per_worker", list);
    eni_facts_samples(result, computed, applied, dropped);
    return computed;
}

/* --join, --leave: a rank takes part from its first step on, and leaves after the step that it is in then. */
static void add_presence(const eni_experiment *e, json_t *result)
{
    const eni_sim_config *sim = &e->asked.simulation->sim;
    const bool is_fixed = sim->join_ns == NULL && sim->leave_ns == NULL;
    for (int32_t r = 0; !is_fixed && r < sim->nranks && r < DETAILED; r++) {
        const eni_stats *t = &e->ranks[r];
        const bool has_left = sim->leave_ns != NULL && sim->leave_ns[r] <= t->clock_end_ns;
        if (t->sum.steps == 0) continue;
        eni_facts_present(result, r, (double)t->clock_begin_ns * 1e-9,
                          (double)(has_left ? t->clock_end_ns : e->ranks[0].train_ns) * 1e-9,
                          has_left ? "left" : "stayed");
    }
}

/* The member that only a run in virtual time has. */
static void add_simulated(const eni_experiment *e, const eni_sim_result *r, json_t *result)
{
    const eni_config *c = e->asked.config;
    json_t *o = json_object();
    eni_json_set_text(o, "clock", "virtual");
    eni_json_set_text(o, "compute", c->compute);
    eni_json_set_text(o, "net", c->net);
    if (c->server_time != NULL) eni_json_set_text(o, "server_time", c->server_time);
    if (r != NULL) {
        eni_json_set_int(o, "events", r->events);
        eni_json_set_text(o, "log_sha256", r->log_sha256);
        json_object_set_new(o, "equal_ranks", json_boolean(r->has_equal_ranks));
    }
    json_object_set_new(result, "simulated", o);
}

static eni_facts facts_of(const eni_experiment *e)
{
    const eni_sim_config *sim = &e->asked.simulation->sim;
    const bool has_store = (sim->strategy->flags & EN_STORE_ON_SERVERS) != 0;
    int32_t nfirst = 0;
    for (int32_t r = 0; r < sim->nranks; r++)
        nfirst += sim->join_ns == NULL || sim->join_ns[r] == 0;
    return (eni_facts){.version = e->asked.version,
                       .host = e->host,
                       .transport = "virtual",
                       .job = &e->asked.network->job,
                       .about = &e->about,
                       .asked = &e->records,
                       .stats = &e->ranks[0],
                       .nranks = sim->nranks,
                       .nfirst = nfirst,
                       .groups = sim->strategy->flags & EN_USES_GROUPS ? sim->groups : NULL,
                       .nlocal = sim->local_size > 0 ? sim->local_size : sim->nranks,
                       .shards = has_store ? sim->nshards : 0};
}

static en_status write_result(eni_experiment *e, const eni_sim_result *r, const float *weights,
                              const eni_set_score *test)
{
    static const char *const unknown[] = {"wire_bytes", "shm_bytes",      "tcp_info_bytes", "cpu_seconds",
                                          "max_rss",    "startup_seconds"}; /* of real ranks only */
    json_t *reports = json_array(), *result = json_object();
    eni_facts facts = facts_of(e);
    for (int32_t i = 0; i < r->nranks; i++)
        json_array_append_new(reports, report_of_rank(e, r, i));
    if (facts.shards > 0) json_array_append_new(reports, report_of_store(r));
    facts.reports = reports;
    facts.store = r->parts > 0 ? eni_facts_of_role(reports, "psd") : NULL; /* hybrid may use none */
    if (r->has_theory) facts.theory = r->theory;
    add_presence(e, result);
    const bool is_whole = json_object_get(result, "presence") == NULL; /* the theory is of all ranks */
    facts.staleness = is_whole && r->has_theory && r->theory.staleness >= 0 ? r->theory.staleness : NAN;
    facts.updates = facts.store != NULL ? per_model(r, r->updates) : e->ranks[0].sum.steps;
    facts.weights = weights;
    facts.loss = test->loss;
    facts.accuracy = test->accuracy;
    eni_facts_identity(&facts, result);
    add_simulated(e, r, result);
    facts.computed = add_per_worker(e, r, facts.store != NULL, result);
    en_status st = eni_facts_outcome(&facts, result);
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        json_object_set_new(result, unknown[i], json_null());
    for (int32_t i = r->nranks; i-- > DETAILED;)
        json_array_remove(reports, (size_t)i);
    eni_json_set_text(result, "exit", "ok");
    if (st == EN_OK) st = eni_facts_write("result", e->records.out, result);
    e->has_result = st == EN_OK;
    json_decref(result);
    json_decref(reports);
    return st;
}

static en_status close_recorders(eni_experiment *e)
{
    en_status st = EN_OK;
    while (e->nrecorders > 0) {
        const en_status closed = eni_recorder_close(e->recorders[--e->nrecorders]);
        if (st == EN_OK) st = closed;
    }
    return st;
}

en_status eni_experiment_finish(eni_experiment *e, const eni_sim_result *r, const float *weights,
                                eni_experiment_end *end_out)
{
    eni_virtual_network *n = e->asked.network;
    e->ranks[0].train_ns = e->ranks[0].clock_end_ns = r->virtual_ns;
    end_out->first = e->first;
    EN_TRY(close_recorders(e));
    EN_TRY(eni_curve_finish(e->curve, &end_out->curve));
    EN_TRY(eni_step_check_finite(ENI_STEP_FINAL, end_out->curve.last.loss, n->job.schedule.base));
    end_out->test =
        (eni_set_score){.loss = end_out->curve.last.loss, .accuracy = end_out->curve.last.accuracy};
    if (n->split == ENI_HOLDOUT) EN_TRY(eni_virtual_network_test(n, weights, n->job.state, &end_out->test));
    if (e->records.save != NULL)
        EN_TRY(eni_weights_save(e->records.save, &n->job.schema, weights, n->job.state));
    return e->records.out != NULL ? write_result(e, r, weights, &end_out->test) : EN_OK;
}

/* As a run on real ranks does (rank/result.c). */
static void write_cause(const eni_experiment *e)
{
    char cause[512];
    const eni_facts facts = facts_of(e);
    json_t *result = json_object();
    eni_facts_identity(&facts, result);
    add_simulated(e, NULL, result);
    eni_json_set_text(result, "exit", "failed");
    eni_log_last_error(cause, sizeof cause);
    eni_json_set_text(result, "cause", cause);
    (void)eni_facts_write(NULL, e->records.out, result);
    json_decref(result);
}

void eni_experiment_close(eni_experiment *e)
{
    if (e == NULL) return;
    (void)close_recorders(e);
    if (e->has_begun && e->records.out != NULL && !e->has_result) write_cause(e);
    eni_curve_close(e->curve);
    if (e->out_fd >= 0) close(e->out_fd);
    eni_free(e->ranks);
    eni_free(e->model);
    eni_free(e);
}
