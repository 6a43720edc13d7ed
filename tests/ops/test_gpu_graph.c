/* test_gpu_graph.c - work that is captured once: launches read the rates of the day, events inside stand for
 * the latest launch, and what cannot be captured is refused without harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "ops/mean.h"
#include "ops/optimizer.h"
#include "tests/ops/gpu_rig.h"

enum { COUNT = 70001, BYTES = COUNT * sizeof(float) };

static gpu_rig rig;

/* A step as the worker records it: COMPUTE makes a gradient from x, EXCHANGE steps w with it and copies both
 * out. */
typedef struct step {
    float *in, *out_g, *out_w; /* registered */
    en_gpu_rates *rates;       /* registered; gpu_rates is what the graph reads */
    float *x, *g, *w, *m;
    en_gpu_rates *gpu_rates;
    en_event *computed, *stepped, *sent;
} step;

static step s;

static void *registered(uint64_t bytes)
{
    void *memory = gpu_pages(bytes);
    GPU_OK(rig.gpu->register_memory(rig.ctx, memory, bytes));
    return memory;
}

static void *take(uint64_t bytes)
{
    void *memory = NULL;
    GPU_OK(rig.ops->alloc(rig.ctx, bytes, &memory));
    return memory;
}

static void put_step(void)
{
    const float *source[] = {s.g};
    const en_gpu_step mean_step = {.size = sizeof mean_step,
                                   .optimizer = "sgd",
                                   .nsources = 1,
                                   .source = source,
                                   .w = s.w,
                                   .slot = {s.m},
                                   .count = COUNT,
                                   .rates = s.gpu_rates};
    GPU_OK(rig.gpu->lin(rig.ctx, EN_STREAM_COMPUTE, s.g, 3.0f, s.x, 0.25f, COUNT));
    GPU_OK(rig.gpu->event_record(s.computed, EN_STREAM_COMPUTE));
    GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_EXCHANGE, s.computed));
    GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_EXCHANGE, s.out_g, s.g, BYTES, EN_COPY_OUT));
    GPU_OK(rig.gpu->event_record(s.sent, EN_STREAM_EXCHANGE));
    GPU_OK(rig.gpu->mean_step(rig.ctx, EN_STREAM_EXCHANGE, &mean_step));
    GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_EXCHANGE, s.out_w, s.w, BYTES, EN_COPY_OUT));
    GPU_OK(rig.gpu->event_record(s.stepped, EN_STREAM_EXCHANGE));
    GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_COMPUTE, s.stepped));
}

/* The expected result. */
typedef struct host {
    float g[COUNT], w[COUNT], m[COUNT];
} host;

static host want;

static void step_on_host(const en_gpu_rates *rates)
{
    const float *source[] = {want.g};
    static float mean[COUNT];
    float *slots[ENI_MAX_SLOTS] = {want.m};
    const eni_hyper hyper = {rates->lr, rates->momentum, rates->weight_decay, rates->nesterov, 0};
    eni_lin(want.g, 3.0f, s.in, 0.25f, COUNT);
    eni_mean(mean, source, rates->scale, 1, rates->inv, COUNT);
    eni_optimizer_find("sgd")->step(want.w, slots, mean, COUNT, &hyper);
}

static void prefetch(int round)
{
    gpu_fill(s.in, COUNT, (uint64_t)round);
    *s.rates = (en_gpu_rates){.lr = 0.1f / (float)(round + 1),
                              .momentum = round % 3 ? 0.9f : 0.0f,
                              .weight_decay = round % 2 ? 1e-3f : 0.0f,
                              .nesterov = round % 4 == 1,
                              .inv = 1.0f / (float)(round + 5),
                              .scale = {(float)(round + 5)}};
    GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_COMPUTE, s.x, s.in, BYTES, EN_COPY_IN));
    GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_COMPUTE, s.gpu_rates, s.rates, sizeof *s.rates, EN_COPY_IN));
}

static void reset(void)
{
    memset(&want, 0, sizeof want);
    gpu_fill(want.w, COUNT, 99);
    GPU_OK(rig.ops->copy(rig.ctx, s.w, want.w, BYTES, EN_COPY_IN));
    GPU_OK(rig.ops->zero(rig.ctx, s.m, BYTES));
    GPU_OK(rig.ops->zero(rig.ctx, s.g, BYTES));
    GPU_OK(rig.ops->sync(rig.ctx));
}

static en_capture *record(void)
{
    en_capture *graph = NULL;
    GPU_OK(rig.gpu->capture_begin(rig.ctx));
    put_step();
    GPU_OK(rig.gpu->capture_end(rig.ctx, &graph));
    return graph;
}

/* The events of one round, polled right after the launch: `sent` must not answer for the launch before. */
static void check_round(int round)
{
    memset(s.out_g, 0xff, BYTES);
    memset(s.out_w, 0xff, BYTES);
    prefetch(round);
}

static void launch_rounds(void)
{
    reset();
    en_capture *graph = record();
    assert_int_equal(rig.gpu->poll(s.sent), EN_OK); /* captured, and not done: nothing to wait for */
    for (int round = 0; round < 12; round++) {
        check_round(round);
        GPU_OK(rig.gpu->launch(graph));
        gpu_await(&rig, s.sent);
        step_on_host(s.rates);
        assert_memory_equal(s.out_g, want.g, BYTES);
        gpu_await(&rig, s.stepped);
        assert_memory_equal(s.out_w, want.w, BYTES);
    }
    rig.gpu->graph_free(graph);
}

/* Captured while nobody has polled the events, and once somebody has: these two are captured differently. */
static void launches_read_what_is_new_and_events_stand_for_them(void **state)
{
    (void)state;
    launch_rounds();
    launch_rounds();
}

/* Two graphs, one for each input buffer, set the same events; and steps without a graph in between. */
static void graphs_and_plain_steps_take_turns(void **state)
{
    (void)state;
    reset();
    en_capture *graphs[2] = {record(), record()};
    for (int round = 0; round < 12; round++) {
        check_round(round);
        if (round % 3 == 2)
            put_step();
        else
            GPU_OK(rig.gpu->launch(graphs[round % 3]));
        gpu_await(&rig, s.stepped);
        step_on_host(s.rates);
        assert_int_equal(rig.gpu->poll(s.sent), EN_OK); /* it is before */
        assert_memory_equal(s.out_g, want.g, BYTES);
        assert_memory_equal(s.out_w, want.w, BYTES);
    }
    rig.gpu->graph_free(graphs[0]);
    rig.gpu->graph_free(graphs[1]);
}

/* Several launches may be under way: an event is reached when the last of them is. */
static void launches_that_are_under_way_add_up(void **state)
{
    (void)state;
    reset();
    en_capture *graph = record();
    check_round(1);
    for (int i = 0; i < 5; i++) {
        GPU_OK(rig.gpu->launch(graph));
        step_on_host(s.rates);
    }
    gpu_await(&rig, s.stepped);
    assert_memory_equal(s.out_w, want.w, BYTES);
    rig.gpu->graph_free(graph);
    assert_int_equal(rig.gpu->poll(s.stepped), EN_OK); /* the event outlives the graph */
}

/* PREFETCH is ordered behind an event that is inside of the graph, also when the graph is gone. */
static void streams_outside_wait_for_events_inside(void **state)
{
    (void)state;
    float *copy = registered(BYTES);
    for (int is_freed = 0; is_freed < 2; is_freed++) {
        reset();
        en_capture *graph = record();
        en_event *copied;
        GPU_OK(rig.gpu->event_new(rig.ctx, &copied));
        for (int round = 0; round < 4; round++) {
            memset(copy, 0, BYTES);
            prefetch(round);
            GPU_OK(rig.gpu->launch(graph));
            if (is_freed && round == 3) {
                rig.gpu->graph_free(graph);
                graph = NULL;
            }
            GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_PREFETCH, s.stepped));
            GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_PREFETCH, copy, s.w, BYTES, EN_COPY_OUT));
            GPU_OK(rig.gpu->event_record(copied, EN_STREAM_PREFETCH));
            gpu_await(&rig, copied);
            step_on_host(s.rates);
            assert_memory_equal(copy, want.w, BYTES);
        }
        rig.gpu->event_free(copied);
        rig.gpu->graph_free(graph);
    }
    rig.gpu->unregister_memory(rig.ctx, copy);
    munmap(copy, BYTES);
}

/* Copies x to `out` and records the event. */
static en_capture *record_copy(float *out, en_event *event)
{
    en_capture *graph = NULL;
    GPU_OK(rig.gpu->capture_begin(rig.ctx));
    GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_COMPUTE, out, s.x, BYTES, EN_COPY_OUT));
    GPU_OK(rig.gpu->event_record(event, EN_STREAM_COMPUTE));
    GPU_OK(rig.gpu->capture_end(rig.ctx, &graph));
    return graph;
}

/* An event and its graph are freed while the launch is under way: its tick, when it comes, is not that of the
 * next. */
static void a_new_event_does_not_inherit(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        en_event *old, *new;
        GPU_OK(rig.gpu->event_new(rig.ctx, &old));
        assert_int_equal(rig.gpu->poll(old), EN_OK); /* else it has no tick */
        en_capture *graph = record_copy(s.out_w, old);
        GPU_OK(rig.gpu->launch(graph));
        rig.gpu->graph_free(graph);
        rig.gpu->event_free(old);

        GPU_OK(rig.gpu->event_new(rig.ctx, &new));
        assert_int_equal(rig.gpu->poll(new), EN_OK);
        graph = record_copy(s.out_g, new);
        memset(s.out_g, 0, BYTES);
        prefetch(i);
        GPU_OK(rig.gpu->launch(graph));
        gpu_await(&rig, new);
        assert_memory_equal(s.out_g, s.in, BYTES);
        GPU_OK(rig.ops->sync(rig.ctx));
        rig.gpu->graph_free(graph);
        rig.gpu->event_free(new);
    }
}

/* ---- what cannot be captured --------------------------------------------------------------------------- */

static void take_memory(void)
{
    void *memory;
    assert_int_not_equal(rig.ops->alloc(rig.ctx, 100, &memory), EN_OK);
}

static void copy_what_is_not_registered(void)
{
    char text[100] = {0};
    assert_int_not_equal(rig.ops->copy(rig.ctx, s.x, text, sizeof text, EN_COPY_IN), EN_OK);
}

static void leave_a_stream_alone(void)
{
    GPU_OK(rig.gpu->event_record(s.computed, EN_STREAM_COMPUTE));
    GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_EXCHANGE, s.computed));
    GPU_OK(rig.gpu->zero(rig.ctx, EN_STREAM_EXCHANGE, s.g, BYTES));
}

static void wait_for_the_past(void)
{
    assert_int_not_equal(rig.gpu->wait_event(rig.ctx, EN_STREAM_COMPUTE, s.stepped), EN_OK);
}

static void poll_meanwhile(void)
{
    assert_int_not_equal(rig.gpu->poll(s.stepped), EN_OK);
}

static void what_cannot_be_recorded_is_refused_without_harm(void **state)
{
    (void)state;
    const struct {
        const char *name;
        void (*wrong)(void);
    } wrongs[] = {{"memory", take_memory},
                  {"a copy of memory that is not registered", copy_what_is_not_registered},
                  {"a stream that does not come back", leave_a_stream_alone},
                  {"an event from before", wait_for_the_past},
                  {"a poll", poll_meanwhile}};
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        en_capture *graph = NULL;
        reset();
        GPU_OK(rig.gpu->event_record(s.stepped, EN_STREAM_COMPUTE));
        GPU_OK(rig.gpu->capture_begin(rig.ctx));
        GPU_OK(rig.gpu->lin(rig.ctx, EN_STREAM_COMPUTE, s.w, 2.0f, s.w, 1.0f, COUNT));
        wrongs[i].wrong();
        if (rig.gpu->capture_end(rig.ctx, &graph) != EN_EUNSUPPORTED || graph)
            fail_msg("%s was captured", wrongs[i].name);
        gpu_get(&rig, s.out_w, s.w, COUNT);
        assert_memory_equal(s.out_w, want.w, BYTES); /* nothing of it was done */
        prefetch(1);
        put_step(); /* and all goes on */
        gpu_await(&rig, s.stepped);
        step_on_host(s.rates);
        assert_memory_equal(s.out_w, want.w, BYTES);
        reset();
        graph = record();
        prefetch(2);
        GPU_OK(rig.gpu->launch(graph));
        gpu_await(&rig, s.stepped);
        step_on_host(s.rates);
        assert_memory_equal(s.out_w, want.w, BYTES);
        rig.gpu->graph_free(graph);
    }
}

static void a_recording_has_one_beginning_and_one_end(void **state)
{
    (void)state;
    en_capture *graph = NULL;
    assert_int_equal(rig.gpu->capture_end(rig.ctx, &graph), EN_EBUG);
    GPU_OK(rig.gpu->capture_begin(rig.ctx));
    assert_int_equal(rig.gpu->capture_begin(rig.ctx), EN_EBUG);
    GPU_OK(rig.gpu->zero(rig.ctx, EN_STREAM_COMPUTE, s.g, BYTES));
    GPU_OK(rig.gpu->capture_end(rig.ctx, &graph));
    GPU_OK(rig.gpu->launch(graph));
    GPU_OK(rig.ops->sync(rig.ctx));
    rig.gpu->graph_free(graph);
    rig.gpu->graph_free(NULL);
}

static int open_all(void **state)
{
    (void)state;
    gpu_rig_open(&rig, 0, 0);
    s.in = registered(BYTES), s.out_g = registered(BYTES), s.out_w = registered(BYTES),
    s.rates = registered(sizeof *s.rates);
    s.x = take(BYTES), s.g = take(BYTES), s.w = take(BYTES), s.m = take(BYTES);
    s.gpu_rates = take(sizeof *s.gpu_rates);
    GPU_OK(rig.gpu->event_new(rig.ctx, &s.computed));
    GPU_OK(rig.gpu->event_new(rig.ctx, &s.sent));
    GPU_OK(rig.gpu->event_new(rig.ctx, &s.stepped));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    rig.gpu->event_free(s.computed);
    rig.gpu->event_free(s.sent);
    rig.gpu->event_free(s.stepped);
    gpu_rig_close(&rig);
    return 0;
}

int main(int argc, char **argv)
{
    int ngpus;
    const int code = gpu_rig_find(&rig, argc, argv, &ngpus);
    if (code != 0) return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_read_what_is_new_and_events_stand_for_them),
        cmocka_unit_test(graphs_and_plain_steps_take_turns),
        cmocka_unit_test(launches_that_are_under_way_add_up),
        cmocka_unit_test(streams_outside_wait_for_events_inside),
        cmocka_unit_test(a_new_event_does_not_inherit),
        cmocka_unit_test(what_cannot_be_recorded_is_refused_without_harm),
        cmocka_unit_test(a_recording_has_one_beginning_and_one_end),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
