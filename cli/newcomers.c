/* newcomers.c - `entrain join` for a run whose ranks come and go: starts workers like those of the run on
 * this host, and waits until they have ended. A worker's settings are its command line; a newcomer gets all
 * of it except the flags that the launcher gave to that worker alone. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/find_run.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "runtime/net/process.h"

enum { COMMAND_MAX = 1 << 20, WORDS_MAX = 1024, STOP_MS = 10000, AFTER_MS = 5000 };
enum { LOOK_MS = 1000 }; /* for the end of the run; workers and signals are waited for */
enum { NOT_THERE = 126, NOT_EXECUTED = 127 };

typedef struct worker_command {
    char program[4096], folder[4096]; /* its program and working directory */
    char text[COMMAND_MAX];           /* its arguments, each ended by a 0 */
    char *word[WORDS_MAX + 2];
} worker_command;

/* A rank of the run on this host. */
static const eni_run_rank *find_example(const eni_run_status *run)
{
    for (size_t i = 0; i < run->nrank; i++) {
        const eni_run_rank *r = &run->rank[i];
        if (r->rank >= 0 && r->pid > 0 && r->born != 0 &&
            eni_process_look(r->pid, r->born) == ENI_PROCESS_RUNS)
            return r;
    }
    return NULL;
}

static bool is_its_own(const char *word)
{
    static const char *const own[] = {
        "--rank=",      "--local-rank=", "--local-size=", "--token-fd=", "--result-fd=",
        "--listen-fd=", "--begin-ns=",   "--out-fd=",     "--resume="};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncmp(word, own[i], strlen(own[i])) == 0) return true;
    return false;
}

static en_status read_link(int64_t pid, const char *name, char *out, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/%s", pid, name);
    const ssize_t n = readlink(path, out, bytes - 1);
    if (n < 0) return eni_fail(EN_ENOENT, "join", "cannot read %s: %s", path, strerror(errno));
    out[n] = '\0';
    return EN_OK;
}

static en_status read_words(int64_t pid, char *text, size_t *bytes_out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/cmdline", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;
    *bytes_out = 0;
    while (fd >= 0 && *bytes_out < COMMAND_MAX - 1 &&
           (n = read(fd, text + *bytes_out, COMMAND_MAX - 1 - *bytes_out)) > 0)
        *bytes_out += (size_t)n;
    if (fd >= 0) close(fd);
    text[*bytes_out] = '\0';
    if (n == 0 && *bytes_out > 0) return EN_OK;
    return eni_fail(EN_ENOENT, "join", "cannot read %s: %s", path, strerror(errno));
}

static en_status read_command(const eni_run_rank *example, worker_command *c)
{
    static char newcomer[] = "--rank=new";
    size_t bytes, n = 0;
    EN_TRY(read_link(example->pid, "exe", c->program, sizeof c->program));
    EN_TRY(read_link(example->pid, "cwd", c->folder, sizeof c->folder));
    EN_TRY(read_words(example->pid, c->text, &bytes));
    for (char *word = c->text; word < c->text + bytes && n < WORDS_MAX; word += strlen(word) + 1)
        if (!is_its_own(word)) c->word[n++] = word;
    c->word[n] = newcomer;
    return EN_OK;
}

/* The worker leaves when we are gone. It has a process group of its own, so that Ctrl-C reaches us alone. */
static pid_t start(const worker_command *c)
{
    const pid_t pid = eni_signals_fork(SIGTERM);
    if (pid != 0) return pid;
    setpgid(0, 0);
    if (chdir(c->folder) != 0) _exit(NOT_THERE);
    execv(c->program, c->word);
    _exit(NOT_EXECUTED);
}

static void signal_all(const pid_t *pids, int n, int signal_number)
{
    for (int i = 0; i < n; i++)
        if (pids[i] > 0) kill(pids[i], signal_number);
}

/* The process whose end means the run's end: its launcher; else its leader, unless that may be restarted
 * (--server-timeout). */
typedef struct last_process {
    int64_t number, pid; /* of the run, as users know it */
    uint64_t born;       /* 0: no process's end means it */
    int64_t ended_ns;    /* 0: it runs */
} last_process;

static last_process find_last(const eni_run_status *run, const worker_command *c)
{
    last_process last = {.number = eni_run_number(run), .pid = eni_run_number(run)};
    bool comes_back = false;
    for (char *const *word = c->word; *word != NULL; word++)
        comes_back |= strncmp(*word, "--server-timeout=", 17) == 0 && strcmp(*word + 17, "0s") != 0;
    last.born = last.pid != run->pid ? eni_process_born(last.pid) : 0;
    if (last.born == 0 && !comes_back)
        last.pid = run->pid, last.born = run->born; /* no launcher, or it has ended */
    return last;
}

/* Workers that have joined end with the run. One that has not would look for it until its --join-timeout. */
static bool has_run_ended(last_process *last)
{
    if (last->ended_ns == 0 && eni_process_look(last->pid, last->born) == ENI_PROCESS_ENDED)
        last->ended_ns = eni_now_ns();
    if (last->ended_ns == 0 || eni_now_ns() < last->ended_ns + AFTER_MS * ENI_MILLI) return false;
    eni_error("join", "run %" PRId64 " has ended; workers still waiting to join it are stopped",
              last->number);
    return true;
}

/* Asks the workers to leave if the user or the end of the run says so. One that is stopped, or waits for a stopped psd, cannot
 * leave: it is killed after a while. */
static en_status pass_on(int signal_fd, last_process *last, const pid_t *pids, int n, int64_t *kill_ns)
{
    if (*kill_ns != 0) {
        if (eni_now_ns() < *kill_ns) return EN_OK;
        signal_all(pids, n, SIGKILL);
        *kill_ns = INT64_MAX;
        return EN_OK;
    }
    const bool is_reported =
        eni_signals_wait(signal_fd, 0); /* it stays readable: main derives our exit code from it */
    if (!is_reported && !has_run_ended(last)) return EN_OK;
    *kill_ns = eni_now_ns() + STOP_MS * ENI_MILLI;
    signal_all(pids, n, SIGTERM);
    return is_reported ? EN_EINTR : EN_EINVAL;
}

/* The worker's exit code, 0 to 2: it has logged why. Above 2: a signal that we sent. */
static int code_of(const worker_command *c, int status)
{
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (code != NOT_THERE && code != NOT_EXECUTED) return code <= 2 ? code : 0;
    eni_error("join", "cannot start %s in %s: has the program or the folder changed since the run began?",
              c->program, c->folder);
    return 2;
}

static en_status await_all(const worker_command *c, last_process last, int signal_fd, pid_t *pids, int n)
{
    int64_t kill_ns = 0;
    int worst = 0, at = 0; /* those before it have ended */
    en_status first = EN_OK;
    while (at < n) {
        const int64_t look_ns = eni_now_ns() + LOOK_MS * ENI_MILLI;
        const int left = n - at < ENI_AWAITED_MAX ? n - at : ENI_AWAITED_MAX;
        int which, status = W_EXITCODE(1, 0); /* if somebody else has reaped it */
        en_status st =
            eni_signals_await_any(pids + at, left, kill_ns == 0 ? signal_fd : -1,
                                  kill_ns != 0 && kill_ns < look_ns ? kill_ns : look_ns, &which, &status);
        if (st != EN_EINTR && st != EN_ETIMEOUT) {
            const int code = code_of(c, status);
            if (code > worst) worst = code;
            pids[at + which] = 0;
        }
        st = pass_on(signal_fd, &last, pids, n, &kill_ns);
        if (first == EN_OK) first = st;
        while (at < n && pids[at] == 0)
            at++;
    }
    if (first != EN_OK) return first;
    return worst == 0 ? EN_OK : worst == 2 ? EN_EINVAL : EN_EPEER;
}

en_status eni_newcomers_start(const eni_run_status *run, int n, int signal_fd)
{
    const eni_run_rank *example = find_example(run);
    if (example == NULL)
        return eni_fail(EN_EINVAL, "join",
                        "run %" PRId64 " has no worker on this host whose flags a newcomer could take; "
                        "start it by hand: worker --rank=new, and the other workers' flags",
                        run->pid);
    worker_command *c = eni_alloc(sizeof *c);
    pid_t *pids = eni_alloc_array((size_t)n, sizeof *pids);
    en_status st = c == NULL || pids == NULL ? EN_ENOMEM : read_command(example, c);
    const last_process last = st == EN_OK ? find_last(run, c) : (last_process){0}; /* while it runs */
    int started = 0;
    while (st == EN_OK && started < n) {
        pids[started] = start(c);
        if (pids[started] < 0)
            st = eni_fail(EN_EIO, "join", "cannot start a worker: %s", strerror(errno));
        else
            started++;
    }
    const en_status ended = started > 0 ? await_all(c, last, signal_fd, pids, started) : EN_OK;
    eni_free(pids);
    eni_free(c);
    return st == EN_OK ? ended : st;
}
