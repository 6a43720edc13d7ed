/* report_fair.c - see report_fair.h. One function per rule, in the order of the box. */
#include "report/report_fair.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "report/table.h"
#include "run/units.h"

const char *eni_fair_mark(int mark)
{
    static const char *const names[] = {"PASS", "WARN", "FAIL"};
    return names[mark];
}

/* Records the finding of a rule; a rule that does not apply to a study records nothing. */
static void found(eni_fairness *fairness, int mark, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void found(eni_fairness *fairness, int mark, const char *fmt, ...)
{
    eni_rule *rule = &fairness->rules[fairness->nrules];
    rule->mark = mark;
    va_list args;
    va_start(args, fmt);
    vsnprintf(rule->text, sizeof rule->text, fmt, args);
    va_end(args);
}

enum { RUNS_NAMED = 3 }; /* of many with the same problem */

/* ---- the same start, the same order -------------------------------------------------------------------- */

static bool is_first_of_seed(const eni_study *study, const eni_run *run, const char *fact)
{
    char text[ENI_RULE_TEXT];
    for (const eni_run *other = study->runs; other < run; other++) {
        eni_fact_of(other, fact, text);
        if (other->is_complete && other->seed == run->seed && text[0] != 0) return false;
    }
    return true;
}

/* All complete runs of one seed, over arms and settings, must have one hash: of the weights or of the order. */
static void rule_hash(const eni_study *study, eni_fairness *fairness)
{
    const char *rule = fairness->rules[fairness->nrules].name;
    const bool is_start = strcmp(rule, ENI_RULE_START) == 0;
    const char *fact = is_start ? "init_sha256" : "order_sha256";
    size_t unknown = 0, compared = 0;
    bool has_own = false;
    char list[ENI_RULE_TEXT] = "", hash[ENI_RULE_TEXT], odd[ENI_RULE_TEXT];
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        eni_fact_of(run, fact, hash);
        unknown += run->is_complete && hash[0] == 0;
        if (!run->is_complete || hash[0] == 0) continue;
        compared++;
        has_own = has_own || (is_start && !eni_is_told_alike(study, 0, run->arm));
        if (is_first_of_seed(study, run, fact))
            eni_text_add(list, ENI_RULE_TEXT, "%sseed %" PRId64 ": %.8s", list[0] ? ", " : "", run->seed,
                         hash);
    }
    if (eni_facts_judge(study, rule, odd) != ENI_PASS)
        found(fairness, ENI_FAIL, "%s", odd);
    else if (unknown > 0)
        found(fairness, ENI_WARN, "no hash in %zu of %zu runs", unknown, unknown + compared);
    else
        found(fairness, ENI_PASS, "one per seed%s over %zu run%s (%s)",
              has_own ? " and settings of the program" : "", compared, compared == 1 ? "" : "s", list);
}

/* ---- the learning rate --------------------------------------------------------------------------------- */

/* The learning rate of an arm and the samples covered by one update, also if a push covers many
 * micro-batches; false if the runs do not record it. */
static bool rate_of(const eni_study *study, size_t arm, double *lr_out, double *samples_out,
                    double *updates_out)
{
    for (size_t c = 0; c < study->nsettings; c++) {
        const eni_run *run = eni_study_example(study, c, arm);
        if (run == NULL || !(run->updates > 0) || isnan(run->samples_applied)) continue;
        *lr_out = isnan(run->lr) ? study->arms[arm].lr : run->lr;
        *samples_out = run->samples_applied / run->updates;
        *updates_out = run->updates;
        return !isnan(*lr_out);
    }
    return false;
}

/* Whether the arm's text sets the key: then the study's author chose it. */
static bool is_given(const eni_study *study, size_t arm, const char *key)
{
    const json_t *given = json_object_get(study->arms[arm].entry, "given");
    for (size_t i = 0; i < json_array_size(given); i++) {
        const char *name = json_string_value(json_array_get(given, i));
        if (name != NULL && strcmp(name, key) == 0) return true;
    }
    return false;
}

/* An arm's own value of a key; NULL: the value of all arms. */
static const char *own_of(const eni_study *study, size_t arm, const char *key)
{
    return json_string_value(json_object_get(json_object_get(study->arms[arm].entry, "own"), key));
}

/* The level of the first arm that the rule compares this one with: one with the same optimizer, as the rates
 * of different ones are not comparable. NAN if it is the first. */
static double level_of(const eni_study *study, size_t arm, const double *levels)
{
    const char *mine = own_of(study, arm, "optimizer");
    for (size_t b = 0; b < arm; b++) {
        const char *its = own_of(study, b, "optimizer");
        if (study->ndirs > 1 && (study->arms[b].studies & study->arms[arm].studies) == 0) continue;
        const bool is_same = mine == NULL || its == NULL ? mine == its : strcmp(mine, its) == 0;
        if (is_same && !isnan(levels[b])) return levels[b];
    }
    return NAN;
}

/* Linear scaling (Goyal et al. 2017): the rate is proportional to the samples per update; square root: to
 * their root. Judged by what the runs did, so that it also holds for users' own strategies. Without scaling,
 * an arm with a rate of its own is tuned, as every arm should be; one rate for all favours those whose
 * updates cover as many samples as those that it was tuned for. */
static void rule_rate(const eni_study *study, eni_fairness *fairness)
{
    const char *scale = study->lr_scale == NULL ? "none" : study->lr_scale;
    double power = strcmp(scale, "sqrt") == 0 ? 0.5 : 1, levels[ENI_MAX_ARMS];
    const bool is_none = strcmp(scale, "none") == 0;
    size_t ntuned = 0, nknown = 0, ncompared = 0;
    char list[ENI_RULE_TEXT] = "", odd[ENI_RULE_TEXT] = "";
    for (size_t a = 0; a < study->narms; a++) {
        double lr, samples, updates;
        levels[a] = NAN;
        if (!rate_of(study, a, &lr, &samples, &updates)) continue;
        const double level = lr / pow(samples, power), reference = level_of(study, a, levels);
        const bool is_swept = json_object_get(study->arms[a].entry, "sweep") != NULL;
        const bool is_tuned = is_swept || (is_none && is_given(study, a, "lr"));
        nknown++;
        ntuned += is_tuned;
        eni_text_add(list, ENI_RULE_TEXT, "%s%s %g per %.0f samples", list[0] ? ", " : "",
                     study->arms[a].name, lr, samples);
        if (is_tuned) continue;
        levels[a] = level;
        ncompared += !isnan(reference);
        if (fabs(level / reference - 1) > 0.03 + 1 / updates)
            eni_text_add(odd, ENI_RULE_TEXT,
                         level / reference < 10 ? "%s%s at %.2g of the rule" : "%s%s at %.0f times the rule",
                         odd[0] ? ", " : "", study->arms[a].name, level / reference);
    }
    if (nknown == 0) {
        found(fairness, ENI_WARN, "the runs do not record lr and updates");
    } else if (odd[0] != 0 && is_none) {
        found(fairness, ENI_FAIL, "not scaled, times and accuracy not comparable: %s", list);
    } else if (odd[0] != 0) {
        found(fairness, ENI_WARN, "a rate of its own against %s scaling: %s", scale, odd);
    } else if (ntuned > 0 && ntuned < nknown) { /* tuned arms against defaults */
        found(fairness, ENI_WARN, "only %zu of %zu arms have a rate of their own: %s", ntuned, nknown, list);
    } else {
        found(fairness, ENI_PASS, "%s: %s",
              ntuned > 0                 ? "each arm has a rate of its own"
              : is_none && ncompared > 0 ? "not scaled, but proportional to the samples of an update"
              : is_none                  ? "not scaled"
                                         : scale,
              list);
    }
}

/* The run of a sweep (--tune) that was chosen; `end_out`: it is the least or the greatest. NULL: the arm was not tuned. */
static const json_t *chosen_of(const eni_study *study, size_t arm, bool *end_out, size_t *failed_out)
{
    const json_t *sweep = json_object_get(study->arms[arm].entry, "sweep"), *run, *chosen = NULL;
    for (size_t i = 0; (run = json_array_get(sweep, i)) != NULL; i++) {
        *failed_out +=
            json_is_null(json_object_get(run, "loss")) && !json_is_true(json_object_get(run, "diverged"));
        if (!json_is_true(json_object_get(run, "chosen"))) continue;
        chosen = run;
        *end_out = i == 0 || i + 1 == json_array_size(sweep);
    }
    return chosen;
}

/* A best value at an end of the grid may be better beyond it, and a run that failed was never judged: then not every arm had
 * the same chance. */
static void rule_tuning(const eni_study *study, eni_fairness *fairness)
{
    char list[ENI_RULE_TEXT] = "", ends[ENI_RULE_TEXT] = "", how[ENI_RULE_TEXT] = "";
    const json_t *tune = json_object_get(study->index, "tune"), *values = json_object_get(tune, "values");
    size_t ntuned = 0, nfailed = 0;
    for (size_t a = 0; a < study->narms; a++) {
        bool is_end = false;
        const json_t *chosen = chosen_of(study, a, &is_end, &nfailed);
        if (chosen == NULL) continue;
        const double value = json_number_value(json_object_get(chosen, "value"));
        eni_text_add(list, ENI_RULE_TEXT, "%s%s %g", ntuned++ > 0 ? ", " : "", study->arms[a].name, value);
        if (is_end)
            eni_text_add(ends, ENI_RULE_TEXT, "%s%s %g", ends[0] ? ", " : "", study->arms[a].name, value);
    }
    if (ntuned == 0) return;
    for (size_t i = 0; i < json_array_size(values); i++)
        eni_text_add(how, ENI_RULE_TEXT, "%s%g", i > 0 ? ", " : "",
                     json_number_value(json_array_get(values, i)));
    if (ntuned < study->narms || tune == NULL)
        found(fairness, ENI_WARN, "only %zu of %zu arms were tuned: %s", ntuned, study->narms, list);
    else if (nfailed > 0)
        found(fairness, ENI_WARN, "%zu run%s of the sweeps failed; chosen: %s", nfailed,
              nfailed == 1 ? "" : "s", list);
    else if (ends[0] != 0)
        found(fairness, ENI_WARN, "best at an end of %s, try beyond: %s", how, ends);
    else
        found(fairness, ENI_PASS,
              "each arm's rate from %s, by one run each on held-out samples, seed %lld, %s: %s", how,
              (long long)json_integer_value(json_object_get(tune, "seed")),
              json_string_value(json_object_get(tune, "setting")), list);
}

/* Asynchrony is momentum (Mitliagkas et al. 2016): 1 - 1/W for W memoryless workers, whose mean staleness is W - 1. With
 * an explicit momentum m, an update is remembered as with 1 - (1 - m) / W. */
static void rule_momentum(const eni_study *study, eni_fairness *fairness)
{
    const double much = 0.9;
    char list[ENI_RULE_TEXT] = "", text[ENI_FACT_TEXT], worst[80] = "";
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, ENI_ANY, a);
        if (run == NULL || !(run->staleness.mean > 0)) continue;
        eni_fact_of(run, "momentum", text);
        const double given = strtod(text, NULL), own = 1 - 1 / (1 + run->staleness.mean);
        const double both = 1 - (1 - given) * (1 - own);
        eni_text_add(list, ENI_RULE_TEXT, "%s%.64s: %.3g beside asynchrony's %.2f", list[0] ? ", " : "",
                     study->arms[a].name, given, own);
        if (given > 0 && both > much && worst[0] == 0)
            snprintf(worst, sizeof worst, "; together %.2f, over %g: lower --momentum", both, much);
    }
    if (list[0] != 0) found(fairness, worst[0] != 0 ? ENI_WARN : ENI_PASS, "%.480s%s", list, worst);
}

/* ---- the same work ----------------------------------------------------------------------------------- */

/* Adds the samples of runs that did not apply all that they computed. */
static void append_not_applied(const eni_study *study, char *text)
{
    bool is_first = true;
    for (size_t a = 0; a < study->narms; a++) {
        double applied = INFINITY, dropped = 0, computed = 0;
        for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, a, run)) != NULL;) {
            if (!run->is_complete || !(run->samples_applied < run->samples_computed)) continue;
            if (run->samples_applied / run->samples_computed >= applied / computed) continue;
            applied = run->samples_applied;
            dropped = run->samples_dropped;
            computed = run->samples_computed;
        }
        if (isinf(applied)) continue;
        char few[32], lost[32];
        eni_text_grouped(applied, ",", few, sizeof few);
        eni_text_grouped(dropped, ",", lost, sizeof lost);
        eni_text_add(text, ENI_RULE_TEXT, "%s%s applied %s and dropped %s", is_first ? "; " : ", ",
                     study->arms[a].name, few, lost);
        is_first = false;
    }
}

/* The fewest and the most samples of a study's runs; false if none records them. */
static bool budget_of(const eni_study *study, size_t which, double *least, double *most, const eni_run **low)
{
    *least = INFINITY;
    *most = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        if (!run->is_complete || isnan(run->samples_computed) || study->settings[run->setting].study != which)
            continue;
        if (run->samples_computed < *least) *low = run;
        *least = fmin(*least, run->samples_computed);
        *most = fmax(*most, run->samples_computed);
    }
    return *most > 0;
}

/* On a page of several studies the widest one. */
static void rule_budget(const eni_study *study, eni_fairness *fairness)
{
    double least = 0, most = 0, fewest, greatest;
    const eni_run *low = NULL, *lowest = NULL;
    for (size_t i = 0; i == 0 || i < study->ndirs; i++) {
        if (!budget_of(study, i, &fewest, &greatest, &lowest)) continue;
        if (low != NULL && fewest / greatest >= least / most) continue;
        low = lowest;
        least = fewest;
        most = greatest;
    }
    char few[32], many[32], rest[ENI_RULE_TEXT] = "";
    eni_text_grouped(least, ",", few, sizeof few);
    eni_text_grouped(most, ",", many, sizeof many);
    append_not_applied(study, rest);
    if (low == NULL)
        found(fairness, ENI_WARN, "the runs do not record samples_computed");
    else if (least == most)
        found(fairness, ENI_PASS, "%s samples computed in every run%s", many, rest);
    else
        found(fairness, least >= 0.99 * most ? ENI_WARN : ENI_FAIL,
              "samples computed: from %s (%s in %s) to %s%s", few, study->arms[low->arm].name,
              study->settings[low->setting].name, many, rest);
}

static void rule_task(const eni_study *study, eni_fairness *fairness)
{
    char odd[ENI_RULE_TEXT];
    const eni_run *first = NULL;
    bool is_known = true; /* a program need not say what its data are */
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        is_known = is_known && !eni_json_says(run->result, "data_sha256", "not known");
        if (run->is_complete && (first == NULL || study->arms[first->arm].is_alone)) first = run;
    }
    if (first == NULL)
        found(fairness, ENI_FAIL, "no run ended well");
    else if (eni_facts_judge(study, ENI_RULE_TASK, odd) != ENI_PASS)
        found(fairness, ENI_FAIL, "%s", odd);
    else
        found(fairness, is_known ? ENI_PASS : ENI_WARN, "%s on %s%s, %s, %g worker%s, global batch %g%s%s",
              first->model ? first->model : "model?", first->data ? first->data : "data?",
              is_known ? "" : " (its hash is not known)", first->device ? first->device : "device?",
              first->workers, first->workers > 1 ? "s" : "", first->global_batch_size,
              first->bn_stats ? ", running statistics by bn-stats " : "",
              first->bn_stats ? first->bn_stats : "");
}

/* A program of the user's: its script and arguments, what computes and steps, and what the arms tell it. */
static void rule_program(const eni_study *study, eni_fairness *fairness)
{
    char text[ENI_RULE_TEXT] = "";
    const char *file = "?", *sha256 = "?", *argv = "?", *computes = "?", *step = "?", *weights = "?";
    const eni_run *run = eni_study_example(study, ENI_ANY, ENI_ANY);
    json_t *program = run == NULL ? NULL : json_object_get(run->result, "program");
    if (program == NULL) return;
    int mark = eni_facts_judge(study, ENI_RULE_PROGRAM, text);
    (void)json_unpack(program, "{s?s, s?s, s?s, s?s, s?s, s?s}", "file", &file, "computes", &computes, "step",
                      &step, "weights", &weights, "sha256", &sha256, "argv_sha256", &argv);
    if (mark == ENI_PASS)
        eni_text_add(text, ENI_RULE_TEXT, "%s %.8s, arguments %.8s, %s, %s step, %s weights", file, sha256,
                     argv, computes, step, weights);
    for (size_t a = 0; a < study->narms; a++) {
        if (mark == ENI_PASS && !eni_is_told_alike(study, 0, a))
            mark = ENI_WARN; /* so the models may differ */
        if (own_of(study, a, "set") != NULL)
            eni_text_add(text, ENI_RULE_TEXT, "; %s: %s", study->arms[a].name, own_of(study, a, "set"));
    }
    found(fairness, mark, "%s", text);
}

/* A study that is resumed later may run another program or on another machine. */
static void rule_machine(const eni_study *study, eni_fairness *fairness)
{
    char text[ENI_RULE_TEXT] = "";
    const int mark = eni_facts_judge(study, ENI_RULE_MACHINE, text);
    const eni_run *run = eni_study_example(study, ENI_ANY, ENI_ANY);
    if (run == NULL) return;
    if (mark == ENI_PASS) eni_fact_of(run, "environment.cpu", text);
    if (text[0] != 0) found(fairness, mark, "%s", text);
}

/* The value of a key of the condition, from compare.json; "none" if unset. */
static const char *condition_of(const eni_study *study, size_t setting, size_t arm, const char *key)
{
    const json_t *value = json_object_get(json_object_get(study->arms[arm].entry, "condition"), key);
    if (value == NULL) value = json_object_get(json_object_get(study->index, "conditions"), key);
    const char *text = json_string_value(value);
    if (text == NULL && strcmp(key, "straggler") == 0)
        text = study->settings[setting].straggler; /* the setting's */
    return text == NULL ? "none" : text;
}

/* Differences that the baseline may have because it represents all workers. */
static bool is_excepted(const eni_study *study, size_t arm, const char *key)
{
    return study->arms[arm].is_alone && eni_who_may_differ(key) == ENI_ALONE;
}

/* Finds two arms that disagree on the key in some setting, and reports the key once. */
static void find_difference(const eni_study *study, const char *key, char *text)
{
    for (size_t c = 0; c < study->nsettings; c++) {
        size_t first = 0;
        while (first < study->narms && is_excepted(study, first, key))
            first++;
        for (size_t a = first + 1; a < study->narms; a++) {
            if (is_excepted(study, a, key)) continue;
            const char *one = condition_of(study, c, first, key), *other = condition_of(study, c, a, key);
            if (strcmp(one, other) == 0) continue;
            eni_text_add(text, ENI_RULE_TEXT, "%s%s: %s has %s, %s has %s", text[0] ? "; " : "", key,
                         study->arms[first].name, one, study->arms[a].name, other);
            return;
        }
    }
}

/* The conditions of the other studies on the page, where they differ from the first one's. */
static void add_more_conditions(const eni_study *study, json_t *first, char *odd, char *list)
{
    const json_t *more = json_object_get(study->index, "more");
    for (size_t i = 0; i < json_array_size(more); i++) {
        json_t *conditions = json_object_get(json_array_get(more, i), "conditions"), *value;
        const char *key, *before = "";
        json_object_foreach(conditions, key, value)
        {
            if (json_object_get(first, key) == NULL) find_difference(study, key, odd);
            if (json_equal(value, json_object_get(first, key)) || !json_is_string(value)) continue;
            if (before[0] == 0) eni_text_add(list, ENI_RULE_TEXT, "; in %s: ", study->dir[i + 1]);
            eni_text_add(list, ENI_RULE_TEXT, "%s%s %s", before, key, json_string_value(value));
            before = ", ";
        }
    }
}

/* Arms may differ in keys of their own (may_differ.h); a condition that is set for some of them only makes
 * the comparison unfair. */
static void rule_conditions(const eni_study *study, eni_fairness *fairness)
{
    char odd[ENI_RULE_TEXT] = "", list[ENI_RULE_TEXT] = "";
    json_t *conditions = json_object_get(study->index, "conditions"), *value;
    const char *key;
    if (!json_is_object(conditions)) return; /* a folder of one run */
    json_object_foreach(conditions, key, value)
    {
        find_difference(study, key, odd);
        /* The runs record the data set (rule_task): --data=cifar10 may name files of that form. */
        if (json_is_string(value) && strcmp(key, "data") != 0)
            eni_text_add(list, ENI_RULE_TEXT, "%s%s %s", list[0] ? ", " : "", key, json_string_value(value));
    }
    add_more_conditions(study, conditions, odd, list);
    found(fairness, odd[0] == 0 ? ENI_PASS : ENI_FAIL, "%s", odd[0] == 0 ? list : odd);
}

/* How slow a rank was in one arm's runs of a setting, on average; NAN: not known. */
static double slowness_of(const eni_study *study, size_t setting, size_t arm, int rank)
{
    double sum = 0;
    size_t n = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, setting, arm, run)) != NULL;)
        for (size_t k = 0; k < run->nslow; k++) {
            if (run->slow[k].rank != rank || isnan(run->slow[k].measured)) continue;
            sum += run->slow[k].measured;
            n++;
        }
    return n > 0 ? sum / (double)n : NAN;
}

/* A slow rank of a setting, and the arms in which it was least and most slow. */
typedef struct slowness {
    size_t setting, low_arm, high_arm, nunknown;
    double asked, low, high;
} slowness;

static slowness slowness_in(const eni_study *study, size_t setting, const eni_slow *slow)
{
    slowness s = {.setting = setting, .asked = slow->asked, .low = INFINITY};
    for (size_t a = 0; a < study->narms; a++) {
        const double factor = slowness_of(study, setting, a, slow->rank);
        s.nunknown += isnan(factor) && eni_study_example(study, setting, a) != NULL;
        if (factor < s.low) {
            s.low = factor;
            s.low_arm = a;
        }
        if (factor > s.high) {
            s.high = factor;
            s.high_arm = a;
        }
    }
    return s;
}

/* The first run of a setting that records slow ranks; NULL: none does. */
static const eni_run *find_slow(const eni_study *study, size_t setting)
{
    const eni_run *run = NULL;
    while ((run = eni_study_next(study, setting, ENI_ANY, run)) != NULL && run->nslow == 0) {
    }
    return run;
}

/* The condition "a rank is slow" is the same only if it is equally slow in every arm. Finds the rank in which
 * arms differ most: zeros if nothing is known. Returns the number of arms for which it is unknown. */
static size_t find_widest(const eni_study *study, slowness *widest, bool *has_slow)
{
    const eni_slow nobody = {.rank = -1};
    size_t nunknown = 0;
    *widest = (slowness){0};
    *has_slow = false;
    for (size_t c = 0; c < study->nsettings; c++) {
        const eni_run *run = find_slow(study, c);
        const size_t n = run != NULL ? run->nslow : study->settings[c].straggler != NULL;
        size_t lacking = 0;
        *has_slow = *has_slow || n > 0;
        for (size_t k = 0; k < n; k++) {
            const slowness s = slowness_in(study, c, run != NULL ? &run->slow[k] : &nobody);
            if (s.nunknown > lacking) lacking = s.nunknown;
            if (s.high > 0 && (!(widest->high > 0) || s.high / s.low > widest->high / widest->low))
                *widest = s;
        }
        nunknown += lacking;
    }
    return nunknown;
}

static void rule_slow_ranks(const eni_study *study, eni_fairness *fairness)
{
    slowness s;
    bool has_slow;
    const size_t nunknown = find_widest(study, &s, &has_slow);
    if (!has_slow) return;
    if (nunknown > 0 || !(s.high > 0)) {
        found(fairness, ENI_WARN, "how slow they were is not recorded for %zu arm%s", nunknown,
              nunknown == 1 ? "" : "s");
        return;
    }
    const char *setting = study->settings[s.setting].name;
    const double apart = s.high / s.low - 1;
    if (apart <= 0.05)
        found(fairness, ENI_PASS, "%g asked for in %s: %.2f to %.2f times as slow in every arm", s.asked,
              setting, s.low, s.high);
    else
        found(fairness, apart > 0.10 ? ENI_FAIL : ENI_WARN,
              "%g asked for in %s: %.2f times as slow in %s, %.2f in %s", s.asked, setting, s.low,
              study->arms[s.low_arm].name, s.high, study->arms[s.high_arm].name);
}

/* ---- the machine ------------------------------------------------------------------------------------- */

int eni_fair_cores(const char *list, uint64_t set[16])
{
    int n = 0;
    for (const char *at = list; *at != 0;) {
        char part[24];
        int32_t first, last;
        const size_t length = strcspn(at, ",");
        snprintf(part, sizeof part, "%.*s", (int)length, at);
        if (length >= sizeof part || !eni_parse_range(part, &first, &last) || last >= 1024) return -1;
        for (int32_t cpu = first; cpu <= last; cpu++, n++)
            set[cpu / 64] |= UINT64_C(1) << (cpu % 64);
        at += length + (at[length] == ',');
    }
    return n;
}

/* Cores of one run: the distinct ones that its roles list, or those of the machine. 0: unknown. */
static int cores_of(const eni_study *study, const eni_run *run)
{
    uint64_t set[16] = {0};
    bool is_known = run->nroles > 0;
    for (size_t i = 0; i < run->nroles; i++)
        is_known = is_known && run->roles[i].cores != NULL && eni_fair_cores(run->roles[i].cores, set) > 0;
    int cores = 0;
    for (int w = 0; w < 16; w++)
        cores += __builtin_popcountll(set[w]);
    const json_t *machine = json_object_get(json_object_get(study->index, "environment"), "cores");
    return is_known ? cores : (int)json_integer_value(machine);
}

/* Compute threads of each worker: the sum over its devices, if they are on this host. */
static int threads_of(const eni_run *run)
{
    const int threads = (int)json_integer_value(json_object_get(run->result, "threads"));
    const int devices = run->pipeline.stages > 1 ? run->pipeline.stages : 1;
    const bool is_gpu = run->device != NULL && strncmp(run->device, "cuda", 4) == 0;
    return is_gpu || threads < 1 ? 1 : threads * devices;
}

static void rule_cores(const eni_study *study, eni_fairness *fairness)
{
    char shared[ENI_RULE_TEXT] = "";
    size_t unknown = 0;
    size_t setting = 0;
    if (eni_study_simulated(study) == study->nsettings) return;
    while (study->settings[setting].simulated != NULL)
        setting++;
    for (size_t a = 0; a < study->narms; a++) {
        const eni_run *run = eni_study_example(study, setting, a);
        if (!eni_study_has_arm(study, setting, a)) continue;
        int cores = run == NULL ? 0 : cores_of(study, run), workers = 0;
        if (cores == 0 || run->nroles == 0) {
            unknown++;
            continue;
        }
        for (size_t i = 0; i < run->nroles; i++)
            workers += run->roles[i].rank >= 0;
        const int servers = (int)run->nroles - workers, threads = threads_of(run);
        if (workers * threads + servers <= cores) continue;
        char line[ENI_RULE_TEXT] = "", each[32] = "";
        if (threads > 1) snprintf(each, sizeof each, " of %d threads each", threads);
        if (servers > 0)
            eni_text_add(line, ENI_RULE_TEXT, "psd shares %d core%s with %d worker%s%s", cores,
                         cores == 1 ? "" : "s", workers, workers == 1 ? "" : "s", each);
        else
            eni_text_add(line, ENI_RULE_TEXT, "%d worker%s%s share%s %d core%s", workers,
                         workers == 1 ? "" : "s", each, workers == 1 ? "s" : "", cores,
                         cores == 1 ? "" : "s");
        if (strstr(shared, line) == NULL)
            eni_text_add(shared, ENI_RULE_TEXT, "%s%s", shared[0] ? "; " : "", line);
    }
    if (shared[0] != 0)
        found(fairness, ENI_WARN, "%s", shared);
    else if (unknown > 0)
        found(fairness, ENI_WARN, "not recorded for %zu of %zu arms", unknown, study->narms);
    else
        found(fairness, ENI_PASS, "every compute thread and every server has a core of its own");
}

static void rule_order(const eni_study *study, eni_fairness *fairness)
{
    size_t longest = 0;
    const char *who = "";
    bool has_repeats = false;
    for (size_t c = 0; c < study->nsettings; c++) {
        size_t streak = 0, last = SIZE_MAX;
        for (const eni_run *run = NULL; (run = eni_study_next(study, c, ENI_ANY, run)) != NULL;) {
            streak = run->arm == last ? streak + 1 : 1;
            last = run->arm;
            has_repeats = has_repeats || eni_study_count(study, c, run->arm) > 1;
            if (streak > longest) {
                longest = streak;
                who = study->arms[run->arm].name;
            }
        }
    }
    char head[ENI_RULE_TEXT] = "";
    for (size_t i = 0; i < study->nruns && i < 6; i++)
        eni_text_add(head, ENI_RULE_TEXT, "%s%s", i > 0 ? ", " : "", study->arms[study->runs[i].arm].name);
    if (study->narms == 1)
        found(fairness, ENI_PASS, "one arm, nothing to interleave");
    else if (!has_repeats)
        found(fairness, ENI_PASS, "one run per arm and setting (%s)", head);
    else if (longest <= 2) /* a b c, c b a puts two of an arm side by side */
        found(fairness, ENI_PASS, "interleaved (%s%s)", head, study->nruns > 6 ? ", …" : "");
    else
        found(fairness, ENI_WARN, "not interleaved: %zu runs of %s in a row", longest, who);
}

/* "load 0.1 to 2.3 before the runs": shown, but not judged. */
static void append_load(const eni_study *study, char *text)
{
    const json_t *list = json_object_get(study->index, "runs");
    double least = INFINITY, most = -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *load = json_object_get(json_array_get(list, i), "load");
        if (!json_is_number(load)) continue;
        least = fmin(least, json_number_value(load));
        most = fmax(most, json_number_value(load));
    }
    if (most >= 0) eni_text_add(text, ENI_RULE_TEXT, "; load %.1f to %.1f before the runs", least, most);
}

static void rule_quiet(const eni_study *study, eni_fairness *fairness)
{
    size_t known = 0, unknown = 0, nbusy = 0;
    double most = 0;
    char list[ENI_RULE_TEXT] = "", text[ENI_RULE_TEXT] = "";
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        if (!run->is_complete || run->simulated != NULL) continue;
        if (isnan(run->outside)) {
            unknown++;
            continue;
        }
        known++;
        most = fmax(most, run->outside);
        if (run->outside <= ENI_BUSY_SHARE) continue;
        if (++nbusy <= RUNS_NAMED)
            eni_text_add(list, ENI_RULE_TEXT, "%s%s %.0f %%", list[0] ? ", " : "", run->dir,
                         100 * run->outside);
    }
    const json_t *first = json_array_get(json_object_get(study->index, "runs"), 0);
    if (json_object_get(first, "outside") == NULL) return; /* a folder of one run */
    if (known == 0) {
        eni_text_add(text, ENI_RULE_TEXT, "not known: the runs were too short");
    } else if (nbusy == 0) {
        eni_text_add(text, ENI_RULE_TEXT, "other processes took at most %.1f %% of the cores in %zu run%s",
                     100 * most, known, known == 1 ? "" : "s");
    } else {
        eni_text_add(text, ENI_RULE_TEXT,
                     "other processes took over %.0f %% of the cores in %zu of %zu runs: %s",
                     100 * ENI_BUSY_SHARE, nbusy, known, list);
        if (nbusy > RUNS_NAMED) eni_text_add(text, ENI_RULE_TEXT, ", …, up to %.0f %%", 100 * most);
    }
    if (known > 0 && unknown > 0) eni_text_add(text, ENI_RULE_TEXT, "; not known in %zu", unknown);
    if (study->nreplaced > 0)
        eni_text_add(text, ENI_RULE_TEXT, "; %zu run%s repeated and not counted", study->nreplaced,
                     study->nreplaced == 1 ? " was" : "s were");
    append_load(study, text);
    found(fairness, nbusy > 0 || known == 0 ? ENI_WARN : ENI_PASS, "%s", text);
}

/* ---- the cost of measuring --------------------------------------------------------------------------- */

/* For runs that record it. Copies (rank/snapshot.c) and their use in checkpoints happen on the clock; above 2
 * % of it, or if only some arms move bytes, measuring distorts the times. */
static void rule_measuring(const eni_study *study, eni_fairness *fairness)
{
    double share = 0, after = 0, on_clock = 0, bytes = 0, left_out = 0;
    size_t known = 0, moving = 0;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        const json_t *looks = json_object_get(run->result, "snapshots");
        if (looks == NULL || !(run->train_seconds > 0)) continue;
        const double moved = json_number_value(json_object_get(looks, "bytes_on_clock"));
        known++;
        moving += moved > 0;
        on_clock = fmax(on_clock, moved);
        share = fmax(share, json_number_value(json_object_get(looks, "clock_seconds")) / run->train_seconds);
        after = fmax(after, json_number_value(json_object_get(looks, "after_seconds")));
        bytes = fmax(bytes, json_number_value(json_object_get(looks, "bytes_after")));
        left_out += json_number_value(json_object_get(looks, "left_out"));
    }
    if (known == 0) return;
    char lost[64] = "", some[64] = "";
    const bool is_uneven = moving > 0 && moving < known;
    if (is_uneven) snprintf(some, sizeof some, " in %zu of %zu runs", moving, known);
    if (left_out > 0) snprintf(lost, sizeof lost, "; %.0f snapshots were skipped", left_out);
    found(fairness, share > 0.02 || left_out > 0 || is_uneven ? ENI_WARN : ENI_PASS,
          "copies took at most %.2g %% of a run's clock and moved %.3g MB during it%s; afterwards at most "
          "%.2g s and %.3g MB%s",
          share * 100, on_clock * 1e-6, some, after, bytes * 1e-6, lost);
}

/* ---- nothing left out -------------------------------------------------------------------------------- */

static void rule_seeds(const eni_study *study, eni_fairness *fairness)
{
    size_t failed = 0, missing = 0, widest = 0;
    char list[ENI_RULE_TEXT] = "";
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        if (run->is_complete) continue;
        if (++failed > RUNS_NAMED) continue;
        eni_text_add(list, ENI_RULE_TEXT, "%s%s (exit %d%s%s)", list[0] ? ", " : "", run->dir, run->exit,
                     run->cause == NULL ? "" : ": ", run->cause == NULL ? "" : run->cause);
    }
    /* By plan, seeds may differ between settings, but never between the arms of a setting. */
    for (size_t c = 0; c < study->nsettings; c++) {
        for (size_t s = 0; s < study->nseeds; s++) {
            size_t have = 0, asked = 0;
            for (size_t a = 0; a < study->narms; a++) {
                asked += eni_study_has_arm(study, c, a);
                have += eni_study_find(study, c, a, study->seeds[s]) != NULL;
            }
            if (have > 0) missing += asked - have;
        }
        for (size_t a = 0; a < study->narms; a++) {
            size_t n = eni_study_count(study, c, a);
            if (n > widest) widest = n;
            missing += n == 0 && eni_study_has_arm(study, c, a);
        }
    }
    if (failed > 0)
        found(fairness, ENI_FAIL, "%zu of %zu runs failed: %s%s", failed, study->nruns, list,
              failed > RUNS_NAMED ? ", …" : "");
    else if (missing > 0)
        found(fairness, ENI_FAIL,
              missing == 1 ? "%zu run that other arms have is missing"
                           : "%zu runs that other arms have are missing",
              missing);
    else if (widest < study->nseeds)
        found(fairness, ENI_FAIL, "%zu of %zu seeds were run", widest, study->nseeds);
    else
        found(fairness, ENI_PASS, "%zu run%s asked for, %zu ended well", study->nruns,
              study->nruns == 1 ? "" : "s", study->nruns);
}

/* ring, ps-sync and solo compute the same numbers when the sum is taken in rank order (docs/design.md); a
 * ring over TCP rotates the order and NCCL has one of its own, so both are exempt. Options could change the
 * arithmetic: none allowed. The strategies are known by name: the contract has no flag for a strategy whose
 * steps equal those of one process, and a plugin that set it would be judged by its own claim. */
static bool must_be_equal(const eni_study *study, size_t arm)
{
    const eni_arm *spec = &study->arms[arm];
    bool is_known =
        spec->is_alone || strcmp(spec->strategy, "ring") == 0 || strcmp(spec->strategy, "ps-sync") == 0;
    const eni_run *run = eni_study_example(study, 0, arm);
    const char *algorithm = run == NULL || run->algorithm == NULL ? "" : run->algorithm;
    const bool is_rotated = strcmp(algorithm, "ring") == 0 || strcmp(algorithm, "nccl") == 0;
    const json_t *given = json_object_get(spec->entry, "options"); /* "key=value,…" or an object */
    const char *options = json_string_value(given);
    const bool has_options = json_object_size(given) > 0 || (options != NULL && options[0] != 0);
    return is_known && !is_rotated && !has_options;
}

/* Chunks of a batch, whose mean is rounded once more than that of the whole batch. */
static double chunks_of(const eni_study *study, size_t arm)
{
    const eni_run *run = eni_study_example(study, 0, arm);
    return run != NULL && run->pipeline.micro_batches > 1 ? run->pipeline.micro_batches : 1;
}

/* Whether the keys of one kind let two arms end with different bytes: an arm's own keys may, if the table
 * says so; other conditions do, and have been reported already. */
static bool differ_in(const eni_study *study, size_t a, size_t b, const char *kind)
{
    json_t *one = json_object_get(study->arms[a].entry, kind);
    json_t *other = json_object_get(study->arms[b].entry, kind);
    for (int turn = 0; turn < 2; turn++) {
        const char *key;
        json_t *value, *object = turn == 0 ? one : other;
        json_object_foreach(object, key, value)
        {
            const eni_may_differ *row = eni_may_differ_find(false, key);
            if (json_equal(value, json_object_get(turn == 0 ? other : one, key))) continue;
            if (is_excepted(study, a, key) || is_excepted(study, b, key)) continue;
            if (strcmp(key, "strategy") == 0) continue; /* handled by must_be_equal */
            if (row == NULL || row->who != ENI_ARMS || row->then == ENI_THEN_OTHER_BYTES) return true;
        }
    }
    return false;
}

/* The first arm that this one must be equal to; itself if it is the first. */
static size_t first_alike(const eni_study *study, size_t arm)
{
    for (size_t b = 0; b < arm; b++)
        if (must_be_equal(study, b) && !(fabs(study->arms[arm].lr - study->arms[b].lr) > 0) &&
            !(fabs(chunks_of(study, arm) - chunks_of(study, b)) > 0) && !differ_in(study, arm, b, "own") &&
            !differ_in(study, arm, b, "condition"))
            return b;
    return arm;
}

static void rule_same_bytes(const eni_study *study, eni_fairness *fairness)
{
    size_t last = SIZE_MAX, pairs = 0;
    char arms[ENI_RULE_TEXT] = "", hash[16] = "";
    for (size_t a = 0; a < study->narms; a++) {
        const size_t first = must_be_equal(study, a) ? first_alike(study, a) : a;
        const size_t before = pairs;
        if (first == a) continue;
        for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, a, run)) != NULL;) {
            const eni_run *other = eni_study_find(study, run->setting, first, run->seed);
            if (run->params_sha256 == NULL || other == NULL || other->params_sha256 == NULL) continue;
            if (hash[0] == 0) snprintf(hash, sizeof hash, "%.8s", other->params_sha256);
            pairs++;
            if (strcmp(run->params_sha256, other->params_sha256) == 0) continue;
            snprintf(fairness->same_bytes, ENI_RULE_TEXT,
                     "%s and %s should be equal byte for byte, and are not", study->arms[first].name,
                     study->arms[a].name);
            found(fairness, ENI_FAIL, "%s in %s, seed %" PRId64 ": %.8s against %.8s", study->arms[a].name,
                  study->settings[run->setting].name, run->seed, run->params_sha256, other->params_sha256);
            return;
        }
        if (pairs == before) continue;
        if (first != last)
            eni_text_add(arms, ENI_RULE_TEXT, "%s%s", arms[0] != 0 ? ", " : "", study->arms[first].name);
        eni_text_add(arms, ENI_RULE_TEXT, " = %s", study->arms[a].name);
        last = first;
    }
    if (pairs == 0) return;
    snprintf(fairness->same_bytes, ENI_RULE_TEXT, "%.256s byte for byte (sha256 %s…)", arms, hash);
    found(fairness, ENI_PASS, "%.200s, final weights of %s%zu pair%s (sha256 %s…)", arms,
          pairs == 1 ? "" : "all ", pairs, pairs == 1 ? "" : "s", hash);
}

/* A page of several studies: times are ranked and tested in each by itself. Curves over samples can be compared where runs of a
 * seed begin with the same weights and take the same samples in the same order. */
static void rule_page(const eni_study *study, eni_fairness *fairness)
{
    static const char *const facts[] = {"init_sha256", "order_sha256"};
    size_t nsimulated = 0, npairs = 0, nalike = 0, nequal = 0;
    char has[ENI_RULE_TEXT], had[ENI_RULE_TEXT], equal[64] = "";
    if (study->ndirs < 2) return;
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        nsimulated += run->simulated != NULL;
        for (const eni_run *other = study->runs; other < run; other++) {
            if (study->settings[other->setting].study == study->settings[run->setting].study ||
                other->arm != run->arm || other->seed != run->seed || !run->is_complete ||
                !other->is_complete)
                continue;
            bool is_alike = true;
            for (size_t i = 0; i < 2; i++) {
                eni_fact_of(run, facts[i], has);
                eni_fact_of(other, facts[i], had);
                is_alike = is_alike && strcmp(has, had) == 0;
            }
            npairs++;
            nalike += is_alike;
            nequal += run->params_sha256 != NULL && other->params_sha256 != NULL &&
                      strcmp(run->params_sha256, other->params_sha256) == 0;
        }
    }
    if (nequal > 0) snprintf(equal, sizeof equal, ", and %zu with the same weights", nequal);
    found(fairness, nalike < npairs ? ENI_WARN : ENI_PASS,
          "%zu of %zu runs are in virtual time; times are ranked and tested in each study by itself; of %zu "
          "pairs "
          "of one arm and seed, %zu begin alike and take the same samples%s%s",
          nsimulated, study->nruns, npairs, nalike, equal,
          nalike < npairs ? ": curves over samples differ by that too" : "");
}

/* ---- the box ----------------------------------------------------------------------------------------- */

void eni_fair_judge(const eni_study *study, eni_fairness *fairness_out)
{
    static const struct {
        const char *name;
        void (*judge)(const eni_study *study, eni_fairness *fairness);
    } rules[] = {{ENI_RULE_START, rule_hash},          {ENI_RULE_ORDER, rule_hash},
                 {"learning rate", rule_rate},         {"tuning", rule_tuning},
                 {"momentum", rule_momentum},          {"same budget", rule_budget},
                 {ENI_RULE_TASK, rule_task},           {ENI_RULE_PROGRAM, rule_program},
                 {"same conditions", rule_conditions}, {"slow ranks", rule_slow_ranks},
                 {"cores per role", rule_cores},       {ENI_RULE_MACHINE, rule_machine},
                 {"quiet machine", rule_quiet},        {"order of runs", rule_order},
                 {"no seed dropped", rule_seeds},      {"measuring", rule_measuring},
                 {"same bytes", rule_same_bytes},      {"one page", rule_page}};
    *fairness_out = (eni_fairness){.is_time_comparable = true};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        eni_rule *rule = &fairness_out->rules[fairness_out->nrules];
        *rule = (eni_rule){.name = rules[i].name, .mark = -1};
        rules[i].judge(study, fairness_out);
        fairness_out->nrules += rule->mark >= 0;
        fairness_out->nwarn += rule->mark == ENI_WARN;
        fairness_out->nfail += rule->mark == ENI_FAIL;
        /* A failed run affects only the arms that it is missing from: report_verdict.c. */
        if (rule->mark == ENI_FAIL && rules[i].judge != rule_seeds) fairness_out->is_time_comparable = false;
    }
}

void eni_fair_line(const eni_fairness *fairness, char *text_out, size_t size)
{
    const bool has_failed = fairness->nfail > 0;
    const size_t n = has_failed ? fairness->nfail : fairness->nwarn;
    const char *before = "";
    snprintf(text_out, size, "%s", eni_fair_mark(has_failed ? ENI_FAIL : ENI_PASS));
    if (n == 0) return;
    eni_text_add(text_out, size, ", %zu %s%s%s (", n, has_failed ? "rule" : "warning", n > 1 ? "s" : "",
                 has_failed ? " broken" : "");
    for (size_t i = 0; i < fairness->nrules; i++) {
        if (fairness->rules[i].mark != (has_failed ? ENI_FAIL : ENI_WARN)) continue;
        eni_text_add(text_out, size, "%s%s", before, fairness->rules[i].text);
        before = "; ";
    }
    eni_text_add(text_out, size, ")");
}
