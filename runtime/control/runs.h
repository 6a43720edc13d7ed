/* runs.h - the runs of this user on this machine, from outside: `entrain ps` and `entrain stop`.
 *
 * A leader keeps one small file while its run lasts: FOLDER/status-PID (a second leader in its process:
 * status-PID.1), written to a temporary file and renamed, when something has changed and at least once a
 * second. Readers need no connection to the leader. A file whose process (pid and start time) has ended was
 * left by a killed leader: it is removed when runs are listed, and by the next leader. Files of other users
 * or other pid namespaces are skipped. The name run-PID is reserved for the mapped page of a run. */
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
    uint64_t born;  /* 0: not visible from the leader's host */
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
    int64_t pid; /* of the leader; used by eni_runs_stop */
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
    bool is_stopped; /* its leader is stopped: SIGSTOP, Ctrl-Z. Found by the reader */
} eni_run_status;

/* All runs of this user that keep their files in `folder`, by pid. EN_OK without any, too. */
en_status eni_runs_list(const char *folder, eni_run_status **runs_out, size_t *n_out);
void eni_runs_free(eni_run_status *runs, size_t n);

/* How long its leader has not written, though it should have: 0 for a live one. */
int64_t eni_run_silent_ns(const eni_run_status *run, int64_t now_ns);

/* Asks one run to end early and in good order: SIGTERM to its leader, and not to a later process with that
 * pid. EN_ENOENT (not logged): it has ended; EN_EDENIED. */
en_status eni_runs_stop(const eni_run_status *run);

/* ---- the leader's side ---- */

typedef struct eni_run_writer eni_run_writer;

/* Makes the file, with this status. NULL, with a warning, if it cannot be made. `folder` is made with mode
 * 0700 if it does not exist; one of another owner is refused. */
eni_run_writer *eni_run_writer_open(const char *folder, const eni_run_status *run);

/* Rewrites the file if the status has changed, or if it is a second old. Does not wait for the disk. */
void eni_run_writer_put(eni_run_writer *writer, const eni_run_status *run);

/* Removes the file, after a write that is under way. NULL is fine. */
void eni_run_writer_close(eni_run_writer *writer);

/* For tests: the bytes of a status, and what untrusted bytes say (attributes and rank are new; EN_EPROTO). */
en_status eni_run_status_read(const uint8_t *bytes, size_t length, eni_run_status *run_out);

#endif
