/* may_differ.h - the one table behind the fairness box: whose values of a key (of the configuration) or of a fact (of
 * result.json) may differ in a comparison, and what follows where they do. A name without a row is one in which
 * nobody may differ; tests/report/test_may_differ.c finds keys and facts that were added without. */
#ifndef REPORT_MAY_DIFFER_H
#define REPORT_MAY_DIFFER_H

#include "report/report_study.h"

/* Of a rule of the fairness box. */
enum { ENI_PASS, ENI_WARN, ENI_FAIL };

/* Of two runs with different values, which is fine? */
typedef enum eni_who {
    ENI_NOBODY, /* none: a condition of the study */
    ENI_ALONE,  /* the same, but the baseline that stands for all workers has a value of its own */
    ENI_SEEDS,  /* runs of different seeds */
    ENI_ARMS,   /* arms: it is what they are compared by. Runs of one arm may not. */
    ENI_ANYBODY /* any: it is where files go or what is printed, or it is what came out and is compared */
} eni_who;

/* What follows, where those differ who may not; of ENI_ARMS, where arms do. */
typedef enum eni_then {
    ENI_THEN_FAIL,
    ENI_THEN_WARN,
    ENI_THEN_OTHER_BYTES, /* arms: nobody expects equal weights of them; runs of one arm: as FAIL */
    ENI_THEN_NOTHING      /* arms: equal weights are still expected; runs of one arm: as FAIL */
} eni_then;

typedef struct eni_may_differ {
    const char *rule; /* of a fact: the rule that looks at it; NULL: a key */
    eni_who who;
    eni_then then;
    const char *names; /* with blanks between; "environment.cpu" lies in the object `environment` */
} eni_may_differ;

/* The rules that facts have. */
#define ENI_RULE_START   "initial weights"
#define ENI_RULE_ORDER   "data order"
#define ENI_RULE_TASK    "same task"
#define ENI_RULE_MACHINE "same machine"
#define ENI_RULE_OTHER   "" /* a rule of its own, with its own limits, or none */

extern const eni_may_differ eni_may_differ_table[];
extern const size_t eni_may_differ_count;

/* The row of a key or a fact; NULL: it has none. */
const eni_may_differ *eni_may_differ_find(bool is_fact, const char *name);

/* A fact of a run as text, "" where it does not say. */
enum { ENI_FACT_TEXT = 320 };
void eni_fact_of(const eni_run *run, const char *name, char text_out[ENI_FACT_TEXT]);

/* The facts of a rule, over the complete runs of a study: ENI_PASS, or the worst of what follows, and in text_out two
 * runs that do not agree, and what each has. */
int eni_facts_judge(const eni_study *study, const char *rule, char text_out[ENI_FACT_TEXT]);

/* Who may differ in a key. */
eni_who eni_who_may_differ(const char *key);

#endif
