/* compare_tune.c - see compare_tune.h. */
#include "cli/compare_tune.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/json.h"
#include "report/report_study.h"

int64_t eni_tune_seed(const eni_config *config)
{
    const int n = config->seeds.count > 0 ? config->seeds.count : 1;
    int64_t seed = 0;
    for (int i = 0; i < n; i++) {
        if (eni_config_seed(config, i) != seed) continue;
        seed++;
        i = -1; /* they need not rise */
    }
    return seed;
}

json_t *eni_tune_past(const char *dir, const char *arm)
{
    char path[1200];
    json_t *entry, *sweep = NULL;
    snprintf(path, sizeof path, "%s/compare.json", dir);
    json_t *past = eni_json_file(path, NULL);
    for (size_t i = 0; (entry = json_array_get(json_object_get(past, "arms"), i)) != NULL; i++)
        if (eni_json_says(entry, "name", arm)) sweep = json_object_get(entry, "sweep");
    sweep = json_is_array(sweep) ? json_incref(sweep) : json_array();
    json_decref(past);
    return sweep;
}

static double number_of(const json_t *run, const char *key)
{
    const json_t *number = json_object_get(run, key);
    return json_is_number(number) ? json_number_value(number) : NAN;
}

bool eni_tune_has(const json_t *sweep, double value)
{
    const json_t *run;
    for (size_t i = 0; (run = json_array_get(sweep, i)) != NULL; i++)
        if (!islessgreater(number_of(run, "value"), value)) return true;
    return false;
}

/* NAN: it diverged, or cannot be read. */
static double loss_of(const char *dir, const char *relative, bool *diverged_out)
{
    eni_run run = {.dir = relative};
    const bool is_good = eni_study_load_run(dir, &(eni_target){0}, &run) == EN_OK && run.nevals > 0;
    const double loss = is_good ? run.evals[run.nevals - 1].loss : NAN;
    *diverged_out = is_good && (!isfinite(loss) || json_is_true(json_object_get(run.result, "diverged")));
    eni_study_drop_run(&run);
    return *diverged_out ? NAN : loss;
}

void eni_tune_add(json_t *sweep, double value, const char *dir, const char *relative, en_status st,
                  const char *cause)
{
    json_t *run = json_pack("{s:f, s:s}", "value", value, "dir", relative);
    size_t at = 0;
    bool has_diverged = st == EN_ENONFINITE; /* a loss, a gradient or a weight ended it */
    eni_json_set_number(run, "loss", st == EN_OK ? loss_of(dir, relative, &has_diverged) : NAN);
    if (has_diverged) json_object_set_new(run, "diverged", json_true());
    if (st != EN_OK) json_object_set_new(run, "cause", json_string(cause[0] != 0 ? cause : "unknown"));
    while (number_of(json_array_get(sweep, at), "value") < value)
        at++;
    json_array_insert_new(sweep, at, run);
}

bool eni_tune_choose(json_t *sweep, double *value_out)
{
    json_t *run, *best = NULL;
    for (size_t i = 0; (run = json_array_get(sweep, i)) != NULL; i++) {
        const double loss = number_of(run, "loss");
        if (isfinite(loss) && (best == NULL || loss < number_of(best, "loss"))) best = run;
    }
    if (best == NULL) return false;
    json_object_set_new(best, "chosen", json_true());
    *value_out = number_of(best, "value");
    return true;
}
