#include "bench/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"

enum { MAX_PROGRAMS = 128, GRACE_MS = 5000 };

int program_path(const char *name, char *path_out, size_t bytes)
{
    char here[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", here, sizeof here - 1);
    if (n <= 0) {
        fputs("bench: cannot read /proc/self/exe: is /proc mounted?\n", stderr);
        return -1;
    }
    here[n] = 0;
    *strrchr(here, '/') = 0;
    const int used = snprintf(path_out, bytes, "%s/../%s", here, name);
    if (used > 0 && (size_t)used < bytes && access(path_out, X_OK) == 0) return 0;
    fprintf(stderr, "bench: cannot find %s in %s/..: build it with make\n", name, here);
    return -1;
}

/* Runs in the child. */
static void die_with_parent(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
}

static int note_start(const char *role, pid_t pid, program *program_out)
{
    *program_out = (program){.role = role, .pid = pid, .pidfd = -1, .exit_code = -1};
    if (pid > 0) program_out->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pid > 0 && program_out->pidfd >= 0) return 0;
    fprintf(stderr, "bench: cannot start %s: %s\n", role, strerror(errno));
    return -1;
}

int program_start(const char *role, char *const *argv, const int *fds, size_t nfds, program *program_out)
{
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        die_with_parent(parent);
        for (size_t i = 0; i < nfds; i++)
            fcntl(fds[i], F_SETFD, 0);
        execv(argv[0], argv);
        _exit(127);
    }
    return note_start(role, pid, program_out);
}

int program_fork(const char *role, int (*main)(void *user), void *user, program *program_out)
{
    fflush(NULL);
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        die_with_parent(parent);
        const int code = main(user);
        fflush(NULL);
        _exit(code);
    }
    return note_start(role, pid, program_out);
}

static void collect(program *p, int options)
{
    int status;
    if (p->exit_code != -1 || waitpid(p->pid, &status, options) != p->pid) return;
    p->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    close(p->pidfd);
}

int programs_wait(program *programs, int n, int deadline_ms)
{
    int64_t deadline_ns = eni_now_ns() + deadline_ms * ENI_MILLI;
    for (;;) {
        struct pollfd fds[MAX_PROGRAMS];
        nfds_t running = 0;
        int bad = 0;
        for (int i = 0; i < n; i++) {
            collect(&programs[i], WNOHANG);
            if (programs[i].exit_code == -1)
                fds[running++] = (struct pollfd){.fd = programs[i].pidfd, .events = POLLIN};
            bad += programs[i].exit_code > 0;
        }
        const int64_t grace_ns = eni_now_ns() + GRACE_MS * ENI_MILLI;
        if (bad > 0 && grace_ns < deadline_ns) deadline_ns = grace_ns;
        if (running == 0 || eni_now_ns() >= deadline_ns) break;
        poll(fds, running, eni_ms_left(deadline_ns, 60000));
    }
    int bad = 0;
    for (int i = 0; i < n; i++) {
        if (programs[i].exit_code == -1) {
            fprintf(stderr, "bench: %s (pid %d) did not end in time: killed\n", programs[i].role,
                    (int)programs[i].pid);
            kill(programs[i].pid, SIGKILL);
            collect(&programs[i], 0);
        }
        if (programs[i].exit_code != 0)
            fprintf(stderr, "bench: %s (pid %d) ended with exit code %d\n", programs[i].role,
                    (int)programs[i].pid, programs[i].exit_code);
        bad += programs[i].exit_code != 0;
    }
    return bad;
}
