/* may_differ.h - the one table behind the fairness box: which runs' values of a key (of the configuration) or
 * of a fact (of result.json) may differ in a comparison, and what follows if others do. A name without a row
 * may not differ at all; tests/report/test_may_differ.c finds keys and facts that were added without one. */
#ifndef REPORT_MAY_DIFFER_H
#define REPORT_MAY_DIFFER_H

#include "report/report_study.h"

/* Marks of the fairness box's rules. */
enum { ENI_PASS, ENI_WARN, ENI_FAIL };

/* Which runs may have different values? */
typedef enum eni_who {
    ENI_NOBODY, /* none: a condition of the study */
    ENI_ALONE,  /* none, except the baseline that represents all workers */
    ENI_SEEDS,  /* runs of different seeds */
    ENI_ARMS,   /* different arms: the comparison is about it. Not runs of one arm. */
    ENI_ANYBODY /* all: names of files, output settings, or results, which are compared */
} eni_who;

/* The consequence of a difference that is not allowed; for ENI_ARMS, from one between arms. */
typedef enum eni_then {
    ENI_THEN_FAIL,
    ENI_THEN_WARN,
    ENI_THEN_OTHER_BYTES, /* arms: their weights are not expected to be equal; runs of one arm: as FAIL */
    ENI_THEN_NOTHING      /* arms: equal weights are still expected; runs of one arm: as FAIL */
} eni_then;

typedef struct eni_may_differ {
    const char *rule; /* of a fact: the rule that judges it; NULL: a key */
    eni_who who;
    eni_then then;
    const char *names; /* separated by blanks; "environment.cpu" is in the object `environment` */
} eni_may_differ;

/* The rules that judge facts. */
#define ENI_RULE_START   "initial weights"
#define ENI_RULE_ORDER   "data order"
#define ENI_RULE_TASK    "same task"
#define ENI_RULE_PROGRAM "same program"
#define ENI_RULE_MACHINE "same machine"
#define ENI_RULE_OTHER   "" /* a separate rule, with its own limits, or none */

extern const eni_may_differ eni_may_differ_table[];
extern const size_t eni_may_differ_count;

/* The row of a key or a fact; NULL if absent. */
const eni_may_differ *eni_may_differ_find(bool is_fact, const char *name);

/* A fact of a run as text, "" if the run lacks it. */
enum { ENI_FACT_TEXT = 640 };
void eni_fact_of(const eni_run *run, const char *name, char text_out[ENI_FACT_TEXT]);

/* Judges the facts of a rule over the complete runs of a study: ENI_PASS, or the worst consequence, with two
 * runs that disagree and their values in text_out. */
int eni_facts_judge(const eni_study *study, const char *rule, char text_out[ENI_FACT_TEXT]);

/* Whether two arms tell a program the same (`set`). */
bool eni_is_told_alike(const eni_study *study, size_t a, size_t b);

/* The runs that may differ in a key. */
eni_who eni_who_may_differ(const char *key);

#endif
