/* record.c - see record.h. */
#include "rank/record.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "rank/jsonl.h"

struct eni_recorder {
    FILE *file;
    char path[1024];
    char buffer[1 << 16];
};

en_status eni_recorder_open(const char *dir, int rank, uint64_t resumed, double seconds,
                            eni_recorder **recorder_out)
{
    eni_recorder *recorder = eni_alloc(sizeof *recorder);
    if (recorder == NULL) return EN_ENOMEM;
    snprintf(recorder->path, sizeof recorder->path, "%s/metrics-%d.jsonl", dir, rank);
    en_status st = eni_jsonl_open(recorder->path, resumed, seconds, &recorder->file);
    if (st != EN_OK) {
        eni_free(recorder);
        return st;
    }
    setvbuf(recorder->file, recorder->buffer, _IOFBF, sizeof recorder->buffer);
    *recorder_out = recorder;
    return EN_OK;
}

void eni_recorder_add(eni_recorder *recorder, const eni_step *s)
{
    if (recorder == NULL) return;
    char loss[32] = "null"; /* JSON has no NaN */
    if (isfinite(s->loss)) snprintf(loss, sizeof loss, "%.9g", (double)s->loss);
    fprintf(recorder->file,
            "{\"schema\":1,\"t\":%.6f,\"step\":%" PRIu64 ",\"epoch\":%" PRIu64 ",\"samples\":%" PRIu64
            ",\"nsamples\":%" PRIu64 ",\"update\":%" PRIu64 ",\"base_version\":%" PRIu64
            ",\"loss\":%s,\"lr\":%.9g,\"step_ns\":%" PRId64 ",\"data_ns\":%" PRId64 ",\"compute_ns\":%" PRId64
            ",\"send_ns\":%" PRId64 ",\"wait_ns\":%" PRId64 ",\"update_ns\":%" PRId64
            ",\"payload_bytes\":%" PRIu64 ",\"wire_bytes\":%" PRIu64 ",\"staleness\":%.4g}\n",
            s->t, s->step, s->epoch, s->samples, s->nsamples, s->update, s->base_version, loss, (double)s->lr,
            s->step_ns, s->data_ns, s->compute_ns, s->send_ns, s->wait_ns, s->update_ns, s->payload_bytes,
            s->wire_bytes, s->staleness);
}

void eni_recorder_flush(eni_recorder *recorder)
{
    if (recorder != NULL) fflush(recorder->file); /* a failure shows at the end */
}

en_status eni_recorder_close(eni_recorder *recorder)
{
    if (recorder == NULL) return EN_OK;
    int failed = ferror(recorder->file);
    failed |= fclose(recorder->file) != 0;
    if (failed) eni_error("record", "cannot write %s: %s", recorder->path, strerror(errno));
    eni_free(recorder);
    return failed ? EN_EIO : EN_OK;
}
