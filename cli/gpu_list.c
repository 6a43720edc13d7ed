/* gpu_list.c - `entrain gpus`: asks the device library (no context is opened, so nobody's memory is taken),
 * and shows what it says as text or, for programs (--json), as docs/gpu.md has it. See gpu_list.h. */
#include "cli/gpu_list.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/commands.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "ops/device.h"
#include "report/table.h"

/* ---- asking ---- */

/* What /proc says the process is called; "" if it says nothing. */
static void name_program(int64_t pid, char *name_out, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/comm", pid);
    FILE *file = fopen(path, "re");
    name_out[0] = 0;
    if (file == NULL) return;
    if (fgets(name_out, (int)bytes, file) == NULL) name_out[0] = 0;
    name_out[strcspn(name_out, "\n")] = 0;
    fclose(file);
}

static void ask_users(const en_gpu *gpu, int32_t index, eni_gpus_one *one)
{
    en_gpu_user users[ENI_GPUS_USERS];
    one->nusers = -1;
    if (gpu->users(index, users, ENI_GPUS_USERS, &one->nusers) != EN_OK) {
        one->nusers = -1;
        return;
    }
    for (int i = 0; i < one->nusers && i < ENI_GPUS_USERS; i++) {
        one->users[i].user = users[i];
        name_program(users[i].pid, one->users[i].program, sizeof one->users[i].program);
    }
}

static en_status ask(const en_gpu *gpu, eni_gpu_list *gpus)
{
    int32_t n = 0;
    EN_TRY(gpu->count(eni_device_host(), &n));
    gpus->n = n < ENI_GPUS_MAX ? (int)n : ENI_GPUS_MAX;
    for (int32_t i = 0; i < gpus->n; i++) {
        eni_gpus_one *one = &gpus->gpu[i];
        one->facts.size = sizeof one->facts;
        EN_TRY(gpu->facts(eni_device_host(), i, &one->facts));
        ask_users(gpu, i, one);
        for (int32_t j = 0; j < gpus->n; j++)
            gpus->link[i][j] = (uint8_t)gpu->link(i, j);
    }
    gpus->group = gpu->group_version();
    return EN_OK;
}

/* ---- as text ---- */

enum { USERS_SHOWN = 4 };

static void format_bytes(uint64_t bytes, char text[ENI_TABLE_TEXT])
{
    if (bytes < 100000000)
        snprintf(text, ENI_TABLE_TEXT, "%.1f MB", (double)bytes * 1e-6);
    else
        snprintf(text, ENI_TABLE_TEXT, bytes < 10e9 ? "%.2f GB" : "%.1f GB", (double)bytes * 1e-9);
}

#define SHORT_UUID                                                                                           \
    "%.12s" /* "GPU-5f1c2a3b": as nvidia-smi and the table at the start of a run shorten it                  \
             */

static void format_users(const eni_gpus_one *g, char text[ENI_TABLE_TEXT])
{
    char bytes[ENI_TABLE_TEXT];
    snprintf(text, ENI_TABLE_TEXT, "%s", g->nusers < 0 ? "not told" : g->nusers == 0 ? "nobody" : "");
    for (int i = 0; i < g->nusers && i < USERS_SHOWN; i++) {
        const eni_gpus_user *u = &g->users[i];
        eni_text_add(text, ENI_TABLE_TEXT, "%s%s%spid %" PRId64, i > 0 ? ", " : "", u->program,
                     u->program[0] != 0 ? " " : "", u->user.pid);
        format_bytes(u->user.bytes, bytes);
        if (u->user.bytes > 0) eni_text_add(text, ENI_TABLE_TEXT, " (%s)", bytes);
    }
    if (g->nusers > USERS_SHOWN) eni_text_add(text, ENI_TABLE_TEXT, " and %d more", g->nusers - USERS_SHOWN);
}

static en_status show_list(FILE *out, const eni_gpu_list *gpus)
{
    eni_table table;
    char text[ENI_TABLE_TEXT];
    eni_table_begin(&table, ">GPU|NAME|UUID|BUS|>CC|>MEMORY|>FREE|USED BY");
    for (int i = 0; i < gpus->n; i++) {
        const en_gpu_facts *f = &gpus->gpu[i].facts;
        eni_table_put(&table, "%d", i);
        eni_table_put(&table, "%s", f->name);
        eni_table_put(&table, SHORT_UUID, f->uuid);
        eni_table_put(&table, "%s", f->bus);
        eni_table_put(&table, "%d.%d", (int)f->major, (int)f->minor);
        format_bytes(f->memory_bytes, text);
        eni_table_put(&table, "%s", text);
        format_bytes(f->free_bytes, text);
        eni_table_put(&table, "%s", f->free_bytes > 0 ? text : "-"); /* 0: not known */
        format_users(&gpus->gpu[i], text);
        eni_table_put(&table, "%s", text);
    }
    return eni_table_print(&table, out);
}

/* How two GPUs are linked, for people and for programs. */
static const char *const link_names[][2] = {[EN_LINK_NONE] = {"none", "none"},
                                            [EN_LINK_HOST] = {"host", "host"},
                                            [EN_LINK_PCIE] = {"PCIe", "pcie"},
                                            [EN_LINK_NVLINK] = {"NVLink", "nvlink"},
                                            [EN_LINK_SAME] = {"-", "same"}};

static const char *link_name(int link, bool is_json)
{
    if (link < EN_LINK_NONE || link > EN_LINK_SAME) return is_json ? "none" : "?";
    return link_names[link][is_json];
}

static en_status show_links(FILE *out, const eni_gpu_list *gpus)
{
    const int n = gpus->n < ENI_GPUS_LINKED ? gpus->n : ENI_GPUS_LINKED;
    char heads[1 + 4 * ENI_GPUS_LINKED] = ">";
    eni_table table;
    for (int b = 0; b < n; b++)
        snprintf(heads + strlen(heads), 4, "|%d", b);
    eni_table_begin(&table, heads);
    for (int a = 0; a < n; a++) {
        eni_table_put(&table, "%d", a);
        for (int b = 0; b < n; b++)
            eni_table_put(&table, "%s", link_name(a == b ? EN_LINK_SAME : gpus->link[a][b], false));
    }
    fprintf(out, "\nLinks (NVLink; PCIe: peer to peer; host: through the processor):\n");
    EN_TRY(eni_table_print(&table, out));
    if (gpus->n > n) fprintf(out, "(the first %d of %d)\n", n, gpus->n);
    return EN_OK;
}

/* GPUs of a rank, in a row; the first of them. */
static int width(const eni_gpu_list *gpus)
{
    return gpus->nstages > 1 ? gpus->nstages : 1;
}

static int gpu_of(const eni_gpu_list *gpus, int rank)
{
    return eni_gpu_slice(rank, gpus->nranks, gpus->n, width(gpus), gpus->is_shared);
}

/* The most ranks that meet on one GPU. */
static int crowd(const eni_gpu_list *gpus)
{
    int users[ENI_GPUS_MAX] = {0}, most = 0;
    for (int r = 0; r < gpus->nranks; r++) {
        const int n = ++users[gpu_of(gpus, r)];
        if (n > most) most = n;
    }
    return most;
}

static int has_unlinked_pair(const eni_gpu_list *gpus)
{
    for (int r = 1; r < gpus->nranks; r++)
        for (int q = 0; q < r; q++)
            if (gpus->link[gpu_of(gpus, q)][gpu_of(gpus, r)] == EN_LINK_NONE) return 1;
    return 0;
}

static void slices_verdict(const eni_gpu_list *gpus, char *text, size_t bytes)
{
    const int nslices = gpus->n / width(gpus);
    if (gpus->nranks > nslices)
        snprintf(text, bytes,
                 "%d ranks share %d GPUs by %d (--gpu-sharing): their gradients go through the host.",
                 gpus->nranks, nslices * width(gpus), width(gpus));
    else
        snprintf(text, bytes, "%s %d GPUs of its own, a stage on each%s.",
                 gpus->nranks == 1 ? "One rank has" : "Every rank has", width(gpus),
                 gpus->nranks == 1 ? "" : ": their gradients go through the host");
}

void eni_gpus_verdict(const eni_gpu_list *gpus, char *text, size_t bytes)
{
    if (width(gpus) > 1)
        slices_verdict(gpus, text, bytes);
    else if (gpus->nranks == 1)
        snprintf(text, bytes, "One rank has a GPU of its own: `ring` steps there and exchanges nothing.");
    else if (crowd(gpus) > 1 && gpus->n == 1)
        snprintf(
            text, bytes,
            "%d ranks share one GPU, which NCCL refuses: `ring` adds and steps on it through CUDA IPC, or in "
            "pinned host memory where IPC is refused.",
            gpus->nranks);
    else if (crowd(gpus) > 1)
        snprintf(text, bytes,
                 "%d ranks share %d GPUs, which NCCL refuses: `ring` exchanges in pinned host memory; with "
                 "at most "
                 "%d ranks NCCL could pair them.",
                 gpus->nranks, gpus->n, gpus->n);
    else if (gpus->group[0] == 0)
        snprintf(text, bytes,
                 "Every rank has a GPU of its own, but there is no NCCL (libnccl.so.2): `ring` exchanges in "
                 "pinned "
                 "host memory.");
    else
        snprintf(text, bytes, "Every rank has a GPU of its own: `ring` runs through %s%s.", gpus->group,
                 has_unlinked_pair(gpus) ? ", over the host where GPUs are not linked" : "");
}

/* "cuda:2,cuda:3", as --device takes them; "cuda:0 .. cuda:7" where that would be long. */
static void format_slice(const eni_gpu_list *gpus, int first, char text[ENI_TABLE_TEXT])
{
    enum { NAMED = 4 };
    const int n = width(gpus), is_long = n > NAMED;
    text[0] = 0;
    for (int i = 0; i < n; i += is_long ? n - 1 : 1)
        eni_text_add(text, ENI_TABLE_TEXT, "%scuda:%d", i == 0 ? "" : is_long ? " .. " : ",", first + i);
}

static en_status show_ranks(FILE *out, const eni_gpu_list *gpus)
{
    enum { SHOWN = 64 };
    char text[ENI_GPUS_VERDICT], slice[ENI_TABLE_TEXT];
    eni_table table;
    const int n = gpus->nranks < SHOWN ? gpus->nranks : SHOWN, has_slices = width(gpus) > 1;
    eni_table_begin(&table, has_slices ? ">RANK|DEVICES" : ">RANK|DEVICE|NAME|UUID");
    for (int r = 0; r < n; r++) {
        const en_gpu_facts *f = &gpus->gpu[gpu_of(gpus, r)].facts;
        format_slice(gpus, gpu_of(gpus, r), slice);
        eni_table_put(&table, "%d", r);
        eni_table_put(&table, "%s", slice);
        if (has_slices) continue;
        eni_table_put(&table, "%s", f->name);
        eni_table_put(&table, SHORT_UUID, f->uuid);
    }
    fprintf(out, "\n%d rank%s on this host with --device=cuda", gpus->nranks, gpus->nranks > 1 ? "s" : "");
    if (has_slices) fprintf(out, " --stages=%d", width(gpus));
    fprintf(out, ":\n");
    EN_TRY(eni_table_print(&table, out));
    if (gpus->nranks > n) fprintf(out, "(the first %d)\n", n);
    eni_gpus_verdict(gpus, text, sizeof text);
    fprintf(out, "\n%s\n", text);
    return EN_OK;
}

en_status eni_gpus_show(FILE *out, const eni_gpu_list *gpus)
{
    EN_TRY(show_list(out, gpus));
    if (gpus->n > 1) EN_TRY(show_links(out, gpus));
    fprintf(out, "\nCollectives: %s\n",
            gpus->group[0] != 0 ? gpus->group : "no NCCL (libnccl.so.2 is not found)");
    return gpus->nranks > 0 ? show_ranks(out, gpus) : EN_OK;
}

/* ---- as JSON ---- */

static json_t *bytes_or_null(uint64_t bytes)
{
    return bytes > 0 ? json_integer((json_int_t)bytes) : json_null();
}

/* A process may call itself by bytes that are no text. */
static json_t *name_or_null(const char *name)
{
    json_t *text = name[0] != 0 ? json_string(name) : NULL;
    return text != NULL ? text : json_null();
}

static json_t *users_of(const eni_gpus_one *g)
{
    if (g->nusers < 0) return json_null();
    json_t *users = json_array();
    for (int i = 0; i < g->nusers && i < ENI_GPUS_USERS; i++)
        json_array_append_new(users, json_pack("{s:I, s:o, s:o}", "pid", (json_int_t)g->users[i].user.pid,
                                               "program", name_or_null(g->users[i].program), "bytes",
                                               bytes_or_null(g->users[i].user.bytes)));
    return users;
}

static json_t *gpu_json(const eni_gpus_one *g, int index)
{
    const en_gpu_facts *f = &g->facts;
    char capability[24];
    snprintf(capability, sizeof capability, "%d.%d", (int)f->major, (int)f->minor);
    return json_pack("{s:i, s:o, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "index", index, "name",
                     name_or_null(f->name), "uuid", f->uuid, "bus", f->bus, "compute_capability", capability,
                     "memory_bytes", bytes_or_null(f->memory_bytes), "free_bytes",
                     bytes_or_null(f->free_bytes), "nusers",
                     g->nusers < 0 ? json_null() : json_integer(g->nusers), "users", users_of(g));
}

static json_t *links_json(const eni_gpu_list *gpus)
{
    json_t *rows = json_array();
    for (int a = 0; a < gpus->n; a++) {
        json_t *row = json_array();
        for (int b = 0; b < gpus->n; b++)
            json_array_append_new(row,
                                  json_string(link_name(a == b ? EN_LINK_SAME : gpus->link[a][b], true)));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *ranks_json(const eni_gpu_list *gpus)
{
    json_t *all = json_array();
    for (int r = 0; r < gpus->nranks; r++) {
        const int first = gpu_of(gpus, r);
        json_t *slice = json_array();
        for (int i = 0; i < width(gpus); i++)
            json_array_append_new(slice, json_integer(first + i));
        json_array_append_new(all, json_pack("{s:i, s:i, s:o}", "rank", r, "gpu", first, "gpus", slice));
    }
    return all;
}

json_t *eni_gpus_json(const eni_gpu_list *gpus)
{
    char verdict[ENI_GPUS_VERDICT];
    json_t *list = json_array();
    for (int i = 0; i < gpus->n; i++)
        json_array_append_new(list, gpu_json(&gpus->gpu[i], i));
    json_t *all = json_pack("{s:i, s:o, s:o, s:o}", "schema", 1, "gpus", list, "links", links_json(gpus),
                            "collectives", name_or_null(gpus->group));
    if (gpus->nranks == 0) return all;
    eni_gpus_verdict(gpus, verdict, sizeof verdict);
    json_object_set_new(all, "ranks", ranks_json(gpus));
    json_object_set_new(all, "verdict", json_string(verdict));
    return all;
}

static en_status print_json(const eni_gpu_list *gpus)
{
    json_t *all = eni_gpus_json(gpus);
    if (all == NULL) return EN_ENOMEM;
    const int is_written = json_dumpf(all, stdout, JSON_INDENT(1)) == 0 && putchar('\n') != EOF;
    json_decref(all);
    if (is_written && fflush(stdout) == 0) return EN_OK;
    return eni_fail(EN_EIO, "gpus", "--json: stdout cannot be written: %s", strerror(errno));
}

/* ---- before a run ---- */

enum { TIMEOUT_S = 60 }; /* a driver that is just being loaded takes seconds */

static en_status ask_for(const eni_config *run, const char *plugin_dir)
{
    const eni_gpu_want want = {
        .spec = run->device, .n = eni_config_ndevices(run), .is_shared = run->gpu_sharing};
    const en_device *table;
    EN_TRY(eni_device_load("cuda", plugin_dir, &table));
    return eni_gpu_check(&want, (int)run->workers, table, eni_device_host());
}

/* The child has said what is wrong. One that crashed leaves the answer to the ranks, who say more of it. */
static en_status await(pid_t pid, int signal_fd)
{
    int status = 0;
    const en_status st = eni_signals_await(pid, signal_fd, eni_now_ns() + TIMEOUT_S * ENI_SECOND, &status);
    if (st == EN_OK) return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? EN_EINVAL : EN_OK;
    kill(pid, SIGKILL);
    waitpid(pid, &status, WNOHANG); /* a process that hangs in the driver cannot be waited for */
    if (st == EN_EINTR) return st;
    return eni_fail(EN_EINVAL, "launch",
                    "the NVIDIA driver has not said within %d s which GPUs there are: does nvidia-smi "
                    "answer? --device=cpu goes without",
                    TIMEOUT_S);
}

en_status eni_gpu_here(const eni_config *run, const char *plugin_dir, int signal_fd)
{
    if (!eni_device_is_gpu(run->device)) return EN_OK;
    const pid_t own = getpid(), pid = fork();
    if (pid == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != own) _exit(0);
        _exit(ask_for(run, plugin_dir) == EN_OK ? 0 : 1);
    }
    if (pid < 0)
        return eni_fail(EN_EIO, "launch", "cannot start a process that asks for GPUs: %s", strerror(errno));
    return await(pid, signal_fd);
}

/* ---- the command ---- */

/* Is there a slice for every rank that was asked for? */
static en_status check_slices(const eni_gpu_list *gpus)
{
    const eni_gpu_want want = {.spec = "cuda", .n = width(gpus), .is_shared = gpus->is_shared};
    int32_t index[ENI_DEVICES_MAX];
    int n;
    return gpus->nranks > 0 ? eni_gpu_pick(&want, gpus->n, 0, gpus->nranks, index, &n) : EN_OK;
}

en_status eni_command_gpus(const eni_command_context *context)
{
    const eni_config *c = context->config;
    const en_device *device;
    EN_TRY(eni_device_load("cuda", context->plugin_dir, &device));
    if (device->gpu == NULL)
        return eni_fail(EN_EVERSION, "gpus", "the device cuda of %s is not one of GPUs", context->plugin_dir);
    eni_gpu_list *gpus = eni_alloc(sizeof *gpus);
    if (gpus == NULL) return EN_ENOMEM;
    gpus->nstages = (int)c->stages;
    gpus->is_shared = c->gpu_sharing;
    if (eni_config_is_given(c, "workers") || c->stages > 0) gpus->nranks = (int)c->workers;
    en_status st = ask(device->gpu, gpus);
    if (st == EN_OK) st = check_slices(gpus);
    if (st == EN_OK && c->json)
        st = print_json(gpus);
    else if (st == EN_OK)
        st = eni_gpus_show(stdout, gpus);
    eni_free(gpus);
    return st == EN_EUNSUPPORTED ? EN_EINVAL : st; /* no GPU, no driver: said; the user's affair */
}
