/* job.h - a run under test, started by hand or by `entrain run`, and observed from outside as `entrain ps`
 * does, so that a test can wait until a rank is where the test disturbs it. */
#ifndef TESTS_SYSTEM_JOB_H
#define TESTS_SYSTEM_JOB_H

#include "runtime/control/runs.h"
#include "tests/system/process.h"

enum { JOB_RANKS = 4, JOB_PSD = -1, JOB_LAUNCHER = -2 };

typedef struct job {
    const char *strategy; /* with its options */
    int n;                /* ranks */
    int is_run;           /* one process `entrain run`, which starts the others */
    int has_psd;
    char flags[1024]; /* of all workers, or of the run */
    process run, psd, rank[JOB_RANKS];
    int port; /* by hand: of the leader */
    pid_t pid[JOB_RANKS], psd_pid;
    char sockets[4096]; /* abstract names that its processes held */
} job;

/* A test with a teardown that ends all processes of its job, however the test ended. */
#define JOB_TEST(function) cmocka_unit_test_teardown(function, job_clear)
int job_clear(void **state);

/* `entrain run`. */
void job_run(job *j, const char *strategy, int n, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* By hand: psd if the strategy wants one; then job_rank() for each rank. */
void job_by_hand(job *j, const char *strategy, int n, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void job_rank(job *j, int rank);
void job_all_ranks(job *j);

/* Waits until the run's leader says that `rank` is in this state (-1: any), in one of the phases (words
 * separated by spaces; NULL: any), and at this step or later. */
void job_wait(const job *j, int rank, int state, const char *phases, int64_t step, double seconds);

/* The status of a rank, and the attribute of the run under this key, as its leader wrote them last; 0:
 * none. */
int job_ask(const job *j, int rank, eni_run_rank *rank_out);
int job_attribute(const job *j, const char *key, char *value_out, size_t bytes);

/* The share of all micro-batches that have been assigned. */
double job_given_out(const job *j);

/* The step of `rank` in the leader's last status. */
int64_t job_step(const job *j, int rank);

/* Notes the pids of all that run and the sockets they hold. */
void job_look(job *j);

/* The pid of a rank, JOB_PSD or JOB_LAUNCHER. */
pid_t job_pid(const job *j, int who);

/* Its name in messages: "rank 1 ", "psd ". */
const char *job_name(int who, char name_out[32]);

/* The process that was started here: the run, or that part of it. */
process *job_process(job *j, int who);

#endif
