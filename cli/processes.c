/* processes.c - forks, waits for the end, reports the first failure and ends the other processes. */
#include "cli/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launcher/relay.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"

void eni_processes_release(void *shared, size_t shared_bytes)
{
    if (shared != NULL) munmap(shared, shared_bytes);
}

/* ---- waiting ---- */

typedef struct waiting {
    const eni_processes *asked;
    void *shared;
    pid_t pid[ENI_PROCESSES_MAX]; /* 0: it has ended */
    int started, left, log_fd;
    en_status st;
} waiting;

static void end_all(waiting *w, en_status st)
{
    if (w->st == EN_OK) w->st = st;
    for (int r = 0; r < w->started; r++)
        if (w->pid[r] > 0) kill(w->pid[r], SIGKILL);
}

/* Reports the first failure, but not processes that we killed. A signal from a terminal reaches them as it
 * reaches us, and is not a failure. */
static void note_end(waiting *w, int r, int status)
{
    const int pid = (int)w->pid[r], code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    w->pid[r] = 0;
    w->left--;
    if ((WIFEXITED(status) && code == 0) || w->st != EN_OK) return;
    if (eni_signals_wait(w->asked->signal_fd, 0)) {
        end_all(w, EN_EINTR);
        return;
    }
    end_all(w, code == 2 ? EN_EINVAL : EN_EPEER);
    if (WIFSIGNALED(status))
        eni_error(w->asked->who,
                  "process %d of %d (pid %d) was killed by signal %d (%s); the others are stopped too", r,
                  w->asked->n, pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
}

static void await_all(waiting *w)
{
    while (w->left > 0) {
        const int before = w->left;
        for (int r = 0; r < w->started; r++) {
            int status;
            if (w->pid[r] > 0 && waitpid(w->pid[r], &status, WNOHANG) == w->pid[r]) note_end(w, r, status);
        }
        if (w->left == 0 || w->left < before) continue;
        if (w->st != EN_OK) /* the signal is still pending, and would end the wait at once */
            poll(NULL, 0, 1);
        else if (eni_signals_wait(w->asked->signal_fd, 1))
            end_all(w, EN_EINTR);
    }
}

/* Prints each message once, however many processes logged it. */
static void print_messages(const waiting *w)
{
    char *line = NULL;
    size_t room = 0;
    FILE *file = fdopen(w->log_fd, "r");
    eni_relay *relay = eni_alloc(sizeof *relay);
    for (ssize_t n; file != NULL && relay != NULL && (n = getline(&line, &room, file)) > 0;) {
        line[n - (line[n - 1] == '\n')] = 0;
        (void)eni_relay_take(relay, line);
    }
    free(line);
    eni_free(relay);
    if (file == NULL)
        close(w->log_fd);
    else
        fclose(file);
}

/* ---- starting ---- */

_Noreturn static void become(const eni_process *self, const eni_processes *asked, pid_t parent, int log_fd)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    eni_log_set_launcher(log_fd);
    _exit(asked->main(self));
}

static void start_all(waiting *w, int log_in_fd)
{
    const pid_t parent = getpid();
    fflush(NULL);
    while (w->started < w->asked->n) {
        const pid_t pid = fork();
        if (pid == 0)
            become(&(eni_process){w->asked->n, w->started, w->shared, w->asked->user}, w->asked, parent,
                   log_in_fd);
        if (pid < 0) break;
        w->pid[w->started++] = pid;
        w->left++;
    }
    if (w->started == w->asked->n) return;
    eni_error(w->asked->who, "cannot start process %d of %d: %s", w->started, w->asked->n, strerror(errno));
    end_all(w, EN_ENOMEM);
}

en_status eni_processes_run(const eni_processes *processes, void **shared_out)
{
    int ends[2];
    const size_t bytes = processes->shared_bytes;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return eni_fail(EN_ENOMEM, processes->who, "cannot share %zu bytes among processes: %s", bytes,
                        strerror(errno));
    waiting w = {.asked = processes, .shared = base};
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        munmap(base, bytes);
        return eni_fail(EN_ENOMEM, processes->who, "cannot create a pipe: %s", strerror(errno));
    }
    w.log_fd = ends[0];
    start_all(&w, ends[1]);
    close(ends[1]);
    await_all(&w);
    print_messages(&w);
    if (w.st == EN_OK)
        *shared_out = w.shared;
    else
        munmap(base, bytes);
    return w.st;
}
