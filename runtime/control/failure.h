/* failure.h - what a survivor tells the launcher of the run's first failed rank: one line on an inherited
 * pipe.
 *
 * The survivors know the failed rank's rank, step and phase, the launcher knows the signal that ended it.
 * Together they make the one line that people read.
 *
 *     death \t RANK \t PID \t STEP \t IS_STOPPED \t HOST \t PHASE \t CAUSE \n */
#ifndef CONTROL_FAILURE_H
#define CONTROL_FAILURE_H

#include <stdbool.h>

#include "runtime/control/control.h"

/* One write(2) of less than PIPE_BUF bytes, so that lines of several processes do not mix. Any thread; a
 * launcher that has gone, or a full pipe, loses it silently. */
void eni_failure_write(int fd, const eni_death *death);

/* Reads such a line, without its newline; changes it. False: it is another kind of line, or damaged. */
bool eni_failure_read(char *line, eni_death *death_out);

/* What the failed rank itself says where it can; the code follows. */
#define ENI_CAUSE_EXIT "a plugin called exit with "

/* Says that this process ends because it is done, well or not: who ends without it was ended by a plugin, and
 * an exit code of 0 is a lie. Waits some seconds for room in the pipe.
 *
 *     end \t PID \n */
void eni_end_write(int fd);
bool eni_end_read(const char *line, int64_t *pid_out);

#endif
