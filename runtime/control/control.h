/* control.h - shared by leader.h and member.h: the processes of a run, and the texts about them.
 *
 * A run has one leader (psd, or a thread inside rank 0) and W members, one in every worker; with several
 * servers the others are members too. Each member holds one plain TCP connection to the leader. On it they
 * meet, agree on one configuration, claim micro-batches, exchange small blobs, and learn why they wait and
 * who died. The bytes are in docs/wire.md.
 *
 * Numbers of processes: workers have rank 0 .. W-1. Server k has "rank" -1 - k, so -1 is psd where there is
 * one server. eni_peer_name() puts it into words. */
#ifndef CONTROL_CONTROL_H
#define CONTROL_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"
#include "run/worker_range.h"

#define ENI_CONTROL_MAGIC   0x454e4331u /* "ENC1" */
#define ENI_CONTROL_VERSION 5u
#define ENI_BLOB_MAX        (UINT32_C(1) << 20) /* of one rank's part of a gather, or of its JOIN */
#define ENI_RANKS_MAX       4096
#define ENI_SERVERS_MAX     64
#define ENI_RANK_NONE       (-1 - ENI_SERVERS_MAX) /* a worker that has no rank yet */
#define ENI_REASON_MAX      512u
#define ENI_TAG_MAX         64u /* with the terminating 0 */
#define ENI_PHASE_MAX       32u /* with the terminating 0 */
#define ENI_STEP_NEVER      UINT64_MAX

/* One named text; both strings are borrowed from their owner. A key is at most 255 bytes. */
typedef struct eni_key_value {
    const char *key, *value;
} eni_key_value;

/* Loss and hits of a step's samples, of one rank or of all. */
typedef struct eni_score {
    uint64_t step;
    uint64_t total;   /* samples of the step over all ranks */
    uint64_t covered; /* .. of which this score covers; of all ranks: total */
    uint64_t hits;
    double loss; /* summed over them */
} eni_score;

/* The value of `key`, or NULL. */
const char *eni_key_value_find(const eni_key_value *key_values, size_t nkey_values, const char *key);

/* "rank 3", "psd", "psd 1", "a worker without a rank". */
void eni_peer_name(int32_t rank, char name_out[32]);

/* One process of the run. */
typedef struct eni_peer {
    int32_t rank; /* -1 - k: server k */
    int64_t pid;
    uint64_t born;       /* clock ticks after boot: unique together with pid and host_id; 0: not known */
    const char *host;    /* for people */
    const char *host_id; /* equal exactly for processes that may share memory: host_info.h */
    const eni_key_value *member_data; /* what it publishes to the others: data addresses, socket names */
    size_t nmember_data;
} eni_peer;

/* The run as one process sees it after WELCOME. Immutable; owned by the member or leader. */
typedef struct eni_world_info {
    int32_t rank; /* own; the leader's own config.rank at the leader */
    int32_t nranks;
    int32_t nservers;      /* 0: the leader is a thread of rank 0 */
    uint32_t epoch;        /* of the membership; in every frame */
    uint64_t incarnation;  /* own (at the leader: every rank's): another incarnation is another client */
    uint64_t budget;       /* micro-batches that claims will hand out */
    const eni_peer *peers; /* nranks, peers[r].rank == r; pid 0: that rank has never joined */
    eni_peer leader;
    const eni_key_value *key_values; /* rank 0's, which every rank's equal */
    size_t nkey_values;
} eni_world_info;

/* The failed rank, as the leader announced it to all. */
typedef struct eni_death {
    int32_t rank; /* -1 - k: server k; ENI_RANK_NONE */
    int64_t pid;
    int64_t step;    /* the last one it reported; -1: none, `phase` is "join" before WELCOME */
    bool is_stopped; /* not dead: SIGSTOP or Ctrl-Z, for longer than the peer timeout */
    char host[256];
    char phase[ENI_PHASE_MAX];
    char cause[ENI_REASON_MAX]; /* "its connection closed without a goodbye", "silent for 5.0 s", .. */
} eni_death;

/* The state of the run as seen by one process; unknown texts are "". */
typedef struct eni_run_outcome {
    bool has_death;
    eni_death death;               /* the first failed rank */
    char reason[ENI_REASON_MAX];   /* why it ended, if not well, as one sentence */
    char stop_why[ENI_REASON_MAX]; /* why an early end was requested, by anybody: "Ctrl-C at rank 0" */
    bool has_time; /* requested by somebody who waits for the checkpoint: no rank is cut off (ask.h) */
} eni_run_outcome;

/* The failure record, the same sentence in every process: "rank 1 (pid 4121 on host b) died at step 41 in
 * backward: silent for 5.0 s", "rank 1 (pid 4121 on host b) was stopped (SIGSTOP or Ctrl-Z) for 5.0 s .." */
void eni_death_text(const eni_death *death, char text_out[ENI_REASON_MAX]);

/* The blobs of one gather: those of rank 0 .. count-2 (empty for a lost rank), and last the leader's (empty
 * unless it has on_gather). With the tag ENI_GATHER_BEGIN the leader's is the time when all had joined the
 * gather: int64_t of eni_now_ns, for processes on its host. */
#define ENI_GATHER_BEGIN "begin"
typedef struct eni_blob {
    const uint8_t *data;
    size_t bytes;
} eni_blob;

typedef struct eni_blobs {
    size_t count; /* nranks + 1 */
    eni_blob *blob;
} eni_blobs;

/* Frees what a gather returned and zeroes it; zeroed memory is fine. */
void eni_blobs_fini(eni_blobs *blobs);

/* ---- a survivor's report of the first failed rank to the launcher: one line on an inherited pipe ----
 *
 * The survivors know the failed rank's rank, step and phase; the launcher knows the signal that ended it.
 * Together they make the one line that people read.
 *
 *     death \t RANK \t PID \t STEP \t IS_STOPPED \t HOST \t PHASE \t CAUSE \n */

/* One write(2) of less than PIPE_BUF bytes, so that lines of several processes do not mix. Any thread; the
 * line is lost silently if the launcher has gone or the pipe is full. */
void eni_failure_write(int fd, const eni_death *death);

/* Reads such a line, without its newline; changes it. False if it is another kind of line, or damaged. */
bool eni_failure_read(char *line, eni_death *death_out);

/* The failed process' own report of the hook that ended it (plugin/hook.h): to the launcher on the descriptor
 * *fd (an int64_t), or, if that is -1, to its log as an error. Waits a few seconds for room in the pipe. May
 * be called in a signal handler.
 *
 *     cause \t PID \t SENTENCE \n */
void eni_cause_tell(void *fd, const char *sentence);
/* *sentence_out lies in the line. False if it is another kind of line. */
bool eni_cause_read(const char *line, int64_t *pid_out, const char **sentence_out);

/* Reports that this process ends because it is done, well or not (`st`). A process that ends without this line
 * was ended by a plugin, even if its exit code is 0. Waits a few seconds for room in the pipe.
 *
 *     end \t PID \t STATUS \n
 *
 * PID in both is that of the process group: the launcher's child leads it, and may have started the process. */
void eni_end_write(int fd, en_status st);
bool eni_end_read(const char *line, int64_t *pid_out, en_status *st_out);

/* The leader's report that the run ends early to go on with this many workers (ask.h). Never blocks.
 *
 *     resize \t WORKERS \t WHY \n */
void eni_resize_write(int fd, int32_t workers, const char *why);
/* *why_out lies in the line. False if it is another kind of line. */
bool eni_resize_read(const char *line, int32_t *workers_out, const char **why_out);

#endif
