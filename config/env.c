/* env.c - see env.h. From top to bottom: variables; what outer launchers say about this process (torchrun or a script with
 * torchrun's variables, Slurm's srun, Open MPI, PMI (MPICH, Intel MPI), MVAPICH2) and whether they agree; where the run meets;
 * and the keys of the config that follow.
 *
 * Launchers may be nested: the innermost counts. torchrun's agent is always innermost. MPI's launchers start one daemon on each
 * host, by srun under Slurm: a Slurm step with one task per host yields to them. In everything else launchers must agree. A
 * batch script is not a task of Slurm, though it has SLURM_PROCID: its SLURM_STEP_ID is absent, or that of a step for scripts
 * and shells. */
#include "config/env.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "config/keys.h"
#include "core/digest.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "run/units.h"

/* ---- variables ---- */

const char *eni_env(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

bool eni_env_has_runtime_dir(char *path_out, size_t bytes)
{
    return eni_env_runtime_dir_in(eni_env("XDG_RUNTIME_DIR"), path_out, bytes);
}

bool eni_env_runtime_dir_in(const char *base, char *path_out, size_t bytes)
{
    int length = base != NULL ? snprintf(path_out, bytes, "%s/entrain", base)
                              : snprintf(path_out, bytes, "/tmp/entrain-%lu", (unsigned long)getuid());
    if (length > 0 && (size_t)length < bytes) return true;
    path_out[0] = '\0';
    return false;
}

en_status eni_env_runtime_dir(char *path_out, size_t bytes)
{
    if (eni_env_has_runtime_dir(path_out, bytes)) return EN_OK;
    return eni_fail(EN_EINVAL, "env", "XDG_RUNTIME_DIR is longer than %zu bytes; shorten or unset it", bytes);
}

en_status eni_env_cache_dir(char *path_out, size_t bytes)
{
    const char *base = eni_env("XDG_CACHE_HOME"), *home = eni_env("HOME");
    if (base == NULL && home == NULL)
        return eni_fail(EN_EINVAL, "env",
                        "no folder for local copies of object storage: set XDG_CACHE_HOME or HOME");
    const int length = base != NULL ? snprintf(path_out, bytes, "%s/entrain", base)
                                    : snprintf(path_out, bytes, "%s/.cache/entrain", home);
    if (path_out[0] == '/' && length > 0 && (size_t)length < bytes) return EN_OK;
    return eni_fail(EN_EINVAL, "env",
                    "%s=%.200s is not an absolute path, or longer than %zu bytes; correct or unset it",
                    base != NULL ? "XDG_CACHE_HOME" : "HOME", base != NULL ? base : home, bytes);
}

/* Code that searches the environment leaves pieces of it in vector registers, which the dynamic linker spills to the stack when
 * it resolves a call (_dl_runtime_resolve): 32 bytes of a key were found there. */
static __attribute__((noinline)) void clear_stack_below(void)
{
    char below[1 << 16];
    eni_wipe(below, sizeof below);
}

void eni_env_forget_keys(void)
{
    static const char *const names[] = {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN",
        "OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_SESSION_TOKEN"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t length = strlen(names[i]);
        for (char **entry = environ; *entry != NULL; entry++) /* may occur twice */
            if (strncmp(*entry, names[i], length) == 0 && (*entry)[length] == '=')
                eni_wipe(*entry + length + 1, strlen(*entry + length + 1));
        unsetenv(names[i]);
    }
    clear_stack_below();
}

const char *eni_env_visible_gpus(void)
{
    return getenv("CUDA_VISIBLE_DEVICES");
}

/* ---- launchers ---- */

enum { SAID_RANK, SAID_WORLD, SAID_LOCAL_RANK, SAID_LOCAL_SIZE, SAID };
enum { LAUNCHERS = 5 };

/* One launcher's values. */
typedef struct words {
    const char *name;           /* "Slurm" */
    const char *variable[SAID]; /* its variable; NULL: not set */
    char text[SAID][24];        /* its text; "": not set */
} words;

/* Step ids from here are Slurm's own: the batch script, salloc's shell, srun's waiting step. */
static const int64_t slurm_first_special_step = 0xfffffff0;

/* The flag of each SAID_*, without dashes. */
static const char *const said_keys[SAID] = {"rank", "world-size", "local-rank", "local-size"};

enum { TORCHRUN, OPEN_MPI, MVAPICH2, PMI, SLURM };

static const words launchers[LAUNCHERS] = {
    [TORCHRUN] = {"torchrun", {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}},
    [OPEN_MPI] = {"Open MPI",
                  {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                   "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    [MVAPICH2] = {"MVAPICH2",
                  {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
                   "MV2_COMM_WORLD_LOCAL_SIZE"}},
    [PMI] = {"PMI", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}},
    [SLURM] = {"Slurm", {"SLURM_PROCID", NULL, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"}}};

static bool read_number(const char *name, int64_t *value_out)
{
    const char *text = eni_env(name);
    return text != NULL && eni_parse_i64(text, value_out);
}

/* ---- Slurm's texts ---- */

static bool is_slurm_task(void)
{
    int64_t step;
    return eni_env("SLURM_PROCID") != NULL && read_number("SLURM_STEP_ID", &step) && step >= 0 &&
           step < slurm_first_special_step;
}

bool eni_slurm_first_host(const char *list, char *host_out, size_t bytes)
{
    size_t length = 0;
    bool is_inside = false;
    for (const char *c = list; *c != '\0' && (is_inside || *c != ','); c++) {
        if (is_inside && (*c == '-' || *c == ',')) { /* the first of the range was copied */
            c += strcspn(c, "]");
            if (*c == '\0') return false;
        }
        if (*c == '[' || *c == ']') {
            if (is_inside == (*c == '[')) return false;
            is_inside = !is_inside;
            continue;
        }
        if (length + 1 >= bytes) return false;
        host_out[length++] = *c;
    }
    host_out[length] = '\0';
    return length > 0 && !is_inside;
}

bool eni_slurm_tasks_on(const char *text, int64_t node, int64_t *tasks_out)
{
    for (const char *c = text; isdigit((unsigned char)*c);) {
        char *end;
        long long tasks = strtoll(c, &end, 10), hosts = 1;
        if (end[0] == '(' && end[1] == 'x') {
            hosts = strtoll(end + 2, &end, 10);
            if (*end++ != ')') return false;
        }
        if (hosts < 1 || tasks < 0) return false;
        if (node < hosts) {
            *tasks_out = tasks;
            return true;
        }
        node -= hosts;
        if (*end != ',') return false;
        c = end + 1;
    }
    return false;
}

/* Where a Slurm step meets: its first host (127.0.0.1 if the step has one host only) and port 15000 + the last four digits of
 * the job's number. false if Slurm does not set them. */
static bool find_slurm_master(char *host_out, size_t bytes, int *port_out)
{
    int64_t hosts = 0;
    const char *list = eni_env("SLURM_STEP_NODELIST"), *job = eni_env("SLURM_JOB_ID");
    if (list == NULL) list = eni_env("SLURM_JOB_NODELIST");
    if (list == NULL) list = eni_env("SLURM_NODELIST"); /* its older name */
    if (job == NULL || list == NULL || strspn(job, "0123456789") != strlen(job)) return false;
    size_t digits = strlen(job);
    *port_out = 15000 + atoi(job + (digits > 4 ? digits - 4 : 0));
    if (read_number("SLURM_STEP_NUM_NODES", &hosts) && hosts == 1) {
        snprintf(host_out, bytes, "127.0.0.1"); /* other hosts need not reach it */
        return true;
    }
    return eni_slurm_first_host(list, host_out, bytes);
}

/* ---- this process's launchers ---- */

static void say(words *launcher, int what, const char *variable, const char *text)
{
    if (variable == NULL || text == NULL) return;
    launcher->variable[what] = variable;
    snprintf(launcher->text[what], sizeof launcher->text[what], "%s", text);
}

static void say_slurm(words *launcher)
{
    static const char *const world[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"};
    int64_t node, tasks;
    char number[24];
    for (size_t i = 0; i < sizeof world / sizeof *world && launcher->variable[SAID_WORLD] == NULL; i++)
        say(launcher, SAID_WORLD, world[i], eni_env(world[i]));
    const char *per_node = eni_env("SLURM_STEP_TASKS_PER_NODE");
    launcher->variable[SAID_LOCAL_SIZE] = NULL;
    launcher->text[SAID_LOCAL_SIZE][0] = '\0';
    if (per_node == NULL || !read_number("SLURM_NODEID", &node)) return;
    if (!eni_slurm_tasks_on(per_node, node, &tasks)) return;
    snprintf(number, sizeof number, "%" PRId64, tasks);
    say(launcher, SAID_LOCAL_SIZE, "SLURM_STEP_TASKS_PER_NODE", number);
}

static bool is_same(const char *a, const char *b)
{
    int64_t x, y;
    return eni_parse_i64(a, &x) && eni_parse_i64(b, &y) ? x == y : strcmp(a, b) == 0;
}

/* A step with one task per host holds an MPI launcher or a shell, not the workers. */
static bool is_carrier(void)
{
    int64_t tasks, hosts;
    return read_number("SLURM_STEP_NUM_TASKS", &tasks) && read_number("SLURM_STEP_NUM_NODES", &hosts) &&
           tasks == hosts;
}

/* All launchers of this process, the innermost first, except those started by another one. `said_out` has room for
 * LAUNCHERS. */
static int read_launchers(words *said_out)
{
    int count = 0;
    bool has_agent = eni_env("TORCHELASTIC_RUN_ID") != NULL;
    for (int i = 0; i < LAUNCHERS; i++) {
        bool is_inner =
            count > 0 &&
            (has_agent || (i == SLURM && strcmp(said_out[0].name, "torchrun") != 0 && is_carrier()));
        if (is_inner || (i == SLURM && !is_slurm_task())) continue;
        words launcher = {.name = launchers[i].name};
        for (int what = 0; what < SAID; what++) {
            const char *name = launchers[i].variable[what];
            if (name != NULL) say(&launcher, what, name, eni_env(name));
        }
        if (i == SLURM) say_slurm(&launcher);
        if (i == TORCHRUN && !has_agent) launcher.name = "the environment"; /* a script, or Kubernetes */
        bool speaks = launcher.variable[SAID_RANK] != NULL || launcher.variable[SAID_WORLD] != NULL;
        if (speaks) said_out[count++] = launcher;
    }
    return count;
}

/* Whether Slurm is one of them. */
static bool slurm_speaks(void)
{
    words said[LAUNCHERS];
    int count = read_launchers(said);
    return count > 0 && strcmp(said[count - 1].name, launchers[SLURM].name) == 0; /* Slurm is outermost */
}

/* ---- agreement ---- */

static bool disagree(const words *said, int count, int what)
{
    const char *first = NULL;
    for (int i = 0; i < count; i++) {
        if (said[i].variable[what] == NULL) continue;
        if (first == NULL) first = said[i].text[what];
        if (!is_same(first, said[i].text[what])) return true;
    }
    return false;
}

static void describe(const words *said, char *text, size_t bytes)
{
    eni_text_add(text, bytes, "%s%s has", text[0] == '\0' ? "" : "; ", said->name);
    for (int what = 0; what < SAID; what++)
        if (said->variable[what] != NULL)
            eni_text_add(text, bytes, " %s %s", said->variable[what], said->text[what]);
}

/* EN_EINVAL, logged with all their values and the flags that decide, if two disagree about a value that no flag has set
 * (is_decided[SAID_RANK] and so on). */
static en_status check_agreement(const words *said, int count, const bool *is_decided)
{
    char flags[128] = "", text[900] = "";
    for (int what = 0; what < SAID; what++)
        if (!is_decided[what] && disagree(said, count, what))
            eni_text_add(flags, sizeof flags, "%s--%s", flags[0] == '\0' ? "" : " and ", said_keys[what]);
    if (flags[0] == '\0') return EN_OK;
    for (int i = 0; i < count; i++)
        describe(&said[i], text, sizeof text);
    return eni_fail(EN_EINVAL, "env",
                    "the launchers of this process disagree: %s; give %s to decide, or use one launcher only",
                    text, flags);
}

/* ---- where the run meets ---- */

/* A launcher's meeting point. */
typedef struct master {
    bool is_found;
    char endpoint[300];
    char place[64]; /* the variables it comes from */
} master;

/* torchrun's agent runs its own store on MASTER_PORT. */
static bool has_agent_store(void)
{
    const char *agent = eni_env("TORCHELASTIC_USE_AGENT_STORE");
    return agent != NULL && strcasecmp(agent, "true") == 0;
}

static en_status read_port(const char *text, int *port_out)
{
    int64_t port;
    if (!eni_parse_i64(text, &port) || port < 1 || port > 65534)
        return eni_fail(
            EN_EINVAL, "env",
            "MASTER_PORT in the environment: \"%.200s\" is not a port; give a number from 1 to 65534%s", text,
            strncmp(text, "tcp://", 6) == 0 ? " (Kubernetes sets it for a service named master, "
                                              "unless enableServiceLinks is false)"
                                            : "");
    *port_out = (int)port + has_agent_store();
    return EN_OK;
}

static en_status format_master(const char *host, int port, master *master_out)
{
    bool is_ipv6 = strchr(host, ':') != NULL && host[0] != '[';
    int length = snprintf(master_out->endpoint, sizeof master_out->endpoint,
                          is_ipv6 ? "tcp://[%s]:%d" : "tcp://%s:%d", host, port);
    master_out->is_found = length > 0 && (size_t)length < sizeof master_out->endpoint &&
                           eni_check_endpoint(master_out->endpoint) == NULL;
    if (master_out->is_found) return EN_OK;
    return eni_fail(EN_EINVAL, "env",
                    "%s in the environment: \"%.200s\" is not a host; give a name or an address",
                    master_out->place, host);
}

/* MASTER_ADDR and MASTER_PORT, or Slurm's values for the missing ones. Ranks on one host meet on its loopback, whatever its
 * name resolves to: no other host needs to reach it. */
static en_status find_master(const eni_config *config, master *master_out)
{
    const char *host = eni_env("MASTER_ADDR"), *port_text = eni_env("MASTER_PORT");
    char slurm_host[256];
    int port = 0;
    bool has_slurm = slurm_speaks() && eni_config_is_from_env(config, "rank") &&
                     find_slurm_master(slurm_host, sizeof slurm_host, &port);
    *master_out = (master){.place = "MASTER_ADDR"};
    if (host == NULL && port_text == NULL && !has_slurm) return EN_OK;
    if (!has_slurm && (host == NULL || port_text == NULL))
        return eni_fail(
            EN_EINVAL, "env", "%s is set in the environment, but not %s; set both, or give --rendezvous",
            host != NULL ? "MASTER_ADDR" : "MASTER_PORT", host != NULL ? "MASTER_PORT" : "MASTER_ADDR");
    if (host == NULL) {
        snprintf(master_out->place, sizeof master_out->place, "SLURM_STEP_NODELIST");
        host = slurm_host;
    }
    if (port_text != NULL) EN_TRY(read_port(port_text, &port));
    EN_TRY(format_master(host, port, master_out));
    bool is_alone = eni_config_is_from_env(config, "local-size") && config->world_size == config->local_size;
    return is_alone ? format_master("127.0.0.1", port, master_out) : EN_OK;
}

en_status eni_env_rendezvous(eni_config *config)
{
    master found;
    EN_TRY(find_master(config, &found));
    int k = eni_key_named("rendezvous");
    if (found.is_found) return eni_key_set(config, k, found.endpoint, found.place, config->origin[k]);
    return eni_fail(EN_EINVAL, "env",
                    "--rendezvous: \"env://\" needs MASTER_ADDR and MASTER_PORT in the environment; set "
                    "both, or give tcp://HOST:PORT");
}

bool eni_config_is_from_env(const eni_config *config, const char *key)
{
    return eni_config_origin(config, key) == ENI_FROM_ENV;
}

const char *eni_env_rendezvous_note(const eni_config *config)
{
    if (!eni_config_is_from_env(config, "rendezvous")) return "";
    if (eni_env("MASTER_PORT") != NULL && has_agent_store())
        return "; the port after MASTER_PORT, which torchrun's agent holds";
    return "";
}

static en_status set_from_env(eni_config *config, const char *key, const char *value, const char *variable)
{
    char place[96];
    int k = eni_key_named(key);
    if (config->origin[k] == ENI_FROM_FLAG) return EN_OK;
    snprintf(place, sizeof place, "%s in the environment", variable);
    return eni_key_set(config, k, value, place, ENI_FROM_ENV);
}

static en_status set_ranks(eni_config *config)
{
    words said[LAUNCHERS];
    bool is_decided[SAID];
    int count = read_launchers(said);
    for (int what = 0; what < SAID; what++)
        is_decided[what] = eni_config_origin(config, said_keys[what]) == ENI_FROM_FLAG;
    EN_TRY(check_agreement(said, count, is_decided));
    for (int what = 0; what < SAID; what++)
        for (int i = count - 1; i >= 0; i--)
            if (said[i].variable[what] != NULL)
                EN_TRY(set_from_env(config, said_keys[what], said[i].text[what], said[i].variable[what]));
    return EN_OK;
}

static bool is_rank(const eni_config *config)
{
    return config->program == ENI_WORKER || config->program == ENI_RANK;
}

/* Refuses a worker of several in a batch script, or a shell of salloc, outside of a step. */
static en_status check_step(const eni_config *config)
{
    int64_t tasks = 0;
    words said[LAUNCHERS];
    const bool is_reported = eni_config_is_given(config, "world-size") || eni_config_is_given(config, "rank");
    if (is_reported || eni_config_is_solo(config) || read_launchers(said) > 0) return EN_OK;
    if (!read_number("SLURM_NTASKS", &tasks)) (void)read_number("SLURM_NPROCS", &tasks);
    if (tasks <= 1 || eni_env("SLURM_JOB_ID") == NULL) return EN_OK;
    return eni_fail(EN_EINVAL, "env",
                    "this Slurm job has %" PRId64
                    " tasks (SLURM_NTASKS), but this worker was not started by a step: start "
                    "it with srun; for a single worker give --rank=0 --world-size=1",
                    tasks);
}

en_status eni_env_check_tasks(const eni_config *config)
{
    if (is_rank(config)) return check_step(config);
    words said[LAUNCHERS];
    int64_t world;
    const bool starts_ranks = config->program == ENI_RUN || config->program == ENI_COMPARE ||
                              config->program == ENI_SCALE || config->program == ENI_ADVISE ||
                              config->program == ENI_CHECK;
    if (!starts_ranks || config->nnodes > 1 || read_launchers(said) == 0) return EN_OK;
    const char *variable = said->variable[SAID_WORLD];
    if (variable == NULL || said->variable[SAID_RANK] == NULL ||
        !eni_parse_i64(said->text[SAID_WORLD], &world) || world <= 1)
        return EN_OK;
    return eni_fail(EN_EINVAL, "env",
                    "%s starts this command %" PRId64
                    " times (%s), and each would be a separate run: let it start `entrain worker "
                    "--strategy=..` in place of `%s -n ..`, or one command per host with --nnodes=N "
                    "--node-rank=I (docs/launch.md); for separate runs unset %s",
                    said->name, world, variable, eni_program_name(config->program), variable);
}

en_status eni_config_env(eni_config *config)
{
    const char *token_file = eni_env("ENTRAIN_TOKEN_FILE");
    master found;
    if (token_file != NULL && eni_config_takes(config, "token-file"))
        EN_TRY(set_from_env(config, "token-file", token_file, "ENTRAIN_TOKEN_FILE"));
    if (!is_rank(config)) return EN_OK;
    EN_TRY(set_ranks(config));
    if (eni_config_origin(config, "rendezvous") == ENI_FROM_FLAG) return EN_OK;
    EN_TRY(find_master(config, &found));
    return found.is_found ? set_from_env(config, "rendezvous", found.endpoint, found.place) : EN_OK;
}
