/* trace.c - spans in a fixed buffer, one atomic increment each; written as JSON at the end. */
#include "core/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"

typedef struct span {
    const char *name;
    int64_t begin_ns, end_ns, step;
    uint64_t bytes;
    int thread, bucket;
} span;

struct eni_trace {
    char role[32];
    int pid;
    uint64_t max_spans;
    atomic_uint_fast64_t used;
    span *spans;
};

eni_trace *eni_trace_new(const char *role, int pid, uint64_t max_spans)
{
    eni_trace *trace = eni_alloc(sizeof *trace);
    if (trace == NULL) return NULL;
    trace->spans = eni_alloc_array(max_spans, sizeof *trace->spans);
    if (trace->spans == NULL) {
        eni_free(trace);
        return NULL;
    }
    snprintf(trace->role, sizeof trace->role, "%s", role);
    trace->pid = pid;
    trace->max_spans = max_spans;
    return trace;
}

void eni_trace_span(eni_trace *trace, int thread, const char *name, int64_t begin_ns, int64_t end_ns,
                    int64_t step, int bucket, uint64_t bytes)
{
    if (trace == NULL) return;
    uint64_t i = atomic_fetch_add_explicit(&trace->used, 1, memory_order_relaxed);
    if (i < trace->max_spans) trace->spans[i] = (span){name, begin_ns, end_ns, step, bytes, thread, bucket};
}

const char *eni_trace_row(int thread, char text_out[ENI_TRACE_ROW_TEXT])
{
    static const char *const names[] = {
        [ENI_TRACE_COMPUTE] = "compute", [ENI_TRACE_COMM] = "comm", [ENI_TRACE_LOADER] = "loader"};
    if (thread >= 0 && thread <= ENI_TRACE_LOADER)
        snprintf(text_out, ENI_TRACE_ROW_TEXT, "%s", names[thread]);
    else if (thread >= ENI_TRACE_STAGE0)
        snprintf(text_out, ENI_TRACE_ROW_TEXT, "stage %d", thread - ENI_TRACE_STAGE0);
    else if (thread >= ENI_TRACE_SHARD0)
        snprintf(text_out, ENI_TRACE_ROW_TEXT, "shard %d", thread - ENI_TRACE_SHARD0);
    else
        snprintf(text_out, ENI_TRACE_ROW_TEXT, "thread %d", thread);
    return text_out;
}

/* Names only rows with spans. */
static void write_row_names(FILE *file, const eni_trace *trace, uint64_t nspans)
{
    bool is_there[ENI_TRACE_ROWS] = {false};
    char name[ENI_TRACE_ROW_TEXT];
    for (uint64_t i = 0; i < nspans; i++)
        if (trace->spans[i].thread >= 0 && trace->spans[i].thread < ENI_TRACE_ROWS)
            is_there[trace->spans[i].thread] = true;
    for (int thread = 0; thread < ENI_TRACE_ROWS; thread++)
        if (is_there[thread])
            fprintf(
                file,
                ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                trace->pid, thread, eni_trace_row(thread, name));
}

static void write_span(FILE *file, const eni_trace *trace, const span *s)
{
    fprintf(file,
            ",\n{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d,\"args\":{"
            "\"step\":%" PRId64,
            s->name, (double)s->begin_ns / 1e3, (double)(s->end_ns - s->begin_ns) / 1e3, trace->pid,
            s->thread, s->step);
    if (s->bucket >= 0) fprintf(file, ",\"bucket\":%d", s->bucket);
    if (s->bytes > 0) fprintf(file, ",\"bytes\":%" PRIu64, s->bytes);
    fputs("}}", file);
}

en_status eni_trace_write(const eni_trace *trace, const char *path)
{
    FILE *file = eni_file_open(path, "w");
    if (file == NULL)
        return eni_fail(EN_EIO, "trace", "cannot write the trace %s: %s", path, strerror(errno));
    uint64_t used = atomic_load(&trace->used), kept = used < trace->max_spans ? used : trace->max_spans;
    fprintf(
        file,
        "{\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"%s\"}}",
        trace->pid, trace->role);
    write_row_names(file, trace, kept);
    for (uint64_t i = 0; i < kept; i++)
        write_span(file, trace, &trace->spans[i]);
    fprintf(file, "\n],\"dropped\":%" PRIu64 "}\n", used - kept);
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed)
        return eni_fail(EN_EIO, "trace", "cannot write the trace %s: %s", path, strerror(errno));
    return EN_OK;
}

void eni_trace_free(eni_trace *trace)
{
    if (trace == NULL) return;
    eni_free(trace->spans);
    eni_free(trace);
}
