/* far.c - see far.h. */
#include "far.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "ops/device.h"

enum { ALIGN = 256, WORK = 4096, PINS = 64 };
static const size_t reserved = (size_t)8 << 30; /* addresses; pages come as they are touched */

enum { FORWARD, WEIGHTS, DATA, COPY, ZERO, EVENT };

typedef struct work {
    int kind;
    en_plan *plan;
    en_args args;
    void *dst;
    const void *src;
    uint64_t bytes;
    en_event *event;
} work;

struct en_event {
    int pending, asked; /* set and not reached; polled since */
};

struct en_capture {
    work *list;
    int n;
};

struct en_ctx {
    en_ctx *inner; /* ref's */
    unsigned char *memory;
    size_t used;
    work list[WORK], captured[WORK];
    int n, ncaptured, is_capturing;
    struct {
        const unsigned char *at;
        uint64_t bytes;
    } registers[PINS];
    far_counts counts;
};

static en_ctx far; /* one at a time */

/* ---- doing work -------------------------------------------------------------------------------------- */

static en_status do_work(const work *w)
{
    const en_device *ref = eni_ref_device();
    switch (w->kind) {
    case FORWARD: return ref->forward(w->plan, &w->args);
    case WEIGHTS: return ref->backward_weights(w->plan, &w->args);
    case DATA: return ref->backward_data(w->plan, &w->args);
    case COPY: memcpy(w->dst, w->src, w->bytes); return EN_OK;
    case ZERO: memset(w->dst, 0, w->bytes); return EN_OK;
    default: w->event->pending--; return EN_OK;
    }
}

static en_status do_all(void)
{
    en_status st = EN_OK;
    if (far.is_capturing) fail_msg("waiting while work is captured");
    mprotect(far.memory, reserved, PROT_READ | PROT_WRITE);
    for (int i = 0; i < far.n && st == EN_OK; i++)
        st = do_work(&far.list[i]);
    mprotect(far.memory, reserved, PROT_NONE);
    far.n = 0;
    return st;
}

static en_status put(work w)
{
    work *list = far.is_capturing ? far.captured : far.list;
    int *n = far.is_capturing ? &far.ncaptured : &far.n;
    assert_true(*n < WORK);
    list[(*n)++] = w;
    if (w.kind == EVENT && !far.is_capturing) w.event->pending++;
    return EN_OK;
}

static int is_far(const void *memory, uint64_t bytes)
{
    const unsigned char *at = memory;
    return at >= far.memory && at + bytes <= far.memory + far.used;
}

static int is_registered(const void *memory, uint64_t bytes)
{
    const unsigned char *at = memory;
    for (int i = 0; i < PINS; i++)
        if (far.registers[i].at != NULL && at >= far.registers[i].at &&
            at + bytes <= far.registers[i].at + far.registers[i].bytes)
            return 1;
    return 0;
}

/* ---- the table: memory and operations ---------------------------------------------------------------- */

static en_status far_open(const en_device_config *config, en_ctx **ctx_out)
{
    memset(&far, 0, sizeof far);
    far.memory = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(far.memory != MAP_FAILED);
    *ctx_out = &far;
    return eni_ref_device()->open(config, &far.inner);
}

static void far_close(en_ctx *ctx)
{
    eni_ref_device()->close(ctx->inner);
    munmap(ctx->memory, reserved);
}

static const char *far_describe(en_ctx *ctx)
{
    (void)ctx;
    return "the reference device, out of reach";
}

static en_status far_alloc(en_ctx *ctx, uint64_t bytes, void **memory_out)
{
    if (ctx->is_capturing) fail_msg("memory is taken while work is captured");
    *memory_out = ctx->memory + ctx->used;
    ctx->used += (bytes + ALIGN) / ALIGN * ALIGN;
    assert_true(ctx->used <= reserved);
    ctx->counts.allocations++;
    ctx->counts.live_allocations++;
    return EN_OK;
}

static void far_free(en_ctx *ctx, void *memory)
{
    if (memory == NULL) return;
    assert_true(is_far(memory, 0));
    if (ctx->n > 0) (void)do_all(); /* as cudaFree does */
    ctx->counts.live_allocations--;
}

static en_status far_copy(en_ctx *ctx, void *dst, const void *src, uint64_t bytes, int direction)
{
    (void)ctx;
    assert_true(direction == EN_COPY_OUT ? is_registered(dst, bytes) : is_far(dst, bytes));
    assert_true(direction == EN_COPY_IN ? is_registered(src, bytes) : is_far(src, bytes));
    return put((work){.kind = COPY, .dst = dst, .src = src, .bytes = bytes});
}

static en_status far_zero(en_ctx *ctx, void *dst, uint64_t bytes)
{
    (void)ctx;
    assert_true(is_far(dst, bytes));
    return put((work){.kind = ZERO, .dst = dst, .bytes = bytes});
}

static en_status far_sync(en_ctx *ctx)
{
    (void)ctx;
    return do_all();
}

static en_status far_plan(en_ctx *ctx, const en_op *op, en_plan **plan_out)
{
    if (ctx->is_capturing) fail_msg("an operation is planned while work is captured");
    ctx->counts.plans++;
    ctx->counts.live_plans++;
    return eni_ref_device()->plan(ctx->inner, op, plan_out);
}

static void far_plan_free(en_plan *plan)
{
    far.counts.live_plans--;
    eni_ref_device()->plan_free(plan);
}

static void far_plan_info(const en_plan *plan, en_plan_info *info_out)
{
    eni_ref_device()->plan_info(plan, info_out);
}

/* Everything that an operation gets is device memory, and tensors lie on ALIGN. */
static en_status put_op(int kind, en_plan *plan, const en_args *args)
{
    const void *tensors[] = {args->x,      args->y,     args->dy,       args->dx,
                             args->target, args->saved, args->workspace};
    const void *vectors[] = {args->w, args->b, args->dw, args->db, args->loss_scale};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        assert_true(tensors[i] == NULL || (is_far(tensors[i], 0) && (uintptr_t)tensors[i] % ALIGN == 0));
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        assert_true(vectors[i] == NULL || is_far(vectors[i], 0));
    assert_null(args->loss_scale); /* ref has none */
    return put((work){.kind = kind, .plan = plan, .args = *args});
}

static en_status far_forward(en_plan *plan, const en_args *args)
{
    return put_op(FORWARD, plan, args);
}

static en_status far_weights(en_plan *plan, const en_args *args)
{
    return put_op(WEIGHTS, plan, args);
}

static en_status far_data(en_plan *plan, const en_args *args)
{
    return put_op(DATA, plan, args);
}

/* ---- the table of a GPU ------------------------------------------------------------------------------ */

static en_status event_new(en_ctx *ctx, en_event **event_out)
{
    *event_out = calloc(1, sizeof **event_out);
    ctx->counts.live_events++;
    return *event_out != NULL ? EN_OK : EN_ENOMEM;
}

static void event_free(en_event *event)
{
    if (event == NULL) return;
    far.counts.live_events--;
    free(event);
}

static en_status set_event(en_event *event, int stream)
{
    assert_int_equal(stream, EN_STREAM_COMPUTE); /* there is one */
    event->asked = 0;
    return put((work){.kind = EVENT, .event = event});
}

static en_status poll_event(en_event *event)
{
    if (event->pending == 0) return EN_OK;
    if (event->asked++ == 0) return EN_ETIMEOUT;
    return do_all();
}

static en_status register_memory(en_ctx *ctx, void *memory, uint64_t bytes)
{
    int i = 0;
    if (ctx->is_capturing) fail_msg("memory is registered while work is captured");
    while (i < PINS && ctx->registers[i].at != NULL)
        i++;
    assert_true(i < PINS);
    ctx->registers[i].at = memory;
    ctx->registers[i].bytes = bytes;
    ctx->counts.live_registered++;
    return EN_OK;
}

static void unregister_memory(en_ctx *ctx, void *memory)
{
    int i = 0;
    while (i < PINS && ctx->registers[i].at != memory)
        i++;
    assert_true(i < PINS);
    assert_int_equal(ctx->n, 0); /* nothing may be under way that could read it */
    ctx->registers[i].at = NULL;
    ctx->counts.live_registered--;
}

static en_status capture_begin(en_ctx *ctx)
{
    assert_false(ctx->is_capturing);
    ctx->is_capturing = 1;
    ctx->ncaptured = 0;
    return EN_OK;
}

static en_status capture_end(en_ctx *ctx, en_capture **graph_out)
{
    assert_true(ctx->is_capturing);
    ctx->is_capturing = 0;
    en_capture *graph = calloc(1, sizeof *graph);
    graph->n = ctx->ncaptured;
    graph->list = malloc((size_t)graph->n * sizeof *graph->list);
    memcpy(graph->list, ctx->captured, (size_t)graph->n * sizeof *graph->list);
    *graph_out = graph;
    return EN_OK;
}

static en_status launch(en_capture *graph)
{
    for (int i = 0; i < graph->n; i++)
        (void)put(graph->list[i]);
    return EN_OK;
}

static void graph_free(en_capture *graph)
{
    if (graph != NULL) free(graph->list);
    free(graph);
}

static const en_gpu gpu = {
    .size = sizeof gpu,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = set_event,
    .poll = poll_event,
    .register_memory = register_memory,
    .unregister_memory = unregister_memory,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .launch = launch,
    .graph_free = graph_free,
};

static const en_device table = {
    .abi = EN_DEVICE_ABI,
    .size = sizeof table,
    .name = "far",
    .help = "the reference device, out of reach",
    .align = ALIGN,
    .open = far_open,
    .close = far_close,
    .describe = far_describe,
    .alloc = far_alloc,
    .free = far_free,
    .copy = far_copy,
    .zero = far_zero,
    .sync = far_sync,
    .plan = far_plan,
    .plan_free = far_plan_free,
    .plan_info = far_plan_info,
    .forward = far_forward,
    .backward_weights = far_weights,
    .backward_data = far_data,
    .gpu = &gpu,
};

const en_device *far_device(void)
{
    return &table;
}

far_counts far_count(void)
{
    return far.counts;
}
