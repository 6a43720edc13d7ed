/* cause.h - why a child of ours is gone, as far as this host knows. */
#ifndef CLI_CAUSE_H
#define CLI_CAUSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Processes that the kernel has killed for want of memory: in our control group where it counts them, else on
 * this machine. -1: nobody counts. */
int64_t eni_oom_kills(void);

/* Stopped by SIGSTOP or Ctrl-Z (or a debugger). */
bool eni_is_stopped(pid_t pid);

/* "Killed (SIGKILL)", "Segmentation fault (SIGSEGV)". */
void eni_signal_text(int signal_number, char *text_out, size_t bytes);

#endif
