/* list.c - the sub-commands that only show something: strategies, models, data, report. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "core/log.h"
#include "core/try.h"
#include "data/dataset.h"
#include "models/layer.h"
#include "models/registry.h"
#include "report/report.h"
#include "runtime/spec/plugin.h"

static void print_strategy(void *user, const en_strategy *strategy, const char *path)
{
    (void)user, (void)path;
    eni_plugin_show(stdout, strategy);
    printf("\n");
}

en_status eni_command_strategies(const eni_command_context *context)
{
    const eni_list *names = &context->config->args;
    if (names->count == 0) return eni_plugin_list(context->plugin_dir, print_strategy, NULL);
    for (int i = 0; i < names->count; i++) {
        const char *name = names->item[i];
        const bool is_file = eni_plugin_is_path(name) && strchr(name, '@') == NULL; /* all of its tables */
        const en_strategy *strategy;
        EN_TRY(eni_plugin_find(context->plugin_dir, name, &strategy));
        for (; strategy != NULL; strategy = is_file ? strategy->next : NULL)
            print_strategy(NULL, strategy, NULL);
    }
    return EN_OK;
}

static en_status print_model(const en_network *network)
{
    en_schema schema;
    EN_TRY(en_schema_init(network, &schema));
    printf("%-10s %s\n", network->name, network->help);
    printf("           %" PRIu64 " parameters, loss %s\n", schema.nweights, eni_layer_op_name(schema.loss));
    for (uint32_t i = 0; i < schema.ntensors; i++) {
        const en_model_tensor *t = &schema.tensors[i];
        printf("           %-16s (", t->name);
        for (uint32_t d = 0; d < t->ndim; d++)
            printf(d ? ", %" PRId64 : "%" PRId64, t->shape[d]);
        printf(")\n");
    }
    printf("\n");
    en_schema_fini(&schema);
    return EN_OK;
}

en_status eni_command_models(const eni_command_context *context)
{
    const eni_list *names = &context->config->args;
    const en_network *network;
    for (int i = 0; names->count == 0 && (network = eni_network_at(i)) != NULL; i++)
        EN_TRY(print_model(network));
    for (int i = 0; i < names->count; i++) {
        EN_TRY(eni_network_get("--model", names->item[i], &network));
        EN_TRY(print_model(network));
    }
    return EN_OK;
}

static en_status print_dataset(const eni_config *config, const char *name)
{
    eni_data_options options = {.name = name, .folder = config->data_dir, .seed = 1};
    eni_dataset *d;
    char hash[ENI_DIGEST_HEX];
    EN_TRY(eni_dataset_open(&options, &d));
    en_status st = eni_dataset_sha256(d, hash);
    if (st == EN_OK)
        printf("%s: %" PRIu64 " training and %" PRIu64
               " test samples of %d x %d x %d, %d classes, sha256 %s\n",
               d->name, d->split[ENI_TRAIN].count, d->split[ENI_TEST].count, d->height, d->width, d->channels,
               d->classes, hash);
    eni_dataset_close(d);
    return st;
}

en_status eni_command_data(const eni_command_context *context)
{
    const eni_list *names = &context->config->args;
    for (int i = 0; names->count == 0 && eni_dataset_name_at(i) != NULL; i++)
        printf("%-16s %s\n", eni_dataset_name_at(i), eni_dataset_help_at(i));
    for (int i = 0; i < names->count; i++)
        EN_TRY(print_dataset(context->config, names->item[i]));
    return EN_OK;
}

en_status eni_command_report(const eni_command_context *context)
{
    const eni_config *c = context->config;
    const char *dir = c->args.item[0];
    int extras = (c->csv ? ENI_REPORT_CSV : 0) | (c->figures == ENI_FIGURES_PDF ? ENI_REPORT_PDF : 0);
    EN_TRY(eni_report(dir, c->target / 100, stdout, extras));
    printf("\nThe report: %s/report.html\n", dir);
    if (c->csv) printf("The numbers: %s/table.csv, claims.csv and runs.csv\n", dir);
    if (extras & ENI_REPORT_PDF) printf("The figures: %s/plots/*.pdf\n", dir);
    return EN_OK;
}
