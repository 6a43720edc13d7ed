/* experiment.h - a network in virtual time as an experiment: its curve, and with --out the files of `entrain run` (config.yaml,
 * metrics-RANK.jsonl or, of more than 64 ranks, metrics-all.jsonl, eval.jsonl, result.json), by the same writers (rank/). */
#ifndef VIRTUAL_EXPERIMENT_H
#define VIRTUAL_EXPERIMENT_H

#include "rank/curve.h"
#include "virtual/network.h"

typedef struct eni_experiment eni_experiment;

/* Borrowed until it is closed. */
typedef struct eni_experiment_config {
    const eni_config *config; /* resolved, of `entrain sim` with --model */
    const char *version;      /* of this program */
    int argc;
    char *const *argv;
    eni_virtual *simulation;                              /* gets hooks: evaluate, stepped */
    eni_virtual_network *network;                         /* opened for it */
    void (*on_point)(void *user, const eni_point *point); /* of the curve, when it is finished */
    void *user;
} eni_experiment_config;

typedef struct eni_experiment_end {
    eni_set_score first; /* the initial weights, judged as the curve's points */
    eni_set_score test;  /* the final ones on the test set; accuracy NAN: no classes */
    eni_curve_end curve;
} eni_experiment_end;

/* Takes the folder of --out, clears it, and begins its files. On failure there is nothing to close. EN_EINVAL: the folder has a
 * run, EN_EIO; logged. */
en_status eni_experiment_open(const eni_experiment_config *config, eni_experiment **experiment_out);

/* After a run of the simulation that ended well, with its final weights: evaluates the curve, and writes --save and the last
 * files. */
en_status eni_experiment_finish(eni_experiment *experiment, const eni_sim_result *result,
                                const float *weights, eni_experiment_end *end_out);

/* Closes the files; of a run without an end, result.json says so. NULL is fine. */
void eni_experiment_close(eni_experiment *experiment);

#endif
