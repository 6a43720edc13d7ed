/* servers.c - see servers.h. */
#include "cli/servers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cause.h"
#include "cli/nodes.h"
#include "config/env.h"
#include "config/folders.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/control/runs.h"

enum { LAST_MS = 2000 }; /* a psd that is alone ends by itself within this time, or is ended */

en_status eni_servers_check(const eni_config *c, const en_strategy *strategy)
{
    const int has_psd = (strategy->flags & EN_STORE_ON_SERVERS) != 0;
    if (!has_psd && (c->servers > 1 || c->server_restarts > 0 || c->server_timeout_ns > 0)) {
        eni_error("launch",
                  "%s keeps nothing on a server: leave out --servers, --server-restarts and "
                  "--server-timeout",
                  strategy->name);
        return EN_EINVAL;
    }
    if (c->server_restarts > 0 && c->server_timeout_ns == 0) {
        eni_error("launch",
                  "--server-restarts=%lld needs --server-timeout, such as 10s: else the workers do not "
                  "wait for psd",
                  (long long)c->server_restarts);
        return EN_EINVAL;
    }
    if (c->server_timeout_ns > 0 && c->server_restarts == 0) {
        eni_error("launch",
                  "--server-timeout needs --server-restarts=N: nobody else starts this run's psd again");
        return EN_EINVAL;
    }
    if (c->servers > 1 && c->server_timeout_ns > 0) {
        eni_error(
            "launch",
            "--server-timeout with --servers=%lld: a psd among several cannot come back yet; drop "
            "--server-restarts and --server-timeout, and the run ends when a psd is lost, or drop --servers, "
            "and the one psd comes back",
            (long long)c->servers);
        return EN_EINVAL;
    }
    if (c->server_timeout_ns > 0 && eni_nodes_are_several(c)) {
        eni_error("launch", "--server-restarts: on several hosts start psd by hand, with --state");
        return EN_EINVAL;
    }
    return EN_OK;
}

/* Plain files only: psd makes no others. Not behind a link. */
static void empty_folder(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL && fd >= 0) close(fd);
    if (dir == NULL) return;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (entry->d_type == DT_REG) unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
}

/* A launcher that is killed cannot clear up, nor can the psd that dies with it. So a child of ours waits
 * until nobody holds the other end of a pipe any more, psd and ranks included, and does it then. */
static void watch_folder(eni_launcher *l)
{
    int ends[2];
    if (pipe(ends) != 0) return;
    l->keeper = fork();
    if (l->keeper == 0) {
        char byte;
        setpgid(0, 0);
        dup2(ends[0], STDIN_FILENO);
        close_range(STDIN_FILENO + 1, ~0U, 0);
        while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
        }
        empty_folder(l->state);
        rmdir(l->state);
        _exit(0);
    }
    close(ends[0]);
    l->keeper_fd = ends[1];
    if (l->keeper < 0) close(l->keeper_fd);
}

en_status eni_servers_open(eni_launcher *l)
{
    const eni_config *c = l->launch->config;
    char left[sizeof l->state];
    snprintf(left, sizeof left, "%.1000s/server-state", c->out == NULL ? "" : c->out);
    if (l->out_fd >= 0) empty_folder(left); /* of an older run, which is over */
    if (l->out_fd >= 0) rmdir(left);
    if (c->server_restarts == 0) return EN_OK;
    l->restarts_left = c->server_restarts;
    if (c->out != NULL) {
        memcpy(l->state, left, sizeof left);
        if (mkdir(l->state, 0700) != 0 && errno != EEXIST) {
            eni_error("launch", "cannot make %s for psd's state: %s", l->state, strerror(errno));
            l->state[0] = 0;
            return EN_EIO;
        }
        return EN_OK;
    }
    snprintf(l->state, sizeof l->state, "/tmp/entrain-state-XXXXXX");
    if (mkdtemp(l->state) != NULL) {
        watch_folder(l);
        return EN_OK;
    }
    eni_error("launch", "cannot make a folder in /tmp for psd's state: %s", strerror(errno));
    l->state[0] = 0;
    return EN_EIO;
}

/* The file for `entrain ps` of a psd or rank 0 that was killed. */
static void remove_status_files(void)
{
    char folder[256];
    eni_run_status *runs;
    size_t n;
    if (eni_env_runtime_dir(folder, sizeof folder) == EN_OK && eni_runs_list(folder, &runs, &n) == EN_OK)
        eni_runs_free(runs, n);
}

void eni_servers_close(eni_launcher *l)
{
    remove_status_files();
    if (l->state[0] == 0) return;
    empty_folder(l->state);
    rmdir(l->state);
    if (l->keeper <= 0) return;
    close(l->keeper_fd);
    waitpid(l->keeper, NULL, 0);
}

int eni_servers_restart(eni_launcher *l, const eni_child *c)
{
    char cause[64];
    if (c->rank != -1 || l->restarts_left == 0 || l->is_ending || l->has_death) return 0;
    l->restarts_left--;
    eni_signal_text(WTERMSIG(c->status), cause, sizeof cause);
    eni_warn("launch", "%s (pid %d) died: %s; starting it again, %lld more are allowed", c->role, (int)c->pid,
             cause, (long long)l->restarts_left);
    return eni_launcher_start_psd(l, 0) == EN_OK;
}

void eni_servers_end_with_workers(eni_launcher *l)
{
    eni_child *psd = NULL;
    for (int i = 0; i < l->nchildren; i++) {
        if (!l->child[i].is_running) continue;
        if (l->child[i].rank >= 0 || psd != NULL) return;
        psd = &l->child[i];
    }
    if (l->state[0] == 0 || psd == NULL || l->first != EN_OK || psd->is_terminated) return;
    if (l->alone_ns == 0) l->alone_ns = eni_now_ns();
    if (eni_now_ns() - l->alone_ns < LAST_MS * ENI_MILLI) return;
    psd->is_terminated = 1;
    kill(psd->pid, SIGKILL);
}
