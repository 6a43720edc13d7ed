/* launch.c - see launch.h. */
#include "cli/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/folders.h"
#include "runtime/comm/options.h"
#include "runtime/comm/plugin.h"
#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

enum {
    MAX_CHILDREN = 1026,
    GRACE_MS = 3000, /* the others hear of a death through the leader and end by themselves */
    TERM_MS = 2000   /* between SIGTERM and SIGKILL */
};

typedef struct child {
    char role[24];
    pid_t pid;
    int pidfd;
    int is_running;
    int has_ended, status; /* of waitpid, until it is noted */
} child;

typedef struct launcher {
    const eni_launch *launch;
    child child[MAX_CHILDREN];
    int nchildren, nrunning;
    int listen_fd;
    char address[ENI_ADDRESS_TEXT];
    eni_token token;
    int progress_fd; /* our end of rank 0's pipe */
    char line[256];  /* of it, incomplete */
    size_t line_bytes;
    int has_signalled, has_named; /* we sent signals; the victim of a run was named */
    en_status first;              /* how the first that failed ended */
    int is_interrupted;           /* by a signal, which stays in signal_fd for main */
} launcher;

/* ---- starting ---- */

/* Each child gets its own copy: a shared descriptor would share its read position. */
static int token_memfd(const eni_token *token)
{
    char hex[ENI_TOKEN_HEX];
    int fd = memfd_create("entrain-token", MFD_CLOEXEC);
    eni_token_hex(token, hex);
    if (fd < 0) {
        eni_error("launch", "cannot pass the job token on: %s", strerror(errno));
        return -1;
    }
    if (write(fd, hex, ENI_TOKEN_HEX - 1) != ENI_TOKEN_HEX - 1 || lseek(fd, 0, SEEK_SET) != 0) {
        eni_error("launch", "cannot pass the job token on: %s", strerror(errno));
        close(fd);
        return -1;
    }
    return fd;
}

static void keep_over_exec(int fd)
{
    if (fd >= 0) fcntl(fd, F_SETFD, 0);
}

/* Between fork and exec: only calls that are safe there. A launcher that died before the child could ask to
 * die with it is not its parent any more. */
static void become(const char *path, char **argv, pid_t launcher_pid, const int *fds, size_t nfds)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != launcher_pid) _exit(126);
    for (size_t i = 0; i < nfds; i++)
        keep_over_exec(fds[i]);
    execv(path, argv);
    _exit(127);
}

static en_status spawn(launcher *l, const char *role, const char *program, const eni_config *config,
                       eni_program as, const int *fds, size_t nfds)
{
    char path[4096];
    EN_TRY(eni_folder_program(program, path, sizeof path));
    char **argv = eni_config_argv(config, as, path);
    if (argv == NULL) return EN_ENOMEM;
    pid_t own = getpid(), pid = fork();
    if (pid == 0) become(path, argv, own, fds, nfds);
    eni_free(argv);
    if (pid < 0) {
        eni_error("launch", "cannot start %s: %s", role, strerror(errno));
        return EN_EIO;
    }
    child *c = &l->child[l->nchildren++];
    snprintf(c->role, sizeof c->role, "%s", role);
    c->pid = pid;
    c->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    c->is_running = 1;
    l->nrunning++;
    return EN_OK;
}

/* The text belongs to the config from here on. */
static en_status set_text(char **field, const char *text)
{
    eni_free(*field);
    *field = eni_strdup(text);
    return *field == NULL ? EN_ENOMEM : EN_OK;
}

static en_status start_psd(launcher *l)
{
    eni_config config;
    EN_TRY(eni_config_copy(l->launch->config, &config));
    int token = token_memfd(&l->token), fds[] = {l->listen_fd, token};
    config.world_size = config.workers;
    config.listen_fd = l->listen_fd;
    config.token_fd = token;
    en_status st = token < 0 ? EN_EIO : EN_OK;
    if (st == EN_OK && config.trace != NULL) { /* merge_trace.h: one file per process */
        char path[1200];
        snprintf(path, sizeof path, "%s.psd", config.trace);
        st = set_text(&config.trace, path);
    }
    if (st == EN_OK) st = spawn(l, "psd", "psd", &config, ENI_PSD, fds, 2);
    eni_config_fini(&config);
    if (token >= 0) close(token);
    return st;
}

static en_status start_worker(launcher *l, int rank, int has_psd, int progress_fd)
{
    eni_config config;
    char role[24];
    snprintf(role, sizeof role, "rank %d", rank);
    EN_TRY(eni_config_copy(l->launch->config, &config));
    int token = token_memfd(&l->token), leads = rank == 0 && !has_psd;
    int fds[] = {token, leads ? l->listen_fd : -1, rank == 0 ? progress_fd : -1};
    config.rank = rank;
    config.world_size = config.local_size = config.workers;
    config.token_fd = token;
    config.listen_fd = fds[1];
    config.result_fd = fds[2];
    config.check = l->launch->is_check;
    en_status st = token < 0 ? EN_EIO : set_text(has_psd ? &config.server : &config.rendezvous, l->address);
    if (st == EN_OK) st = spawn(l, role, "worker", &config, ENI_WORKER, fds, 3);
    eni_config_fini(&config);
    if (token >= 0) close(token);
    return st;
}

static en_status check_options(const en_strategy *strategy, const char *given)
{
    eni_options *options;
    EN_TRY(eni_options_new(strategy, given, &options));
    eni_options_free(options);
    return EN_OK;
}

static en_status start_all(launcher *l)
{
    const eni_config *c = l->launch->config;
    const en_strategy *strategy;
    const char *options;
    char word[ENI_STRATEGY_WORD_MAX];
    eni_address any = {.host = "127.0.0.1", .port = 0}, bound;
    int pipe_fds[2] = {-1, -1};
    if (c->workers < 1 || c->workers > MAX_CHILDREN - 2) {
        eni_error("launch", "-n %lld: between 1 and %d workers can be started", (long long)c->workers,
                  MAX_CHILDREN - 2);
        return EN_EINVAL;
    }
    EN_TRY(eni_plugin_split(c->strategy, word, &options));
    EN_TRY(eni_plugin_find(l->launch->plugin_dir, word, &strategy));
    EN_TRY(check_options(strategy, options)); /* said once, not by every worker */
    EN_TRY(eni_tcp_listen(&any, false, &l->listen_fd, &bound));
    eni_address_format(&bound, l->address);
    eni_token_make(&l->token);
    if (l->launch->on_progress != NULL && pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) != 0) return EN_EIO;
    l->progress_fd = pipe_fds[0];
    int has_psd = (strategy->flags & EN_STORE_ON_SERVERS) != 0;
    en_status st = has_psd ? start_psd(l) : EN_OK;
    for (int r = 0; st == EN_OK && r < c->workers; r++)
        st = start_worker(l, r, has_psd, pipe_fds[1]);
    if (pipe_fds[1] >= 0) close(pipe_fds[1]);
    close(l->listen_fd);
    l->listen_fd = -1;
    return st;
}

/* ---- watching ---- */

static void signal_all(launcher *l, int signal_number)
{
    l->has_signalled = 1;
    for (int i = 0; i < l->nchildren; i++)
        if (l->child[i].is_running) kill(l->child[i].pid, signal_number);
}

static void note_end(launcher *l, const child *c, int status)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    /* A killed process closes its sockets before it can be reaped: on a busy machine those that it takes
     * along may be found first. Until we send signals ourselves, who was killed is the cause. */
    if (WIFSIGNALED(status) && !l->has_signalled && !l->has_named) {
        l->has_named = 1;
        eni_error("launch", "%s (pid %d) died: %s%s", c->role, (int)c->pid, strsignal(WTERMSIG(status)),
                  WTERMSIG(status) == SIGKILL ? " (killed, or out of memory?)" : "");
        if (l->first == EN_OK) l->first = EN_EPEER;
        return;
    }
    if (l->first != EN_OK) return;
    if (WIFSIGNALED(status)) {
        l->first = EN_EPEER;
    } else if (WEXITSTATUS(status) == 127) {
        eni_error("launch", "%s could not be executed", c->role);
        l->first = EN_EPEER;
    } else if (WEXITSTATUS(status) >
               128) { /* of a signal that it heeded, without a word if it was starting */
        eni_error("launch", "%s (pid %d) was interrupted: %s", c->role, (int)c->pid,
                  strsignal(WEXITSTATUS(status) - 128));
        l->first = EN_EPEER;
    } else {
        l->first = WEXITSTATUS(status) == 2 ? EN_EINVAL : EN_EPEER;
    }
}

/* Who was killed has died before those whom its death has ended, and is noted before them, though it may be
 * found after them. */
static void reap(launcher *l)
{
    int found;
    do {
        found = 0;
        for (int i = 0; i < l->nchildren; i++) {
            child *c = &l->child[i];
            if (!c->is_running || waitpid(c->pid, &c->status, WNOHANG) != c->pid) continue;
            c->is_running = 0;
            c->has_ended = found = 1;
            l->nrunning--;
            if (c->pidfd >= 0) close(c->pidfd);
            c->pidfd = -1;
        }
    } while (found);
    for (int by_signal = 1; by_signal >= 0; by_signal--)
        for (int i = 0; i < l->nchildren; i++) {
            child *c = &l->child[i];
            if (!c->has_ended || WIFSIGNALED(c->status) != by_signal) continue;
            c->has_ended = 0;
            note_end(l, c, c->status);
        }
}

static void take_line(const launcher *l, const char *line)
{
    eni_launch_progress p;
    unsigned long long samples, total;
    if (sscanf(line, "progress %llu %llu %lf %lf", &samples, &total, &p.rate, &p.loss) != 4) return;
    p.samples = samples;
    p.total = total;
    l->launch->on_progress(l->launch->user, &p);
}

static void read_progress(launcher *l)
{
    for (;;) {
        ssize_t n = read(l->progress_fd, l->line + l->line_bytes, sizeof l->line - 1 - l->line_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            close(l->progress_fd);
            l->progress_fd = -1;
            return;
        }
        l->line_bytes += (size_t)n;
        l->line[l->line_bytes] = 0;
        char *begin = l->line, *end;
        while ((end = strchr(begin, '\n')) != NULL) {
            *end = 0;
            take_line(l, begin);
            begin = end + 1;
        }
        l->line_bytes = strlen(begin);
        memmove(l->line, begin, l->line_bytes + 1);
        if (l->line_bytes == sizeof l->line - 1) l->line_bytes = 0;
    }
}

static void wait_for_events(launcher *l, int timeout_ms)
{
    struct pollfd fds[MAX_CHILDREN + 2];
    nfds_t n = 0;
    if (l->launch->signal_fd >= 0 && !l->is_interrupted)
        fds[n++] = (struct pollfd){.fd = l->launch->signal_fd, .events = POLLIN};
    if (l->progress_fd >= 0) fds[n++] = (struct pollfd){.fd = l->progress_fd, .events = POLLIN};
    for (int i = 0; i < l->nchildren; i++)
        if (l->child[i].is_running) fds[n++] = (struct pollfd){.fd = l->child[i].pidfd, .events = POLLIN};
    poll(fds, n, timeout_ms);
}

static int was_signalled(const launcher *l)
{
    struct pollfd p = {.fd = l->launch->signal_fd, .events = POLLIN};
    return p.fd >= 0 && poll(&p, 1, 0) > 0;
}

/* Until all have ended. After the first failure, or a signal, the rest get time to end by themselves, then
 * SIGTERM, then SIGKILL. */
static void watch(launcher *l)
{
    int64_t term_at = INT64_MAX, kill_at = INT64_MAX;
    int is_ending = l->first != EN_OK; /* then all have been killed already */
    while (l->nrunning > 0) {
        int64_t next = term_at < kill_at ? term_at : kill_at;
        wait_for_events(l, next == INT64_MAX ? 1000 : eni_ms_left(next, 1000));
        if (l->progress_fd >= 0) read_progress(l);
        reap(l);
        int64_t now = eni_now_ns();
        if (!l->is_interrupted && was_signalled(l)) {
            l->is_interrupted = is_ending = 1;
            l->first = EN_EINTR;
            signal_all(l, SIGTERM);
            kill_at = now + TERM_MS * ENI_MILLI;
        }
        if (l->first != EN_OK && !is_ending) {
            is_ending = 1;
            term_at =
                now + (l->first == EN_EINVAL ? 0 : GRACE_MS) * ENI_MILLI; /* wrong use: nobody started */
        }
        if (now >= term_at) {
            signal_all(l, SIGTERM);
            term_at = INT64_MAX;
            kill_at = now + TERM_MS * ENI_MILLI;
        }
        if (now >= kill_at) {
            signal_all(l, SIGKILL);
            kill_at = INT64_MAX;
        }
    }
}

en_status eni_launch_run(const eni_launch *launch)
{
    launcher *l = eni_alloc(sizeof *l);
    if (l == NULL) return EN_ENOMEM;
    l->launch = launch;
    l->listen_fd = l->progress_fd = -1;
    en_status st = start_all(l);
    if (st != EN_OK) {
        l->first = st; /* whoever runs already is not to blame for its end */
        signal_all(l, SIGKILL);
    }
    watch(l);
    if (l->listen_fd >= 0) close(l->listen_fd);
    if (l->progress_fd >= 0) close(l->progress_fd);
    if (st == EN_OK) st = l->first;
    eni_free(l);
    return st;
}
