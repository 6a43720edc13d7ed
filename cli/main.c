/* main.c - the program `entrain`: finds the sub-command, parses its flags, runs it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "config/folders.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/signals.h"
#include "core/version.h"
#include "plugin/hook.h"
#include "remote/transfer.h"
#include "runtime/control/control.h"

typedef struct command {
    const char *name;
    eni_program program;
    en_status (*run)(const eni_command_context *context);
    const char *help;
} command;

static const command commands[] = {
    {"run", ENI_RUN, eni_command_run, "train one model with one strategy on several workers"},
    {"compare", ENI_COMPARE, eni_command_compare, "the same job with several strategies, and a report"},
    {"check", ENI_CHECK, eni_command_check, "can these processes reach each other, and how fast? (-v)"},
    {"advise", ENI_ADVISE, eni_command_advise,
     "ring or servers, on which network? predicted from measurements here"},
    {"scale", ENI_SCALE, eni_command_scale, "strong and weak scaling tables from real runs"},
    {"report", ENI_REPORT, eni_command_report, "rebuild report.html from the files of runs"},
    {"eval", ENI_EVAL, eni_command_eval, "saved weights on the test set: loss and accuracy"},
    {"predict", ENI_PREDICT, eni_command_eval, "saved weights on the test set: a class for each sample"},
    {"sim", ENI_SIM, eni_command_sim,
     "a strategy in virtual time, without processes, with faults or without"},
    {"conform", ENI_CONFORM, eni_command_conform,
     "is a strategy the one of its paper? every decision, in virtual time"},
    {"strategies", ENI_STRATEGIES, eni_command_strategies, "what --strategy takes, with options and papers"},
    {"models", ENI_MODELS, eni_command_models, "what --model takes"},
    {"data", ENI_DATA, eni_command_data, "what --data takes"},
    {"gpus", ENI_GPUS, eni_command_gpus, "this host's GPUs, their links, and which rank uses which (-n N)"},
    {"ps", ENI_PS, eni_command_ps, "your runs on this host"},
    {"stop", ENI_STOP, eni_command_stop, "end one of them early, in good order"},
    {"join", ENI_JOIN, eni_command_join, "add workers to a run started with --elastic or --max-workers"},
    {"leave", ENI_LEAVE, eni_command_leave, "remove a worker from such a run"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *stream)
{
    fputs("entrain: one model, many workers, one flag for how they stay in step.\n\nusage: entrain COMMAND "
          "[FLAG ..]\n\n",
          stream);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(stream, "  %-12s %s\n", commands[i].name, commands[i].help);
    fputs("\n  psd          run the server by hand, in its own terminal: entrain psd --help\n"
          "  worker       run a worker by hand, in another: entrain worker --help\n\n"
          "entrain COMMAND --help, or entrain help COMMAND, lists the flags of a command.\n",
          stream);
}

/* `entrain psd ..` and `entrain worker ..`: Debian has other programs of these names, so this one runs ours. */
static int become_program(const char *name, char **argv)
{
    char path[4096];
    if (eni_folder_program(name, path, sizeof path) != EN_OK) return 2;
    execv(path, argv);
    eni_error("entrain", "cannot execute %s", path);
    return 1;
}

/* Reports that a plugin loaded here ended this process. */
static void report_end(void *user, const char *sentence)
{
    const eni_config *config = user;
    eni_log_set_level((int)config->log_level); /* a storm shows only some of its seeds */
    eni_error("entrain", "%s did not finish: %s in this process (pid %d)", eni_program_name(config->program),
              sentence, (int)getpid());
}

/* Downloads the command's inputs from object storage, runs it, and uploads its outputs. Removes an output
 * folder that a refused command created and left empty. */
static en_status run_between(const command *c, eni_config *config, const eni_command_context *context)
{
    eni_uploads *uploads;
    const bool makes_out = config->out != NULL && access(config->out, F_OK) != 0;
    if (c->program == ENI_DATA) return c->run(context); /* it downloads lists by itself */
    en_status st = eni_transfer_begin(config, config->node_rank == 0, context->signal_fd, &uploads);
    if (st == EN_OK) st = c->run(context);
    const en_status gone = eni_transfer_end(uploads, st);
    if (st != EN_OK && makes_out) rmdir(config->out);
    return st == EN_OK ? gone : st;
}

static int run_command(const command *c, int argc, char **argv)
{
    eni_config config;
    char plugins[4096];
    if (eni_config_parse(c->program, argc - 1, argv + 1, &config) != EN_OK) return 2;
    const bool is_sim = c->program == ENI_SIM || c->program == ENI_CONFORM;
    int code = 2;
    if (config.help != NULL) {
        eni_config_help(c->program, strcmp(config.help, "all") == 0, stdout);
        code = 0;
    } else if (config.version) {
        printf("entrain %s\n", eni_version);
        code = 0;
    } else if (eni_folder_plugins(plugins, sizeof plugins) == EN_OK) {
        const eni_hook_guard_config guard = {config.hook_timeout_ns, report_end, &config};
        eni_hook_guard *hooks = eni_hook_guard_begin(&guard);
        eni_log_set_level((int)config.log_level);
        eni_log_set_launcher((int)config.result_fd);
        const int signal_fd = is_sim ? -1 : eni_signals_open();
        if (is_sim) signal(SIGXFSZ, SIG_IGN); /* core/signals.c does it for the others */
        eni_command_context context = {.config = &config,
                                       .plugin_dir = plugins,
                                       .hooks = hooks,
                                       .signal_fd = signal_fd,
                                       .argc = argc,
                                       .argv = argv,
                                       .version = eni_version};
        const en_status st = run_between(c, &config, &context);
        code = eni_signals_exit_code(st, signal_fd);
        close(signal_fd);
        eni_end_write((int)config.result_fd, st);
        eni_hook_guard_end(hooks);
    }
    eni_config_fini(&config);
    return code;
}

static int dispatch(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "help") == 0) { /* of one command */
        char flag[] = "--help", *words[] = {argv[0], argv[2], flag, NULL};
        return dispatch(3, words);
    }
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("entrain %s\n", eni_version);
        return 0;
    }
    if (strcmp(argv[1], "psd") == 0 || strcmp(argv[1], "worker") == 0)
        return become_program(argv[1], argv + 1);
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return run_command(&commands[i], argc, argv);
    const char *nearest = NULL;
    for (int i = 0; i < COMMANDS; i++)
        if (eni_is_nearer(argv[1], commands[i].name, nearest)) nearest = commands[i].name;
    eni_error("entrain", "\"%.80s\" is not a command; %s%s%s`entrain --help` lists all", argv[1],
              nearest ? "the nearest is " : "", nearest ? nearest : "", nearest ? ", and " : "");
    return 2;
}

/* A full disk shows when the last buffer is written. A reader that closes the pipe early is not an error. */
int main(int argc, char **argv)
{
    if (eni_memory_limits() != EN_OK) return 2;
    const int code = dispatch(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    if (errno != EPIPE) eni_error("entrain", "cannot write to standard output: %s", strerror(errno));
    return code != 0 ? code : 1;
}
