/* simulations.c - starts `entrain sim` and takes its end; see simulations.h. */
#include "cli/simulations.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launcher/relay.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"

static const char self[] = "/proc/self/exe";

/* Its share of this process's cores: as many for each, since a run reports how many it had. */
static cpu_set_t cores_of(int place, int n)
{
    cpu_set_t all, own;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof all, &all) != 0) return own;
    const int each = CPU_COUNT(&all) / n;
    for (int cpu = 0, i = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && i++ / (each > 0 ? each : 1) == place) CPU_SET(cpu, &own);
    return own;
}

/* Between fork and exec. An empty set of cores is refused, and all stay. Its report is dropped: compare has its files. */
static void become(char **argv, int report_fd, const cpu_set_t *cores)
{
    (void)!sched_setaffinity(0, sizeof *cores, cores);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDOUT_FILENO) < 0 ||
        fcntl(report_fd, F_SETFD, 0) != 0)
        _exit(126);
    execv(self, argv);
    _exit(127);
}

/* "entrain", "sim", FLAG ..: the flags stay the caller's. */
static char **command_of(char *const *flags)
{
    static char command[] = "sim";
    size_t n = 0;
    while (flags[n] != NULL)
        n++;
    char **argv = eni_alloc_array(n + 2, sizeof *argv);
    if (argv == NULL) return NULL;
    argv[0] = flags[0];
    argv[1] = command;
    memcpy(argv + 2, flags + 1, (n - 1) * sizeof *argv);
    return argv;
}

en_status eni_simulation_start(eni_simulations *s, int place, const eni_config *run)
{
    const cpu_set_t cores = cores_of(place, s->n);
    const int fd = memfd_create("entrain sim", MFD_CLOEXEC);
    eni_config its = *run; /* borrows all else */
    its.result_fd = fd;
    char **flags = eni_config_argv(&its, ENI_SIM, "entrain"),
         **argv = flags == NULL ? NULL : command_of(flags);
    const pid_t pid = fd < 0 || argv == NULL ? -1 : eni_signals_fork(SIGKILL);
    if (pid == 0) become(argv, fd, &cores);
    eni_free(argv);
    eni_free(flags);
    if (pid < 0) {
        const int cause = errno;
        if (fd >= 0) close(fd);
        return eni_fail(EN_EIO, "compare", "cannot start entrain sim: %s", strerror(cause));
    }
    s->pid[place] = pid;
    s->report_fd[place] = fd;
    return EN_OK;
}

static en_status take_end(eni_simulations *s, int place, int status, char cause_out[ENI_SIMULATION_CAUSE])
{
    en_status ended = EN_EPEER;
    char first_error[ENI_RELAY_LINE];
    eni_relay_file(s->report_fd[place], &ended, first_error);
    s->pid[place] = 0;
    cause_out[0] = 0;
    if (WIFSIGNALED(status))
        snprintf(cause_out, ENI_SIMULATION_CAUSE, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (ended != EN_OK && first_error[0] == 0)
        snprintf(cause_out, ENI_SIMULATION_CAUSE, "ended with exit code %d", WEXITSTATUS(status));
    else if (ended != EN_OK)
        snprintf(cause_out, ENI_SIMULATION_CAUSE, "%.*s", ENI_SIMULATION_CAUSE - 1, first_error);
    return WIFSIGNALED(status) ? EN_EPEER : ended;
}

en_status eni_simulations_wait(eni_simulations *s, int signal_fd, int *which_out, en_status *ended_out,
                               char cause_out[ENI_SIMULATION_CAUSE])
{
    int status = W_EXITCODE(127, 0); /* if somebody else has reaped it */
    if (eni_signals_await_any(s->pid, s->n, signal_fd, INT64_MAX, which_out, &status) == EN_EINTR)
        return EN_EINTR;
    *ended_out = take_end(s, *which_out, status, cause_out);
    return EN_OK;
}

void eni_simulations_end(eni_simulations *s)
{
    for (int i = 0; i < s->n; i++) {
        if (s->pid[i] == 0) continue;
        kill(s->pid[i], SIGKILL);
        waitpid(s->pid[i], NULL, 0);
        close(s->report_fd[i]);
        s->pid[i] = 0;
    }
}
