/* job.c - see job.h. */
#include "tests/system/job.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void begin(job *j, const char *strategy, int n)
{
    memset(j, 0, sizeof *j);
    j->strategy = strategy;
    j->n = n;
    j->has_psd = strncmp(strategy, "ring", 4) != 0 && strncmp(strategy, "solo", 4) != 0 &&
                 strncmp(strategy, "grouped", 7) != 0;
    j->run.pidfd = j->psd.pidfd = -1;
    for (int r = 0; r < JOB_RANKS; r++)
        j->rank[r].pidfd = -1;
}

void job_run(job *j, const char *strategy, int n, const char *format, ...)
{
    va_list list;
    begin(j, strategy, n);
    j->is_run = 1;
    va_start(list, format);
    vsnprintf(j->flags, sizeof j->flags, format, list);
    va_end(list);
    process_start(&j->run, "entrain", NULL, "run -n %d --strategy=%s %s", n, strategy, j->flags);
}

void job_by_hand(job *j, const char *strategy, int n, const char *format, ...)
{
    va_list list;
    begin(j, strategy, n);
    va_start(list, format);
    vsnprintf(j->flags, sizeof j->flags, format, list);
    va_end(list);
    if (!j->has_psd) {
        j->port = free_port();
        return;
    }
    process_start(&j->psd, "psd", NULL, "--strategy=%s --world-size=%d --listen=tcp://127.0.0.1:0", strategy,
                  n);
    const char *line = wait_for_line(&j->psd, "--server=", 30);
    assert_int_equal(sscanf(strstr(line, "--server="), "--server=tcp://127.0.0.1:%d", &j->port), 1);
}

void job_rank(job *j, int rank)
{
    process_start(&j->rank[rank], "worker", NULL,
                  "--strategy=%s --%s=tcp://127.0.0.1:%d --rank=%d --world-size=%d %s", j->strategy,
                  j->has_psd ? "server" : "rendezvous", j->port, rank, j->n, j->flags);
}

void job_all_ranks(job *j)
{
    for (int r = 0; r < j->n; r++)
        job_rank(j, r);
}

/* Orphans become the test's children when their parent has gone: repeats until none is left. */
int job_clear(void **state)
{
    int pid;
    (void)state;
    do {
        FILE *file = fopen("/proc/thread-self/children", "re");
        pid = 0;
        if (file == NULL) break;
        if (fscanf(file, "%d", &pid) != 1) pid = 0;
        fclose(file);
        if (pid > 0 && kill(pid, SIGKILL) == 0) waitpid(pid, NULL, 0);
    } while (pid > 0);
    return 0;
}

/* ---- from outside ---- */

static int is_ours(const job *j, const eni_run_status *run)
{
    const char *launcher = eni_key_value_find(run->attributes, run->nattributes, "launcher");
    if (j->is_run) return launcher != NULL && atoi(launcher) == j->run.pid;
    return run->pid == (j->has_psd ? j->psd.pid : j->rank[0].pid);
}

static int has_phase(const char *phases, const char *phase)
{
    char words[256];
    if (phases == NULL) return 1;
    snprintf(words, sizeof words, "%s", phases);
    for (char *save, *word = strtok_r(words, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save))
        if (strcmp(word, phase) == 0) return 1;
    return 0;
}

/* The status that its leader wrote, in *runs_out, which the caller releases in any case; NULL if it wrote
 * none. */
static const eni_run_status *look(const job *j, eni_run_status **runs_out, size_t *n_out)
{
    char folder[256];
    *runs_out = NULL;
    *n_out = 0;
    snprintf(folder, sizeof folder, "%s/entrain", system_folder());
    if (eni_runs_list(folder, runs_out, n_out) != EN_OK) return NULL;
    for (size_t i = 0; i < *n_out; i++)
        if (is_ours(j, &(*runs_out)[i])) return &(*runs_out)[i];
    return NULL;
}

int job_ask(const job *j, int rank, eni_run_rank *rank_out)
{
    eni_run_status *runs;
    size_t n;
    int found = 0;
    const eni_run_status *run = look(j, &runs, &n);
    for (size_t k = 0; run != NULL && k < run->nrank; k++) {
        if (run->rank[k].rank != rank) continue;
        *rank_out = run->rank[k];
        found = 1;
    }
    eni_runs_free(runs, n);
    return found;
}

int job_attribute(const job *j, const char *key, char *value_out, size_t bytes)
{
    eni_run_status *runs;
    size_t n;
    const eni_run_status *run = look(j, &runs, &n);
    const char *value = run == NULL ? NULL : eni_key_value_find(run->attributes, run->nattributes, key);
    snprintf(value_out, bytes, "%s", value == NULL ? "" : value);
    eni_runs_free(runs, n);
    return value != NULL;
}

double job_given_out(const job *j)
{
    eni_run_status *runs;
    size_t n;
    const eni_run_status *run = look(j, &runs, &n);
    const double given = run == NULL || run->budget == 0 ? 0 : (double)run->claimed / (double)run->budget;
    eni_runs_free(runs, n);
    return given;
}

/* Leaves the last status in `seen`, for a test that fails. */
static int is_there(const job *j, int rank, int state, const char *phases, int64_t step, char *seen,
                    size_t bytes)
{
    eni_run_rank r;
    if (!job_ask(j, rank, &r)) return 0;
    snprintf(seen, bytes, "rank %d: state %d, step %lld, phase \"%s\"", rank, (int)r.state, (long long)r.step,
             r.phase);
    /* The leader's file may be 0.1 s old: a rank that was active may wait by now. */
    if (state == ENI_RANK_ACTIVE && phases == NULL && r.state == ENI_RANK_WAITING) state = ENI_RANK_WAITING;
    return (state < 0 || (int)r.state == state) && has_phase(phases, r.phase) && r.step >= step;
}

int64_t job_step(const job *j, int rank)
{
    eni_run_rank r = {0};
    const double deadline = now_seconds() + GUARD * SLOWNESS;
    while (!job_ask(j, rank, &r))
        if (now_seconds() > deadline) fail_msg("the leader says nothing of rank %d", rank);
    return r.step;
}

void job_wait(const job *j, int rank, int state, const char *phases, int64_t step, double seconds)
{
    char seen[160] = "nothing";
    const double deadline = now_seconds() + seconds * SLOWNESS;
    const process *speaker = j->is_run ? &j->run : &j->rank[0];
    while (!is_there(j, rank, state, phases, step, seen, sizeof seen)) {
        struct pollfd ended = {.fd = speaker->pidfd, .events = POLLIN};
        const int is_over = poll(&ended, 1, 10) > 0;
        if (!is_over && now_seconds() <= deadline) continue;
        fprintf(stderr, "%s%s\n", process_out(speaker),
                process_err(speaker)); /* whole: a message of cmocka's is cut */
        fail_msg("%s: rank %d has not come to state %d, phase %s, step %lld%s; seen: %s", j->strategy, rank,
                 state, phases == NULL ? "any" : phases, (long long)step, is_over ? ", and has ended" : "",
                 seen);
    }
}

void job_look(job *j)
{
    char word[16];
    size_t used = 0;
    for (int r = 0; r < j->n; r++) {
        snprintf(word, sizeof word, "--rank=%d", r);
        j->pid[r] = j->is_run ? process_child(j->run.pid, word) : j->rank[r].pid;
    }
    if (j->has_psd) j->psd_pid = j->is_run ? process_child(j->run.pid, "psd") : j->psd.pid;
    for (int who = JOB_PSD; who < j->n; who++) {
        const pid_t pid = job_pid(j, who);
        if (pid > 0) process_sockets(pid, j->sockets + used, sizeof j->sockets - used);
        used += strlen(j->sockets + used);
    }
}

pid_t job_pid(const job *j, int who)
{
    return who == JOB_LAUNCHER ? j->run.pid : who == JOB_PSD ? j->psd_pid : j->pid[who];
}

const char *job_name(int who, char name_out[32])
{
    if (who >= 0)
        snprintf(name_out, 32, "rank %d ", who);
    else
        snprintf(name_out, 32, "%s", who == JOB_PSD ? "psd " : "the launcher");
    return name_out;
}

process *job_process(job *j, int who)
{
    return j->is_run ? &j->run : who == JOB_PSD ? &j->psd : &j->rank[who];
}
