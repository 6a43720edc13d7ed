/* trainer_stages.c - the gradient of a step on several devices, or chunk by chunk on one (--parallel,
 * --micro-batches). The compute thread hands a batch to the stages (stages.h), then waits for tensors: each
 * complete bucket leaves while earlier stages are still in backward, as with the layers of one device. */
#include "core/json.h"
#include "core/log.h"
#include "core/try.h"
#include "ops/mean.h"
#include "worker/statistics.h"
#include "worker/parallel/team.h"
#include "worker/worker.h"

/* ---- opening and closing --------------------------------------------------------------------------------- */

/* Explains why vectors are staged here; a trainer of one GPU may keep them there. */
static void explain_vectors(const eni_worker *w)
{
    if (w->team->gpu == NULL) return;
    eni_log(w->rank.world.rank == 0 && !w->config->check ? ENI_LOG_INFO : ENI_LOG_DEBUG, "gpu",
            "vectors are staged through the host: %s has no graph and no NCCL",
            w->team->n > 1 ? "a rank with several GPUs" : "a batch that is cut into chunks");
}

static en_status open_trainer(void *self)
{
    eni_worker *w = self;
    EN_TRY(eni_team_open_gpus(w));
    explain_vectors(w);
    w->rank.trainer.reads_arena = true;
    w->rank.trainer.about.machine = eni_stages_describe(w->team->stages);
    return EN_OK;
}

static void abort_team(void *self)
{
    const eni_worker *w = self;
    if (w->team != NULL && w->team->stages != NULL) eni_stages_abort(w->team->stages);
}

/* ---- a step ---------------------------------------------------------------------------------------------- */

static en_status take_scores(eni_worker *w, eni_step_run *run, int nchunks)
{
    const eni_team *t = w->team;
    double loss = 0;
    for (int c = 0; c < nchunks; c++) {
        loss += t->score[c].loss * (double)t->chunk[c].n;
        run->correct += (uint64_t)t->score[c].correct;
    }
    run->loss += loss;
    return eni_step_check_loss(&w->rank, run->step, loss); /* before a bucket leaves */
}

/* Averages buckets [from, end) of the replicas' gradients, as those of ranks are. */
static void average_replicas(const eni_worker *w, float *grad, int nchunks, uint32_t from, uint32_t end)
{
    const eni_team *t = w->team;
    const float *source[ENI_STAGES_MAX];
    uint64_t nsamples[ENI_STAGES_MAX] = {0};
    for (int d = 0; d < nchunks; d++)
        nsamples[d] = (uint64_t)t->chunk[d].n;
    for (uint32_t b = from; b < end; b++) {
        const eni_bucket_range *bucket = &w->rank.job.buckets->bucket[b];
        for (int d = 0; d < t->n; d++)
            source[d] = t->own[d] + bucket->lo;
        eni_mean_ranks(grad + bucket->lo, source, nsamples, t->n, (eni_sum_order)w->config->sum_order,
                       bucket->hi - bucket->lo, 0, bucket->hi - bucket->lo);
    }
}

/* An eni_compute_gradient. */
static en_status compute(eni_worker *w, eni_step_run *run, const eni_batch *from, int64_t micro, float *grad,
                         bool leaves)
{
    eni_team *t = w->team;
    const en_batch batch = {.n = (int64_t)from->micro.count, .x = from->x, .target = from->target};
    uint32_t first = w->rank.job.schema.ntensors, averaged = 0;
    const eni_pass pass = {.kind = ENI_PASS_TRAIN,
                           .step = (int64_t)run->step,
                           .nchunks = eni_team_cut(w, &batch),
                           .chunk = t->chunk,
                           .param = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_PARAM, 0),
                           .state = eni_state_of(w, micro),
                           .grad = t->are_replicas ? t->own : &grad,
                           .score = t->score};
    eni_member_note(w->rank.member, (int64_t)run->step, "forward and backward");
    eni_step_compute_begins(run);
    en_status st = eni_stages_begin(t->stages, &pass);
    for (bool has_scores = false; st == EN_OK;) {
        st = eni_team_await(w, &first);
        if (st != EN_OK && st != EN_ESTOP) break;
        const en_status found = has_scores ? EN_OK : take_scores(w, run, pass.nchunks);
        if (found != EN_OK) return eni_team_give_up(w, found);
        has_scores = true;
        const uint32_t complete = st == EN_ESTOP ? w->rank.job.buckets->n : eni_step_complete(run, first);
        if (t->are_replicas) average_replicas(w, grad, pass.nchunks, averaged, complete);
        averaged = complete;
        if (!leaves || complete == run->submitted || (st == EN_OK && !w->config->overlap)) continue;
        eni_step_compute_ends(run, "stages");
        const en_status left = eni_step_submit(run, complete);
        if (left != EN_OK) return eni_team_give_up(w, left);
        eni_step_compute_begins(run);
    }
    eni_step_compute_ends(run, "stages");
    run->nsamples += from->micro.count;
    return st == EN_ESTOP ? EN_OK : st;
}

static en_status gradient(void *self, eni_step_run *run)
{
    return eni_gradient(self, run, compute);
}

/* ---- beside the steps ------------------------------------------------------------------------------------ */

static en_status warm_up(void *self)
{
    eni_worker *w = self;
    eni_loader_options options = {.chunks = (uint64_t)w->team->nchunks};
    EN_TRY(eni_warm_up(w));
    return eni_start_loader(w, &options);
}

/* ---- reports --------------------------------------------------------------------------------------------- */

static void report_rank(void *self, json_t *report)
{
    const eni_worker *w = self;
    eni_straggler sum = w->straggler;
    eni_stages_add_straggler(w->team->stages, &sum);
    eni_straggler_report(&sum, report);
}

/* Rank 0's own report: the others' are alike. */
static void report_run(void *self, const json_t *reports, json_t *result)
{
    static const char *const ways[] = {"one device", "data", "model", "pipeline"};
    const eni_worker *w = self;
    (void)reports;
    if (w->team == NULL) return; /* the run was cut short, and the team is closed */
    json_t *own = eni_stages_report(w->team->stages);
    if (own == NULL) return;
    eni_json_set_text(own, "parallel", ways[w->config->parallel]);
    eni_json_set_text(own, "device", w->team->device);
    json_object_set_new(result, "pipeline", own);
}

const eni_trainer_ops eni_trainer_stages = {.open = open_trainer,
                                            .start = eni_team_start,
                                            .warm_up = warm_up,
                                            .gradient = gradient,
                                            .state = eni_statistics_get,
                                            .set_state = eni_statistics_set,
                                            .recompute = eni_statistics_recompute,
                                            .evaluate = eni_evaluate_weights,
                                            .report_rank = report_rank,
                                            .report_run = report_run,
                                            .abort = abort_team};
