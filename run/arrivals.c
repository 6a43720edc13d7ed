/* arrivals.c - a text file: lines of numbers and words between a first line about the run and a last one that counts. */
#include "run/arrivals.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

static const char about_format[] = "entrain arrivals 1: shard %" PRId32 " of %" PRId32 ", %" PRId32
                                   " ranks, %" PRIu32 " buckets of %" PRIu64 " elements\n";
static const char about_scan[] = "entrain arrivals 1: shard %" SCNd32 " of %" SCNd32 ", %" SCNd32
                                 " ranks, %" SCNu32 " buckets of %" SCNu64 " elements";
static const char *const words[] = {"end", "timer", "join", "left"}; /* -1 - ENI_ARRIVAL_* */

struct eni_arrivals_file {
    FILE *file;
    uint64_t n;
    int64_t begin_ns;
    char path[1024];
};

en_status eni_arrivals_create(const char *folder, const eni_arrivals *about, eni_arrivals_file **file_out)
{
    eni_arrivals_file *f = eni_alloc(sizeof *f);
    if (f == NULL) return EN_ENOMEM;
    snprintf(f->path, sizeof f->path, "%s/arrivals-%" PRId32 ".txt", folder, about->shard);
    f->file = eni_file_open(f->path, "w");
    if (f->file == NULL) {
        const en_status st =
            eni_fail(EN_EIO, "arrivals", "--record-order: cannot create %s: %s", f->path, strerror(errno));
        eni_free(f);
        return st;
    }
    fprintf(f->file, about_format, about->shard, about->nshards, about->nranks, about->nbuckets,
            about->elements);
    f->begin_ns = eni_now_ns();
    *file_out = f;
    return EN_OK;
}

void eni_arrivals_add(eni_arrivals_file *f, eni_arrival a)
{
    if (f == NULL) return;
    f->n++;
    fprintf(f->file, "%" PRId64, a.now_ns - f->begin_ns);
    if (a.bucket != ENI_ARRIVAL_TIMER) fprintf(f->file, " %" PRId32, a.rank);
    if (a.bucket >= 0)
        fprintf(f->file, " %" PRId32 "\n", a.bucket);
    else
        fprintf(f->file, " %s\n", words[-1 - a.bucket]);
}

en_status eni_arrivals_close(eni_arrivals_file *f)
{
    if (f == NULL) return EN_OK;
    fprintf(f->file, "%" PRIu64 " events\n", f->n);
    const bool has_failed = ferror(f->file) != 0;
    en_status st = EN_OK;
    if (fclose(f->file) != 0 || has_failed)
        st = eni_fail(EN_EIO, "arrivals", "--record-order: cannot write %s: is the disk full?", f->path);
    eni_free(f);
    return st;
}

/* ---- reading ---- */

/* "17 2 0", "17 2 end", "17 timer". */
static bool read_line(const char *line, const eni_arrivals *about, eni_arrival *a)
{
    char word[8] = "";
    int end = 0;
    const int64_t before_ns = about->n > 0 ? about->item[about->n - 1].now_ns : 0;
    *a = (eni_arrival){.bucket = ENI_ARRIVAL_TIMER};
    if (sscanf(line, "%" SCNd64 " timer%n", &a->now_ns, &end) < 1 || a->now_ns < before_ns) return false;
    if (end > 0) return strcmp(line + end, "\n") == 0;
    if (sscanf(line, "%*d %" SCNd32 " %7[a-z0-9]%n", &a->rank, word, &end) != 2 ||
        strcmp(line + end, "\n") != 0 || a->rank < 0 || a->rank >= about->nranks)
        return false;
    for (int i = 0; i < 4; i++)
        if (strcmp(word, words[i]) == 0) a->bucket = -1 - i;
    if (a->bucket != ENI_ARRIVAL_TIMER) return true;
    a->bucket = (int32_t)strtol(word, NULL, 10);
    return word[strspn(word, "0123456789")] == 0 && (uint32_t)a->bucket < about->nbuckets;
}

static en_status read_all(FILE *file, const char *path, eni_arrivals *out)
{
    char line[200] = "", last[40];
    uint64_t room = 0;
    if (fgets(line, sizeof line, file) == NULL || sscanf(line, about_scan, &out->shard, &out->nshards,
                                                         &out->nranks, &out->nbuckets, &out->elements) != 5)
        return eni_fail(EN_EINVAL, "arrivals",
                        "--replay-order: %s does not begin with a line of \"entrain arrivals 1: ..\"; give "
                        "the --out of a "
                        "run with --record-order",
                        path);
    while (fgets(line, sizeof line, file) != NULL) {
        snprintf(last, sizeof last, "%" PRIu64 " events\n", out->n);
        if (strcmp(line, last) == 0) return EN_OK;
        if (out->n == room) {
            room = 2 * room + 1024;
            eni_arrival *item = realloc(out->item, room * sizeof *item);
            if (item == NULL) return EN_ENOMEM;
            out->item = item;
        }
        eni_arrival *a = &out->item[out->n];
        if (!read_line(line, out, a)) break;
        out->n++;
        if (a->bucket <= ENI_ARRIVAL_JOIN)
            return eni_fail(EN_EINVAL, "arrivals",
                            "--replay-order: line %" PRIu64
                            " of %s: rank %d came later, or was lost; only runs whose ranks "
                            "all take part from beginning to end can be replayed",
                            out->n + 1, path, a->rank);
    }
    return eni_fail(EN_EINVAL, "arrivals",
                    "--replay-order: %s is not complete: line %" PRIu64
                    " should be \"NS RANK BUCKET\", \"NS RANK end\" or, as the last one, \"%" PRIu64
                    " events\"",
                    path, out->n + 2, out->n);
}

en_status eni_arrivals_read(const char *folder, int32_t shard, eni_arrivals *out)
{
    char path[4200];
    *out = (eni_arrivals){0};
    snprintf(path, sizeof path, "%s/arrivals-%" PRId32 ".txt", folder, shard);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return eni_fail(EN_ENOENT, "arrivals",
                        "--replay-order: cannot read %s: %s; a run writes it with --record-order", path,
                        strerror(errno));
    const en_status st = read_all(file, path, out);
    fclose(file);
    if (st != EN_OK) eni_arrivals_fini(out);
    return st;
}

void eni_arrivals_fini(eni_arrivals *arrivals)
{
    free(arrivals->item);
    *arrivals = (eni_arrivals){0};
}
