/* arrivals.c - a text file: three numbers a line, between a first line about the run and a last one that counts. */
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

en_status eni_arrivals_create(const char *folder, const eni_arrivals *about, eni_arrivals_file *out)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/arrivals-%" PRId32 ".txt", folder, about->shard);
    *out = (eni_arrivals_file){.file = eni_file_open(path, "w"), .begin_ns = eni_now_ns()};
    if (out->file == NULL)
        return eni_fail(EN_EIO, "arrivals", "--record-order: cannot create %s: %s", path, strerror(errno));
    fprintf(out->file,
            "entrain arrivals 1: shard %" PRId32 " of %" PRId32 ", %" PRId32 " ranks, %" PRIu32
            " buckets of %" PRIu64 " elements\n",
            about->shard, about->nshards, about->nranks, about->nbuckets, about->elements);
    return EN_OK;
}

void eni_arrivals_add(eni_arrivals_file *out, eni_arrival a)
{
    fprintf(out->file, "%" PRId64 " %" PRId32 " %" PRId32 "\n", a.ns - out->begin_ns, a.rank, a.bucket);
    out->n++;
}

en_status eni_arrivals_close(eni_arrivals_file *out)
{
    if (out->file == NULL) return EN_OK;
    fprintf(out->file, "%" PRIu64 " events\n", out->n);
    const bool has_failed = ferror(out->file) != 0;
    if (fclose(out->file) == 0 && !has_failed) return EN_OK;
    return eni_fail(EN_EIO, "arrivals", "--record-order: the order cannot be written: is the disk full?");
}

static bool read_line(const char *line, const eni_arrivals *all, eni_arrival *a)
{
    int end = 0;
    return sscanf(line, "%" SCNd64 " %" SCNd32 " %" SCNd32 "%n", &a->ns, &a->rank, &a->bucket, &end) == 3 &&
           strcmp(line + end, "\n") == 0 && a->ns >= (all->n > 0 ? all->item[all->n - 1].ns : 0) &&
           a->rank >= 0 && a->rank < all->nranks && a->bucket >= ENI_ARRIVAL_VISIT &&
           a->bucket < (int64_t)all->nbuckets;
}

static en_status read_all(FILE *file, const char *path, eni_arrivals *all)
{
    char line[200] = "", last[40];
    uint32_t room = 0;
    if (fgets(line, sizeof line, file) == NULL ||
        sscanf(line,
               "entrain arrivals 1: shard %" SCNd32 " of %" SCNd32 ", %" SCNd32 " ranks, %" SCNu32
               " buckets of %" SCNu64,
               &all->shard, &all->nshards, &all->nranks, &all->nbuckets, &all->elements) != 5)
        return eni_fail(
            EN_EINVAL, "arrivals",
            "--replay-order: %s does not begin with \"entrain arrivals 1\"; give the --out of a run with "
            "--record-order",
            path);
    for (; fgets(line, sizeof line, file) != NULL; all->n++) {
        snprintf(last, sizeof last, "%" PRIu64 " events\n", all->n);
        if (strcmp(line, last) == 0) return EN_OK;
        if (all->n == UINT32_MAX)
            return eni_fail(EN_EINVAL, "arrivals", "--replay-order: %s has more than %" PRIu32 " events",
                            path, UINT32_MAX - 1);
        EN_TRY(eni_grow((void **)&all->item, &room, (uint32_t)all->n + 1, sizeof *all->item));
        if (!read_line(line, all, &all->item[all->n])) break;
        if (all->item[all->n].bucket == ENI_ARRIVAL_VISIT)
            return eni_fail(EN_EINVAL, "arrivals",
                            "--replay-order: line %" PRIu64 " of %s: rank %" PRId32
                            " joined later or was lost; only runs whose ranks all stay from beginning to end "
                            "can be played",
                            all->n + 2, path, all->item[all->n].rank);
    }
    return eni_fail(EN_EINVAL, "arrivals",
                    "--replay-order: line %" PRIu64
                    " of %s should be \"NS RANK BUCKET\", or the last one, \"%" PRIu64 " events\"",
                    all->n + 2, path, all->n);
}

en_status eni_arrivals_read(const char *folder, int32_t shard, eni_arrivals *out)
{
    char path[4200];
    *out = (eni_arrivals){0};
    snprintf(path, sizeof path, "%s/arrivals-%" PRId32 ".txt", folder, shard);
    FILE *file = eni_file_open(path, "r");
    if (file == NULL)
        return eni_fail(EN_ENOENT, "arrivals", "--replay-order: cannot read %s: %s; run with --record-order",
                        path, strerror(errno));
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
