/* gpu.h - whole runs on a GPU, or on the simulated one (tests/fake_gpu): the same programs, other plugins.
 *
 *     test_system system_gpu_equal [PLUGIN_FOLDER [PATTERN]]       else $ENTRAIN_PLUGIN_PATH, and all its tests
 *
 * A test sets up the simulated one (no IPC, a driver that is too old, two GPUs) by environment variables,
 * which all programs inherit. */
#ifndef TESTS_SYSTEM_GPU_H
#define TESTS_SYSTEM_GPU_H

#include "tests/system/run.h"

/* Call before system_main: chooses the plugins. Ends the program with 77 without a cuda device or a GPU. */
void gpu_begin(int argc, char **argv);

int gpu_is_simulated(void);

/* The number of GPUs; on the simulated machine that of FAKE_GPUS. */
int gpu_count(void);

/* Sets FAKE_GPU_.. for all programs that are started from now on; value NULL: unsets it. */
void gpu_fake(const char *name, const char *value);

/* A teardown: clears these variables, and checks that no process is left. */
int gpu_clear(void **state);
#define GPU_TEST(function) cmocka_unit_test_teardown(function, gpu_clear)

/* Another order of the simulated GPU's work in every run from now on. */
void gpu_next_seed(void);

/* Enough steps to show an effect: few on the simulated GPU, which is slow. */
int gpu_steps(int simulated, int real);

#endif
