/* launcher.c - see launcher.h. */
#include "config/launcher.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/env.h"
#include "config/units.h"
#include "core/log.h"

/* Steps at the end of the range are Slurm's own: the batch script, salloc's shell, what srun waits with. */
static const int64_t slurm_first_special_step = 0xfffffff0;

const char *const eni_said_keys[ENI_SAID] = {"rank", "world-size", "local-rank", "local-size"};

typedef struct known {
    const char *name;
    const char *variable[ENI_SAID];
} known;

enum { TORCHRUN, OPEN_MPI, MVAPICH2, PMI, SLURM };

static const known launchers[ENI_LAUNCHERS] = {
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
        if (is_inside && (*c == '-' || *c == ',')) { /* the first of the range is copied already */
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

bool eni_slurm_master(char *host_out, size_t bytes, int *port_out)
{
    int64_t hosts = 0;
    const char *list = eni_env("SLURM_STEP_NODELIST"), *job = eni_env("SLURM_JOB_ID");
    if (list == NULL) list = eni_env("SLURM_JOB_NODELIST");
    if (job == NULL || list == NULL || strspn(job, "0123456789") != strlen(job)) return false;
    size_t digits = strlen(job);
    *port_out = 15000 + atoi(job + (digits > 4 ? digits - 4 : 0));
    if (read_number("SLURM_STEP_NUM_NODES", &hosts) && hosts == 1) {
        snprintf(host_out, bytes, "127.0.0.1"); /* nobody from outside has to reach it */
        return true;
    }
    return eni_slurm_first_host(list, host_out, bytes);
}

/* ---- who speaks ---- */

static void say(eni_said *launcher, int what, const char *variable, const char *text)
{
    if (variable == NULL || text == NULL) return;
    launcher->variable[what] = variable;
    snprintf(launcher->text[what], sizeof launcher->text[what], "%s", text);
}

static void say_slurm(eni_said *launcher)
{
    static const char *const world[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"};
    int64_t node, tasks;
    char number[24];
    for (size_t i = 0; i < sizeof world / sizeof *world && launcher->variable[ENI_SAID_WORLD] == NULL; i++)
        say(launcher, ENI_SAID_WORLD, world[i], eni_env(world[i]));
    const char *per_node = eni_env("SLURM_STEP_TASKS_PER_NODE");
    launcher->variable[ENI_SAID_LOCAL_SIZE] = NULL;
    launcher->text[ENI_SAID_LOCAL_SIZE][0] = '\0';
    if (per_node == NULL || !read_number("SLURM_NODEID", &node)) return;
    if (!eni_slurm_tasks_on(per_node, node, &tasks)) return;
    snprintf(number, sizeof number, "%" PRId64, tasks);
    say(launcher, ENI_SAID_LOCAL_SIZE, "SLURM_STEP_TASKS_PER_NODE", number);
}

static bool is_same(const char *a, const char *b)
{
    int64_t x, y;
    return eni_parse_i64(a, &x) && eni_parse_i64(b, &y) ? x == y : strcmp(a, b) == 0;
}

/* A step with one task per host is where an MPI launcher, or a shell, stands; not the workers. */
static bool is_carrier(void)
{
    int64_t tasks, hosts;
    return read_number("SLURM_STEP_NUM_TASKS", &tasks) && read_number("SLURM_STEP_NUM_NODES", &hosts) &&
           tasks == hosts;
}

int eni_launchers_read(eni_said *said_out)
{
    int count = 0;
    bool has_agent = eni_env("TORCHELASTIC_RUN_ID") != NULL;
    for (int i = 0; i < ENI_LAUNCHERS; i++) {
        bool is_inner =
            count > 0 &&
            (has_agent || (i == SLURM && strcmp(said_out[0].name, "torchrun") != 0 && is_carrier()));
        if (is_inner || (i == SLURM && !is_slurm_task())) continue;
        eni_said launcher = {.name = launchers[i].name};
        for (int what = 0; what < ENI_SAID; what++) {
            const char *name = launchers[i].variable[what];
            if (name != NULL) say(&launcher, what, name, eni_env(name));
        }
        if (i == SLURM) say_slurm(&launcher);
        if (i == TORCHRUN && !has_agent) launcher.name = "the environment"; /* a script, or Kubernetes */
        bool speaks = launcher.variable[ENI_SAID_RANK] != NULL || launcher.variable[ENI_SAID_WORLD] != NULL;
        if (speaks) said_out[count++] = launcher;
    }
    return count;
}

bool eni_slurm_speaks(void)
{
    eni_said said[ENI_LAUNCHERS];
    int count = eni_launchers_read(said);
    return count > 0 && strcmp(said[count - 1].name, launchers[SLURM].name) == 0; /* the outermost */
}

/* ---- do they agree ---- */

static bool disagree(const eni_said *said, int count, int what)
{
    const char *first = NULL;
    for (int i = 0; i < count; i++) {
        if (said[i].variable[what] == NULL) continue;
        if (first == NULL) first = said[i].text[what];
        if (!is_same(first, said[i].text[what])) return true;
    }
    return false;
}

static void add(char *text, size_t bytes, const char *format, const char *a, const char *b)
{
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, format, a, b);
}

static void describe(const eni_said *said, char *text, size_t bytes)
{
    add(text, bytes, "%s%s says", text[0] == '\0' ? "" : "; ", said->name);
    for (int what = 0; what < ENI_SAID; what++)
        if (said->variable[what] != NULL) add(text, bytes, " %s %s", said->variable[what], said->text[what]);
}

en_status eni_launchers_agree(const eni_said *said, int count, const bool *is_decided)
{
    char flags[128] = "", text[900] = "";
    for (int what = 0; what < ENI_SAID; what++)
        if (!is_decided[what] && disagree(said, count, what))
            add(flags, sizeof flags, "%s--%s", flags[0] == '\0' ? "" : " and ", eni_said_keys[what]);
    if (flags[0] == '\0') return EN_OK;
    for (int i = 0; i < count; i++)
        describe(&said[i], text, sizeof text);
    eni_error("env",
              "the launchers of this process disagree: %s; give %s, which decide, or start it with one", text,
              flags);
    return EN_EINVAL;
}
