/* gpu_rig.h - tests of what hangs at en_device.gpu: the same binaries on the simulated GPU (tests/fake_gpu)
 * and on a real one.
 *
 * Plugins come from $ENTRAIN_PLUGIN_PATH, else from the argument that ctest gives, else from the build
 * folder. Without a GPU a test is skipped (77) with the reason; a library that exists and does not load is a
 * failure. */
#ifndef TESTS_OPS_GPU_RIG_H
#define TESTS_OPS_GPU_RIG_H

#include <stdint.h>

#include "ops/device.h"

typedef struct gpu_rig {
    const char *plugins;
    eni_device device;
    const en_device *ops; /* device.ops */
    const en_gpu *gpu;
    en_ctx *ctx;
} gpu_rig;

/* For main: EN_OK, or the exit code that main returns (77: skipped). Opens nothing, and leaves CUDA untouched
 * in this process, so that it may fork. *ngpus_out: how many there are. */
int gpu_rig_find(gpu_rig *rig, int argc, char **argv, int *ngpus_out);

/* Opens GPU `index`; fails the running test, or in a child process ends it with code 1. */
void gpu_rig_open(gpu_rig *rig, int index, uint32_t flags);
void gpu_rig_close(gpu_rig *rig);

/* 1 on the simulated GPU: its failures can be switched on by the environment (tests/fake_gpu/README.md). */
int gpu_is_simulated(const gpu_rig *rig);

/* Device memory with these floats, and back: blocking. */
float *gpu_put(gpu_rig *rig, const float *values, uint64_t count);
void gpu_get(gpu_rig *rig, float *values, const float *memory, uint64_t count);

/* Polls until the event is reached; fails after a minute. */
void gpu_await(gpu_rig *rig, en_event *event);

/* Values in (-1, 1) that depend on `seed` alone. */
void gpu_fill(float *values, uint64_t count, uint64_t seed);

/* Pages of host memory, zeroed; freed by munmap of the same bytes. */
void *gpu_pages(uint64_t bytes);

/* Runs body(user, rank) in `n` processes of their own, and waits for them. 1 if all returned 0; those that
 * are not back after `seconds` are killed. */
int gpu_processes(int n, int seconds, int (*body)(void *user, int rank), void *user);

/* The last error or warning that was logged since gpu_rig_find, for assertions. */
const char *gpu_last_error(void);

#define GPU_OK(expr) gpu_check((expr), #expr, __FILE__, __LINE__)
void gpu_check(en_status status, const char *what, const char *file, int line);
void gpu_require(int is_true, const char *what, const char *file, int line);
/* assert_true that also works in a child process. */
#define GPU_REQUIRE(expr) gpu_require(!!(expr), #expr, __FILE__, __LINE__)

#endif
