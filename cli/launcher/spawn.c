/* spawn.c - starts processes: the address of the run, psd's state, and each process with its own copy of the
 * config and of the token. A process dies with the launcher. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launcher/launch_impl.h"
#include "config/env.h"
#include "config/folders.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "runtime/control/runs.h"
#include "runtime/net/host_info.h"
#include "runtime/net/process.h"

/* ---- where the ranks meet ---- */

/* A name that resolves to the loopback on its own host (127.0.1.1 in /etc/hosts) is useless on the others. */
static en_status check_master(const eni_config *config, const eni_address *master)
{
    eni_own_address own;
    EN_TRY(eni_host_info_address(master, &own));
    if (own.is_loopback)
        eni_warn("launch",
                 "--master-addr=%s is the loopback of this host: only processes on this host can join",
                 master->host);
    if (config->node_rank == 0 && !own.is_remote_here)
        return eni_fail(
            EN_EINVAL, "launch",
            "--master-addr=%s is not this host, but --node-rank=0 leads the run: give its own address",
            master->host);
    /* it may still be written: workers wait */
    if (own.is_remote_here || config->token_file != NULL) return EN_OK;
    return eni_fail(
        EN_EINVAL, "launch",
        "--node-rank=%lld needs the token of the run, which is on another host: create one file, copy it to "
        "all hosts, and pass it by --token-file=FILE or ENTRAIN_TOKEN_FILE (docs/launch.md)",
        (long long)config->node_rank);
}

static en_status node_address(const eni_config *config, char address_out[ENI_ADDRESS_TEXT])
{
    char text[ENI_ADDRESS_TEXT];
    eni_address master;
    if (config->master_addr == NULL && config->init_method == NULL)
        return eni_fail(
            EN_EINVAL, "launch",
            "--nnodes=%lld needs --master-addr=HOST: the address by which the others reach host 0",
            (long long)config->nnodes);
    if (config->init_method == NULL) {
        const char *format = strchr(config->master_addr, ':') != NULL ? "tcp://[%s]:%d" : "tcp://%s:%d";
        snprintf(text, sizeof text, format, config->master_addr, (int)config->master_port);
    }
    EN_TRY(eni_address_parse(config->init_method != NULL ? config->init_method : text, &master));
    if (master.port == 0)
        return eni_fail(EN_EINVAL, "launch", "--init-method=%s: all hosts must know the port; give one",
                        config->init_method);
    EN_TRY(check_master(config, &master));
    eni_address_format(&master, address_out);
    return EN_OK;
}

/* On one host: any free port, or --init-method's, bound before any process starts, another one that is free now, and a
 * fresh token. */
en_status eni_launcher_choose_address(eni_launcher *l)
{
    const eni_config *c = l->launch->config;
    eni_address own = {.host = "127.0.0.1", .port = 0}, bound;
    int fd;
    if (c->nnodes > 1) return node_address(c, l->address);
    if (c->init_method != NULL) EN_TRY(eni_address_parse(c->init_method, &own));
    EN_TRY(eni_tcp_listen(&own, false, &l->listen_fd, &bound));
    eni_address_format(&bound, l->address);
    eni_token_make(&l->token);
    own = (eni_address){.host = "127.0.0.1"};
    EN_TRY(eni_tcp_listen(&own, false, &fd, &bound));
    l->master_port = bound.port;
    close(fd);
    return EN_OK;
}

/* ---- the servers: how many, and the state that a killed one leaves for the next ---- */

en_status eni_servers_check(const eni_config *c, const en_strategy *strategy)
{
    const bool has_psd = (strategy->flags & EN_STORE_ON_SERVERS) != 0;
    if (!has_psd && (c->servers > 1 || c->server_restarts > 0 || c->server_timeout_ns > 0 || c->record_order))
        return eni_fail(
            EN_EINVAL, "launch",
            "%s keeps no state on a server: omit --servers, --server-restarts, --server-timeout and "
            "--record-order",
            strategy->name);
    if (c->server_restarts > 0 && c->server_timeout_ns == 0)
        return eni_fail(
            EN_EINVAL, "launch",
            "--server-restarts=%lld needs --server-timeout, such as 10s: otherwise the workers do not "
            "wait for psd",
            (long long)c->server_restarts);
    if (c->server_timeout_ns > 0 && c->server_restarts == 0)
        return eni_fail(EN_EINVAL, "launch",
                        "--server-timeout needs --server-restarts=N: nothing else restarts this run's psd");
    if (c->servers > 1 && c->server_timeout_ns > 0)
        return eni_fail(
            EN_EINVAL, "launch",
            "--server-timeout with --servers=%lld: one psd of several cannot be restarted yet; omit "
            "--server-restarts and --server-timeout, so that the run ends when a psd is lost, or omit "
            "--servers, so that the one psd can be restarted",
            (long long)c->servers);
    if (c->server_timeout_ns > 0 && c->nnodes > 1)
        return eni_fail(EN_EINVAL, "launch",
                        "--server-restarts=%lld with --nnodes=%lld: start psd by hand, with --state",
                        (long long)c->server_restarts, (long long)c->nnodes);
    return EN_OK;
}

/* Removes a folder of plain files: psd creates no others. Does not follow a link. */
static void remove_folder(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL && fd >= 0) close(fd);
    for (const struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
        if (entry->d_type == DT_REG) unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir != NULL) closedir(dir);
    rmdir(path);
}

/* Closes all descriptors but the first; one by one if the kernel lacks the call or a filter refuses it. */
static void close_others(void)
{
    if (syscall(__NR_close_range, STDIN_FILENO + 1, ~0U, 0) == 0) return; /* a call of glibc 2.34 */
    DIR *dir = opendir("/proc/self/fd");
    for (const struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        const int fd = atoi(entry->d_name);
        if (fd > STDIN_FILENO && fd != dirfd(dir)) close(fd);
    }
    if (dir != NULL) closedir(dir);
}

/* A killed launcher cannot clean up, nor can the psd that dies with it. So a child waits until no process,
 * psd and ranks included, holds the other end of a pipe, and then removes the folder. */
static void watch_folder(eni_launcher *l)
{
    int ends[2];
    if (pipe(ends) != 0) return;
    l->psd.keeper = fork();
    if (l->psd.keeper == 0) {
        char byte;
        setpgid(0, 0);
        dup2(ends[0], STDIN_FILENO);
        close(ends[1]); /* otherwise it would wait for itself */
        close_others();
        while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
        }
        remove_folder(l->psd.state);
        _exit(0);
    }
    close(ends[0]);
    l->psd.keeper_fd = ends[1];
    if (l->psd.keeper < 0) close(l->psd.keeper_fd);
}

en_status eni_servers_open(eni_launcher *l)
{
    const eni_config *c = l->launch->config;
    char left[sizeof l->psd.state];
    snprintf(left, sizeof left, "%.1000s/server-state", c->out == NULL ? "" : c->out);
    if (l->out_fd >= 0) remove_folder(left); /* left by an older run, which has ended */
    if (c->server_restarts == 0) return EN_OK;
    l->psd.restarts_left = c->server_restarts;
    snprintf(l->psd.state, sizeof l->psd.state, "%s", c->out != NULL ? left : "/tmp/entrain-state-XXXXXX");
    const bool is_made =
        c->out != NULL ? mkdir(l->psd.state, 0700) == 0 || errno == EEXIST : mkdtemp(l->psd.state) != NULL;
    if (is_made) {
        if (c->out == NULL) watch_folder(l);
        return EN_OK;
    }
    l->psd.state[0] = 0;
    return eni_fail(EN_EIO, "launch", "cannot create %s for psd's state: %s",
                    c->out != NULL ? left : "a folder in /tmp", strerror(errno));
}

/* Removes what a killed psd or rank 0 leaves: the file for `entrain ps`, and the token if it was still there. */
static void remove_leftovers(const eni_launcher *l)
{
    char folder[256], token[512];
    eni_run_status *runs;
    eni_address leader;
    size_t n;
    if (!eni_env_has_runtime_dir(folder, sizeof folder)) return;
    /* eni_runs_list removes those of ended runs */
    if (eni_runs_list(folder, &runs, &n) == EN_OK) eni_runs_free(runs, n);
    if (l->address[0] == '\0' || eni_address_parse(l->address, &leader) != EN_OK ||
        eni_token_path(folder, leader.port, token, sizeof token) != EN_OK)
        return;
    if (eni_writer_look(token) == ENI_WRITER_ENDED) eni_token_remove(token);
}

void eni_servers_close(eni_launcher *l)
{
    remove_leftovers(l);
    if (l->psd.state[0] == 0) return;
    remove_folder(l->psd.state);
    if (l->psd.keeper <= 0) return;
    close(l->psd.keeper_fd);
    waitpid(l->psd.keeper, NULL, 0);
}

/* ---- one process ---- */

/* Each child gets a pipe of its own. On several hosts each child finds the token by itself. */
static en_status pass_token(const eni_launcher *l, eni_config *config)
{
    if (l->launch->config->nnodes > 1) return EN_OK;
    char hex[ENI_TOKEN_HEX];
    int ends[2];
    eni_token_hex(&l->token, hex);
    if (pipe2(ends, O_CLOEXEC) != 0)
        return eni_fail(EN_EIO, "launch", "cannot pass the job token on: %s", strerror(errno));
    const bool is_written =
        write(ends[1], hex, ENI_TOKEN_HEX - 1) == ENI_TOKEN_HEX - 1; /* a pipe has the room */
    config->token_fd = ends[0];
    close(ends[1]);
    return is_written ? EN_OK : EN_EIO;
}

/* Between fork and exec. */
static void become_child(const eni_config *config)
{
    const int64_t fds[] = {config->listen_fd, config->token_fd, config->result_fd, config->out_fd,
                           config->data_fd};
    setpgid(0, 0);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) fcntl((int)fds[i], F_SETFD, 0);
}

static void set_number(const char *name, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 1);
}

/* The program of a rank gets its settings, flags without dashes, and its place by the environment. The launcher has one
 * thread, so its child may call more than what is async-signal-safe. `words`: a worker's argv. */
static void become_program(const eni_launcher *l, const eni_config *config, char **words, int log_fd)
{
    size_t bytes = 1;
    for (char **word = words + 1; *word != NULL; word++)
        bytes += strlen(*word);
    char *text = eni_alloc(bytes), **argv = eni_alloc_array((size_t)config->command.count + 1, sizeof *argv);
    if (text == NULL || argv == NULL) _exit(126);
    for (char **word = words + 1; *word != NULL; word++)
        strcat(strcat(text, *word + strlen("--")), "\n");
    setenv(ENI_ENV_SETTINGS, text, 1);
    set_number("RANK", config->rank);
    set_number("WORLD_SIZE", config->world_size);
    set_number("LOCAL_RANK", config->local_rank);
    set_number("LOCAL_WORLD_SIZE", config->local_size);
    if (l->master_port > 0) {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        set_number("MASTER_PORT", l->master_port);
    }
    const int64_t threads = config->threads > 0 ? config->threads : eni_host_info_cores() / config->workers;
    if (eni_env("OMP_NUM_THREADS") == NULL) set_number("OMP_NUM_THREADS", threads > 0 ? threads : 1);
    setenv("PYTHONUNBUFFERED", "1", 0); /* else Python keeps back what it prints to a pipe or a file */
    if (log_fd >= 0 && (dup2(log_fd, STDOUT_FILENO) < 0 || dup2(log_fd, STDERR_FILENO) < 0)) _exit(126);
    memcpy(argv, config->command.item, (size_t)config->command.count * sizeof *argv);
    execvp(argv[0], argv);
}

/* Takes the output of a program's rank other than 0, and of that one in a study: OUT/rank-R.log, or memory. */
static en_status open_log(const eni_launcher *l, int32_t rank, int *fd_out)
{
    char name[32];
    snprintf(name, sizeof name, "rank-%d.log", rank);
    *fd_out = l->out_fd >= 0
                  ? openat(l->out_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)
                  : memfd_create(name, MFD_CLOEXEC);
    if (*fd_out >= 0) return EN_OK;
    return eni_fail(EN_EIO, "launch", "cannot open %s for the output of rank %d: %s", name, rank,
                    strerror(errno));
}

/* `config` is the child's own. */
static en_status spawn(eni_launcher *l, const char *role, int32_t rank, eni_program as, eni_config *config)
{
    char path[4096] = "";
    int log_fd = -1;
    const bool is_program = as == ENI_RANK;
    config->world_size = config->nnodes * config->workers;
    config->result_fd = l->reports.in_fd;
    if (!is_program) EN_TRY(eni_folder_program(eni_program_name(as), path, sizeof path));
    en_status st = is_program && (rank > 0 || config->mute) ? open_log(l, rank, &log_fd) : EN_OK;
    if (st == EN_OK) st = pass_token(l, config);
    char **argv = st == EN_OK ? eni_config_argv(config, as, path) : NULL;
    const pid_t pid = argv == NULL ? -1 : eni_signals_fork(SIGKILL);
    if (pid == 0) {
        become_child(config);
        if (is_program)
            become_program(l, config, argv, log_fd);
        else
            execv(path, argv);
        _exit(127);
    }
    if (pid < 0 && st == EN_OK) st = eni_fail(EN_EIO, "launch", "cannot start %s: %s", role, strerror(errno));
    if (config->token_fd >= 0) close((int)config->token_fd);
    eni_free(argv);
    if (st != EN_OK) {
        if (log_fd >= 0) close(log_fd);
        return st;
    }
    eni_child *c = &l->child[0]; /* a restarted psd takes the slot of the killed one */
    while (c < &l->child[l->nchildren] && (c->is_running || strcmp(c->role, role) != 0))
        c++;
    if (c == &l->child[l->nchildren]) l->nchildren++;
    *c = (eni_child){.log_fd = log_fd};
    snprintf(c->role, sizeof c->role, "%s", role);
    c->rank = rank;
    c->pid = pid;
    c->born = eni_process_born(pid);
    c->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    c->is_running = true;
    l->nrunning++;
    return EN_OK;
}

en_status eni_launcher_start_psd(eni_launcher *l, int server)
{
    eni_config config;
    char role[32], trace[1200];
    eni_peer_name(-1 - server, role);
    EN_TRY(eni_config_copy(l->launch->config, &config));
    config.listen_fd = server == 0 ? l->listen_fd : -1;
    config.server_rank = server;
    en_status st = eni_config_put(&config.listen, l->address);
    if (st == EN_OK && server > 0) st = eni_config_put(&config.leader, l->address);
    if (st == EN_OK && server == 0 && l->launch->takes != NULL)
        st = eni_config_put(&config.takes, l->launch->takes);
    if (st == EN_OK && l->psd.state[0] != 0) st = eni_config_put(&config.state, l->psd.state);
    if (st == EN_OK && config.trace != NULL) { /* eni_merge_trace: one file per process */
        if (server == 0)
            snprintf(trace, sizeof trace, "%s.psd", config.trace);
        else
            snprintf(trace, sizeof trace, "%s.psd%d", config.trace, server);
        st = eni_config_put(&config.trace, trace);
    }
    if (st == EN_OK) st = spawn(l, role, -1 - server, ENI_PSD, &config);
    eni_config_fini(&config);
    return st;
}

en_status eni_launcher_start_worker(eni_launcher *l, int local_rank, bool has_psd)
{
    eni_config config;
    char role[24];
    const int rank = (int)(l->launch->config->node_rank * l->launch->config->workers) + local_rank;
    snprintf(role, sizeof role, "rank %d", rank);
    EN_TRY(eni_config_copy(l->launch->config, &config));
    config.rank = rank;
    config.out_fd = rank == 0 ? l->out_fd : -1;
    config.data_fd = l->launch->data_fd > 0 ? l->launch->data_fd : -1;
    config.local_rank = local_rank;
    config.local_size = config.workers;
    config.listen_fd = rank == 0 && !has_psd ? l->listen_fd : -1;
    config.begin_ns = l->begin_ns;
    config.check = l->launch->is_check;
    en_status st = eni_config_put(has_psd ? &config.server : &config.rendezvous, l->address);
    if (st == EN_OK && l->launch->probe != NULL) st = eni_config_put(&config.probe, l->launch->probe);
    if (st == EN_OK && rank == 0 && l->launch->takes != NULL)
        st = eni_config_put(&config.takes, l->launch->takes);
    if (st == EN_OK) st = spawn(l, role, rank, config.command.count > 0 ? ENI_RANK : ENI_WORKER, &config);
    eni_config_fini(&config);
    return st;
}
