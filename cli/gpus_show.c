/* gpus_show.c - see gpus.h. */
#include <inttypes.h>
#include <string.h>

#include "cli/gpus.h"
#include "report/table.h"
#include "ops/gpu_of_rank.h"

enum { COLUMNS = 8, USERS_SHOWN = 4 };

static void format_bytes(uint64_t bytes, char text[ENI_TABLE_TEXT])
{
    if (bytes < 100000000)
        snprintf(text, ENI_TABLE_TEXT, "%.1f MB", (double)bytes * 1e-6);
    else
        snprintf(text, ENI_TABLE_TEXT, bytes < 10e9 ? "%.2f GB" : "%.1f GB", (double)bytes * 1e-9);
}

/* "GPU-5f1c2a3b": as nvidia-smi and the table at the start of a run shorten it. */
static void format_uuid(const en_gpu_facts *facts, char text[ENI_TABLE_TEXT])
{
    snprintf(text, ENI_TABLE_TEXT, "%.12s", facts->uuid);
}

static void format_users(const eni_gpus_one *g, char text[ENI_TABLE_TEXT])
{
    size_t at = 0;
    char bytes[ENI_TABLE_TEXT];
    snprintf(text, ENI_TABLE_TEXT, g->nusers < 0 ? "not told" : "nobody");
    for (int i = 0; i < g->nusers && i < USERS_SHOWN && at < ENI_TABLE_TEXT; i++) {
        const eni_gpus_user *u = &g->users[i];
        at += (size_t)snprintf(text + at, ENI_TABLE_TEXT - at, "%s%s%spid %" PRId64, i > 0 ? ", " : "",
                               u->program, u->program[0] != 0 ? " " : "", u->user.pid);
        format_bytes(u->user.bytes, bytes);
        if (u->user.bytes > 0 && at < ENI_TABLE_TEXT)
            at += (size_t)snprintf(text + at, ENI_TABLE_TEXT - at, " (%s)", bytes);
    }
    if (g->nusers > USERS_SHOWN && at < ENI_TABLE_TEXT)
        snprintf(text + at, ENI_TABLE_TEXT - at, " and %d more", g->nusers - USERS_SHOWN);
}

static void show_list(FILE *out, const eni_gpus *gpus)
{
    static const eni_column columns[COLUMNS] = {{"GPU", true},  {"NAME", false},   {"UUID", false},
                                                {"BUS", false}, {"CC", true},      {"MEMORY", true},
                                                {"FREE", true}, {"USED BY", false}};
    char cells[ENI_GPUS_MAX * COLUMNS][ENI_TABLE_TEXT];
    for (int i = 0; i < gpus->n; i++) {
        const en_gpu_facts *f = &gpus->gpu[i].facts;
        char(*cell)[ENI_TABLE_TEXT] = &cells[i * COLUMNS];
        snprintf(cell[0], ENI_TABLE_TEXT, "%d", i);
        snprintf(cell[1], ENI_TABLE_TEXT, "%s", f->name);
        format_uuid(f, cell[2]);
        snprintf(cell[3], ENI_TABLE_TEXT, "%s", f->bus);
        snprintf(cell[4], ENI_TABLE_TEXT, "%d.%d", (int)f->major, (int)f->minor);
        format_bytes(f->memory_bytes, cell[5]);
        snprintf(cell[6], ENI_TABLE_TEXT, "-"); /* 0: not known */
        if (f->free_bytes > 0) format_bytes(f->free_bytes, cell[6]);
        format_users(&gpus->gpu[i], cell[7]);
    }
    eni_table_print(out, columns, COLUMNS, (const char(*)[ENI_TABLE_TEXT])cells, (size_t)gpus->n);
}

static const char *link_name(int link)
{
    static const char *const names[] = {[EN_LINK_NONE] = "none",
                                        [EN_LINK_HOST] = "host",
                                        [EN_LINK_PCIE] = "PCIe",
                                        [EN_LINK_NVLINK] = "NVLink",
                                        [EN_LINK_SAME] = "-"};
    return link >= EN_LINK_NONE && link <= EN_LINK_SAME ? names[link] : "?";
}

static void show_links(FILE *out, const eni_gpus *gpus)
{
    const int n = gpus->n < ENI_GPUS_LINKED ? gpus->n : ENI_GPUS_LINKED, width = n + 1;
    static char heads[ENI_GPUS_LINKED][4];
    eni_column columns[ENI_GPUS_LINKED + 1] = {{"", true}};
    char cells[ENI_GPUS_LINKED * (ENI_GPUS_LINKED + 1)][ENI_TABLE_TEXT];
    for (int a = 0; a < n; a++) {
        snprintf(heads[a], sizeof heads[a], "%d", a);
        columns[a + 1] = (eni_column){heads[a], false};
        snprintf(cells[a * width], ENI_TABLE_TEXT, "%d", a);
        for (int b = 0; b < n; b++)
            snprintf(cells[a * width + b + 1], ENI_TABLE_TEXT, "%s",
                     link_name(a == b ? EN_LINK_SAME : gpus->link[a][b]));
    }
    fprintf(out, "\nLinks (NVLink; PCIe: peer to peer; host: through the processor):\n");
    eni_table_print(out, columns, (size_t)width, (const char(*)[ENI_TABLE_TEXT])cells, (size_t)n);
    if (gpus->n > n) fprintf(out, "(the first %d of %d)\n", n, gpus->n);
}

/* ---- ranks ---- */

static int gpu_of(const eni_gpus *gpus, int rank)
{
    return eni_gpu_of_rank(rank, gpus->nranks, gpus->n);
}

/* The most ranks that meet on one GPU. */
static int crowd(const eni_gpus *gpus)
{
    int users[ENI_GPUS_MAX] = {0}, most = 0;
    for (int r = 0; r < gpus->nranks; r++) {
        const int n = ++users[gpu_of(gpus, r)];
        if (n > most) most = n;
    }
    return most;
}

static int has_unlinked_pair(const eni_gpus *gpus)
{
    for (int r = 1; r < gpus->nranks; r++)
        for (int q = 0; q < r; q++)
            if (gpus->link[gpu_of(gpus, q)][gpu_of(gpus, r)] == EN_LINK_NONE) return 1;
    return 0;
}

void eni_gpus_verdict(const eni_gpus *gpus, char *text, size_t bytes)
{
    if (gpus->nranks == 1)
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

static void show_ranks(FILE *out, const eni_gpus *gpus)
{
    static const eni_column columns[] = {{"RANK", true}, {"DEVICE", false}, {"NAME", false}, {"UUID", false}};
    enum { SHOWN = 64 };
    char cells[SHOWN * 4][ENI_TABLE_TEXT], text[ENI_GPUS_VERDICT];
    const int n = gpus->nranks < SHOWN ? gpus->nranks : SHOWN;
    for (int r = 0; r < n; r++) {
        const en_gpu_facts *f = &gpus->gpu[gpu_of(gpus, r)].facts;
        snprintf(cells[r * 4], ENI_TABLE_TEXT, "%d", r);
        snprintf(cells[r * 4 + 1], ENI_TABLE_TEXT, "cuda:%d", gpu_of(gpus, r));
        snprintf(cells[r * 4 + 2], ENI_TABLE_TEXT, "%s", f->name);
        format_uuid(f, cells[r * 4 + 3]);
    }
    fprintf(out, "\n%d rank%s on this host with --device=cuda:\n", gpus->nranks, gpus->nranks > 1 ? "s" : "");
    eni_table_print(out, columns, 4, (const char(*)[ENI_TABLE_TEXT])cells, (size_t)n);
    if (gpus->nranks > n) fprintf(out, "(the first %d)\n", n);
    eni_gpus_verdict(gpus, text, sizeof text);
    fprintf(out, "\n%s\n", text);
}

void eni_gpus_show(FILE *out, const eni_gpus *gpus)
{
    show_list(out, gpus);
    if (gpus->n > 1) show_links(out, gpus);
    fprintf(out, "\nCollectives: %s\n",
            gpus->group[0] != 0 ? gpus->group : "no NCCL (libnccl.so.2 is not found)");
    if (gpus->nranks > 0) show_ranks(out, gpus);
}
