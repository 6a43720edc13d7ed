/* runs.h - the runs of this user on this machine, from outside: `entrain ps` and `entrain stop`.
 *
 * A leader that was given attributes listens on the abstract AF_UNIX name "entrain-run-PID" (PID is the
 * leader's process; a second leader in it adds ".1"), so no file is left whatever happens. Both sides check
 * that the other has their uid (SO_PEERCRED). The bytes are in docs/wire.md. Any thread; every call ends by
 * its deadline. */
#ifndef CONTROL_RUNS_H
#define CONTROL_RUNS_H

#include "runtime/control/control.h"

typedef enum eni_rank_state {
    ENI_RANK_MISSING, /* has not joined (again) */
    ENI_RANK_JOINED,  /* waits for the others to join */
    ENI_RANK_ACTIVE,  /* computes, saves, evaluates: see phase */
    ENI_RANK_WAITING, /* waits for others in phase */
    ENI_RANK_STOPPED, /* SIGSTOP or Ctrl-Z */
    ENI_RANK_GONE     /* has left, in good order or not */
} eni_rank_state;

typedef struct eni_run_rank {
    int32_t rank; /* -1 - k: server k */
    int64_t pid;  /* 0: not known */
    int64_t step; /* -1: none yet */
    eni_rank_state state;
    char host[256];
    char phase[ENI_PHASE_MAX];
} eni_run_rank;

typedef enum eni_run_stage {
    ENI_RUN_JOINING,
    ENI_RUN_RUNNING,
    ENI_RUN_STOPPING,
    ENI_RUN_ENDING
} eni_run_stage;

typedef struct eni_run {
    int64_t pid; /* of the leader: what eni_runs_stop takes */
    eni_run_stage stage;
    int32_t nranks, nservers;
    int64_t elapsed_ns;       /* since the leader started */
    uint64_t samples;         /* applied, over all ranks */
    uint64_t claimed, budget; /* micro-batches */
    eni_key_value *attributes; /* "strategy", "out", "launcher", ..: as given to the leader */
    size_t nattributes;
    eni_run_rank *rank; /* (nrank) workers, then servers 1 .. */
    size_t nrank;
    char name[64]; /* of its socket */
} eni_run;

/* All runs of this user, by pid. A leader that does not answer is left out. EN_OK with *n_out 0: none. */
en_status eni_runs_list(int64_t deadline_ns, eni_run **runs_out, size_t *n_out);
void eni_runs_free(eni_run *runs, size_t n);

/* Asks one run to end early and in good order; `why` goes to its ranks. Returns when the leader has heard it.
 * EN_ENOENT (not logged): no such run; EN_ETIMEOUT, EN_EIO. */
en_status eni_runs_stop(const eni_run *run, const char *why, int64_t deadline_ns);

#endif
