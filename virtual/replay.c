/* replay.c - reads the order of a finished run. */
#include "virtual/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* The micro-batches of a rank, one a line. */
static en_status read_batches(FILE *file, const char *path, uint64_t **batches, uint64_t *n)
{
    char line[1024];
    uint64_t room = 0;
    for (*n = 0; fgets(line, sizeof line, file) != NULL; (*n)++) {
        json_t *step = json_loads(line, 0, NULL);
        const json_t *number = json_object_get(step, "step"), *batch = json_object_get(step, "micro_batch");
        const bool is_step = json_is_integer(number) && json_is_integer(batch) &&
                             json_integer_value(batch) >= 0 && (uint64_t)json_integer_value(number) == *n;
        const uint64_t micro_batch = (uint64_t)json_integer_value(batch);
        json_decref(step);
        if (!is_step)
            return eni_fail(
                EN_EINVAL, "sim",
                "--replay-order: line %" PRIu64 " of %s should be step %" PRIu64
                " with its micro-batch; give the --out of a run that was neither resumed nor cut short",
                *n + 1, path, *n);
        if (*n == room) {
            room = 2 * room + 1024;
            uint64_t *grown = realloc(*batches, room * sizeof *grown);
            if (grown == NULL) return EN_ENOMEM;
            *batches = grown;
        }
        (*batches)[*n] = micro_batch;
    }
    return EN_OK;
}

static en_status read_rank(const char *out, int32_t rank, eni_virtual_replay *r)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/metrics-%d.jsonl", out, rank);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return eni_fail(EN_ENOENT, "sim",
                        "--replay-order: cannot read %s: %s; give -n as in the recorded run", path,
                        strerror(errno));
    const en_status st = read_batches(file, path, &r->batches[rank], &r->nbatches[rank]);
    fclose(file);
    return st;
}

en_status eni_virtual_replay_open(const char *out, int32_t nshards, int32_t nranks, eni_virtual_replay *r)
{
    *r = (eni_virtual_replay){.nshards = nshards, .nranks = nranks};
    r->arrivals = eni_alloc_array((size_t)nshards, sizeof *r->arrivals);
    r->batches = eni_alloc_array((size_t)nranks, sizeof *r->batches);
    r->nbatches = eni_alloc_array((size_t)nranks, sizeof *r->nbatches);
    if (r->arrivals == NULL || r->batches == NULL || r->nbatches == NULL) return EN_ENOMEM;
    for (int32_t k = 0; k < nshards; k++)
        EN_TRY(eni_arrivals_read(out, k, &r->arrivals[k]));
    for (int32_t rank = 0; rank < nranks; rank++)
        EN_TRY(read_rank(out, rank, r));
    r->order = (eni_sim_order){
        .arrivals = r->arrivals, .batches = (const uint64_t *const *)r->batches, .nbatches = r->nbatches};
    return EN_OK;
}

en_status eni_virtual_replay_verify(const char *out, const char *params_sha256)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *result = json_load_file(path, 0, NULL);
    const char *theirs = json_string_value(json_object_get(result, "params_sha256"));
    const bool is_equal = theirs != NULL && strcmp(theirs, params_sha256) == 0;
    json_decref(result);
    if (is_equal) return EN_OK;
    return eni_fail(
        EN_EMISMATCH, "sim",
        "--replay-order: the order was played, but the weights (params_sha256 %.12s..) are not those of "
        "%s: give the flags of that run (config.yaml beside it has them), and its device",
        params_sha256, path);
}

void eni_virtual_replay_close(eni_virtual_replay *r)
{
    for (int32_t k = 0; r->arrivals != NULL && k < r->nshards; k++)
        eni_arrivals_fini(&r->arrivals[k]);
    for (int32_t rank = 0; r->batches != NULL && rank < r->nranks; rank++)
        free(r->batches[rank]);
    eni_free(r->arrivals);
    eni_free(r->batches);
    eni_free(r->nbatches);
    *r = (eni_virtual_replay){0};
}
