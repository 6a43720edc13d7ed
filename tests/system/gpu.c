/* gpu.c - see gpu.h. */
#include "tests/system/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const options[] = {
    "FAKE_GPUS", "FAKE_GPU_SEED",      "FAKE_GPU_DRIVER",  "FAKE_GPU_NO_IPC",  "FAKE_GPU_NO_CAPTURE",
    "FAKE_NCCL", "FAKE_GPU_OOM_AFTER", "FAKE_GPU_FAIL_AT", "FAKE_GPU_HANG_AT", "FAKE_GPU_MIG"};

static int is_simulated, seed;

static int has_file(const char *folder, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, R_OK) == 0;
}

int gpu_clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        unsetenv(options[i]);
    return 0;
}

void gpu_begin(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : getenv("ENTRAIN_PLUGIN_PATH");
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    if (folder == NULL || !has_file(folder, "device_cuda.so"))
        system_skip("the cuda device is not built here (%s)", folder != NULL ? folder : "no CUDA toolkit");
    is_simulated = has_file(folder, "libfake_gpu.so");
    gpu_clear(NULL);
    system_use_plugins(folder);
    if (is_simulated) {
        char machine[32]; /* of its own: other tests run on other machines */
        snprintf(machine, sizeof machine, "test%d", (int)getpid());
        setenv("FAKE_GPU_MACHINE", machine, 1);
        setenv("LD_LIBRARY_PATH", EN_BUILD_DIR "/fake/nvml", 1); /* its driver's library, for our processes */
        return;
    }
    setenv("ENTRAIN_PLUGIN_PATH", folder, 1);
    if (system("exec " EN_BUILD_DIR "/entrain gpus >/dev/null 2>&1") != 0)
        system_skip("there is no GPU here");
}

int gpu_is_simulated(void)
{
    return is_simulated;
}

/* One line each, between the head and an empty line. */
int gpu_count(void)
{
    process p;
    int n = -1;
    process_start(&p, "entrain", NULL, "gpus");
    if (process_wait(&p, 60) != 0) fail_msg("entrain gpus: %s", process_err(&p));
    for (const char *at = process_out(&p); at != NULL && *at != '\n'; n++) {
        at = strchr(at, '\n');
        at = at != NULL ? at + 1 : NULL;
    }
    return n;
}

void gpu_fake(const char *name, const char *value)
{
    if (value == NULL)
        unsetenv(name);
    else
        setenv(name, value, 1);
}

void gpu_next_seed(void)
{
    char text[16];
    snprintf(text, sizeof text, "%d", ++seed);
    gpu_fake("FAKE_GPU_SEED", text);
}

int gpu_steps(int simulated, int real)
{
    return is_simulated ? simulated : real;
}
