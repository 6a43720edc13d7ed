/* The simulated NCCL among processes: results, the order of sums, what a non-blocking communicator makes of a
 * caller that does not wait, recorded collectives, a peer that dies, two ranks on one GPU. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tests/fake_gpu/rig.h"

enum { MOST_RANKS = 4, COUNT = 300007 /* more than one piece, and not a whole number of segments */ };

#define OK(call)    CLAIM((call) == ncclSuccess)
#define BEGUN(call) CLAIM((call) == ncclInProgress)

struct rank {
    int rank, nranks;
    cudaStream_t stream;
    ncclComm_t comm;
    float *data, *more, *host; /* host: pinned */
};

typedef int (*rank_body)(struct rank *rank);

static void breathe(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* Until the communicator is done with what was begun; what it says then. */
static ncclResult_t settle(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    for (; state == ncclInProgress; breathe()) /* alarm() is the deadline */
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
    return state;
}

static void open_device(struct rank *r, int device)
{
    FINE(cudaSetDevice(device));
    FINE(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    FINE(cudaMalloc((void **)&r->data, COUNT * 4 * MOST_RANKS));
    FINE(cudaMalloc((void **)&r->more, COUNT * 4 * MOST_RANKS));
    FINE(cudaMallocHost((void **)&r->host, COUNT * 4 * MOST_RANKS));
}

static ncclComm_t connect_as(int rank, int nranks, const ncclUniqueId *id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    config.blocking = 0;
    BEGUN(ncclCommInitRankConfig(&comm, nranks, *id, rank, &config));
    CLAIM(comm != NULL);
    return comm;
}

/* A number of each rank and place, whose sums are rounded. */
static float number(int rank, int64_t i)
{
    return (float)((i * 7919 + rank * 104729) % 10007) * 0.001f + (float)rank;
}

static void give(struct rank *r, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        r->host[i] = number(r->rank, i);
    FINE(cudaMemcpyAsync(r->data, r->host, (size_t)count * 4, cudaMemcpyHostToDevice, r->stream));
}

static void fetch(struct rank *r, const float *from, int64_t count)
{
    FINE(cudaMemcpyAsync(r->host, from, (size_t)count * 4, cudaMemcpyDeviceToHost, r->stream));
    FINE(cudaStreamSynchronize(r->stream));
}

/* Runs `body` as `nranks` processes; the number that ended with 0. `same`: all on GPU 0. */
static int in_ranks_on(int nranks, int same, int connected, rank_body body)
{
    ncclUniqueId id;
    pid_t pids[MOST_RANKS];
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    fflush(NULL);
    for (int rank = 0; rank < nranks; rank++) {
        pids[rank] = fork();
        if (pids[rank]) continue;
        alarm(300);
        struct rank r = {.rank = rank, .nranks = nranks};
        open_device(&r, same ? 0 : rank);
        r.comm = connect_as(rank, nranks, &id);
        if (connected) OK(settle(r.comm));
        _exit(body(&r));
    }
    int fine = 0;
    for (int rank = 0; rank < nranks; rank++) {
        int status = 0;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        fine += status == 0;
    }
    return fine;
}

static int in_ranks(int nranks, rank_body body)
{
    return in_ranks_on(nranks, 0, 1, body);
}

static int end(struct rank *r)
{
    ncclResult_t result = ncclCommFinalize(r->comm);
    if (result == ncclInProgress) result = settle(r->comm);
    OK(result);
    OK(ncclCommDestroy(r->comm));
    return 0;
}

/* ---- results
 * ---------------------------------------------------------------------------------------------------- */

/* The sum in a ring's order, from the rank behind `last` round to it. */
static float ring_sum(int nranks, int64_t i, float scale)
{
    const int last = (int)(i / 512 % nranks);
    float sum = 0;
    for (int step = 1; step <= nranks; step++) {
        const float value = number((last + step) % nranks, i) * scale;
        sum = step == 1 ? value : sum + value;
    }
    return sum;
}

static int sums(struct rank *r)
{
    give(r, COUNT);
    BEGUN(ncclAllReduce(r->data, r->data, COUNT, ncclFloat, ncclSum, r->comm, r->stream));
    OK(settle(r->comm));
    fetch(r, r->data, COUNT);
    int rank_order = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        float sum = number(0, i);
        for (int rank = 1; rank < r->nranks; rank++)
            sum += number(rank, i);
        CLAIM(r->host[i] == ring_sum(r->nranks, i, 1));
        rank_order += r->host[i] == sum;
    }
    CLAIM(r->nranks <= 2 ? rank_order == COUNT : rank_order < COUNT);

    give(r, COUNT);
    BEGUN(ncclAllReduce(r->data, r->more, COUNT, ncclFloat, ncclAvg, r->comm, r->stream));
    OK(settle(r->comm));
    fetch(r, r->more, COUNT);
    for (int64_t i = 0; i < COUNT; i++)
        CLAIM(r->host[i] == ring_sum(r->nranks, i, (float)(1.0 / r->nranks)));
    return end(r);
}

static void the_sum_of_all_in_a_rings_order(void **state)
{
    (void)state;
    for (int nranks = 1; nranks <= MOST_RANKS; nranks++)
        assert_int_equal(in_ranks(nranks, sums), nranks);
}

/* The factor lies on the device and is read when the kernel runs, not when it was asked for. */
static int scaled_sum(struct rank *r)
{
    float *scale, *host_scale;
    ncclRedOp_t op;
    FINE(cudaMalloc((void **)&scale, 4));
    FINE(cudaMallocHost((void **)&host_scale, 4));
    give(r, COUNT);
    *host_scale = (float)(r->rank + 1);
    FINE(cudaMemcpyAsync(scale, host_scale, 4, cudaMemcpyHostToDevice, r->stream));
    OK(ncclRedOpCreatePreMulSum(&op, scale, ncclFloat, ncclScalarDevice, r->comm));
    BEGUN(ncclAllReduce(r->data, r->data, COUNT, ncclFloat, op, r->comm, r->stream));
    OK(ncclRedOpDestroy(op, r->comm));
    OK(settle(r->comm));
    fetch(r, r->data, COUNT);
    for (int64_t i = 0; i < COUNT; i++) {
        const int last = (int)(i / 512 % r->nranks);
        float sum = 0;
        for (int step = 1; step <= r->nranks; step++) {
            const int rank = (last + step) % r->nranks;
            const float value = number(rank, i) * (float)(rank + 1);
            sum = step == 1 ? value : sum + value;
        }
        CLAIM(r->host[i] == sum);
    }
    float half = 0.5f;
    OK(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat, ncclScalarHostImmediate, r->comm));
    half = 100; /* it was read */
    give(r, 10);
    BEGUN(ncclAllReduce(r->data, r->data, 10, ncclFloat, op, r->comm, r->stream));
    OK(settle(r->comm));
    fetch(r, r->data, 10);
    CLAIM(r->host[3] == ring_sum(r->nranks, 3, 0.5f));
    return end(r);
}

static void a_factor_for_each_rank(void **state)
{
    (void)state;
    assert_int_equal(in_ranks(3, scaled_sum), 3);
}

static int the_others(struct rank *r)
{
    const int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    give(r, COUNT);
    BEGUN(ncclBroadcast(r->data, r->data, COUNT, ncclFloat, 1, r->comm, r->stream));
    OK(settle(r->comm));
    fetch(r, r->data, COUNT);
    for (int64_t i = 0; i < COUNT; i++)
        CLAIM(r->host[i] == number(1, i));

    give(r, 1000);
    BEGUN(ncclAllGather(r->data, r->more, 1000, ncclFloat, r->comm, r->stream));
    OK(settle(r->comm));
    fetch(r, r->more, 1000 * r->nranks);
    for (int64_t i = 0; i < 1000 * r->nranks; i++)
        CLAIM(r->host[i] == number((int)(i / 1000), i % 1000));

    give(r, 600 * r->nranks);
    BEGUN(ncclReduceScatter(r->data, r->more, 600, ncclFloat, ncclSum, r->comm, r->stream));
    OK(settle(r->comm));
    fetch(r, r->more, 600);
    for (int64_t i = 0; i < 600; i++)
        CLAIM(r->host[i] == ring_sum(r->nranks, r->rank * 600 + i, 1));

    give(r, 1000);
    BEGUN(ncclReduce(r->data, r->data, 1000, ncclFloat, ncclSum, 2, r->comm, r->stream));
    OK(settle(r->comm));
    fetch(r, r->data, 1000);
    for (int64_t i = 0; i < 1000; i++)
        CLAIM(r->host[i] == (r->rank == 2 ? ring_sum(r->nranks, i, 1) : number(r->rank, i)));

    give(r, COUNT); /* round the ring, all at once: more than a letter box holds */
    OK(ncclGroupStart());
    OK(ncclSend(r->data, COUNT, ncclFloat, next, r->comm, r->stream));
    OK(ncclRecv(r->more, COUNT, ncclFloat, last, r->comm, r->stream));
    BEGUN(ncclGroupEnd());
    OK(settle(r->comm));
    fetch(r, r->more, COUNT);
    for (int64_t i = 0; i < COUNT; i++)
        CLAIM(r->host[i] == number(last, i));
    return end(r);
}

static void the_other_collectives(void **state)
{
    (void)state;
    assert_int_equal(in_ranks(3, the_others), 3);
}

/* ---- non-blocking communicators
 * --------------------------------------------------------------------------------- */

/* A call before the last one is done is refused, and the communicator is lost: src/enqueue.cc. */
static int impatient(struct rank *r)
{
    give(r, 100);
    BEGUN(ncclAllReduce(r->data, r->data, 100, ncclFloat, ncclSum, r->comm, r->stream));
    CLAIM(ncclAllReduce(r->data, r->data, 100, ncclFloat, ncclSum, r->comm, r->stream) ==
          ncclInvalidArgument);
    ncclResult_t state;
    OK(ncclCommGetAsyncError(r->comm, &state));
    CLAIM(state == ncclInvalidArgument);
    OK(ncclCommAbort(r->comm));
    return 0;
}

/* The kernel is not in the stream when the call returns: an event that is recorded then is too early. */
static int early_event(struct rank *r)
{
    cudaEvent_t event;
    cudaStream_t other;
    FINE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    FINE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    give(r, 100);
    FINE(cudaStreamSynchronize(r->stream));
    BEGUN(ncclAllReduce(r->data, r->data, 100, ncclFloat, ncclSum, r->comm, r->stream));
    FINE(cudaEventRecord(event, r->stream));
    FINE(cudaStreamWaitEvent(other, event, 0));
    FINE(cudaMemcpyAsync(r->host, r->data, 400, cudaMemcpyDeviceToHost, other));
    FINE(cudaStreamSynchronize(other));
    CLAIM(r->host[7] == number(r->rank, 7)); /* the old numbers */
    OK(settle(r->comm));
    FINE(cudaStreamSynchronize(r->stream));
    return end(r);
}

static void who_does_not_wait_is_found_out(void **state)
{
    (void)state;
    setenv("FAKE_NCCL_LATER_MS", "100000", 1); /* not by itself, however slow this machine is */
    assert_int_equal(in_ranks(2, impatient), 2);
    assert_int_equal(in_ranks(2, early_event), 2);
    unsetenv("FAKE_NCCL_LATER_MS");
}

/* A rank that never asks gets its work done all the same: the other one depends on it, and says when it has
 * the sum. */
static atomic_int *is_summed; /* shared by the ranks */

static int silent(struct rank *r)
{
    give(r, 100);
    BEGUN(ncclAllReduce(r->data, r->data, 100, ncclFloat, ncclSum, r->comm, r->stream));
    if (r->rank == 0) OK(settle(r->comm));
    while (r->rank == 1 && !*is_summed) /* alarm() is the deadline */
        breathe();
    fetch(r, r->data, 100);
    CLAIM(r->host[5] == ring_sum(2, 5, 1));
    *is_summed = 1;
    OK(settle(r->comm));
    return end(r);
}

static void work_is_done_unasked(void **state)
{
    (void)state;
    is_summed = mmap(NULL, sizeof *is_summed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(is_summed != MAP_FAILED);
    assert_int_equal(in_ranks(2, silent), 2);
    munmap(is_summed, sizeof *is_summed);
}

static int recorded(struct rank *r)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    FINE(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    BEGUN(ncclAllReduce(r->data, r->data, COUNT, ncclFloat, ncclSum, r->comm, r->stream));
    OK(settle(r->comm));
    FINE(cudaStreamEndCapture(r->stream, &graph));
    FINE(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        give(r, COUNT);
        FINE(cudaGraphLaunch(exec, r->stream));
        fetch(r, r->data, COUNT);
        for (int64_t e = 0; e < COUNT; e += 97)
            CLAIM(r->host[e] == ring_sum(r->nranks, e, 1));
    }
    FINE(cudaGraphExecDestroy(exec));
    FINE(cudaGraphDestroy(graph));
    return end(r);
}

static void collectives_can_be_recorded(void **state)
{
    (void)state;
    assert_int_equal(in_ranks(3, recorded), 3);
}

/* ---- what goes wrong
 * -------------------------------------------------------------------------------------------- */

static void *abort_it(void *user)
{
    return (void *)(intptr_t)ncclCommAbort(user);
}

/* ncclCommAbort ends the kernels at once, and returns when no graph could start one again. */
static int holds_on(struct rank *r)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    pthread_t thread;
    void *result;
    FINE(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    BEGUN(ncclAllReduce(r->data, r->data, COUNT, ncclFloat, ncclSum, r->comm, r->stream));
    OK(settle(r->comm));
    FINE(cudaStreamEndCapture(r->stream, &graph));
    FINE(cudaGraphInstantiate(&exec, graph, 0));
    FINE(cudaGraphDestroy(graph));
    if (r->rank == 1) raise(SIGKILL);
    FINE(cudaGraphLaunch(exec, r->stream));
    CLAIM(pthread_create(&thread, NULL, abort_it, r->comm) == 0);
    FINE(cudaStreamSynchronize(r->stream));
    const struct timespec wait = {.tv_nsec = 100000000};
    nanosleep(&wait, NULL);
    CLAIM(pthread_tryjoin_np(thread, &result) != 0);
    FINE(cudaGraphExecDestroy(exec));
    CLAIM(pthread_join(thread, &result) == 0);
    OK((ncclResult_t)(intptr_t)result);
    return 0;
}

static void a_graph_holds_its_communicator(void **state)
{
    (void)state;
    assert_int_equal(in_ranks(2, holds_on), 1);
}

static int dies(struct rank *r)
{
    const int has_notice = getenv("FAKE_NCCL_NOTICE") != NULL;
    ncclResult_t state = settle(r->comm);
    if (r->rank == 1) raise(SIGKILL);
    if (has_notice && state == ncclRemoteError) { /* it was that quick */
        OK(ncclCommAbort(r->comm));
        return 0;
    }
    OK(state);
    give(r, COUNT);
    BEGUN(ncclAllReduce(r->data, r->data, COUNT, ncclFloat, ncclSum, r->comm, r->stream));
    state = settle(r->comm);
    if (has_notice) {
        for (; state == ncclSuccess; breathe()) /* alarm() is the deadline */
            OK(ncclCommGetAsyncError(r->comm, &state));
        CLAIM(state == ncclRemoteError);
    } else { /* nobody says anything, and the stream stands still */
        const struct timespec wait = {.tv_nsec = 200000000};
        nanosleep(&wait, NULL);
        OK(ncclCommGetAsyncError(r->comm, &state));
        CLAIM(state == ncclSuccess);
    }
    CLAIM(cudaStreamQuery(r->stream) == cudaErrorNotReady);
    OK(ncclCommAbort(r->comm));
    FINE(cudaStreamSynchronize(r->stream));
    CLAIM(ncclCommAbort(r->comm) != ncclSuccess); /* it is gone */
    return 0;
}

static void a_dead_peer_is_waited_for_until_abort(void **state)
{
    (void)state;
    assert_int_equal(in_ranks_on(3, 0, 0, dies), 2);
    setenv("FAKE_NCCL_NOTICE", "1", 1);
    assert_int_equal(in_ranks_on(3, 0, 0, dies), 2);
    unsetenv("FAKE_NCCL_NOTICE");
}

static int never_comes(struct rank *r)
{
    if (r->rank == 0) { /* rank 1 is there, and goes at once: seen all the same; so wait for a third */
        ncclUniqueId id;
        OK(ncclGetUniqueId(&id));
        ncclComm_t lonely = connect_as(0, 2, &id);
        ncclResult_t state;
        for (int i = 0; i < 50; i++, breathe())
            OK(ncclCommGetAsyncError(lonely, &state));
        CLAIM(state == ncclInProgress);
        OK(ncclCommAbort(lonely));
    }
    return end(r);
}

static void a_rank_that_never_comes(void **state)
{
    (void)state;
    assert_int_equal(in_ranks(2, never_comes), 2);
}

static int is_duplicate(struct rank *r)
{
    CLAIM(settle(r->comm) == ncclInvalidUsage);
    CLAIM(strstr(ncclGetLastError(r->comm), "Duplicate GPU detected") != NULL);
    OK(ncclCommAbort(r->comm));
    return 0;
}

static void two_ranks_on_one_gpu(void **state)
{
    (void)state;
    assert_int_equal(in_ranks_on(2, 1, 0, is_duplicate), 2);
}

static int wrong_arguments(struct rank *r)
{
    float stack[4];
    CLAIM(ncclAllReduce(stack, r->data, 4, ncclFloat, ncclSum, r->comm, r->stream) == ncclInvalidArgument);
    CLAIM(ncclAllReduce(r->data, r->data, 4, ncclFloat, ncclSum, r->comm, r->stream) == ncclInvalidArgument);
    OK(ncclCommAbort(r->comm)); /* the first error stays */
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    ncclConfig_t config = {0};
    OK(ncclGetUniqueId(&id));
    CLAIM(ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclInvalidArgument);
    CLAIM(ncclCommInitRank(&comm, 2, id, 2) == ncclInvalidArgument);
    OK(ncclCommInitRank(&comm, 1, id, 0)); /* a blocking one */
    give(r, 10);
    OK(ncclAllReduce(r->data, r->data, 10, ncclFloat, ncclSum, comm, r->stream));
    fetch(r, r->data, 10);
    CLAIM(r->host[9] == number(r->rank, 9));
    OK(ncclCommDestroy(comm));
    return 0;
}

static void arguments_are_checked(void **state)
{
    (void)state;
    assert_int_equal(in_ranks(2, wrong_arguments), 2);
}

int main(void)
{
    setenv("FAKE_GPUS", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sum_of_all_in_a_rings_order),
        cmocka_unit_test(a_factor_for_each_rank),
        cmocka_unit_test(the_other_collectives),
        cmocka_unit_test(who_does_not_wait_is_found_out),
        cmocka_unit_test(work_is_done_unasked),
        cmocka_unit_test(collectives_can_be_recorded),
        cmocka_unit_test(a_graph_holds_its_communicator),
        cmocka_unit_test(a_dead_peer_is_waited_for_until_abort),
        cmocka_unit_test(a_rank_that_never_comes),
        cmocka_unit_test(two_ranks_on_one_gpu),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
