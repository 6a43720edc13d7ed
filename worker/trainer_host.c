/* trainer_host.c - the gradient of one step on the processor: forward, backward, and each finished bucket
 * leaves while backward goes on. The device computes in the arena itself, so nothing is copied to it. */
#include "core/try.h"
#include "worker/statistics.h"
#include "worker/worker.h"

/* ---- forward and backward ---- */

/* The context of backward's callback, called with every finished tensor. */
typedef struct progress {
    eni_worker *w;
    eni_step_run *run;
} progress;

/* This rank computes: if it is a slow one, it sleeps afterwards. */
static void compute_begins(const progress *p)
{
    eni_straggler_begins(&p->w->straggler);
    eni_step_compute_begins(p->run);
}

static void compute_ends(const progress *p, const char *what)
{
    const int64_t begin_ns = p->run->mark_ns;
    eni_step_compute_ends(p->run, what);
    if (eni_straggler_ends(&p->w->straggler, begin_ns) > 0) eni_step_compute_ends(p->run, "sleep");
}

/* Backward is done with tensors [first, first + n) and all after them. Their complete buckets leave: from
 * submit on only the strategy touches a bucket, and it may change the weights at once. */
static en_status on_grad_ready(void *user, uint32_t first, uint32_t n)
{
    const progress *p = user;
    const uint32_t complete = eni_step_complete(p->run, first);
    (void)n;
    if (!p->w->config->overlap || complete == p->run->submitted) return EN_OK;
    compute_ends(p, "backward");
    EN_TRY(eni_step_submit(p->run, complete));
    compute_begins(p);
    return EN_OK;
}

/* An eni_compute_gradient. */
static en_status forward_backward(eni_worker *w, eni_step_run *run, const eni_batch *batch, int64_t micro,
                                  float *grad, bool leaves)
{
    progress p = {w, run};
    const float *param = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_PARAM, 0);
    const en_batch input = {.n = (int64_t)batch->micro.count, .x = batch->x, .target = batch->target};
    en_score score;
    eni_member_note(w->rank.member, (int64_t)run->step, "forward");
    compute_begins(&p);
    EN_TRY(en_model_forward(w->model, param, eni_state_of(w, micro), &input));
    compute_ends(&p, "forward");
    EN_TRY(en_model_result(w->model, &score));
    EN_TRY(eni_step_check_loss(&w->rank, run->step, score.loss)); /* before a bucket leaves */
    eni_member_note(w->rank.member, (int64_t)run->step, "backward");
    EN_TRY(en_model_backward(w->model, param, grad, leaves ? on_grad_ready : NULL, &p));
    compute_ends(&p, "backward");
    run->nsamples += batch->micro.count;
    run->loss += score.loss * (double)batch->micro.count;
    run->correct += (uint64_t)score.correct;
    return EN_OK;
}

static en_status gradient(void *self, eni_step_run *run)
{
    eni_worker *w = self;
    eni_straggler_begin_step(&w->straggler, run->step);
    return eni_gradient(w, run, forward_backward);
}

/* ---- the rest ---- */

/* The device was opened before the rank connected (worker.c). */
static en_status open_trainer(void *self)
{
    eni_worker *w = self;
    w->rank.trainer.reads_arena = true;
    w->rank.trainer.about.machine = w->device.ops->describe(w->device.ctx);
    return EN_OK;
}

static en_status warm_up(void *self)
{
    eni_loader_options options = {0};
    EN_TRY(eni_warm_up(self));
    return eni_start_loader(self, &options);
}

static void report_rank(void *self, json_t *report)
{
    const eni_worker *w = self;
    eni_straggler_report(&w->straggler, report);
}

const eni_trainer_ops eni_trainer_host = {.open = open_trainer,
                                          .warm_up = warm_up,
                                          .gradient = gradient,
                                          .state = eni_statistics_get,
                                          .set_state = eni_statistics_set,
                                          .recompute = eni_statistics_recompute,
                                          .evaluate = eni_evaluate_weights,
                                          .report_rank = report_rank};
