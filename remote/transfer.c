/* transfer.c - see transfer.h: which flags are URLs, and the process that brings or takes what they name. */
#include "remote/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "config/outputs.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "data/dataset.h"
#include "remote/url.h"

enum { ARGS = 64, ANSWER_FD = 3 };

typedef struct args {
    const char *arg[ARGS];
    int n;
    char cache[PATH_MAX], level[8];
} args;

static void add(args *a, const char *text)
{
    if (a->n < ARGS - 1) a->arg[a->n++] = text;
}

static en_status begin_args(args *a, const eni_config *c, const char *verb)
{
    *a = (args){.n = 1};
    EN_TRY(eni_env_cache_dir(a->cache, sizeof a->cache));
    snprintf(a->level, sizeof a->level, "%d", (int)c->log_level);
    add(a, verb);
    add(a, "--cache");
    add(a, a->cache);
    add(a, "--log-level");
    add(a, a->level);
    if (c->quiet || c->mute) add(a, "--quiet");
    if (c->data_endpoint != NULL) add(a, "--endpoint"), add(a, c->data_endpoint);
    if (c->data_keys != NULL) add(a, "--keys"), add(a, c->data_keys);
    return EN_OK;
}

/* ---- the process ---- */

typedef struct child {
    pid_t pid;
    int pidfd, answer_fd, order_fd; /* what it says; what it is told. -1: nothing */
} child;

/* Between fork and exec: only calls that are safe there. */
static void become(const char *path, char **argv, pid_t parent, int answer_fd, int order_fd)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);           /* Ctrl-C is for the command, which decides what follows */
    signal(SIGTTOU, SIG_IGN); /* `stty tostop` would stop whoever is not in front */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(126);
    if (order_fd >= 0 && dup2(order_fd, STDIN_FILENO) < 0) _exit(126);
    if (answer_fd == ANSWER_FD) /* dup2 would leave it to be closed by exec */
        fcntl(answer_fd, F_SETFD, 0);
    else if (answer_fd >= 0 && dup2(answer_fd, ANSWER_FD) < 0)
        _exit(126);
    execv(path, argv);
    _exit(127);
}

static en_status start(args *a, bool has_answer, bool has_orders, child *child_out)
{
    char path[PATH_MAX];
    int answer[2] = {-1, -1}, order[2] = {-1, -1};
    child c = {.pid = -1, .pidfd = -1, .answer_fd = -1, .order_fd = -1};
    EN_TRY(eni_folder_program("transfer", path, sizeof path));
    a->arg[0] = path;
    a->arg[a->n] = NULL;
    const pid_t own = getpid();
    if ((!has_answer || pipe2(answer, O_CLOEXEC) == 0) && (!has_orders || pipe2(order, O_CLOEXEC) == 0))
        c.pid = fork();
    if (c.pid == 0) become(path, (char **)(uintptr_t)a->arg, own, answer[1], order[0]);
    int cause = errno;
    if (answer[1] >= 0) close(answer[1]);
    if (order[0] >= 0) close(order[0]);
    c.answer_fd = answer[0];
    c.order_fd = order[1];
    if (c.pid > 0 && (c.pidfd = (int)syscall(SYS_pidfd_open, c.pid, 0)) >= 0) {
        *child_out = c;
        return EN_OK;
    }
    if (c.pid > 0) { /* nobody could wait for it */
        cause = errno;
        kill(c.pid, SIGKILL);
        waitpid(c.pid, NULL, 0);
    }
    if (answer[0] >= 0) close(answer[0]);
    if (order[1] >= 0) close(order[1]);
    return eni_fail(EN_EIO, "remote", "cannot start %s: %s", path, strerror(cause));
}

/* Ends it by its exit code, as core/signals.h has them, or because we are told to end. */
static en_status finish(child *c, int signal_fd)
{
    struct pollfd watched[2] = {{c->pidfd, POLLIN, 0}, {signal_fd, POLLIN, 0}};
    int status = 0;
    bool is_told = false;
    while (poll(watched, signal_fd >= 0 ? 2 : 1, -1) < 0 && errno == EINTR) {
    }
    if (watched[0].revents == 0 && watched[1].revents != 0) {
        is_told = true;
        kill(c->pid, SIGKILL); /* what has come stays, and the next one goes on there */
    }
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(c->pidfd);
    if (c->order_fd >= 0) close(c->order_fd);
    if (is_told) return EN_EINTR;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return EN_OK;
    if (WIFEXITED(status) && WEXITSTATUS(status) <= 2) return WEXITSTATUS(status) == 2 ? EN_EINVAL : EN_EIO;
    return eni_fail(EN_EIO, "remote", "the program transfer ended by %s %d",
                    WIFEXITED(status) ? "exit code" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* One path comes back, and a 0 behind it. */
static en_status run(args *a, int signal_fd, char path_out[PATH_MAX])
{
    child c;
    size_t got = 0;
    EN_TRY(start(a, path_out != NULL, false, &c));
    en_status st = finish(&c, signal_fd);
    if (path_out == NULL) return st;
    for (ssize_t n = 1; st == EN_OK && n > 0 && got<PATH_MAX; got += n> 0 ? (size_t)n : 0)
        n = read(c.answer_fd, path_out + got, PATH_MAX - got);
    close(c.answer_fd);
    if (st == EN_OK && (got == 0 || path_out[got - 1] != '\0'))
        st = eni_fail(EN_EIO, "remote", "the program transfer gave no path");
    return st;
}

/* ---- what comes ---- */

static en_status set(char **field, const char *text)
{
    char *copy = eni_strdup(text);
    if (copy == NULL) return EN_ENOMEM;
    eni_free(*field);
    *field = copy;
    return EN_OK;
}

static en_status bring_data(eni_config *c, int signal_fd)
{
    char folder[PATH_MAX];
    args a;
    const char *name;
    if (!eni_is_url(c->data) || c->data_dir != NULL) return EN_OK;
    EN_TRY(begin_args(&a, c, "fetch"));
    add(&a, "--");
    add(&a, c->data);
    for (int i = 0; (name = eni_dataset_file_at(i)) != NULL; i++)
        add(&a, name);
    EN_TRY(run(&a, signal_fd, folder));
    return eni_config_set(c, "data-dir", folder, "--data");
}

/* One file: --init, --resume. */
static en_status bring_file(const eni_config *c, const char *flag, char **field, int signal_fd)
{
    char path[PATH_MAX];
    args a;
    if (!eni_is_url(*field)) return EN_OK;
    EN_TRY(begin_args(&a, c, "get"));
    add(&a, "--flag");
    add(&a, flag);
    add(&a, "--");
    add(&a, *field);
    EN_TRY(run(&a, signal_fd, path));
    return set(field, path);
}

en_status eni_transfer_bring(eni_config *config, int signal_fd)
{
    EN_TRY(bring_data(config, signal_fd));
    EN_TRY(bring_file(config, "--init", &config->init, signal_fd));
    return bring_file(config, "--resume", &config->resume, signal_fd);
}

en_status eni_transfer_list(const eni_config *config, const char *url, int signal_fd)
{
    args a;
    EN_TRY(begin_args(&a, config, "list"));
    add(&a, "--");
    add(&a, url);
    return run(&a, signal_fd, NULL);
}

en_status eni_transfer_clear(const eni_config *config, int signal_fd)
{
    args a;
    EN_TRY(begin_args(&a, config, "clear"));
    return run(&a, signal_fd, NULL);
}

/* ---- what goes ---- */

struct eni_mirror {
    child process;
    int signal_fd;
};

static en_status needs_out(const eni_config *c, const char *flag, const char *url)
{
    if (c->out != NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "remote",
                    "%s=%.200s needs --out=FOLDER: files lie there before they go to the bucket", flag, url);
}

/* The name behind the last '/'. */
static en_status name_of(const char *flag, const char *url, const char **name_out)
{
    eni_bucket_url parsed;
    EN_TRY(eni_bucket_url_parse(flag, url, &parsed));
    const char *slash = strrchr(url, '/'), *name = slash + 1;
    *name_out = name;
    if (parsed.key[0] != '\0' && *name != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
        return EN_OK;
    return eni_fail(EN_EINVAL, "remote",
                    "%s=%.200s names no file: give the whole key, as %.200s%sweights.safetensors", flag, url,
                    url, *name == '\0' && parsed.key[0] != '\0' ? "" : "/");
}

/* --resume=auto on a host that has no checkpoint of this run yet. */
static en_status bring_newest(const eni_config *c, const char *url, const char *dir, int signal_fd)
{
    char newest[1200], path[PATH_MAX];
    args a;
    if (c->resume == NULL || strcmp(c->resume, "auto") != 0 ||
        eni_out_newest(c, newest, sizeof newest) == EN_OK)
        return EN_OK;
    EN_TRY(eni_folder_check("--out", dir));
    EN_TRY(begin_args(&a, c, "newest"));
    add(&a, "--");
    add(&a, url);
    add(&a, dir);
    return run(&a, signal_fd, path);
}

/* Adds the pairs LOCAL URL that are to be taken up, and sets what is local. */
static en_status name_pairs(eni_config *c, bool is_writer, int signal_fd, char save[PATH_MAX],
                            char save_url[2048], char dir[PATH_MAX], char dir_url[2048])
{
    const char *name;
    if (eni_is_url(c->checkpoint_dir)) {
        EN_TRY(needs_out(c, "--checkpoint-dir", c->checkpoint_dir));
        snprintf(dir_url, 2048, "%s", c->checkpoint_dir);
        snprintf(dir, PATH_MAX, "%.1000s/checkpoints", c->out);
        eni_free(c->checkpoint_dir);
        c->checkpoint_dir = NULL; /* OUT/checkpoints, which --overwrite may clear */
        if (is_writer) EN_TRY(bring_newest(c, dir_url, dir, signal_fd));
    }
    if (eni_is_url(c->save)) {
        EN_TRY(needs_out(c, "--save", c->save));
        EN_TRY(name_of("--save", c->save, &name));
        snprintf(save_url, 2048, "%s", c->save);
        snprintf(save, PATH_MAX, "%.1000s/%.255s", c->out, name);
        EN_TRY(set(&c->save, save));
    }
    return EN_OK;
}

en_status eni_mirror_open(eni_config *config, bool is_writer, int signal_fd, eni_mirror **mirror_out)
{
    char save[PATH_MAX] = "", save_url[2048] = "", dir[PATH_MAX] = "", dir_url[2048] = "";
    args a;
    *mirror_out = NULL;
    if (!eni_is_url(config->save) && !eni_is_url(config->checkpoint_dir)) return EN_OK;
    EN_TRY(name_pairs(config, is_writer, signal_fd, save, save_url, dir, dir_url));
    if (!is_writer) return EN_OK;
    EN_TRY(begin_args(&a, config, "mirror"));
    if (save[0] != '\0') add(&a, "--file"), add(&a, save), add(&a, "--as"), add(&a, save_url);
    if (dir[0] != '\0') add(&a, "--folder"), add(&a, dir), add(&a, "--into"), add(&a, dir_url);
    if (config->resume != NULL) add(&a, "--resumes");
    eni_mirror *m = eni_alloc(sizeof *m);
    if (m == NULL) return EN_ENOMEM;
    m->signal_fd = signal_fd;
    const en_status st = start(&a, true, true, &m->process);
    char ready = 0;
    ssize_t n = -1;
    if (st == EN_OK) {
        struct pollfd watched[2] = {{m->process.answer_fd, POLLIN, 0}, {signal_fd, POLLIN, 0}};
        while (poll(watched, signal_fd >= 0 ? 2 : 1, -1) < 0 && errno == EINTR) {
        }
        if (watched[0].revents != 0) n = read(m->process.answer_fd, &ready, 1);
        close(m->process.answer_fd);
    }
    if (st == EN_OK && n == 1) {
        *mirror_out = m;
        return EN_OK;
    }
    const en_status ended = st == EN_OK ? finish(&m->process, signal_fd) : st; /* it has said why */
    eni_free(m);
    return ended == EN_OK ? EN_EIO : ended;
}

/* The one that has ended the run, so that only the next one ends the waiting. 0: there is none. */
static int take_signal(int signal_fd)
{
    struct signalfd_siginfo info;
    struct pollfd watched = {signal_fd, POLLIN, 0};
    if (signal_fd < 0 || poll(&watched, 1, 0) != 1 || read(signal_fd, &info, sizeof info) != sizeof info)
        return 0;
    return (int)info.ssi_signo;
}

en_status eni_mirror_close(eni_mirror *mirror, en_status ended)
{
    if (mirror == NULL) return EN_OK;
    const char last = ended == EN_OK ? 'f' : 'n';
    const bool is_told = write(mirror->process.order_fd, &last, 1) == 1;
    if (!is_told) eni_debug("remote", "the program transfer has ended before");
    const int first = take_signal(mirror->signal_fd);
    const en_status st = finish(&mirror->process, mirror->signal_fd);
    if (first != 0) raise(first); /* blocked: it waits there again, for the exit code */
    if (st == EN_EINTR) eni_warn("remote", "interrupted: what has not been taken up yet stays in --out");
    eni_free(mirror);
    return st;
}
