/* stages.c - see stages.h: the compute thread's side; stage.c has the turns of a stage. */
#include "worker/parallel/stages.h"

#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/evaluation.h"
#include "models/node.h"
#include "worker/parallel/stage.h"

enum { CLOSE_TIMEOUT_S = 2 };

/* ---- a pass ---------------------------------------------------------------------------------------------- */

/* For chunks of at most `rows` rows of `row_bytes` each. */
static void slots_cut(eni_slots *s, uint64_t rows, uint64_t row_bytes)
{
    s->stride = eni_slots_stride(rows, row_bytes);
    s->n = s->stride > 0 ? (int)(s->bytes / s->stride) : 0;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* With the lock held: the first tensor that is complete with all after it. Stage s of a pipeline may be ahead
 * of the last event of s + 1; a tensor of replicas is complete once all of them have it. */
static uint32_t first_done(const eni_stages *all)
{
    const int n = all->options.n;
    uint32_t first = all->options.schema->ntensors;
    if (all->options.are_replicas) {
        first = 0;
        for (int s = 0; s < n && s < all->pass.nchunks; s++)
            first = all->stage[s].done > first ? all->stage[s].done : first;
        return first;
    }
    for (int s = n - 1; s >= 0; s--) {
        first = all->stage[s].done;
        if (first > all->stage[s].part.tensor) break;
    }
    return first;
}

/* Rows of the largest chunk that has memory. */
static uint64_t rows_prepared(const eni_stages *all, eni_pass_kind kind)
{
    return kind == ENI_PASS_EVALUATE ? all->evaluation_rows : all->chunk_rows;
}

static void begin_stage(eni_stage *g, uint64_t rows)
{
    g->forwards = g->backwards = 0;
    g->is_at_it = false;
    g->done = g->part.tensor_end;
    slots_cut(&g->y, rows, eni_stage_y_row(g));
    slots_cut(&g->dy, rows, eni_stage_y_row(g));
    slots_cut(&g->gpu.x, rows, eni_stage_x_row(g));
    slots_cut(&g->gpu.target, rows, eni_stage_target_row(g));
}

en_status eni_stages_begin(eni_stages *all, const eni_pass *pass)
{
    uint64_t rows = 0;
    for (int c = 0; c < pass->nchunks; c++)
        rows = larger(rows, (uint64_t)pass->chunk[c].n);
    pthread_mutex_lock(&all->lock);
    const bool may_begin = all->nbusy == 0 && rows <= rows_prepared(all, pass->kind);
    if (may_begin) {
        all->pass = *pass;
        all->begin_ns = eni_now_ns();
        for (int s = 0; s < all->options.n; s++)
            begin_stage(&all->stage[s], rows);
        all->status = EN_OK;
        all->nbusy = all->options.n;
        all->nbegun++;
        pthread_cond_broadcast(&all->moved);
    }
    pthread_mutex_unlock(&all->lock);
    if (may_begin) return EN_OK;
    return eni_fail(
        EN_EBUG, "stages",
        "cannot begin a pass with chunks of %llu samples: they have no memory, or another pass is in flight",
        (unsigned long long)rows);
}

/* With the lock held, once a pass has ended well. */
static void count_pass(eni_stages *all)
{
    const eni_pass *pass = &all->pass;
    if (pass->kind != ENI_PASS_TRAIN || pass->step < 0 || all->begin_ns == 0) return;
    all->pass_ns += all->end_ns - all->begin_ns;
    all->npasses++;
    all->begin_ns = 0; /* counted once */
}

en_status eni_stages_await(eni_stages *all, uint32_t first, int64_t deadline_ns, uint32_t *first_out)
{
    const struct timespec until = eni_timespec(deadline_ns);
    int code = 0;
    pthread_mutex_lock(&all->lock);
    const bool trains = all->pass.kind == ENI_PASS_TRAIN;
    while (all->nbusy > 0 && (all->status != EN_OK || !trains || first_done(all) >= first) && code == 0)
        code = pthread_cond_clockwait(&all->moved, &all->lock, CLOCK_MONOTONIC, &until);
    *first_out = all->status == EN_OK && trains ? first_done(all) : first;
    en_status st = EN_OK;
    if (all->nbusy == 0)
        st = all->is_aborted ? EN_EINTR : all->status;
    else if (*first_out >= first)
        st = EN_ETIMEOUT;
    const bool is_done = all->nbusy == 0 && st == EN_OK && *first_out >= first;
    if (is_done) count_pass(all);
    pthread_mutex_unlock(&all->lock);
    return is_done ? EN_ESTOP : st;
}

void eni_stages_abort(eni_stages *all)
{
    pthread_mutex_lock(&all->lock);
    all->is_aborted = true;
    pthread_cond_broadcast(&all->moved);
    pthread_mutex_unlock(&all->lock);
}

const char *eni_stages_doing(eni_stages *all, char text_out[ENI_STAGES_TEXT])
{
    const eni_stage *last = &all->stage[0];
    pthread_mutex_lock(&all->lock);
    for (int s = 1; s < all->options.n; s++) {
        const eni_stage *g = &all->stage[s];
        if (g->is_at_it != last->is_at_it ? g->is_at_it
                                          : g->forwards + g->backwards < last->forwards + last->backwards)
            last = g;
    }
    snprintf(text_out, ENI_STAGES_TEXT, "%s %d: %d forward, %d backward of %d done",
             all->options.are_replicas ? "replica" : "stage", last->at, last->forwards, last->backwards,
             all->pass.nchunks);
    pthread_mutex_unlock(&all->lock);
    return text_out;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

static en_status open_stage(eni_stage *g)
{
    const eni_stages_options *o = &g->all->options;
    const eni_device_options device = {.plugin_dir = o->plugin_dir,
                                       .threads = o->threads,
                                       .flags = o->flags,
                                       .index = o->index != NULL ? o->index[g->at] : g->at};
    const en_model_options model = {.size = sizeof model,
                                    .dtype = o->dtype,
                                    .first = g->part.first,
                                    .end = g->part.end,
                                    .input = (uint32_t)g->part.input,
                                    .in_flight = (uint32_t)g->in_flight,
                                    .keeps_weights = o->nchunks > 1 && !o->are_replicas};
    g->index = device.index;
    EN_TRY(eni_device_open_with(o->device, &device, &g->device));
    const size_t nturns = 2 * (size_t)o->nchunks + ENI_STAGES_AT_ONCE;
    g->turns = eni_alloc_array(nturns, sizeof *g->turns);
    g->spans = eni_alloc_array(nturns, sizeof *g->spans);
    g->kept = eni_alloc_array(nturns, sizeof *g->kept);
    if (g->turns == NULL || g->spans == NULL || g->kept == NULL) return EN_ENOMEM;
    return en_model_new(o->schema, g->device.ops, g->device.ctx, &model, &g->model);
}

en_status eni_stages_open(const eni_stages_options *options, eni_stages **stages_out)
{
    eni_stages *all = eni_alloc(sizeof *all);
    if (all == NULL) return EN_ENOMEM;
    all->options = *options;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->moved, NULL);
    all->stage = eni_alloc_array((size_t)options->n, sizeof *all->stage);
    en_status st = all->stage != NULL ? EN_OK : EN_ENOMEM;
    for (int s = 0; s < options->n && st == EN_OK; s++) {
        eni_stage *g = &all->stage[s];
        g->all = all;
        g->at = s;
        g->part = options->parts[s];
        g->in_flight = options->are_replicas
                           ? 1
                           : eni_pipeline_in_flight(options->kind, options->n, options->nchunks, s);
        st = open_stage(g);
    }
    all->options.parts = NULL; /* the stages have copies */
    all->options.index = NULL;
    if (st != EN_OK)
        eni_stages_close(all);
    else
        *stages_out = all;
    return st;
}

en_status eni_stages_prepare(eni_stages *all, uint64_t n, int mode)
{
    const uint64_t most = (uint64_t)all->options.nchunks, nchunks = n < most ? n : most;
    const bool trains = mode == EN_MODEL_TRAIN;
    const uint64_t largest = trains ? (n + nchunks - 1) / nchunks : n, least = trains ? n / nchunks : n;
    uint64_t *rows = trains ? &all->chunk_rows : &all->evaluation_rows;
    *rows = larger(*rows, largest);
    for (int s = 0; s < all->options.n; s++) {
        EN_TRY(en_model_prepare(all->stage[s].model, (int64_t)largest, mode));
        if (least != largest) EN_TRY(en_model_prepare(all->stage[s].model, (int64_t)least, mode));
    }
    return EN_OK;
}

/* For the chunks that are kept in training, or for two in evaluation. */
static uint64_t pool_bytes(const eni_stage *g, uint64_t row)
{
    return larger(eni_slots_stride(g->all->chunk_rows, row) * (uint64_t)g->in_flight,
                  eni_slots_stride(g->all->evaluation_rows, row) * 2);
}

/* Registers host memory that the stage's GPU writes. */
static en_status reach(eni_stage *g, void *memory, uint64_t bytes)
{
    if (memory == NULL) return EN_ENOMEM;
    EN_TRY(g->device.ops->gpu->register_memory(g->device.ctx, memory, bytes));
    g->gpu.reached[g->gpu.nreached++] = memory;
    return EN_OK;
}

static en_status take_gpu_memory(eni_stage *g)
{
    const en_device *d = g->device.ops;
    eni_stage_on_gpu *gpu = &g->gpu;
    const uint64_t bytes = (g->part.hi - g->part.lo) * sizeof(float),
                   state = (g->part.state_hi - g->part.state_lo) * sizeof(float);
    gpu->x.bytes = pool_bytes(g, eni_stage_x_row(g));
    gpu->target.bytes = pool_bytes(g, eni_stage_target_row(g));
    EN_TRY(d->alloc(g->device.ctx, bytes, (void **)&gpu->param));
    EN_TRY(d->alloc(g->device.ctx, bytes, (void **)&gpu->grad));
    EN_TRY(d->alloc(g->device.ctx, state, (void **)&gpu->state));
    EN_TRY(d->alloc(g->device.ctx, gpu->x.bytes, (void **)&gpu->x.memory));
    EN_TRY(d->alloc(g->device.ctx, gpu->target.bytes, (void **)&gpu->target.memory));
    EN_TRY(d->gpu->event_new(g->device.ctx, &gpu->event));
    EN_TRY(reach(g, gpu->pair = eni_alloc_pages(2 * sizeof *gpu->pair), 2 * sizeof *gpu->pair));
    EN_TRY(reach(g, g->scratch = eni_alloc_pages(bytes + state), bytes + state));
    if (eni_stage_behind(g) != NULL) EN_TRY(reach(g, g->y.memory, g->y.bytes));
    return eni_stage_before(g) == NULL
               ? EN_OK
               : reach(g, eni_stage_before(g)->dy.memory, eni_stage_before(g)->dy.bytes);
}

static en_status take_memory(eni_stage *g)
{
    const eni_stages *all = g->all;
    if (eni_stage_behind(g) != NULL) {
        g->y.bytes = pool_bytes(g, eni_stage_y_row(g));
        g->dy.bytes = eni_slots_stride(all->chunk_rows, eni_stage_y_row(g)) * (uint64_t)g->in_flight;
        g->y.memory = eni_alloc_pages(g->y.bytes);
        g->dy.memory = eni_alloc_pages(g->dy.bytes);
        if (g->y.memory == NULL || g->dy.memory == NULL) return EN_ENOMEM;
    }
    if (all->options.nchunks > 1 && !all->options.are_replicas && !eni_stage_is_gpu(g)) {
        g->scratch = eni_alloc_array(g->part.hi - g->part.lo, sizeof *g->scratch);
        if (g->scratch == NULL) return EN_ENOMEM;
    }
    return eni_stage_is_gpu(g) ? take_gpu_memory(g) : EN_OK;
}

static en_status start_thread(eni_stage *g)
{
    const int code = pthread_create(&g->thread, NULL, eni_stage_main, g);
    if (code != 0)
        return eni_fail(EN_EIO, "stages", "cannot start the thread of stage %d: %s", g->at, strerror(code));
    g->has_thread = true;
    return EN_OK;
}

en_status eni_stages_start(eni_stages *all, int first_core, const eni_straggler *straggler, eni_trace *trace)
{
    all->first_core = first_core;
    all->trace = trace;
    all->names = eni_alloc_array((size_t)all->options.nchunks, sizeof *all->names);
    if (all->names == NULL) return EN_ENOMEM;
    for (int c = 0; c < all->options.nchunks; c++) {
        snprintf(all->names[c][0], sizeof all->names[c][0], "forward %d", c);
        snprintf(all->names[c][1], sizeof all->names[c][1], "backward %d", c);
    }
    for (int s = 0; s < all->options.n; s++) {
        all->stage[s].straggler = *straggler;
        all->stage[s].straggler.seed += (uint64_t)s; /* each draws its own numbers */
        EN_TRY(take_memory(&all->stage[s]));
    }
    for (int s = 0; s < all->options.n; s++)
        EN_TRY(start_thread(&all->stage[s]));
    return EN_OK;
}

const char *eni_stages_describe(const eni_stages *all)
{
    return all->stage[0].device.ops->describe(all->stage[0].device.ctx);
}

/* ---- closing --------------------------------------------------------------------------------------------- */

/* Whether its device finishes all enqueued work soon. */
static bool is_quiet(eni_stage *g)
{
    const struct timespec nap = {0, ENI_MILLI};
    const int64_t deadline = eni_now_ns() + CLOSE_TIMEOUT_S * ENI_SECOND;
    if (g->gpu.event == NULL || g->device.ops->gpu->event_record(g->gpu.event, EN_STREAM_COMPUTE) != EN_OK)
        return true;
    while (g->device.ops->gpu->poll(g->gpu.event) == EN_ETIMEOUT) {
        if (eni_now_ns() > deadline) return false;
        nanosleep(&nap, NULL);
    }
    return true;
}

static void close_gpu(eni_stage *g)
{
    const en_device *d = g->device.ops;
    eni_stage_on_gpu *gpu = &g->gpu;
    while (gpu->nreached > 0)
        d->gpu->unregister_memory(g->device.ctx, gpu->reached[--gpu->nreached]);
    d->gpu->event_free(gpu->event);
    d->free(g->device.ctx, gpu->param);
    d->free(g->device.ctx, gpu->grad);
    d->free(g->device.ctx, gpu->state);
    d->free(g->device.ctx, gpu->x.memory);
    d->free(g->device.ctx, gpu->target.memory);
}

static void close_device(eni_stage *g)
{
    if (g->device.ctx != NULL && eni_stage_is_gpu(g)) close_gpu(g);
    en_model_free(g->model);
    eni_device_close(&g->device);
}

static void free_memory(eni_stage *g)
{
    eni_free(g->gpu.pair);
    eni_free(g->y.memory);
    eni_free(g->dy.memory);
    eni_free(g->scratch);
    eni_free(g->turns);
    eni_free(g->spans);
    eni_free(g->kept);
}

/* A stage's host memory is registered with its neighbour's GPU, so it is freed last. */
bool eni_stages_close(eni_stages *all)
{
    if (all == NULL) return true;
    const int n = all->stage != NULL ? all->options.n : 0;
    bool are_quiet = true;
    pthread_mutex_lock(&all->lock);
    all->is_aborted = all->is_over = true;
    pthread_cond_broadcast(&all->moved);
    pthread_mutex_unlock(&all->lock);
    for (int s = 0; s < n; s++)
        if (all->stage[s].has_thread) pthread_join(all->stage[s].thread, NULL);
    for (int s = 0; s < n; s++)
        are_quiet = is_quiet(&all->stage[s]) && are_quiet;
    if (!are_quiet) return false;
    for (int s = 0; s < n; s++)
        close_device(&all->stage[s]);
    for (int s = 0; s < n; s++)
        free_memory(&all->stage[s]);
    pthread_cond_destroy(&all->moved);
    pthread_mutex_destroy(&all->lock);
    eni_free(all->names);
    eni_free(all->stage);
    eni_free(all);
    return true;
}

/* ---- the report ------------------------------------------------------------------------------------------ */

void eni_stages_add_straggler(const eni_stages *all, eni_straggler *sum)
{
    for (int s = 0; s < all->options.n; s++) {
        const eni_straggler *own = &all->stage[s].straggler;
        sum->npieces += own->npieces;
        sum->nlate += own->nlate;
        sum->slept_ns += own->slept_ns;
        sum->wall_ns += own->wall_ns;
        sum->took_ns += own->took_ns;
    }
}

static double mean_ns(int64_t sum, int64_t n)
{
    return n > 0 ? (double)sum / (double)n : 0;
}

static void report_bubble(const eni_stages *all, json_t *report)
{
    const eni_stages_options *o = &all->options;
    double f[ENI_STAGES_MAX], b[ENI_STAGES_MAX], busy = 0, predicted;
    for (int s = 0; s < o->n; s++) {
        const eni_stage *g = &all->stage[s];
        f[s] = mean_ns(g->forward_ns, g->nforward);
        b[s] = mean_ns(g->backward_ns, g->nbackward);
        busy += (double)(g->forward_ns + g->backward_ns);
    }
    eni_json_set_number(report, "bubble", 1 - busy / ((double)o->n * (double)all->pass_ns));
    if (o->are_replicas || eni_pipeline_play(o->kind, o->n, o->nchunks, f, b, &predicted, NULL) != EN_OK)
        return;
    eni_json_set_number(report, "bubble_predicted", predicted);
    eni_json_set_number(report, "bubble_ideal", eni_pipeline_bubble(o->n, o->nchunks));
}

/* The name of the first node of its part, but not of the batch. */
static const char *name_of_first(const eni_stage *g, char text_out[ENI_NODE_TEXT])
{
    const uint32_t at = g->part.first > 0 ? g->part.first : 1;
    const en_node *node = &g->all->options.schema->nodes[at];
    return node->name[0] != '\0' ? node->name : eni_node_text(g->all->options.schema, (int32_t)at, text_out);
}

static json_t *report_stage(const eni_stage *g)
{
    char first[ENI_NODE_TEXT];
    json_t *report = json_object();
    eni_json_set_text(report, "first", name_of_first(g, first));
    eni_json_set_int(report, "multiply_adds", (uint64_t)g->part.multiply_adds);
    eni_json_set_int(report, "forward_ns", (uint64_t)mean_ns(g->forward_ns, g->nforward));
    eni_json_set_int(report, "backward_ns", (uint64_t)mean_ns(g->backward_ns, g->nbackward));
    eni_json_set_int(report, "peak_bytes", eni_model_bytes(g->model) + g->y.bytes + g->dy.bytes);
    return report;
}

/* Every turn of the last full step: stage, 0 forward or 1 backward, chunk, begin and end in microseconds. */
static json_t *report_strip(const eni_stages *all)
{
    json_t *strip = json_array();
    int64_t zero = INT64_MAX;
    for (int s = 0; s < all->options.n; s++)
        if (all->stage[s].nkept > 0 && all->stage[s].kept[0].begin_ns < zero)
            zero = all->stage[s].kept[0].begin_ns;
    for (int s = 0; s < all->options.n; s++)
        for (int i = 0; i < all->stage[s].nkept; i++) {
            const eni_turn_span *k = &all->stage[s].kept[i];
            json_array_append_new(strip,
                                  json_pack("[i, i, i, I, I]", s, (int)k->turn.is_backward, k->turn.chunk,
                                            (json_int_t)((k->begin_ns - zero) / ENI_MICRO),
                                            (json_int_t)((k->end_ns - zero) / ENI_MICRO)));
        }
    return strip;
}

static json_t *report(const eni_stages *all)
{
    const eni_stages_options *o = &all->options;
    json_t *whole = json_object(), *stages = json_array(), *cuts = json_array();
    eni_json_set_int(whole, "stages", (uint64_t)o->n);
    eni_json_set_text(whole, "schedule", o->kind == ENI_GPIPE ? "gpipe" : "1f1b");
    eni_json_set_int(whole, "micro_batches", (uint64_t)o->nchunks);
    report_bubble(all, whole);
    for (int s = 0; s < o->n; s++) {
        char first[ENI_NODE_TEXT];
        if (s > 0 && !o->are_replicas)
            json_array_append_new(cuts, json_string(name_of_first(&all->stage[s], first)));
        json_array_append_new(stages, report_stage(&all->stage[s]));
    }
    json_object_set_new(whole, "cuts", cuts);
    json_object_set_new(whole, "stage", stages);
    json_object_set_new(whole, "strip", report_strip(all));
    return whole;
}

json_t *eni_stages_report(eni_stages *all)
{
    pthread_mutex_lock(&all->lock);
    json_t *whole = all->nbusy == 0 && all->npasses > 0 ? report(all) : NULL;
    pthread_mutex_unlock(&all->lock);
    return whole;
}
