/* advise.h - what advise.c (measures, predicts, runs) and advise_show.c (prints) share. */
#ifndef CLI_ADVISE_H
#define CLI_ADVISE_H

#include "cli/commands.h"
#include "runtime/host/cost_model.h"

enum { ENI_ADVICE_MAX = 65, ENI_CHECKS_MAX = 8 };

/* One way to run the job. */
typedef struct eni_advice {
    char name[32]; /* "ring", "ps-sync, 2 servers" */
    int servers;   /* 0: the ring */
    eni_cost_step step;
} eni_advice;

/* A prediction beside what it was of. */
typedef struct eni_advice_check {
    const char *strategy;
    int workers;
    double predicted, measured; /* seconds of a step */
} eni_advice_check;

typedef struct eni_advised {
    const eni_config *config;
    eni_cost_machine machine;
    eni_cost_place place; /* of the question; servers is that of each advice */
    double move_one;      /* seconds per byte that one core moves alone */
    double bytes;         /* of the model */
    eni_advice advice[ENI_ADVICE_MAX];
    int nadvice, best;
    int crossover[ENI_ADVICE_MAX]; /* by servers; 0: none up to `most` */
    int most;
    eni_advice_check check[ENI_CHECKS_MAX];
    int nchecks;
} eni_advised;

void eni_advise_show_machine(const eni_advised *a, FILE *out);
void eni_advise_show_prediction(const eni_advised *a, FILE *out);
void eni_advise_show_checks(const eni_advised *a, FILE *out);

#endif
