/* rig.h - runs a piece of a test in a process of its own: with its own seed, its own machine, its own death.
 */
#ifndef FAKE_GPU_RIG_H
#define FAKE_GPU_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* A child says no by this; cmocka's assertions are for the parent. */
#define CLAIM(claim)                                                                                         \
    do {                                                                                                     \
        if (!(claim)) {                                                                                      \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #claim);                              \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

#define FINE(call) CLAIM((call) == cudaSuccess)

/* The child's exit code, or 128 + the signal. `body` gets `user`; 0: it was fine. */
static inline int in_child(int (*body)(void *user), void *user)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(300); /* ctest is sooner: so that it does not outlive the test for long */
        _exit(body(user));
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* The same with a seed; how many of `seeds` children ended with 0. */
static inline int count_fine(int seeds, int (*body)(void *user), void *user)
{
    int fine = 0;
    for (int seed = 0; seed < seeds; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        setenv("FAKE_GPU_SEED", text, 1);
        fine += in_child(body, user) == 0;
    }
    return fine;
}

#endif
