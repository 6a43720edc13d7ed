#include "tests/ops/gpu_rig.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"

enum { SKIPPED = 77 };

static char last_error[1024];
static int is_child;

static void keep_error(void *user, int level, const char *subsystem, const char *text)
{
    (void)user;
    if (level <= ENI_LOG_WARN) snprintf(last_error, sizeof last_error, "%s: %s", subsystem, text);
}

const char *gpu_last_error(void)
{
    return last_error;
}

void gpu_require(int is_true, const char *what, const char *file, int line)
{
    if (is_true) return;
    if (is_child) {
        fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", file, line, what, last_error);
        _exit(1);
    }
    print_error("last error: %s\n", last_error);
    _assert_true(0, what, file, line);
}

void gpu_check(en_status status, const char *what, const char *file, int line)
{
    if (status != EN_OK) fprintf(stderr, "%s: %s\n", what, en_status_str(status));
    gpu_require(status == EN_OK, what, file, line);
}

int gpu_processes(int n, int seconds, int (*body)(void *user, int rank), void *user)
{
    pid_t children[64];
    int is_good = 1;
    for (int rank = 0; rank < n; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            is_child = 1;
            const int code = body(user, rank);
            fflush(NULL);
            _exit(code);
        }
    }
    const int64_t deadline = eni_now_ns() + seconds * ENI_SECOND;
    for (int rank = 0; rank < n; rank++) {
        int status = 0;
        pid_t ended = 0;
        while ((ended = waitpid(children[rank], &status, WNOHANG)) == 0 && eni_now_ns() < deadline)
            eni_sleep_until(eni_now_ns() + ENI_MILLI);
        if (ended == 0) {
            fprintf(stderr, "process %d of %d is not back after %d s\n", rank, n, seconds);
            kill(children[rank], SIGKILL);
            waitpid(children[rank], &status, 0);
        }
        is_good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return is_good;
}

typedef struct question {
    const char *plugins;
    int *ngpus; /* shared memory; -1: the library does not load */
} question;

static int count_gpus(void *user, int rank)
{
    const question *asked = user;
    const en_device *table;
    int32_t n = 0;
    (void)rank;
    if (eni_device_load("cuda", asked->plugins, &table) != EN_OK) {
        fprintf(stderr, "%s\n", last_error);
        *asked->ngpus = -1;
        return 0;
    }
    if (table->gpu->count(eni_device_host(), &n) != EN_OK) fprintf(stderr, "skipped: %s\n", last_error);
    *asked->ngpus = n;
    return 0;
}

int gpu_rig_find(gpu_rig *rig, int argc, char **argv, int *ngpus_out)
{
    char path[4096];
    const char *given = getenv("ENTRAIN_PLUGIN_PATH");
    *rig = (gpu_rig){.plugins = given && *given ? given : argc > 1 ? argv[1] : EN_BUILD_DIR "/plugins"};
    eni_log_set_sink(keep_error, NULL);
    snprintf(path, sizeof path, "%s/device_cuda.so", rig->plugins);
    if (access(path, F_OK) != 0) {
        fprintf(stderr, "skipped: there is no %s\n", path);
        return SKIPPED;
    }
    int *ngpus = mmap(NULL, sizeof *ngpus, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    question asked = {rig->plugins, ngpus};
    const int is_answered = gpu_processes(1, 60, count_gpus, &asked);
    const int n = *ngpus;
    munmap(ngpus, sizeof *ngpus);
    if (!is_answered || n < 0) return 1;
    *ngpus_out = n;
    return n > 0 ? 0 : SKIPPED;
}

void gpu_rig_open(gpu_rig *rig, int index, uint32_t flags)
{
    const eni_device_options options = {
        .plugin_dir = rig->plugins, .threads = 1, .flags = flags, .index = index};
    GPU_OK(eni_device_open_with("cuda", &options, &rig->device));
    rig->ops = rig->device.ops;
    rig->gpu = rig->ops->gpu;
    rig->ctx = rig->device.ctx;
}

void gpu_rig_close(gpu_rig *rig)
{
    eni_device_close(&rig->device);
}

int gpu_is_simulated(const gpu_rig *rig)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/libfake_gpu.so", rig->plugins);
    return access(path, F_OK) == 0;
}

float *gpu_put(gpu_rig *rig, const float *values, uint64_t count)
{
    void *memory = NULL;
    GPU_OK(rig->ops->alloc(rig->ctx, count * sizeof *values, &memory));
    GPU_OK(rig->ops->copy(rig->ctx, memory, values, count * sizeof *values, EN_COPY_IN));
    GPU_OK(rig->ops->sync(rig->ctx));
    return memory;
}

void gpu_get(gpu_rig *rig, float *values, const float *memory, uint64_t count)
{
    GPU_OK(rig->ops->sync(
        rig->ctx)); /* the copy is in COMPUTE, and what it reads may come from another stream */
    GPU_OK(rig->ops->copy(rig->ctx, values, memory, count * sizeof *values, EN_COPY_OUT));
    GPU_OK(rig->ops->sync(rig->ctx));
}

void gpu_await(gpu_rig *rig, en_event *event)
{
    const int64_t deadline = eni_now_ns() + 60 * ENI_SECOND;
    en_status st;
    while ((st = rig->gpu->poll(event)) == EN_ETIMEOUT && eni_now_ns() < deadline) {
    }
    GPU_OK(st);
}

void gpu_fill(float *values, uint64_t count, uint64_t seed)
{
    uint64_t state = seed * 2654435761u + 12345;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)((int64_t)(state >> 40) - (1 << 23)) / (float)(1 << 23);
    }
}

void *gpu_pages(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    GPU_REQUIRE(memory != MAP_FAILED);
    return memory;
}
