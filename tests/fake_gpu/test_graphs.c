/* Recording on the simulated GPU: what is recorded is not done, launches do it again, forked streams must be
 * joined, and what may not be called meanwhile spoils the recording. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "tests/fake_gpu/rig.h"

enum { SEEDS = 16, BYTES = 3000 };

struct rig {
    cudaStream_t a, b;
    cudaEvent_t forked, joined, outside;
    char *x, *y, *host;
};

static void open_rig(struct rig *r)
{
    FINE(cudaStreamCreateWithFlags(&r->a, cudaStreamNonBlocking));
    FINE(cudaStreamCreateWithFlags(&r->b, cudaStreamNonBlocking));
    FINE(cudaEventCreateWithFlags(&r->forked, cudaEventDisableTiming));
    FINE(cudaEventCreateWithFlags(&r->joined, cudaEventDisableTiming));
    FINE(cudaEventCreateWithFlags(&r->outside, cudaEventDisableTiming));
    FINE(cudaMalloc((void **)&r->x, BYTES));
    FINE(cudaMalloc((void **)&r->y, BYTES));
    FINE(cudaMallocHost((void **)&r->host, BYTES));
    memset(r->host, 0, BYTES);
}

/* a: x = 3 | b, behind it: y = x, mark, host = y | a, behind b: x = 4. With `race`, a does not wait for b
 * before it writes, but at the end. */
static void record(struct rig *r, int race, cudaGraphExec_t *exec_out)
{
    cudaGraph_t graph;
    FINE(cudaStreamBeginCapture(r->a, cudaStreamCaptureModeThreadLocal));
    FINE(cudaMemsetAsync(r->x, 3, BYTES, r->a));
    FINE(cudaEventRecord(r->forked, r->a));
    FINE(cudaStreamWaitEvent(r->b, r->forked, 0));
    FINE(cudaMemcpyAsync(r->y, r->x, BYTES, cudaMemcpyDeviceToDevice, r->b));
    FINE(cudaMemcpyAsync(r->host, r->y, BYTES, cudaMemcpyDeviceToHost, r->b));
    FINE(cudaEventRecordWithFlags(r->outside, r->b, cudaEventRecordExternal));
    FINE(cudaEventRecord(r->joined, r->b));
    if (!race) FINE(cudaStreamWaitEvent(r->a, r->joined, 0));
    FINE(cudaMemsetAsync(r->x, 4, BYTES, r->a));
    if (race) FINE(cudaStreamWaitEvent(r->a, r->joined, 0));
    enum cudaStreamCaptureStatus status;
    FINE(cudaStreamIsCapturing(r->b, &status));
    CLAIM(status == cudaStreamCaptureStatusActive);
    FINE(cudaStreamEndCapture(r->a, &graph));
    FINE(cudaStreamIsCapturing(r->b, &status));
    CLAIM(status == cudaStreamCaptureStatusNone);
    size_t n = 0;
    FINE(cudaGraphGetNodes(graph, NULL, &n));
    CLAIM(n == 5);
    FINE(cudaGraphInstantiate(exec_out, graph, 0));
    FINE(cudaGraphDestroy(graph));
}

static int launches(void *user)
{
    struct rig r;
    cudaGraphExec_t exec;
    open_rig(&r);
    record(&r, *(int *)user, &exec);
    FINE(cudaDeviceSynchronize());
    CLAIM(r.host[0] == 0); /* recording did nothing */
    int right = 1;
    for (int i = 0; i < 3; i++) {
        memset(r.host, 0, BYTES);
        FINE(cudaGraphLaunch(exec, r.a));
        cudaError_t e;
        while ((e = cudaEventQuery(r.outside)) == cudaErrorNotReady) {
        }
        FINE(e);
        right &= r.host[0] == 3 && r.host[BYTES - 1] == 3;
        FINE(cudaStreamSynchronize(r.a));
        FINE(cudaMemcpyAsync(r.host, r.x, BYTES, cudaMemcpyDeviceToHost, r.a)); /* behind the launch */
        FINE(cudaStreamSynchronize(r.a));
        right &= r.host[0] == 4;
    }
    FINE(cudaGraphExecDestroy(exec));
    return right ? 0 : 7;
}

static void test_a_graph_is_launched(void **state)
{
    (void)state;
    setenv("FAKE_GPU_GRAPH_MARKS", "launch", 1);
    int race = 0;
    assert_int_equal(count_fine(SEEDS, launches, &race), SEEDS);
    race = 1;
    assert_true(count_fine(SEEDS, launches, &race) < SEEDS);
    unsetenv("FAKE_GPU_GRAPH_MARKS");
}

/* Until the node has run, its event is as the launch before left it. */
static int stale(void *user)
{
    (void)user;
    struct rig r;
    cudaGraphExec_t exec;
    open_rig(&r);
    record(&r, 0, &exec);
    for (int i = 0; i < 2; i++) {
        FINE(cudaGraphLaunch(exec, r.a));
        FINE(cudaEventQuery(r.outside));
        FINE(cudaStreamSynchronize(r.a));
    }
    FINE(cudaMemsetAsync(r.x, 1, BYTES, r.b));
    FINE(cudaEventRecord(r.outside, r.b)); /* it can be recorded outside as well */
    FINE(cudaEventSynchronize(r.outside));
    return 0;
}

static void test_a_mark_of_a_graph_may_be_stale(void **state)
{
    (void)state;
    assert_int_equal(in_child(stale, NULL), 0);
}

static int unjoined(void *user)
{
    (void)user;
    struct rig r;
    cudaGraph_t graph;
    open_rig(&r);
    FINE(cudaStreamBeginCapture(r.a, cudaStreamCaptureModeThreadLocal));
    FINE(cudaEventRecord(r.forked, r.a));
    FINE(cudaStreamWaitEvent(r.b, r.forked, 0));
    FINE(cudaMemsetAsync(r.x, 3, BYTES, r.b));
    CLAIM(cudaStreamEndCapture(r.a, &graph) == cudaErrorStreamCaptureUnjoined);
    FINE(cudaMemsetAsync(r.x, 3, BYTES, r.b)); /* both are streams again */
    FINE(cudaStreamSynchronize(r.b));
    FINE(cudaStreamBeginCapture(r.a, cudaStreamCaptureModeThreadLocal));
    FINE(cudaEventRecord(r.forked, r.a));
    FINE(cudaStreamWaitEvent(r.b, r.forked, 0));
    CLAIM(cudaStreamEndCapture(r.b, &graph) == cudaErrorStreamCaptureUnmatched);
    FINE(cudaStreamEndCapture(r.a, &graph)); /* nothing was put into b */
    FINE(cudaGraphDestroy(graph));
    return 0;
}

static void test_forks_must_be_joined(void **state)
{
    (void)state;
    assert_int_equal(in_child(unjoined, NULL), 0);
}

/* Each of these while `a` is recorded. */
static cudaError_t offence(struct rig *r, int which)
{
    void *p;
    switch (which) {
    case 0: return cudaMalloc(&p, 16);
    case 1: return cudaFree(r->x);
    case 2: return cudaStreamSynchronize(r->a);
    case 3: return cudaDeviceSynchronize();
    case 4: return cudaEventQuery(r->outside);
    case 5: return cudaStreamQuery(r->a);
    case 6: FINE(cudaEventRecord(r->forked, r->a)); return cudaEventSynchronize(r->forked);
    case 7: return cudaStreamWaitEvent(r->a, r->outside, 0); /* recorded before, not in here */
    case 8: return cudaHostRegister(r->host + (1 << 20), 1, 0);
    case 9: return cudaMemcpy(r->x, r->y, 16, cudaMemcpyDeviceToDevice);
    case 10: return cudaMallocHost(&p, 16);
    default: return cudaSuccess;
    }
}

static int spoilt(void *user)
{
    struct rig r;
    cudaGraph_t graph;
    open_rig(&r);
    FINE(cudaEventRecord(r.outside, r.b));
    FINE(cudaStreamBeginCapture(r.a, cudaStreamCaptureModeThreadLocal));
    FINE(cudaMemsetAsync(r.x, 3, BYTES, r.a));
    CLAIM(offence(&r, *(int *)user) != cudaSuccess);
    CLAIM(cudaMemsetAsync(r.x, 3, BYTES, r.a) == cudaErrorStreamCaptureInvalidated);
    CLAIM(cudaStreamEndCapture(r.a, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
    FINE(cudaMemsetAsync(r.x, 3, BYTES, r.a));
    FINE(cudaStreamSynchronize(r.a));
    return 0;
}

static void test_what_spoils_a_recording(void **state)
{
    (void)state;
    for (int which = 0; which <= 10; which++)
        assert_int_equal(in_child(spoilt, &which), 0);
}

/* An event of a recording stands for nothing outside of it. */
static int captured_event(void *user)
{
    (void)user;
    struct rig r;
    cudaGraph_t graph;
    open_rig(&r);
    FINE(cudaStreamBeginCapture(r.a, cudaStreamCaptureModeThreadLocal));
    FINE(cudaMemsetAsync(r.x, 3, BYTES, r.a));
    FINE(cudaEventRecord(r.forked, r.a));
    FINE(cudaStreamEndCapture(r.a, &graph));
    CLAIM(cudaEventQuery(r.forked) == cudaErrorCapturedEvent);
    CLAIM(cudaStreamWaitEvent(r.b, r.forked, 0) == cudaErrorCapturedEvent);
    FINE(cudaEventRecord(r.forked, r.b));
    FINE(cudaEventSynchronize(r.forked));
    return 0;
}

static void test_events_of_a_recording(void **state)
{
    (void)state;
    assert_int_equal(in_child(captured_event, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_graph_is_launched),   cmocka_unit_test(test_a_mark_of_a_graph_may_be_stale),
        cmocka_unit_test(test_forks_must_be_joined),  cmocka_unit_test(test_what_spoils_a_recording),
        cmocka_unit_test(test_events_of_a_recording),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
