/* test_device.c - a model on a device whose memory is not the host's, or may not be: results that are read
 * late, captured steps, evaluation of a whole set, types, and the scale of the loss. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "far.h"
#include "models/evaluation.h"
#include "ops/optimizer.h"
#include "tests/network.h"

/* Promise: Gradients and losses in fp32, bf16 and fp16 stay within their stated gap of ref's. */

static int is_gpu(void)
{
    return strcmp(rig_device(), "cuda") == 0;
}

static int is_host(const rig *r)
{
    return r->device.ops->gpu == NULL;
}

/* Until the device has come to the event, which lies behind what was enqueued. */
static void wait_for(const rig *r, en_event *event)
{
    const int64_t deadline = eni_now_ns() + 60 * ENI_SECOND;
    en_status st = EN_OK;
    if (is_host(r)) return;
    assert_int_equal(r->device.ops->gpu->event_record(event, EN_STREAM_COMPUTE), EN_OK);
    while ((st = r->device.ops->gpu->poll(event)) == EN_ETIMEOUT)
        assert_true(eni_now_ns() < deadline);
    assert_int_equal(st, EN_OK);
}

/* An event, and pairs of numbers in registered memory. */
typedef struct late {
    en_event *event;
    float *pairs;
} late;

static void late_open(late *l, const rig *r)
{
    *l = (late){.pairs = eni_alloc_pages(64)};
    if (is_host(r)) return;
    assert_int_equal(r->device.ops->gpu->register_memory(r->device.ctx, l->pairs, 64), EN_OK);
    assert_int_equal(r->device.ops->gpu->event_new(r->device.ctx, &l->event), EN_OK);
}

static void late_close(late *l, const rig *r)
{
    if (!is_host(r)) {
        r->device.ops->gpu->event_free(l->event);
        r->device.ops->gpu->unregister_memory(r->device.ctx, l->pairs);
    }
    eni_free(l->pairs);
}

/* ---- results ----------------------------------------------------------------------------------------- */

/* Two steps are enqueued before anybody looks. */
static void results_can_be_read_late(void **state)
{
    (void)state;
    rig r;
    late l;
    en_score want[2];
    rig_open(&r, network_named("convnet"), rig_device());
    late_open(&l, &r);
    for (int i = 0; i < 2; i++) {
        en_batch batch = batch_new(&r.schema, 6, (uint64_t)i);
        rig_forward(&r, &batch);
        want[i] = rig_result(&r);
        batch_free(&batch);
    }
    for (int i = 0; i < 2; i++) {
        en_batch batch = batch_new(&r.schema, 6, (uint64_t)i);
        rig_forward(&r, &batch);
        assert_int_equal(en_model_fetch(r.model, l.pairs + 2 * i), EN_OK);
        assert_int_equal(rig_backward(&r, NULL, NULL), EN_OK);
        batch_free(&batch);
    }
    wait_for(&r, l.event);
    for (int i = 0; i < 2; i++) {
        assert_true((double)l.pairs[2 * i] == want[i].loss);
        assert_int_equal((int)l.pairs[2 * i + 1], want[i].correct);
    }
    late_close(&l, &r);
    rig_close(&r);
}

/* ---- captured steps ---------------------------------------------------------------------------------- */

static void enqueue_step(rig *r, const en_batch *there, float *pair)
{
    const float *param = r->there.param;
    assert_int_equal(en_model_forward(r->model, param, NULL, there), EN_OK);
    assert_int_equal(en_model_backward(r->model, param, r->there.grad, NULL, NULL), EN_OK);
    assert_int_equal(en_model_fetch(r->model, pair), EN_OK);
}

/* Each launch does the step with what lies in the buffers by then; an evaluation and other sizes in between
 * do not disturb it. */
static void a_recorded_step_gives_the_bits_of_an_eager_one(void **state)
{
    (void)state;
    enum { N = 6, STEPS = 4 };
    rig r;
    late l;
    en_capture *graph;
    static float loss[STEPS];
    rig_open(&r, network_named("convnet"), rig_device());
    if (is_host(&r)) {
        rig_close(&r);
        skip();
    }
    const en_gpu *gpu = r.device.ops->gpu;
    late_open(&l, &r);
    float *want = eni_alloc_array(STEPS * r.schema.count, sizeof *want);
    assert_int_equal(en_model_prepare(r.model, N, EN_MODEL_TRAIN | EN_MODEL_KEEP), EN_OK);
    for (int i = 0; i < STEPS; i++) {
        en_batch batch = batch_new(&r.schema, N, (uint64_t)i);
        loss[i] = (float)rig_step(&r, &batch);
        memcpy(want + (uint64_t)i * r.schema.count, r.grad, r.schema.count * sizeof *want);
        batch_free(&batch);
    }
    const en_batch there = {.n = N, .x = r.there.x, .target = r.there.target};
    assert_int_equal(gpu->capture_begin(r.device.ctx), EN_OK);
    enqueue_step(&r, &there, l.pairs);
    assert_int_equal(gpu->capture_end(r.device.ctx, &graph), EN_OK);
    for (int i = 0; i < STEPS; i++) {
        en_batch batch = batch_new(&r.schema, N, (uint64_t)i);
        for (int64_t n = 1; n <= 3; n++) { /* other sizes: 4 steps are more than a model keeps */
            const en_batch part = batch_part(&r.schema, &batch, 0, n);
            (void)rig_evaluate(&r, &part);
            rig_step(&r, &part);
        }
        assert_int_equal(r.device.ops->zero(r.device.ctx, r.there.grad, r.schema.count * sizeof(float)),
                         EN_OK);
        (void)rig_send_batch(&r, &batch);
        assert_int_equal(gpu->launch(graph), EN_OK);
        wait_for(&r, l.event);
        rig_fetch_grad(&r);
        assert_true(l.pairs[0] == loss[i]);
        assert_memory_equal(r.grad, want + (uint64_t)i * r.schema.count, r.schema.count * sizeof *want);
        batch_free(&batch);
    }
    gpu->graph_free(graph);
    eni_free(want);
    late_close(&l, &r);
    rig_close(&r);
}

/* A kept size is never planned again, and when all are kept there is no place for another. */
static void kept_sizes_stay(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, network_named("toy"), "far");
    const int before = far_count().plans;
    assert_int_equal(en_model_prepare(r.model, 100, EN_MODEL_TRAIN | EN_MODEL_KEEP), EN_OK);
    const int layers = far_count().plans - before;
    for (int64_t n = 1; n <= 2 * EN_MODEL_SIZES; n++)
        assert_int_equal(en_model_prepare(r.model, n, EN_MODEL_TRAIN), EN_OK);
    const int planned = far_count().plans;
    assert_int_equal(planned, before + (1 + 2 * EN_MODEL_SIZES) * layers);
    assert_int_equal(en_model_prepare(r.model, 100, EN_MODEL_TRAIN), EN_OK);
    assert_int_equal(far_count().plans, planned);
    for (int64_t n = 1; n < EN_MODEL_SIZES; n++)
        assert_int_equal(en_model_prepare(r.model, n, EN_MODEL_EVALUATE | EN_MODEL_KEEP), EN_OK);
    eni_log_set_level(-1);
    assert_int_equal(en_model_prepare(r.model, 50, EN_MODEL_TRAIN), EN_EINVAL);
    eni_log_set_level(ENI_LOG_INFO);
    rig_close(&r);
    assert_int_equal(far_count().live_plans, 0);
    assert_int_equal(far_count().live_allocations, 0);
    assert_int_equal(far_count().live_registered, 0);
}

/* ---- evaluation -------------------------------------------------------------------------------------- */

enum { SET = 23, SET_BATCH = 5 };

typedef struct samples {
    const en_schema *schema;
    en_batch all;
    int asked, ends_at;        /* alive: how often it was asked, when it says no */
    uint64_t next, hits, told; /* what `take` has seen */
    double loss;
} samples;

static void fill(void *user, uint64_t first, uint64_t n, float *x_out, void *target_out)
{
    const samples *s = user;
    const uint64_t floats = (uint64_t)en_extent_count(s->schema->input);
    const en_batch part = batch_part(s->schema, &s->all, (int64_t)first, (int64_t)n);
    memcpy(x_out, part.x, n * floats * sizeof *x_out);
    memcpy(target_out, part.target, n * sizeof(int32_t));
}

static en_status alive(void *user)
{
    samples *s = user;
    return s->asked++ == s->ends_at ? EN_EPEER : EN_OK;
}

static uint64_t next_but_one(void *user)
{
    samples *s = user;
    return (s->next += 2) - 2;
}

/* What the network says of a sample and what its loss has counted agree. */
static void take(void *user, uint64_t first, uint64_t n, const float pair[2], const float *outputs)
{
    samples *s = user;
    const en_batch part = batch_part(s->schema, &s->all, (int64_t)first, (int64_t)n);
    const int64_t classes = s->schema->outputs;
    uint64_t hits = 0;
    for (uint64_t i = 0; i < n; i++) {
        const float *row = outputs + i * (uint64_t)classes;
        int64_t best = 0;
        for (int64_t k = 1; k < classes; k++)
            if (row[k] > row[best]) best = k;
        hits += best == ((const int32_t *)part.target)[i];
    }
    assert_true(hits == (uint64_t)pair[1]);
    s->hits += hits;
    s->loss += (double)pair[0] * (double)n / SET;
    s->told += n;
}

static eni_set set_of(samples *s, const en_schema *schema)
{
    *s = (samples){.schema = schema, .all = batch_new(schema, SET, 3), .ends_at = -1};
    return (eni_set){.count = SET,
                     .batch = SET_BATCH,
                     .sample_bytes = (uint64_t)en_extent_count(schema->input) * sizeof(float),
                     .target_bytes = sizeof(int32_t),
                     .fill = fill,
                     .user = s,
                     .alive = alive,
                     .alive_user = s};
}

/* The sums of forward passes one after the other, which is what evaluation is. */
static eni_set_score by_hand(const samples *s)
{
    rig ref;
    eni_set_score sum = {.count = SET};
    rig_open(&ref, s->schema->network, "ref");
    for (int64_t first = 0; first < SET; first += SET_BATCH) {
        const en_batch part =
            batch_part(s->schema, &s->all, first, SET - first < SET_BATCH ? SET - first : SET_BATCH);
        const en_score score = rig_evaluate(&ref, &part);
        sum.loss += score.loss / SET;
        sum.correct += (uint64_t)score.correct;
    }
    rig_close(&ref);
    return sum;
}

static void assert_score(const eni_set_score *got, const eni_set_score *want)
{
    assert_true(fabs(got->loss - want->loss) < rig_tolerance() * want->loss);
    assert_int_equal(got->correct, want->correct);
    assert_int_equal(got->count, SET);
    assert_true(fabs(got->accuracy - (double)want->correct / SET) < 1e-12);
}

static void a_whole_set_is_evaluated(void **state)
{
    (void)state;
    rig r;
    samples s;
    rig_open(&r, network_named("convnet"), rig_device());
    const eni_set set = set_of(&s, &r.schema);
    const eni_set_score want = by_hand(&s);
    eni_set_score score;
    for (int takes_host_param = 0; takes_host_param <= 1; takes_host_param++) {
        eni_evaluation *e;
        const float *param = takes_host_param ? r.param : rig_send_param(&r);
        assert_int_equal(eni_evaluation_open(r.model, &set, takes_host_param, &e), EN_OK);
        for (int times = 0; times < 3; times++) {
            memset(&score, 0, sizeof score);
            s.ends_at = times == 1 ? s.asked + 3 : -1; /* the second ends early, with a batch under way */
            assert_int_equal(eni_evaluation_run(e, param, NULL, &score), times == 1 ? EN_EPEER : EN_OK);
            if (times != 1) assert_score(&score, &want);
        }
        eni_evaluation_close(e);
    }
    memset(&score, 0, sizeof score);
    assert_int_equal(eni_model_evaluate_set(r.model, r.param, NULL, &set, &score), EN_OK);
    assert_score(&score, &want);
    eni_set shared = set; /* every second batch, then the others: together all of them */
    shared.next = next_but_one;
    shared.take = take;
    s.ends_at = -1;
    for (uint64_t half = 0; half < 2; half++) {
        s.next = half;
        assert_int_equal(eni_model_evaluate_set(r.model, r.param, NULL, &shared, &score), EN_OK);
    }
    assert_true(s.told == SET && s.hits == want.correct);
    assert_true(fabs(s.loss - want.loss) < rig_tolerance() * want.loss);
    batch_free(&s.all);
    rig_close(&r);
}

/* What an evaluation takes, it takes when it is opened, and gives back. */
static void evaluation_takes_its_memory_at_once(void **state)
{
    (void)state;
    rig r;
    samples s;
    eni_evaluation *e;
    eni_set_score score;
    rig_open(&r, network_named("convnet"), "far");
    const eni_set set = set_of(&s, &r.schema);
    assert_int_equal(en_model_prepare(r.model, SET_BATCH, EN_MODEL_EVALUATE), EN_OK);
    assert_int_equal(en_model_prepare(r.model, SET % SET_BATCH, EN_MODEL_EVALUATE), EN_OK);
    const far_counts before = far_count();
    assert_int_equal(eni_evaluation_open(r.model, &set, 1, &e), EN_OK);
    const far_counts opened = far_count();
    assert_true(opened.allocations > before.allocations && opened.live_registered > before.live_registered);
    assert_int_equal(eni_evaluation_run(e, r.param, NULL, &score), EN_OK);
    const far_counts used = far_count();
    assert_memory_equal(&used, &opened, sizeof used);
    s.ends_at = s.asked + 2;
    assert_int_equal(eni_evaluation_run(e, r.param, NULL, &score),
                     EN_EPEER); /* closed with a batch under way */
    eni_evaluation_close(e);
    const far_counts after = far_count();
    assert_int_equal(after.live_allocations, before.live_allocations);
    assert_int_equal(after.live_registered, before.live_registered);
    assert_int_equal(after.live_events, before.live_events);
    batch_free(&s.all);
    rig_close(&r);
}

/* ---- types ------------------------------------------------------------------------------------------- */

/* A device that writes down which operations of which types it is asked for, and how large the one block is.
 */
static struct {
    char lines[1024];
    uint64_t bytes;
    const float *loss_scale;
    int scaled;
} spy;

static en_status spy_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out)
{
    static const char *const type[] = {"", "f32", "bf16", "f16"};
    const size_t at = strlen(spy.lines);
    snprintf(spy.lines + at, sizeof spy.lines - at, "%u:%s%s ", op->kind, type[op->dtype],
             op->flags & EN_OP_NO_DX ? "!" : "");
    en_op plain = *op;
    plain.dtype = EN_F32;
    if (op->kind == EN_OP_CAST) plain.kind = EN_OP_RELU; /* ref has none */
    return eni_ref_device()->plan(ctx, &plain, plan_out);
}

static void spy_plan_info(const en_plan *plan, en_plan_info *info_out)
{
    eni_ref_device()->plan_info(plan, info_out);
    info_out->saved_bytes = info_out->workspace_bytes = 0;
}

static en_status spy_alloc(en_ctx *ctx, uint64_t bytes, void **memory_out)
{
    spy.bytes = bytes;
    return eni_ref_device()->alloc(ctx, bytes, memory_out);
}

static const char *ops_of(const char *network, uint32_t dtype, int mode)
{
    rig r;
    en_model *model;
    rig_open(&r, network_named(network), "ref");
    en_device device = *r.device.ops;
    device.plan = spy_plan;
    device.plan_info = spy_plan_info;
    device.alloc = spy_alloc;
    memset(&spy, 0, sizeof spy);
    const en_model_options options = {.size = sizeof options, .dtype = dtype};
    assert_int_equal(en_model_new(&r.schema, &device, r.device.ctx, &options, &model), EN_OK);
    assert_int_equal(en_model_prepare(model, 64, mode), EN_OK);
    en_model_free(model);
    rig_close(&r);
    return spy.lines;
}

/* A cast in front, log-probabilities and losses in float32, half the bytes. */
static void types_follow_the_contract(void **state)
{
    (void)state;
    assert_string_equal(ops_of("convnet", EN_F32, EN_MODEL_TRAIN),
                        "1:f32! 5:f32 1:f32 5:f32 6:f32 2:f32 2:f32 7:f32 8:f32 ");
    const uint64_t wide = spy.bytes;
    assert_string_equal(ops_of("convnet", 0, EN_MODEL_TRAIN),
                        "1:f32! 5:f32 1:f32 5:f32 6:f32 2:f32 2:f32 7:f32 8:f32 ");
    assert_string_equal(ops_of("convnet", EN_BF16, EN_MODEL_TRAIN),
                        "11:bf16! 1:bf16! 5:bf16 1:bf16 5:bf16 6:bf16 2:bf16 2:bf16 7:bf16 8:f32 ");
    assert_true(spy.bytes > wide / 2 && spy.bytes < wide * 6 / 10);
    assert_string_equal(ops_of("toy", EN_F16, EN_MODEL_TRAIN), "11:f16! 2:f16! 2:f16 10:f16 ");
    assert_string_equal(ops_of("convnet", EN_F16, EN_MODEL_EVALUATE),
                        "11:f16! 1:f16! 5:f16 1:f16 5:f16 6:f16 2:f16 2:f16 7:f16 8:f32 ");
}

static void unknown_types_are_refused(void **state)
{
    (void)state;
    rig r;
    en_model *model;
    rig_open(&r, network_named("toy"), "ref");
    eni_log_set_level(-1);
    const en_model_options number = {.size = sizeof number, .dtype = EN_I32};
    assert_int_equal(en_model_new(&r.schema, r.device.ops, r.device.ctx, &number, &model), EN_EINVAL);
    const en_model_options half = {.size = sizeof half, .dtype = EN_BF16};
    assert_int_equal(en_model_new(&r.schema, r.device.ops, r.device.ctx, &half, &model), EN_OK);
    assert_int_equal(en_model_prepare(model, 4, EN_MODEL_TRAIN), EN_EUNSUPPORTED); /* ref: float32 only */
    en_model_free(model);
    eni_log_set_level(ENI_LOG_INFO);
    const en_model_options old = {.size = offsetof(en_model_options, dtype), .dtype = 99};
    assert_int_equal(en_model_new(&r.schema, r.device.ops, r.device.ctx, &old, &model), EN_OK);
    en_model_free(model);
    rig_close(&r);
}

/* ---- the scale of the loss --------------------------------------------------------------------------- */

static en_status spy_weights(en_plan *plan, const en_args *args)
{
    spy.scaled += args->loss_scale == spy.loss_scale;
    return eni_ref_device()->backward_weights(plan, args);
}

static en_status spy_data(en_plan *plan, const en_args *args)
{
    spy.scaled += args->loss_scale == spy.loss_scale;
    return eni_ref_device()->backward_data(plan, args);
}

static void backward_carries_the_scale(void **state)
{
    (void)state;
    rig r;
    en_model *model;
    rig_open(&r, network_named("toy"), "ref");
    const float scale = 1024;
    en_device device = *r.device.ops;
    device.backward_weights = spy_weights;
    device.backward_data = spy_data;
    memset(&spy, 0, sizeof spy);
    spy.loss_scale = &scale;
    const en_model_options options = {.size = sizeof options, .loss_scale = &scale};
    assert_int_equal(en_model_new(&r.schema, &device, r.device.ctx, &options, &model), EN_OK);
    en_batch batch = batch_new(&r.schema, 4, 1);
    assert_int_equal(en_model_forward(model, r.param, NULL, &batch), EN_OK);
    assert_int_equal(en_model_backward(model, r.param, r.grad, NULL, NULL), EN_OK);
    assert_int_equal(spy.scaled, 4); /* mse; net2: weights, data; net1: weights */
    batch_free(&batch);
    en_model_free(model);
    rig_close(&r);
}

/* On a GPU: a power of two is divided out to the bit, in float32; the loss never sees it. */
static void a_scale_is_divided_out(void **state)
{
    (void)state;
    if (!is_gpu()) skip();
    for (int i = 0; eni_network_at(i)->layers != NULL; i++) {
        rig plain, scaled;
        rig_open(&plain, eni_network_at(i), rig_device());
        rig_open_as(&scaled, eni_network_at(i), rig_device(), EN_F32, 4096);
        en_batch batch = batch_new(&plain.schema, 7, 5);
        assert_true(rig_step(&plain, &batch) == rig_step(&scaled, &batch));
        assert_memory_equal(plain.grad, scaled.grad, plain.schema.count * sizeof(float));
        batch_free(&batch);
        rig_close(&plain);
        rig_close(&scaled);
    }
}

/* Captured work reads the scale of the launch, as it does the weights. */
static void a_recorded_step_reads_the_scale_of_its_launch(void **state)
{
    (void)state;
    enum { N = 4 };
    rig r;
    late l;
    en_capture *graph;
    if (!is_gpu()) skip();
    rig_open_as(&r, network_named("mlp"), rig_device(), EN_F16, 256);
    late_open(&l, &r);
    en_batch batch = batch_new(&r.schema, N, 1);
    float *want = eni_alloc_array(r.schema.count, sizeof *want);
    assert_int_equal(en_model_prepare(r.model, N, EN_MODEL_TRAIN | EN_MODEL_KEEP), EN_OK);
    const double loss = rig_step(&r, &batch);
    memcpy(want, r.grad, r.schema.count * sizeof *want);
    const en_batch there = {.n = N, .x = r.there.x, .target = r.there.target};
    const en_gpu *gpu = r.device.ops->gpu;
    assert_int_equal(gpu->capture_begin(r.device.ctx), EN_OK);
    enqueue_step(&r, &there, l.pairs);
    assert_int_equal(gpu->capture_end(r.device.ctx, &graph), EN_OK);
    static const float scales[] = {256, 512, 0x1p30F};
    for (int i = 0; i < 3; i++) {
        float *scale = l.pairs + 8;
        *scale = scales[i];
        assert_int_equal(
            r.device.ops->copy(r.device.ctx, r.there.loss_scale, scale, sizeof *scale, EN_COPY_IN), EN_OK);
        assert_int_equal(gpu->launch(graph), EN_OK);
        wait_for(&r, l.event);
        rig_fetch_grad(&r);
        assert_true((double)l.pairs[0] == loss);
        int is_finite = 1;
        for (uint64_t k = 0; k < r.schema.count; k++)
            is_finite &= isfinite(r.grad[k]) != 0;
        assert_int_equal(is_finite, i < 2); /* float16 ends at 65504 */
        if (i < 2) assert_true(relative_gap(r.grad, want, r.schema.count) < 2e-3);
    }
    gpu->graph_free(graph);
    eni_free(want);
    batch_free(&batch);
    late_close(&l, &r);
    rig_close(&r);
}

/* ---- 16 bits ----------------------------------------------------------------------------------------- */

/* Length of the difference over the length of b. One activation that falls to the other side of a ReLU
 * changes a whole row of a gradient: the largest difference says nothing about 16 bits. */
static double relative_length(const float *a, const float *b, uint64_t count)
{
    double gap = 0, length = 0;
    for (uint64_t i = 0; i < count; i++) {
        gap += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        length += (double)b[i] * (double)b[i];
    }
    return sqrt(gap / length);
}

static const struct {
    const char *name;
    uint32_t dtype;
    float scale;
    double loss, gradient, curve; /* how far off: of the loss, of a tensor's gradient by length, of a loss
                                     while training */
} precision[] = {{"fp32", EN_F32, 1, 5e-6, 1e-5, 1e-4},
                 {"bf16", EN_BF16, 1, 1e-2, 0.25, 4e-2},
                 {"fp16", EN_F16, 1024, 2e-3, 0.1, 1e-2}};

static void gradients_in_16_bits_are_near(void **state)
{
    (void)state;
    if (!is_gpu()) skip();
    for (int p = 0; p < 3; p++) {
        double worst = 0;
        for (int i = 0; eni_network_at(i)->layers != NULL; i++) {
            rig here, ref;
            rig_open_as(&here, eni_network_at(i), rig_device(), precision[p].dtype, precision[p].scale);
            rig_open(&ref, eni_network_at(i), "ref");
            en_batch batch = batch_new(&ref.schema, 8, 4);
            const double loss = rig_step(&here, &batch), want = rig_step(&ref, &batch);
            if (!(fabs(loss - want) < precision[p].loss * fabs(want)))
                fail_msg("%s in %s: loss %g, not %g", eni_network_at(i)->name, precision[p].name, loss, want);
            for (uint32_t t = 0; t < ref.schema.ntensors; t++) {
                const en_model_tensor *tensor = &ref.schema.tensors[t];
                const uint64_t at = tensor->offset;
                const double gap = relative_length(here.grad + at, ref.grad + at, tensor->count);
                if (!(gap < precision[p].gradient))
                    fail_msg("%s %s in %s: %g", eni_network_at(i)->name, tensor->name, precision[p].name,
                             gap);
                worst = fmax(worst, gap);
            }
            batch_free(&batch);
            rig_close(&here);
            rig_close(&ref);
        }
        printf("PROMISE gradients in %s: worst gap %.1e (%.2g allowed)\n", precision[p].name, worst,
               precision[p].gradient);
    }
}

/* ---- training ---------------------------------------------------------------------------------------- */

enum { CURVE = 12, CURVE_BATCH = 16 };

/* The losses of some steps of SGD over two batches that come again and again: they fall fast. */
static void curve_of(const char *device, int p, double *loss_out)
{
    rig r;
    rig_open_as(&r, network_named("convnet"), device, precision[p].dtype, precision[p].scale);
    const eni_optimizer *sgd = eni_optimizer_find("sgd");
    float *velocity = eni_alloc_array(r.schema.count, sizeof *velocity);
    en_batch batch[2] = {batch_new(&r.schema, CURVE_BATCH, 1), batch_new(&r.schema, CURVE_BATCH, 2)};
    for (int step = 0; step < CURVE; step++) {
        const eni_hyper hyper = {.lr = 0.02F, .momentum = 0.9F, .step = (uint64_t)step};
        loss_out[step] = rig_step(&r, &batch[step % 2]);
        sgd->step(r.param, &velocity, r.grad, r.schema.count, &hyper);
    }
    batch_free(&batch[0]);
    batch_free(&batch[1]);
    eni_free(velocity);
    rig_close(&r);
}

static void training_follows_the_reference(void **state)
{
    (void)state;
    double want[CURVE], got[CURVE];
    curve_of("ref", 0, want);
    assert_true(want[CURVE - 1] < 0.9 * want[0]); /* a flat curve proves nothing */
    for (int p = 0; p < (is_gpu() ? 3 : 1); p++) {
        double worst = 0;
        curve_of(rig_device(), p, got);
        for (int step = 0; step < CURVE; step++) {
            const double gap = fabs(got[step] - want[step]) / fabs(want[step]);
            worst = gap > worst || isnan(gap) ? gap : worst;
        }
        if (!(worst < precision[p].curve))
            fail_msg("%s: a loss is off by %g of itself", precision[p].name, worst);
        printf("PROMISE %d steps of the convnet in %s: losses within %.1e of ref's (%.2g allowed)\n", CURVE,
               precision[p].name, worst, precision[p].curve);
    }
}

int main(int argc, char **argv)
{
    rig_choose_device(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_can_be_read_late),
        cmocka_unit_test(a_recorded_step_gives_the_bits_of_an_eager_one),
        cmocka_unit_test(kept_sizes_stay),
        cmocka_unit_test(a_whole_set_is_evaluated),
        cmocka_unit_test(evaluation_takes_its_memory_at_once),
        cmocka_unit_test(types_follow_the_contract),
        cmocka_unit_test(unknown_types_are_refused),
        cmocka_unit_test(backward_carries_the_scale),
        cmocka_unit_test(a_scale_is_divided_out),
        cmocka_unit_test(a_recorded_step_reads_the_scale_of_its_launch),
        cmocka_unit_test(gradients_in_16_bits_are_near),
        cmocka_unit_test(training_follows_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
