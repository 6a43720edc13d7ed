/* runs.h - the runs of this user on this machine, from outside: `entrain ps` and `entrain stop`.
 *
 * A leader keeps one small file while its run lasts: FOLDER/status-PID (a second leader in its process:
 * status-PID.1), written to a temporary file and renamed, when something has changed and once a second at
 * least. Nothing listens, and nothing is asked of a leader. A file whose process (pid and time of birth) is
 * gone is what a killed leader left: whoever lists the runs removes it, and so does the next leader. Files of
 * other users or other pid namespaces are passed over. The name run-PID is left free for the mapped page of a
 * run. */
#ifndef CONTROL_RUNS_H
#define CONTROL_RUNS_H

#include "runtime/control/control.h"
#include "runtime/net/process.h"

typedef enum eni_rank_state {
    ENI_RANK_MISSING, /* has not joined (again) */
    ENI_RANK_JOINED,  /* waits for the others to join */
    ENI_RANK_ACTIVE,  /* computes, saves, evaluates: see phase */
    ENI_RANK_WAITING, /* waits for others in phase */
    ENI_RANK_STOPPED, /* SIGSTOP or Ctrl-Z; found by the reader */
    ENI_RANK_GONE     /* has left, in good order or not */
} eni_rank_state;

typedef struct eni_run_rank {
    int32_t rank;   /* -1 - k: server k */
    uint32_t state; /* an eni_rank_state */
    int64_t pid;    /* 0: not known */
    uint64_t born;  /* 0: it cannot be looked at from the leader's host */
    int64_t step;   /* -1: none yet */
    char host[256];
    char phase[ENI_PHASE_MAX];
} eni_run_rank;

typedef enum eni_run_stage {
    ENI_RUN_JOINING,
    ENI_RUN_RUNNING,
    ENI_RUN_STOPPING,
    ENI_RUN_ENDING
} eni_run_stage;

typedef struct eni_run_status {
    int64_t pid; /* of the leader: what eni_runs_stop takes */
    uint64_t born, pid_namespace;
    uint32_t stage; /* an eni_run_stage */
    int32_t nranks, nservers;
    int64_t started_ns, written_ns;  /* on the monotonic clock of this machine */
    uint64_t samples;                /* applied, over all ranks */
    uint64_t claimed, budget;        /* micro-batches */
    const eni_key_value *attributes; /* "strategy", "out", "launcher", ..: as given to the leader */
    size_t nattributes;
    eni_run_rank *rank; /* (nrank) workers, then servers 1 .. */
    size_t nrank;
    bool is_stopped; /* its leader is: SIGSTOP, Ctrl-Z. Found by the reader */
} eni_run_status;

/* All runs of this user that keep their files in `folder`, by pid. EN_OK with *n_out 0: none. */
en_status eni_runs_list(const char *folder, eni_run_status **runs_out, size_t *n_out);
void eni_runs_free(eni_run_status *runs, size_t n);

/* Since when its leader has not written, though it should have: 0 for one that does its part. */
int64_t eni_run_silent_ns(const eni_run_status *run, int64_t now_ns);

/* Asks one run to end early and in good order: SIGTERM to its leader, and to no later process of that number.
 * EN_ENOENT (not logged): it has ended; EN_EDENIED. */
en_status eni_runs_stop(const eni_run_status *run);

/* ---- the leader's side ---- */

typedef struct eni_run_writer eni_run_writer;

/* Makes the file, with this status. NULL: it cannot be made, which is logged as a warning. `folder` is made
 * with mode 0700 if it is not there; one of another owner is refused. */
eni_run_writer *eni_run_writer_open(const char *folder, const eni_run_status *run);

/* Has it written anew where it differs from what was put last, or that is a second old. Does not wait for the
 * disk. */
void eni_run_writer_put(eni_run_writer *writer, const eni_run_status *run);

/* Removes the file, after a write that is under way. NULL is fine. */
void eni_run_writer_close(eni_run_writer *writer);

/* For tests: the bytes of a status, and what untrusted bytes say (attributes and rank are new; EN_EPROTO). */
en_status eni_run_status_read(const uint8_t *bytes, size_t length, eni_run_status *run_out);

#endif
