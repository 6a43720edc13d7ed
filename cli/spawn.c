/* spawn.c - starts one process of a run, psd or worker, with its own copy of the config and of the token. The
 * process dies with the launcher. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/launch_impl.h"
#include "cli/nodes.h"
#include "config/folders.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

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

/* On several hosts the children find the token by themselves, on all of them in the same way. */
static en_status pass_token(const eni_launcher *l, eni_config *config)
{
    if (eni_nodes_are_several(l->launch->config)) return EN_OK;
    config->token_fd = token_memfd(&l->token);
    return config->token_fd < 0 ? EN_EIO : EN_OK;
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

/* A psd that is started again takes the place of the one that was killed. */
static eni_child *child_for(eni_launcher *l, const char *role)
{
    for (int i = 0; i < l->nchildren; i++)
        if (!l->child[i].is_running && strcmp(l->child[i].role, role) == 0) return &l->child[i];
    return &l->child[l->nchildren++];
}

static en_status spawn(eni_launcher *l, const char *role, int32_t rank, const char *program,
                       const eni_config *config, eni_program as, const int *fds, size_t nfds)
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
    eni_child *c = child_for(l, role);
    *c = (eni_child){0};
    snprintf(c->role, sizeof c->role, "%s", role);
    c->rank = rank;
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

en_status eni_launcher_start_psd(eni_launcher *l, int server)
{
    eni_config config;
    const int report_fd = l->report_in_fd;
    char role[32];
    eni_peer_name(-1 - server, role);
    EN_TRY(eni_config_copy(l->launch->config, &config));
    en_status st = pass_token(l, &config);
    const int token = (int)config.token_fd, listen_fd = server == 0 ? l->listen_fd : -1;
    const int fds[] = {listen_fd, token, report_fd};
    config.world_size = eni_nodes_world_size(l->launch->config);
    config.listen_fd = listen_fd;
    config.result_fd = report_fd;
    config.server_rank = server;
    if (st == EN_OK) st = set_text(&config.listen, l->address);
    if (st == EN_OK && server > 0) st = set_text(&config.leader, l->address);
    if (st == EN_OK && l->state[0] != 0) st = set_text(&config.state, l->state);
    if (st == EN_OK && config.trace != NULL) { /* merge_trace.h: one file per process */
        char path[1200];
        if (server == 0)
            snprintf(path, sizeof path, "%s.psd", config.trace);
        else
            snprintf(path, sizeof path, "%s.psd%d", config.trace, server);
        st = set_text(&config.trace, path);
    }
    if (st == EN_OK) st = spawn(l, role, -1 - server, "psd", &config, ENI_PSD, fds, 3);
    eni_config_fini(&config);
    if (token >= 0) close(token);
    return st;
}

en_status eni_launcher_start_worker(eni_launcher *l, int local_rank, int has_psd)
{
    eni_config config;
    const int report_fd = l->report_in_fd;
    char role[24];
    const int rank = eni_nodes_rank(l->launch->config, local_rank);
    snprintf(role, sizeof role, "rank %d", rank);
    EN_TRY(eni_config_copy(l->launch->config, &config));
    en_status st = pass_token(l, &config);
    const int token = (int)config.token_fd, leads = rank == 0 && !has_psd;
    const int fds[] = {token, leads ? l->listen_fd : -1, report_fd, rank == 0 ? l->out_fd : -1};
    config.rank = rank;
    config.out_fd = fds[3];
    config.world_size = eni_nodes_world_size(l->launch->config);
    config.local_rank = local_rank;
    config.local_size = config.workers;
    config.listen_fd = fds[1];
    config.result_fd = report_fd;
    config.begin_ns = l->begin_ns;
    config.check = l->launch->is_check;
    config.probe = l->launch->costs != NULL;
    if (st == EN_OK) st = set_text(has_psd ? &config.server : &config.rendezvous, l->address);
    if (st == EN_OK) st = spawn(l, role, rank, "worker", &config, ENI_WORKER, fds, 4);
    eni_config_fini(&config);
    if (token >= 0) close(token);
    return st;
}
