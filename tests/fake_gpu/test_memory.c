/* Memory of the simulated GPU: the host cannot touch it, bounds are kept, what is freed stays away, and
 * another process sees what was exported. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "tests/fake_gpu/rig.h"

enum { BYTES = 5000 };

static int touch(void *user)
{
    volatile char *x;
    cudaStream_t a;
    signal(SIGSEGV, SIG_DFL);
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaMalloc((void **)&x, BYTES));
    FINE(cudaMemsetAsync((void *)x, 0, BYTES, a));
    FINE(cudaStreamSynchronize(a));
    if (*(int *)user) x[3] = 1;
    return x[BYTES - 1];
}

static void test_the_host_cannot_touch_it(void **state)
{
    (void)state;
    for (int write = 0; write < 2; write++)
        assert_int_equal(in_child(touch, &write), 128 + SIGSEGV);
}

static int bounds(void *user)
{
    (void)user;
    cudaStream_t a;
    char *x, *y, *host;
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaMalloc((void **)&x, BYTES));
    FINE(cudaMalloc((void **)&y, BYTES));
    FINE(cudaMallocHost((void **)&host, BYTES));
    CLAIM((uintptr_t)x % 256 == 0);
    FINE(cudaMemcpyAsync(host, x, BYTES, cudaMemcpyDeviceToHost, a));
    FINE(cudaStreamSynchronize(a));
    CLAIM(host[0] == -1 && host[BYTES - 1] == -1); /* fresh memory is garbage */
    CLAIM(cudaMemcpyAsync(host, x + 1, BYTES, cudaMemcpyDeviceToHost, a) == cudaErrorInvalidValue);
    CLAIM(cudaMemcpyAsync(x, host + 1, BYTES, cudaMemcpyHostToDevice, a) == cudaErrorInvalidValue);
    CLAIM(cudaMemcpyAsync(x, y, BYTES, cudaMemcpyHostToDevice, a) == cudaErrorInvalidValue);
    CLAIM(cudaMemsetAsync(x + 1, 0, BYTES, a) == cudaErrorInvalidValue);
    CLAIM(cudaMemcpyAsync(x, x + 8, 16, cudaMemcpyDeviceToDevice, a) == cudaErrorInvalidValue);
    FINE(cudaFree(x));
    CLAIM(cudaMemsetAsync(x, 0, BYTES, a) == cudaErrorInvalidValue);
    CLAIM(cudaFree(x) == cudaErrorInvalidValue);
    CLAIM(cudaFree(y + 256) == cudaErrorInvalidValue);
    struct cudaPointerAttributes is;
    FINE(cudaPointerGetAttributes(&is, y + 10));
    CLAIM(is.type == cudaMemoryTypeDevice);
    FINE(cudaPointerGetAttributes(&is, x));
    CLAIM(is.type == cudaMemoryTypeUnregistered);
    FINE(cudaPointerGetAttributes(&is, host));
    CLAIM(is.type == cudaMemoryTypeHost);
    return 0;
}

static void test_bounds_and_freed_memory(void **state)
{
    (void)state;
    assert_int_equal(in_child(bounds, NULL), 0);
}

static int pinning(void *user)
{
    (void)user;
    cudaStream_t a;
    char *x;
    char *pages = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CLAIM(pages != MAP_FAILED);
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaMalloc((void **)&x, BYTES));
    CLAIM(cudaMemcpyAsync(x, pages, 100, cudaMemcpyHostToDevice, a) == cudaErrorInvalidValue);
    FINE(cudaHostRegister(pages, 5000, cudaHostRegisterPortable));
    FINE(cudaMemcpyAsync(x, pages, 100, cudaMemcpyHostToDevice, a));
    CLAIM(cudaHostRegister(pages + 5000, 100, 0) == cudaErrorHostMemoryAlreadyRegistered); /* shares a page */
    FINE(cudaHostRegister(pages + 2 * 4096, 4096, 0));
    CLAIM(cudaMemcpyAsync(x, pages + 4096, 5000, cudaMemcpyHostToDevice, a) == cudaErrorInvalidValue);
    CLAIM(cudaHostUnregister(pages + 1) == cudaErrorHostMemoryNotRegistered);
    FINE(cudaHostUnregister(pages));
    CLAIM(cudaMemcpyAsync(x, pages, 100, cudaMemcpyHostToDevice, a) == cudaErrorInvalidValue);
    CLAIM(munmap(pages + 3 * 4096, 4096) == 0);
    CLAIM(cudaHostRegister(pages + 3 * 4096, 4096, 0) == cudaErrorInvalidValue);
    return 0;
}

static void test_pages_are_pinned_once(void **state)
{
    (void)state;
    assert_int_equal(in_child(pinning, NULL), 0);
}

static int remapping(void *user)
{
    (void)user;
    cudaStream_t a;
    char *x;
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int fd = memfd_create("other", 0);
    CLAIM(pages != MAP_FAILED && fd >= 0 && ftruncate(fd, 4096) == 0);
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaMalloc((void **)&x, BYTES));
    FINE(cudaHostRegister(pages, 3 * 4096, 0));
    CLAIM(mprotect(pages + 4096, 4096, PROT_READ) == 0); /* the same pages */
    FINE(cudaHostUnregister(pages));
    FINE(cudaHostRegister(pages, 3 * 4096, 0));
    CLAIM(mmap(pages, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == pages);
    FINE(cudaMemcpyAsync(x, pages, 100, cudaMemcpyHostToDevice, a));
    CLAIM(cudaStreamSynchronize(a) == cudaErrorIllegalAddress);
    return 0;
}

static void test_pinned_pages_stay(void **state)
{
    (void)state;
    assert_int_equal(in_child(remapping, NULL), 0);
}

static int out_of_memory(void *user)
{
    (void)user;
    char *x, *y;
    size_t free_bytes, total;
    FINE(cudaMalloc((void **)&x, 8000));
    CLAIM(cudaMalloc((void **)&y, 8000) == cudaErrorMemoryAllocation);
    CLAIM(cudaGetLastError() == cudaErrorMemoryAllocation);
    FINE(cudaFree(x));
    FINE(cudaMalloc((void **)&y, 8000));
    FINE(cudaMemGetInfo(&free_bytes, &total));
    CLAIM(free_bytes == 10000 - 8192 && total > 10000);
    return 0;
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    setenv("FAKE_GPU_OOM_AFTER", "10000", 1);
    assert_int_equal(in_child(out_of_memory, NULL), 0);
    unsetenv("FAKE_GPU_OOM_AFTER");
}

/* ---- between processes --------------------------------------------------------------------------------- */

struct channel {
    int down[2], up[2];
};

/* Opens what it is told, checks that it holds 5, writes 6, says so. */
static int importer(void *user)
{
    const struct channel *pipes = user;
    cudaIpcMemHandle_t handle;
    cudaStream_t a;
    char *x, *again, *host;
    CLAIM(read(pipes->down[0], &handle, sizeof handle) == sizeof handle);
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaMallocHost((void **)&host, BYTES));
    FINE(cudaIpcOpenMemHandle((void **)&x, handle, cudaIpcMemLazyEnablePeerAccess));
    FINE(cudaIpcOpenMemHandle((void **)&again, handle, cudaIpcMemLazyEnablePeerAccess));
    CLAIM(x == again);
    FINE(cudaMemcpyAsync(host, x, BYTES, cudaMemcpyDeviceToHost, a));
    FINE(cudaStreamSynchronize(a));
    CLAIM(host[0] == 5 && host[BYTES - 1] == 5);
    CLAIM(cudaMemsetAsync(x, 6, BYTES + 1, a) == cudaErrorInvalidValue);
    FINE(cudaMemsetAsync(x, 6, BYTES, a));
    FINE(cudaStreamSynchronize(a));
    CLAIM(cudaFree(x) == cudaErrorInvalidValue);
    FINE(cudaIpcCloseMemHandle(x));
    FINE(cudaMemsetAsync(x, 6, BYTES, a)); /* opened twice */
    FINE(cudaIpcCloseMemHandle(x));
    CLAIM(cudaMemsetAsync(x, 6, BYTES, a) == cudaErrorInvalidValue);
    CLAIM(write(pipes->up[1], "x", 1) == 1);
    return 0;
}

static int exporter(void *user)
{
    const struct channel *pipes = user;
    cudaIpcMemHandle_t handle;
    cudaStream_t a;
    char *x, *host, *mine;
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaMalloc((void **)&x, BYTES));
    FINE(cudaMallocHost((void **)&host, BYTES));
    FINE(cudaMemsetAsync(x, 5, BYTES, a));
    FINE(cudaStreamSynchronize(a));
    CLAIM(cudaIpcGetMemHandle(&handle, x + 256) == cudaErrorInvalidValue);
    FINE(cudaIpcGetMemHandle(&handle, x));
    CLAIM(cudaIpcOpenMemHandle((void **)&mine, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
    CLAIM(write(pipes->down[1], &handle, sizeof handle) == sizeof handle);
    char word;
    CLAIM(read(pipes->up[0], &word, 1) == 1);
    FINE(cudaMemcpyAsync(host, x, BYTES, cudaMemcpyDeviceToHost, a));
    FINE(cudaStreamSynchronize(a));
    return host[0] == 6 && host[BYTES - 1] == 6 ? 0 : 7;
}

static void test_two_processes_share(void **state)
{
    (void)state;
    struct channel pipes;
    assert_int_equal(pipe(pipes.down), 0);
    assert_int_equal(pipe(pipes.up), 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) _exit(in_child(importer, &pipes));
    assert_int_equal(in_child(exporter, &pipes), 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- who uses a GPU --------------------------------------------------------------------------------------
 */

struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device_out);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes);

static unsigned count_users(struct process *users, unsigned room)
{
    struct cudaDeviceProp p;
    char uuid[48];
    void *device;
    FINE(cudaGetDeviceProperties(&p, 0));
    const unsigned char *u = (const unsigned char *)p.uuid.bytes;
    snprintf(uuid, sizeof uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    CLAIM(nvmlInit_v2() == 0 && nvmlDeviceGetHandleByUUID(uuid, &device) == 0);
    unsigned n = room;
    CLAIM(nvmlDeviceGetComputeRunningProcesses_v3(device, &n, users) == (n > room ? 7 : 0));
    return n;
}

static int one_user(void *user)
{
    const struct channel *pipes = user;
    char *x;
    FINE(cudaMalloc((void **)&x, 1 << 20));
    CLAIM(write(pipes->up[1], "x", 1) == 1);
    return read(pipes->down[0], &(char){0}, 1) == 0 ? 0 : 7; /* until the other is done */
}

static int look_for_users(void *user)
{
    const struct channel *pipes = user;
    struct process users[4];
    CLAIM(close(pipes->down[0]) == 0);
    CLAIM(read(pipes->up[0], users, 1) == 1);
    CLAIM(count_users(users, 4) == 1 && users[0].bytes == 1 << 20); /* looking is not using */
    CLAIM(count_users(users, 0) == 1);
    FINE(cudaSetDevice(0));
    CLAIM(count_users(users, 4) == 2);
    return 0;
}

static void test_users_of_a_gpu_are_seen(void **state)
{
    (void)state;
    struct channel pipes;
    assert_int_equal(pipe(pipes.down), 0);
    assert_int_equal(pipe(pipes.up), 0);
    char name[32];
    snprintf(name, sizeof name, "test.%d", (int)getpid()); /* nobody else's */
    setenv("FAKE_GPU_MACHINE", name, 1);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        close(pipes.down[1]);
        _exit(one_user(&pipes));
    }
    assert_int_equal(in_child(look_for_users, &pipes), 0);
    close(pipes.down[1]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    unsetenv("FAKE_GPU_MACHINE");
}

static int refused(void *user)
{
    (void)user;
    cudaIpcMemHandle_t handle;
    char *x;
    FINE(cudaMalloc((void **)&x, BYTES));
    return cudaIpcGetMemHandle(&handle, x) == cudaErrorNotSupported ? 0 : 7;
}

static int open_of_the_dead(void *user)
{
    const struct channel *pipes = user;
    cudaIpcMemHandle_t handle;
    char *x;
    CLAIM(read(pipes->down[0], &handle, sizeof handle) == sizeof handle);
    CLAIM(cudaIpcOpenMemHandle((void **)&x, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
    return 0;
}

static int export_and_die(void *user)
{
    const struct channel *pipes = user;
    cudaIpcMemHandle_t handle;
    char *x;
    FINE(cudaMalloc((void **)&x, BYTES));
    FINE(cudaIpcGetMemHandle(&handle, x));
    return write(pipes->down[1], &handle, sizeof handle) == sizeof handle ? 0 : 7;
}

static void test_sharing_is_refused(void **state)
{
    (void)state;
    setenv("FAKE_GPU_NO_IPC", "1", 1);
    assert_int_equal(in_child(refused, NULL), 0);
    unsetenv("FAKE_GPU_NO_IPC");
    struct channel pipes;
    assert_int_equal(pipe(pipes.down), 0);
    assert_int_equal(in_child(export_and_die, &pipes), 0);
    assert_int_equal(in_child(open_of_the_dead, &pipes), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_host_cannot_touch_it), cmocka_unit_test(test_bounds_and_freed_memory),
        cmocka_unit_test(test_pages_are_pinned_once),    cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_pinned_pages_stay),        cmocka_unit_test(test_two_processes_share),
        cmocka_unit_test(test_users_of_a_gpu_are_seen),  cmocka_unit_test(test_sharing_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
