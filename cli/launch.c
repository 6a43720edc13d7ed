/* launch.c - see launch.h: who is started, and with what. How it ends is in watch.c. */
#include "cli/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/cause.h"
#include "cli/gpu_here.h"
#include "cli/launch_impl.h"
#include "cli/machine.h"
#include "cli/nodes.h"
#include "cli/servers.h"
#include "config/folders.h"
#include "config/outputs.h"
#include "core/options.h"
#include "runtime/spec/plugin.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

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

static en_status start_worker(eni_launcher *l, int local_rank, int has_psd, int report_fd)
{
    eni_config config;
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

static en_status check_options(const en_strategy *strategy, const char *given)
{
    eni_options *options;
    EN_TRY(eni_options_new(strategy, given, &options));
    eni_options_free(options);
    return EN_OK;
}

/* On one host: any free port, taken before anyone starts, and a fresh token. */
static en_status choose_address(eni_launcher *l)
{
    const eni_address any = {.host = "127.0.0.1", .port = 0};
    eni_address bound;
    if (eni_nodes_are_several(l->launch->config)) return eni_nodes_address(l->launch->config, l->address);
    EN_TRY(eni_tcp_listen(&any, false, &l->listen_fd, &bound));
    eni_address_format(&bound, l->address);
    eni_token_make(&l->token);
    return EN_OK;
}

/* What only children to come would need. */
static void let_go(eni_launcher *l)
{
    if (l->report_in_fd >= 0) close(l->report_in_fd);
    if (l->listen_fd >= 0) close(l->listen_fd);
    l->report_in_fd = l->listen_fd = -1;
}

/* On host 0 for all hosts: before psd's state, which may lie in it, is touched. */
static en_status take_out(eni_launcher *l)
{
    const eni_config *c = l->launch->config;
    if (c->out == NULL || l->launch->is_check) return EN_OK;
    return c->node_rank == 0 ? eni_out_take(c, c->out, ENI_OUT_RUN, &l->out_fd) : eni_out_ask(c, c->out);
}

static en_status start_all(eni_launcher *l)
{
    const eni_config *c = l->launch->config;
    const en_strategy *strategy;
    const char *options;
    char word[ENI_STRATEGY_WORD_MAX];
    int pipe_fds[2] = {-1, -1};
    EN_TRY(take_out(l));
    if (c->workers < 1 || c->workers > ENI_CHILDREN_MAX - 2 - c->servers) {
        eni_error("launch", "-n %lld: between 1 and %d workers can be started", (long long)c->workers,
                  ENI_CHILDREN_MAX - 2);
        return EN_EINVAL;
    }
    EN_TRY(eni_plugin_split(c->strategy, word, &options));
    EN_TRY(eni_plugin_find(l->launch->plugin_dir, word, &strategy));
    EN_TRY(check_options(strategy, options)); /* said once, not by every worker */
    EN_TRY(eni_servers_check(c, strategy));
    if (!l->launch->has_gpus) EN_TRY(eni_gpu_here(c->device, l->launch->plugin_dir, l->launch->signal_fd));
    EN_TRY(eni_servers_open(l));
    EN_TRY(choose_address(l));
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) != 0) {
        eni_error("launch", "cannot make a pipe: %s", strerror(errno));
        return EN_EIO;
    }
    l->report_fd = pipe_fds[0];
    l->may_lose_ranks = c->on_worker_loss == ENI_LOSS_CONTINUE;
    int has_psd = (strategy->flags & EN_STORE_ON_SERVERS) != 0;
    en_status st = EN_OK;
    l->report_in_fd = pipe_fds[1];
    for (int k = 0; st == EN_OK && has_psd && c->node_rank == 0 && k < c->servers; k++)
        st = eni_launcher_start_psd(l, k);
    for (int r = 0; st == EN_OK && r < c->workers; r++)
        st = start_worker(l, r, has_psd, pipe_fds[1]);
    if (l->state[0] == 0 || st != EN_OK) let_go(l);
    return st;
}

/* What was said first is nearest to the cause; who was killed could not say it. */
static void fill_outcome(const eni_launcher *l, en_status st, bool has_started, const eni_machine *before)
{
    eni_launch_outcome *o = l->launch->outcome;
    if (o == NULL) return;
    const eni_machine now = eni_machine_now();
    o->outside = eni_machine_outside(before, &now);
    o->cause[0] = 0;
    if (st == EN_OK) return;
    snprintf(o->cause, sizeof o->cause, "%.*s", ENI_LAUNCH_CAUSE - 1,
             l->obituary[0] != 0 ? l->obituary : l->relay.first_error);
    if (!has_started && o->cause[0] == 0) eni_log_last_error(o->cause, sizeof o->cause);
}

en_status eni_launch_run(const eni_launch *launch)
{
    const eni_machine before = eni_machine_now();
    if (launch->outcome != NULL) *launch->outcome = (eni_launch_outcome){NAN, eni_machine_load(), ""};
    eni_launcher *l = eni_alloc(sizeof *l);
    if (l == NULL) return EN_ENOMEM;
    l->launch = launch;
    l->begin_ns = eni_now_ns();
    l->listen_fd = l->report_fd = l->report_in_fd = l->out_fd = -1;
    l->name_ns = l->kill_ns = INT64_MAX;
    l->oom_kills = eni_oom_kills();
    en_status st = start_all(l);
    if (st != EN_OK) {
        l->first = st;
        l->is_ending = 1;
        eni_launcher_condemn_all(l);
    }
    eni_launcher_watch(l);
    let_go(l);
    eni_servers_close(l);
    if (l->report_fd >= 0) close(l->report_fd);
    if (l->out_fd >= 0) close(l->out_fd);
    const bool has_started = st == EN_OK;
    if (has_started) st = l->first;
    fill_outcome(l, st, has_started, &before);
    eni_free(l);
    return st;
}
