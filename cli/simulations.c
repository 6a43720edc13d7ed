/* simulations.c - starts `entrain sim` and takes its end; see simulations.h. */
#include "cli/simulations.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Runs between fork and exec: only async-signal-safe calls. An empty set of cores is refused, and all stay. */
static void become(char **argv, pid_t parent, int log_fd, const cpu_set_t *cores)
{
    (void)!sched_setaffinity(0, sizeof *cores, cores);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(126);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDOUT_FILENO) < 0 ||
        dup2(log_fd, STDERR_FILENO) < 0)
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

en_status eni_simulation_start(const eni_config *run, int place, int n, eni_simulation *simulation_out)
{
    const pid_t parent = getpid();
    const cpu_set_t cores = cores_of(place, n);
    char **flags = eni_config_argv(run, ENI_SIM, "entrain"),
         **argv = flags == NULL ? NULL : command_of(flags);
    const int log_fd = memfd_create("entrain sim", MFD_CLOEXEC);
    const pid_t pid = log_fd < 0 || argv == NULL ? -1 : fork();
    if (pid == 0) become(argv, parent, log_fd, &cores);
    if (pid > 0)
        *simulation_out = (eni_simulation){pid, log_fd};
    else if (log_fd >= 0)
        close(log_fd);
    eni_free(argv);
    eni_free(flags);
    return pid > 0 ? EN_OK : eni_fail(EN_EIO, "compare", "cannot start entrain sim: %s", strerror(errno));
}

/* Prints its messages; the first error, without time and speaker, is the cause. */
static void take_messages(int log_fd, char cause_out[ENI_SIMULATION_CAUSE])
{
    enum { LEVEL_AT = 13 }; /* behind "12:00:01.123 " */
    char *line = NULL;
    size_t room = 0;
    FILE *file = fdopen(log_fd, "r");
    if (file == NULL) {
        close(log_fd);
        return;
    }
    rewind(file);
    for (ssize_t n; (n = getline(&line, &room, file)) > 0;) {
        line[n - (line[n - 1] == '\n')] = 0;
        eni_log_print(line);
        const char *text = strstr(line, ": ");
        if (cause_out[0] == 0 && n > LEVEL_AT && line[LEVEL_AT] == 'E' && text != NULL)
            snprintf(cause_out, ENI_SIMULATION_CAUSE, "%s", text + 2);
    }
    free(line);
    fclose(file);
}

static void take_end(eni_simulation *simulation, int status, char cause_out[ENI_SIMULATION_CAUSE])
{
    cause_out[0] = 0;
    take_messages(simulation->log_fd, cause_out);
    *simulation = (eni_simulation){0};
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        cause_out[0] = 0; /* its errors were not the end of it */
    else if (WIFSIGNALED(status))
        snprintf(cause_out, ENI_SIMULATION_CAUSE, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (cause_out[0] == 0)
        snprintf(cause_out, ENI_SIMULATION_CAUSE, "ended with exit code %d", WEXITSTATUS(status));
}

en_status eni_simulations_wait(eni_simulation *simulations, int n, int signal_fd, int *which_out,
                               char cause_out[ENI_SIMULATION_CAUSE])
{
    enum { LOOK_MS = 5 };
    while (!eni_signals_wait(signal_fd, LOOK_MS))
        for (int i = 0; i < n; i++) {
            int status = W_EXITCODE(127, 0); /* if somebody else has reaped it */
            if (simulations[i].pid == 0 || waitpid(simulations[i].pid, &status, WNOHANG) == 0) continue;
            take_end(&simulations[i], status, cause_out);
            *which_out = i;
            return EN_OK;
        }
    return EN_EINTR;
}

void eni_simulations_end(eni_simulation *simulations, int n)
{
    for (int i = 0; i < n; i++) {
        if (simulations[i].pid == 0) continue;
        kill(simulations[i].pid, SIGKILL);
        waitpid(simulations[i].pid, NULL, 0);
        close(simulations[i].log_fd);
        simulations[i] = (eni_simulation){0};
    }
}
