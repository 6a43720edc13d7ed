/* transfer.c - see transfer.h: finds the flags that are URLs, and runs the process that downloads or uploads
 * them. */
#include "remote/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/signals.h"
#include "core/try.h"
#include "data/dataset.h"
#include "remote/url.h"

/* STOP_MS: time to remove an incomplete upload (upload.h). */
enum { ARGS = 64, ANSWER_FD = 3, URL_BYTES = 2048, END_MS = 30000, STOP_MS = 8000, PATIENCE = -1 };

typedef struct args {
    const char *arg[ARGS];
    int n;
    char cache[PATH_MAX], level[8];
} args;

/* Appends texts up to a NULL. */
static __attribute__((sentinel)) void add(args *a, const char *text, ...)
{
    va_list more;
    va_start(more, text);
    for (; text != NULL && a->n < ARGS - 1; text = va_arg(more, const char *))
        a->arg[a->n++] = text;
    va_end(more);
}

static en_status begin_args(args *a, const eni_config *c, const char *verb)
{
    *a = (args){.n = 1};
    EN_TRY(eni_env_cache_dir(a->cache, sizeof a->cache));
    snprintf(a->level, sizeof a->level, "%d", (int)c->log_level);
    add(a, verb, "--cache", a->cache, "--log-level", a->level, NULL);
    if (c->quiet || c->mute) add(a, "--quiet", NULL);
    if (c->data_endpoint != NULL) add(a, "--endpoint", c->data_endpoint, NULL);
    if (c->data_keys != NULL) add(a, "--keys", c->data_keys, NULL);
    return EN_OK;
}

/* ---- the process ---- */

typedef struct child {
    pid_t pid;
    int answer_fd, order_fd; /* its answers; orders to it. -1 if absent */
} child;

/* Between fork and exec: only async-signal-safe calls. */
static void become(const char *path, char **argv, int answer_fd, int order_fd)
{
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);            /* Ctrl-C goes to the command, which decides what follows */
    signal(SIGTTOU, SIG_IGN); /* `stty tostop` would stop a background process */
    signal(SIGUSR1, SIG_IGN); /* Slurm sends them to all: they are for the ranks */
    signal(SIGUSR2, SIG_IGN);
    if (order_fd >= 0 && dup2(order_fd, STDIN_FILENO) < 0) _exit(126);
    if (answer_fd == ANSWER_FD) /* with dup2 exec would still close it */
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
    child c = {.pid = -1, .answer_fd = -1, .order_fd = -1};
    EN_TRY(eni_folder_program("transfer", path, sizeof path));
    a->arg[0] = path;
    a->arg[a->n] = NULL;
    fflush(stdout); /* before the child's output there */
    if ((!has_answer || pipe2(answer, O_CLOEXEC) == 0) && (!has_orders || pipe2(order, O_CLOEXEC) == 0))
        /* one that takes orders sees its pipe close, and may have to remove something first */
        c.pid = eni_signals_fork(has_orders ? 0 : SIGKILL);
    if (c.pid == 0) become(path, (char **)(uintptr_t)a->arg, answer[1], order[0]);
    const int cause = errno;
    if (answer[1] >= 0) close(answer[1]);
    if (order[0] >= 0) close(order[0]);
    c.answer_fd = answer[0];
    c.order_fd = order[1];
    if (c.pid > 0) {
        *child_out = c;
        return EN_OK;
    }
    if (answer[0] >= 0) close(answer[0]);
    if (order[1] >= 0) close(order[1]);
    return eni_fail(EN_EIO, "remote", "cannot start %s: %s", path, strerror(cause));
}

/* Whether it has given signs of life since the last call. */
static bool has_signs(const child *c)
{
    struct pollfd answer = {c->answer_fd, POLLIN, 0};
    char signs[4096];
    bool has = false;
    while (poll(&answer, 1, 0) == 1 && read(c->answer_fd, signs, sizeof signs) > 0)
        has = true;
    return has;
}

/* Waits for its end, and returns its exit code as a status (core/signals.h). Ends it when a signal tells us
 * to end, or when it has given no sign of life on answer_fd for `quiet_ms` (PATIENCE: no limit). */
static en_status finish(child *c, int signal_fd, int quiet_ms)
{
    int status = 0;
    en_status st;
    do {
        const int64_t quiet_ns = (int64_t)quiet_ms * (ENI_SECOND / 1000);
        const int64_t deadline_ns = quiet_ms == PATIENCE ? INT64_MAX : eni_now_ns() + quiet_ns;
        st = eni_signals_await(c->pid, signal_fd, deadline_ns, &status);
    } while (st == EN_ETIMEOUT && has_signs(c));
    const bool is_late = st == EN_ETIMEOUT, is_reported = st == EN_EINTR;
    if (is_late) eni_error("remote", "no progress of the upload for %d s: giving up", quiet_ms / 1000);
    const bool has_orders = c->order_fd >= 0;
    if (has_orders) close(c->order_fd); /* which ends it, if it has not ended yet */
    const int64_t stop_ns = eni_now_ns() + (has_orders ? STOP_MS : 0) * (ENI_SECOND / 1000);
    if ((is_late || is_reported) && eni_signals_await(c->pid, -1, stop_ns, &status) != EN_OK) {
        kill(c->pid, SIGKILL); /* partial downloads stay, and the next one continues them */
        (void)eni_signals_await(c->pid, -1, INT64_MAX, &status);
    }
    if (quiet_ms != PATIENCE) close(c->answer_fd);
    if (is_reported) return EN_EINTR;
    if (is_late) return EN_EIO;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return EN_OK;
    if (WIFEXITED(status) && WEXITSTATUS(status) <= 2) return WEXITSTATUS(status) == 2 ? EN_EINVAL : EN_EIO;
    return eni_fail(EN_EIO, "remote", "the transfer program ended with %s %d",
                    WIFEXITED(status) ? "exit code" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* It returns one path, followed by a 0. */
static en_status run(args *a, int signal_fd, char path_out[PATH_MAX])
{
    child c;
    size_t got = 0;
    EN_TRY(start(a, path_out != NULL, false, &c));
    en_status st = finish(&c, signal_fd, PATIENCE);
    if (path_out == NULL) return st;
    for (ssize_t n = 1; st == EN_OK && n > 0 && got<PATH_MAX; got += n> 0 ? (size_t)n : 0)
        n = read(c.answer_fd, path_out + got, PATH_MAX - got);
    close(c.answer_fd);
    if (st == EN_OK && (got == 0 || path_out[got - 1] != '\0'))
        st = eni_fail(EN_EIO, "remote", "the transfer program returned no path");
    return st;
}

/* ---- downloads ---- */

static en_status bring_data(eni_config *c, int signal_fd)
{
    char folder[PATH_MAX];
    args a;
    const char *name;
    if (!eni_is_url(c->data) || c->data_dir != NULL) return EN_OK;
    EN_TRY(begin_args(&a, c, "fetch"));
    add(&a, "--", c->data, NULL);
    for (int i = 0; (name = eni_dataset_file_at(i)) != NULL; i++)
        add(&a, name, NULL);
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
    add(&a, "--flag", flag, "--", *field, NULL);
    EN_TRY(run(&a, signal_fd, path));
    return eni_config_put(field, path);
}

en_status eni_transfer_list(const eni_config *config, const char *url, int signal_fd)
{
    args a;
    EN_TRY(begin_args(&a, config, "list"));
    add(&a, "--", url, NULL);
    return run(&a, signal_fd, NULL);
}

en_status eni_transfer_clear(const eni_config *config, int signal_fd)
{
    args a;
    EN_TRY(begin_args(&a, config, "clear"));
    return run(&a, signal_fd, NULL);
}

/* ---- uploads ---- */

struct eni_uploads {
    child process;
    int signal_fd;
    pthread_t watcher; /* reports its death at once: a run may go on for days */
    int stop_fd;       /* ends the watcher */
};

/* The watcher's thread. It does not reap the process, which `finish` does. */
static void *watch(void *user)
{
    const eni_uploads *t = user;
    struct pollfd watched[2] = {{t->process.answer_fd, 0, 0},
                                {t->stop_fd, POLLIN, 0}}; /* hangs up when the process ends */
    siginfo_t how = {.si_status = 0};
    while (poll(watched, 2, -1) < 0 && errno == EINTR) {
    }
    if (watched[1].revents != 0 || waitid(P_PID, (id_t)t->process.pid, &how, WEXITED | WNOWAIT) != 0)
        return NULL;
    eni_error("remote",
              "the transfer program (pid %d) has ended with %s %d: nothing more is uploaded; the run goes "
              "on, and its files stay in --out",
              (int)t->process.pid, how.si_code == CLD_EXITED ? "exit code" : "signal", how.si_status);
    return NULL;
}

static en_status start_watcher(eni_uploads *t)
{
    t->stop_fd = eventfd(0, EFD_CLOEXEC);
    const int cause = t->stop_fd < 0 ? errno : pthread_create(&t->watcher, NULL, watch, t);
    if (cause == 0) return EN_OK;
    if (t->stop_fd >= 0) close(t->stop_fd);
    close(t->process.answer_fd);
    kill(t->process.pid, SIGKILL);
    (void)finish(&t->process, -1, PATIENCE);
    return eni_fail(EN_EIO, "remote", "cannot start a thread: %s", strerror(cause));
}

/* The files to upload: a file and a folder of --out, and their URLs. "" if absent. */
typedef struct outputs {
    char file[PATH_MAX], as[URL_BYTES], folder[PATH_MAX], into[URL_BYTES];
} outputs;

static en_status check_out(const eni_config *c, const char *flag, const char *url, eni_remote_url *parsed_out)
{
    EN_TRY(eni_remote_url_parse(flag, url, parsed_out));
    if (c->out != NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "remote",
                    "%s=%.200s needs --out=FOLDER: files are written there before they are uploaded", flag,
                    url);
}

/* The name after the last '/'. No other file of --out ends in .safetensors. */
static en_status name_of(const eni_remote_url *parsed, const char *url, const char **name_out)
{
    static const char suffix[] = ".safetensors";
    const char *name = strrchr(url, '/') + 1;
    const size_t length = strlen(name);
    *name_out = name;
    if (parsed->key[0] != '\0' && length >= sizeof suffix &&
        strcmp(name + length - (sizeof suffix - 1), suffix) == 0)
        return EN_OK;
    return eni_fail(
        EN_EINVAL, "remote",
        "--save=%.200s: give the whole key, ending in .safetensors, such as s3://%s/runs/weights.safetensors",
        url, parsed->bucket);
}

/* Before anything is fetched: sets the local paths. */
static en_status name_outputs(eni_config *c, outputs *o)
{
    eni_remote_url parsed;
    const char *name;
    if (eni_is_url(c->checkpoint_dir)) {
        EN_TRY(check_out(c, "--checkpoint-dir", c->checkpoint_dir, &parsed));
        snprintf(o->into, sizeof o->into, "%s", c->checkpoint_dir);
        snprintf(o->folder, sizeof o->folder, "%.1000s/checkpoints", c->out);
        eni_free(c->checkpoint_dir);
        c->checkpoint_dir = NULL; /* OUT/checkpoints, which --overwrite may clear */
    }
    if (eni_is_url(c->save)) {
        EN_TRY(check_out(c, "--save", c->save, &parsed));
        EN_TRY(name_of(&parsed, c->save, &name));
        snprintf(o->as, sizeof o->as, "%s", c->save);
        snprintf(o->file, sizeof o->file, "%.1000s/%.255s", c->out, name);
        EN_TRY(eni_config_put(&c->save, o->file));
    }
    return EN_OK;
}

static en_status bring_newest(const eni_config *c, const outputs *o, int signal_fd)
{
    char path[PATH_MAX];
    args a;
    if (o->into[0] == '\0' || c->resume == NULL || strcmp(c->resume, "auto") != 0) return EN_OK;
    EN_TRY(eni_folder_check("--out", o->folder));
    EN_TRY(begin_args(&a, c, "newest"));
    add(&a, "--", o->into, o->folder, NULL);
    return run(&a, signal_fd, path);
}

/* It reports when it has found that it may write. */
static en_status wait_until_ready(eni_uploads *t)
{
    char ready = 0;
    struct pollfd watched[2] = {{t->process.answer_fd, POLLIN, 0}, {t->signal_fd, POLLIN, 0}};
    while (poll(watched, t->signal_fd >= 0 ? 2 : 1, -1) < 0 && errno == EINTR) {
    }
    const bool is_ready = watched[0].revents != 0 && read(t->process.answer_fd, &ready, 1) == 1;
    if (is_ready) return EN_OK;
    close(t->process.answer_fd);
    const en_status ended = finish(&t->process, t->signal_fd, PATIENCE); /* it has logged why */
    return ended == EN_OK ? EN_EIO : ended;
}

static en_status start_mirror(const eni_config *c, const outputs *o, int signal_fd, eni_uploads **uploads_out)
{
    args a;
    if (o->file[0] == '\0' && o->folder[0] == '\0') return EN_OK;
    EN_TRY(begin_args(&a, c, "mirror"));
    if (o->file[0] != '\0') add(&a, "--file", o->file, "--as", o->as, NULL);
    if (o->folder[0] != '\0') add(&a, "--folder", o->folder, "--into", o->into, NULL);
    if (c->resume != NULL) add(&a, "--resumes", NULL);
    eni_uploads *t = eni_alloc(sizeof *t);
    if (t == NULL) return EN_ENOMEM;
    t->signal_fd = signal_fd;
    en_status st = start(&a, true, true, &t->process);
    if (st == EN_OK) st = wait_until_ready(t);
    if (st == EN_OK) st = start_watcher(t);
    if (st == EN_OK)
        *uploads_out = t;
    else
        eni_free(t);
    return st;
}

en_status eni_transfer_begin(eni_config *config, bool is_writer, int signal_fd, eni_uploads **uploads_out)
{
    outputs *o = eni_alloc(sizeof *o);
    *uploads_out = NULL;
    if (o == NULL) return EN_ENOMEM;
    en_status st = name_outputs(config, o);
    if (st == EN_OK) st = bring_data(config, signal_fd);
    if (st == EN_OK) st = bring_file(config, "--init", &config->init, signal_fd);
    if (st == EN_OK) st = bring_file(config, "--resume", &config->resume, signal_fd);
    if (st == EN_OK && is_writer) st = bring_newest(config, o, signal_fd);
    if (st == EN_OK && is_writer) st = start_mirror(config, o, signal_fd, uploads_out);
    eni_env_forget_keys();
    eni_free(o);
    return st;
}

en_status eni_transfer_end(eni_uploads *uploads, en_status ended)
{
    if (uploads == NULL) return EN_OK;
    const char last = ended == EN_OK ? 'f' : 'n';
    eventfd_write(uploads->stop_fd, 1);
    pthread_join(uploads->watcher, NULL);
    close(uploads->stop_fd);
    (void)has_signs(&uploads->process); /* clears those given since the run began */
    const bool is_reported = write(uploads->process.order_fd, &last, 1) == 1;
    const int first = eni_signals_take(uploads->signal_fd); /* so only the next one ends the waiting */
    en_status st = finish(&uploads->process, uploads->signal_fd, END_MS);
    if (first != 0) raise(first); /* blocked: it is pending there again, for the exit code */
    if (st == EN_OK && !is_reported) st = EN_EIO;
    if (st != EN_OK)
        eni_warn("remote",
                 "%s: files that are not in the bucket yet are in --out; repeat the command with "
                 "--resume=auto to upload them",
                 st == EN_EINTR ? "interrupted" : "not all files were uploaded");
    eni_free(uploads);
    return st;
}
