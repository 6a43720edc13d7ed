/* The simulated GPU finds what is not ordered: a missing wait shows as other bits for some seed, and a host
 * that does not wait sees old ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "tests/fake_gpu/rig.h"

enum { SEEDS = 24, BYTES = 5000 };

struct scene {
    int wait;   /* the second stream waits for the first */
    int before; /* the first stream's next write waits for the second stream's read */
};

/* Stream a sets x to 1, stream b copies x to the host, a sets x to 2. */
static int hand_over(void *user)
{
    const struct scene *scene = user;
    cudaStream_t a, b;
    cudaEvent_t written, read;
    char *x, *host;
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    FINE(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
    FINE(cudaEventCreateWithFlags(&read, cudaEventDisableTiming));
    FINE(cudaMalloc((void **)&x, BYTES));
    FINE(cudaMallocHost((void **)&host, BYTES));
    memset(host, 0, BYTES);

    FINE(cudaMemsetAsync(x, 1, BYTES, a));
    FINE(cudaEventRecord(written, a));
    if (scene->wait) FINE(cudaStreamWaitEvent(b, written, 0));
    FINE(cudaMemcpyAsync(host, x, BYTES, cudaMemcpyDeviceToHost, b));
    FINE(cudaEventRecord(read, b));
    if (scene->before) FINE(cudaStreamWaitEvent(a, read, 0));
    FINE(cudaMemsetAsync(x, 2, BYTES, a));
    CLAIM(host[0] == 0); /* nothing was done yet */
    FINE(cudaStreamSynchronize(b));
    const int is_right = host[0] == 1 && host[BYTES - 1] == 1;
    FINE(cudaDeviceSynchronize());
    return is_right ? 0 : 7;
}

static void test_ordered_work_is_right_for_every_seed(void **state)
{
    (void)state;
    struct scene scene = {1, 1};
    assert_int_equal(count_fine(SEEDS, hand_over, &scene), SEEDS);
}

static void test_a_missing_wait_shows(void **state)
{
    (void)state;
    struct scene no_wait = {0, 1}, no_before = {1, 0};
    assert_true(count_fine(SEEDS, hand_over, &no_wait) < SEEDS);
    const int fine = count_fine(SEEDS, hand_over, &no_before);
    assert_true(fine < SEEDS);
    assert_true(fine > 0); /* it is a race, not a rule */
}

/* The host writes into the source of a copy that was not waited for. */
static int write_too_early(void *user)
{
    const int wait = *(int *)user;
    cudaStream_t a;
    char *x, *host, *back;
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaMalloc((void **)&x, BYTES));
    FINE(cudaMallocHost((void **)&host, BYTES));
    FINE(cudaMallocHost((void **)&back, BYTES));
    memset(host, 1, BYTES);
    FINE(cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, a));
    if (wait) FINE(cudaStreamSynchronize(a));
    memset(host, 2, BYTES);
    FINE(cudaMemcpyAsync(back, x, BYTES, cudaMemcpyDeviceToHost, a));
    FINE(cudaStreamSynchronize(a));
    return back[0] == 1 ? 0 : 7;
}

static void test_a_copy_reads_its_source_late(void **state)
{
    (void)state;
    int wait = 1, no_wait = 0;
    assert_int_equal(in_child(write_too_early, &wait), 0);
    assert_int_equal(in_child(write_too_early, &no_wait), 7);
}

/* A host that only asks gets there, and not at once. */
static int ask(void *user)
{
    (void)user;
    cudaStream_t a;
    cudaEvent_t end;
    char *x;
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaEventCreateWithFlags(&end, cudaEventDefault));
    FINE(cudaMalloc((void **)&x, BYTES));
    CLAIM(cudaEventQuery(end) == cudaSuccess); /* never recorded */
    for (int i = 0; i < 50; i++)
        FINE(cudaMemsetAsync(x, i, BYTES, a));
    FINE(cudaEventRecord(end, a));
    int asked = 0;
    for (cudaError_t e; (e = cudaEventQuery(end)) != cudaSuccess; asked++)
        CLAIM(e == cudaErrorNotReady && asked < 1000);
    CLAIM(asked > 3);
    CLAIM(cudaGetLastError() == cudaErrorNotReady); /* it is found later, until somebody has looked */
    FINE(cudaGetLastError());
    return 0;
}

static void test_asking_makes_work_go_on(void **state)
{
    (void)state;
    assert_int_equal(in_child(ask, NULL), 0);
}

/* Work goes on while the host does something else: here it waits for a host function's word. */
static void say(void *user)
{
    __atomic_store_n((int *)user, 1, __ATOMIC_RELEASE);
}

static int pause_without_calls(void *user)
{
    (void)user;
    static int said;
    unsetenv("FAKE_GPU_PAUSE_MS");
    cudaStream_t a;
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaLaunchHostFunc(a, say, &said));
    while (!__atomic_load_n(&said, __ATOMIC_ACQUIRE))
        usleep(1000); /* alarm() is the deadline */
    return 0;
}

static void test_work_goes_on_without_calls(void **state)
{
    (void)state;
    assert_int_equal(in_child(pause_without_calls, NULL), 0);
}

static void call_within(void *user)
{
    *(cudaError_t *)user = cudaStreamQuery(NULL);
}

static int misuse(void *user)
{
    (void)user;
    cudaStream_t a, gone;
    cudaEvent_t e;
    cudaError_t within = cudaSuccess;
    char *x, unpinned[16];
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
    FINE(cudaStreamDestroy(gone));
    FINE(cudaMalloc((void **)&x, BYTES));
    CLAIM(cudaMemsetAsync(x, 0, BYTES, gone) == cudaErrorInvalidResourceHandle);
    CLAIM(cudaMemsetAsync(x, 0, BYTES, NULL) == cudaErrorInvalidResourceHandle); /* the default stream */
    CLAIM(cudaMemcpyAsync(x, unpinned, sizeof unpinned, cudaMemcpyHostToDevice, a) == cudaErrorInvalidValue);
    CLAIM(cudaGetLastError() == cudaErrorInvalidValue);
    CLAIM(cudaGetLastError() == cudaSuccess);
    FINE(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    FINE(cudaEventRecord(e, a));
    FINE(cudaStreamSynchronize(a));
    float ms;
    CLAIM(cudaEventElapsedTime(&ms, e, e) == cudaErrorInvalidResourceHandle);
    FINE(cudaLaunchHostFunc(a, call_within, &within));
    FINE(cudaStreamSynchronize(a));
    CLAIM(within == cudaErrorNotPermitted);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        _exit(cudaStreamSynchronize(a) == cudaErrorInitializationError ? 0 : 1);
    }
    int status;
    CLAIM(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}

static void test_wrong_use_is_refused(void **state)
{
    (void)state;
    assert_int_equal(in_child(misuse, NULL), 0);
}

/* ---- the switches that make it fail -------------------------------------------------------------------- */

static int no_driver(void *user)
{
    (void)user;
    int n = 7;
    CLAIM(cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver && n == 0);
    FINE(cudaDriverGetVersion(&n));
    return n == 0 ? 0 : 2;
}

static int many_devices(void *user)
{
    (void)user;
    int n = 0;
    FINE(cudaGetDeviceCount(&n));
    CLAIM(n == 2);
    struct cudaDeviceProp first, second;
    FINE(cudaGetDeviceProperties(&first, 0));
    FINE(cudaGetDeviceProperties(&second, 1));
    CLAIM(memcmp(&first.uuid, &second.uuid, sizeof first.uuid) != 0);
    CLAIM(cudaSetDevice(2) == cudaErrorInvalidDevice);
    char bus[16];
    FINE(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    CLAIM(strcmp(bus, "0000:03:00.0") == 0); /* CUDA_VISIBLE_DEVICES=2,0 of 3 */
    cudaStream_t of_0;
    cudaEvent_t of_1;
    FINE(cudaStreamCreateWithFlags(&of_0, cudaStreamNonBlocking));
    FINE(cudaSetDevice(1));
    FINE(cudaEventCreateWithFlags(&of_1, cudaEventDisableTiming));
    CLAIM(cudaEventRecord(of_1, of_0) == cudaErrorInvalidResourceHandle);
    return 0;
}

static void test_switches_for_devices(void **state)
{
    (void)state;
    setenv("FAKE_GPU_DRIVER", "none", 1);
    assert_int_equal(in_child(no_driver, NULL), 0);
    setenv("FAKE_GPU_DRIVER", "old", 1);
    assert_int_equal(in_child(no_driver, NULL), 2);
    unsetenv("FAKE_GPU_DRIVER");
    setenv("FAKE_GPUS", "3", 1);
    setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
    assert_int_equal(in_child(many_devices, NULL), 0);
    unsetenv("FAKE_GPUS");
    unsetenv("CUDA_VISIBLE_DEVICES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ordered_work_is_right_for_every_seed),
        cmocka_unit_test(test_a_missing_wait_shows),
        cmocka_unit_test(test_a_copy_reads_its_source_late),
        cmocka_unit_test(test_asking_makes_work_go_on),
        cmocka_unit_test(test_work_goes_on_without_calls),
        cmocka_unit_test(test_wrong_use_is_refused),
        cmocka_unit_test(test_switches_for_devices),
    };
    setenv("FAKE_GPU_PAUSE_MS", "30000", 1); /* it must not go on by itself, even on a slow machine */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
