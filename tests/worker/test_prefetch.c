/* test_prefetch.c - batches on their way to a GPU, on the simulated one, which does everything as late as it
 * may and in an order of its own: what is computed reads exactly the batch that was handed out, however far
 * the host is ahead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "data/plan.h"
#include "tests/ops/gpu_rig.h"
#include "worker/gpu/prefetch.h"

enum { N = 101, BATCH = 8, SAMPLE = 16, SEED = 3 };

static gpu_rig rig;
static eni_dataset *set;

/* The form of the loader's batches, and what a GPU needs to make images of them. */
static eni_form form;
static en_gpu_pixels pixels;

static int64_t soon(void)
{
    return eni_now_ns() + 20 * ENI_SECOND;
}

static en_status await(void *user, en_event *event)
{
    gpu_await(user, event);
    return EN_OK;
}

static en_status register_memory(void *user, void *memory, uint64_t bytes)
{
    gpu_rig *r = user;
    return r->gpu->register_memory(r->ctx, memory, bytes);
}

static void unregister_memory(void *user, void *memory)
{
    gpu_rig *r = user;
    r->gpu->unregister_memory(r->ctx, memory);
}

/* A run of one rank of `world`, and what "computing" has read: x and labels of all its steps, on the device.
 */
typedef struct course {
    eni_plan plan;
    eni_loader *loader;
    eni_prefetch *prefetch;
    float *x;
    int32_t *labels;
    uint64_t nsamples, nbatches, nempty;
} course;

static void begin(course *c, uint64_t world, uint64_t rank, uint64_t batch, uint64_t epochs)
{
    const eni_plan_options plan = {.train_samples = N, .world = world, .batch = batch, .epochs = epochs};
    memset(c, 0, sizeof *c);
    assert_int_equal(eni_plan_make(&plan, &c->plan), EN_OK);
    const eni_loader_options loader = {.dataset = set,
                                       .plan = &c->plan,
                                       .seed = SEED,
                                       .order = ENI_ORDER_EACH_EPOCH,
                                       .depth = 2,
                                       .first = rank,
                                       .stride = world,
                                       .form = form,
                                       .hold = 2,
                                       .register_memory = register_memory,
                                       .unregister_memory = unregister_memory,
                                       .pin_user = &rig};
    assert_int_equal(eni_loader_start(&loader, &c->loader), EN_OK);
    const eni_prefetch_config prefetch = {.device = rig.ops,
                                          .ctx = rig.ctx,
                                          .loader = c->loader,
                                          .rows = batch,
                                          .sample_bytes = SAMPLE * sizeof(float),
                                          .target_bytes = sizeof(int32_t),
                                          .pixels = form == ENI_FORM_FLOATS ? NULL : &pixels,
                                          .raw_bytes = eni_dataset_sample_bytes(set, form),
                                          .await = await,
                                          .user = &rig};
    assert_int_equal(eni_prefetch_open(&prefetch, &c->prefetch), EN_OK);
    GPU_OK(rig.ops->alloc(rig.ctx, N * epochs * SAMPLE * sizeof(float), (void **)&c->x));
    GPU_OK(rig.ops->alloc(rig.ctx, N * epochs * sizeof(int32_t), (void **)&c->labels));
}

static void end(course *c)
{
    GPU_OK(rig.ops->sync(rig.ctx));
    eni_prefetch_close(c->prefetch);
    eni_loader_stop(c->loader);
    rig.ops->free(rig.ctx, c->x);
    rig.ops->free(rig.ctx, c->labels);
}

/* One step: what a model would read is read by COMPUTE into its place. */
static en_status step(course *c)
{
    const eni_batch *b;
    const en_status st = eni_prefetch_next(c->prefetch, soon(), &b);
    if (st != EN_OK) return st;
    const uint64_t n = b->micro.count;
    assert_int_equal(eni_prefetch_buffer(c->prefetch), c->nbatches % 2);
    if (n > 0) {
        GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_COMPUTE, c->x + c->nsamples * SAMPLE, b->x,
                             n * SAMPLE * sizeof(float), EN_COPY_ON));
        GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_COMPUTE, c->labels + c->nsamples, b->target,
                             n * sizeof(int32_t), EN_COPY_ON));
        GPU_OK(eni_prefetch_done(c->prefetch));
    }
    c->nsamples += n;
    c->nbatches++;
    c->nempty += n == 0;
    return EN_OK;
}

/* The expected reads: the micro-batches of the plan, in order. */
static void check(course *c, uint64_t first, uint64_t stride)
{
    float *x = calloc(c->nsamples * SAMPLE + 1, sizeof *x),
          *got = calloc(c->nsamples * SAMPLE + 1, sizeof *got);
    int32_t *labels = calloc(c->nsamples + 1, sizeof *labels);
    int32_t *got_labels = calloc(c->nsamples + 1, sizeof *got_labels);
    eni_sampler *sampler = eni_sampler_new(N, SEED, ENI_ORDER_EACH_EPOCH);
    uint32_t indices[BATCH];
    eni_micro micro;
    uint64_t at = 0;
    for (uint64_t m = first; eni_plan_micro(&c->plan, m, &micro) == EN_OK; m += stride) {
        eni_sampler_indices(sampler, &micro, indices);
        eni_dataset_gather(set, ENI_TRAIN, micro.epoch, indices, micro.count, x + at * SAMPLE, labels + at);
        at += micro.count;
    }
    assert_int_equal(at, c->nsamples);
    gpu_get(&rig, got, c->x, at * SAMPLE);
    gpu_get(&rig, (float *)got_labels, (const float *)c->labels, at);
    assert_memory_equal(got, x, at * SAMPLE * sizeof *x);
    assert_memory_equal(got_labels, labels, at * sizeof *labels);
    eni_sampler_free(sampler);
    free(x);
    free(got);
    free(labels);
    free(got_labels);
}

/* The host never waits for the device, asks for the next batch at once, or not at all, or at another time. */
static void test_each_step_reads_its_batch(void **state)
{
    (void)state;
    for (int asks = 0; asks < 3; asks++) {
        course c;
        en_status st;
        begin(&c, 1, 0, BATCH, 3);
        while ((st = step(&c)) == EN_OK)
            for (int i = 0; i < asks; i++)
                GPU_OK(eni_prefetch_ahead(c.prefetch));
        assert_int_equal(st, EN_ESTOP);
        assert_int_equal(c.nsamples, 3 * N);
        check(&c, 0, 1);
        end(&c);
    }
}

/* The last step of an epoch has one sample for four ranks: rank 3 has none, and takes its turn all the same.
 */
static void test_a_rank_without_samples(void **state)
{
    (void)state;
    course c;
    en_status st;
    begin(&c, 4, 3, 5, 2);
    while ((st = step(&c)) == EN_OK)
        GPU_OK(eni_prefetch_ahead(c.prefetch));
    assert_int_equal(st, EN_ESTOP);
    assert_int_equal(c.nempty, 2);
    check(&c, 3, 4);
    end(&c);
}

/* How the stream ends is told when its turn comes, and again. */
static void test_the_end_waits_for_its_turn(void **state)
{
    (void)state;
    course c;
    begin(&c, 1, 0, BATCH, 1);
    const uint64_t n = c.plan.micro_batches;
    for (uint64_t i = 0; i < n; i++) {
        GPU_OK(step(&c));
        for (int asked = 0; asked < 1000; asked++) /* after the last batch it may hear of the end here */
            GPU_OK(eni_prefetch_ahead(c.prefetch));
    }
    assert_int_equal(step(&c), EN_ESTOP);
    assert_int_equal(step(&c), EN_ESTOP);
    check(&c, 0, 1);
    end(&c);
}

static int open_set(void **state)
{
    const eni_data_options options = {
        .name = "synthetic",
        .limit_train = N,
        .limit_test = 1,
        .want = {4, 4, 1, 10, 0},
        .transform = {.pad = 1, .crop = 4, .has_flip = true}}; /* epochs differ */
    (void)state;
    gpu_rig_open(&rig, 0, 0);
    return eni_dataset_open(&options, &set);
}

static void *put(const void *from, uint64_t bytes)
{
    void *there;
    GPU_OK(rig.ops->alloc(rig.ctx, bytes, &there));
    GPU_OK(rig.ops->copy(rig.ctx, there, from, bytes, EN_COPY_IN));
    GPU_OK(rig.ops->sync(rig.ctx));
    return there;
}

/* The same of batches that the GPU makes: of a set there, or of bytes that each batch brings. */
static void test_images_made_there(void **state)
{
    static const eni_form forms[] = {ENI_FORM_CUTS, ENI_FORM_BYTES};
    for (int i = 0; i < 2; i++) {
        form = forms[i];
        eni_pixels_describe_to_gpu(&set->pixels, &pixels);
        float *table = put(set->pixels.table, sizeof set->pixels.table);
        uint8_t *images = form == ENI_FORM_CUTS ? put(set->split[ENI_TRAIN].x, N * SAMPLE) : NULL;
        pixels.table = table;
        pixels.images = images;
        pixels.image_bytes = SAMPLE;
        test_each_step_reads_its_batch(state);
        test_a_rank_without_samples(state);
        test_the_end_waits_for_its_turn(state);
        rig.ops->free(rig.ctx, table);
        rig.ops->free(rig.ctx, images);
    }
    form = ENI_FORM_FLOATS;
}

static int close_set(void **state)
{
    (void)state;
    eni_dataset_close(set);
    gpu_rig_close(&rig);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_step_reads_its_batch),
        cmocka_unit_test(test_a_rank_without_samples),
        cmocka_unit_test(test_the_end_waits_for_its_turn),
        cmocka_unit_test(test_images_made_there),
    };
    int ngpus;
    const int code = gpu_rig_find(&rig, argc, argv, &ngpus);
    return code != EN_OK ? code : cmocka_run_group_tests(tests, open_set, close_set);
}
