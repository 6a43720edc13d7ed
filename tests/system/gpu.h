/* gpu.h - whole runs on a GPU, or on the simulated one (tests/fake_gpu): the same programs, other plugins.
 *
 *     test_system system_gpu_equal [PLUGIN_FOLDER [PATTERN]]       else $ENTRAIN_PLUGIN_PATH, and all its tests
 *
 * What a test asks of the simulated one alone (no IPC, a driver that is too old, two GPUs) it asks by
 * variables of the environment, which all programs inherit. */
#ifndef TESTS_SYSTEM_GPU_H
#define TESTS_SYSTEM_GPU_H

#include "tests/system/run.h"

/* Before system_main: which plugins. Ends the program with 77 where there is no cuda device, or no GPU. */
void gpu_begin(int argc, char **argv);

int gpu_is_simulated(void);

/* How many there are; on the simulated machine that depends on FAKE_GPUS. */
int gpu_count(void);

/* FAKE_GPU_..: for all programs that are started from now on; value NULL: no more. */
void gpu_fake(const char *name, const char *value);

/* A teardown: none of them is left, and no process. */
int gpu_clear(void **state);
#define GPU_TEST(function) cmocka_unit_test_teardown(function, gpu_clear)

/* Another order of the simulated GPU's work in every run from now on. */
void gpu_next_seed(void);

/* Steps that show something: few on the simulated GPU, which is slow. */
int gpu_steps(int simulated, int real);

#endif
