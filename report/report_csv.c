/* report_csv.c - see report_csv.h. */
#include "report/report_csv.h"

#include <math.h>

#include "report/plot.h"
#include "report/report_table.h"
#include "core/try.h"

static void put(eni_csv *csv, double value)
{
    fputc(',', csv->file);
    eni_csv_number(csv, value);
}

static void put_summary(eni_csv *csv, const eni_summary *s)
{
    put(csv, s->n > 0 ? s->median : NAN);
    put(csv, s->n > 0 ? s->min : NAN);
    put(csv, s->n > 0 ? s->max : NAN);
}

static en_status write_table(const eni_study *study)
{
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, "cell,arm,runs,missed,updates,updates_min,updates_max,samples_per_s,"
                              "samples_per_s_min,samples_per_s_max,target_s,target_s_min,target_s_max,"
                              "target_s_censored,test_accuracy,test_accuracy_min,test_accuracy_max,wait,wait_min,wait_max,"
                              "payload_ratio,payload_ratio_min,payload_ratio_max,wire_mb,wire_mb_min,"
                              "wire_mb_max,staleness_mean,staleness_p50,staleness_p95,staleness_max"));
    for (size_t c = 0; c < study->ncells; c++)
        for (size_t a = 0; a < study->narms; a++) {
            eni_row row;
            eni_row_fill(study, c, a, &row);
            if (row.nruns == 0) continue;
            eni_csv_name(&csv, study->cells[c].name);
            fputc(',', csv.file);
            eni_csv_name(&csv, study->arms[a].name);
            fprintf(csv.file, ",%zu,%zu", row.nruns, row.nmissed);
            const eni_summary *const summaries[] = {&row.updates, &row.speed, &row.reach, &row.accuracy,
                                                    &row.wait,    &row.ratio, &row.wire};
            for (size_t i = 0; i < sizeof summaries / sizeof *summaries; i++) {
                put_summary(&csv, summaries[i]);
                if (summaries[i] == &row.reach) put(&csv, row.censored_t);
            }
            put(&csv, row.stale_mean);
            put(&csv, row.stale_p50);
            put(&csv, row.stale_p95);
            put(&csv, row.stale_max);
            fputc('\n', csv.file);
        }
    return eni_csv_write(&csv, study->dir, "table");
}

static en_status write_runs(const eni_study *study)
{
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, ENI_CSV_RUN ",order,exit,workers,updates,steps,samples_computed,"
                              "samples_applied,samples_dropped,samples_per_s,train_s,target_s,target_s_low,"
                              "target_s_high,target_s_censored,target_samples,"
                              "test_accuracy,test_loss,lr,global_batch_size,payload_bytes,wire_bytes,"
                              "shm_bytes,theory_bytes,max_rss,staleness_mean,staleness_max,step_ms_p50,"
                              "step_ms_p95,step_ms_p99"));
    for (size_t r = 0; r < study->nruns; r++) {
        const eni_run *run = &study->runs[r];
        eni_csv_run(&csv, study, run);
        fprintf(csv.file, "%d,%d", run->order, run->exit);
        const double number[] = {run->workers,
                                 run->updates,
                                 run->steps,
                                 run->samples_computed,
                                 run->samples_applied,
                                 run->samples_dropped,
                                 run->samples_per_s,
                                 run->train_seconds,
                                 run->reach_t,
                                 run->reach_low,
                                 run->reach_high,
                                 isinf(run->reach_t) ? run->last_t : NAN,
                                 run->reach_samples,
                                 run->test_accuracy,
                                 run->test_loss,
                                 run->lr,
                                 run->global_batch_size,
                                 run->payload_bytes,
                                 run->wire_bytes,
                                 run->shm_bytes,
                                 run->theory_bytes,
                                 run->max_rss,
                                 run->staleness.mean,
                                 run->staleness.max,
                                 run->step_ms[0],
                                 run->step_ms[1],
                                 run->step_ms[2]};
        for (size_t i = 0; i < sizeof number / sizeof *number; i++)
            put(&csv, run->is_complete ? number[i] : NAN);
        fputc('\n', csv.file);
    }
    return eni_csv_write(&csv, study->dir, "runs");
}

static en_status write_claims(const eni_verdict *verdict)
{
    const eni_study *study = verdict->study;
    eni_csv csv;
    EN_TRY(eni_csv_open(&csv, "cell,arm,against,pairs,sooner,later,p,p_holm,least_effect,claim,who"));
    for (size_t i = 0; i < verdict->n; i++) {
        const eni_claim *claim = &verdict->claims[i];
        eni_csv_name(&csv, study->cells[claim->setting].name);
        fputc(',', csv.file);
        eni_csv_name(&csv, study->arms[claim->a].name);
        fputc(',', csv.file);
        eni_csv_name(&csv, study->arms[claim->b].name);
        fprintf(csv.file, ",%zu,%zu,%zu", claim->n, claim->sooner, claim->later);
        put(&csv, claim->p);
        put(&csv, claim->adjusted);
        put(&csv, eni_verdict_least(verdict, claim));
        fprintf(csv.file, ",%s,", eni_verdict_found(claim));
        if (claim->found == ENI_CLAIM_YES) eni_csv_name(&csv, study->arms[claim->sign > 0 ? claim->a : claim->b].name);
        fputc('\n', csv.file);
    }
    return eni_csv_write(&csv, study->dir, "claims");
}

en_status eni_report_csv(const eni_verdict *verdict)
{
    EN_TRY(write_table(verdict->study));
    EN_TRY(write_claims(verdict));
    return write_runs(verdict->study);
}
