/* gpu_list.c - `entrain gpus`: queries the driver (core/nvml.h) and prints the GPUs as text or, for programs
 * (--json), in the format of docs/gpu.md. See gpu_list.h. */
#include "cli/gpu_list.h"

#include <inttypes.h>
#include <string.h>

#include "cli/commands.h"
#include "config/env.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/device.h"
#include "report/table.h"

/* ---- as text ---- */

enum { USERS_SHOWN = 4 };

static void format_bytes(uint64_t bytes, char text[ENI_TABLE_TEXT])
{
    if (bytes == 0) /* unknown */
        snprintf(text, ENI_TABLE_TEXT, "-");
    else if (bytes < 100000000)
        snprintf(text, ENI_TABLE_TEXT, "%.1f MB", (double)bytes * 1e-6);
    else
        snprintf(text, ENI_TABLE_TEXT, bytes < 10e9 ? "%.2f GB" : "%.1f GB", (double)bytes * 1e-9);
}

/* "GPU-5f1c2a3b": the short form of nvidia-smi and of the table at the start of a run. */
#define SHORT_UUID "%.12s"

static void format_users(const eni_gpu_seen *g, char text[ENI_TABLE_TEXT])
{
    char bytes[ENI_TABLE_TEXT];
    snprintf(text, ENI_TABLE_TEXT, "%s", g->nusers < 0 ? "unknown" : g->nusers == 0 ? "nobody" : "");
    for (int i = 0; i < g->nusers && i < USERS_SHOWN; i++) {
        const eni_gpu_user *u = &g->users[i];
        eni_text_add(text, ENI_TABLE_TEXT, "%s%s%spid %" PRId64, i > 0 ? ", " : "", u->program,
                     u->program[0] != 0 ? " " : "", u->pid);
        format_bytes(u->bytes, bytes);
        if (u->bytes > 0) eni_text_add(text, ENI_TABLE_TEXT, " (%s)", bytes);
    }
    if (g->nusers > USERS_SHOWN) eni_text_add(text, ENI_TABLE_TEXT, " and %d more", g->nusers - USERS_SHOWN);
}

static const char *or_dash(const char *text)
{
    return text[0] != 0 ? text : "-";
}

static en_status show_list(FILE *out, const eni_gpu_machine *m)
{
    eni_table table;
    char memory[ENI_TABLE_TEXT], left[ENI_TABLE_TEXT], users[ENI_TABLE_TEXT];
    eni_table_begin(&table, ">GPU|NAME|UUID|BUS|>CC|>MEMORY|>FREE|>NUMA|CPUS|USED BY");
    for (int i = 0; i < m->n; i++) {
        const eni_gpu_seen *g = &m->gpu[i];
        format_bytes(g->memory_bytes, memory);
        format_bytes(g->free_bytes, left);
        format_users(g, users);
        eni_table_put(&table, "%d|%s|" SHORT_UUID "|%s", i, or_dash(g->name), or_dash(g->uuid),
                      or_dash(g->bus));
        eni_table_put(&table, g->major > 0 ? "%d.%d" : "-", g->major, g->minor);
        eni_table_put(&table, "%s|%s", memory, left);
        eni_table_put(&table, g->numa_node >= 0 ? "%d" : "-", g->numa_node);
        eni_table_put(&table, "%s|%s", or_dash(g->cpus), users);
    }
    return eni_table_print(&table, out);
}

static en_status show_links(FILE *out, const eni_gpu_machine *m)
{
    const int n = m->n < ENI_GPUS_LINKED ? m->n : ENI_GPUS_LINKED;
    char heads[1 + 4 * ENI_GPUS_LINKED] = ">";
    eni_table table;
    for (int b = 0; b < n; b++)
        snprintf(heads + strlen(heads), 4, "|%d", b);
    eni_table_begin(&table, heads);
    for (int a = 0; a < n; a++) {
        eni_table_put(&table, "%d", a);
        for (int b = 0; b < n; b++)
            eni_table_put(&table, "%s%s", or_dash(m->link[a][b].path),
                          m->link[a][b].way == ENI_LINK_HOST ? "*" : "");
    }
    fprintf(out,
            "\nLinks (NV4: four NVLinks; else by PCIe, near to far: PIX, PXB, PHB, NODE, SYS; *: no peer-to-"
            "peer access, through host memory):\n");
    EN_TRY(eni_table_print(&table, out));
    if (m->n > n) fprintf(out, "(the first %d of %d)\n", n, m->n);
    return EN_OK;
}

/* Consecutive GPUs of a rank. */
static int width(const eni_gpu_list *gpus)
{
    return gpus->nstages > 1 ? gpus->nstages : 1;
}

static int gpu_of(const eni_gpu_list *gpus, int rank)
{
    return eni_gpu_slice(rank, gpus->nranks, gpus->machine.n, width(gpus), gpus->is_shared);
}

/* The largest number of ranks on one GPU. */
static int crowd(const eni_gpu_list *gpus)
{
    int users[ENI_GPUS_MAX] = {0}, most = 0;
    for (int r = 0; r < gpus->nranks; r++) {
        const int n = ++users[gpu_of(gpus, r)];
        if (n > most) most = n;
    }
    return most;
}

static bool has_unlinked_pair(const eni_gpu_list *gpus)
{
    for (int r = 1; r < gpus->nranks; r++)
        for (int q = 0; q < r; q++)
            if (gpus->machine.link[gpu_of(gpus, q)][gpu_of(gpus, r)].way == ENI_LINK_NONE) return true;
    return false;
}

static void slices_verdict(const eni_gpu_list *gpus, char *text, size_t bytes)
{
    const int nslices = gpus->machine.n / width(gpus);
    if (gpus->nranks > nslices)
        snprintf(text, bytes,
                 "%d ranks share %d GPUs, %d on each (--gpu-sharing): their gradients go through the host.",
                 gpus->nranks, nslices * width(gpus), width(gpus));
    else
        snprintf(text, bytes, "%s its own %d GPUs, a stage on each%s.",
                 gpus->nranks == 1 ? "One rank has" : "Every rank has", width(gpus),
                 gpus->nranks == 1 ? "" : ": their gradients go through the host");
}

void eni_gpus_verdict(const eni_gpu_list *gpus, char *text, size_t bytes)
{
    if (!gpus->is_built)
        snprintf(
            text, bytes,
            "This build has no working cuda device, so --device=cuda is refused; `make cuda` builds it.");
    else if (width(gpus) > 1)
        slices_verdict(gpus, text, bytes);
    else if (gpus->nranks == 1)
        snprintf(text, bytes, "One rank has a GPU of its own: `ring` steps there and exchanges nothing.");
    else if (crowd(gpus) > 1 && gpus->machine.n == 1)
        snprintf(text, bytes,
                 "%d ranks share one GPU, which NCCL refuses: `ring` sums and steps on it through "
                 "CUDA IPC, or in pinned host memory if IPC is unavailable.",
                 gpus->nranks);
    else if (crowd(gpus) > 1)
        snprintf(text, bytes,
                 "%d ranks share %d GPUs, which NCCL refuses: `ring` exchanges in pinned host "
                 "memory; with at most %d ranks NCCL could be used.",
                 gpus->nranks, gpus->machine.n, gpus->machine.n);
    else if (gpus->group[0] == 0)
        snprintf(text, bytes,
                 "Every rank has a GPU of its own, but NCCL (libnccl.so.2) is not found: `ring` exchanges in "
                 "pinned host memory.");
    else
        snprintf(text, bytes, "Every rank has a GPU of its own: `ring` runs through %s%s.", gpus->group,
                 has_unlinked_pair(gpus) ? ", through the host where GPUs are not linked" : "");
}

/* "cuda:2,cuda:3", as --device takes them; "cuda:0 .. cuda:7" where that would be long. */
static void format_slice(const eni_gpu_list *gpus, int first, char text[ENI_TABLE_TEXT])
{
    enum { NAMED = 4 };
    const int n = width(gpus);
    const bool is_long = n > NAMED;
    text[0] = 0;
    for (int i = 0; i < n; i += is_long ? n - 1 : 1)
        eni_text_add(text, ENI_TABLE_TEXT, "%scuda:%d", i == 0 ? "" : is_long ? " .. " : ",", first + i);
}

static en_status show_ranks(FILE *out, const eni_gpu_list *gpus)
{
    enum { SHOWN = 64 };
    char text[ENI_GPUS_VERDICT], slice[ENI_TABLE_TEXT];
    eni_table table;
    const int n = gpus->nranks < SHOWN ? gpus->nranks : SHOWN;
    const bool has_slices = width(gpus) > 1;
    eni_table_begin(&table, has_slices ? ">RANK|DEVICES" : ">RANK|DEVICE|NAME|UUID");
    for (int r = 0; r < n; r++) {
        const eni_gpu_seen *f = &gpus->machine.gpu[gpu_of(gpus, r)];
        format_slice(gpus, gpu_of(gpus, r), slice);
        eni_table_put(&table, "%d|%s", r, slice);
        if (!has_slices) eni_table_put(&table, "%s|" SHORT_UUID, f->name, f->uuid);
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
    const eni_gpu_machine *m = &gpus->machine;
    EN_TRY(show_list(out, m));
    if (m->n > 1) EN_TRY(show_links(out, m));
    fprintf(out, "\nDriver: %s\nCollectives: %s\n", or_dash(m->driver),
            gpus->group[0] != 0 ? gpus->group
            : gpus->is_built    ? "no NCCL (libnccl.so.2 is not found)"
                                : "none without the cuda device (`make cuda` builds it)");
    return gpus->nranks > 0 ? show_ranks(out, gpus) : EN_OK;
}

/* ---- as JSON ---- */

static json_t *bytes_or_null(uint64_t bytes)
{
    return bytes > 0 ? json_integer((json_int_t)bytes) : json_null();
}

/* A process name may not be valid UTF-8. */
static json_t *name_or_null(const char *name)
{
    json_t *text = name[0] != 0 ? json_string(name) : NULL;
    return text != NULL ? text : json_null();
}

static json_t *users_of(const eni_gpu_seen *g)
{
    if (g->nusers < 0) return json_null();
    json_t *users = json_array();
    for (int i = 0; i < g->nusers && i < ENI_GPU_USERS; i++)
        json_array_append_new(users, json_pack("{s:I, s:o, s:o}", "pid", (json_int_t)g->users[i].pid,
                                               "program", name_or_null(g->users[i].program), "bytes",
                                               bytes_or_null(g->users[i].bytes)));
    return users;
}

static json_t *gpu_json(const eni_gpu_seen *g, int index)
{
    char capability[24] = "";
    if (g->major > 0) snprintf(capability, sizeof capability, "%d.%d", g->major, g->minor);
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "index", index, "name",
                     name_or_null(g->name), "uuid", name_or_null(g->uuid), "bus", name_or_null(g->bus),
                     "compute_capability", name_or_null(capability), "memory_bytes",
                     bytes_or_null(g->memory_bytes), "free_bytes", bytes_or_null(g->free_bytes), "numa_node",
                     g->numa_node >= 0 ? json_integer(g->numa_node) : json_null(), "cpus",
                     name_or_null(g->cpus), "nusers", g->nusers < 0 ? json_null() : json_integer(g->nusers),
                     "users", users_of(g));
}

/* The link from each GPU to each other one, or its path. */
static json_t *matrix(const eni_gpu_machine *m, bool is_of_paths)
{
    static const char *const ways[] = {[ENI_LINK_NONE] = "none",
                                       [ENI_LINK_HOST] = "host",
                                       [ENI_LINK_PCIE] = "pcie",
                                       [ENI_LINK_NVLINK] = "nvlink",
                                       [ENI_LINK_SAME] = "same"};
    json_t *rows = json_array();
    for (int a = 0; a < m->n; a++) {
        json_t *row = json_array();
        for (int b = 0; b < m->n; b++)
            json_array_append_new(row,
                                  name_or_null(is_of_paths ? m->link[a][b].path : ways[m->link[a][b].way]));
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
    for (int i = 0; i < gpus->machine.n; i++)
        json_array_append_new(list, gpu_json(&gpus->machine.gpu[i], i));
    json_t *all = json_pack("{s:i, s:o, s:o, s:o, s:o, s:o}", "schema", 1, "gpus", list, "links",
                            matrix(&gpus->machine, false), "topology", matrix(&gpus->machine, true), "driver",
                            name_or_null(gpus->machine.driver), "collectives", name_or_null(gpus->group));
    if (gpus->nranks == 0) return all;
    eni_gpus_verdict(gpus, verdict, sizeof verdict);
    json_object_set_new(all, "ranks", ranks_json(gpus));
    json_object_set_new(all, "verdict", json_string(verdict));
    return all;
}

/* ---- the command ---- */

/* Does every rank that was asked for have a slice? */
static en_status check_slices(const eni_gpu_list *gpus)
{
    const eni_gpu_want want = {.spec = "cuda", .n = width(gpus), .is_shared = gpus->is_shared};
    int32_t index[ENI_DEVICES_MAX];
    int n;
    return gpus->nranks > 0 ? eni_gpu_pick(&want, gpus->machine.n, 0, gpus->nranks, index, &n) : EN_OK;
}

/* Asks the cuda device, if this build has one, for its collectives. */
static void ask_device(const char *plugin_dir, eni_gpu_list *gpus)
{
    const en_device *device;
    gpus->group = "";
    if (!eni_device_is_built("cuda", plugin_dir) || eni_device_load("cuda", plugin_dir, &device) != EN_OK ||
        device->gpu == NULL)
        return;
    gpus->is_built = true;
    gpus->group = device->gpu->group_version();
}

en_status eni_command_gpus(const eni_command_context *context)
{
    const eni_config *c = context->config;
    eni_gpu_list *gpus = eni_alloc(sizeof *gpus);
    if (gpus == NULL) return EN_ENOMEM;
    gpus->nstages = (int)c->stages;
    gpus->is_shared = c->gpu_sharing;
    if (eni_config_is_given(c, "workers") || c->stages > 0) gpus->nranks = (int)c->workers;
    en_status st = eni_nvml_list(eni_env_visible_gpus(), context->signal_fd, &gpus->machine);
    if (st == EN_OK && gpus->nranks > 0 && !eni_config_is_given(c, "workers")) /* as `run` does */
        gpus->nranks = gpus->machine.n >= gpus->nstages ? gpus->machine.n / gpus->nstages : 1;
    if (st == EN_OK) st = check_slices(gpus);
    if (st == EN_OK) ask_device(context->plugin_dir, gpus);
    if (st == EN_OK && c->json)
        st = eni_json_print(eni_gpus_json(gpus));
    else if (st == EN_OK)
        st = eni_gpus_show(stdout, gpus);
    eni_free(gpus);
    return st == EN_EUNSUPPORTED ? EN_EINVAL : st; /* no GPU, no driver: logged, and wrong use */
}
