/* list.c - the sub-commands that only show something: strategies, models, data, report. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "config/folders.h"
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

/* A report of one study has no place among the files of another. */
static en_status check_report_folder(const char *dir, const char *out)
{
    static const char *const files[] = {"compare.json", "result.json"};
    char path[4200];
    struct stat from, to;
    EN_TRY(eni_folder_check("--out", out));
    if (stat(dir, &from) == 0 && stat(out, &to) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
        return EN_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", out, files[i]);
        if (access(path, F_OK) != 0) continue;
        return eni_fail(EN_EINVAL, "report",
                        "--out=%s has a %s: the report of %s would replace its own; name another folder", out,
                        files[i], dir);
    }
    return EN_OK;
}

en_status eni_command_report(const eni_command_context *context)
{
    static const int figures[] = {[ENI_FIGURES_PDF] = ENI_REPORT_PDF, [ENI_FIGURES_PNG] = ENI_REPORT_PNG};
    const eni_config *c = context->config;
    const char *dir = c->args.item[0], *out = c->out == NULL ? dir : c->out;
    const int extras = (c->csv ? ENI_REPORT_CSV : 0) | figures[c->figures];
    if (c->out != NULL) EN_TRY(check_report_folder(dir, out));
    EN_TRY(eni_report(dir, out, c->target / 100, stdout, extras));
    printf("\nThe report: %s/report.html\n", out);
    if (c->csv) printf("The numbers: %s/table.csv, claims.csv and runs.csv\n", out);
    if (figures[c->figures] != 0)
        printf("The figures: %s/plots/*.%s\n", out, c->figures == ENI_FIGURES_PDF ? "pdf" : "png");
    return EN_OK;
}
