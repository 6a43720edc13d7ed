/* programs.h - the programs that a benchmark times: finds, starts and ends them. */
#ifndef BENCH_PROGRAMS_H
#define BENCH_PROGRAMS_H

#include <stddef.h>
#include <sys/types.h>

typedef struct program {
    const char *role; /* for messages; borrowed */
    pid_t pid;
    int pidfd;
    int exit_code; /* -1: runs; 128 + signal */
} program;

/* The path of "psd" or "entrain" in the build folder: that above the benchmark's. 0, or -1 with a sentence on
 * stderr. */
int program_path(const char *name, char *path_out, size_t bytes);

/* Executes argv[0]. The child inherits the descriptors `fds` and our stdout and stderr, and dies with us. 0,
 * or -1 with a sentence on stderr. */
int program_start(const char *role, char *const *argv, const int *fds, size_t nfds, program *program_out);

/* Forks a process that returns `main(user)` as its exit code. Before any thread is started. */
int program_fork(const char *role, int (*main)(void *user), void *user, program *program_out);

/* Waits until all have ended, at most deadline_ms, and at most a few seconds after the first failure; the
 * rest is then killed. Sleeps in poll: takes no time from the processes being measured. Returns the number of
 * those that did not exit with 0, and names them on stderr. */
int programs_wait(program *programs, int n, int deadline_ms);

#endif
