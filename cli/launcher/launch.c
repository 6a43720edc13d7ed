/* launch.c - one run of the launcher from start to end; see launch.h. The checks and locks before any process
 * starts are here; spawn.c starts the processes, watch.c waits for the end and restarts a killed psd. */
#include "cli/launcher/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/launcher/launch_impl.h"
#include "cli/launcher/machine.h"
#include "config/outputs.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/nvml.h"
#include "core/options.h"
#include "core/try.h"
#include "ops/device.h"
#include "runtime/spec/strategies.h"

/* Closes the descriptors that only later children would need. */
static void let_go(eni_launcher *l)
{
    if (l->reports.in_fd >= 0) close(l->reports.in_fd);
    if (l->listen_fd >= 0) close(l->listen_fd);
    l->reports.in_fd = l->listen_fd = -1;
}

/* Host 0 does it for all hosts, before psd's state, which may be in that folder, is touched. */
static en_status take_out(eni_launcher *l)
{
    const eni_config *c = l->launch->config;
    if (c->out == NULL || l->launch->is_check) return EN_OK;
    if (l->launch->out_fd > 0) {
        l->out_fd = dup(l->launch->out_fd);
        return l->out_fd >= 0
                   ? EN_OK
                   : eni_fail(EN_EIO, "launch", "cannot keep --out=%s open: %s", c->out, strerror(errno));
    }
    return c->node_rank == 0 ? eni_out_take(c, c->out, ENI_OUT_RUN, &l->out_fd) : eni_out_ask(c, c->out);
}

typedef struct gpu_question {
    const eni_config *run;
    const char *plugin_dir;
} gpu_question;

static en_status ask_cuda(void *user)
{
    const gpu_question *q = user;
    const eni_gpu_want want = {
        .spec = q->run->device, .n = eni_config_ndevices(q->run), .is_shared = q->run->gpu_sharing};
    const en_device *table;
    EN_TRY(eni_device_load("cuda", q->plugin_dir, &table));
    return eni_gpu_check(&want, (int)q->run->workers, table, eni_device_host());
}

/* The child has logged what is wrong. If it crashed, the ranks find out and report more about it. */
en_status eni_gpu_here(const eni_config *run, const char *plugin_dir, int signal_fd)
{
    if (!eni_device_is_gpu(run->device)) return EN_OK;
    gpu_question question = {run, plugin_dir};
    const en_status st = eni_driver_ask(ask_cuda, &question, signal_fd);
    return st == EN_OK || st == EN_EIO ? EN_OK : st == EN_EINTR ? st : EN_EINVAL;
}

static en_status start_all(eni_launcher *l)
{
    const eni_config *c = l->launch->config;
    const en_strategy *strategy;
    int pipe_fds[2] = {-1, -1};
    EN_TRY(take_out(l));
    if (c->workers < 1 || c->workers > ENI_CHILDREN_MAX - 2 - c->servers)
        return eni_fail(EN_EINVAL, "launch", "-n %lld: expected 1 to %d workers", (long long)c->workers,
                        ENI_CHILDREN_MAX - 2);
    EN_TRY(eni_strategy_find(l->launch->plugin_dir, c->strategy, &strategy));
    /* reported once, not by every worker */
    EN_TRY(eni_options_check(strategy, eni_spec_options(c->strategy)));
    EN_TRY(eni_servers_check(c, strategy));
    if (!l->launch->has_gpus) EN_TRY(eni_gpu_here(c, l->launch->plugin_dir, l->launch->signal_fd));
    EN_TRY(eni_servers_open(l));
    EN_TRY(eni_launcher_choose_address(l));
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return eni_fail(EN_EIO, "launch", "cannot create a pipe: %s", strerror(errno));
    l->reports.fd = pipe_fds[0];
    l->may_lose_ranks = c->on_worker_loss == ENI_LOSS_CONTINUE || c->max_workers > 0;
    const bool has_psd = (strategy->flags & EN_STORE_ON_SERVERS) != 0;
    en_status st = EN_OK;
    l->reports.in_fd = pipe_fds[1];
    for (int k = 0; st == EN_OK && has_psd && c->node_rank == 0 && k < c->servers; k++)
        st = eni_launcher_start_psd(l, k);
    for (int r = 0; st == EN_OK && r < c->workers; r++)
        st = eni_launcher_start_worker(l, r, has_psd);
    if (l->psd.state[0] == 0 || st != EN_OK) let_go(l);
    return st;
}

/* The first error is nearest to the cause; a killed process could not log one. */
static void fill_outcome(const eni_launcher *l, en_status st, bool has_started, const eni_machine *before)
{
    eni_launch_outcome *o = l->launch->outcome;
    if (o == NULL) return;
    const eni_machine now = eni_machine_now();
    o->outside = eni_machine_outside(before, &now);
    o->course = l->course;
    o->cause[0] = 0;
    if (st == EN_OK) return;
    snprintf(o->cause, sizeof o->cause, "%.*s", ENI_LAUNCH_CAUSE - 1,
             l->failure[0] != 0 ? l->failure : l->relay.first_error);
    if (!has_started && o->cause[0] == 0) eni_log_last_error(o->cause, sizeof o->cause);
}

/* A signalfd for Ctrl-Z; -1 if that is ignored. *mask_out is the previous signal mask. */
static int take_stops(sigset_t *mask_out)
{
    struct sigaction now;
    sigset_t stops;
    sigemptyset(&stops);
    if (sigaction(SIGTSTP, NULL, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&stops, SIGTSTP);
    sigprocmask(SIG_BLOCK, &stops, mask_out);
    return sigismember(&stops, SIGTSTP) ? signalfd(-1, &stops, SFD_NONBLOCK | SFD_CLOEXEC) : -1;
}

en_status eni_launch_run(const eni_launch *launch)
{
    const eni_machine before = eni_machine_now();
    if (launch->outcome != NULL) *launch->outcome = (eni_launch_outcome){NAN, eni_machine_load(), "", {0}};
    eni_launcher *l = eni_alloc(sizeof *l);
    if (l == NULL) return EN_ENOMEM;
    l->launch = launch;
    l->begin_ns = eni_now_ns();
    l->listen_fd = l->reports.fd = l->reports.in_fd = l->out_fd = -1;
    l->due.name_ns = l->due.fail_ns = l->due.kill_ns = INT64_MAX;
    l->oom_kills = eni_launcher_oom_kills();
    sigset_t mask;
    const int tstp_fd = take_stops(&mask);
    en_status st = start_all(l);
    if (st != EN_OK) {
        l->first = st;
        l->is_ending = true;
        eni_launcher_terminate_all(l);
    }
    eni_launcher_watch(l, tstp_fd);
    if (tstp_fd >= 0) close(tstp_fd);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    let_go(l);
    eni_servers_close(l);
    if (l->reports.fd >= 0) close(l->reports.fd);
    if (l->out_fd >= 0) close(l->out_fd);
    const bool has_started = st == EN_OK;
    if (has_started) st = l->first;
    if (has_started && st == EN_EPEER && l->course.has_diverged) st = EN_ENONFINITE;
    if (has_started && st == EN_EPEER && l->course.is_refused) st = EN_EINVAL;
    fill_outcome(l, st, has_started, &before);
    eni_free(l);
    return st;
}

/* ---- merging the traces of a run's processes ---- */

/* Appends the events of a part, and adds the number that it dropped. */
static en_status append(json_t *events, const char *path, json_int_t *dropped)
{
    eni_json in = {.who = "trace", .path = path};
    if (access(path, R_OK) != 0) return EN_OK;
    json_t *part = eni_json_load(&in);
    json_array_extend(events, eni_json_need_array(&in, part, "traceEvents", SIZE_MAX));
    *dropped += json_integer_value(json_object_get(part, "dropped"));
    json_decref(part);
    return in.status;
}

/* Part `i` of a run of `nranks`: rank i's, or from nranks on those of psd and the other servers. */
static void name_part(const char *path, int i, int nranks, char *part, size_t bytes)
{
    if (i == 0)
        snprintf(part, bytes, "%s", path);
    else if (i < nranks)
        snprintf(part, bytes, "%s.rank%d", path, i);
    else if (i == nranks)
        snprintf(part, bytes, "%s.psd", path);
    else
        snprintf(part, bytes, "%s.psd%d", path, i - nranks);
}

en_status eni_merge_trace(const char *path, int nranks, int nservers)
{
    char part[1200];
    const int n = nranks + nservers;
    json_t *all = json_object(), *events = json_array();
    json_int_t dropped = 0;
    en_status st = EN_OK;
    json_object_set_new(all, "traceEvents", events);
    for (int i = 0; st == EN_OK && i < n; i++) {
        name_part(path, i, nranks, part, sizeof part);
        st = append(events, part, &dropped);
    }
    json_object_set_new(all, "dropped", json_integer(dropped));
    if (st == EN_OK && json_dump_file(all, path, JSON_COMPACT) != 0)
        st = eni_fail(EN_EIO, "trace", "cannot write %s: %s", path, strerror(errno));
    json_decref(all);
    for (int i = 1; st == EN_OK && i < n; i++) { /* only now: a failure leaves the parts as they are */
        name_part(path, i, nranks, part, sizeof part);
        unlink(part);
    }
    return st;
}
