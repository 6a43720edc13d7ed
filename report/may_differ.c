/* may_differ.c - the table, and the facts of a study that violate it. */
#include "report/may_differ.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const eni_may_differ eni_may_differ_table[] = {
    /* ---- keys ---- */
    {NULL, ENI_ARMS, ENI_THEN_OTHER_BYTES,
     "strategy optimizer lr momentum nesterov weight-decay decay beta1 beta2 eps lr-schedule lr-warmup "
     "lr-step lr-milestones lr-gamma lr-scale clip-norm assign backend sum-order set"},
    /* The chunks of a batch are a fact, below; an all-reduce that sums in another order has its own name. */
    {NULL, ENI_ARMS, ENI_THEN_NOTHING,
     "micro-batches parallel stages split pipeline allreduce bucket-cap-mb overlap groups shards servers"},
    {NULL, ENI_ALONE, ENI_THEN_FAIL, "workers accumulate threads"},
    {NULL, ENI_NOBODY, ENI_THEN_FAIL,
     "model data data-dir init batch-size global-batch-size bn-stats epochs steps max-samples holdout "
     "limit-train-samples limit-test-samples shuffle reshuffle drop-last resize augment augment-test "
     "normalize loader-threads checkpoint-every device gpu-sharing precision tf32 deterministic graph "
     "data-on-device "
     "transport max-workers insecure state-every server-timeout "
     "server-restarts on-worker-loss elastic max-restarts peer-timeout join-timeout hook-timeout "
     "compute server-time local-size join leave elements bucket-cap "
     "straggler net eval-every eval-first eval-points target eval-batch-size"},
    {NULL, ENI_SEEDS, ENI_THEN_NOTHING, "seed"},
    {NULL, ENI_ANYBODY, ENI_THEN_NOTHING,
     "data-endpoint data-keys out overwrite save resume checkpoint-dir tensorboard trace record-order "
     "token-file "
     "log-every log-level quiet config help version arm strategies seeds settings primary baseline tune "
     "retry-busy virtual events storm promise json replay-order "
     "nnodes node-rank master-addr master-port init-method host-id"}, /* a study runs on one host */

    /* ---- facts ---- */
    {ENI_RULE_START, ENI_SEEDS, ENI_THEN_FAIL, "init_sha256"},
    {ENI_RULE_ORDER, ENI_SEEDS, ENI_THEN_FAIL, "order_sha256"},
    /* Micro-batches matter in a network that normalises over each of them; a lost worker in every network. */
    {ENI_RULE_TASK, ENI_NOBODY, ENI_THEN_FAIL,
     "model data data_sha256 resize augment augment_test normalize holdout device version bn_stats "
     "global_batch_size pipeline.micro_batches max_workers budget target target_loss lost"},
    {ENI_RULE_TASK, ENI_ALONE, ENI_THEN_FAIL, "workers batch_size"},
    {ENI_RULE_TASK, ENI_ARMS, ENI_THEN_FAIL,
     "strategy strategy_options groups collective.algorithm collective.transport transport shards "
     "buckets samples_per_update lr momentum assign threads"},
    {ENI_RULE_PROGRAM, ENI_NOBODY, ENI_THEN_FAIL, "program.sha256 program.argv_sha256 program.computes"},
    {ENI_RULE_PROGRAM, ENI_ARMS, ENI_THEN_FAIL, "program.set"},
    {ENI_RULE_PROGRAM, ENI_NOBODY, ENI_THEN_WARN, "program.step program.weights"},
    {ENI_RULE_MACHINE, ENI_NOBODY, ENI_THEN_FAIL,
     "environment.version environment.commit environment.cpu environment.instruction_set "
     "environment.cores environment.compiler environment.libraries"},
    {ENI_RULE_MACHINE, ENI_ARMS, ENI_THEN_FAIL, "environment.device"}, /* includes the number of threads */
    {ENI_RULE_MACHINE, ENI_NOBODY, ENI_THEN_WARN, "environment.kernel environment.host environment.memory"},
    /* Judged with limits of their own: the budget, slow ranks, equal weights; or by the keys that set them. */
    {ENI_RULE_OTHER, ENI_ANYBODY, ENI_THEN_NOTHING,
     "samples_computed samples_applied stragglers params_sha256 buffers_sha256 environment.emulated seed "
     "roles collective environment"},
    /* Results. */
    {ENI_RULE_OTHER, ENI_ANYBODY, ENI_THEN_NOTHING,
     "schema argv simulated environment.date exit cause gpu holds max_clocks_ahead samples_lost "
     "repeated_samples "
     "staleness_steady per_worker presence restarts samples_dropped steps updates train_seconds "
     "eval_seconds samples_per_s warmup_samples cpu_seconds max_rss data_bytes startup_seconds "
     "train_loss train_accuracy test_loss test_accuracy diverged clock staleness staleness_theory "
     "tcp_info_bytes payload_bytes theory_bytes padding_bytes wire_bytes shm_bytes pipeline program "
     "checkpoints "
     "resumed_from snapshots"}};

const size_t eni_may_differ_count = sizeof eni_may_differ_table / sizeof *eni_may_differ_table;

static bool is_among(const char *names, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = names; (at = strstr(at, name)) != NULL; at += length)
        if ((at == names || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0)) return true;
    return false;
}

const eni_may_differ *eni_may_differ_find(bool is_fact, const char *name)
{
    for (size_t i = 0; i < eni_may_differ_count; i++)
        if ((eni_may_differ_table[i].rule != NULL) == is_fact &&
            is_among(eni_may_differ_table[i].names, name))
            return &eni_may_differ_table[i];
    return NULL;
}

eni_who eni_who_may_differ(const char *key)
{
    const eni_may_differ *row = eni_may_differ_find(false, key);
    return row == NULL ? ENI_NOBODY : row->who;
}

/* ---- the facts of a study's runs ------------------------------------------------------------------------ */

static const json_t *value_of(const eni_run *run, const char *name)
{
    char part[64];
    const char *dot = strchr(name, '.');
    if (dot == NULL) return json_object_get(run->result, name);
    snprintf(part, sizeof part, "%.*s", (int)(dot - name), name);
    return json_object_get(json_object_get(run->result, part), dot + 1);
}

/* Chunks of a batch matter if a network normalises over them: an undivided batch then counts as one. */
void eni_fact_of(const eni_run *run, const char *name, char text_out[ENI_FACT_TEXT])
{
    const json_t *value = value_of(run, name);
    text_out[0] = 0;
    if (strcmp(name, "pipeline.micro_batches") == 0) {
        const double chunks = json_number_value(value);
        if (run->bn_stats != NULL) snprintf(text_out, ENI_FACT_TEXT, "%g", chunks > 1 ? chunks : 1);
        return;
    }
    if (strcmp(name, "lost") == 0 && run->result != NULL && value == NULL)
        snprintf(text_out, ENI_FACT_TEXT, "none");
    if (value == NULL || json_is_null(value)) return;
    if (json_is_string(value)) {
        snprintf(text_out, ENI_FACT_TEXT, "%s", json_string_value(value));
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
    snprintf(text_out, ENI_FACT_TEXT, "%s", text == NULL ? "" : text);
    free(text); /* jansson's */
}

bool eni_is_told_alike(const eni_study *study, size_t a, size_t b)
{
    const json_t *one = json_object_get(json_object_get(study->arms[a].entry, "own"), "set"),
                 *other = json_object_get(json_object_get(study->arms[b].entry, "own"), "set");
    return one == other || json_equal(one, other);
}

/* Whether the two runs must agree on the fact. Synthetic data differs with each seed, and the first weights with what a program
 * is told. */
static bool must_agree(const eni_study *study, eni_who who, const char *name, const eni_run *a,
                       const eni_run *b)
{
    if (study->settings[a->setting].study != study->settings[b->setting].study) return false; /* of a page */
    const bool is_made =
        strcmp(name, "data_sha256") == 0 && a->data != NULL && strcmp(a->data, "synthetic") == 0;
    switch (who) {
    case ENI_SEEDS:
        return a->seed == b->seed &&
               (strcmp(name, "init_sha256") != 0 || eni_is_told_alike(study, a->arm, b->arm));
    case ENI_ARMS: return a->arm == b->arm;
    case ENI_ALONE: return study->arms[a->arm].is_alone == study->arms[b->arm].is_alone;
    case ENI_NOBODY: return !is_made || a->seed == b->seed;
    default: return false;
    }
}

/* Finds two runs that disagree on a fact and writes their values to text_out; true if there are any. */
static bool find_odd(const eni_study *study, eni_who who, const char *name, char text_out[ENI_FACT_TEXT])
{
    char has[ENI_FACT_TEXT], had[ENI_FACT_TEXT];
    for (const eni_run *run = NULL; (run = eni_study_next(study, ENI_ANY, ENI_ANY, run)) != NULL;) {
        eni_fact_of(run, name, has);
        for (const eni_run *first = study->runs; run->is_complete && has[0] != 0 && first < run; first++) {
            if (!first->is_complete || !must_agree(study, who, name, first, run)) continue;
            eni_fact_of(first, name, had);
            if (had[0] == 0) continue;
            const bool is_cut = strlen(has) == ENI_FACT_TEXT - 1; /* then the values are all that differs */
            if (strcmp(had, has) == 0 && (!is_cut || json_equal(value_of(first, name), value_of(run, name))))
                break;
            const int most = strstr(name, "_sha256") != NULL ? 8 : 48;
            snprintf(text_out, ENI_FACT_TEXT, "%.40s: %.*s in %.80s, %.*s in %.80s", name, most, had,
                     first->dir, most, has, run->dir);
            return true;
        }
    }
    return false;
}

int eni_facts_judge(const eni_study *study, const char *rule, char text_out[ENI_FACT_TEXT])
{
    int worst = ENI_PASS;
    for (size_t i = 0; i < eni_may_differ_count; i++) {
        const eni_may_differ *row = &eni_may_differ_table[i];
        char name[64], text[ENI_FACT_TEXT];
        if (row->rule == NULL || strcmp(row->rule, rule) != 0) continue;
        for (const char *at = row->names; *at != 0; at += strlen(name) + (at[strlen(name)] == ' ')) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " "), at);
            const int mark = row->then == ENI_THEN_WARN ? ENI_WARN : ENI_FAIL;
            if (mark <= worst || !find_odd(study, row->who, name, text)) continue;
            worst = mark;
            memcpy(text_out, text, sizeof text);
        }
    }
    return worst;
}
