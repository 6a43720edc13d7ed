/* test_gpu_streams.c - order between streams by events and nothing else, memory that the GPU reaches, and
 * copies of memory that it does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "ops/mean.h"
#include "tests/ops/gpu_rig.h"

static gpu_rig rig;

static void *take(uint64_t bytes)
{
    void *memory = NULL;
    GPU_OK(rig.ops->alloc(rig.ctx, bytes, &memory));
    return memory;
}

/* PREFETCH brings x, COMPUTE works on it, EXCHANGE takes the result away, round after round in the same
 * memory: one event that is missing or not waited for is a wrong number. */
static void work_goes_from_stream_to_stream(void **state)
{
    (void)state;
    enum { COUNT = 5000, ROUNDS = 20 };
    const uint64_t bytes = COUNT * sizeof(float);
    float *in = gpu_pages(bytes), *out = gpu_pages(bytes), want[COUNT];
    GPU_OK(rig.gpu->register_memory(rig.ctx, in, bytes));
    GPU_OK(rig.gpu->register_memory(rig.ctx, out, bytes));
    float *x = take(bytes), *y = take(bytes);
    en_event *fed, *computed, *left;
    GPU_OK(rig.gpu->event_new(rig.ctx, &fed));
    GPU_OK(rig.gpu->event_new(rig.ctx, &computed));
    GPU_OK(rig.gpu->event_new(rig.ctx, &left));
    memset(want, 0, sizeof want);
    for (int round = 0; round < ROUNDS; round++) {
        gpu_fill(in, COUNT, (uint64_t)round);
        eni_lin(want, 0.5f, in, 1.0f, COUNT);
        GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_PREFETCH, computed)); /* x was read */
        GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_PREFETCH, x, in, bytes, EN_COPY_IN));
        GPU_OK(rig.gpu->event_record(fed, EN_STREAM_PREFETCH));
        GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_COMPUTE, fed));
        GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_COMPUTE, left)); /* y was taken away */
        GPU_OK(rig.gpu->lin(rig.ctx, EN_STREAM_COMPUTE, y, 0.5f, x, 1.0f, COUNT));
        GPU_OK(rig.gpu->event_record(computed, EN_STREAM_COMPUTE));
        GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_EXCHANGE, computed));
        GPU_OK(rig.gpu->copy(rig.ctx, EN_STREAM_EXCHANGE, out, y, bytes, EN_COPY_OUT));
        GPU_OK(rig.gpu->event_record(left, EN_STREAM_EXCHANGE));
        gpu_await(&rig, left);
        assert_memory_equal(out, want, bytes);
        memset(out, 0xff, bytes);
    }
    rig.gpu->event_free(fed);
    rig.gpu->event_free(computed);
    rig.gpu->event_free(left);
    rig.gpu->event_free(NULL);
    rig.gpu->unregister_memory(rig.ctx, in);
    rig.gpu->unregister_memory(rig.ctx, out);
    rig.ops->free(rig.ctx, x);
    rig.ops->free(rig.ctx, y);
    munmap(in, bytes);
    munmap(out, bytes);
}

static void a_event_that_was_never_set_is_reached(void **state)
{
    (void)state;
    en_event *event;
    GPU_OK(rig.gpu->event_new(rig.ctx, &event));
    assert_int_equal(rig.gpu->poll(event), EN_OK);
    GPU_OK(rig.gpu->wait_event(rig.ctx, EN_STREAM_PREFETCH, event));
    rig.gpu->event_free(event);
}

static void a_event_of_another_context_is_refused(void **state)
{
    (void)state;
    gpu_rig other = rig;
    en_event *event;
    gpu_rig_open(&other, 0, 0);
    GPU_OK(other.gpu->event_new(other.ctx, &event));
    assert_int_equal(rig.gpu->wait_event(rig.ctx, EN_STREAM_PREFETCH, event), EN_EINVAL);
    other.gpu->event_free(event);
    gpu_rig_close(&other);
}

/* Copies `bytes` of what is registered to the GPU and back, by COMPUTE. */
static en_status round_trip(char *host, uint64_t bytes, void *memory)
{
    en_status st = rig.gpu->copy(rig.ctx, EN_STREAM_COMPUTE, memory, host, bytes, EN_COPY_IN);
    if (st == EN_OK) st = rig.gpu->copy(rig.ctx, EN_STREAM_COMPUTE, host, memory, bytes, EN_COPY_OUT);
    GPU_OK(rig.ops->sync(rig.ctx));
    return st;
}

/*   page   |  0  |  1  |  2  |  3  |
 *   A        [ . . . . )
 *   B                [ . . . . ]          shares page 1 with A */
static void ranges_that_share_a_page_are_registered_both(void **state)
{
    (void)state;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), a = 100, b = page + page / 2, end = 4 * page - 7;
    char *host = gpu_pages(4 * page);
    void *memory = take(4 * page);
    for (uint64_t i = 0; i < 4 * page; i++)
        host[i] = (char)(i * 7);
    GPU_OK(rig.gpu->register_memory(rig.ctx, host + a, b - a));
    GPU_OK(rig.gpu->register_memory(rig.ctx, host + b, end - b));
    assert_int_equal(round_trip(host + a, end - a, memory), EN_OK); /* across both in one copy */
    rig.gpu->unregister_memory(rig.ctx, host + a);
    assert_int_equal(round_trip(host + b, end - b, memory), EN_OK); /* the shared page stays */
    GPU_OK(rig.gpu->register_memory(rig.ctx, host + a, b - a));
    assert_int_equal(round_trip(host + a, end - a, memory), EN_OK);
    rig.gpu->unregister_memory(rig.ctx, host + b);
    assert_int_equal(round_trip(host + a, b - a, memory), EN_OK);
    assert_int_equal(round_trip(host + a, end - a, memory),
                     EN_EINVAL); /* its end is not registered any more */
    assert_non_null(strstr(gpu_last_error(), "page-locked"));
    rig.gpu->unregister_memory(rig.ctx, host + a);
    assert_int_equal(round_trip(host + a, 1, memory), EN_EINVAL);
    for (uint64_t i = 0; i < 4 * page; i++)
        assert_int_equal(host[i], (char)(i * 7));
    GPU_OK(rig.gpu->register_memory(rig.ctx, host, 0));
    rig.gpu->unregister_memory(rig.ctx, host + 3); /* was never registered */
    rig.ops->free(rig.ctx, memory);
    munmap(host, 4 * page);
}

/* One in the middle first, then one around it: what was registered already is left out. */
static void a_range_may_lie_around_another(void **state)
{
    (void)state;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), all = 5 * page;
    char *host = gpu_pages(all);
    void *memory = take(all);
    memset(host, 3, all);
    GPU_OK(rig.gpu->register_memory(rig.ctx, host + 2 * page, page));
    GPU_OK(rig.gpu->register_memory(rig.ctx, host, all));
    assert_int_equal(round_trip(host, all, memory), EN_OK);
    rig.gpu->unregister_memory(rig.ctx, host + 2 * page);
    assert_int_equal(round_trip(host, all, memory), EN_OK);
    rig.gpu->unregister_memory(rig.ctx, host);
    assert_int_equal(round_trip(host + 2 * page, 1, memory), EN_EINVAL);
    rig.ops->free(rig.ctx, memory);
    munmap(host, all);
}

/* As a run registers an arena of many buckets, in any order. */
static void many_ranges_come_and_go(void **state)
{
    (void)state;
    enum { RANGES = 60 };
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), piece = page / 3, all = RANGES * piece;
    char *host = gpu_pages(all + page);
    void *memory = take(all);
    memset(host, 5, all);
    for (uint64_t i = 0; i < RANGES; i++)
        GPU_OK(rig.gpu->register_memory(rig.ctx, host + i * 37 % RANGES * piece, piece));
    assert_int_equal(round_trip(host, all, memory), EN_OK);
    for (uint64_t i = 0; i < RANGES; i++) {
        rig.gpu->unregister_memory(rig.ctx, host + i * piece);
        if (i + 1 < RANGES)
            assert_int_equal(round_trip(host + (i + 1) * piece, all - (i + 1) * piece, memory), EN_OK);
    }
    assert_int_equal(round_trip(host, all, memory), EN_EINVAL);
    rig.ops->free(rig.ctx, memory);
    munmap(host, all + page);
}

/* More than the page-locked area holds, in odd pieces, and the host's memory is changed right after each
 * call. */
static void memory_that_is_not_registered_is_copied_too(void **state)
{
    (void)state;
    const uint64_t sizes[] = {1, 63, 64, 65, 1000003, (4u << 20) - 1, (9u << 20) + 5};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const uint64_t bytes = sizes[s];
        char *host = malloc(bytes), *back = malloc(bytes);
        char *memory = take(bytes);
        for (uint64_t i = 0; i < bytes; i++)
            host[i] = (char)(i * 31 + s);
        GPU_OK(rig.ops->copy(rig.ctx, memory, host, bytes, EN_COPY_IN));
        memset(host, 0, bytes); /* it was read during the call */
        GPU_OK(rig.ops->copy(rig.ctx, back, memory, bytes, EN_COPY_OUT));
        GPU_OK(rig.ops->zero(rig.ctx, memory, bytes)); /* behind the copy */
        GPU_OK(rig.ops->sync(rig.ctx));
        for (uint64_t i = 0; i < bytes; i++)
            if (back[i] != (char)(i * 31 + s))
                fail_msg("byte %llu of %llu", (unsigned long long)i, (unsigned long long)bytes);
        GPU_OK(rig.ops->copy(rig.ctx, back, memory, bytes, EN_COPY_OUT));
        GPU_OK(rig.ops->sync(rig.ctx));
        for (uint64_t i = 0; i < bytes; i++)
            if (back[i] != 0) fail_msg("byte %llu was not zeroed", (unsigned long long)i);
        rig.ops->free(rig.ctx, memory);
        free(host);
        free(back);
    }
}

/* A loss a step, for hundreds of steps without a sync: the area's list of what is under way is short. */
static void many_small_results_arrive_at_one_sync(void **state)
{
    (void)state;
    enum { MANY = 700 };
    float values[MANY], got[MANY];
    gpu_fill(values, MANY, 3);
    float *memory = gpu_put(&rig, values, MANY);
    for (int i = 0; i < MANY; i++)
        GPU_OK(rig.ops->copy(rig.ctx, &got[i], memory + i, sizeof *got, EN_COPY_OUT));
    GPU_OK(rig.ops->sync(rig.ctx));
    assert_memory_equal(got, values, sizeof got);
    rig.ops->free(rig.ctx, memory);
}

static void memory_is_zeroed_for_every_stream(void **state)
{
    (void)state;
    enum { BYTES = 3 << 20 };
    char *host = gpu_pages(BYTES);
    GPU_OK(rig.gpu->register_memory(rig.ctx, host, BYTES));
    for (int q = 0; q < EN_STREAMS; q++) {
        char *memory = take(BYTES);
        assert_int_equal((uintptr_t)memory % rig.ops->align, 0);
        memset(host, 9, BYTES);
        en_event *event;
        GPU_OK(rig.gpu->event_new(rig.ctx, &event));
        GPU_OK(rig.gpu->copy(rig.ctx, q, host, memory, BYTES, EN_COPY_OUT));
        GPU_OK(rig.gpu->event_record(event, q));
        gpu_await(&rig, event);
        for (int i = 0; i < BYTES; i++)
            if (host[i] != 0) fail_msg("stream %d: byte %d is %d", q, i, host[i]);
        GPU_OK(rig.ops->copy(rig.ctx, memory, host, BYTES, EN_COPY_IN));
        GPU_OK(rig.ops->sync(rig.ctx));
        rig.gpu->event_free(event);
        rig.ops->free(rig.ctx, memory);
    }
    rig.gpu->unregister_memory(rig.ctx, host);
    munmap(host, BYTES);
    void *empty = take(0);
    assert_non_null(empty);
    rig.ops->free(rig.ctx, empty);
    rig.ops->free(rig.ctx, NULL);
}

static void too_much_is_said_and_is_not_the_end(void **state)
{
    (void)state;
    void *memory = NULL;
    assert_int_equal(rig.ops->alloc(rig.ctx, UINT64_C(1) << 46, &memory), EN_ENOMEM);
    assert_null(memory);
    if (!strstr(gpu_last_error(), "67108864 MiB") || !strstr(gpu_last_error(), "free"))
        fail_msg("\"%s\" does not name the request and the free memory", gpu_last_error());
    const float one = 1.0f;
    float got = 0;
    float *good = gpu_put(&rig, &one, 1);
    gpu_get(&rig, &got, good, 1);
    assert_true(got == one);
    rig.ops->free(rig.ctx, good);
}

static void facts_are_those_of_a_gpu(void **state)
{
    (void)state;
    int32_t n = 0;
    en_gpu_facts facts = {.size = sizeof facts};
    GPU_OK(rig.gpu->count(eni_device_host(), &n));
    GPU_OK(rig.gpu->facts(eni_device_host(), 0, &facts));
    assert_int_equal(facts.size, sizeof facts);
    assert_int_equal(facts.index, 0);
    assert_true(facts.name[0] && facts.memory_bytes > 0 && facts.cores > 0 && facts.major >= 5);
    unsigned int part[5];
    assert_int_equal(
        sscanf(facts.uuid + 4, "%8x-%4x-%4x-%4x-%12x", &part[0], &part[1], &part[2], &part[3], &part[4]), 5);
    assert_true(!strncmp(facts.uuid, "GPU-", 4) || !strncmp(facts.uuid, "MIG-", 4));
    assert_int_equal(strlen(facts.uuid), 40);
    assert_int_equal(rig.gpu->facts(eni_device_host(), 4711, &facts), EN_EUNSUPPORTED);
    en_gpu_facts less = {.size = 8};
    GPU_OK(rig.gpu->facts(eni_device_host(), 0, &less)); /* an older caller */
    assert_int_equal(less.size, 8);
    assert_int_equal(less.cores, 0);
    eni_device device = {0};
    assert_int_equal(eni_device_open("cuda:999", rig.plugins, 1, &device), EN_EINVAL);
    assert_non_null(strstr(gpu_last_error(), "cuda:999"));
    assert_non_null(strstr(rig.ops->describe(rig.ctx), facts.name));
}

static int open_all(void **state)
{
    (void)state;
    gpu_rig_open(&rig, 0, 0);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    gpu_rig_close(&rig);
    return 0;
}

int main(int argc, char **argv)
{
    int ngpus;
    const int code = gpu_rig_find(&rig, argc, argv, &ngpus);
    if (code != 0) return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_goes_from_stream_to_stream),
        cmocka_unit_test(a_event_that_was_never_set_is_reached),
        cmocka_unit_test(a_event_of_another_context_is_refused),
        cmocka_unit_test(ranges_that_share_a_page_are_registered_both),
        cmocka_unit_test(a_range_may_lie_around_another),
        cmocka_unit_test(many_ranges_come_and_go),
        cmocka_unit_test(memory_that_is_not_registered_is_copied_too),
        cmocka_unit_test(many_small_results_arrive_at_one_sync),
        cmocka_unit_test(memory_is_zeroed_for_every_stream),
        cmocka_unit_test(too_much_is_said_and_is_not_the_end),
        cmocka_unit_test(facts_are_those_of_a_gpu),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
