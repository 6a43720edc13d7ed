/* conform_command.c - `entrain conform`: plugins against the references of their papers. */
#include "cli/commands.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "conform/conform.h"
#include "core/json.h"
#include "core/log.h"
#include "core/options.h"
#include "core/try.h"
#include "plugin/plugin.h"
#include "runtime/spec/strategies.h"

/* One plugin under all schedules. */
typedef struct outcome {
    eni_conform_config config;
    uint64_t schedules; /* judged */
    char schedule[ENI_SCHEDULE_TEXT];
    eni_judgement judgement;
} outcome;

static void report(const outcome *o)
{
    const eni_judgement *j = &o->judgement;
    printf("%s: ", o->config.strategy->name);
    if (j->agrees) {
        printf("%" PRIu64 " schedules, %" PRIu64 " decisions and %" PRIu64
               " weight vectors as in %s; largest difference "
               "of weights %.1e\n",
               o->schedules, j->decisions, j->vectors, o->config.reference->source, j->worst);
        if (j->defaults > 0)
            printf("  %" PRIu64
                   " schedules with its default options only: it does not take those of the reference\n",
                   j->defaults);
        return;
    }
    printf("is not %s, %s\n  %s\n", o->config.reference->name, o->config.reference->source, o->schedule);
    for (int i = 0; i < ENI_FINDING_LINES; i++)
        if (j->before[i][0] != '\0') printf("    %s\n", j->before[i]);
    printf("  > %s\n", j->finding);
}

static json_t *report_json(const outcome *o)
{
    const eni_judgement *j = &o->judgement;
    json_t *all = json_object(), *before = json_array();
    eni_json_set_text(all, "strategy", o->config.strategy->name);
    eni_json_set_text(all, "reference", o->config.reference->name);
    eni_json_set_text(all, "source", o->config.reference->source);
    json_object_set_new(all, "agrees", json_boolean(j->agrees));
    ENI_JSON_SET_INTS(all, {"schedules", o->schedules}, {"decisions", j->decisions}, {"vectors", j->vectors});
    eni_json_set_number(all, "largest_difference", j->worst);
    if (!j->agrees) {
        for (int i = 0; i < ENI_FINDING_LINES; i++)
            if (j->before[i][0] != '\0') json_array_append_new(before, json_string(j->before[i]));
        eni_json_set_text(all, "schedule", o->schedule);
        eni_json_set_text(all, "finding", j->finding);
        ENI_JSON_SET_INTS(all, {"event", j->event});
        json_object_set(all, "before", before);
    }
    json_decref(before);
    return all;
}

/* Until the first schedule that does not agree. Findings are told once, by the report: so the hosts' own lines are muted. */
static en_status try_schedules(outcome *o, const eni_config *c)
{
    o->judgement.agrees = true;
    for (int64_t i = 0; i < c->storms && o->judgement.agrees; i++) {
        eni_log_set_level(-1);
        const en_status st = eni_conform_run(&o->config, (uint64_t)(c->seed + i), o->schedule, &o->judgement);
        eni_log_set_level((int)c->log_level);
        if (st == EN_OK) {
            o->schedules++;
            continue;
        }
        char why[400];
        return eni_fail(st, "conform", "%s", eni_log_last_error(why, sizeof why) ? why : en_status_str(st));
    }
    return EN_OK;
}

/* ---- what is compared with what ---- */

static void name_references(const eni_reference *r, char *text, size_t bytes)
{
    for (size_t n = strlen(text); r->name != NULL && n < bytes; r++)
        n += (size_t)snprintf(text + n, bytes - n, "%s%s", n > 0 ? ", " : "", r->name);
}

static en_status find_reference(const char *name, const char *flag, const eni_reference **reference_out)
{
    char all[400] = "";
    *reference_out = eni_reference_find(name);
    if (*reference_out != NULL) return EN_OK;
    name_references(eni_paper_servers, all, sizeof all);
    name_references(eni_paper_rounds, all, sizeof all);
    return eni_fail(EN_EINVAL, "conform", "%s\"%.80s\" has no reference; those that have one are %s%s", flag,
                    name, all, flag[0] == '\0' ? "; name one with --as" : "");
}

/* A reference reads the options of the built-in strategy of its name without a check of its own. */
static en_status check_reference_options(const char *folder, const char *name, const char *options)
{
    const en_strategy *built_in;
    EN_TRY(eni_strategy_find(folder, name, &built_in));
    return eni_options_check(built_in, options);
}

static en_status conform(const eni_command_context *context, const char *spec, json_t *all, bool *agrees)
{
    const eni_config *c = context->config;
    outcome o = {.config.hooks = context->hooks};
    const char **claimed = &o.config.reference_options;
    char as[ENI_PLUGIN_WORD_MAX], word[ENI_PLUGIN_WORD_MAX];
    EN_TRY(eni_plugin_split("conform", spec, word, &o.config.options));
    EN_TRY(eni_strategy_find(context->plugin_dir, word, &o.config.strategy));
    snprintf(as, sizeof as, "%s", o.config.strategy->name);
    if (c->as != NULL) EN_TRY(eni_plugin_split("--as", c->as, as, claimed));
    if (*claimed != NULL && **claimed == '\0') *claimed = NULL;
    EN_TRY(find_reference(as, c->as != NULL ? "--as: " : "", &o.config.reference));
    if (*claimed != NULL) EN_TRY(check_reference_options(context->plugin_dir, as, *claimed));
    EN_TRY(try_schedules(&o, c));
    *agrees = *agrees && o.judgement.agrees;
    if (all != NULL)
        json_array_append_new(all, report_json(&o));
    else
        report(&o);
    fflush(stdout);
    return EN_OK;
}

/* Every built-in strategy that has a reference. */
typedef struct conformed {
    const eni_command_context *context;
    json_t *all;
    bool agrees;
    en_status status;
} conformed;

static void visit(void *user, const en_strategy *strategy, const char *path)
{
    conformed *s = user;
    (void)path;
    if (s->status == EN_OK && eni_reference_find(strategy->name) != NULL)
        s->status = conform(s->context, strategy->name, s->all, &s->agrees);
}

en_status eni_command_conform(const eni_command_context *context)
{
    const eni_config *c = context->config;
    conformed s = {.context = context, .all = c->json ? json_array() : NULL, .agrees = true};
    if (c->as != NULL && c->args.count != 1)
        return eni_fail(EN_EINVAL, "conform",
                        "--as says what one plugin claims to be, but %d are given; name one", c->args.count);
    for (int i = 0; i < c->args.count && s.status == EN_OK; i++)
        s.status = conform(context, c->args.item[i], s.all, &s.agrees);
    if (c->args.count == 0) {
        const en_status listed = eni_strategy_list(context->plugin_dir, visit, &s);
        if (s.status == EN_OK) s.status = listed;
    }
    if (s.all != NULL && s.status == EN_OK)
        (void)eni_json_print(s.all);
    else
        json_decref(s.all);
    return s.status != EN_OK ? s.status : s.agrees ? EN_OK : EN_EBUG; /* exit 1: a bug of the plugin */
}
