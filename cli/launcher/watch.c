/* watch.c - the launcher's second half: waits for all children, names the first failed rank once, and ensures
 * that no process outlives the run.
 *
 * A process that learns of a death ends by itself, within milliseconds or after the kernel that it computes.
 * One that has not learned of it (it has not joined, it is stopped, its step is long) is killed after a grace
 * period. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launcher/launch_impl.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/signals.h"
#include "runtime/control/ask.h"
#include "runtime/net/process.h"

enum {
    GRACE_MS = 1000,         /* from a failure until processes that have not noticed it are killed */
    STOP_MS = 750,           /* the same, from a signal to us */
    PROGRAM_STOP_MS = 10000, /* a program ends its step first */
    RESULT_MS = 1500,        /* added for rank 0, which writes a result before it ends: a disk may be slow */
    /* both the launcher and the survivors detect a death: wait for both halves of the line */
    TOGETHER_MS = 300,
    RESIZE_MS = 30000, /* from the first goodbye of a run that continues with other workers: rank 0 saves */
    LAST_MS = 2000,    /* a psd left alone ends by itself within this time, or is killed */
    /* while ending: how often to look for stopped processes, which cannot notice the end */
    LOOK_AGAIN_MS = 50,
    MAX_EVENTS = ENI_CHILDREN_MAX + 3
};

/* ---- why one of our children ended, as far as this host knows ---- */

/* The number after `key` in a file of "key number" lines; -1 if absent. */
static int64_t count_in(const char *path, const char *key)
{
    char line[256], name[64];
    long long number;
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    int64_t found = -1;
    while (found < 0 && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%63s %lld", name, &number) == 2 && strcmp(name, key) == 0) found = number;
    fclose(file);
    return found;
}

/* A line of /proc/self/cgroup is ID:CONTROLLERS:PATH; version 2 has ID 0 and no controllers. */
static int64_t count_of_group(const char *line)
{
    char path[1400];
    const char *first = strchr(line, ':'), *second = first == NULL ? NULL : strchr(first + 1, ':');
    if (second == NULL) return -1;
    const int bytes = (int)strcspn(second + 1, "\n");
    if (second == first + 1) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%.*s/memory.events", bytes, second + 1);
        return count_in(path, "oom_kill");
    }
    if (strncmp(first, ":memory:", 8) != 0) return -1;
    snprintf(path, sizeof path, "/sys/fs/cgroup/memory%.*s/memory.oom_control", bytes, second + 1);
    return count_in(path, "oom_kill");
}

int64_t eni_launcher_oom_kills(void)
{
    char line[1024];
    int64_t found = -1;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (found < 0 && file != NULL && fgets(line, sizeof line, file) != NULL)
        found = count_of_group(line);
    if (file != NULL) fclose(file);
    return found >= 0 ? found : count_in("/proc/vmstat", "oom_kill");
}

/* SIGSTOP, Ctrl-Z, or a debugger. */
static bool is_stopped(const eni_child *c)
{
    return eni_process_look(c->pid, c->born) == ENI_PROCESS_STOPPED;
}

/* ---- which processes ended ---- */

/* Its process group: a program may have started others. */
static void signal_child(const eni_child *c, int signal_number)
{
    if (kill(-c->pid, signal_number) != 0) kill(c->pid, signal_number); /* it has no group yet */
}

static void terminate(eni_child *c)
{
    c->is_terminated = true;
    signal_child(c, SIGKILL);
}

static void begin_to_name(eni_launcher *l)
{
    if (l->due.name_ns == INT64_MAX) l->due.name_ns = eni_now_ns() + TOGETHER_MS * ENI_MILLI;
}

/* Ended by itself before it was done: exit() or _exit() in a plugin, or a sanitizer. */
static bool has_exited_early(const eni_child *c)
{
    const int code = WIFEXITED(c->status) ? WEXITSTATUS(c->status) : 0;
    if (c->is_running || !WIFEXITED(c->status)) return false;
    if (c->cause[0] != '\0') return true;
    if (c->has_said_end) return false;
    return code != 2 && code != 126 && code != 127; /* those codes: before it could log anything */
}

/* Its ranks may be processes that our children have started: `sh -c`. */
static bool is_program(const eni_launcher *l)
{
    return l->launch->config->command.count > 0;
}

/* "Killed (SIGKILL)", "Segmentation fault (SIGSEGV)". */
static void describe_end(const eni_launcher *l, const eni_child *c, char *text_out, size_t bytes)
{
    const int number = WIFSIGNALED(c->status) ? WTERMSIG(c->status) : 0;
    const char *name = eni_signal_name(number);
    if (c->cause[0] != '\0')
        snprintf(text_out, bytes, "%s", c->cause);
    else if (number != 0)
        snprintf(text_out, bytes, "%s (SIG%s)", strsignal(number), name == NULL ? "?" : name);
    else
        snprintf(
            text_out, bytes,
            is_program(l)
                ? "it ended with exit code %d before the end of the run: does it join it (entrain/rank.h, "
                  "entrain.Rank), and end it?"
                : "it ended with exit code %d in the middle of the run; does its plugin call exit?",
            WEXITSTATUS(c->status));
}

/* Restarts this child, which was killed, if it is a psd with restarts left; returns whether it did. */
static bool restart(eni_launcher *l, const eni_child *c)
{
    char cause[sizeof c->cause];
    if (c->rank != -1 || l->psd.restarts_left == 0 || l->is_ending || l->has_death) return false;
    l->psd.restarts_left--;
    describe_end(l, c, cause, sizeof cause);
    eni_warn("launch", "%s (pid %d) died: %s; starting it again, %lld more are allowed", c->role, (int)c->pid,
             cause, (long long)l->psd.restarts_left);
    return eni_launcher_start_psd(l, 0) == EN_OK;
}

static void note_broken(eni_launcher *l)
{
    if (l->course.broken_ns == 0) l->course.broken_ns = eni_now_ns();
}

/* The strategy can go on without this rank. */
static bool may_lose(const eni_launcher *l, const eni_child *c)
{
    return l->may_lose_ranks && c->rank > 0 && !l->is_ending;
}

static void note_lost(eni_launcher *l, eni_child *c)
{
    char cause[sizeof c->cause];
    if (may_lose(l, c)) {
        describe_end(l, c, cause, sizeof cause);
        eni_warn("launch", "%s (pid %d) died: %s%s", c->role, (int)c->pid, cause,
                 l->course.begun_ns != 0 ? "; the others go on" : "");
        return;
    }
    c->is_lost = true;
    note_broken(l);
    if (l->failed == NULL && !(l->has_named && l->has_death)) {
        l->failed = c;
        l->has_named = false; /* a rank that gave up, perhaps */
        begin_to_name(l);
    }
    if (l->first == EN_OK) l->first = EN_EPEER;
}

/* A rank has learned that another one died, which is reported too, or gave up and may live on. */
static void note_given_up(eni_launcher *l)
{
    note_broken(l);
    begin_to_name(l);
    if (l->due.fail_ns == INT64_MAX) l->due.fail_ns = eni_now_ns() + PROGRAM_STOP_MS * ENI_MILLI;
}

/* After exec has failed. */
static const char *why_not_run(const char *program)
{
    struct stat info;
    if (strchr(program, '/') == NULL) return " is not the name of a program in PATH";
    if (stat(program, &info) != 0) return " is not there";
    if (S_ISDIR(info.st_mode)) return " is a folder: give a program";
    if (access(program, X_OK) != 0) return " is not executable: chmod +x, or name its interpreter before it";
    return " names an interpreter that is not there, or it is made for another machine";
}

static void note_end(eni_launcher *l, eni_child *c)
{
    const int code = WIFEXITED(c->status) ? WEXITSTATUS(c->status) : 0;
    if (c->is_terminated) return;
    l->course.is_refused |= code == 2 && is_program(l);
    if (WIFSIGNALED(c->status)) {
        if (!restart(l, c)) note_lost(l, c);
        return;
    }
    if (has_exited_early(c)) {
        note_lost(l, c);
        return;
    }
    /* Programs say by their own exit codes how they ended, unless they hide that the run has failed; psd ends as they do if one
     * of them ends the run early. */
    const bool is_hidden = code == 0 && is_program(l) && c->end != EN_OK && c->end != EN_ESTOP;
    const bool is_signalled = is_hidden ? c->end == EN_EINTR : code > 128;
    if ((code == 0 && !is_hidden) || l->first != EN_OK) return;
    if (may_lose(l, c) && c->has_said_end && c->end == EN_EPEER) return; /* the others go on */
    if (is_signalled && is_program(l) && (is_hidden || c->rank < 0)) {
        if (c->end == EN_ESTOP) return;
        eni_error("launch", "%s (pid %d) was ended by %s, and so was the run, before its end", c->role,
                  (int)c->pid, is_hidden ? "a signal" : strsignal(code - 128));
    }
    if (code == 127)
        eni_error("launch", "%s could not be executed%s%s%s", c->role, is_program(l) ? ": " : "",
                  is_program(l) ? l->launch->config->command.item[0] : "",
                  is_program(l) ? why_not_run(l->launch->config->command.item[0]) : "");
    if (is_signalled) /* which we did not send, or `entrain stop`: its own log says which */
        eni_debug("launch", "%s (pid %d) ended early: exit code %d", c->role, (int)c->pid, code);
    const bool is_wrong_use = code == 2 || (code == 127 && is_program(l));
    l->first = is_wrong_use ? EN_EINVAL : is_signalled ? EN_EINTR : EN_EPEER;
}

static void reap(eni_launcher *l)
{
    bool found;
    do {
        found = false;
        for (int i = 0; i < l->nchildren; i++) {
            eni_child *c = &l->child[i];
            siginfo_t info = {0};
            if (!c->is_running || waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
                info.si_pid != c->pid)
                continue;
            kill(-c->pid,
                 SIGKILL); /* what it has started ends with it; until waitpid the number is its own */
            waitpid(c->pid, &c->status, 0);
            c->is_running = false;
            c->has_ended = found = true;
            l->nrunning--;
            if (c->pidfd >= 0) close(c->pidfd);
            c->pidfd = -1;
        }
    } while (found);
}

/* A killed process closes its sockets before it can be reaped, so the processes that fail because of it may
 * be reaped first. The killed ones died first, and are noted first. */
static void note_all(eni_launcher *l)
{
    for (int by_signal = 1; by_signal >= 0; by_signal--)
        for (int i = 0; i < l->nchildren; i++) {
            eni_child *c = &l->child[i];
            if (!c->has_ended || WIFSIGNALED(c->status) != by_signal) continue;
            c->has_ended = false;
            note_end(l, c);
        }
}

/* ---- the children's reports ---- */

/* Keeps the slowest rank's point for each size. */
static void add_slowest(eni_cost_curve *curve, double bytes, double seconds)
{
    for (int i = 0; i < curve->n; i++)
        if (curve->point[i].bytes >= bytes && curve->point[i].bytes <= bytes &&
            curve->point[i].seconds > seconds)
            return;
    eni_cost_add(curve, bytes, seconds);
}

/* Parses a line with one measurement of a rank (worker/measure.c). */
static bool take_cost(const eni_launcher *l, const char *line)
{
    double first, second;
    char what[16];
    eni_measured *m = l->launch->measured;
    const double n = (double)l->launch->config->workers;
    if (sscanf(line, "cost %15s %lf %lf", what, &first, &second) != 3) return false;
    if (m == NULL) return true;
    if (strcmp(what, "copy") == 0)
        m->move += first / n, m->sum += second / n;
    else if (strcmp(what, "sent") == 0)
        m->sent += second / n;
    else if (strcmp(what, "compute") == 0)
        m->compute += first / n, m->update += second / n;
    else if (strcmp(what, "bucket") == 0 && m->nbuckets < ENI_COST_BUCKETS)
        m->bytes[m->nbuckets] = first, m->ready[m->nbuckets++] = second;
    else
        add_slowest(strcmp(what, "call") == 0 ? &m->call : &m->allreduce, first, second);
    return true;
}

/* NULL if it was on another host, where the same pid is another process. */
static const eni_child *child_of(const eni_launcher *l, const eni_death *death)
{
    for (int i = 0; i < l->nchildren; i++)
        if (l->child[i].rank == death->rank && (l->child[i].pid == death->pid || is_program(l)))
            return &l->child[i];
    return NULL;
}

/* Rank 0's progress: the first line marks the start of training. */
static bool take_progress(eni_launcher *l, const char *line)
{
    unsigned long long samples, total, steps;
    eni_launch_course *course = &l->course;
    double rate, loss;
    if (sscanf(line, "progress %llu %llu %lf %lf %llu", &samples, &total, &rate, &loss, &steps) != 5)
        return false;
    course->steps = steps;
    course->samples = samples;
    if (course->begun_ns == 0) {
        course->begun_ns = eni_now_ns();
        course->begun_steps = steps;
        course->begun_samples = samples;
    } else if (l->launch->on_progress != NULL) {
        l->launch->on_progress(l->launch->user, &(eni_launch_progress){samples, total, rate, loss});
    }
    return true;
}

static void take_line(eni_launcher *l, char *line)
{
    if (eni_relay_take(&l->relay, line) || take_cost(l, line) || take_progress(l, line)) return;
    eni_death death;
    int64_t pid;
    en_status st = EN_OK;
    const char *sentence = NULL;
    if (eni_end_read(line, &pid, &st) || eni_cause_read(line, &pid, &sentence)) {
        l->course.has_diverged |= st == EN_ENONFINITE;
        for (int i = 0; i < l->nchildren; i++)
            if (l->child[i].pid == pid && sentence == NULL)
                l->child[i].has_said_end = true, l->child[i].end = st;
            else if (l->child[i].pid == pid)
                snprintf(l->child[i].cause, sizeof l->child[i].cause, "%s", sentence);
        if (st == EN_EPEER && is_program(l)) note_given_up(l);
        return;
    }
    if (eni_resize_read(line, &l->course.asked, &sentence)) {
        snprintf(l->course.why, sizeof l->course.why, "%s", sentence);
        note_broken(l);
    } else if (!l->has_death && eni_failure_read(line, &death) &&
               (child_of(l, &death) == NULL || !child_of(l, &death)->is_terminated)) {
        /* not caused by us: while we kill the processes one by one, survivors report the first ones */
        l->death = death;
        l->has_death = true;
        note_broken(l);
        begin_to_name(l);
    }
}

static void read_reports(eni_launcher *l)
{
    while (l->reports.fd >= 0) {
        ssize_t n = read(l->reports.fd, l->reports.line + l->reports.line_bytes,
                         sizeof l->reports.line - 1 - l->reports.line_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            close(l->reports.fd);
            l->reports.fd = -1;
            return;
        }
        l->reports.line_bytes += (size_t)n;
        l->reports.line[l->reports.line_bytes] = 0;
        char *begin = l->reports.line, *end;
        while ((end = strchr(begin, '\n')) != NULL) {
            *end = 0;
            take_line(l, begin);
            begin = end + 1;
        }
        l->reports.line_bytes = strlen(begin);
        memmove(l->reports.line, begin, l->reports.line_bytes + 1);
        if (l->reports.line_bytes == sizeof l->reports.line - 1) l->reports.line_bytes = 0;
    }
}

void eni_launcher_terminate_all(eni_launcher *l)
{
    read_reports(l);
    l->relay.is_muted = true;
    for (int i = 0; i < l->nchildren; i++)
        if (l->child[i].is_running) terminate(&l->child[i]);
}

/* ---- the line that names the failed rank ---- */

/* Replaces the survivors' observation ("its connection closed") if the launcher knows better. */
static void add_cause(const eni_launcher *l, const eni_child *dead, eni_death *death)
{
    static const char oom[] = ", out of memory";
    if (dead == NULL) return;
    if (!dead->is_running && !dead->is_terminated && WIFSIGNALED(dead->status)) {
        const bool is_oom =
            WTERMSIG(dead->status) == SIGKILL && l->oom_kills >= 0 && eni_launcher_oom_kills() > l->oom_kills;
        describe_end(l, dead, death->cause, sizeof death->cause - sizeof oom);
        if (is_oom) strcat(death->cause, oom);
        death->is_stopped = false;
    } else if (!dead->is_terminated && has_exited_early(dead)) {
        describe_end(l, dead, death->cause, sizeof death->cause);
    } else if (dead->is_running && is_stopped(dead)) {
        if (!death->is_stopped) snprintf(death->cause, sizeof death->cause, "stopped (SIGSTOP or Ctrl-Z)");
        death->is_stopped = true;
    }
}

static void name_failed(eni_launcher *l)
{
    char text[ENI_REASON_MAX];
    eni_death death = {.rank = -1, .step = -1};
    l->has_named = true;
    l->due.name_ns = INT64_MAX;
    const eni_child *dead = l->has_death ? child_of(l, &l->death) : l->failed;
    if (!l->has_death && dead == NULL) { /* the rank that gave up is named by the others, in its words */
        eni_relay_open(&l->relay, "", false);
        return;
    }
    if (l->has_death) {
        death = l->death;
    } else {
        death.rank = dead->rank;
        death.pid = dead->pid;
        gethostname(death.host, sizeof death.host - 1);
    }
    add_cause(l, dead, &death);
    eni_death_text(&death, text);
    eni_log(l->launch->may_go_on ? ENI_LOG_WARN : ENI_LOG_ERROR, "launch", "%s", text);
    snprintf(l->failure, sizeof l->failure, "%s", text);
    eni_relay_open(&l->relay, text, false);
}

/* Logs as soon as both halves are known, or nothing more can come. */
static void maybe_name(eni_launcher *l)
{
    if (l->has_named || l->due.name_ns == INT64_MAX || l->signal.has_come) return;
    const eni_child *reported = l->has_death ? child_of(l, &l->death) : NULL;
    const bool is_complete =
        l->has_death && (reported == NULL || !reported->is_running || is_stopped(reported));
    if (is_complete || eni_now_ns() >= l->due.name_ns || l->nrunning == 0) name_failed(l);
}

/* ---- the end ---- */

static void signal_all(const eni_launcher *l, int signal_number)
{
    for (int i = 0; i < l->nchildren; i++)
        if (l->child[i].is_running) signal_child(&l->child[i], signal_number);
}

/* The ranks of a program end in good order because their leader says so: SIGTERM would kill one without a handler, or what
 * one has started, such as loaders. */
static bool has_asked_leader(const eni_launcher *l)
{
    eni_address leader;
    char why[ENI_REASON_MAX];
    return is_program(l) && l->course.begun_ns != 0 && l->launch->config->nnodes == 1 &&
           eni_address_parse(l->address, &leader) == EN_OK &&
           eni_ask(&leader, &l->token, ENI_ASK_STOP, 0, eni_now_ns() + ENI_SECOND, why) == EN_OK;
}

/* Ctrl-C: all processes end early and in good order, with a result; one that takes too long is killed. A program may take
 * long, so a second signal kills its ranks at once. */
static void handle_signal(eni_launcher *l)
{
    const bool may_come_twice = is_program(l);
    if ((l->signal.has_come && !may_come_twice) || !eni_signals_wait(l->launch->signal_fd, 0)) return;
    const int number = may_come_twice ? eni_signals_take(l->launch->signal_fd) : 0;
    if (l->signal.has_come) {
        const int64_t now = eni_now_ns();
        if (now < l->due.kill_ns) l->due.kill_ns = now;
        return;
    }
    l->signal.has_come = l->is_ending = true;
    l->signal.taken = number;
    l->first = EN_EINTR;
    if (!has_asked_leader(l)) signal_all(l, SIGTERM);
    l->due.kill_ns = eni_now_ns() + (is_program(l) ? PROGRAM_STOP_MS : STOP_MS) * ENI_MILLI;
}

/* Wrong use is found before anything has begun: no process needs time to finish. */
static void handle_failure(eni_launcher *l)
{
    if (l->is_ending || (l->first == EN_OK && !l->has_death && eni_now_ns() < l->due.fail_ns)) return;
    if (l->may_lose_ranks && l->first == EN_OK) return; /* the leader logs losses itself */
    const bool is_resize = l->course.asked > 0 && l->first == EN_EINTR && !l->has_death,
               is_stop = is_program(l) && l->first == EN_EINTR && !l->has_death;
    l->is_ending = true;
    l->due.kill_ns = eni_now_ns() + (l->first == EN_EINVAL ? 0
                                     : is_resize           ? RESIZE_MS
                                     : is_stop             ? PROGRAM_STOP_MS
                                                           : GRACE_MS) *
                                        ENI_MILLI;
}

/* Counts the dead: those whose end was seen, and one that the survivors report as stopped or silent. */
static void count_lost(eni_launcher *l)
{
    eni_launch_course *course = &l->course;
    const eni_child *reported = l->has_death ? child_of(l, &l->death) : NULL;
    for (int i = 0; i < l->nchildren; i++) {
        course->is_loss |= l->child[i].is_lost;
        course->lost += l->child[i].is_lost && l->child[i].rank >= 0;
    }
    course->is_loss |= l->has_death;
    course->lost += l->has_death && l->death.rank >= 0 && (reported == NULL || !reported->is_lost);
    if (l->has_death && l->death.step > (int64_t)course->steps) course->steps = (uint64_t)l->death.step;
}

static void end_the_rest(eni_launcher *l)
{
    if (!l->is_ending) return;
    const int64_t late_ns = eni_now_ns() - l->due.kill_ns;
    const bool may_end_stopped = l->has_named || l->due.name_ns == INT64_MAX || l->signal.has_come;
    if (late_ns >= 0) read_reports(l);
    if (late_ns >= 0) l->relay.is_muted = true;
    for (int i = 0; i < l->nchildren; i++) {
        eni_child *c = &l->child[i];
        if (!c->is_running || c->is_terminated) continue;
        const int64_t more_ms = l->signal.has_come && c->rank == 0 ? RESULT_MS : 0;
        if (late_ns >= more_ms * ENI_MILLI || (may_end_stopped && is_stopped(c))) terminate(c);
    }
}

/* A psd that was restarted after all workers had left in good order has no one to wait for. */
static void end_with_workers(eni_launcher *l)
{
    eni_child *psd = NULL;
    for (int i = 0; i < l->nchildren; i++) {
        if (!l->child[i].is_running) continue;
        if (l->child[i].rank >= 0 || psd != NULL) return;
        psd = &l->child[i];
    }
    if (l->psd.state[0] == 0 || psd == NULL || l->first != EN_OK || psd->is_terminated) return;
    if (l->psd.alone_ns == 0) l->psd.alone_ns = eni_now_ns();
    if (eni_now_ns() - l->psd.alone_ns < LAST_MS * ENI_MILLI) return;
    terminate(psd);
}

/* SIGUSR1 and SIGUSR2 request a checkpoint: one of the ranks asks the leader. */
static void handle_wish(const eni_launcher *l, int wish_fd)
{
    int i = 0;
    if (eni_signals_take(wish_fd) == 0) return;
    while (i < l->nchildren && (!l->child[i].is_running || l->child[i].rank < 0))
        i++;
    if (i < l->nchildren) kill(l->child[i].pid, SIGUSR1);
}

/* The children have process groups of their own, so a terminal stops us alone. All stop together, so no peer
 * times out. */
static void handle_stop(const eni_launcher *l, int tstp_fd)
{
    struct signalfd_siginfo info;
    if (tstp_fd < 0 || read(tstp_fd, &info, sizeof info) != sizeof info) return;
    signal_all(l, SIGSTOP);
    raise(SIGSTOP);
    signal_all(l, SIGCONT);
}

static void wait_for_events(const eni_launcher *l, int wish_fd, int tstp_fd)
{
    struct pollfd fds[MAX_EVENTS];
    nfds_t n = 0;
    int64_t next = l->due.name_ns < l->due.kill_ns ? l->due.name_ns : l->due.kill_ns;
    int cap = l->is_ending ? LOOK_AGAIN_MS : 1000;
    if (next <= eni_now_ns()) next = INT64_MAX; /* already being done */
    if (l->launch->signal_fd >= 0 && (!l->signal.has_come || is_program(l)))
        fds[n++] = (struct pollfd){.fd = l->launch->signal_fd, .events = POLLIN};
    if (wish_fd >= 0) fds[n++] = (struct pollfd){.fd = wish_fd, .events = POLLIN};
    if (l->reports.fd >= 0) fds[n++] = (struct pollfd){.fd = l->reports.fd, .events = POLLIN};
    if (tstp_fd >= 0) fds[n++] = (struct pollfd){.fd = tstp_fd, .events = POLLIN};
    for (int i = 0; i < l->nchildren; i++)
        if (l->child[i].is_running) {
            fds[n++] = (struct pollfd){.fd = l->child[i].pidfd, .events = POLLIN};
            if (l->child[i].pidfd < 0) cap = LOOK_AGAIN_MS;
        }
    poll(fds, n, next == INT64_MAX ? cap : eni_ms_left(next, cap));
}

/* The end of what a program's rank has printed, if it has failed: by itself rather than because of another. */
static void show_last_words(const eni_launcher *l)
{
    const eni_child *dead = l->has_death ? child_of(l, &l->death) : l->failed;
    char text[4096];
    for (int i = 0; dead == NULL && i < l->nchildren; i++)
        if (WIFEXITED(l->child[i].status) && WEXITSTATUS(l->child[i].status) != 0) dead = &l->child[i];
    if (dead == NULL || dead->log_fd < 0) return;
    const off_t bytes = lseek(dead->log_fd, 0, SEEK_END), from = bytes - (off_t)sizeof text;
    const ssize_t n = pread(dead->log_fd, text, sizeof text, from > 0 ? from : 0);
    if (n <= 0) return;
    const char *cut = from > 0 ? memchr(text, '\n', (size_t)n - 1) : NULL,
               *begin = cut != NULL ? cut + 1 : text;
    fprintf(stderr, "The last that %s printed:\n", dead->role);
    fwrite(begin, 1, (size_t)(text + n - begin), stderr);
    if (text[n - 1] != '\n') fputc('\n', stderr);
}

void eni_launcher_watch(eni_launcher *l, int tstp_fd)
{
    const int wish_fd = eni_signals_wishes();
    while (l->nrunning > 0) {
        wait_for_events(l, wish_fd, tstp_fd);
        handle_wish(l, wish_fd);
        handle_stop(l, tstp_fd);
        read_reports(l);
        reap(l);
        read_reports(l); /* their last reports */
        note_all(l);
        handle_signal(l);
        handle_failure(l);
        maybe_name(l);
        end_the_rest(l);
        end_with_workers(l);
    }
    if (wish_fd >= 0) close(wish_fd);
    read_reports(l);
    maybe_name(l);
    count_lost(l);
    if (l->is_ending && l->first == EN_OK) l->first = EN_EPEER; /* no process was left to fail by itself */
    eni_relay_open(&l->relay, "", l->signal.has_come);
    if (!l->signal.has_come) show_last_words(l);
    if (l->signal.taken != 0) kill(getpid(), l->signal.taken); /* main's exit code comes from it */
    for (int i = 0; i < l->nchildren; i++)
        if (l->child[i].log_fd >= 0) close(l->child[i].log_fd);
}
