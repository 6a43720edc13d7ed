/* held.h - a device cpu that computes as ref does and stops, or fails, in a turn of a stage that the test chooses.
 *
 *     held_begin();                              before system_main: its plugins
 *     ..  --device=cpu --parallel=pipeline ..   device s of a rank is stage s
 *     held_stop(pid, 1, HELD_BACKWARD);          stage 1 of that process is in a backward, and stays there
 *     held_go_on(pid, 1, HELD_BACKWARD);
 *     held_fail(pid, 1, HELD_FORWARD);           its next forward fails
 *     held_pace(true);                           each linear layer sleeps for 20 ms in each turn
 *
 * Each is a file in the test's folder (the XDG_RUNTIME_DIR of all processes that it starts); the device looks
 * before each operation. */
#ifndef TESTS_SYSTEM_HELD_H
#define TESTS_SYSTEM_HELD_H

#include <stdbool.h>
#include <sys/types.h>

#define HELD_FORWARD  "forward"
#define HELD_BACKWARD "backward"

enum { HELD_PATH = 200, HELD_PACE_MS = 20 };

void held_begin(void);

/* Returns once the device has stopped; a deadline that passes fails the test. */
void held_stop(pid_t pid, int device, const char *turn);
void held_go_on(pid_t pid, int device, const char *turn);
void held_fail(pid_t pid, int device, const char *turn);
void held_pace(bool is_paced);

#endif
