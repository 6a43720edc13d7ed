/* rank_options.h - a rank's options, part by part; filled in once (job/settings.c), because nothing in rank/
 * knows flags. Flat records; texts outlive the rank, and are NULL where not given. */
#ifndef RANK_RANK_OPTIONS_H
#define RANK_RANK_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "run/worker_range.h"
#include "runtime/spec/run_spec.h"

/* How it meets the others (join.c). */
typedef struct eni_join_options {
    const char *server, *rendezvous, *token_file, *host_id;
    const char *rendezvous_note; /* "", or a remark on one from the environment */
    bool has_rendezvous;         /* it was given */
    bool is_insecure;
    int64_t local_size;                   /* ranks here, where a launcher's environment says so; else 0 */
    int token_fd, listen_fd, launcher_fd; /* of `entrain run`; -1: none */
    eni_worker_range elastic;             /* numbers of workers that may be requested; max 0: none */
    char private_folder[256];             /* of this user, for tokens and the list of runs; "": none */
    char out[1024];                       /* --out in that list, absolute; "" */
    int64_t join_timeout_ns, peer_timeout_ns, server_timeout_ns;
    eni_run_spec *spec; /* the flags that must be equal on all ranks; the join adds their contents */
} eni_join_options;

/* The exchange of vectors (exchange.c). */
typedef struct eni_exchange_options {
    const char *net; /* the emulated network; NULL: none */
    uint64_t net_bytes_per_s;
    int64_t net_delay_ns;
    int allreduce;      /* ENI_COLL_* */
    const char *no_shm; /* the flag that forbids shared memory; NULL: allowed */
    eni_sum_order sum_order;
    const char *groups;   /* run/rank_groups.h; NULL: the ranks of a host are one */
    bool is_check;        /* `entrain check`: nothing is trained */
    double bucket_cap_mb; /* for a message */
} eni_exchange_options;

/* Records and results (records.c, result.c). */
typedef struct eni_record_options {
    const char *out, *save, *trace, *tensorboard; /* folder, files, folder */
    bool is_quiet;                                /* no progress */
    bool is_mute;                                 /* no result either */
    bool eval_first;                              /* the initial weights are a point of the curve */
    uint64_t log_every;                           /* steps */
    /* Global samples between two points; if 0: number of points; 0: the last. */
    uint64_t eval_every, eval_points;
    eni_target target;
    int64_t begin_ns;                    /* when a launcher began this run; 0: without one */
    uint64_t epochs, steps, max_samples; /* the budget as given */
    char *const *argv, *const *stragglers;
    int argc, nstragglers;
} eni_record_options;

/* Checkpoints (save.c, resume.c). */
typedef struct eni_save_options {
    uint64_t every;     /* global samples; 0: never */
    const char *resume; /* "auto" or a path */
    char dir[1024];     /* their folder; "": none */
    bool may_replace;   /* --overwrite: those of an earlier run are removed */
} eni_save_options;

#endif
