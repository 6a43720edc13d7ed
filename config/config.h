/* config.h - all user settings, as one struct of plain fields.
 *
 * One typed table (keys.c) makes the flag parser, --help with every default, the range checks, the YAML
 * reader, the config.yaml dump, the argv of child processes and the list of keys that must match between
 * ranks. A key has the same name everywhere: --batch-size, --batch_size, `batch-size: 64`.
 *
 * Sources of a value, weakest first: the default (of the program), the environment (torchrun's variables, only by a worker
 * that was not started by our launcher, i.e. without --result-fd), the YAML file of --config, the flags. If a flag is repeated,
 * the last one wins; a list (--arm, --straggler) collects, and a list given by flags replaces that of the file.
 *
 * Invalid settings are refused with EN_EINVAL and one logged sentence: the value, its place (--lr, or FILE:LINE:COLUMN, or the
 * variable) and the remedy. Not thread-safe; main thread, before any other starts.
 *
 * The struct owns its texts and lists: eni_config_fini frees them, eni_config_copy duplicates them. A text that was not given
 * and has no default is NULL. */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "entrain/status.h"
#include "run/reach.h"
#include "run/transform.h"
#include "run/worker_range.h"

/* The programs; a key applies to some of them, and the others refuse it. */
typedef enum eni_program {
    ENI_RUN,        /* entrain run */
    ENI_COMPARE,    /* entrain compare */
    ENI_WORKER,     /* worker */
    ENI_PSD,        /* psd */
    ENI_EVAL,       /* entrain eval */
    ENI_PREDICT,    /* entrain predict */
    ENI_CHECK,      /* entrain check */
    ENI_REPORT,     /* entrain report DIR */
    ENI_STRATEGIES, /* entrain strategies */
    ENI_MODELS,     /* entrain models */
    ENI_DATA,       /* entrain data */
    ENI_PS,         /* entrain ps */
    ENI_STOP,       /* entrain stop RUN */
    ENI_ADVISE,     /* entrain advise */
    ENI_SCALE,      /* entrain scale */
    ENI_SIM,        /* entrain sim */
    ENI_GPUS,       /* entrain gpus */
    ENI_JOIN,       /* entrain join RUN */
    ENI_LEAVE,      /* entrain leave RUN RANK */
    ENI_CONFORM,    /* entrain conform STRATEGY */
    ENI_RANK,       /* a program of the user's, by entrain/rank.h */
    ENI_PROGRAMS
} eni_program;

/* Values of the choice keys, in the order of the words in keys.c. */
enum { ENI_SETTING_BYTES = 4096 }; /* of a value that a launcher tells a program, with its end */
enum { ENI_ASSIGN_AUTO, ENI_ASSIGN_CLAIM, ENI_ASSIGN_FIXED }; /* auto: fixed if EN_SYNCHRONOUS, else claim */
enum {
    ENI_SCHEDULE_CONSTANT,
    ENI_SCHEDULE_STEP,
    ENI_SCHEDULE_COSINE,
    ENI_SCHEDULE_MULTISTEP,
    ENI_SCHEDULE_LINEAR
};
enum { ENI_DECAY_ALL, ENI_DECAY_WEIGHTS };
enum { ENI_SCALE_NONE, ENI_SCALE_LINEAR, ENI_SCALE_SQRT };
enum { ENI_BACKEND_AUTO, ENI_BACKEND_HOST, ENI_BACKEND_NCCL };
enum { ENI_PARALLEL_NONE, ENI_PARALLEL_DATA, ENI_PARALLEL_MODEL, ENI_PARALLEL_PIPELINE };
enum { ENI_PIPELINE_1F1B, ENI_PIPELINE_GPIPE };
enum { ENI_ON_DEVICE_AUTO, ENI_ON_DEVICE_ON, ENI_ON_DEVICE_OFF };
enum { ENI_PRECISION_FP32, ENI_PRECISION_BF16, ENI_PRECISION_FP16 };
enum { ENI_ALLREDUCE_AUTO, ENI_ALLREDUCE_DIRECT, ENI_ALLREDUCE_RING, ENI_ALLREDUCE_NAIVE };
enum { ENI_ORDER_RANK, ENI_ORDER_RING }; /* = eni_sum_order */
enum { ENI_TRANSPORT_AUTO, ENI_TRANSPORT_SHM, ENI_TRANSPORT_TCP };
enum { ENI_LOSS_FAIL, ENI_LOSS_CONTINUE };
enum { ENI_PROMISES_AUTO }; /* followed by those of eni_promise */
enum { ENI_FIGURES_SVG, ENI_FIGURES_PDF, ENI_FIGURES_PNG };
enum { ENI_LEVEL_ERROR, ENI_LEVEL_WARN, ENI_LEVEL_INFO, ENI_LEVEL_DEBUG, ENI_LEVEL_TRACE }; /* = ENI_LOG_* */

typedef struct eni_list {
    char **item; /* NULL when count is 0 */
    int count;
} eni_list;

enum { ENI_CONFIG_KEYS_MAX = 192 };

typedef struct eni_config {
    /* training */
    char *strategy; /* "ssp:bound=3", "./mine.so:period=8": eni_spec_head */
    char *model;    /* "convnet" */
    char *data;     /* a name of `entrain data` or a folder */
    /* The folder of the named set, or of the local copy of a URL; NULL: the package's, to be downloaded. */
    char *data_dir;
    char *data_endpoint, *data_keys; /* of object storage: remote/transfer.h */
    char *optimizer;
    double lr, momentum, weight_decay;
    bool nesterov;
    int64_t decay;              /* ENI_DECAY_* */
    double beta1, beta2, eps;   /* adam, adamw */
    int64_t lr_schedule;        /* ENI_SCHEDULE_* */
    int64_t lr_warmup, lr_step; /* amounts (eni_amount_samples) of global samples, 0: none */
    char *lr_milestones;        /* "60epochs,80epochs": eni_parse_amounts */
    double lr_gamma;
    double clip_norm;
    int64_t lr_scale; /* ENI_SCALE_* */
    char *init;       /* weights to start from */
    int64_t seed;     /* >= 0 */
    eni_list set;     /* "width=32": what a program of the user's reads */

    /* amount and order */
    int64_t batch_size;                 /* per worker; resolved from global_batch_size if that is given */
    int64_t global_batch_size;          /* 0: not given */
    int64_t accumulate;                 /* micro-batches per step of `solo` */
    int64_t micro_batches;              /* parts of a rank's batch; 0: not given */
    char *bn_stats;                     /* "rank0", "mean" or "recompute:N": eni_bn_stats_parse */
    int64_t epochs, steps, max_samples; /* 0: not given; the first limit reached ends the run */
    int64_t holdout;                    /* training samples kept out for evaluation; 0: none */
    int64_t limit_train_samples, limit_test_samples; /* 0: all */
    bool shuffle, reshuffle, drop_last;
    int64_t resize;            /* see eni_config_transform; resize 0: original size */
    char *augment, *normalize; /* normalize NULL: the set's own */
    bool augment_test;
    int64_t loader_threads; /* 0: by device and --resize */
    int64_t assign;         /* ENI_ASSIGN_* */

    /* files */
    char *save, *out, *resume, *trace; /* resume: "auto" or a path */
    bool record_order;
    bool overwrite;           /* the contents of `out` may be replaced */
    int64_t checkpoint_every; /* an amount of global samples, 0: never */
    char *checkpoint_dir;     /* NULL: OUT/checkpoints */
    char *tensorboard;        /* "auto": OUT; NULL: none */

    /* compute and transport */
    int64_t threads;            /* per worker, 0: cores / workers on this host */
    char *device;               /* "auto", "cpu", "cuda:0,cuda:1": run/device_list.h */
    int64_t parallel, pipeline; /* ENI_PARALLEL_*, ENI_PIPELINE_* */
    int64_t stages;             /* 0: not given; eni_config_ndevices */
    char *split;                /* "layer2.0,fc": where stages 1, 2, .. begin; NULL: not given */
    bool gpu_sharing;
    int64_t backend, allreduce, sum_order, transport; /* ENI_BACKEND_*, ... */
    int64_t precision;                                /* ENI_PRECISION_* */
    bool tf32, deterministic, graph;
    int64_t data_on_device; /* ENI_ON_DEVICE_* */
    double bucket_cap_mb;   /* 2^20 bytes; 0: eni_job_bucket_cap */
    bool overlap;

    /* processes and hosts */
    int64_t workers;                /* started by entrain */
    int64_t processes;              /* of eval, predict; 0: one per core */
    int64_t rank, world_size;       /* -1: not given; the rank of a newcomer: ENI_RANK_NEW */
    int64_t max_workers;            /* at one time; 0: no newcomers */
    int64_t local_rank, local_size; /* -1: not given, detected */
    char *host_id;
    char *groups;                       /* "2", "0-1;2-3": run/rank_groups.h; NULL: one group per host */
    char *server, *rendezvous, *listen; /* tcp://HOST:PORT */
    char *token_file;
    bool insecure;
    int64_t shards, servers, server_rank;
    char *leader;              /* for a psd other than the first */
    char *state;               /* psd: its folder for recovery; NULL: none */
    int64_t state_every;       /* updates of a partition */
    int64_t server_timeout_ns; /* 0: losing psd ends the run */
    int64_t server_restarts;   /* by the launcher */
    int64_t on_worker_loss;    /* ENI_LOSS_* */
    char *elastic;             /* "2..8": run/worker_range.h; NULL: a fixed number of workers */
    int64_t max_restarts;      /* of an elastic run, after losses */
    int64_t nnodes, node_rank; /* of `entrain run` on several hosts */
    char *master_addr, *init_method;
    int64_t master_port;
    int64_t peer_timeout_ns, join_timeout_ns, hook_timeout_ns;
    int64_t gpu_timeout_ns; /* for work that depends on no other rank */

    /* emulation */
    eni_list straggler;   /* "1:3": eni_straggler_parse; in virtual time: eni_slowdown_read */
    eni_list join, leave; /* "2@5s": eni_visit_parse */
    char *net;            /* "rate:200MB,delay:50us": eni_net_parse; in virtual time: eni_net_links_read */
    char *server_time;    /* "200us+1ms/MB": eni_service_split */

    /* output */
    int64_t log_every;   /* steps */
    int64_t log_level;   /* ENI_LEVEL_* */
    int64_t eval_every;  /* an amount of global samples, 0: see eval_points */
    bool eval_first;     /* the curve starts with the initial weights */
    int64_t eval_points; /* points over the run if eval_every is 0; 0: at the end only */
    eni_target target;   /* of the curve */
    int64_t eval_batch_size;
    bool quiet;
    bool verbose; /* entrain check */

    /* entrain scale, advise */
    eni_list ranks;  /* "1", "2", "4": worker processes */
    eni_list scaled; /* "ring", "ps-sync": --strategy of `entrain scale` */
    int64_t repeats; /* runs of each */
    bool validate;   /* advise: compare with real runs */

    /* entrain sim */
    bool storm;
    int64_t promise; /* ENI_PROMISES_AUTO, or 1 + eni_promise */
    int64_t storms;  /* seeds of --storm, schedules of `entrain conform` */
    int64_t elements, bucket_cap, events;
    char *compute; /* run/law.h, FILE or from:OUT */
    char *replay_order;

    /* entrain conform */
    char *as; /* the strategy whose reference is meant; NULL: that of the plugin's name */

    /* entrain compare */
    eni_list arm;        /* "ssp:bound=2,lr=0.005": eni_config_arm */
    eni_list strategies; /* "ring", "ps-sync": the shorthand */
    eni_list seeds;      /* decimal texts: eni_config_seed */
    eni_list settings;   /* "even", "slow" */
    char *primary;       /* "even:1:2": the comparison tested by itself; NULL: none */
    char *baseline;      /* "ring": the arm compared with all others; NULL: all pairs */
    char *tune;          /* "lr=0.01,0.02": eni_tune_parse; NULL: no sweep */
    bool retry_busy;     /* seeds disturbed by other processes are repeated, once */
    bool is_virtual;     /* every run is one of `entrain sim` */
    bool csv, latex;
    bool json;        /* entrain gpus, ps, sim */
    bool clear_cache; /* entrain data */
    int64_t figures;  /* ENI_FIGURES_* */

    /* descriptors passed by the launcher, -1: none */
    int64_t listen_fd, token_fd, result_fd, out_fd, data_fd;
    bool mute;        /* no output for people: the starting command reports */
    int64_t begin_ns; /* when the launcher began this run (core/clock.h); 0: no launcher */
    bool check;       /* the worker joins, tries the exchange, and leaves */
    char *probe;      /* with check: measure "call", "copy", "compute" or all-reduces of "MIN..MAX" bytes */
    char *takes;      /* "2..8:64", of an elastic run: run/worker_range.h */

    char *config; /* the YAML file that was read, or NULL */
    char *help;   /* "page", "all"; NULL: not asked for */
    bool version;
    eni_list args; /* positional arguments: `report DIR` */
    eni_list
        command; /* of `run`, `compare`, `scale` .. -- CMD ARGS: the program of each rank, in place of `worker` */

    eni_program program;
    uint8_t origin[ENI_CONFIG_KEYS_MAX]; /* by key: the source of the value; private to config/ */
} eni_config;

/* Fills all fields with the defaults of `program`. EN_ENOMEM; on failure there is nothing to free. */
en_status eni_config_init(eni_program program, eni_config *config_out);
void eni_config_fini(eni_config *config); /* safe on zeroed memory and when called twice */
en_status eni_config_copy(const eni_config *from, eni_config *config_out);
/* Replaces a text of a config by a copy of this one. EN_ENOMEM: it stays. */
en_status eni_config_put(char **field, const char *text);

/* Reads everything: defaults, environment, --config file, flags, then eni_config_resolve. argv[0] is skipped and never shown.
 * With --help or --version the rest of the line may be incomplete: sets help, version and whatever was readable. On failure
 * there is nothing to free. */
en_status eni_config_parse(eni_program program, int argc, char *const *argv, eni_config *config_out);

/* Resolves values that depend on several keys: batch_size from global_batch_size, epochs 1 without a budget, rank < world size,
 * and so on. Called by eni_config_parse; call it again after changing fields. */
en_status eni_config_resolve(eni_config *config);

/* Sets one key from text, as a flag would: eni_config_set(c, "lr", "0.1", "--arm=ring,lr=0.1"). Messages name `place`. A NULL
 * value is a flag without one ("nesterov"). */
en_status eni_config_set(eni_config *config, const char *key, const char *value, const char *place);

/* Whether the user gave the key by flag, file or environment (not a default); false for an unknown key. */
bool eni_config_is_given(const eni_config *config, const char *key);

/* Makes one arm of a comparison: `base` as a run (of `entrain sim` if it is one, else of `entrain run`), with the strategy and the keys in `text`. The part after the ':' is split at
 * commas: known keys of `entrain run` (lr=0.005) are set, all others are options of the strategy and stay in ->strategy
 * ("ssp:bound=2"). A name may precede it, "tuned=ring:lr=0.1". The caller finis run_out. EN_EINVAL, logged. */
en_status eni_config_arm(const eni_config *base, const char *text, eni_config *run_out);

/* Makes the configuration of a study that of one of its runs, by `program` (ENI_RUN, ENI_SIM), with the program's own defaults.
 * EN_EINVAL, logged: a flag was given, or a value of it, that its runs do not have. */
en_status eni_config_become(eni_config *config, eni_program program);

/* Whether the text of the arm itself gave the key. */
bool eni_config_is_of_arm(const eni_config *run, const char *key);

/* The i-th of --seeds; `seed` if none were given and i is 0. */
int64_t eni_config_seed(const eni_config *config, int i);

/* Makes a NULL-terminated argv with which `program` resolves to the same values as `config`, for all keys that apply to it and
 * differ from its defaults; argv[0] is `executable`. One block of memory, freed with eni_free; NULL when out of memory
 * (logged). */
char **eni_config_argv(const eni_config *config, eni_program program, const char *executable);

/* Calls `see` in the order of the table for every key that config->program takes, or for those that must be equal on all ranks
 * of a run (except the strategy: ranks may name its file by different paths; its name and options are compared after loading).
 * Passes its canonical text ("0.01", "on"; the items of a list joined by commas; NULL: no value), valid during the call, and
 * whether it was given or differs from the default. A status of `see` other than EN_OK ends the walk, and is returned. */
typedef en_status (*eni_config_see)(void *user, const char *key, const char *value, bool is_reported);
en_status eni_config_each(const eni_config *config, eni_config_see see, void *user);
en_status eni_config_each_match(const eni_config *config, eni_config_see see, void *user);

/* The most ranks that the run can have: the workers it starts with, or with --max-workers ENI_RANKS_PER_PLACE for each seat.
 * Below 1 if not known. */
int32_t eni_config_ranks(const eni_config *config);

/* Devices of one rank, which with --parallel=model and pipeline are its stages: 1 without --parallel; 0: all visible GPUs,
 * shared among the ranks of the host. */
int eni_config_ndevices(const eni_config *config);

/* The type of activations by --precision, and the flags (EN_OPEN_*) to open a device with. With bf16 a GPU has activations
 * of that type; a CPU rounds only the factors of products. */
uint32_t eni_config_dtype(const eni_config *config);
uint32_t eni_config_open_flags(const eni_config *config);

/* The transform of pixels that the flags give. */
eni_transform eni_config_transform(const eni_config *config);

/* Writes all resolved values as YAML that --config reads back, each with its source in a comment. Omits keys about this call
 * only (--out and other targets, --overwrite, --resume, --quiet), so that a run from this file writes elsewhere, and keys
 * without a value. EN_EIO, logged with `name`, if the stream fails. */
en_status eni_config_dump(const eni_config *config, FILE *stream, const char *name);

/* The same to `dir`/config.yaml. EN_EIO, logged. */
en_status eni_config_write(const eni_config *config, const char *dir);

/* Prints the keys of `program` with type, default and help, in groups, at most 100 columns wide: the most used ones, or
 * all. */
void eni_config_help(eni_program program, bool has_all, FILE *stream);

/* "entrain run", "worker", ... */
const char *eni_program_name(eni_program program);

#endif
