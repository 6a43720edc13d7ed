/* advise_show.c - what `entrain advise` prints. */
#include <math.h>

#include "cli/advise.h"
#include "report/table.h"

enum { COLS = 7, CHECK_COLS = 5 };

void eni_advise_show_machine(const eni_advised *a, FILE *out)
{
    const eni_cost_machine *m = &a->machine;
    fprintf(out, "Measured on this machine (%d core%s):\n\n", m->cores, m->cores == 1 ? "" : "s");
    fprintf(out,
            "  compute         %.2f ms a batch of %lld with the %s, %.2f with one on each core,\n"
            "                  %.2f with two; each time until the slowest is done\n",
            m->compute_alone * 1e3, (long long)a->config->batch_size, a->config->model,
            m->compute_together * 1e3, m->compute_crowded * 1e3);
    fprintf(out, "  update          %.2f ms for the %.2f MB of weights, in %d bucket%s\n", m->update * 1e3,
            a->bytes * 1e-6, m->nbuckets, m->nbuckets == 1 ? "" : "s");
    fprintf(out, "  copy            one core %.1f GB/s loaded and stored\n", 1e-9 / a->move_one);
    fprintf(out,
            "  shared memory   alpha %.2f us a flag exchange, beta %.3f ns a byte and core (%.1f GB/s)\n",
            m->flag * 1e6, m->move * 1e9, 1e-9 / m->move);
    fprintf(out, "  TCP             alpha %.1f us a hop, beta %.3f ns a byte (%.2f GB/s)\n",
            m->tcp.alpha * 1e6, m->tcp.beta * 1e9, 1e-9 / m->tcp.beta);
    fprintf(out, "  server          %.0f us + %.3f ns a byte in shared memory, %.0f us + %.3f ns over TCP\n",
            m->store_shm.alpha * 1e6, m->store_shm.beta * 1e9, m->store_tcp.alpha * 1e6,
            m->store_tcp.beta * 1e9);
}

static const char *bound_of(const eni_advised *a, const eni_advice *advice)
{
    if (advice->step.is_cpu_bound) return "the cores";
    if (advice->step.exposed < 0.05 * advice->step.seconds) return "compute";
    if (!a->place.is_networked) return "memory";
    return "the exchange";
}

void eni_advise_show_prediction(const eni_advised *a, FILE *out)
{
    static const eni_column columns[COLS] = {{"", false},          {"step ms", true},  {"samples/s", true},
                                             {"compute ms", true}, {"exchange", true}, {"not hidden", true},
                                             {"bound by", false}};
    char cells[ENI_ADVICE_MAX * COLS][ENI_TABLE_TEXT];
    const double samples = (double)a->place.ranks * (double)a->config->batch_size;
    if (a->place.has_own_host)
        fprintf(out, "\nPredicted for %d workers, a host each, over %s (a server has a host of its own):\n\n",
                a->place.ranks, a->config->net);
    else
        fprintf(out, "\nPredicted for %d workers that share this host%s:\n\n", a->place.ranks,
                a->place.is_networked ? ", over TCP" : "");
    for (int i = 0; i < a->nadvice; i++) {
        const eni_advice *advice = &a->advice[i];
        char(*row)[ENI_TABLE_TEXT] = &cells[i * COLS];
        snprintf(row[0], ENI_TABLE_TEXT, "%s %s", i == a->best ? ">" : " ", advice->name);
        snprintf(row[1], ENI_TABLE_TEXT, "%.2f", advice->step.seconds * 1e3);
        eni_table_grouped(eni_table_significant(samples / advice->step.seconds, 3), ",", row[2],
                          ENI_TABLE_TEXT);
        snprintf(row[3], ENI_TABLE_TEXT, "%.2f", advice->step.compute * 1e3);
        snprintf(row[4], ENI_TABLE_TEXT, "%.2f", advice->step.exchange * 1e3);
        snprintf(row[5], ENI_TABLE_TEXT, "%.2f", advice->step.exposed * 1e3);
        snprintf(row[6], ENI_TABLE_TEXT, "%s", bound_of(a, advice));
    }
    eni_table_print(out, columns, COLS, (const char(*)[ENI_TABLE_TEXT])cells, (size_t)a->nadvice);
    fprintf(out, "\nBest: %s.\n", a->advice[a->best].name);
    for (int s = 1; s < a->nadvice; s++) {
        const int at = a->crossover[s];
        if (at == 0)
            fprintf(out, "Crossover with %d server%s: none; the ring is slower at %d workers.\n", s,
                    s == 1 ? "" : "s", a->most);
        else
            fprintf(out, "Crossover with %d server%s: the ring is as fast from %d workers on.\n", s,
                    s == 1 ? "" : "s", at);
    }
}

void eni_advise_show_checks(const eni_advised *a, FILE *out)
{
    static const eni_column columns[CHECK_COLS] = {{"strategy", false},
                                                   {"workers", true},
                                                   {"predicted ms", true},
                                                   {"measured ms", true},
                                                   {"error", true}};
    char cells[ENI_CHECKS_MAX * CHECK_COLS][ENI_TABLE_TEXT];
    double worst = 0;
    fprintf(out, "\nThe same formulas and real runs of %lld steps on this host%s%s (medians of %lld):\n\n",
            (long long)a->config->steps, a->config->net != NULL ? ", over emulated " : "",
            a->config->net != NULL ? a->config->net : "", (long long)a->config->repeats);
    for (int i = 0; i < a->nchecks; i++) {
        const eni_advice_check *check = &a->check[i];
        char(*row)[ENI_TABLE_TEXT] = &cells[i * CHECK_COLS];
        const double error = check->predicted / check->measured - 1;
        if (fabs(error) > worst) worst = fabs(error);
        snprintf(row[0], ENI_TABLE_TEXT, "%s", check->strategy);
        snprintf(row[1], ENI_TABLE_TEXT, "%d%s", check->workers,
                 check->workers > a->machine.cores ? " *" : "  ");
        snprintf(row[2], ENI_TABLE_TEXT, "%.2f", check->predicted * 1e3);
        snprintf(row[3], ENI_TABLE_TEXT, "%.2f", check->measured * 1e3);
        snprintf(row[4], ENI_TABLE_TEXT, "%+.0f %%", error * 100);
    }
    eni_table_print(out, columns, CHECK_COLS, (const char(*)[ENI_TABLE_TEXT])cells, (size_t)a->nchecks);
    fprintf(out, "\nThe largest error is %.0f %%. * more workers than cores: they take turns.\n",
            worst * 100);
}
