/* list.c - the sub-commands that only show something: strategies, models, data, report. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "config/folders.h"
#include "conform/conform.h"
#include "core/log.h"
#include "core/options.h"
#include "core/try.h"
#include "remote/transfer.h"
#include "data/dataset.h"
#include "models/node.h"
#include "models/registry.h"
#include "models/split.h"
#include "plugin/plugin.h"
#include "report/report.h"
#include "runtime/spec/strategies.h"

/* ---- strategies, by family: the file that they share ---- */

typedef struct strategy_search {
    const char *words; /* NULL: all */
    bool is_name;      /* whether a strategy has `words` for a name; it is then the only one meant */
    char family[64];   /* of the strategy that was printed last */
    int nfound;
} strategy_search;

/* Whether `words` are in `text` if only letters and digits count: "Local SGD" is in "local-sgd". */
static bool mentions(const char *text, const char *words)
{
    for (; text != NULL && *text != 0; text++) {
        const char *at = text, *word = words;
        while (*word != 0) {
            if (!isalnum((unsigned char)*word)) {
                word++;
            } else if (*at != 0 && at > text && !isalnum((unsigned char)*at)) {
                at++;
            } else if (tolower((unsigned char)*at++) != tolower((unsigned char)*word++)) {
                break;
            }
            if (*word == 0) return true;
        }
    }
    return false;
}

/* The next two: eni_strategy_visit. */
static void look_for_name(void *user, const en_strategy *strategy, const char *path)
{
    strategy_search *search = user;
    (void)path;
    if (search->words != NULL && strcmp(strategy->name, search->words) == 0) search->is_name = true;
}

/* Says whether a built-in strategy can be proved to be its paper's. */
static void print_proof(const char *name)
{
    const eni_reference *reference = eni_reference_find(name);
    printf("%-10s entrain conform %s%s\n", "",
           reference != NULL ? "checks it against " : "has no reference of it",
           reference != NULL ? reference->source : "");
}

/* `path` NULL: not a built-in one. */
static void print_strategy(void *user, const en_strategy *strategy, const char *path)
{
    strategy_search *search = user;
    char family[sizeof search->family] = "";
    const char *file = path != NULL ? strstr(path, "/strategy_") : NULL;
    if (file != NULL) snprintf(family, sizeof family, "%.*s", (int)strcspn(file + 10, "."), file + 10);
    for (char *c = family; *c != 0; c++)
        if (*c == '_') *c = ' ';
    if (search->words != NULL && !mentions(strategy->name, search->words) &&
        !mentions(strategy->help, search->words) && !mentions(strategy->paper, search->words) &&
        !mentions(family, search->words))
        return;
    if (strcmp(family, search->family) != 0) printf("---- %s ----\n\n", family);
    snprintf(search->family, sizeof search->family, "%s", family);
    search->nfound++;
    eni_strategy_show(stdout, strategy);
    if (path != NULL) print_proof(strategy->name);
    printf("\n");
}

/* The strategies that `words` describe, "gossip", "Lian"; nothing if there is one of that name. */
static en_status print_found(const char *plugin_dir, const char *words, int *nfound_out)
{
    strategy_search search = {.words = words};
    EN_TRY(eni_strategy_list(plugin_dir, look_for_name, &search));
    if (!search.is_name) EN_TRY(eni_strategy_list(plugin_dir, print_strategy, &search));
    *nfound_out = search.nfound;
    return EN_OK;
}

en_status eni_command_strategies(const eni_command_context *context)
{
    const eni_list *names = &context->config->args;
    int nfound = 0;
    if (names->count == 0) return print_found(context->plugin_dir, NULL, &nfound);
    for (int i = 0; i < names->count; i++) {
        const char *name = names->item[i];
        /* all tables of that file */
        const bool is_file = eni_plugin_is_path(name) && strchr(name, '@') == NULL;
        const en_strategy *strategy;
        nfound = 0;
        if (!eni_plugin_is_path(name)) EN_TRY(print_found(context->plugin_dir, name, &nfound));
        if (nfound > 0) continue;
        EN_TRY(eni_strategy_find(context->plugin_dir, name, &strategy));
        for (; strategy != NULL; strategy = is_file ? strategy->next : NULL)
            print_strategy(&(strategy_search){0}, strategy, eni_plugin_is_path(name) ? NULL : "");
    }
    return EN_OK;
}

/* A count for readers: 11,181,642 parameters, 555 M multiply-adds. */
static const char *millions(int64_t count, char text_out[32])
{
    if (count < 1000)
        snprintf(text_out, 32, "%" PRId64, count);
    else if (count < 1000000)
        snprintf(text_out, 32, "%.3g k", (double)count / 1e3);
    else
        snprintf(text_out, 32, count < 100000000 ? "%.3g M" : "%.0f M", (double)count / 1e6);
    return text_out;
}

static void print_tensors(const en_schema *schema, const en_node *node)
{
    for (uint32_t t = node->first; t < node->first + node->ntensors; t++) {
        const en_model_tensor *tensor = &schema->tensors[t];
        printf("%s%s (", t == node->first ? "" : ", ", tensor->name + strlen(node->name) + 1);
        for (uint32_t d = 0; d < tensor->ndim; d++)
            printf(d ? ", %" PRId64 : "%" PRId64, tensor->shape[d]);
        printf(")");
    }
}

/* A line per node: its number, a + if a cut may precede it, its operation, its output, multiply-adds per
 * sample, its tensors, and its input unless that is the node above it. */
static void print_node(const en_schema *schema, uint32_t at)
{
    const en_node *node = &schema->nodes[at];
    char what[64], shape[48], adds[32];
    const int64_t count = eni_op_multiply_adds(&node->op);
    snprintf(what, sizeof what, "%s%s%s", eni_op_name(node->op.kind),
             node->op.flags & EN_OP_FUSE_ADD ? "+add" : "", node->op.flags & EN_OP_FUSE_RELU ? "+relu" : "");
    snprintf(shape, sizeof shape, "%" PRId64 " x %" PRId64 " x %" PRId64, node->y.h, node->y.w, node->y.c);
    printf("  %3u%c %-22s %-18s %-16s %7s  ", at, eni_split_is_legal(schema, at) ? '+' : ' ', node->name,
           what, shape, count > 0 ? millions(count, adds) : "");
    print_tensors(schema, node);
    if (node->x != (int32_t)at - 1 || node->x2 >= 0)
        printf("%sreads %d", node->ntensors > 0 ? "; " : "", node->x);
    if (node->x2 >= 0) printf(" and %d", node->x2);
    printf("\n");
}

static void print_options(const en_network *network)
{
    for (const en_option *o = network->options; o != NULL && o->size != 0; o = eni_option_next(o)) {
        char range[128];
        eni_option_describe(o, range, sizeof range);
        printf("  %-8s %s (%s)\n", o->key, o->help, range);
    }
}

/* With `nodes`, the whole network; else a summary. */
static en_status print_model(const char *spec, bool nodes)
{
    const en_network *network;
    en_schema schema;
    int64_t adds = 0;
    char text[32];
    EN_TRY(eni_network_get("--model", spec, &network));
    EN_TRY(en_schema_init_for(network, eni_spec_options(spec), NULL, &schema));
    for (uint32_t i = 1; i < schema.nnodes; i++)
        adds += eni_op_multiply_adds(&schema.nodes[i].op);
    printf("%-10s %s\n", network->name, network->help);
    printf("  %" PRIu64 " parameters, %s multiply-adds a sample of %" PRId64 " x %" PRId64 " x %" PRId64
           ", loss %s\n",
           schema.nweights, millions(adds, text), schema.input.h, schema.input.w, schema.input.c,
           eni_op_name(schema.loss));
    print_options(network);
    if (nodes) printf("  +: the network can be cut in front of this node\n");
    for (uint32_t i = 1; nodes && i < schema.nnodes; i++)
        print_node(&schema, i);
    printf("\n");
    en_schema_fini(&schema);
    return EN_OK;
}

en_status eni_command_models(const eni_command_context *context)
{
    const eni_list *names = &context->config->args;
    const en_network *network;
    for (int i = 0; names->count == 0 && (network = eni_network_at(i)) != NULL; i++)
        EN_TRY(print_model(network->name, false));
    for (int i = 0; i < names->count; i++)
        EN_TRY(print_model(names->item[i], true));
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
    if (context->config->clear_cache) return eni_transfer_clear(context->config, context->signal_fd);
    for (int i = 0; names->count == 0 && eni_dataset_name_at(i) != NULL; i++)
        printf("%-16s %s\n", eni_dataset_name_at(i), eni_dataset_help_at(i));
    for (int i = 0; i < names->count; i++)
        EN_TRY(eni_is_url(names->item[i])
                   ? eni_transfer_list(context->config, names->item[i], context->signal_fd)
                   : print_dataset(context->config, names->item[i]));
    return EN_OK;
}

static bool is_same_folder(const char *a, const char *b)
{
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* Refuses to write the report of one study into the folder of another. */
static en_status check_report_folder(const eni_list *dirs, const char *out)
{
    static const char *const files[] = {"compare.json", "result.json"};
    char path[4200];
    EN_TRY(eni_folder_check("--out", out));
    for (int i = 0; i < dirs->count; i++)
        if (is_same_folder(dirs->item[i], out)) return EN_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", out, files[i]);
        if (access(path, F_OK) != 0) continue;
        return eni_fail(EN_EINVAL, "report",
                        "--out=%s contains a %s: the report of %s would replace its own; name another folder",
                        out, files[i], dirs->item[0]);
    }
    return EN_OK;
}

en_status eni_command_report(const eni_command_context *context)
{
    static const int figures[] = {[ENI_FIGURES_PDF] = ENI_REPORT_PDF, [ENI_FIGURES_PNG] = ENI_REPORT_PNG};
    const eni_config *c = context->config;
    const eni_list *dirs = &c->args;
    const char *out = c->out == NULL ? dirs->item[0] : c->out;
    const int extras =
        (c->csv ? ENI_REPORT_CSV : 0) | (c->latex ? ENI_REPORT_LATEX : 0) | figures[c->figures];
    for (int i = 0; i < dirs->count; i++)
        for (int k = 0; k < i; k++)
            if (is_same_folder(dirs->item[i], dirs->item[k]))
                return eni_fail(EN_EINVAL, "report", "%s is given twice; give each folder once",
                                dirs->item[i]);
    if (c->out != NULL) EN_TRY(check_report_folder(dirs, out));
    EN_TRY(eni_report((const char *const *)dirs->item, (size_t)dirs->count, out, c->target, stdout, extras));
    printf("\nThe report: %s/report.html\n", out);
    if (c->latex) printf("The table: %s/table.tex\n", out);
    if (c->csv) printf("The numbers: %s/table.csv, comparisons.csv and runs.csv\n", out);
    if (figures[c->figures] != 0)
        printf("The figures: %s/plots/*.%s\n", out, c->figures == ENI_FIGURES_PDF ? "pdf" : "png");
    return EN_OK;
}
