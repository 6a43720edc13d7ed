/* stage.c - the thread of a stage: the turns of a pass, one after the other; see stage.h. */
#include "worker/parallel/stage.h"

#include <sched.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "models/evaluation.h"
#include "ops/mean.h"

enum { GPU_SPINS = 200, GPU_NAP_NS = 20000 };

/* ---- handing over ---------------------------------------------------------------------------------------- */

static void *slot_of(const eni_slots *s, int chunk)
{
    return s->memory + (uint64_t)(chunk % s->n) * s->stride;
}

uint64_t eni_stage_x_row(const eni_stage *g)
{
    return (uint64_t)en_extent_count(g->all->options.schema->nodes[g->part.input].y) * sizeof(float);
}

uint64_t eni_stage_y_row(const eni_stage *g)
{
    return (uint64_t)en_extent_count(g->all->options.schema->nodes[g->part.end - 1].y) * sizeof(float);
}

uint64_t eni_stage_target_row(const eni_stage *g)
{
    const en_schema *schema = g->all->options.schema;
    return (schema->loss == EN_OP_MSE ? (uint64_t)schema->outputs : 1) * sizeof(float);
}

/* Between the host and the stage's device; a host device uses the host's addresses. */
static en_status copy(const eni_stage *g, void *to, const void *from, uint64_t bytes, int direction)
{
    return bytes == 0 ? EN_OK : g->device.ops->copy(g->device.ctx, to, from, bytes, direction);
}

static bool is_ended(eni_stages *all)
{
    pthread_mutex_lock(&all->lock);
    const bool is = all->is_aborted || all->status != EN_OK;
    pthread_mutex_unlock(&all->lock);
    return is;
}

/* Waits until the device has done all enqueued work. */
static en_status await_device(eni_stage *g)
{
    const struct timespec nap = {0, GPU_NAP_NS};
    const int64_t deadline = eni_now_ns() + g->all->options.gpu_timeout_ns;
    en_status st;
    if (!eni_stage_is_gpu(g)) return EN_OK;
    EN_TRY(g->device.ops->gpu->event_record(g->gpu.event, EN_STREAM_COMPUTE));
    for (int spins = 0; (st = g->device.ops->gpu->poll(g->gpu.event)) == EN_ETIMEOUT; spins++) {
        if (spins < GPU_SPINS) continue;
        if (is_ended(g->all)) return EN_EINTR;
        if (eni_now_ns() > deadline)
            return eni_fail(
                EN_EIO, "stages",
                "stage %d: cuda:%d has not answered for %.3g s; see nvidia-smi and the kernel's log (Xid)",
                g->at, g->index, (double)g->all->options.gpu_timeout_ns * 1e-9);
        nanosleep(&nap, NULL);
    }
    return st;
}

/* ---- progress -------------------------------------------------------------------------------------------- */

static en_status await_count(eni_stages *all, const int *count, int until)
{
    pthread_mutex_lock(&all->lock);
    while (*count < until && !all->is_aborted && all->status == EN_OK)
        pthread_cond_wait(&all->moved, &all->lock);
    const en_status st = *count >= until && !all->is_aborted && all->status == EN_OK ? EN_OK : EN_EINTR;
    pthread_mutex_unlock(&all->lock);
    return st;
}

/* Waits for the turn's input and, in passes without backward, for a free slot for its output. In training the
 * schedule frees the slots: a chunk's slot is reused after its backward. */
static en_status await_neighbours(const eni_stage *g, const eni_turn *turn)
{
    eni_stages *all = g->all;
    eni_stage *from = eni_stage_before(g), *to = eni_stage_behind(g);
    if (turn->is_backward) return to == NULL ? EN_OK : await_count(all, &to->backwards, turn->chunk + 1);
    if (from != NULL) EN_TRY(await_count(all, &from->forwards, turn->chunk + 1));
    if (to == NULL || all->pass.kind == ENI_PASS_TRAIN) return EN_OK;
    return await_count(all, &to->forwards, turn->chunk + 1 - g->y.n);
}

static void turn_begins(eni_stage *g)
{
    pthread_mutex_lock(&g->all->lock);
    g->is_at_it = true;
    pthread_mutex_unlock(&g->all->lock);
}

static void turn_is_done(eni_stage *g, const eni_turn *turn)
{
    pthread_mutex_lock(&g->all->lock);
    g->is_at_it = false;
    if (turn->is_backward)
        g->backwards = turn->chunk + 1;
    else
        g->forwards = turn->chunk + 1;
    pthread_cond_broadcast(&g->all->moved);
    pthread_mutex_unlock(&g->all->lock);
}

static void tensors_are_done(eni_stage *g, uint32_t first)
{
    pthread_mutex_lock(&g->all->lock);
    g->done = first;
    pthread_cond_broadcast(&g->all->moved);
    pthread_mutex_unlock(&g->all->lock);
}

/* ---- forward --------------------------------------------------------------------------------------------- */

static const float *param_of(const eni_stage *g)
{
    return eni_stage_is_gpu(g) ? g->gpu.param : g->all->pass.param + g->part.lo;
}

/* In training only the first replica has a state: the others see batches that do not count for the statistics. */
static float *state_of(const eni_stage *g)
{
    if (g->all->pass.state == NULL ||
        (g->all->options.are_replicas && g->at > 0 && g->all->pass.kind != ENI_PASS_EVALUATE))
        return NULL;
    return eni_stage_is_gpu(g) ? g->gpu.state : g->all->pass.state + g->part.state_lo;
}

/* The chunk as a batch of this stage's model. */
static en_status take_in(const eni_stage *g, int chunk, en_batch *batch_out)
{
    const eni_stages *all = g->all;
    const eni_stage *from = eni_stage_before(g);
    *batch_out = all->pass.chunk[chunk];
    if (from != NULL) batch_out->x = slot_of(&from->y, chunk);
    if (!eni_stage_is_gpu(g)) return EN_OK;
    const uint64_t n = (uint64_t)batch_out->n;
    void *x = slot_of(&g->gpu.x, chunk), *target = slot_of(&g->gpu.target, chunk);
    const uint64_t row =
        from == NULL || all->options.dtype == EN_F32 ? eni_stage_x_row(g) : eni_stage_x_row(g) / 2;
    EN_TRY(copy(g, x, batch_out->x, n * row, EN_COPY_IN));
    if (eni_stage_behind(g) == NULL)
        EN_TRY(copy(g, target, batch_out->target, n * eni_stage_target_row(g), EN_COPY_IN));
    batch_out->x = x;
    batch_out->target = target;
    return EN_OK;
}

static en_status give_score(eni_stage *g, int chunk)
{
    float own[2], *pair = eni_stage_is_gpu(g) ? g->gpu.pair : own;
    EN_TRY(en_model_fetch(g->model, pair));
    EN_TRY(await_device(g));
    g->all->pass.score[chunk] = (en_score){.loss = (double)pair[0], .correct = (int64_t)pair[1]};
    return EN_OK;
}

static en_status forward(eni_stage *g, int chunk)
{
    const eni_pass *pass = &g->all->pass;
    en_batch batch;
    en_model_ends ends;
    EN_TRY(take_in(g, chunk, &batch));
    if (pass->kind == ENI_PASS_EVALUATE)
        EN_TRY(eni_model_forward_only(g->model, param_of(g), state_of(g), &batch));
    else
        EN_TRY(en_model_forward(g->model, param_of(g), state_of(g), &batch));
    if (eni_stage_behind(g) == NULL) return give_score(g, chunk);
    EN_TRY(en_model_ends_of(g->model, &ends));
    EN_TRY(copy(g, slot_of(&g->y, chunk), ends.y, ends.y_bytes, EN_COPY_OUT));
    return await_device(g);
}

/* ---- backward, and the mean over the chunks -------------------------------------------------------------- */

/* The pass's gradient of this part, and the number of its samples. */
static float *grad_of(const eni_stage *g)
{
    return g->all->pass.grad[g->all->options.are_replicas ? g->at : 0] + g->part.lo;
}

static float share_of(const eni_pass *pass)
{
    int64_t samples = 0;
    for (int c = 0; c < pass->nchunks; c++)
        samples += pass->chunk[c].n;
    return 1.0f / (float)samples;
}

static bool has_mean(const eni_stage *g)
{
    return !g->all->options.are_replicas && g->all->pass.nchunks > 1;
}

static bool is_last_chunk(const eni_stage *g, int chunk)
{
    return g->all->options.are_replicas || chunk == g->all->pass.nchunks - 1;
}

/* Finishes the mean of tensors [first, first + n) with the last chunk, and wakes waiting threads. */
static void finish_tensors(eni_stage *g, int chunk, uint32_t first, uint32_t n)
{
    const en_schema *schema = g->all->options.schema;
    const uint64_t lo = schema->tensors[first].offset,
                   hi = first + n < schema->ntensors ? schema->tensors[first + n].offset : schema->count;
    const eni_pass *pass = &g->all->pass;
    float *to = grad_of(g) + (lo - g->part.lo);
    if (has_mean(g))
        eni_mean_last(to, g->scratch + (lo - g->part.lo), (float)pass->chunk[chunk].n, share_of(pass),
                      hi - lo);
    else if (eni_stage_is_gpu(g))
        memcpy(to, g->scratch + (lo - g->part.lo), (hi - lo) * sizeof *to);
    tensors_are_done(g, first);
}

typedef struct last_chunk {
    eni_stage *g;
    int chunk;
} last_chunk;

static en_status on_grad_ready(void *user, uint32_t first, uint32_t n)
{
    const last_chunk *k = user;
    finish_tensors(k->g, k->chunk, first, n);
    return EN_OK;
}

static void add_chunk(const eni_stage *g, int chunk)
{
    const float scale = (float)g->all->pass.chunk[chunk].n;
    const uint64_t count = g->part.hi - g->part.lo;
    if (chunk == 0)
        eni_mean_first(grad_of(g), g->scratch, scale, count);
    else
        eni_mean_add(grad_of(g), g->scratch, scale, count);
}

/* Chunks are summed in order; this runs after the input gradient has been sent on. */
static en_status take_gradient(eni_stage *g, int chunk)
{
    if (eni_stage_is_gpu(g)) {
        EN_TRY(copy(g, g->scratch, g->gpu.grad, (g->part.hi - g->part.lo) * sizeof(float), EN_COPY_OUT));
        EN_TRY(await_device(g));
    }
    if (!is_last_chunk(g, chunk))
        add_chunk(g, chunk);
    else if (eni_stage_is_gpu(g))
        finish_tensors(g, chunk, g->part.tensor, g->part.tensor_end - g->part.tensor);
    return EN_OK;
}

static en_status backward(eni_stage *g, int chunk)
{
    const eni_stage *from = eni_stage_before(g);
    last_chunk last = {g, chunk};
    en_model_ends ends;
    float *const to = eni_stage_is_gpu(g) ? g->gpu.grad : has_mean(g) ? g->scratch : grad_of(g);
    EN_TRY(en_model_ends_of(g->model, &ends));
    if (eni_stage_behind(g) != NULL)
        EN_TRY(copy(g, ends.dy, slot_of(&g->dy, chunk), ends.y_bytes, EN_COPY_IN));
    EN_TRY(en_model_backward(g->model, param_of(g), to,
                             is_last_chunk(g, chunk) && !eni_stage_is_gpu(g) ? on_grad_ready : NULL, &last));
    if (from != NULL) {
        EN_TRY(copy(g, slot_of(&from->dy, chunk), ends.dx, ends.dx_bytes, EN_COPY_OUT));
        EN_TRY(await_device(g));
    }
    return take_gradient(g, chunk);
}

/* ---- a pass on the thread of a stage --------------------------------------------------------------------- */

static int turns_of(const eni_stage *g)
{
    const eni_stages *all = g->all;
    const eni_pass *pass = &all->pass;
    const bool trains = pass->kind == ENI_PASS_TRAIN;
    int n = 0;
    if (trains && !all->options.are_replicas)
        return eni_pipeline_turns(all->options.kind, all->options.n, pass->nchunks, g->at, g->turns);
    const int stride = all->options.are_replicas ? all->options.n : 1;
    for (int c = all->options.are_replicas ? g->at : 0; c < pass->nchunks; c += stride) {
        g->turns[n++] = (eni_turn){false, c};
        if (trains) g->turns[n++] = (eni_turn){true, c};
    }
    return n;
}

/* On a GPU: copies the weights and statistics of its part. */
static en_status copy_vectors_in(const eni_stage *g)
{
    const eni_pass *pass = &g->all->pass;
    if (!eni_stage_is_gpu(g)) return EN_OK;
    EN_TRY(copy(g, g->gpu.param, pass->param + g->part.lo, (g->part.hi - g->part.lo) * sizeof(float),
                EN_COPY_IN));
    if (state_of(g) == NULL) return EN_OK;
    return copy(g, g->gpu.state, pass->state + g->part.state_lo,
                (g->part.state_hi - g->part.state_lo) * sizeof(float), EN_COPY_IN);
}

static en_status give_statistics(eni_stage *g)
{
    const eni_pass *pass = &g->all->pass;
    const uint64_t bytes = (g->part.state_hi - g->part.state_lo) * sizeof(float);
    float *out = g->scratch + (g->part.hi - g->part.lo);
    if (!eni_stage_is_gpu(g) || state_of(g) == NULL || pass->kind == ENI_PASS_EVALUATE) return EN_OK;
    EN_TRY(copy(g, out, g->gpu.state, bytes, EN_COPY_OUT));
    EN_TRY(await_device(g));
    memcpy(pass->state + g->part.state_lo, out, bytes);
    return EN_OK;
}

/* A step of the run, not a warm-up or an evaluation: a slow rank does those as fast as others. */
static bool is_counted(const eni_stage *g)
{
    return g->all->pass.kind == ENI_PASS_TRAIN && g->all->pass.step >= 0;
}

static en_status take_turn(eni_stage *g, int at)
{
    const eni_turn *turn = &g->turns[at];
    eni_turn_span *s = &g->spans[at];
    EN_TRY(await_neighbours(g, turn));
    turn_begins(g);
    s->turn = *turn;
    s->begin_ns = eni_now_ns();
    if (is_counted(g)) eni_straggler_begins(&g->straggler);
    EN_TRY(en_model_turn(g->model, (uint32_t)(turn->chunk % g->in_flight)));
    EN_TRY(turn->is_backward ? backward(g, turn->chunk) : forward(g, turn->chunk));
    s->slept_ns = is_counted(g) ? eni_straggler_ends(&g->straggler, s->begin_ns) : 0;
    s->end_ns = eni_now_ns();
    turn_is_done(g, turn);
    return EN_OK;
}

static void note_turns(eni_stage *g)
{
    const eni_pass *pass = &g->all->pass;
    if (!is_counted(g)) return;
    for (int i = 0; i < g->nturns; i++) {
        const eni_turn *turn = &g->turns[i];
        const eni_turn_span *s = &g->spans[i];
        *(turn->is_backward ? &g->backward_ns : &g->forward_ns) += s->end_ns - s->begin_ns;
        *(turn->is_backward ? &g->nbackward : &g->nforward) += 1;
        eni_trace_span(g->all->trace, ENI_TRACE_STAGE0 + g->at, g->all->names[turn->chunk][turn->is_backward],
                       s->begin_ns, s->end_ns - s->slept_ns, pass->step, -1, 0);
        if (s->slept_ns > 0)
            eni_trace_span(g->all->trace, ENI_TRACE_STAGE0 + g->at, "sleep", s->end_ns - s->slept_ns,
                           s->end_ns, pass->step, -1, 0);
    }
    if (pass->nchunks < g->all->options.nchunks) return;
    g->nkept = g->nturns;
    memcpy(g->kept, g->spans, (size_t)g->nturns * sizeof *g->kept);
}

static en_status run_pass(eni_stage *g)
{
    g->nturns = turns_of(g);
    if (is_counted(g)) eni_straggler_begin_step(&g->straggler, (uint64_t)g->all->pass.step);
    if (g->nturns == 0) return EN_OK;
    en_model_new_weights(g->model);
    EN_TRY(copy_vectors_in(g));
    for (int i = 0; i < g->nturns; i++)
        EN_TRY(take_turn(g, i));
    EN_TRY(give_statistics(g));
    note_turns(g);
    return EN_OK;
}

/* Pins this thread, and the threads that OpenMP starts for it, to cores of their own. */
static void take_cores(const eni_stage *g)
{
    const eni_stages_options *o = &g->all->options;
    cpu_set_t may, own;
    const int first = g->all->first_core + g->at * o->threads;
    int seen = 0;
    if (g->all->first_core < 0 || sched_getaffinity(0, sizeof may, &may) != 0) return;
    CPU_ZERO(&own);
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &may)) continue;
        if (seen >= first && seen < first + o->threads) CPU_SET(core, &own);
        seen++;
    }
    if (CPU_COUNT(&own) == o->threads) (void)sched_setaffinity(0, sizeof own, &own);
}

void *eni_stage_main(void *user)
{
    eni_stage *g = user;
    eni_stages *all = g->all;
    take_cores(g);
    eni_straggler_open(&g->straggler);
    pthread_mutex_lock(&all->lock);
    for (uint64_t seen = 0;; seen++) {
        while (all->nbegun == seen && !all->is_over)
            pthread_cond_wait(&all->moved, &all->lock);
        if (all->is_over) break;
        pthread_mutex_unlock(&all->lock);
        const en_status st = run_pass(g);
        pthread_mutex_lock(&all->lock);
        if (st != EN_OK && all->status == EN_OK) all->status = st;
        if (--all->nbusy == 0) all->end_ns = eni_now_ns();
        pthread_cond_broadcast(&all->moved);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}
