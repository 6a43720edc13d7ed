/* processes.c - forks, waits for the end, reports the first failure and ends the other processes. */
#include "cli/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launcher/relay.h"
#include "core/log.h"
#include "core/signals.h"

_Static_assert((int)ENI_PROCESSES_MAX <= (int)ENI_AWAITED_MAX, "all are waited for at once");

void eni_processes_release(void *shared, size_t shared_bytes)
{
    if (shared != NULL) munmap(shared, shared_bytes);
}

/* ---- waiting ---- */

typedef struct waiting {
    const eni_processes *asked;
    void *shared;
    pid_t pid[ENI_PROCESSES_MAX]; /* 0: it has ended */
    int started, left;
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
        int r, status = W_EXITCODE(1, 0); /* if somebody else has reaped it */
        /* a signal stays pending, and would end every later wait at once */
        const int signal_fd = w->st == EN_OK ? w->asked->signal_fd : -1;
        if (eni_signals_await_any(w->pid, w->started, signal_fd, INT64_MAX, &r, &status) == EN_EINTR)
            end_all(w, EN_EINTR);
        else
            note_end(w, r, status);
    }
}

/* ---- starting ---- */

_Noreturn static void become(const eni_process *self, const eni_processes *asked, int log_fd)
{
    eni_log_set_launcher(log_fd);
    _exit(asked->main(self));
}

static void start_all(waiting *w, int log_in_fd)
{
    fflush(NULL);
    while (w->started < w->asked->n) {
        const pid_t pid = eni_signals_fork(SIGKILL);
        if (pid == 0)
            become(&(eni_process){w->asked->n, w->started, w->shared, w->asked->user}, w->asked, log_in_fd);
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
    en_status ended;
    char first_error[ENI_RELAY_LINE];
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
    start_all(&w, ends[1]);
    close(ends[1]);
    await_all(&w);
    eni_relay_file(ends[0], &ended, first_error);
    if (w.st == EN_OK)
        *shared_out = w.shared;
    else
        munmap(base, bytes);
    return w.st;
}
