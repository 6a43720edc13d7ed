/* report_study.h - a finished comparison in memory: settings x arms x seeds, one run each.
 *
 * A *setting* is a condition ("even", "slow"), an *arm* is a strategy with its options, and runs of the same
 * setting and seed are a pair: same initial weights, same data order. Numbers that a file did not give are
 * NAN, texts NULL; a time to target that was not reached is INFINITY (the run is censored, never dropped). */
#ifndef REPORT_REPORT_STUDY_H
#define REPORT_REPORT_STUDY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/json.h"
#include "entrain/status.h"
#include "report/comparisons.h"
#include "report/stats.h"
#include "run/reach.h"

enum { ENI_MERGED_MAX = 8 }; /* studies on a page */

/* Limits far above any real comparison; a file beyond them is refused. */
enum {
    ENI_MAX_SETTINGS = 16,
    ENI_MAX_ARMS = 32,
    ENI_MAX_RUNS = 4096,
    ENI_MAX_ROLES = 256,
    ENI_MAX_STAGES = 64,
    ENI_MAX_CHUNKS = 1024 /* of --micro-batches */
};

/* Schemas of compare.json and result.json: incremented when a key changes its name or meaning. */
enum { ENI_STUDY_SCHEMA = 2, ENI_RESULT_SCHEMA = 2 };

/* of all cores, used by processes outside a run: above it, the machine was busy */
#define ENI_BUSY_SHARE 0.05

/* The phases of a step's time. */
enum {
    ENI_PHASE_DATA,
    ENI_PHASE_COMPUTE,
    ENI_PHASE_SLEEP, /* a slow rank's: emulated */
    ENI_PHASE_EXCHANGE,
    ENI_PHASE_WAIT,
    ENI_PHASE_UPDATE,
    ENI_PHASES,
    ENI_PHASE_HIDDEN = ENI_PHASES /* exchange hidden by compute: not a separate phase */
};

/* One process of a run: a worker ("rank 0") or a server ("psd"). */
typedef struct eni_role {
    const char *name;  /* borrowed from the run's result */
    const char *cores; /* cpu list such as "0" or "0-1"; NULL: not pinned or not known */
    int rank;          /* -1: not a worker */
    double cpu_seconds;
    double ns[ENI_PHASES]; /* over the whole run */
    double hidden_ns;      /* of ENI_PHASE_COMPUTE: an exchange was under way meanwhile; 0: not known */
    double steps;
} eni_role;

typedef struct eni_bin {
    double value, count;
} eni_bin;

/* Staleness of the pushes of one worker (rank >= 0) or of all of them (rank -1), in versions. */
typedef struct eni_staleness {
    int rank;
    double mean, p50, p95, max;
    size_t nbins;
    eni_bin *bins;
} eni_staleness;

/* One worker's samples. */
typedef struct eni_rank_share {
    int rank;
    double computed, applied, steps;
} eni_rank_share;

/* A forward or backward of one chunk on one stage; ms from the start of its step. */
typedef struct eni_strip_turn {
    int stage, chunk;
    bool is_backward;
    double begin, end;
} eni_strip_turn;

/* Pipeline of a run whose ranks have several devices: rank 0's last full step, and the shares of all steps in
 * which its stages waited (NAN: not known). */
typedef struct eni_strip {
    int stages;
    bool is_of_replicas;  /* --parallel=data */
    const char *schedule; /* borrowed from the run's result, as the cuts are */
    const json_t *cuts;
    double micro_batches, bubble, bubble_predicted, bubble_ideal;
    size_t nturns; /* 0: no strip */
    eni_strip_turn *turns;
} eni_strip;

/* A rank of a run whose ranks come and go: from when to when, in seconds, and how it ended. */
typedef struct eni_present {
    int rank;
    enum { ENI_STAYED, ENI_LEFT, ENI_WAS_LOST } end;
    double from, to;
} eni_present;

/* A rank that was to be slow: the factor asked for and the one measured (NAN: not known). */
typedef struct eni_slow {
    int rank;
    double asked, measured;
} eni_slow;

typedef struct eni_run {
    size_t setting, arm; /* indices into the study */
    const char *root;    /* the folder that `dir` is in, borrowed from the study */
    int64_t seed;
    int order; /* position in the order of starts */
    int exit;
    bool is_complete;          /* exit 0 and a result: the numbers below count */
    bool is_replaced;          /* another run replaces it */
    const char *dir, *started; /* borrowed from the index */
    const char *cause;         /* why it failed, likewise; NULL: it did not, or the cause is unknown */

    json_t *result; /* owned; the texts below are borrowed from it */
    const char *model, *data, *device, *transport, *algorithm;
    const char *bn_stats; /* whose running statistics were evaluated; NULL: a network without any */
    const char *init_sha256, *order_sha256, *params_sha256;
    char *emulated;  /* owned: "straggler 1:3, net …"; NULL: real */
    char *simulated; /* owned: "compute exp:10ms, net …"; NULL: it ran on real ranks */
    double workers, updates, steps, samples_computed, samples_applied, samples_dropped;
    double samples_per_s, train_seconds, test_accuracy, test_loss, lr, global_batch_size;
    double payload_bytes, wire_bytes, shm_bytes, theory_bytes, max_rss;

    size_t nevals, nroles, nworkers_stale, nshares, nslow, npresent;
    eni_eval *evals;
    eni_role *roles;
    eni_staleness staleness;     /* of all workers */
    eni_staleness *worker_stale; /* per worker */
    eni_rank_share *shares;
    eni_slow *slow;
    eni_present *present;
    eni_strip pipeline;

    double step_ms[3];        /* p50, p95, p99 over all steps of all workers, from metrics-RANK.jsonl */
    eni_reach reach;          /* the target; t and samples: INFINITY: not reached; NAN: no accuracy */
    double last_t;            /* of the last evaluation: a censored run took longer */
    eni_target evaluated_for; /* the evaluated points were chosen for it; its value NAN: none */
    double outside;           /* share of all cores that other processes took while it ran; NAN: not known */
} eni_run;

typedef struct eni_setting_spec {
    const char *name;
    const char *straggler; /* "RANK:FACTOR,.."; NULL: none */
    const char *emulated;  /* what the setting's runs emulate; NULL: nothing */
    const char *simulated; /* how its runs in virtual time take their times; NULL: on real ranks */
    size_t seeds;          /* planned before the first run */
    size_t study;          /* of a page of several */
} eni_setting_spec;

typedef struct eni_arm {
    const char *name, *strategy;
    const json_t *entry; /* of the index: its "options", "own", "given" and "condition" */
    double lr;
    /* EN_ALONE: the baseline, one process that does all workers' work. */
    bool is_alone;
    unsigned studies; /* a mask: those of the page that it is an arm of */
    int colour;       /* index of the strategy's colour: the same for two arms of one strategy */
    int variant;      /* 0 for the first arm of a strategy, 1 for the second, … */
} eni_arm;

typedef struct eni_study {
    char *dir[ENI_MERGED_MAX]; /* (ndirs) of each study on the page, owned */
    size_t ndirs;
    json_t *index; /* compare.json, owned; texts below are borrowed from it */
    eni_target target;
    const char *lr_scale;
    size_t nsettings, narms, nruns, nseeds;
    eni_setting_spec settings[ENI_MAX_SETTINGS];
    eni_arm arms[ENI_MAX_ARMS];
    eni_run *runs;    /* (nruns), in the order of starts; followed by the replaced ones */
    size_t nreplaced; /* made on a busy machine, and repeated (--retry-busy): shown, but not counted */
    int64_t *seeds;
    bool has_primary;
    eni_primary primary; /* the comparison that the study named before the first run */
    size_t baseline;     /* the arm that all others are compared with; ENI_COMPARISONS_ALL: none */
    bool has_holdout;    /* curves and times to the target are of samples kept out of training */
    bool
        has_classes; /* judged by the accuracy; false for a regression, and with a target of the loss: by that */
} eni_study;

/* Reads the folders (see eni_report), side by side: settings, and so rankings and tests, stay apart (report_merge.c). Without a
 * target the first one's own. The caller frees with eni_study_free; on failure there is nothing to free. Logs the first
 * error. */
en_status eni_study_load(const char *const *dirs, size_t n, eni_target target, eni_study **study_out);
void eni_study_free(eni_study *study);

/* ---- the indices of several studies as one (report_merge.c) ---- */

/* Marks the settings, arms and runs of an index (compare.json) with the number of its study: "study" of settings and runs,
 * "studies", a mask, of arms. A file's own marks are replaced. */
void eni_merge_mark(json_t *index, int study);

/* Adds a marked index to `all`: its settings, renamed where they have the name of another ("even, simulated"); its arms, those
 * of one name, strategy, options and rate being the same; its seeds, runs and plan, without a primary comparison of its own. Its "argv" and "conditions" become an entry of "more".
 * Parts that a malformed index lacks are left out: the reader of `all` finds them missing. */
void eni_merge_add(json_t *all, json_t *index);

/* Sets "target", the fraction or null, and if it is a loss "target_loss". */
void eni_study_put_target(json_t *object, const eni_target *target);

/* Reads result.json, eval.jsonl and metrics-*.jsonl of a run whose setting, arm, seed and exit are set, and
 * finds its time to target. A run that failed (exit != 0) may lack any of them. `dir` is the study's. */
en_status eni_study_load_run(const char *dir, const eni_target *target, eni_run *run);

/* Whether the setting's study has this arm. */
bool eni_study_has_arm(const eni_study *study, size_t setting, size_t arm);

/* Refuses a file with another schema. */
void eni_study_check_schema(eni_json *reader, const json_t *file, int schema);
void eni_study_drop_run(eni_run *run); /* frees what it owns */

/* Sets reach and last_t by the rule of run/reach.h. */
void eni_study_find_target(eni_run *run, const eni_target *target);

/* Whether the bracket of a run that reached the target is more than 10 % of its time. */
bool eni_study_bracket_is_wide(const eni_run *run);

/* True if the run was evaluated for another target: the snapshots next to this target's crossing are gone, so its
 * bracket is an interval of the grid. False if the target of that evaluation was not recorded. */
bool eni_study_bracket_is_of_grid(const eni_run *run, const eni_target *target);

/* In place of a setting or an arm in the following functions: all of them. */
#define ENI_ANY SIZE_MAX

/* The run of (setting, arm) after `before` (NULL: the first), in the order of starts; NULL: no more.
 * Borrowed. */
const eni_run *eni_study_next(const eni_study *study, size_t setting, size_t arm, const eni_run *before);

/* The run of (setting, arm, seed), or NULL. Borrowed. */
const eni_run *eni_study_find(const eni_study *study, size_t setting, size_t arm, int64_t seed);

/* A number of a run; NAN excludes the run from a summary. */
typedef double (*eni_metric)(const eni_run *run);

double eni_metric_samples_per_s(const eni_run *run);
double eni_metric_wait(const eni_run *run); /* workers' waiting as a share of their step time */
double eni_metric_cpu_seconds(const eni_run *run);

/* Metrics of one expression: eni_metric_updates(run) and so on. A failed run is not a miss. */
/* clang-format off */
#define ENI_METRICS(METRIC)                                                   \
    METRIC(updates, run->updates)                                             \
    METRIC(reach_t, run->is_complete ? run->reach.t : NAN)                    \
    METRIC(accuracy, run->test_accuracy)                                      \
    METRIC(loss, run->is_complete ? run->test_loss : NAN)                     \
    METRIC(accuracy_percent, 100 * run->test_accuracy)                        \
    METRIC(thousand_per_s, eni_metric_samples_per_s(run) / 1000)              \
    METRIC(payload_ratio, run->theory_bytes > 0 ? run->payload_bytes / run->theory_bytes : NAN) \
    METRIC(theory_mb, run->theory_bytes / 1e6)                                \
    METRIC(payload_mb, run->payload_bytes / 1e6)                              \
    METRIC(wire_mb, run->wire_bytes / 1e6)                                    \
    METRIC(shm_mb, run->shm_bytes / 1e6)                                      \
    METRIC(rss_mb, run->max_rss / 1e6)                                        \
    METRIC(stale_mean, run->is_complete ? run->staleness.mean : NAN)          \
    METRIC(stale_p50, run->is_complete ? run->staleness.p50 : NAN)            \
    METRIC(stale_p95, run->is_complete ? run->staleness.p95 : NAN)            \
    METRIC(stale_max, run->is_complete ? run->staleness.max : NAN)            \
    METRIC(step_p50, run->step_ms[0])                                         \
    METRIC(step_p95, run->step_ms[1])                                         \
    METRIC(step_p99, run->step_ms[2])
#define ENI_METRIC_DECLARED(name, value) double eni_metric_##name(const eni_run *run);
ENI_METRICS(ENI_METRIC_DECLARED)
/* clang-format on */

/* The metric of the runs of one (setting, arm), without NAN, in the order of the runs. Returns their number. */
size_t eni_study_values(const eni_study *study, size_t setting, size_t arm, eni_metric metric,
                        double values_out[ENI_MAX_RUNS]);

/* The metric's summary over the seeds of one (setting, arm). */
eni_summary eni_study_summary(const eni_study *study, size_t setting, size_t arm, eni_metric metric);

/* The number of runs of (setting, arm) in the study, complete or not. */
size_t eni_study_count(const eni_study *study, size_t setting, size_t arm);

/* The number of those that trained to the end without reaching the target, and the time at which the first of
 * them ended (NAN if there are none). */
size_t eni_study_missed(const eni_study *study, size_t setting, size_t arm, double *least_t_out);

/* A complete run of (setting, arm) that represents the others in texts: the first started; NULL: none. */
const eni_run *eni_study_example(const eni_study *study, size_t setting, size_t arm);

/* The median over seeds of one rank's waiting, as a share of its step time; NAN: no such rank. */
double eni_study_wait_of_rank(const eni_study *study, size_t setting, size_t arm, int rank);

/* Neither a straggler nor a shaped network in this setting, nor virtual time. */
bool eni_study_is_real(const eni_study *study, size_t setting);

/* The number of settings in virtual time. */
size_t eni_study_simulated(const eni_study *study);

/* "real", "emulated: straggler 1:3" or "simulated: compute exp:10ms, .."; alone its first word, of a run in the setting. Writes
 * at most `size` bytes. */
const char *eni_study_word(const eni_study *study, size_t setting);
void eni_study_kind(const eni_study *study, size_t setting, char *text_out, size_t size);

#endif
